"""Tables that fit the terminal."""

import pytest

from vitft.cli import evaluate, output
from vitft.cli.column_widths import column_widths, table_width, wrapped_widths
from vitft.cli.main import main

NATURAL = (42, 37, 29, 7, 7)  # name, trained on, licence, classes, px


@pytest.mark.parametrize(
    ("width", "shown"),
    [
        pytest.param(200, {0: 42, 1: 37, 2: 29, 3: 7, 4: 7}, id="wide"),
        pytest.param(120, {0: 42, 1: 27, 2: 29, 3: 7, 4: 7}, id="text is cut first"),
        pytest.param(80, {0: 42, 1: 16, 2: 18}, id="then columns are left out"),
        pytest.param(60, {0: 42, 2: 16}, id="names are kept whole"),
        pytest.param(20, {0: 42, 2: 16}, id="too narrow for anything"),
    ],
)
def test_the_least_important_text_gives_way_first(width: int, shown: dict[int, int]) -> None:
    found = column_widths(NATURAL, width, shorten=(1, 2), drop=(4, 3, 1))

    assert found == shown
    assert table_width(found) <= width or width < 60


@pytest.fixture
def narrow(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A terminal of 80 columns."""
    from rich.console import Console

    terminal = Console(width=80, highlight=False, soft_wrap=True, emoji=False)
    monkeypatch.setattr(output, "stdout", lambda: terminal)


def test_each_row_of_the_catalogue_is_one_line_of_a_narrow_terminal(
    narrow: None, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["weights", "list", "--all"]) == 0

    captured = capsys.readouterr()
    head, *lines = captured.out.splitlines()
    assert head.split() == ["name", "trained", "on", "licence"]
    assert len(lines) > 100
    assert max(map(len, lines)) <= 80
    assert all(line[0].isalnum() and not line.split()[0].endswith("…") for line in lines)
    assert "not shown, because the terminal is too narrow: classes and px" in captured.err


def test_recipes_are_wrapped_between_words(
    narrow: None, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["recipes"]) == 0
    short = capsys.readouterr().out
    assert max(len(line) for line in short.splitlines() if "vitft finetune" not in line) <= 80
    words = {word for line in short.splitlines() for word in line.split()}
    assert {"comparison", "tutorial", "cifar10-tutorial:"} <= words


def test_text_columns_of_other_tables_are_wrapped_between_words(
    narrow: None, capsys: pytest.CaptureFixture[str]
) -> None:
    name, text = "a" * 40, "several words that do not fit on one line " * 3

    output.table(("name", "text", "n"), [(name, text, "1,234")], numbers=1)

    lines = capsys.readouterr().out.splitlines()
    assert lines[1].startswith(name)
    assert lines[1].rstrip().endswith("1,234")
    words = " ".join(lines[1:]).replace(name, "").replace("1,234", "").split()
    assert words == text.split()


def test_headings_are_broken_between_words_and_numbers_are_kept_whole(
    narrow: None, capsys: pytest.CaptureFixture[str]
) -> None:
    columns = ("run", "accuracy", "95% interval", "accuracy on shared images", "cross-validated")
    columns, bounds = (*columns, "95% interval"), "64.1 to 88.3%"
    row = ("A before", "78.6%", bounds, "78.6%", "80.5%", bounds)

    output.table(columns, [row], numbers=5)

    *headings, cells = capsys.readouterr().out.splitlines()
    assert max(map(len, headings)) <= 80
    assert sorted(" ".join(headings).split()) == sorted(" ".join(columns).split())
    assert [cell.strip() for cell in cells.split("  ") if cell.strip()] == list(row)


def class_metrics(name: str) -> dict[str, object]:
    return {f"{name}{end}": value for end, value in (("", 0.75), ("_interval", (0.468, 0.911)))}


@pytest.mark.parametrize(
    ("length", "intervals"),
    [
        pytest.param(9, 2, id="short names"),
        pytest.param(40, 0, id="long names"),
        pytest.param(70, 0, id="names that are wrapped"),
    ],
)
def test_metrics_of_classes_are_never_broken_on_a_narrow_terminal(
    narrow: None, capsys: pytest.CaptureFixture[str], length: int, intervals: int
) -> None:
    names = [f"{letter}{' word' * 20}"[:length].strip() for letter in "ab"]
    row = {"images": 12} | class_metrics("recall") | class_metrics("precision")

    evaluate.print_classes({name: row | class_metrics("f1") for name in names})

    head, *lines = capsys.readouterr().out.splitlines()
    columns = ["recall", "precision", "F1"]
    assert [word for word in head.split() if word in columns] == columns
    numbers = [line for line in lines if "75.0%" in line]
    assert len(numbers) == 2
    assert all(line.count("75.0%") == 3 for line in numbers)
    assert all(line.count("46.8 to 91.1%") == intervals for line in numbers)
    assert max(map(len, lines)) <= 80


def test_the_columns_of_a_confusion_matrix_are_numbered_if_the_names_do_not_fit(
    narrow: None, capsys: pytest.CaptureFixture[str]
) -> None:
    names = [f"Leucanthemum vulgare, garden {i}" for i in "ABCD"]

    evaluate.print_confusion({(0, 0): 9, (0, 3): 2}, names)
    evaluate.print_confusion({(0, 0): 9, (0, 1): 2}, ["a", "b"])

    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines[0] == ["true", "\\", "predicted", "1", "2", "3", "4"]
    assert lines[1] == ["1", *names[0].split(), "9", "0", "0", "2"]
    assert lines[4][0] == "4"
    assert lines[5] == ["true", "\\", "predicted", "a", "b"]


def test_columns_are_two_spaces_apart() -> None:
    assert table_width({0: 5}) == 5
    assert table_width({0: 5, 3: 6}) == 13


@pytest.mark.parametrize(
    ("width", "shown"),
    [
        pytest.param(54, {0: 20, 1: 30}, id="it fits"),
        pytest.param(52, {0: 20, 1: 30}, id="just"),
        pytest.param(51, {0: 20, 1: 29}, id="one too many"),
        pytest.param(38, {0: 20, 1: 16}, id="as short as a text may be"),
        pytest.param(37, {0: 20}, id="too short"),
    ],
)
def test_a_text_is_shortened_to_16_characters_before_it_is_left_out(
    width: int, shown: dict[int, int]
) -> None:
    assert column_widths((20, 30), width, shorten=(1,), drop=(1,)) == shown


def test_a_short_text_is_not_widened() -> None:
    assert column_widths((20, 8), 25, shorten=(1,), drop=()) == {0: 20, 1: 8}
    assert column_widths((20, 8), 25, shorten=(1,), drop=(1,)) == {0: 20}


@pytest.mark.parametrize(
    ("width", "found"),
    [
        pytest.param(52, {}, id="it fits"),
        pytest.param(51, {0: 10, 1: 39}, id="the text is wrapped"),
        pytest.param(28, {0: 10, 1: 16}, id="to 16 characters"),
        pytest.param(27, {0: 10, 1: 15}, id="then the names as well"),
        pytest.param(12, {0: 4, 1: 6}, id="to the longest word of each heading"),
        pytest.param(11, {}, id="too narrow even then"),
    ],
)
def test_names_are_wrapped_only_if_the_text_cannot_give_way(
    width: int, found: dict[int, int]
) -> None:
    headings = {0: "name", 1: "longer text"}

    widths = wrapped_widths(headings, (10, 40), width, whole=(0,))

    assert widths == found
    assert not found or table_width(widths) <= width
