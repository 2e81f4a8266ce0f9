"""Exports, opened by other tools in separate processes."""

import json
import re
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
import yaml

from tests.support.export_run import make_run, tiny
from tests.support.limits import HANG_S
from vitft import export
from vitft.cli.main import main
from vitft.data.images import open_image
from vitft.export import Exported, export_run, export_safetensors, job
from vitft.export.compare import ExportComparison, check_comparison
from vitft.export.formats.timm import SafetensorsFormat, timm_name, vit_arguments
from vitft.export.plan import EXPORT_FORMATS, plan_export
from vitft.export.trained import TrainedRun, comparison_images, load_trained
from vitft.models.card import Provenance
from vitft.models.classifier import load_classifier
from vitft.models.pretrained.load import load_pretrained
from vitft.models.registry import architecture_config
from vitft.models.timm_config import TimmConfig
from vitft.predict.torch_engine import Predictor
from vitft.system import imports
from vitft.system.errors import RunError, UsageError
from vitft.system.files import atomic_folder, resource

PRETRAINED = "vit_tiny_patch16_224.augreg_in21k"
HOSTILE = ("=1+1;\u202e\x1b[31m\"'", "a|b`*_<b>x</b>\n# c", "ünïcødé 🌷 {{x}} --- ")
"""Class names that mean something in Markdown, YAML, HTML, a terminal."""

# Opens every folder in argv[1] with its own tool and prints the logits of the images in argv[2].
STRANGER = """
import json, sys
from pathlib import Path
import numpy as np, onnxruntime, timm, torch, transformers
from PIL import Image
from timm.data import create_transform, resolve_data_config

root, images = Path(sys.argv[1]), [Image.open(p).convert("RGB") for p in json.loads(sys.argv[2])]
model = timm.create_model(f"local-dir:{root / 'timm'}", pretrained=True).eval()
view = create_transform(**resolve_data_config(model.pretrained_cfg))
inputs = torch.stack([view(image) for image in images])  # equal to the others': see below
said = {"labels": {"timm": model.pretrained_cfg["label_names"]}}
with torch.inference_mode():
    said["timm"] = model(inputs).tolist()
    program = torch.export.load(root / "torch-export" / "model.pt2").module()
    said["torch-export"] = program(inputs).tolist()
    said["torch-export one by one"] = [program(row[None])[0].tolist() for row in inputs]
session = onnxruntime.InferenceSession(root / "onnx" / "model.onnx")
said["onnx"] = session.run(None, {"pixels": inputs.numpy()})[0].tolist()
said["onnx one by one"] = [session.run(None, {"pixels": row[None].numpy()})[0][0].tolist()
                           for row in inputs]
facts = json.loads(session.get_modelmeta().custom_metadata_map["vitft"])
said["labels"]["onnx"] = facts["classes"]
for name in ("transformers", "timm"):
    opened = transformers.pipeline("image-classification", str(root / name), top_k=None,
                                   function_to_apply="none")
    labels = said["labels"]["timm"]
    rows = [{row["label"]: row["score"] for row in opened(image)} for image in images]
    said[f"pipeline of {name}"] = [[row[label] for label in labels] for row in rows]
said["foreign"] = "vitft" not in sys.modules
print(json.dumps(said))
"""


def stranger(code: str, *arguments: str) -> Any:
    """What a fresh process, which knows nothing of vitft, prints as JSON."""
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        capture_output=True,
        text=True,
        timeout=HANG_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    weights: Provenance = {"name": PRETRAINED, "licence": "cc-by-nc-4.0"}
    return make_run(tmp_path_factory.mktemp("made"), classes=HOSTILE, weights=weights)


@pytest.fixture(scope="module")
def done(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Exported:
    """Every format of one run."""
    out = tmp_path_factory.mktemp("exported") / "all"
    return export_run(str(run), plan_export([*EXPORT_FORMATS], str(out)))


@pytest.mark.parametrize("form", [name for name in EXPORT_FORMATS if name != "preprocessing"])
def test_every_folder_states_its_licence_its_base_model_and_its_data(
    run: Path, done: Exported, form: str
) -> None:
    _, header, body = (done.folder / form / "README.md").read_text().split("---\n", 2)
    fields = yaml.safe_load(header)

    assert (fields["license"], fields["base_model"]) == ("cc-by-nc-4.0", f"timm/{PRETRAINED}")
    assert f"fine-tuned from {PRETRAINED}" in body
    assert "Same licence as the pretrained weights: cc-by-nc-4.0." in body
    assert "apply to this model and forbid commercial use" in body
    number = len(HOSTILE)
    assert f"photos: {number} images for training and {2 * number} for validation" in body
    if form != "html":  # the page decodes files itself
        assert "EXIF" in body
        assert "transparency" in body or "composites them on white" in body
        assert "16-bit grey" in body


def test_the_folder_of_the_preprocessing_has_no_model_and_no_model_card(done: Exported) -> None:
    folder = done.folder / "preprocessing"
    text = (folder / "README.md").read_text()

    assert text.startswith("# Preprocessing of a vitft run\n")
    assert "base_model" not in text
    assert (folder / "LICENSE").read_text() == resource("LICENSE").read_text()
    assert not [*folder.rglob("*.safetensors"), *folder.rglob("*.onnx")]


def photos(run: Path) -> list[Path]:
    return sorted((run.parent / "photos").rglob("*.png"))


def test_every_tool_opens_its_folder_alone_and_answers_image_by_image_as_predict_does(
    run: Path, done: Exported
) -> None:
    predictor = Predictor.from_run(str(run), device="cpu")
    views = np.stack([predictor.card.transform.pixels(open_image(p)) for p in photos(run)])
    ours = predictor.scores(views).logits

    said = stranger(STRANGER, str(done.folder), json.dumps([str(p) for p in photos(run)]))

    assert said.pop("foreign")
    assert said.pop("labels") == {"timm": [*HOSTILE], "onnx": [*HOSTILE]}
    assert len(said) == 7
    for tool, theirs in said.items():
        np.testing.assert_allclose(theirs, ours, atol=1e-5, rtol=1e-6, err_msg=tool)


def test_every_export_is_compared_on_all_validation_images(done: Exported) -> None:
    assert [row.name for row in done.rows if ", " not in row.name] == [*EXPORT_FORMATS]
    assert {row.images for row in done.rows} == {6}
    # Graphs for transformers.js resize images themselves, and pages have rounded weights.
    close = ("int8", "transformers-js", "transformers-js, int8", "html")
    exact = [row for row in done.rows if row.name not in close]
    assert all(row.difference < 1e-5 and row.changed == 0 for row in exact)
    assert all(row.size > 0 and row.speed > 0 and row.original_speed > 0 for row in done.rows)


def test_eight_bits_are_smaller_close_and_not_exact(done: Exported) -> None:
    onnx, int8 = (next(r for r in done.rows if r.name == name) for name in ("onnx", "int8"))

    assert int8.size < 0.8 * onnx.size  # the graph itself weighs as much as this tiny model
    assert 0 < int8.difference < 0.1 * int8.largest


def test_no_file_tells_where_it_was_made(run: Path, done: Exported) -> None:
    places = (str(run.parent), str(Path(job.__file__).parents[1]))

    files = [path for path in done.folder.rglob("*") if path.is_file()]

    assert len(files) == 49
    for path in files:
        content = path.read_bytes()
        assert not [place for place in places if place.encode() in content], path


def test_the_graph_states_its_input_and_the_operators_it_needs(done: Exported) -> None:
    import onnx

    model = onnx.load(done.folder / "onnx" / "model.onnx")
    text = {entry.key: entry.value for entry in model.metadata_props}["vitft"]

    assert [(o.domain, o.version) for o in model.opset_import] == [("", 18)]
    assert text.isascii()
    assert text.isprintable()
    facts = json.loads(text)
    assert facts["input"]["layout"].startswith("float32 (batch, 3, 16, 16): RGB")
    assert facts["transform"]["crop"] == 0.9


def test_a_graph_with_preprocessing_takes_bytes(run: Path, tmp_path: Path) -> None:
    order = plan_export(["onnx", "torch-export"], str(tmp_path / "x"), with_preprocessing=True)

    exported = export_run(str(run), order)

    assert exported.difference < 1e-5
    code = (
        "import json, sys, numpy, onnxruntime\n"
        "session = onnxruntime.InferenceSession(sys.argv[1])\n"
        "zeros = numpy.zeros((3, 16, 16, 3), numpy.uint8)\n"
        "print(json.dumps(session.run(None, {'pixels': zeros})[0].tolist()))"
    )
    theirs = stranger(code, str(tmp_path / "x" / "onnx" / "model.onnx"))
    ours = (
        Predictor.from_run(str(run), device="cpu").scores(np.zeros((3, 16, 16, 3), np.uint8)).logits
    )
    np.testing.assert_allclose(theirs, ours, atol=1e-5)


def test_a_graph_with_resize_takes_images_of_any_size_in_a_process_without_vitft(
    run: Path, tmp_path: Path
) -> None:
    import onnx

    order = plan_export(["onnx"], str(tmp_path / "x"), with_resize=True)

    done = export_run(str(run), order)

    assert re.search(r"at most \d grey levels? \(out of 255\)", done.notes[0])
    graph = onnx.load(done.folder / "model.onnx")
    assert [(o.domain, o.version) for o in graph.opset_import] == [("", 18)]
    assert [entry.key for entry in graph.metadata_props] == ["vitft", "vitft.sha256"]
    code = (
        "import json, sys, numpy, onnxruntime\n"
        "from PIL import Image\n"
        "session = onnxruntime.InferenceSession(sys.argv[1])\n"
        "images = [numpy.asarray(Image.open(p).convert('RGB'))[None] for p in sys.argv[2:]]\n"
        "print(json.dumps([session.run(None, {'image': i})[0][0].tolist() for i in images]))"
    )
    paths = photos(run)
    theirs = stranger(code, str(tmp_path / "x" / "model.onnx"), *map(str, paths))
    predictor = Predictor.from_run(str(run), device="cpu")
    views = np.stack([predictor.transform.pixels(open_image(path)) for path in paths])
    ours = predictor.scores(views).logits
    np.testing.assert_allclose(theirs, ours, atol=0.01 * np.abs(ours).max())


# one format ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "shape",
    [
        pytest.param({"image_size": (8, 12)}, id="not square"),
        pytest.param({"pool": "mean"}, id="mean pooling"),
        pytest.param({"layer_scale": 0.1}, id="LayerScale"),
        pytest.param({"registers": 2}, id="registers"),
        pytest.param(
            {"registers": 4, "layer_scale": 0.1, "prefix_positions": False}, id="as DINOv2"
        ),
    ],
)
def test_timm_builds_every_architecture_that_is_offered_to_it(
    tmp_path: Path, shape: dict[str, Any]
) -> None:
    kept = make_run(tmp_path, config=tiny(3, **shape))

    done = export_run(str(kept), plan_export(["timm"], str(tmp_path / "export")))

    assert done.rows[0].by == f"timm {timm.__version__}"
    assert done.difference < 1e-5


@pytest.mark.parametrize(
    "shape",
    [
        pytest.param({"stem": (), "patch_size": (8, 8)}, id="R+Ti/16"),
        pytest.param({"stem": (), "patch_size": (8, 4), "image_size": (16, 24)}, id="not square"),
        pytest.param({"stem": (2, 2, 2, 2), "patch_size": (32, 32)}, id="R26+S/32"),
        pytest.param({"stem": (3, 4, 9), "patch_size": (16, 16)}, id="R50+B/16"),
        pytest.param({"stem": (3, 4, 6, 3), "patch_size": (32, 32)}, id="R50+L/32"),
        pytest.param(
            {"stem": (), "patch_size": (4, 4), "in_channels": 1}, id="grey, one cell per patch"
        ),
    ],
)
def test_a_hybrid_goes_to_timm_and_comes_back_equal(tmp_path: Path, shape: dict[str, Any]) -> None:
    config = tiny(3, **{"image_size": (32, 32), **shape})
    grey: Any = {"mean": (0.5,), "std": (0.5,)} if config.in_channels == 1 else {}
    kept = make_run(tmp_path, config=config, **grey)

    done = export_run(str(kept), plan_export(["timm"], str(tmp_path / "export")))

    assert done.rows[0].by == f"timm {timm.__version__}"
    assert done.changed == 0
    (tensors, card), (original, known) = (
        load_classifier(folder / "model.safetensors") for folder in (done.folder, kept)
    )
    assert (card.architecture, card.transform) == (known.architecture, known.transform)
    assert all(torch.equal(tensors[name], original[name]) for name in original)


def test_a_stem_that_timm_does_not_have_is_refused(tmp_path: Path) -> None:
    kept = make_run(tmp_path, config=tiny(3, stem=(1,), patch_size=(8, 8)))

    with pytest.raises(RunError, match="a non-standard ResNet stem"):
        export_run(str(kept), plan_export(["timm"], str(tmp_path / "export")))


@pytest.mark.parametrize("name", ["test_vit", "test_resnet"])
def test_a_model_of_timm_goes_to_timm_and_into_a_graph(tmp_path: Path, name: str) -> None:
    config = TimmConfig(timm=name, image_size=(32, 32), sized=name == "test_vit", num_classes=3)
    kept = make_run(tmp_path, config=config)

    done = export_run(str(kept), plan_export(["timm", "torch-export"], str(tmp_path / "export")))

    assert done.difference < 1e-4
    with pytest.raises(RunError, match=r"can open if it is exported with --timm"):
        export_run(str(kept), plan_export(["transformers"], str(tmp_path / "hf")))


def test_eight_bits_are_refused_where_they_save_nothing(tmp_path: Path) -> None:
    # 256 patches of width 8: the positions outweigh the one block's matrices.
    kept = make_run(tmp_path, config=tiny(3, image_size=(64, 64), width=8, depth=1))

    with pytest.raises(RunError, match="its weights are not in linear layers"):
        export_run(str(kept), plan_export(["int8"], str(tmp_path / "export")))

    assert not (tmp_path / "export").exists()


@pytest.mark.parametrize(
    ("fields", "image_size"),
    [
        pytest.param({"fit": "squash", "crop": 1.0}, (16, 16), id="squashed"),
        pytest.param({"interpolation": "bilinear", "mean": (0.1, 0.2, 0.3)}, (16, 16), id="means"),
        pytest.param({"crop": 0.77}, (8, 12), id="not square"),
        pytest.param({"fit": "pad", "crop": 1.0}, (8, 12), id="padded"),
    ],
)
def test_transformers_prepares_images_as_the_run_does(
    tmp_path: Path, fields: dict[str, Any], image_size: tuple[int, int]
) -> None:
    if "mean" in fields:
        fields = {**fields, "std": (0.3, 0.2, 0.1)}
    kept = make_run(tmp_path, config=tiny(3, image_size=image_size, norm_eps=1e-5), **fields)

    done = export_run(str(kept), plan_export(["transformers"], str(tmp_path / "export")))

    assert done.difference < 1e-5
    config = json.loads((done.folder / "config.json").read_text())
    assert config["layer_norm_eps"] == 1e-5
    assert config["label2id"] == {"blue": 0, "green": 1, "red": 2}


REFUSED = [
    pytest.param("timm", {"norm": "post"}, "post-norm", id="timm, post-norm"),
    pytest.param("timm", {"distilled": True}, "a distillation token", id="timm, distilled"),
    pytest.param("timm", {"norm_eps": 1e-4}, "LayerNorm eps", id="timm, another eps"),
    pytest.param("timm", {"pre_logits": True}, "pre_logits", id="timm, pre_logits"),
    pytest.param("transformers", {"pre_logits": True}, "pre_logits", id="HF, pre_logits"),
    pytest.param("transformers", {"pool": "mean"}, "mean pooling", id="HF, mean pooling"),
    pytest.param("transformers", {"layer_scale": 0.1}, "LayerScale", id="HF, LayerScale"),
    pytest.param("transformers", {"registers": 1}, "registers", id="HF, registers"),
]


@pytest.mark.parametrize(("form", "shape", "reason"), REFUSED)
def test_what_a_tool_would_compute_otherwise_is_refused_with_the_reason(
    tmp_path: Path, form: str, shape: dict[str, Any], reason: str
) -> None:
    kept = make_run(tmp_path, config=tiny(3, **shape))

    with pytest.raises(RunError, match=f"--{form} cannot represent this model exactly.*{reason}"):
        export_run(str(kept), plan_export([form], str(tmp_path / "export")))

    assert not (tmp_path / "export").exists()


def test_our_own_file_holds_any_model_and_says_who_opens_it(tmp_path: Path) -> None:
    kept = make_run(tmp_path, config=tiny(3, pre_logits=True))

    done = export_safetensors(str(kept), tmp_path / "export")

    assert "only vitft can open the file" in done.notes[0]
    assert {path.name for path in done.folder.iterdir()} == {"README.md", "model.safetensors"}
    model, report = load_pretrained(tmp_path / "export", pre_logits="keep")
    pixels = torch.randn(2, 3, 16, 16)
    assert torch.equal(model(pixels), Predictor.from_run(str(kept), device="cpu").model(pixels))
    assert report.flavour == "vitft"


# nothing half, nothing overwritten, nothing wrong -------------------------------------------------


def test_nothing_is_ever_overwritten(run: Path, tmp_path: Path) -> None:
    export_safetensors(str(run), tmp_path / "export")
    before = (tmp_path / "export" / "model.safetensors").stat().st_mtime_ns

    with pytest.raises(RunError, match="is not empty"):
        export_safetensors(str(run), tmp_path / "export")

    assert (tmp_path / "export" / "model.safetensors").stat().st_mtime_ns == before


def test_without_a_name_each_export_gets_one_of_its_own_and_says_so(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)

    said = []
    for _ in range(2):
        assert main(["export", "--safetensors", "--run", str(run)]) == 0
        said.append("other commands need --run export-2" in capsys.readouterr().err)

    assert said == [False, True]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["export", "export-2"]


def test_an_export_that_answers_differently_is_removed(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Broken(SafetensorsFormat):
        def write(self, trained: TrainedRun, folder: Path) -> None:
            state: Any = trained.state  # views of the model's own tensors
            state["head.bias"] += 0.01
            super().write(trained, folder)
            state["head.bias"] -= 0.01

    monkeypatch.setattr(job, "formats_of", lambda *_: {"safetensors": Broken()})

    with pytest.raises(RunError, match=r"logits by up to 0\.01, .*was removed"):
        export_safetensors(str(run), tmp_path / "export")

    assert not [*tmp_path.iterdir()]


def row(**fields: Any) -> ExportComparison:
    usual: dict[str, Any] = {"name": "onnx", "by": "", "images": 100, "difference": 0.0}
    usual |= {"largest": 10.0, "changed": 0, "correct": (90, 90), "size": 1}
    return ExportComparison(**{**usual, "speed": 1.0, "original_speed": 1.0, **fields})


@pytest.mark.parametrize(
    ("fields", "is_fine"),
    [
        pytest.param({"difference": 9e-4}, True, id="rounding, for logits of 10"),
        pytest.param({"difference": 2e-3}, False, id="more than rounding"),
        pytest.param({"difference": float("inf")}, False, id="not finite"),
        pytest.param({"name": "int8", "difference": 1.0, "changed": 5}, True, id="8 bits, 5%"),
        pytest.param({"name": "int8", "changed": 6}, False, id="8 bits, 6%"),
        pytest.param({"name": "int8", "images": 0}, False, id="8 bits, on noise alone"),
    ],
)
def test_the_tolerances(fields: dict[str, Any], is_fine: bool) -> None:
    if is_fine:
        check_comparison(row(**fields))
        return
    with pytest.raises(RunError):
        check_comparison(row(**fields))


def test_changed_answers_are_told_as_what_they_cost() -> None:
    assert row(changed=0).cost == ""
    assert "--onnx: accuracy 88.0% on 100 validation images (95% interval 80." in (
        row(changed=4, correct=(90, 88)).cost
    )


def test_without_the_images_noise_is_compared_and_said_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = make_run(tmp_path)
    (tmp_path / "photos").rename(tmp_path / "moved")

    code = main(["export", "--safetensors", "--run", str(kept), "--out", str(tmp_path / "export")])

    assert code == 0
    assert "on random noise because the validation images are missing" in capsys.readouterr().out


def test_images_are_drawn_from_all_classes(run: Path) -> None:
    trained = load_trained(str(run))

    assert [sample.label for sample in comparison_images(trained, 3)] == [0, 1, 2]
    assert [sample.label for sample in comparison_images(trained, 64)] == [0, 0, 1, 1, 2, 2]


INTERRUPTED = """
import os, signal, sys
from pathlib import Path
from vitft.system.files import atomic_folder
from vitft.system.signals import Stopper
with Stopper(), atomic_folder(Path(sys.argv[1])) as fresh:
    (fresh / "model.onnx").write_bytes(b"half")
    os.kill(os.getpid(), int(sys.argv[2]))
"""


@pytest.mark.parametrize(
    "number", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM], ids=lambda s: s.name
)
def test_an_interrupted_export_leaves_nothing_under_its_name(
    tmp_path: Path, number: signal.Signals
) -> None:
    code = [sys.executable, "-c", INTERRUPTED, str(tmp_path / "export"), str(int(number))]
    done = subprocess.run(code, capture_output=True, timeout=HANG_S, check=False)

    assert done.returncode != 0
    assert not (tmp_path / "export").exists()
    if number is not signal.SIGKILL:
        assert not [*tmp_path.iterdir()]


def test_files_that_appear_meanwhile_are_kept(tmp_path: Path) -> None:
    def export_slowly() -> None:
        with atomic_folder(tmp_path / "export") as fresh:
            (fresh / "new").write_text("new")
            (tmp_path / "export").mkdir()
            (tmp_path / "export" / "thesis.txt").write_text("years of work")

    with pytest.raises(RunError, match="cannot write"):
        export_slowly()

    assert [p.name for p in tmp_path.rglob("*")] == ["export", "thesis.txt"]


# the door -----------------------------------------------------------------------------------------

WRONG = [
    (["export"], 2, "no export format given"),
    (["export", "--timm", "--with-preprocessing"], 2, "can only be used with formats"),
    (["export", "--onnx", "--images", "0"], 2, "invalid --images 0"),
    (["export", "--onnx", "--int8", "--with-resize"], 2, "can only be used with --onnx"),
    (["export", "--timm", "--with-resize"], 2, "can only be used with --onnx"),
    (["export", "--onnx", "--private"], 2, "need --push-to-hub"),
    (["export", "--timm", "--push-to-hub", "flowers"], 2, "invalid --push-to-hub"),
    (["export", "--timm", "--push-to-hub", "me/../x"], 2, "invalid --push-to-hub"),
    (["export", "--onnx", "--push-to-hub", "me/x"], 2, "needs exactly one format"),
    (["export", "--timm", "--safetensors", "--push-to-hub", "me/x"], 2, "needs exactly one format"),
    (["export", "--timm", "--out", "full"], 5, "is not empty"),
    (["export", "--timm", "--out", "full/file"], 5, "cannot write"),
    (["export", "--timm", "--run", "nowhere"], 5, "no model in nowhere"),
    (["export", "--timm", "--run", "hf:flowers"], 4, "invalid hub name"),
    (["export", "--tim"], 2, "use --timm"),
]


@pytest.mark.parametrize(
    ("arguments", "code", "message"), WRONG, ids=[" ".join(w[0]) for w in WRONG]
)
def test_a_wrong_export_is_refused_in_a_sentence(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    code: int,
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()

    assert main(arguments) == code

    error = capsys.readouterr().err
    assert message in error
    assert "fix: " in error
    assert [path.name for path in tmp_path.iterdir()] == ["full"]


def test_a_missing_library_is_named_with_the_extra_that_brings_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(imports.EXTRA_LIBRARIES, "onnx", ("onnx", "not_a_library"))

    with pytest.raises(UsageError, match="export --int8 needs not_a_library") as caught:
        plan_export(["int8"], None)

    assert caught.value.fix.startswith("run pip install 'onnx>=")


def test_a_push_without_a_token_is_refused_before_anything_is_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("HF_TOKEN", raising=False)

    with pytest.raises(UsageError, match="needs a hub token"):
        plan_export(["timm"], None, repo="me/flowers")


def test_one_line_per_format_is_shown(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--safetensors", "--torch-export", "--run", str(run)]

    assert main(["export", *arguments, "--out", str(tmp_path / "two")]) == 0

    lines = capsys.readouterr().out.splitlines()
    first = [line.split()[0] for line in lines]
    assert first == ["format", "safetensors", "torch-export", "exported"]
    assert sorted(path.name for path in (tmp_path / "two").iterdir()) == first[1:3]


def test_a_format_that_differs_from_the_run_is_removed_and_the_others_are_kept(
    run: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def refuse(row: ExportComparison, **_: object) -> None:
        if row.name == "timm":
            raise RunError("the predictions of the --timm export differ", fix="report this")

    monkeypatch.setattr(job, "check_comparison", refuse)
    out = tmp_path / "out"

    code = main(["export", "--run", str(run), "--timm", "--safetensors", "--out", str(out)])

    assert code == 5
    printed = capsys.readouterr()
    assert "the predictions of the --timm export differ" in printed.err
    assert "exported to" in printed.out
    assert [path.name for path in out.iterdir()] == ["safetensors"]
    assert (out / "safetensors" / "model.safetensors").is_file()
    assert main(["export", "--run", str(run), "--timm", "--out", str(tmp_path / "none")]) == 5
    assert not (tmp_path / "none").exists()


def test_only_a_gated_mlp_leaves_the_activation_to_timm() -> None:
    plain = tiny(3, activation="quick_gelu")

    assert vit_arguments(plain)["act_layer"] == "quick_gelu"
    assert "act_layer" not in vit_arguments(replace(plain, gated_mlp=True))
    assert "act_layer" not in vit_arguments(tiny(3))


def test_the_package_offers_the_functions_of_its_job_module() -> None:
    for name in export.__all__:
        assert getattr(export, name) is getattr(job, name)
    with pytest.raises(AttributeError, match="has no attribute 'export_runs'"):
        getattr(export, "export_runs")  # noqa: B009 - unknown to mypy


@pytest.mark.parametrize(
    ("name", "patch", "expected"),
    [
        ("vit_large_patch32_384", 32, "vit_large_patch32_224"),
        ("vit_large_patch16_224", 14, "vit_large_patch16_224"),
        ("vit_base_patch8_224", 8, "vit_base_patch8_224"),
        ("vit_small_patch32_224", 32, "vit_small_patch32_224"),
        ("vit_tiny_patch16_224", 8, "vit_tiny_patch16_224"),
    ],
)
def test_an_export_names_the_model_of_timm_with_its_size_and_patches(
    name: str, patch: int, expected: str
) -> None:
    assert timm_name(replace(architecture_config(name), patch_size=(patch, patch))) == expected
