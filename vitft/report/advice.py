"""Next steps for the user, derived from the results of a run, with the evidence for each.

Each rule is a function that returns advice on a run, or None. Advice about results that may be
wrong comes before advice on how to improve them.
"""

import itertools
import statistics
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

from vitft.data.fixes import is_leak, paths_settled_by
from vitft.messages.results import (
    chance_reason,
    chance_remedy,
    compared_with_accuracy,
    copies_reason,
    growth_sentence,
    more_validation_images,
    weak_text,
)
from vitft.metrics.intervals import sample_size
from vitft.metrics.summary import own_cross_validation
from vitft.predict.validation import accuracy_without_copies, mistakes
from vitft.report.decisions import former_fixes
from vitft.report.reproduce import command_of, effective_settings
from vitft.report.run_files import Run, groups_of
from vitft.system.text import count, listing

_SMALL_CLASS = 20  # a smaller class that is less than a third of the median is small


class _Advice(NamedTuple):
    """What to do or expect next, as a sentence, and the reason, including any uncertainty."""

    what: str
    why: str
    section: str = ""  # id of the section of the page with the images concerned
    command: str = ""  # command that follows the advice; empty if there is none


def advise(run: Run) -> list[_Advice]:
    """Return the next steps for a run, most urgent first, or an empty list without results."""
    if not run.results.headline:
        return []
    rules: tuple[Callable[[Run], _Advice | None], ...] = (
        _no_better_than_guessing,
        _copies_across_split,
        _doubtful_labels,
        _few_validation_images,
    )
    if not run.results.at_chance:
        rules = (*rules[:-1], _confused_pair, _weakest_class, _more_images, rules[-1])
    return [advice for rule in rules if (advice := rule(run)) is not None]


def _no_better_than_guessing(run: Run) -> _Advice | None:
    found = run.results.at_chance
    if found is None:
        return None
    what = "Do not use this model yet."
    mirrored = bool(effective_settings(run.config).get("train.flip"))
    if not run.results.exact and (found.predicts or mirrored or found.too_few):
        keys = ("weights", "name"), ("optim", "solver")
        start = [str(run.setting(*key) or "") for key in keys]
        remedy = chance_remedy(*start, mirrored=mirrored, too_few=found.too_few)
        what = f"Do not use this model yet: {remedy}."
    return _Advice(what, chance_reason(run.results, found))


def _copies_across_split(run: Run) -> _Advice | None:
    groups = sum(map(is_leak, run.audit.get("duplicates", [])))
    if not groups:
        return None
    units = groups_of([one.sha256 for one in run.predictions], [run])
    without = accuracy_without_copies(run.predictions, run.audit, units)
    return _Advice(
        "Retrain without duplicates across training and validation.",
        copies_reason(groups, without, own_split=run.audit.get("own_split", False)),
        section="audit",
    )


def _doubtful_labels(run: Run) -> _Advice | None:
    """Advise reviewing suspected label errors, except those that the fixes of the run settle."""
    settled = paths_settled_by(former_fixes(run)[0])
    found = sum(item["path"] not in settled for item in run.audit.get("mislabels", []))
    if not found:
        return None
    says = "suggests that a label is wrong or missing" if run.several else "predicts another class"
    return _Advice(
        f"Review the {'label' if found == 1 else 'labels'} of {count(found, 'image')}.",
        f"A model that was not trained on {'it' if found == 1 else 'them'} {says} "
        "(see below). The given label may still be correct.",
        section="audit",
    )


def _confused_pair(run: Run) -> _Advice | None:
    """Report two classes whose confusion accounts for at least a quarter of all mistakes."""
    wrong = mistakes(run.predictions)
    pairs = Counter(tuple(sorted((v.label, v.predicted))) for v in wrong)
    if not wrong or len(run.classes) < 3 or run.several:
        return None
    (first, second), times = pairs.most_common(1)[0]
    if times < max(4, len(wrong) / 4):
        return None
    return _Advice(
        f"Compare images of {first} and {second}.",
        f"{times} of the {len(wrong)} mistakes confuse these two classes. Images that show how "
        "they differ, or clearer labelling rules, may help.",
    )


def _weakest_class(run: Run) -> _Advice | None:
    """Advise collecting images of a class with too few images, or else with a low recall."""
    if advice := _small_classes(run):
        return advice
    known = [one for one in run.results.weakest if run.sizes[one.name, "train"]]
    if not known or len(run.classes) < 2:
        return None
    worst, overall = known[0], run.results.estimate(known[0].kind)
    kind, how = "label" if run.several else "class", ""
    if overall and worst.measure == "recall":
        classes = sum(part == "train" for _, part in run.sizes)
        if worst.kind == "validation":
            classes = sum(row["images"] > 0 for row in run.measured["per_class"].values())
        how = f" {compared_with_accuracy(worst, overall.value, classes)}"
    return _Advice(
        f"If you collect more images, start with {worst.name}.",
        f"It is the weakest {kind}: {weak_text(worst)}.{how}",
    )


def _small_classes(run: Run) -> _Advice | None:
    """Advise collecting images of classes or labels that have far fewer images than the others."""
    sizes = {name: run.sizes[name, "train"] + run.sizes[name, "val"] for name in run.classes}
    usual = statistics.median(sizes.values())
    small = sorted((n, name) for name, n in sizes.items() if n < min(usual / 3, _SMALL_CLASS))
    if not small:
        return None
    named = listing((f"{name} ({n:,})" for n, name in small), most=3)
    fewest = small[0][1]
    validated = run.sizes[fewest, "val"]
    known = count(validated, "validation image")
    return _Advice(
        f"Collect images of {named} first.",
        f"{'This is' if len(small) == 1 else 'These are'} too few to learn from: half of the "
        f"{'labels' if run.several else 'classes'} have at least {usual:,.0f} images. The recall "
        f"of {fewest} is {f'measured on {known} only' if validated else 'unknown'}.",
    )


def _more_images(run: Run) -> _Advice | None:
    """Estimate the gain from twice as many images, or report that the curve has stopped rising."""
    more = own_cross_validation(run.measured)
    if not more or len(more["curve"]) < 3:
        return None
    if gain := growth_sentence(run.results.growth):
        return _Advice(gain, "The learning curve below may level off.")
    if any(b["top1"] > a["top1"] for a, b in itertools.pairwise(more["curve"][-3:])):
        return None
    kept = {name: run.config.get(name, {}) for name in ("data", "weights")}  # not those of a head
    return _Advice(
        "Do not expect much from more images of the same kind.",
        "The learning curve has stopped rising. Instead, try cleaner labels, a larger model, or "
        "training more layers.",
        command=command_of({**kept, "train": {"layers": "blocks:2"}}),
    )


def _few_validation_images(run: Run) -> _Advice | None:
    low, high = run.measured["top1_interval"]
    if run.measured.get("groups"):  # a number of groups would be needed
        return None
    best = own_cross_validation(run.measured) or run.measured  # few images may all be right
    images, needed = run.measured["images"], sample_size(0.04, best["top1"])
    if high - low <= 0.08 or needed <= images:
        return None
    return _Advice(
        more_validation_images(needed),
        f"With {count(images, 'image')}, the interval spans {100 * (high - low):.0f} points: "
        "smaller differences between models may be due to chance.",
    )
