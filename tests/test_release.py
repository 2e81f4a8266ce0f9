"""The release: the bounds of the dependencies, its page, and how tests/matrix.py counts."""

import re
import sys
import tomllib
from pathlib import Path

import pytest

from tests.matrix import run_suite

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def test_every_dependency_has_one_lower_bound() -> None:
    extras = PROJECT["optional-dependencies"].values()
    bounds: dict[str, set[str]] = {}
    for line in [*PROJECT["dependencies"], *(line for extra in extras for line in extra)]:
        name, _, version = line.partition(">=")
        bounds.setdefault(name, set()).add(version)

    assert len(bounds) > 30
    assert {name: found for name, found in bounds.items() if len(found) > 1 or "" in found} == {}


def test_the_commands_of_the_page_have_the_version_of_the_package() -> None:
    page = (ROOT / "docs" / "release.md").read_text(encoding="utf-8")

    assert {*re.findall(r"^    .*\bv?(?:itft-)?(\d+\.\d+\.\d+)\b", page, re.M)} == {
        PROJECT["version"]
    }


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    """A folder with tests, and a program in place of pytest that prints what they contain."""
    folder = tmp_path / "suite"
    (folder / "tests" / "data").mkdir(parents=True)
    (folder / "tests" / "support").mkdir()
    (folder / "tests" / "data" / "test_a.py").write_text("4 passed, 2 skipped in 1.00s")
    (folder / "tests" / "test_b.py").write_text("1 failed, 3 passed, 1 error in 1.00s")
    (folder / "program.py").write_text(
        "import pathlib, sys\n"
        "path = pathlib.Path(sys.argv[1])\n"
        "print(next(path.glob('*.py'), path).read_text())\n"
        "sys.exit('fail' in path.name)\n"
    )
    return folder


def test_the_matrix_counts_the_tests_of_all_groups(suite: Path) -> None:
    counts = run_suite([sys.executable, "program.py"], suite, [], jobs=2)

    assert counts == "2 skipped, 7 passed, 1 failed, 1 error, 0 min"


def test_the_matrix_counts_a_process_that_ends_without_a_result_as_an_error(suite: Path) -> None:
    (suite / "tests" / "test_fails.py").write_text("Segmentation fault")

    counts = run_suite([sys.executable, "program.py"], suite, ["test_fails.py"], jobs=1)

    assert counts == "1 error, 0 min"
