"""`vitft study`: nested splits, intervals, differences and checks of the options."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.conftest import draw_folder
from vitft.cli.main import build_parser
from vitft.data import Images, Row
from vitft.features import linear_logits, solve_head
from vitft.study import (
    FewShotSplit,
    evaluate_head,
    few_shot_split,
    reduce_dimensions,
    unique_images,
)


def files(*counts: int, tests: int = 0) -> list[Row]:
    """Return `counts` training images and `tests` test images of each class."""
    parts: list[tuple[int, Any]] = []
    for label, count in enumerate(counts):
        parts += [(label, "train" if tests else "")] * count + [(label, "val")] * tests
    return [
        Row(f"{i}.jpg", label, part, f"{i + 1:064}", 8, 8) for i, (label, part) in enumerate(parts)
    ]


def checked(good: Sequence[Row]) -> Images:
    return Images(Path("x"), ("a", "b"), good)


def test_splits_are_nested_and_share_their_test_images() -> None:
    drawn = few_shot_split(files(20, 30), 2, most=10, seed=0)

    few, many = drawn.train(3), drawn.train(10)

    assert len(few) == 6
    assert {*few} < {*many}
    assert not {*many} & {*drawn.test}
    assert len(many) + len(drawn.test) == 50


def test_seeds_differ_repeat_and_do_not_depend_on_other_classes() -> None:
    first, again, other = (
        few_shot_split(files(20, 30), 2, most=5, seed=s).train(5) for s in (0, 0, 1)
    )
    alone = few_shot_split(files(20), 1, most=5, seed=0).train(5)

    assert first.tolist() == again.tolist()
    assert first.tolist() != other.tolist()
    assert first[:5].tolist() == alone.tolist()


def test_an_image_counts_once_and_is_never_in_both_parts() -> None:
    one, two = files(1, 1)
    twin = one._replace(path="twin.jpg")
    lied = two._replace(path="lied.jpg", label=0)
    trained, tested = files(1, tests=1)
    leak = trained._replace(sha256=tested.sha256)

    assert unique_images(checked([one, twin])) == [one]
    assert unique_images(checked([one, two, lied])) == [one]
    assert unique_images(checked([leak, tested])) == [tested]


def test_rotated_features_give_the_same_predictions() -> None:
    random = torch.Generator().manual_seed(0)
    y = torch.arange(20) % 2
    x = torch.randn(50, 64, generator=random) + 0.4 * (torch.arange(50) % 2)[:, None]
    known, asked = reduce_dimensions(x[:20], x[20:])

    # on standardised rows as well, so that only the rotation differs
    mean, std = x[:20].mean(dim=0), x[:20].std(dim=0, correction=0)
    plain = (x - mean) / std

    assert known.shape == (20, 20)
    torch.testing.assert_close(known @ known.T, plain[:20] @ plain[:20].T, rtol=1e-4, atol=1e-3)
    torch.testing.assert_close(asked @ known.T, plain[20:] @ plain[:20].T, rtol=1e-4, atol=1e-3)
    head = solve_head(x[:20], y, classes=2, l2=0, balanced=False, seed=0)
    whole = torch.cat([head.weight, head.bias[:, None]], dim=1)
    expected = linear_logits(x[20:], whole).argmax(dim=-1) == (torch.arange(20, 50) % 2)
    drawn = FewShotSplit((np.arange(0, 20, 2), np.arange(1, 20, 2)), np.arange(20, 50))
    right = evaluate_head(x, torch.arange(50) % 2, drawn, 10, classes=2, seed=0)
    assert right.tolist() == expected.tolist()


def study(*words: str) -> int:
    args = build_parser().parse_args(["study", *words])
    code: int = args.command(args)
    return code


def test_the_histogram_wins_a_study_of_colours_which_repeats_byte_for_byte(
    tmp_path: Path, tiny_weights: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    draw_folder(tmp_path / "colours", per_class=10)
    words = ["--data", "colours", "--weights", str(tiny_weights), "none"]
    words += ["--shots", "2", "4", "40", "--seeds", "2", "--cache", str(tmp_path / "cache")]

    assert study(*words) == 0
    assert study(*words) == 0

    first, second = (tmp_path / "study-colours", tmp_path / "study-colours-2")
    for name in ("study.json", "study.md", "study.png"):
        assert (first / name).read_bytes() == (second / name).read_bytes(), name
    results = json.loads((first / "study.json").read_text())
    assert results["shots"] == [2, 4]
    assert results["left_out"] == [40]
    assert results["test_images"] == 18  # three classes of ten, four of which may train
    last = {curve["name"]: curve["points"][-1]["top1"] for curve in results["curves"]}
    assert [*last] == [tiny_weights.stem, "none (random weights)", "pixels", "histogram"]
    assert last["histogram"] == 1.0
    assert (first / "study.png").read_bytes().startswith(b"\x89PNG")
    assert (
        "the smallest class is too small: 40 training images per class"
        in (first / "study.md").read_text()
    )
