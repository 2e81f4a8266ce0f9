"""Tables that fit the terminal."""

import pytest

from vitft.cli import output
from vitft.cli.column_widths import column_widths, table_width
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
