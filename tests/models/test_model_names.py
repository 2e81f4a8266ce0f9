"""Names of weight files, and the models meant by names as other libraries and papers write them."""

from pathlib import Path

import pytest

from vitft.models.model_names import file_name, similar_models, weights_name

KNOWN = [
    "vit_tiny_patch16_224", "vit_small_patch16_224", "vit_base_patch16_224", "vit_base_patch32_224",
    "vit_large_patch16_224", "vit_huge_patch14_224", "deit_base_patch16_224",
    "deit3_base_patch16_224", "deit3_large_patch16_224", "resnet50",
]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("ViT-Ti/16", "vit_tiny_patch16_224"),
        ("vit_t_16", "vit_tiny_patch16_224"),
        ("ViT-S/16", "vit_small_patch16_224"),
        ("vit_b_32", "vit_base_patch32_224"),
        ("ViT-B16", "vit_base_patch16_224"),
        ("ViT L 16", "vit_large_patch16_224"),
        ("ViT-H/14", "vit_huge_patch14_224"),
        ("DeiT-B/16", "deit_base_patch16_224"),
        ("DeiT3-L/16", "deit3_large_patch16_224"),
        ("facebook/deit-base-patch16-224", "deit_base_patch16_224"),
        ("microsoft/ResNet-50", "resnet50"),
    ],
)
def test_a_model_is_found_by_its_names_in_papers_and_libraries(name: str, expected: str) -> None:
    assert similar_models(name, KNOWN)[0] == expected


def test_at_most_five_models_are_suggested() -> None:
    assert len(similar_models("vit", KNOWN)) == 5


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("roses.safetensors", "roses"),
        ("a/roses/model.safetensors", "roses"),
        ("a/roses/pytorch_model.bin", "roses"),
        ("a/roses/best.pth", "best"),
        ("ViT-B_16.npz", "ViT-B_16"),
        ("/weights/google/vit", "vit"),
        ("~/vit", "vit"),
        ("./runs/vit", "vit"),
        ("timm:vit/b", "timm:vit/b"),
        ("hf:owner/vit", "hf:owner/vit"),
        ("vit_base_patch16_224.augreg", "vit_base_patch16_224.augreg"),
    ],
)
def test_weights_are_named_after_their_file_or_its_folder(path: str, name: str) -> None:
    assert weights_name(path) == name


def test_a_plain_file_in_the_current_folder_is_named_after_that_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    assert file_name(Path("model.safetensors")) == tmp_path.name
