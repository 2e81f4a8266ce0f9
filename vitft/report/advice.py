"""Next steps for the user, derived from the results of a run, with the evidence for each.

Each rule is a function that returns advice on a run, or None. Advice about results that may be
wrong comes before advice on how to improve them.
"""

import itertools
import statistics
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from vitft.data.fixes import paths_settled_by
from vitft.data.proposals import is_leak
from vitft.metrics.chance import (
    balanced_evidence,
    chance_level,
    chance_remedy,
    constant_class,
)
from vitft.metrics.confusions import most_frequent
from vitft.metrics.estimate import growth_text, model_cross_validation
from vitft.metrics.intervals import binomial_tail, sample_size, wilson_interval
from vitft.metrics.values import Interval
from vitft.metrics.verdict import weakest_label
from vitft.predict.validation import accuracy_without_copies, mistakes
from vitft.report.reproduce import command_of, effective_settings
from vitft.report.run_decisions import former_fixes
from vitft.report.run_files import Run, groups_of
from vitft.system.text import count, interval, listing, percent

SMALL_CLASS = 20
"""Number of images below which a class that is also less than a third of the median is small."""


@dataclass(frozen=True, slots=True)
class Advice:
    """What to do or expect next, as a sentence, and the reason, including any uncertainty."""

    what: str
    why: str
    section: str = ""
    """Id of the section of the page with the images concerned; empty if there is none."""
    command: str = ""
    """Command that follows the advice; empty if there is none."""


def advise(run: Run) -> list[Advice]:
    """Return the next steps for a run, most urgent first, or an empty list without results."""
    if not run.results:
        return []
    rules: tuple[Callable[[Run], Advice | None], ...] = (
        no_better_than_guessing,
        copies_across_split,
        doubtful_labels,
        few_validation_images,
    )
    if not chance_level(run.results):
        rules = (*rules[:-1], confused_pair, weakest_class, more_images, rules[-1])
    return [advice for rule in rules if (advice := rule(run)) is not None]


def no_better_than_guessing(run: Run) -> Advice | None:
    """Warn if the model may be no better than guessing."""
    clause = chance_level(run.results)
    if not clause:
        return None
    if "labels" in run.results:
        found = run.results["labels"]
        return Advice(
            "Do not use this model yet.",
            f"The 95% interval of its mean average precision ({interval(found['map_interval'])}) "
            f"is not entirely above {percent(found['chance_map'])}, the value for random scores.",
        )
    what, why = "Do not use this model yet.", ""
    mirrored = bool(effective_settings(run.config).get("train.flip"))
    constant = constant_class(run.results) is not None
    if constant or mirrored:
        weights, solver = run.setting("weights", "name"), run.setting("optim", "solver")
        remedy = chance_remedy(str(weights or ""), str(solver or ""), mirrored=mirrored)
        what = f"Do not use this model yet: {remedy}."
        why = f"It {clause}. " if constant else ""
    best = balanced_evidence(run.results)
    bounds, guessing = (interval(best.interval), best.guessing) if best else ("", 0.0)
    return Advice(
        what,
        f"{why}The 95% interval of its balanced accuracy{best.where if best else ''} ({bounds}) is "
        f"not clearly above {percent(guessing)}, that of guessing.",
    )


def copies_across_split(run: Run) -> Advice | None:
    """Warn if validation images duplicate training images, which inflates the accuracy."""
    groups = sum(map(is_leak, run.audit.get("duplicates", [])))
    if not groups:
        return None
    remedy = (
        "the option --group-duplicates keeps each group on one side of the split."
        if not run.audit.get("own_split", False)
        else "the split is that of your data: drop the copies on one side, or correct the split."
    )
    units = groups_of([one.sha256 for one in run.predictions], [run])
    known = accuracy_without_copies(run.predictions, run.audit, units)
    known = f" It is {known}." if known else ""
    return Advice(
        "Retrain without duplicates across training and validation.",
        f"{count(groups, 'group')} of identical or nearly identical images "
        f"{'contains' if groups == 1 else 'contain'} both training and validation images, so the "
        f"accuracy may be too high.{known} vitft check lists them, and {remedy}",
        section="audit",
    )


def doubtful_labels(run: Run) -> Advice | None:
    """Advise reviewing suspected label errors, except those that the fixes of the run settle."""
    settled = paths_settled_by(former_fixes(run)[0])
    found = sum(item["path"] not in settled for item in run.audit.get("mislabels", []))
    if not found:
        return None
    says = "suggests that a label is wrong or missing" if run.several else "predicts another class"
    return Advice(
        f"Review the {'label' if found == 1 else 'labels'} of {count(found, 'image')}.",
        f"A model that was not trained on {'it' if found == 1 else 'them'} {says} "
        "(see below). The given label may still be correct.",
        section="audit",
    )


def confused_pair(run: Run) -> Advice | None:
    """Report two classes whose confusion accounts for at least a quarter of all mistakes."""
    wrong = mistakes(run.predictions)
    pairs = Counter(tuple(sorted((v.label, v.predicted))) for v in wrong)
    if len(wrong) < 4 or len(run.classes) < 3 or run.several:
        return None
    (first, second), times = pairs.most_common(1)[0]
    if times < 4 or times < len(wrong) / 4:
        return None
    return Advice(
        f"Compare images of {first} and {second}.",
        f"{times} of the {len(wrong)} mistakes confuse these two classes. Images that show how "
        "they differ, or clearer labelling rules, may help.",
    )


def weakest_class(run: Run) -> Advice | None:
    """Advise collecting images of the weakest class.

    Classes with too few images come before those with a low recall.
    """
    if advice := small_classes(run):
        return advice
    if run.several:
        return weakest_label_advice(run)
    recalls, train = cross_validated_recalls(run) or validation_recalls(run), training_images(run)
    known = [one for one in recalls if one.recall < 1 and train[one.name]]
    if not known or len(run.classes) < 2:
        return None
    worst = min(known, key=lambda one: one.recall)
    found = f"Its recall is {percent(worst.recall, 0)} on {worst.measured_on}, "
    found += compared_with_accuracy(worst, measured_classes(run))
    return Advice(f"If you collect more images, start with {worst.name}.", found)


def measured_classes(run: Run) -> int:
    """Return the number of classes whose recalls `weakest_class` compares."""
    if cross_validated_recalls(run):
        return sum(number > 0 for number in training_images(run).values())
    return len(validation_recalls(run))


def training_images(run: Run) -> Counter[str]:
    """Return the number of training images of each class or label."""
    own = (run.split.names(row) for row in run.rows if row.split == "train")
    return Counter(name for names in own for name in names)


def small_classes(run: Run) -> Advice | None:
    """Advise collecting images of classes or labels that have far fewer images than the others."""
    sizes = Counter(dict.fromkeys(run.classes, 0))
    own = (row for row in run.rows if row.split != "test")
    sizes.update(name for row in own for name in run.split.names(row))
    usual = statistics.median(sizes.values())
    small = sorted((n, name) for name, n in sizes.items() if n < min(usual / 3, SMALL_CLASS))
    if not small:
        return None
    validated = Counter(
        name for row in run.rows if row.split == "val" for name in run.split.names(row)
    )
    named = listing((f"{name} ({n:,})" for n, name in small), most=3)
    fewest = small[0][1]
    known = count(validated[fewest], "validation image")
    return Advice(
        f"Collect images of {named} first.",
        f"{'This is' if len(small) == 1 else 'These are'} too few to learn from: half of the "
        f"{'labels' if run.several else 'classes'} have at least {usual:,.0f} images. The recall "
        f"of {fewest} is {f'measured on {known} only' if validated[fewest] else 'unknown'}.",
    )


@dataclass(frozen=True, slots=True)
class ClassRecall:
    """A class's recall and interval, and the images on which they were measured."""

    name: str
    recall: float
    images: int
    measured_on: str
    """Number and kind of the images, such as `12 validation images`."""
    interval: Interval
    accuracy: float
    """Accuracy over all classes, measured on the same images."""
    taken_for: str = ""
    """Most frequent wrong prediction; empty if unknown."""


def compared_with_accuracy(worst: ClassRecall, classes: int) -> str:
    """Return whether the lowest of the recalls of all classes is more than bad luck.

    With many classes, one of them has a low recall by chance. The exact probability of a recall as
    low as this at the overall accuracy is therefore multiplied by the number of classes
    (Bonferroni's correction).
    """
    bounds = interval(worst.interval, 0)
    if worst.interval[1] >= worst.accuracy:
        return f"but its 95% interval ({bounds}) is so wide that this may be due to chance."
    wrong = worst.images - round(worst.recall * worst.images)
    if classes * binomial_tail(wrong, worst.images, 1 - worst.accuracy) < 0.05:
        return "clearly below the overall accuracy."
    return (
        f"with a 95% interval of {bounds}. The lowest of {classes} recalls can be as low as this "
        "by chance."
    )


def weakest_label_advice(run: Run) -> Advice | None:
    """Advise collecting images with the label that has the lowest average precision."""
    worst = weakest_label(run.results["labels"]) if "labels" in run.results else None
    if worst is None or len(run.classes) < 2:
        return None
    within = f" (95% interval: {interval(worst.interval)})" if worst.interval else ""
    return Advice(
        f"If you collect more images, start with images that have the label {worst.name}.",
        f"Its average precision is {percent(worst.value)}{within} on "
        f"{count(run.results['images'], 'validation image')}, the lowest of all labels.",
    )


def cross_validated_recalls(run: Run) -> list[ClassRecall]:
    """Return the recalls of the weakest classes in cross-validation, lowest first.

    The result is empty for a multi-label model, which cross-validation scores without its
    thresholds.
    """
    more = model_cross_validation(run.results)
    if not more or run.several:
        return []
    recalls, top1 = [], more["top1"]
    for weak in more.get("weak_spots") or []:
        if images := weak.get("images"):
            name, recall = str(weak["class"]), weak["recall"]
            bounds = weak.get("recall_interval") or wilson_interval(round(recall * images), images)
            on = f"{count(images, 'image')} in cross-validation"
            taken_for = str(weak["taken_for"] or "")
            recalls.append(ClassRecall(name, recall, images, on, bounds, top1, taken_for))
    return recalls


def validation_recalls(run: Run) -> list[ClassRecall]:
    """Return the recall of each class that has validation images, lowest first."""
    recalls = []
    confused: dict[str, Counter[str]] = {}
    for one in () if run.several else mistakes(run.predictions):
        confused.setdefault(one.label, Counter())[one.predicted] += 1
    for name, row in run.results.get("per_class", {}).items():
        images, recall, bounds = row.get("images"), row["recall"], row["recall_interval"]
        if images and recall is not None and bounds is not None:
            top1 = run.results["top1"]
            on = count(images, "validation image")
            taken_for = most_frequent(confused.get(name, {})) or ""
            recalls.append(ClassRecall(name, recall, images, on, bounds, top1, taken_for))
    return sorted(recalls, key=lambda one: one.recall)


def more_images(run: Run) -> Advice | None:
    """Estimate the gain from twice as many images, or report that the curve has stopped rising."""
    more = model_cross_validation(run.results)
    curve = (more.get("curve") or []) if more else []
    if not more or len(curve) < 3:
        return None
    if gain := growth_text(more):
        return Advice(
            f"With twice as many images, the accuracy would be {gain}.",
            "The learning curve below may level off.",
        )
    if any(b["top1"] > a["top1"] for a, b in itertools.pairwise(curve[-3:])):
        return None
    return Advice(
        "Do not expect much from more images of the same kind.",
        "The learning curve has stopped rising. Instead, try cleaner labels, a larger model, or "
        "training more layers.",
        command=command_of(  # the other settings are for a head alone
            {
                **{name: run.config.get(name, {}) for name in ("data", "weights")},
                "train": {"layers": "blocks:2"},
            }
        ),
    )


def few_validation_images(run: Run) -> Advice | None:
    """Advise using more validation images if the accuracy is too uncertain to compare models."""
    low, high = run.results["top1_interval"]
    if run.results.get("groups"):  # a number of groups would be needed
        return None
    best = model_cross_validation(run.results) or run.results  # few images may all be right
    images, needed = run.results.get("images", 0), sample_size(0.04, best["top1"])
    if high - low <= 0.08 or needed <= images:
        return None
    return Advice(
        f"To measure the accuracy to within ±4 points, use about {needed:,} validation images.",
        f"With {count(images, 'image')}, the interval spans {100 * (high - low):.0f} points: "
        "smaller differences between models may be due to chance.",
    )
