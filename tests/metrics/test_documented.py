"""The fields of eval.json, as docs/commands.md lists them."""

import re
from pathlib import Path
from typing import get_type_hints

from vitft.metrics import EvaluationResults, RunResults

COMMANDS = Path(__file__).parents[2] / "docs" / "commands.md"


def test_the_documentation_lists_every_field_of_results() -> None:
    section = COMMANDS.read_text(encoding="utf-8").partition("## JSON of results")[2]
    rows = re.findall(r"^\| (`.+?) \|", section, re.MULTILINE)
    listed = [field for row in rows for field in re.findall(r"`(\w+)`", row)]

    assert sorted(listed) == sorted(
        {*get_type_hints(RunResults), *get_type_hints(EvaluationResults)}
    )
