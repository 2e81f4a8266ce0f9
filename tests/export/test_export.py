"""Exports, opened by other tools in separate processes."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch

import vitft
from tests.conftest import tiny
from tests.support.children import python
from tests.support.export_run import make_run
from vitft.data import open_image
from vitft.export import EXPORT_FORMATS, Exported, export_run, plan_export
from vitft.models import Provenance, TimmConfig, load_classifier
from vitft.predict import Predictor
from vitft.system import EXTRA_LIBRARIES, RunError, UsageError

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
    done = python(code, *arguments)
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


def test_no_file_tells_where_it_was_made(run: Path, done: Exported) -> None:
    places = (str(run.parent), str(Path(vitft.__file__).parent))

    files = [path for path in done.folder.rglob("*") if path.is_file()]

    assert len(files) == 49
    for path in files:
        content = path.read_bytes()
        assert not [place for place in places if place.encode() in content], path


@pytest.mark.parametrize("channels", [1, 3])
def test_a_graph_with_preprocessing_takes_bytes(tmp_path: Path, channels: int) -> None:
    config, mean = tiny(3, in_channels=channels), (0.4,) * channels
    kept = make_run(tmp_path, config=config, mean=mean, std=mean)
    order = plan_export(["onnx", "torch-export"], str(tmp_path / "x"), with_preprocessing=True)

    assert export_run(str(kept), order).difference < 1e-5


# one format ---------------------------------------------------------------------------------------


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


@pytest.mark.parametrize("name", ["test_vit", "test_resnet"])
def test_a_model_of_timm_goes_to_timm_and_into_a_graph(tmp_path: Path, name: str) -> None:
    config = TimmConfig(timm=name, image_size=(32, 32), sized=name == "test_vit", num_classes=3)
    kept = make_run(tmp_path, config=config)

    done = export_run(str(kept), plan_export(["timm", "torch-export"], str(tmp_path / "export")))

    assert done.difference < 1e-4
    with pytest.raises(
        RunError, match=r"a network of timm.*\n.*--timm \(which transformers also opens\)"
    ):
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


# nothing half, nothing overwritten, nothing wrong -------------------------------------------------


# the door -----------------------------------------------------------------------------------------


def test_a_missing_library_is_named_with_the_extra_that_brings_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(EXTRA_LIBRARIES, "onnx", ("onnx", "not_a_library"))

    with pytest.raises(UsageError, match="export --int8 needs not_a_library") as caught:
        plan_export(["int8"], None)

    assert caught.value.fix.startswith("run pip install onnx ")


def test_a_push_without_a_token_is_refused_before_anything_is_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("HF_TOKEN", raising=False)

    with pytest.raises(UsageError, match="needs a hub token"):
        plan_export(["timm"], None, repo="me/flowers")
