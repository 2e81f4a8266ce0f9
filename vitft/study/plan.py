"""What a study was asked for, checked before anything is computed. Starts without torch."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from vitft.data.folder import Folder, scan
from vitft.models.pretrained.locate import check_weights_name
from vitft.system.errors import DataError, UsageError
from vitft.system.files import free_name
from vitft.system.rundir import plan_run

BASELINES = ("pixels", "histogram")
"""What needs no weights: logistic regression on small pictures, and on their colours."""
UNTRAINED = "none"
KEPT_FOR_TESTS = 1 / 5
"""Of the smallest class, where the folder brings no test images of its own."""
MOST_SEEDS = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Contestant:
    """One line of the picture."""

    name: str
    """As it was typed."""
    weights: str
    """As `finetune` takes it; a baseline's own name."""

    @property
    def is_baseline(self) -> bool:
        return self.name in BASELINES


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A study that can begin."""

    folder: Folder
    contestants: tuple[Contestant, ...]
    shots: tuple[int, ...]
    """Training images of each class, rising."""
    left_out: tuple[int, ...]
    """Those for which the smallest class is too small."""
    seeds: int
    out: Path


def check_study(
    data: str,
    weights: Sequence[str],
    shots: Sequence[int],
    *,
    seeds: int,
    out: str | None,
    allow_pickle: bool = False,
) -> Plan:
    """The plan, if data, names, numbers and the place of the result look usable.

    Raises:
        UsageError: An impossible number or combination of names.
        DataError: The folder does not hold classes of images, or too few of them.
        WeightsError: No such weights.
        RunError: The place is not empty or not writable.
    """
    if not 1 <= seeds <= MOST_SEEDS:
        raise UsageError(f"--seeds is {seeds}", fix=f"give a number from 1 to {MOST_SEEDS}, e.g. 3")
    if not shots or min(shots) < 1:
        raise UsageError(
            f"--shots {' '.join(map(str, shots))} are no numbers of images",
            fix="give one or more whole numbers from 1, e.g. --shots 5 10 25",
        )
    contestants = named(weights)
    for one in contestants:
        if not one.is_baseline:
            check_weights_name(one.weights.removeprefix("random:"), allow_pickle=allow_pickle)
    folder = scan(Path(data).expanduser())
    counts = Counter(file.label for file in folder.files if file.part != "val")
    fitting, left_out = fitting_shots(shots, counts.values(), own_tests=folder.layout == "split")
    if not fitting:
        raise too_few(folder, counts)
    place = plan_run(out or str(free_name(Path(f"study-{folder.root.resolve().name}"))), data)
    if folder.root.resolve() in (place.resolve(), *place.resolve().parents):
        raise UsageError(
            f"the results {place} would lie inside the data", fix="choose another --out"
        )
    return Plan(
        folder=folder,
        contestants=contestants,
        shots=fitting,
        left_out=left_out,
        seeds=seeds,
        out=place,
    )


def named(weights: Sequence[str]) -> tuple[Contestant, ...]:
    """Every name with what it stands for: `none` is the first one's architecture, untrained.

    Raises:
        UsageError: A name twice, or `none` with nothing that it could stand for.
    """
    twice = [name for name, count in Counter(weights).items() if count > 1]
    if twice or not weights:
        raise UsageError(
            f"--weights names {twice[0]} twice" if twice else "--weights names nothing",
            fix="name each once, e.g. --weights demo none pixels",
        )
    real = [name for name in weights if name not in (*BASELINES, UNTRAINED)]
    if UNTRAINED in weights and not real:
        raise UsageError(
            "none stands for the first weights' architecture, and no weights are named",
            fix="name some as well, e.g. --weights demo none, or random:NAME",
        )
    untrained = f"random:{real[0].removeprefix('random:')}" if real else ""
    if UNTRAINED in weights and untrained in weights:
        raise UsageError(f"none and {untrained} are the same here", fix="leave one of them out")
    return tuple(
        Contestant(name=name, weights=untrained if name == UNTRAINED else name) for name in weights
    )


def fitting_shots(
    shots: Iterable[int], counts: Iterable[int], *, own_tests: bool
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The shots that the smallest class allows, rising, and those that it does not.

    Args:
        shots: As asked for.
        counts: Images of each class that may train.
        own_tests: Whether there are test images besides them; else a fifth of each class is kept.
    """
    smallest = min(counts)
    most = smallest if own_tests else smallest - max(1, round(KEPT_FOR_TESTS * smallest))
    wanted = sorted({*shots})
    return tuple(s for s in wanted if s <= most), tuple(s for s in wanted if s > most)


def too_few(folder: Folder, counts: Counter[int]) -> DataError:
    """The error of a class that allows none of the shots."""
    label, smallest = min(counts.items(), key=lambda pair: (pair[1], pair[0]))
    return DataError(
        f"the class {folder.classes[label]} of {folder.root} has {smallest} usable images: too few "
        "for any of the --shots and a test",
        fix="ask for fewer, e.g. --shots 1 2 5, or add images to that class",
    )
