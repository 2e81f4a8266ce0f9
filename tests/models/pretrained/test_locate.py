"""Names and paths of weights, and what is said about those that cannot be found."""

from pathlib import Path

import pytest

from vitft.models import check_weights_name
from vitft.system import WeightsError


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        *[
            (name, "weights not found: ")
            for name in ("./vit", "~/vit", "/nowhere/vit", "vit/", "vit.safetensors", "vit.PTH",
                         "vit.onnx", "vit.h5", "vit.gguf", "vit.zip", "vit.npz", Path("vit"))
        ],
        *[(name, "unknown weights") for name in ("vit_tinny", "vit.tinny", "a/b")],
        *[
            (name, "invalid hub name")
            for name in ("hf:", "hf:a", "hf:a/b/c", "hf:a/b@", "hf:a/..", "hf:ä/b")
        ],
        *[
            (name, "invalid timm name")
            for name in ("timm:", f"timm:{'x' * 101}", f"timm:x.{'y' * 101}", "timm:ResNet",
                         "timm:a/b", "timm:a.")
        ],
        (" ", "name of the weights is empty"),
        ("random:demo", "random"),
        ("random:nonesuch", "random"),
    ],
)  # fmt: skip
def test_a_name_that_stands_for_no_weights_is_refused_as_what_it_looks_like(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str | Path, problem: str
) -> None:
    monkeypatch.chdir(tmp_path)

    with pytest.raises(WeightsError) as caught:
        check_weights_name(name)

    assert problem in caught.value.problem


@pytest.mark.parametrize(
    "name",
    ["hf:a/b", "hf:a-1/b.c_d@v1.0/x", f"timm:{'x' * 100}", f"timm:x.{'y' * 100}",
     "timm:resnet50.a1-in1k", "timm:a_1", "demo", "random:demo"],
)  # fmt: skip
def test_other_names_of_the_catalogue_the_hub_and_timm_are_accepted(name: str) -> None:
    check_weights_name(name, allow_pickle=False, allow_random=True)
