"""`vitft study`: nested splits, intervals, differences and checks of the options."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.conftest import draw_folder
from vitft.cli.main import build_parser
from vitft.data import Row
from vitft.features import linear_logits, solve_head
from vitft.study import evaluate_head, few_shot_split


def files(*counts: int, tests: int = 0) -> list[Row]:
    """Return `counts` training images and `tests` test images of each class."""
    parts: list[tuple[int, Any]] = []
    for label, count in enumerate(counts):
        parts += [(label, "train" if tests else "")] * count + [(label, "val")] * tests
    return [
        Row(f"{i}.jpg", label, part, f"{i + 1:064}", 8, 8) for i, (label, part) in enumerate(parts)
    ]


def test_splits_are_nested_and_share_their_test_images() -> None:
    drawn, test = few_shot_split(files(20, 30), 2, most=10, seed=0)
    again, same = few_shot_split(files(20, 30), 2, most=10, seed=0)

    assert [len(rows) for rows in drawn] == [10, 10]
    assert sorted([*drawn[0], *drawn[1], *test]) == list(range(50))
    assert [one.tolist() for one in (*again, same)] == [one.tolist() for one in (*drawn, test)]


def test_seeds_differ_and_do_not_depend_on_other_classes() -> None:
    first, other = (few_shot_split(files(20, 30), 2, most=5, seed=s)[0][0] for s in (0, 1))
    alone = few_shot_split(files(20), 1, most=5, seed=0)[0][0]

    assert first.tolist() == alone.tolist()
    assert first.tolist() != other.tolist()


def test_rotated_features_give_the_same_predictions() -> None:
    random = torch.Generator().manual_seed(0)
    y = torch.arange(20) % 2
    x = torch.randn(50, 64, generator=random) + 0.4 * (torch.arange(50) % 2)[:, None]

    head = solve_head(x[:20], y, classes=2, l2=0, balanced=False, seed=0)
    whole = torch.cat([head.weight, head.bias[:, None]], dim=1)
    expected = linear_logits(x[20:], whole).argmax(dim=-1) == (torch.arange(20, 50) % 2)
    labels, rows = torch.arange(50) % 2, np.arange(50)
    right = evaluate_head(x, labels, rows[:20], rows[20:], classes=2, seed=0)
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
