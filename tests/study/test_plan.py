"""The plan of a study: names, numbers and folders."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import draw_folder
from vitft.study.plan import (
    Plan,
    check_study,
    fitting_shots,
    most_shots,
    name_in_tables,
    resolve_sources,
    too_few_images,
)
from vitft.system.errors import DataError, UsageError


@pytest.fixture
def colours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    draw_folder(tmp_path / "colours", per_class=10)
    return "colours"


def planned(data: str, **more: Any) -> Plan:
    options: dict[str, Any] = {"shots": [2], "seeds": 2, "out": None, **more}
    return check_study(data, ["histogram"], options.pop("shots"), **options)


@pytest.mark.parametrize(
    ("count", "has_tests", "most"),
    [
        (1, False, 0),
        (2, False, 1),
        (7, False, 6),
        (8, False, 6),
        (10, False, 8),
        (100, False, 80),
        (10, True, 10),
    ],
)
def test_a_fifth_of_the_smallest_class_is_kept_for_testing(
    count: int, has_tests: bool, most: int
) -> None:
    assert most_shots([count, 150], has_tests=has_tests) == most
    fitting, left = fitting_shots(range(1, 200), most)

    assert (max(fitting, default=0), min(left)) == (most, most + 1)


@pytest.mark.parametrize("seeds", [1, 100])
def test_up_to_a_hundred_draws_are_made(colours: str, seeds: int) -> None:
    assert planned(colours, seeds=seeds).seeds == seeds
    for wrong in (0, 101):
        with pytest.raises(UsageError, match=f"invalid --seeds {wrong}"):
            planned(colours, seeds=wrong)


@pytest.mark.parametrize("shots", [[], [0], [5, -1]])
def test_numbers_of_images_are_positive(colours: str, shots: list[int]) -> None:
    with pytest.raises(UsageError, match="invalid --shots"):
        planned(colours, shots=shots)
    assert planned(colours, shots=[1]).shots == (1,)


def test_numbers_are_sorted_and_those_that_do_not_fit_are_left_out(colours: str) -> None:
    found = planned(colours, shots=[9, 8, 2, 8])

    assert (found.shots, found.left_out, found.most) == ((2, 8), (9,), 8)
    assert found.out == Path("study-colours")
    assert planned(colours, out="own").out == Path("own")


def test_a_folder_below_the_images_is_refused(colours: str) -> None:
    for out in ("colours/new", "colours/red/new"):
        with pytest.raises(UsageError, match="is inside the data directory"):
            planned(colours, out=out)


def test_groups_need_a_test_set_of_their_own(colours: str) -> None:
    paths = sorted(Path(colours).glob("*/*.png"))
    rows = [f"{path},{path.parent.name},g{i % 3}" for i, path in enumerate(paths)]
    Path("grouped.csv").write_text("\n".join(["path,label,group", *rows]))
    rows = [f"{row},{('train', 'test')[i % 3 == 0]}" for i, row in enumerate(rows)]
    Path("split.csv").write_text("\n".join(["path,label,group,split", *rows]))

    with pytest.raises(UsageError, match="defines groups of images"):
        planned("grouped.csv")
    assert planned("split.csv").out == Path("study-split")
    assert planned("split.csv").folder.layout == "split"


def test_the_smallest_class_is_named_if_there_are_too_few_images(colours: str) -> None:
    folder = planned(colours).folder

    text = str(too_few_images(folder, Counter({2: 1, 0: 5, 1: 1})))

    assert "class green in" in text  # the first of two
    assert "has only 1 usable image," in text
    assert text.endswith("fix: add images to this class")
    with pytest.raises(DataError, match="has only 10 usable images") as caught:
        planned(colours, shots=[9])
    assert caught.value.fix.startswith("use --shots 8 or smaller numbers, ")


def test_weights_have_short_names_in_tables() -> None:
    assert name_in_tables("none") == "none (random weights)"
    assert name_in_tables("some/folder/w.safetensors") == "w"
    assert name_in_tables("random:some/folder/w.safetensors") == "random:w"
    twice = [one.name for one in resolve_sources(["a/w.npz", "b/w.npz", "pixels"])]
    assert twice == ["w (a/w.npz)", "w (b/w.npz)", "pixels"]


def test_baselines_need_no_weights_and_names_are_given_once() -> None:
    assert [one.is_baseline for one in resolve_sources(["pixels", "demo", "histogram"])] == [
        *(True, False, True),
    ]
    with pytest.raises(UsageError, match="--weights is empty"):
        resolve_sources([])
    with pytest.raises(UsageError, match="x is given twice"):
        resolve_sources(["x", "y", "x"])
    with pytest.raises(UsageError, match="random:demo are the same"):
        resolve_sources(["none", "random:demo"])
