"""The file of a trained model, found from what a user names."""

from pathlib import Path

import numpy as np
import pytest

from vitft.models.find import begins_like_safetensors, find_model, inner_models, model_files
from vitft.models.pretrained.fetch import Fetched
from vitft.system.errors import RunError

HEADER = (2).to_bytes(8, "little") + b"{}"
"""A safetensors file without tensors."""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def put(path: str, content: bytes = HEADER) -> Path:
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_bytes(content)
    return Path(path)


def refusal(run: str | None, *, graphs: bool = False) -> RunError:
    with pytest.raises(RunError) as caught:
        find_model(run, graphs=graphs)
    return caught.value


def test_a_checkpoint_is_preferred_to_the_graphs_beside_it() -> None:
    files = ["run/model.safetensors", "run/model.onnx", "run/onnx/model.onnx"]
    for file in reversed(files):
        put(file)
        assert find_model("run", graphs=True) == Path(file)

    assert model_files(Path("run")) == ["model.safetensors", "model.onnx"]
    assert find_model("run/model.onnx", graphs=True) == Path("run/model.onnx")
    assert find_model("run") == Path("run/model.safetensors")


@pytest.mark.parametrize("name", ["model.onnx", "MODEL.ONNX", "model.pt2"])
def test_graphs_are_refused_unless_a_command_can_run_them(name: str) -> None:
    put(f"run/{name}")
    kind = "a torch.export program" if name.endswith("pt2") else "an ONNX graph"

    with pytest.raises(RunError, match=f"run/{name} is {kind}"):
        find_model(f"run/{name}")
    if kind == "an ONNX graph":
        assert find_model(f"run/{name}", graphs=True) == Path(f"run/{name}")
    else:
        assert kind in refusal("run", graphs=True).problem


@pytest.mark.parametrize(
    ("content", "is_one"),
    [
        (HEADER, True),
        ((10).to_bytes(8, "little") + b"{" + b" " * 9, True),
        ((10).to_bytes(8, "little") + b"{}", True),  # all 10 bytes of the file, none is left
        ((11).to_bytes(8, "little") + b"{}", False),
        ((2).to_bytes(8, "little") + b"[]", False),
        ((2).to_bytes(8, "big") + b"{}", False),
        (b"PK\x03\x04 a zip file", False),
        (b"", False),
    ],
)
def test_a_copy_with_another_suffix_is_known_by_its_first_bytes(
    content: bytes, is_one: bool
) -> None:
    path = put("copy.v2", content)

    assert begins_like_safetensors(path) == is_one
    if is_one:
        assert find_model("copy.v2") == path
    else:
        assert refusal("copy.v2").problem == "copy.v2 is not a checkpoint"


def test_a_file_with_the_right_suffix_is_left_to_its_reader() -> None:
    assert find_model(str(put("x.safetensors", b"damaged"))) == Path("x.safetensors")
    assert find_model(str(put("x.SafeTensors", b"damaged"))) == Path("x.SafeTensors")
    assert begins_like_safetensors(Path("missing"))  # so that its reader reports the error


def test_without_any_finished_run_the_next_step_is_named() -> None:
    assert refusal(None).problem == "no finished run in runs/"
    assert "run `vitft finetune" in refusal(None).fix

    put("runs/roses/config.toml", b"")
    assert "run `vitft finetune" in refusal(None).fix
    put("runs/roses/split.csv", b"")
    assert "finish the run that was stopped with `vitft finetune --resume" in refusal(None).fix
    error = refusal("runs/roses")
    assert error.problem == "no model in runs/roses: the run has not finished"
    assert "--resume" in error.fix


def test_the_folders_with_models_in_a_folder_are_named() -> None:
    put("all/b/model.safetensors")
    put("all/a/onnx/model.onnx")
    put("all/c/model.onnx")
    put("all/d/other.onnx")

    assert inner_models(Path("all"), graphs=False) == [Path("all/b")]
    assert inner_models(Path("all"), graphs=True) == [Path("all/a"), Path("all/b"), Path("all/c")]
    assert refusal("all").fix == "use the folder in it: --run all/b"
    fix = "use one of the folders in it: --run all/a, --run all/b or --run all/c"
    assert refusal("all", graphs=True).fix == fix


@pytest.mark.parametrize("number", [2, 9, 10])
def test_up_to_nine_folders_are_named(number: int) -> None:
    for i in range(number):
        put(f"all/{i:02}/model.safetensors")

    fix = refusal("all").fix

    if number <= 9:
        assert fix.startswith("use one of the folders in it: --run all/00")
        assert fix.count("--run") == number
        assert fix.endswith(f" or --run all/{number - 1:02}")
    else:
        assert fix == "use one of the 10 folders in it, e.g. --run all/00"


def test_several_models_beside_a_graph_for_transformers_js_are_told_apart() -> None:
    put("all/onnx/model.onnx")
    assert find_model("all", graphs=True) == Path("all/onnx/model.onnx")

    put("all/int8/model.onnx")
    assert refusal("all", graphs=True).problem == "all contains several models: int8 and onnx"
    assert refusal("all").problem == "all contains several models: int8 and onnx"


def test_a_misspelt_folder_is_answered_with_one_that_has_a_model() -> None:
    put("exports/roses/model.safetensors")
    put("exports/poses/notes.txt", b"")

    assert refusal("exports/rosse").fix == "did you mean --run exports/roses?"
    assert refusal("exports/rosse").problem == "no model in exports/rosse"


def test_an_empty_folder_is_no_misspelling() -> None:
    put("exports/roses/model.safetensors")
    Path("exports/rose").mkdir()

    assert "did you mean --run exports/roses?" not in refusal("nowhere").fix
    assert refusal("exports/rose").problem == "no model in exports/rose"


def test_names_of_the_hub_are_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "vitft.models.find.fetch",
        lambda entry: Fetched(path=Path("cache", entry.repo, entry.revision), sha256=""),
    )

    assert find_model("hf:owner/roses@v2") == Path("cache/owner/roses/v2")


def test_published_weights_are_told_from_runs() -> None:
    error = refusal("vit_tiny_patch16_224")

    assert "which is the name of pretrained weights" in error.problem
    assert "--run hf:timm/vit_tiny_patch16_224" in error.fix
    assert refusal("vit_base_patch16_224.mae").problem == "no model in vit_base_patch16_224.mae"


@pytest.mark.parametrize("names", [("x", "y"), ("Images", "LABELS"), ("x_train", "y_train")])
def test_a_data_set_in_place_of_a_run_is_answered_with_a_near_run_and_with_training(
    names: tuple[str, str],
) -> None:
    np.savez(
        "digits.npz", allow_pickle=False, **dict.fromkeys(names, np.zeros((4, 2, 2), np.uint8))
    )
    train = "train on it with `vitft finetune --data digits.npz`"

    error = refusal("digits.npz")
    assert error.problem == "digits.npz is a data set of labelled images, not a trained model"
    assert error.fix == train
    put("runs/digits/config.toml", b"")
    fix = f"did you mean --run runs/digits? `ls runs` lists the runs; {train}"
    assert refusal("digits.npz").fix == fix
    put("photos/cats/1.jpg")
    assert refusal("photos").problem == "photos is a folder of images, not a trained model"
    assert refusal("photos").fix.endswith("train on it with `vitft finetune --data photos`")


@pytest.mark.parametrize(("name", "pickled"), [("a b.npz", False), ("a b.pth", True)])
def test_the_command_for_weights_of_another_tool_is_complete(name: str, pickled: bool) -> None:
    if pickled:
        put(name)
    else:
        np.savez(
            name,
            allow_pickle=False,
            **{"head/kernel": np.zeros(3, np.float32), "x": np.zeros(3, np.float32)},
        )

    fix = refusal(name).fix

    command = f"vitft finetune --data DIR --weights '{name}'"
    assert fix == f"use it as pretrained weights: {command}{' --allow-pickle' * pickled}"
