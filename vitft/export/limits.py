"""Section "Intended use and limits" of a model card, written from the results of the run."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from vitft.config.run import checked_run_config
from vitft.data.fixes import settled_paths
from vitft.data.proposals import is_leak
from vitft.features.reference import REFERENCE_FILE
from vitft.metrics.chance import chance_level
from vitft.metrics.confusions import class_pair_counts
from vitft.metrics.results import AuditResults, RunResults
from vitft.system.run_content import read_run_json
from vitft.system.text import (
    MIN_CALIBRATION_IMAGES,
    TOO_FEW_TO_CALIBRATE,
    count,
    interval,
    is_measurable,
    percent,
)

FEW_PER_CLASS = 10
"""Number of validation images below which the recall of a class is unreliable."""
MOST_MENTIONED = 3
"""Maximum number of weak classes and of confusions in the text."""


class ClassPair(NamedTuple):
    """A true class, the class predicted instead, and the number of images confused in this way."""

    true: int
    predicted: int
    images: int
    of: int
    """Number of validation images of the true class."""


def most_confused(results: RunResults) -> list[ClassPair]:
    """Return the most frequent confusions, of at least two images each, in descending order."""
    counts, totals = class_pair_counts(results), Counter[int]()
    for (true, _), number in counts.items():
        totals[true] += number
    pairs = [
        ClassPair(i, j, number, totals[i])
        for (i, j), number in counts.items()
        if i != j and number > 1
    ]
    return sorted(pairs, key=lambda pair: -pair.images)[:MOST_MENTIONED]


def limits_of(
    run: Path, names: Sequence[str], results: RunResults | None, *, by_class: bool = True
) -> list[str]:
    """Return Markdown sentences about the intended use of the model and its limits.

    Args:
        run: Run directory.
        names: Class names, escaped for Markdown, in the order of the model's outputs.
        results: Results of the run, if there are any.
        by_class: Whether the results by class, the confusions and the calibration are those of the
            exported head; otherwise they are left out.

    Raises:
        RunError: A file of the run is damaged.
    """
    found = [
        f"The model assigns an image to one of {count(len(names), 'class', 'classes')}. It always "
        "names one of them, even for an image that shows none or several of them."
    ]
    if results and "labels" in results:
        found = [f"The model assigns any of {count(len(names), 'label')}, or none, to an image."]
    if (run / REFERENCE_FILE).is_file():
        found.append(
            "Given the run directory, `vitft predict` flags images that are unlike the training "
            "images, although not reliably. Of the exports, only the web page (--html) does so."
        )
    if not results:
        return [*found, "The accuracy of the model was not measured."]
    audit = read_run_json(run / "audit.json", AuditResults)
    origin = "come from the same data as the training images"
    if audit and audit.get("own_split"):
        origin = "are those that the data names"
    found.append(
        f"The validation images {origin}. The accuracy on images from other sources was not "
        "measured."
    )
    if chance_level(results):
        return [*found, "The model is at chance level, so it should not be used."]
    if by_class:
        found += [*weak_classes(names, results), *confusions(names, results), *calibration(results)]
    return [*found, *(data_problems(run, audit) if audit else [])]


def weak_classes(names: Sequence[str], results: RunResults) -> list[str]:
    """Return sentences about the classes with the lowest recall, and those with few images."""
    rows = [
        (row["recall"], name, row["recall_interval"], row["images"])
        for name, row in zip(names, results["per_class"].values(), strict=True)
        if row["images"] and row["recall"] is not None
    ]
    every = sorted(row for row in rows if row[0] < 1)
    weak = every[:MOST_MENTIONED]
    texts = [
        f"{name} {percent(recall)} on {count(images, 'image')} (95% interval {interval(bounds)})"
        for recall, name, bounds, images in weak
    ]
    one, several = ("label", "labels") if "labels" in results else ("class", "classes")
    if tied := sum(row[0] == weak[-1][0] for row in every[MOST_MENTIONED:]):
        more = count(tied, f"more {one}", f"more {several}")
        texts.append(f"and {more} with the same recall as {weak[-1][1]}")
    found = []
    if texts:
        found = [f"The lowest recalls on the validation images are: {'; '.join(texts)}."]
    few = sum(row["images"] < FEW_PER_CLASS for row in results["per_class"].values())
    if few:
        found.append(
            f"{count(few, f'{one} has', f'{several} have')} fewer than {FEW_PER_CLASS} validation "
            "images, too few to estimate the recall reliably."
        )
    return found


def confusions(names: Sequence[str], results: RunResults) -> list[str]:
    """Return a sentence about the most frequent confusions, if there are any."""
    texts = [
        f"{names[pair.true]} predicted as {names[pair.predicted]} ({pair.images} of {pair.of})"
        for pair in most_confused(results)
    ]
    if not texts:
        return []
    return [f"The most frequent confusions on the validation images are: {'; '.join(texts)}."]


def calibration(results: RunResults) -> list[str]:
    """Return a sentence about the probabilities, if their calibration was measured."""
    found = results["calibration"]
    if found is None:
        return []
    if results["images"] < MIN_CALIBRATION_IMAGES:
        return [f"There were {TOO_FEW_TO_CALIBRATE}."]
    if not is_measurable(found["ece"]):
        return [
            "No difference between the probabilities and the accuracy could be measured (expected "
            f"calibration error below {percent(found['ece_interval'][1])})."
        ]
    return [
        "The probabilities differ from the accuracy by "
        f"{percent(found['ece'])} on average (expected calibration error, 95% interval "
        f"{interval(found['ece_interval'])})."
    ]


def data_problems(run: Path, audit: AuditResults) -> list[str]:
    """Return sentences about problems that the audit of the run found in its data.

    Labels that the fixes of the run keep are not mentioned.

    Raises:
        RunError: The file config.toml is damaged.
    """
    found = []
    groups = sum(map(is_leak, audit["duplicates"]))
    if groups:
        found.append(
            f"{count(groups, 'group')} of identical or nearly identical images "
            f"{'contains' if groups == 1 else 'contain'} both training and validation images, so "
            "the accuracy may be too high."
        )
    kept = settled_paths(checked_run_config(run).data) if (run / "config.toml").is_file() else ()
    labels = sum(item["path"] not in kept for item in audit["mislabels"])
    if labels:
        found.append(
            f"{count(labels, 'label')} in the data {'is' if labels == 1 else 'are'} probably "
            "wrong, according to a model that was not trained on the images in question."
        )
    return found
