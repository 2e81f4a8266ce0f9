"""`vitft study`: nested splits, intervals, differences and checks of the options."""

import json
import logging
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.conftest import draw_folder
from tests.support.limits import HANG_S
from vitft.cli.main import build_parser, main
from vitft.config.sections import DataSpec, TrainSpec
from vitft.data.folder import Folder
from vitft.data.inspection import InspectedFile, InspectedFolder
from vitft.features.head import solve_head
from vitft.features.logistic import linear_logits
from vitft.metrics.intervals import wilson_interval
from vitft.report.plots import spread_apart
from vitft.study.features import (
    HISTOGRAM_LEVELS,
    SMALL_SIDE,
    colour_histogram,
    load_source,
    small_image,
)
from vitft.study.plan import check_study, fitting_shots, most_shots, resolve_sources
from vitft.study.results import CurvePoint, difference, lead_sentences, markdown_cell
from vitft.study.run import (
    FewShotSplit,
    evaluate_head,
    few_shot_split,
    fit_plan,
    reduce_dimensions,
    run_study,
    unique_images,
)
from vitft.system.errors import DataError, RunError, UsageError, VitftError, WeightsError


def files(*counts: int, tests: int = 0) -> list[InspectedFile]:
    """Return `counts` training images and `tests` test images of each class."""
    parts: list[tuple[int, Any]] = []
    for label, count in enumerate(counts):
        parts += [(label, "train" if tests else "")] * count + [(label, "val")] * tests
    return [
        InspectedFile(f"{i}.jpg", label, part, f"{i:064}", 8, 8)
        for i, (label, part) in enumerate(parts)
    ]


def checked(good: Sequence[InspectedFile]) -> InspectedFolder:
    folder = Folder(root=Path("x"), classes=("a", "b"), files=(), layout="classes")
    return InspectedFolder(folder=folder, good=tuple(good), bad=(), odd={})


def point(*rows: Sequence[int]) -> CurvePoint:
    return CurvePoint(shots=5, correct=tuple(np.array(row, dtype=bool) for row in rows))


# splits ------------------------------------------------------------------------------------------


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


def test_the_test_images_of_a_folder_are_used() -> None:
    known = files(6, 6, tests=4)

    drawn = few_shot_split(known, 2, most=6, seed=0)

    assert [known[row].part for row in drawn.test] == ["val"] * 8
    assert {known[row].part for row in drawn.train(6)} == {"train"}


def test_an_image_counts_once_and_is_never_in_both_parts() -> None:
    one, two = files(1, 1)
    twin = replace(one, path="twin.jpg")
    lied = replace(two, path="lied.jpg", label=0)
    trained, tested = files(1, tests=1)
    leak = replace(trained, sha256=tested.sha256)

    assert unique_images(checked([one, twin])) == [one]
    assert unique_images(checked([one, two, lied])) == [one]
    assert unique_images(checked([leak, tested])) == [tested]


# heads and intervals -----------------------------------------------------------------------------


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


def test_one_seed_has_the_interval_of_its_test_images() -> None:
    assert point([1, 1, 1, 0]).interval == wilson_interval(3, 4)


def test_seeds_that_differ_widen_the_interval() -> None:
    alike = point([1, 1, 0, 0] * 50, [1, 1, 0, 0] * 50)
    unlike = point([1, 1, 1, 0] * 50, [1, 0, 0, 0] * 50)

    assert alike.top1 == unlike.top1 == 0.5
    assert alike.interval == wilson_interval(100, 200)  # seeds that agree do not make it narrower
    # Student's t of one degree of freedom: 0.5 +- 12.706 * 0.3536 / sqrt(2), cut at 0 and 1
    assert unlike.interval == (0.0, 1.0)


def test_a_difference_counts_only_discordant_images() -> None:
    one, other = point([1] * 60 + [0] * 40), point([1] * 50 + [0] * 50)

    mean, (low, high) = difference(one, other)

    # ten of a hundred differ, all one way: 1.96 * sqrt(0.1 - 0.01) / 10
    assert mean == pytest.approx(0.1)
    assert (low, high) == pytest.approx((0.1 - 0.0588, 0.1 + 0.0588), abs=1e-4)
    assert difference(one, one) == (0.0, (0.0, 0.0))


def test_the_interval_of_a_difference_is_within_plus_minus_one() -> None:
    one, other = point([1] * 10, [1] * 5 + [0] * 5), point([0] * 10, [1] * 5 + [0] * 5)

    assert difference(one, other) == (0.5, (-1.0, 1.0))


# inputs ------------------------------------------------------------------------------------------


def test_the_baselines_hold_brightness_and_colours() -> None:
    red = np.zeros((128, 128, 3), np.uint8)
    red[..., 0] = 255

    assert small_image(red).reshape(SMALL_SIDE, SMALL_SIDE, 3)[5, 7].tolist() == [1.0, 0.0, 0.0]
    histogram = colour_histogram(red)
    assert histogram.shape == (HISTOGRAM_LEVELS**3,)
    assert histogram[(HISTOGRAM_LEVELS - 1) * HISTOGRAM_LEVELS**2] == 1.0
    assert float((histogram**2).sum()) == pytest.approx(1.0)


def test_an_untrained_timm_model_needs_no_file() -> None:
    model, transform = load_source("random:timm:resnet10t", 3)
    again, _ = load_source("random:timm:resnet10t", 3)

    assert transform.image_size == (176, 176)  # as timm trained it
    for one, other in zip(model.parameters(), again.parameters(), strict=True):
        assert torch.equal(one, other)


def test_weights_are_described_in_one_line(
    tiny_weights: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        load_source(str(tiny_weights), 3)

    (line,) = caplog.messages
    assert line.startswith("model: ")
    assert line.endswith("tiny")


# the plan ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("counts", "own", "left", "dropped"),
    [
        pytest.param([40, 60], False, (5, 32), (33, 100), id="a fifth of the smallest is kept"),
        pytest.param([40, 60], True, (5, 32, 33), (100,), id="all may train beside own tests"),
        pytest.param([2, 9], False, (), (5, 32, 33, 100), id="none"),
    ],
)
def test_shots_beyond_the_smallest_class_are_left_out(
    counts: list[int], own: bool, left: tuple[int, ...], dropped: tuple[int, ...]
) -> None:
    most = most_shots(counts, has_tests=own)

    assert fitting_shots([100, 5, 33, 32, 5], most) == (left, dropped)


def test_none_is_the_architecture_of_the_first_weights() -> None:
    weights = [one.weights for one in resolve_sources(["pixels", "demo", "none"])]

    assert weights == ["pixels", "demo", "random:demo"]
    assert resolve_sources(["none", "demo", "x"])[0].weights == "random:demo"


BASE = {"weights": ["demo"], "shots": [2], "seeds": 2, "out": None}


@pytest.mark.parametrize(
    ("change", "kind", "message"),
    [
        pytest.param({"weights": ["demo", "demo"]}, UsageError, "demo is given twice", id="twice"),
        pytest.param({"weights": ["none"]}, UsageError, "but there are none", id="only none"),
        pytest.param(
            {"weights": ["random:demo", "none"]}, UsageError, "are the same", id="both untrained"
        ),
        pytest.param({"weights": ["dmo"]}, WeightsError, "dmo", id="unknown"),
        pytest.param({"weights": ["random:x.pth"]}, WeightsError, "not found", id="no file"),
        pytest.param({"shots": [0, 5]}, UsageError, "invalid --shots 0 5", id="no images"),
        pytest.param({"shots": [9, 50]}, DataError, "has only 10 usable images", id="too many"),
        pytest.param({"seeds": 0}, UsageError, "invalid --seeds 0", id="no draw"),
        pytest.param(
            {"out": "colours/x"}, UsageError, "inside the data directory", id="into the data"
        ),
        pytest.param({"out": "full"}, RunError, "is not empty", id="into something"),
    ],
)
def test_impossible_options_are_refused_before_any_computation(
    image_folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    change: dict[str, Any],
    kind: type[VitftError],
    message: str,
) -> None:
    monkeypatch.chdir(image_folder.parent)
    Path("full").mkdir()
    Path("full/mine.txt").write_text("x")
    wanted: dict[str, Any] = {**BASE, **change}

    with pytest.raises(kind, match=message):
        check_study("colours", wanted.pop("weights"), wanted.pop("shots"), **wanted)

    assert sorted(path.name for path in Path().iterdir()) == ["colours", "full"]


def test_the_command_and_the_plan_start_without_torch() -> None:
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "import sys, vitft.cli.study, vitft.study.plan, vitft.study.results;"
            "sys.exit('torch' in sys.modules)",
        ],
        check=False,
        timeout=HANG_S,
    )

    assert done.returncode == 0


@pytest.mark.parametrize(
    "command",
    [
        pytest.param(["study", "--data", "demo", "--weights", "demo"], id="study"),
        pytest.param(["explain", "--model", "--weights", "demo"], id="explain --model"),
    ],
)
def test_without_matplotlib_the_error_names_the_extra(
    command: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("vitft.system.imports.importlib.util.find_spec", lambda _: None)

    assert main(command) == 2

    assert "fix: run pip install 'matplotlib>=" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


# the whole ---------------------------------------------------------------------------------------


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


def test_copies_reduce_the_possible_shots(image_folder: Path) -> None:
    for i in range(1, 8):  # of ten pictures three are left
        (image_folder / "red" / f"{i:03}.png").write_bytes(
            (image_folder / "red" / "000.png").read_bytes()
        )
    plan = check_study(
        str(image_folder), ["histogram"], [2, 8], seeds=1, out=str(image_folder.parent / "out")
    )

    done = run_study(plan, data=DataSpec(), train=TrainSpec())

    assert plan.shots == (2, 8)
    assert done.plan.shots == (2,)
    assert done.plan.left_out == (8,)
    assert done.images == 23


def test_a_folder_without_usable_test_images_is_refused(image_folder: Path) -> None:
    out = str(image_folder.parent / "out")
    plan = check_study(str(image_folder), ["histogram"], [2], seeds=1, out=out)
    split = replace(plan, folder=replace(plan.folder, layout="split"))

    with pytest.raises(DataError, match="has no usable test images"):
        fit_plan(split, files(10, 10))


def test_a_difference_that_is_not_significant_is_reported_as_such(image_folder: Path) -> None:
    plan = check_study(
        str(image_folder),
        ["pixels", "histogram"],
        [4],
        seeds=2,
        out=str(image_folder.parent / "out"),
    )
    done = run_study(plan, data=DataSpec(), train=TrainSpec())
    curves = tuple(
        replace(curve, points=(point([0, 1] * 50, [0, 1] * 50),)) for curve in done.curves
    )
    behind = replace(curves[0], points=(point([0] * 100, [0] * 100),))

    same = lead_sentences(replace(done, curves=curves))
    worse = lead_sentences(replace(done, curves=(behind, curves[1])))

    assert same[1] == "  images per class without a significant difference: 4"
    assert worse[1] == "  images per class at which histogram is significantly better: 4"


def test_labels_of_lines_do_not_overlap_and_keep_their_order() -> None:
    random = np.random.default_rng(0)
    for _ in range(50):
        places = random.uniform(0, 100, int(random.integers(1, 9))).tolist()

        moved = spread_apart(places, 5.0)

        order = np.argsort(places)
        assert (np.diff(np.array(moved)[order]) >= 5 - 1e-9).all()
        assert min(moved) >= 0
        assert max(moved) <= 100 + 1e-9


def test_a_name_cannot_break_out_of_a_table() -> None:
    assert markdown_cell("a|b\n[x](y)") == r"a\|b\\n\[x\](y)"
