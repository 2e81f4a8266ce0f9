"""Plan of a study, validated before anything is computed.

This module does not import torch.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from vitft.config.run import Config
from vitft.data.copies import prepare_data
from vitft.data.image_table import Images
from vitft.data.scan import assign_parts, scan
from vitft.models.pretrained.catalog import RANDOM, check_weights_name, weights_name
from vitft.system.errors import DataError, UsageError
from vitft.system.files import free_name
from vitft.system.rundir import FILE_NAME, check_outside, plan_run
from vitft.system.text import count, distinct_names

BASELINES = ("pixels", "histogram")
"""Names of features that need no weights: small images and colour histograms."""
_UNTRAINED = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Validated inputs of a study."""

    folder: Images
    sources: Mapping[str, str]
    """Weights as passed to `finetune`, or name of the baseline, by the name in tables and on the
    chart: short for weights in a file."""
    shots: tuple[int, ...]
    """Numbers of training images per class, in ascending order."""
    left_out: tuple[int, ...]
    """Numbers of shots left out because the smallest class has too few images."""
    most: int  # the largest number of shots that the smallest class allows
    seeds: int
    out: Path


def check_study(
    config: Config, weights: Sequence[str], shots: Sequence[int], *, seeds: int, out: str | None
) -> Plan:
    """Check the arguments of a study, including its data and output folder, and return its plan."""
    spec, data = config.data, config.data.path
    if not 1 <= seeds <= 100:
        raise UsageError(
            f"invalid --seeds {seeds}", fix="use an integer from 1 to 100, e.g. --seeds 3"
        )
    if not shots or min(shots) < 1:
        raise UsageError(
            f"invalid --shots {' '.join(map(str, shots))}",
            fix="use one or more positive integers, e.g. --shots 5 10 25",
        )
    sources = _resolve_sources(weights)
    for name, source in sources.items():
        if name not in BASELINES:
            check_weights_name(source, allow_pickle=config.weights.allow_pickle, allow_random=True)
    folder = assign_parts(scan(prepare_data(data, spec), spec), "test")
    folder.outputs.require_one_class("vitft study")
    if folder.layout == "classes" and any(file.group for file in folder.rows):
        raise UsageError(
            f"a study samples individual images, but {data} defines groups of images",
            fix="add a split column that assigns each group to either train or test",
        )
    counts = Counter(file.label for file in folder.rows if file.split != "val")
    fitting, left_out, most = fit_shots(folder, counts, shots)
    name = FILE_NAME.sub("", folder.name)  # the name of a table without its suffix
    place = plan_run(out or str(free_name(Path(f"study-{name}"))), data)
    check_outside(place, folder.table or folder.root)
    return Plan(
        folder=folder,
        sources=sources,
        shots=fitting,
        left_out=left_out,
        most=most,
        seeds=seeds,
        out=place,
    )


def _resolve_sources(weights: Sequence[str]) -> dict[str, str]:
    """Return the weights or the baseline of each feature source by its name."""
    twice = [name for name, number in Counter(weights).items() if number > 1]
    if twice or not weights:
        raise UsageError(
            f"{twice[0]} is given twice in --weights" if twice else "--weights is empty",
            fix="pass each name once, e.g. --weights demo none pixels",
        )
    real = [name for name in weights if name not in (*BASELINES, _UNTRAINED)]
    if _UNTRAINED in weights and not real:
        raise UsageError(
            "--weights none uses the architecture of the first of the other weights, but there are "
            "none",
            fix="add other weights, e.g. --weights demo none, or use random:NAME",
        )
    untrained = f"random:{real[0].removeprefix('random:')}" if real else ""
    if _UNTRAINED in weights and untrained in weights:
        raise UsageError(f"--weights none and {untrained} are the same", fix="use only one of them")
    short = []  # without the folders of a file
    for name in weights:
        start = RANDOM if name.startswith(RANDOM) else ""
        plain = f"{start}{weights_name(name.removeprefix(start))}"
        short.append("none (random weights)" if name == _UNTRAINED else plain)
    names = distinct_names(short, weights)
    sources = (untrained if typed == _UNTRAINED else typed for typed in weights)
    return dict(zip(names, sources, strict=True))


def fit_shots(
    folder: Images, counts: Mapping[int, int], shots: Iterable[int]
) -> tuple[tuple[int, ...], tuple[int, ...], int]:
    """Return the possible numbers of shots (ascending), the impossible ones, and the maximum.

    `counts` are the numbers of images available for training in each class. Without separate test
    images, at least a fifth of the smallest class is reserved for testing.
    """
    label, smallest = min(counts.items(), key=lambda pair: (pair[1], pair[0]))
    has_tests = folder.layout == "split"
    most = smallest if has_tests else 4 * smallest // 5
    wanted = sorted({*shots})
    if wanted[0] > most:
        raise DataError(
            f"class {folder.classes[label]} in {folder.source} has only "
            f"{count(smallest, 'usable image')}, too few to train and test with any of the given "
            "--shots",
            fix=f"use --shots {most} or smaller numbers, or add images to this class"
            if most
            else "add images to this class",
        )
    return tuple(s for s in wanted if s <= most), tuple(s for s in wanted if s > most), most
