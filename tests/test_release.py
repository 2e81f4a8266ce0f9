"""The release: the bounds of the dependencies, its page, and how tests/matrix.py counts."""

import re
import tomllib
from pathlib import Path

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
    page = (ROOT / "maintainers" / "release.md").read_text(encoding="utf-8")

    assert {*re.findall(r"^    .*\bv?(?:itft-)?(\d+\.\d+\.\d+)\b", page, re.M)} == {
        PROJECT["version"]
    }
