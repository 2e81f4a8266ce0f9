"""Weights that are named as published: ImageNet's class names and the published mean and std."""

import json
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

import vitft
from vitft.cli.main import main
from vitft.models.classifier import load_classifier
from vitft.models.find import find_model
from vitft.models.model_names import file_name
from vitft.models.pretrained.published import imagenet_classes, label_set, published_entry
from vitft.models.pretrained.weights import open_pretrained
from vitft.models.registry import architecture_config
from vitft.system.errors import RunError

NAME = "vit_tiny_patch16_224.augreg_in21k_ft_in1k"
IMAGENET = ("tench", "goldfish", "great white shark")
TINY = replace(architecture_config("vit_tiny_patch16_224"), num_classes=1000)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A ViT-Tiny of ImageNet's 1,000 classes with random weights, in timm's format."""
    torch.manual_seed(0)
    model = vitft.create_model("vit_tiny_patch16_224", num_classes=1000)
    torch.nn.init.normal_(model.get_parameter("head.weight"))
    path = tmp_path_factory.mktemp("tiny") / "weights.safetensors"
    save_file(model.state_dict(), path)
    return path


def placed(tiny: Path, target: Path, config: Mapping[str, object] | None = None) -> Path:
    """Link the weights to a path, with a config.json if there is one; return the path."""
    target.parent.mkdir(parents=True, exist_ok=True)
    os.link(tiny, target)
    if config is not None:
        (target.parent / "config.json").write_text(json.dumps(config))
    return target


def timm_config(tag: str, classes: int = 1000, **more: object) -> dict[str, object]:
    cfg = {"tag": tag, "num_classes": classes, "mean": [0.5] * 3, "std": [0.5] * 3, **more}
    return {"architecture": "vit_tiny_patch16_224", "pretrained_cfg": cfg}


@pytest.mark.parametrize(
    "place",
    [
        f"{NAME}/model.safetensors",
        "vit_tiny_patch16_224/model.safetensors",
        f"downloads/{NAME}.safetensors",
    ],
)
def test_weights_with_a_published_name_have_the_names_of_imagenet(
    tiny: Path, tmp_path: Path, place: str
) -> None:
    path = placed(tiny, tmp_path / place)

    _, card = load_classifier(find_model(str(path)))

    assert card.classes[:3] == IMAGENET
    assert len({*card.classes}) == 1000


def test_the_tag_in_a_config_json_says_which_label_set_it_is(tiny: Path, tmp_path: Path) -> None:
    known = timm_config("augreg_in21k_ft_in1k")
    path = placed(tiny, tmp_path / "any" / "model.safetensors", known)

    assert load_classifier(path)[1].classes[:3] == IMAGENET


@pytest.mark.parametrize(
    ("place", "config"),
    [
        pytest.param("weights/model.safetensors", None, id="no name"),
        pytest.param("vit_base_patch16_224/model.safetensors", None, id="another shape"),
        pytest.param("any/model.safetensors", timm_config("mine_in1k"), id="unknown tag"),
        pytest.param("any/model.safetensors", timm_config("augreg_in21k"), id="21k classes"),
        pytest.param("any/model.safetensors", timm_config(""), id="no tag"),
    ],
)
def test_without_certainty_the_classes_have_no_names(
    tiny: Path, tmp_path: Path, place: str, config: dict[str, object] | None
) -> None:
    path = placed(tiny, tmp_path / place, config)

    with pytest.raises(RunError, match=r"no config\.json next to it lists the classes"):
        load_classifier(path)


def test_names_of_the_weights_themselves_are_kept(tiny: Path, tmp_path: Path) -> None:
    own = [f"part {i}" for i in range(1000)]
    known = timm_config("augreg_in21k_ft_in1k", label_names=own)
    path = placed(tiny, tmp_path / NAME / "model.safetensors", known)

    weights = open_pretrained(path)

    assert weights.classes == tuple(own)
    assert weights.label_set == ""


def test_names_that_occur_twice_get_their_number(tiny: Path, tmp_path: Path) -> None:
    names = [f"part {i}" for i in range(998)] + ["crane", "crane"]
    known = timm_config("", label_names=names)

    weights = open_pretrained(placed(tiny, tmp_path / "x" / "model.safetensors", known))

    assert weights.classes[-3:] == ("part 997", "crane (998)", "crane (999)")


@pytest.mark.parametrize(
    ("name", "mean"), [("vit_tiny_patch16_224", 0.5), ("deit_tiny_patch16_224", 0.485)]
)
def test_mean_and_std_that_no_file_states_are_the_published_ones(
    tiny: Path, tmp_path: Path, name: str, mean: float
) -> None:
    weights = open_pretrained(placed(tiny, tmp_path / name / "model.safetensors"))

    assert weights.transform.mean[0] == mean
    assert weights.statistics_source.startswith(f"as published for {name}.")


@pytest.mark.parametrize(
    ("name", "classes", "found"),
    [
        (NAME, 1000, "imagenet-1k"),
        (f"timm/{NAME}", 1000, "imagenet-1k"),
        (NAME, 999, ""),
        (NAME, 0, ""),
        ("vit_tiny_patch16_224.augreg_in21k", 21843, "imagenet-21k-goog"),
        ("vit_tiny_patch16_224.augreg_in21k", 1000, ""),
        ("vit_tiny_patch16_224.no_such_tag_in1k", 1000, ""),
        ("no_such_model", 1000, ""),
    ],
)
def test_the_label_set_follows_from_name_and_outputs(name: str, classes: int, found: str) -> None:
    assert label_set(name, replace(TINY, num_classes=classes)) == found


@pytest.mark.parametrize(
    ("subset", "number"),
    [
        ("imagenet-1k", 1000),
        ("imagenet-12k", 11821),
        ("imagenet-21k-miil", 11221),
        ("imagenet-22k", 21841),
        ("imagenet-22k-ms", 21842),
        ("imagenet-21k-goog", 21843),
    ],
)
def test_every_class_has_its_own_name(subset: str, number: int) -> None:
    names = imagenet_classes(subset)

    assert len(names) == len({*names}) == number
    assert all(name.strip() == name and name for name in names)


def test_a_shared_first_word_is_completed() -> None:
    names = imagenet_classes("imagenet-1k")

    assert (names[134], names[517]) == ("crane (n02012849)", "crane (n03126707)")
    assert (names[638], names[639]) == ("maillot", "maillot, tank suit")
    assert names[264] == "Cardigan, Cardigan Welsh corgi"


def test_predict_explain_and_inspect_show_the_same_names(
    tiny: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    placed(tiny, tmp_path / NAME / "model.safetensors")
    Image.new("RGB", (64, 48), (200, 30, 30)).save("red.png")

    assert main(["predict", "red.png", "--run", NAME, "--format", "json"]) == 0
    predicted = capsys.readouterr()
    answer = json.loads(predicted.out)[0]["classes"][0]["class"]
    assert answer in imagenet_classes("imagenet-1k")
    assert (
        f"the class names are those of imagenet-1k in timm, because the weights are named {NAME}"
        in (predicted.err)
    )
    assert main(["explain", "red.png", "--weights", f"./{NAME}", "--out", "a"]) == 0
    assert answer in capsys.readouterr().out
    assert main(["explain", "red.png", "--run", NAME, "--class", "tenc", "--out", "b"]) == 2
    assert "use one of its classes, e.g. tench" in capsys.readouterr().err
    assert main(["weights", "inspect", f"./{NAME}"]) == 0
    assert (
        "1000 classes (tench, goldfish, great white shark and 997 more)" in capsys.readouterr().out
    )


@pytest.mark.parametrize(
    ("path", "name"), [("a/model.safetensors", "a"), ("a/b.c.safetensors", "b.c"), ("b.npz", "b")]
)
def test_a_file_has_its_own_name_or_that_of_its_folder(path: str, name: str) -> None:
    assert file_name(Path(path)) == name


@pytest.mark.parametrize("prefix", ["", "timm/"])
def test_weights_that_only_timm_lists_are_found(prefix: str) -> None:
    name = "aimv2_1b_patch14_224.apple_pt"  # not in the catalogue

    found = published_entry(prefix + name, architecture_config("aimv2_1b_patch14_224"))

    assert found is not None
    assert found.name == name
    assert published_entry(prefix + name, TINY) is None
