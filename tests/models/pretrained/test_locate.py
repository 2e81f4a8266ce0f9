"""Names and paths of weights, and what is said about those that cannot be found."""

import os
from pathlib import Path

import numpy as np
import pytest

from vitft.models.pretrained.catalog import CatalogEntry
from vitft.models.pretrained.locate import (
    bundled_file,
    check_pickle,
    check_weight_file,
    check_weights_name,
    locate,
    locate_entry,
    may_be_weights,
    parse_timm_name,
)
from vitft.system.errors import WeightsError


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def put(path: str) -> Path:
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_bytes(b"x")
    return Path(path)


def refusal(name: str | Path) -> WeightsError:
    with pytest.raises(WeightsError) as caught:
        locate(name)
    return caught.value


def test_a_name_of_the_catalogue_comes_before_a_file_and_a_path_object_is_a_file() -> None:
    put("demo")
    put("vit.pth")

    assert isinstance(entry := locate("demo"), CatalogEntry)
    assert entry.name == "demo"
    assert "it has no suffix" in refusal(Path("demo")).problem
    assert locate("vit.pth") == locate(Path("vit.pth")) == Path("vit.pth")


def test_a_folder_stands_for_the_weights_in_it() -> None:
    put("run/model.safetensors")
    put("run/model.onnx")
    put("graph/model.onnx")
    Path("empty").mkdir()

    assert locate("run") == Path("run/model.safetensors")
    assert "graph contains an ONNX graph" in refusal("graph").problem
    assert refusal("empty").problem == "empty contains no weight file (it is empty)"


@pytest.mark.parametrize("name", ["", "  "])
def test_an_empty_name_is_refused(name: str) -> None:
    assert refusal(name).problem == "the name of the weights is empty"


@pytest.mark.parametrize(
    "name",
    ["./vit", "~/vit", "/nowhere/vit", "vit/", "vit.safetensors", "vit.PTH", "vit.onnx", "vit.h5",
     "vit.ckpt", "vit.gguf", "vit.zip", "vit.npz", "vit.bin", "vit.pt"],
)  # fmt: skip
def test_what_looks_like_a_path_is_not_taken_for_a_name(name: str) -> None:
    error = refusal(name)

    assert error.problem.startswith("weights not found: ")
    assert "or choose a name from `vitft weights list`" in error.fix
    assert refusal(Path("vit")).problem == "weights not found: vit"
    assert refusal("vit_tinny").problem == "unknown weights 'vit_tinny'"


def test_a_misspelt_path_is_answered_with_a_file_of_weights() -> None:
    put("weights/roses.safetensors")
    put("weights/roses.txt")

    assert "did you mean weights/roses.safetensors?" in refusal("weights/rosse.safetensors").fix


@pytest.mark.parametrize(
    ("name", "may"),
    [("a.safetensors", True), ("a.PTH", True), ("a.npz", True), ("a.onnx", False), ("a", False)],
)
def test_files_and_folders_of_weights_may_be_suggested(name: str, may: bool) -> None:
    put(f"files/{name}")
    put("runs/one/model.safetensors")
    Path("runs/two").mkdir()

    assert [may_be_weights(entry) for entry in os.scandir("files")] == [may]
    found = {entry.name: may_be_weights(entry) for entry in os.scandir("runs")}
    assert found["one"]


@pytest.mark.parametrize("suffix", [".safetensors", ".npz", ".pth", ".pt", ".bin", ".BIN"])
def test_the_suffix_tells_the_kind_of_a_file(suffix: str) -> None:
    path = put(f"vit{suffix}")
    is_pickle = suffix.lower() not in (".safetensors", ".npz")

    assert check_weight_file(path) == path
    check_pickle(path, allowed=True)
    check_weights_name(str(path))
    if is_pickle:
        with pytest.raises(WeightsError, match="is a Python pickle"):
            check_pickle(path, allowed=False)
        with pytest.raises(WeightsError, match="is a Python pickle"):
            check_weights_name(str(path), allow_pickle=False)
    else:
        check_weights_name(str(path), allow_pickle=False)


def test_files_of_other_kinds_are_refused_for_their_suffix() -> None:
    Path("folder.pth").mkdir()

    with pytest.raises(WeightsError, match=r"not a weight file: it has the suffix \.txt"):
        locate(str(put("vit.txt")))
    with pytest.raises(WeightsError, match=r"folder.pth is not a regular file"):
        check_weight_file(Path("folder.pth"))


def test_a_checksum_file_is_named_with_the_file_that_it_belongs_to() -> None:
    path = put("vit.safetensors.sha256")

    with pytest.raises(WeightsError, match=r"the checksum file of vit\.safetensors") as caught:
        locate(str(path))
    assert caught.value.fix == "use the weight file to which it belongs"
    put("vit.safetensors")
    with pytest.raises(WeightsError, match=r"fix: use .*vit\.safetensors$"):
        locate(str(path))


def test_random_weights_are_named_only_where_they_are_allowed() -> None:
    check_weights_name("random:demo", allow_random=True)
    with pytest.raises(WeightsError, match="random"):
        check_weights_name("random:demo")
    with pytest.raises(WeightsError, match="unknown weights"):
        check_weights_name("random:nonesuch", allow_random=True)


@pytest.mark.parametrize(
    ("name", "repo", "revision"),
    [("hf:a/b", "a/b", "main"), ("hf:a-1/b.c_d@v1.0/x", "a-1/b.c_d", "v1.0/x")],
)
def test_repositories_of_the_hub_have_a_revision(name: str, repo: str, revision: str) -> None:
    entry = locate(name)

    assert isinstance(entry, CatalogEntry)
    assert (entry.repo, entry.revision, entry.file) == (repo, revision, "model.safetensors")
    assert entry.name == name
    assert entry.licence == f"see https://huggingface.co/{repo}"


@pytest.mark.parametrize("name", ["hf:", "hf:a", "hf:a/b/c", "hf:a/b@", "hf:a/..", "hf:ä/b"])
def test_other_names_of_repositories_are_refused(name: str) -> None:
    assert refusal(name).problem == f"invalid hub name {name!r}"


@pytest.mark.parametrize(
    "name", [f"timm:{'x' * 100}", f"timm:x.{'y' * 100}", "timm:resnet50.a1-in1k", "timm:a_1"]
)
def test_names_of_timm_may_have_a_tag(name: str) -> None:
    entry = parse_timm_name(name)

    assert (entry.name, entry.local, entry.file) == (name, "", "model.safetensors")


@pytest.mark.parametrize(
    "name",
    [f"timm:{'x' * 101}", f"timm:x.{'y' * 101}", "timm:", "timm:ResNet", "timm:a/b", "timm:a."],
)
def test_other_names_of_timm_are_refused(name: str) -> None:
    assert refusal(name).problem == f"invalid timm name {name!r}"


def test_a_timm_model_takes_the_users_file() -> None:
    path = put("vit.pth")

    entry = locate("timm:vit=vit.pth")

    assert isinstance(entry, CatalogEntry)
    assert (entry.name, entry.local, entry.licence) == ("timm:vit", str(path), "")
    check_weights_name("timm:vit=vit.pth")
    with pytest.raises(WeightsError, match="is a Python pickle"):
        check_weights_name("timm:vit=vit.pth", allow_pickle=False)
    assert refusal("timm:vit=no.pth").problem == "weights not found: no.pth"


def test_bundled_weights_are_files_of_the_installation() -> None:
    entry = locate("demo")
    assert isinstance(entry, CatalogEntry)

    assert bundled_file(entry).is_file()
    missing = CatalogEntry(name="x", licence="", path="x.safetensors")
    with pytest.raises(WeightsError, match="weights 'x' are missing from this installation"):
        bundled_file(missing)


def test_only_timm_models_get_timms_metadata(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "vitft.models.pretrained.timm_weights.complete_entry", lambda entry: f"full {entry.name}"
    )
    path = put("vit.pth")

    assert str(locate_entry("timm:resnet18")) == "full timm:resnet18"
    assert locate_entry("demo") == locate("demo")
    assert locate_entry("vit.pth") == path


@pytest.mark.parametrize(
    ("name", "what", "use"),
    [
        ("digits.npz", "a data set of labelled images", "train on it with `vitft finetune --data "),
        ("table.csv", "a table", "if it lists images, train on them with `vitft finetune --data "),
        ("a.JPG", "an image", "train on its folder with"),
        ("photos.zip", "an archive", "unpack it; train on images in it with"),
    ],
)
def test_data_in_place_of_weights_are_named_before_they_are_opened(
    name: str, what: str, use: str
) -> None:
    put(name)
    np.savez("digits.npz", x=np.zeros((4, 2, 2), np.uint8), y=np.zeros(4, int))

    error = refusal(name)

    assert error.problem == f"{name} is {what}, not a weight file"
    assert error.fix.startswith(use)
    assert error.fix.endswith("`, and choose weights from `vitft weights list`")
    assert refusal(f"timm:vit={name}").problem


def test_a_folder_of_images_in_place_of_weights_is_named() -> None:
    put("photos/train/cats/1.png")
    put("notes/a/b.txt")

    error = refusal("photos")

    assert error.problem == "photos is a folder of images, not weights"
    assert error.fix.startswith("train on it with `vitft finetune --data photos`")
    assert refusal("notes").problem == "notes contains no weight file (a/)"
