"""`vitft study`: nested splits, intervals, differences and checks of the options."""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from tests.conftest import draw_folder
from vitft.cli.main import build_parser
from vitft.data import Row, scan
from vitft.features import linear_logits, solve_head
from vitft.metrics import wilson_interval
from vitft.study import accuracy, baseline_features, difference, evaluate_head, few_shot_split
from vitft.system import DataError


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


def test_baselines_are_small_images_and_colours_in_one_of_512_places(tmp_path: Path) -> None:
    pixels = np.zeros((128, 128, 3), np.uint8)
    pixels[:, :64] = (31, 31, 31)  # still the darkest level
    pixels[:4, 124:] = (255, 0, 51)
    pixels[64:, 64:] = (32, 64, 255)
    for name in ("a/0.png", "b/1.png"):
        (tmp_path / name).parent.mkdir()
        Image.fromarray(pixels).save(tmp_path / name)
        pixels = pixels[::-1].copy()
    folder = scan(tmp_path)
    files = [Row(row.path, row.label, "", f"{i:064}", 8, 8) for i, row in enumerate(folder.rows)]

    found = baseline_features(folder, files, max_pixels=10**6)

    assert [*found] == ["pixels", "histogram"]
    small, colours = found["pixels"].view(2, 32, 32, 3), found["histogram"]
    assert small.dtype == colours.dtype == torch.float32
    assert small[0, 0, 31].tolist() == pytest.approx([1.0, 0.0, 0.2])  # squares of 4 pixels
    assert small[0, 20, 20].tolist() == pytest.approx([32 / 255, 64 / 255, 1.0])
    assert torch.equal(small[1], small[0].flip(0))
    places = {int(i): float(colours[0, i]) for i in torch.nonzero(colours[0])}
    assert places == {
        0: pytest.approx(np.sqrt(0.75 - 1 / 1024)),
        1 * 64 + 2 * 8 + 7: 0.5,
        7 * 64 + 1: pytest.approx(1 / 32),
    }


def seeds(*rows: Sequence[int]) -> list[np.ndarray[Any, np.dtype[np.bool_]]]:
    return [np.array(row, dtype=bool) for row in rows]


def student(*values: float) -> float:
    """Return the half-width of the 95% interval of the mean of two or three values."""
    quantile = {2: 12.706205, 3: 4.302653}[len(values)]
    return float(quantile * np.std(values, ddof=1) / math.sqrt(len(values)))


def test_the_wider_of_both_intervals_counts_on_each_side() -> None:
    apart = seeds([1] * 60 + [0] * 40, [1] * 70 + [0] * 30)
    near = seeds([1] * 64 + [0] * 36, [1] * 65 + [0] * 35)
    low, high = wilson_interval(64, 100)  # 64.5 is rounded to the even number

    top1, interval = accuracy(apart)
    assert top1 == pytest.approx(0.65)
    assert interval == pytest.approx((0.65 - student(0.6, 0.7), 1.0), abs=1e-6)
    top1, interval = accuracy(near)
    assert interval == pytest.approx((min(low, top1 - student(0.64, 0.65)), high), abs=1e-6)
    assert accuracy(near[:1]) == (0.64, wilson_interval(64, 100))


def test_a_difference_has_the_wider_interval_of_seeds_and_images() -> None:
    first = seeds([1] * 50 + [0] * 50, [1] * 60 + [0] * 40)
    second = seeds([1] * 40 + [0] * 60, [1] * 40 + [0] * 60)

    mean, (low, high) = difference(first, second)

    half = student(0.1, 0.2)
    assert mean == pytest.approx(0.15)
    assert (low, high) == pytest.approx((0.15 - half, 0.15 + half), abs=1e-6)
    same = seeds([1] * 50 + [0] * 50, [1] * 50 + [0] * 50)
    mean, (low, high) = difference(same, second)  # seeds agree: the images decide
    images = 1.959963984540054 * math.sqrt(0.1 - 0.01) / 10
    assert (mean, low, high) == pytest.approx((0.1, 0.1 - images, 0.1 + images))


def test_the_interval_of_a_difference_ends_at_what_is_possible() -> None:
    none, every = np.zeros(50, bool), np.ones(50, bool)

    assert difference([none, every], [every, every]) == (-0.5, (-1.0, 1.0))


def test_a_file_that_is_deleted_meanwhile_is_an_error(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / name).mkdir()
        Image.new("RGB", (8, 8)).save(tmp_path / name / "0.png")
    folder = scan(tmp_path)
    (tmp_path / "b" / "0.png").unlink()

    with pytest.raises(DataError, match=r"0\.png: "):
        baseline_features(folder, folder.rows, max_pixels=10**6)
