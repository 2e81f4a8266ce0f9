"""The command `vitft report`, and the names of pages."""

from pathlib import Path

import pytest

from tests.support.run_files import make_run
from vitft.cli.main import main
from vitft.cli.report import new_page, print_report
from vitft.system.errors import RunError, UsageError


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return make_run(Path("run"))


@pytest.mark.parametrize(
    ("name", "also", "accepted"),
    [
        ("page.html", "", True),
        ("page.HTM", "", True),
        ("page", "", True),
        ("page.png", "", False),
        ("page.png", ".png", True),
        ("page.csv", ".png", False),
    ],
)
def test_a_page_has_the_suffix_of_html(
    tmp_path: Path, name: str, also: str, accepted: bool
) -> None:
    path = str(tmp_path / name)

    if accepted:
        assert new_page(path, also) == Path(path)
    else:
        with pytest.raises(UsageError, match="a page is an HTML file") as refused:
            new_page(path, also)
        assert refused.value.fix == "use a name that ends with .html" + (
            ", or .png for a figure" if also else ""
        )


def test_a_page_is_new_and_its_folder_exists(tmp_path: Path, own_home: Path) -> None:
    (tmp_path / "a.html").touch()

    assert new_page("~/a.html") == own_home / "a.html"
    with pytest.raises(RunError, match=r"a\.html already exists"):
        new_page(str(tmp_path / "a.html"))
    with pytest.raises(RunError, match=r"folder .*none does not exist"):
        new_page(str(tmp_path / "none" / "a.html"))


def test_the_page_is_in_the_run_or_where_it_is_wanted(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", "--run", "run"]) == 0
    assert capsys.readouterr().out == f"report: {run / 'report.html'}\n"
    assert main(["report", "--run", "run", "--out", "page.html"]) == 0

    assert capsys.readouterr().out == "report: page.html\n"
    assert Path("page.html").read_bytes() == (run / "report.html").read_bytes()


def test_with_charts_the_page_is_written_only_on_request(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", "--run", "run", "--charts", "one"]) == 0
    alone = capsys.readouterr().out.splitlines()
    assert main(["report", "--run", "run", "--charts", "two", "--out", "page.html"]) == 0
    both = capsys.readouterr().out.splitlines()

    assert alone
    assert all(line.startswith("chart: one/") for line in alone)
    assert all(Path(line.removeprefix("chart: ")).is_file() for line in alone)
    assert not (run / "report.html").exists()
    assert both == [*(line.replace("one", "two") for line in alone), "report: page.html"]


@pytest.mark.parametrize("rank", ["0", "1"])
def test_one_process_writes_the_report_of_a_new_run_and_prints_its_path(
    run: Path, rank: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RANK", rank)

    print_report(run)

    assert capsys.readouterr().out == ("report: run/report.html\n" if rank == "0" else "")
    assert (run / "report.html").exists() == (rank == "0")
