"""What to do next, derived from what a run measured; every sentence says how sure it is.

Each rule is a function of the run that gives a sentence or nothing. The order is that of the page:
what may make the figures wrong comes before what could make them better.
"""

import itertools
import math
from collections import Counter
from dataclasses import dataclass

from vitft.metrics.intervals import wilson
from vitft.metrics.significance import sample_size
from vitft.predict.validation import mistakes
from vitft.report.run_files import Run
from vitft.system.text import count, interval, percent, points

WIDE = 0.08
"""An accuracy interval wider than this, from end to end, hides most improvements."""
STANDS_OUT = 1.3
"""How many times more an image of the worst class must be worth to be advised."""


@dataclass(frozen=True, slots=True)
class Advice:
    """One next step."""

    what: str
    """To do, in one sentence."""
    why: str
    """What it rests on, and how far to trust it."""


def advise(run: Run) -> list[Advice]:
    """The next steps for a run, the most urgent first."""
    if not run.figures:
        return []
    rules = (useless, leaked, mislabelled, confused_pair, weakest_class, more_images, few_images)
    return [advice for rule in rules if (advice := rule(run)) is not None]


def useless(run: Run) -> Advice | None:
    """The model may know nothing."""
    low, majority = run.figures["top1_interval"][0], run.figures.get("majority")
    if majority is None or low > majority:
        return None
    return Advice(
        "Do not use this model yet.",
        f"Always naming the largest class would be right for {percent(majority)}; the interval "
        f"of the accuracy ({interval(run.figures['top1_interval'])}) does not lie above that.",
    )


def leaked(run: Run) -> Advice | None:
    """Copies on both sides of the split make the figure too good."""
    groups = [g for g in run.audit.get("duplicates", []) if g.get("across_split")]
    if not groups:
        return None
    return Advice(
        "Measure again without copies between training and validation.",
        f"{count(len(groups), 'group')} of equal or nearly equal images "
        f"{'lies' if len(groups) == 1 else 'lie'} on both sides, so the accuracy is somewhat too "
        "good. vitft check lists them.",
    )


def mislabelled(run: Run) -> Advice | None:
    """Wrong labels are cheaper to mend than images are to find."""
    found = len(run.audit.get("mislabels", []))
    if not found:
        return None
    return Advice(
        f"Look at the {count(found, 'image')} whose label is in doubt.",
        f"Shown below. A model that did not learn from {'it' if found == 1 else 'them'} expects "
        "another class. Labels in doubt may be right: this is a list to look at, not a verdict.",
    )


def confused_pair(run: Run) -> Advice | None:
    """Two classes that make up much of all mistakes."""
    wrong = mistakes(run.verdicts)
    pairs = Counter(tuple(sorted((v.label, v.predicted))) for v in wrong)
    if len(wrong) < 4 or len(run.classes) < 3:
        return None
    (one, other), times = pairs.most_common(1)[0]
    if times < 4 or times < len(wrong) / 4:
        return None
    return Advice(
        f"Look at {one} and {other} side by side.",
        f"{times} of the {len(wrong)} mistakes confuse these two. Images that show what tells "
        "them apart, or a clearer rule for labelling them, would help most.",
    )


def weakest_class(run: Run) -> Advice | None:
    """Which class to collect for, and what its images are worth against any others."""
    spots = cross_validated_spots(run) or held_back_spots(run)
    train = Counter(run.classes[row.label] for row in run.rows if row.split == "train")
    known = [spot for spot in spots if spot.recall < 1 and train[spot.name]]
    if not known or len(run.classes) < 2:
        return None
    worst = min(known, key=lambda spot: spot.recall)
    found = f"{percent(worst.recall, 0)} of {count(worst.images, worst.kind)} of {worst.name} found"
    trust = (
        "clearly under the accuracy of the whole."
        if worst.bounds[1] < spots[0].whole
        else f"but that may be {interval(worst.bounds, 0)}, so the order of the classes is a hint, "
        "not a finding."
    )
    exponent = falling(run)
    if exponent is None:
        return Advice(f"If you collect images, begin with {worst.name}.", f"{found}, {trust}")
    more = max(10, round(train[worst.name] / 4))
    spread = spread_equal(run, worst, train[worst.name], more, exponent)
    if spread < STANDS_OUT * more:
        return Advice(f"If you collect images, begin with {worst.name}.", f"{found}, {trust}")
    return Advice(
        f"{more} more images of {worst.name} are worth about as much as {spread:,.0f} more spread "
        "over all classes.",
        f"{found}, {trust} Extrapolated: the learning curve of the whole is taken to hold for "
        "each class.",
    )


@dataclass(frozen=True, slots=True)
class Spot:
    """How often a class is found, and among which images."""

    name: str
    recall: float
    images: int
    kind: str
    """What the images are called."""
    bounds: tuple[float, float]
    """95 % interval of the recall."""
    whole: float
    """Accuracy over all classes of the same images."""


def cross_validated_spots(run: Run) -> list[Spot]:
    """The classes found least often when every image is judged by a head that did not see it."""
    more = run.figures.get("cross_validation") or {}
    return [
        Spot(
            name=str(spot["class"]),
            recall=spot["recall"],
            images=spot["images"],
            kind="cross-validated image",
            bounds=wilson(round(spot["recall"] * spot["images"]), spot["images"]),
            whole=more["top1"],
        )
        for spot in more.get("weak_spots") or []
        if spot.get("images")
    ]


def held_back_spots(run: Run) -> list[Spot]:
    """The classes among the held-back images, the least found first."""
    spots = [
        Spot(
            name=name,
            recall=table["recall"],
            images=table["images"],
            kind="held-back image",
            bounds=tuple(table["recall_interval"]),
            whole=run.figures["top1"],
        )
        for name, table in run.figures.get("per_class", {}).items()
        if table.get("images")
    ]
    return sorted(spots, key=lambda spot: spot.recall)


def falling(run: Run) -> float | None:
    """How fast the error falls: b in error = a * images^-b, as `probe.gain_from_twice` fits it."""
    more = run.figures.get("cross_validation") or {}
    gain, curve = more.get("gain_from_twice"), more.get("curve") or []
    if not gain or not curve or curve[-1]["top1"] >= 1:
        return None
    left = 1 - gain / (1 - curve[-1]["top1"])  # what twice the images leave of the error
    return -math.log2(left) if 0 < left < 1 else None


def spread_equal(run: Run, worst: Spot, train: int, more: int, exponent: float) -> float:
    """How many images over all classes take off as much error as `more` of one class.

    The class's recall is moved towards one half by two right and two wrong images, so that one
    lucky or unlucky image among few does not decide (Agresti & Coull 1998).
    """
    share = sum(run.classes[row.label] == worst.name for row in run.rows) / len(run.rows)
    missed = (1 - worst.recall) * worst.images
    error = (missed + 2) / (worst.images + 4) * share  # of all images: of this class and missed
    gain = error * (1 - (1 + more / train) ** -exponent)
    everything = sum(row.split == "train" for row in run.rows)
    left = 1 - gain / (1 - worst.whole)
    return float(everything * (left ** (-1 / exponent) - 1)) if left > 0 else math.inf


def more_images(run: Run) -> Advice | None:
    """What more of the same would bring."""
    more = run.figures.get("cross_validation") or {}
    gain, curve = more.get("gain_from_twice"), more.get("curve") or []
    if len(curve) < 3:
        return None
    if gain is not None:
        return Advice(
            f"Twice the images would bring about {points(gain)}.",
            "Extrapolated from the learning curve below; a curve can level off.",
        )
    rises = any(b["top1"] > a["top1"] for a, b in itertools.pairwise(curve[-3:]))
    if rises:
        return None
    return Advice(
        "Do not expect much of more images of the same kind.",
        "The learning curve has stopped rising. Cleaner labels, larger weights or training more "
        "of the network (--freeze blocks:2) are the next things to try.",
    )


def few_images(run: Run) -> Advice | None:
    """The interval is too wide to compare anything."""
    low, high = run.figures["top1_interval"]
    images = run.figures.get("images", 0)
    half = WIDE / 2
    wanted = sample_size(half, run.figures["top1"])
    if high - low <= WIDE or wanted <= images:
        return None
    return Advice(
        f"To know the accuracy to ±{100 * half:.0f} points, measure on about {wanted:,} images.",
        f"Now there are {images:,}, and the interval spans {100 * (high - low):.0f} points: "
        "smaller differences between models cannot be told from chance.",
    )
