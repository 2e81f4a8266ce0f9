"""What every reader shows of about 60 small runs, against reviewed texts in `__snapshots__`.

`make snapshots` writes the texts again; `git diff` then shows what users will see otherwise. After
a conflict in a text, take either side and do the same. A row must not rest on ties that another CPU
breaks in another way: give it `optim.l2` if cross-validated losses hardly differ, or an SGD solver
if gradients are near 0.

A row of runs.toml has the keys `name`, `draw`, `text`, `build`, `before`, `run` and `exit` of
`tests.contract.rows`, where the images are `DRAWN` by default, the first command of `before` writes
to ../before, and `run` is a `finetune` command, which writes to ../run. `after` are more commands
whose output is read with that of `run`. `readers` are added to those that read all runs, or to
`usual` where a row has them, and `tolerance` replaces that of `snapshots.py`. A row that takes half
a minute is `long`.
"""

import itertools
import shlex
import sys
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from syrupy.assertion import SnapshotAssertion

from tests.contract.golden.readers import USUAL, Run, read, shown
from tests.contract.golden.snapshots import TextExtension, scrub
from tests.contract.rows import Row, draw_files, run, words_of

HERE = Path(__file__).parent
DRAWN = [
    "cat/{0-9}.jpg", "cat/dog{0-1}.jpg", "dog/{0-11}.jpg", "fox/{0-9}.jpg", "fox/cat{0-1}.jpg",
]  # fmt: skip
"""Three classes of twelve images, four of which look like another class."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Golden(Row):
    """A row of runs.toml."""

    after: Sequence[str] = ()
    long: bool = False
    usual: Sequence[str] = USUAL
    readers: Sequence[str] = ()
    tolerance: float = TextExtension.relative

    @property
    def all_readers(self) -> list[str]:
        compared = ["compare"] if self.before else []
        return [*self.usual, *compared, *self.readers]


ROWS = [Golden(**row) for row in tomllib.loads((HERE / "runs.toml").read_text())["row"]]


@pytest.mark.skipif(sys.platform == "win32", reason="the texts have paths of other systems")
@pytest.mark.parametrize(
    "row", [pytest.param(row, id=row.name, marks=[pytest.mark.long] * row.long) for row in ROWS]
)
def test_run(row: Golden, snapshot: SnapshotAssertion, home: Path) -> None:
    extension = type("Tolerant", (TextExtension,), {"relative": row.tolerance})
    recorded = snapshot.use_extension(extension)

    changed = [
        "\n".join([f"\n=== {row.name}/{name}.txt", *recorded.get_assert_diff()])
        for name, text in texts_of(row, Path("../w.safetensors"))
        if recorded(name=name) != scrub(text, home)
    ]

    assert not changed, "\n".join(changed)


def texts_of(row: Golden, weights: Path) -> Iterator[tuple[str, str]]:
    """Run the commands of a row, and return the name and the text of each reader."""
    draw_files(row if row.draw or row.text or row.build else replace(row, draw=DRAWN), 40, 32)
    for line in row.before:
        code, printed = run(completed(line, weights, "../before"))
        assert code == 0, printed
    words = completed(row.run, weights, "../run")
    printed = "".join(shown(*one) for one in (words, *map(shlex.split, row.after)))
    pairs = list(itertools.pairwise(words))
    settings = [pair for pair in pairs if pair[0] == "--set" and pair[1].startswith("data.")]
    data = [dict(pairs)["--data"], *itertools.chain(*settings)]
    yield from read(Run(data=data, weights=weights, printed=printed), row.all_readers)


def completed(line: str, weights: Path, out: str) -> list[str]:
    """Return the words of a command; training is in float32, as not every CPU has bf16."""
    words = words_of(line, weights, out)
    return words + ["--set", "train.precision=fp32"] * (words[0] == "finetune")


def test_every_text_belongs_to_a_reader_of_a_run(pytestconfig: pytest.Config) -> None:
    if pytestconfig.getoption("update_snapshots"):
        pytest.skip("other processes are writing the texts")
    read_ones = {f"{row.name}/{reader}.txt" for row in ROWS for reader in row.all_readers}
    texts = (HERE / "__snapshots__").rglob("*.*")

    assert {str(path.relative_to(HERE / "__snapshots__")) for path in texts} == read_ones
