"""Labelling sessions, studies, dry runs and the cache, against reviewed texts in `__snapshots__`.

`make snapshots` writes the texts again, as those of the golden runs.
"""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from syrupy.assertion import SnapshotAssertion

from tests.contract.golden.sequences.commands import cache, plans, studies
from tests.contract.golden.sequences.files import architectures, predictions, server, weight_files
from tests.contract.golden.sequences.sessions import all_kinds_of_answers, honest_answers
from tests.contract.golden.snapshots import TextExtension, scrub

SEQUENCES: dict[str, Callable[[], Iterator[str]]] = {
    "honest-answers": honest_answers,
    "all-kinds-of-answers": all_kinds_of_answers,
    "studies": studies,
    "plans": plans,
    "cache": cache,
    "weight-files": weight_files,
    "architectures": architectures,
    "predictions": predictions,
    "server": server,
}


@pytest.mark.skipif(sys.platform == "win32", reason="the texts have paths of other systems")
@pytest.mark.parametrize("name", SEQUENCES)
def test_run(name: str, snapshot: SnapshotAssertion, home: Path) -> None:
    recorded = snapshot.use_extension(TextExtension)
    text = scrub("\n".join(SEQUENCES[name]()), home)
    assert recorded(name="shown") == text, "\n".join(recorded.get_assert_diff())
