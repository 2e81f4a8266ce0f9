"""Tensors under the names of timm's EVA models, and back."""

import pytest
import torch
from torch import Tensor

from vitft.models.timm_names import from_timm_names, may_rotate, to_eva_names


def numbered(*names: str, size: int = 2) -> dict[str, Tensor]:
    """Return a matrix of the same number for each name, for names of biases a vector."""
    return {
        name: torch.full((size,) if name.endswith("bias") else (size, size), float(i))
        for i, name in enumerate(names, start=1)
    }


def same(first: dict[str, Tensor], second: dict[str, Tensor]) -> bool:
    return first.keys() == second.keys() and all(
        torch.equal(tensor, second[name]) for name, tensor in first.items()
    )


def test_separate_matrices_of_a_block_are_joined_in_the_order_of_vitft() -> None:
    place = "blocks.0."
    tensors = numbered(
        *(f"{place}attn.{letter}_proj.weight" for letter in "vkq"),
        *(f"{place}mlp.fc1_{letter}.{kind}" for kind in ("weight", "bias") for letter in "xg"),
        "head.weight",
    )

    joined = from_timm_names(tensors)

    assert joined.keys() == {
        f"{place}attn.qkv.weight", f"{place}mlp.fc1.weight", f"{place}mlp.fc1.bias", "head.weight",
    }  # fmt: skip
    assert joined[f"{place}attn.qkv.weight"][:, 0].tolist() == [3, 3, 2, 2, 1, 1]
    assert joined[f"{place}mlp.fc1.weight"][:, 0].tolist() == [5, 5, 4, 4]  # the gate is first
    assert joined[f"{place}mlp.fc1.bias"].tolist() == [7, 7, 6, 6]


@pytest.mark.parametrize("ending", ["_bias", "_proj.bias"])
def test_keys_without_a_bias_get_zeros(ending: str) -> None:
    tensors = numbered(f"blocks.3.attn.q{ending}", f"blocks.3.attn.v{ending}")
    with_key = {**tensors, f"blocks.3.attn.k{ending}": torch.full((2,), 9.0)}

    (name, bias), (_, whole) = (
        *from_timm_names(tensors).items(),
        *from_timm_names(with_key).items(),
    )

    assert name == "blocks.3.attn.qkv.bias"
    assert bias.tolist() == [1, 1, 0, 0, 2, 2]
    assert whole.tolist() == [1, 1, 9, 9, 2, 2]


def test_incomplete_groups_are_left_as_they_are() -> None:
    tensors = numbered(
        "blocks.0.attn.q_bias", "blocks.0.attn.q_proj.weight", "blocks.0.attn.k_proj.weight",
        "blocks.0.mlp.fc1_g.weight", "blocks.1.mlp.fc1_x.weight",
    )  # fmt: skip

    assert same(from_timm_names(tensors), tensors)


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("blocks.11.gamma_1", "blocks.11.ls1.gamma"),
        ("blocks.0.gamma_2", "blocks.0.ls2.gamma"),
        ("blocks.0.mlp.w12.weight", "blocks.0.mlp.fc1.weight"),
        ("blocks.0.mlp.w3.bias", "blocks.0.mlp.fc2.bias"),
        ("blocks.0.mlp.w123.weight", "blocks.0.mlp.w123.weight"),
        ("blocks.0.gamma_3", "blocks.0.gamma_3"),
    ],
)
def test_other_names_of_the_same_tensor_are_replaced(theirs: str, ours: str) -> None:
    assert [*from_timm_names(numbered(theirs))] == [ours]


def test_names_for_eva_are_undone_by_reading_them() -> None:
    ours = numbered(
        "blocks.0.ls1.gamma", "blocks.0.ls2.gamma", "blocks.0.mlp.norm.weight",
        "blocks.0.norm1.weight", "head.weight",
    ) | {
        "blocks.0.mlp.fc1.weight": torch.arange(24.0).view(8, 3),
        "blocks.0.mlp.fc1.bias": torch.arange(8.0),
        "blocks.0.mlp.fc2.weight": torch.zeros(3, 4),
    }  # fmt: skip

    theirs = to_eva_names(ours)

    assert {"blocks.0.gamma_1", "blocks.0.gamma_2", "blocks.0.norm1.weight"} <= theirs.keys()
    assert theirs["blocks.0.mlp.fc1_g.bias"].tolist() == [0, 1, 2, 3]
    assert theirs["blocks.0.mlp.fc1_x.bias"].tolist() == [4, 5, 6, 7]
    assert theirs["blocks.0.mlp.fc1_x.weight"].is_contiguous()
    assert "blocks.0.mlp.fc1.weight" not in theirs
    assert same(from_timm_names(theirs), ours)


@pytest.mark.parametrize(
    ("rows", "normed"),
    [pytest.param(8, False, id="no norm"), pytest.param(4, True, id="no gate")],
)
def test_only_gated_mlps_with_a_norm_are_split_for_eva(rows: int, normed: bool) -> None:
    ours = numbered(*["blocks.0.mlp.norm.weight"] * normed)
    ours["blocks.0.mlp.fc1.weight"] = torch.zeros(rows, 3)
    ours["blocks.0.mlp.fc2.weight"] = torch.zeros(3, 4)

    assert same(to_eva_names(ours), ours)


@pytest.mark.parametrize(
    ("names", "rotates"),
    [
        ([], False),
        (["blocks.0.norm1.bias"], False),
        (["blocks.0.mlp.fc1_g.weight"], False),
        (["blocks.0.mlp.fc1_g.weight", "blocks.0.norm1.bias"], True),
        (["blocks.0.attn.q_proj.weight", "blocks.0.norm1.bias"], True),
        (["blocks.0.attn.q_bias"], False),
        (["norm_pre.weight"], False),
        (["attn_pool.latent"], False),
        (["norm_pre.weight", "attn_pool.latent"], True),
        (["blocks.0.gamma_1"], True),
        (["blocks.0.ls1.gamma"], False),
    ],
)
def test_names_of_published_rotary_models_are_recognised(names: list[str], rotates: bool) -> None:
    mlp = {"blocks.0.mlp.fc1.weight": torch.zeros(8, 2), "blocks.0.mlp.fc2.weight":
           torch.zeros(2, 8)}  # fmt: skip

    assert may_rotate(numbered("pos_embed", *names) | mlp) == rotates
    assert may_rotate(numbered(*names))  # without learned positions


@pytest.mark.parametrize("hidden", [4, 8])
@pytest.mark.parametrize("bias", [True, False])
def test_a_packed_gate_and_separate_biases_suggest_rotary_positions(
    hidden: int, bias: bool
) -> None:
    tensors = numbered("pos_embed", *["blocks.0.attn.q_bias"] * bias)
    tensors |= {"blocks.0.mlp.fc1.weight": torch.zeros(8, 2)}
    packed = tensors | {"blocks.0.mlp.fc2.weight": torch.zeros(2, hidden)}

    assert may_rotate(packed) == (hidden == 4 and bias)
    assert not may_rotate(tensors)
