"""Warnings about images that an evaluation leaves out, and about what biases its results."""

import logging
from collections.abc import Sequence

from vitft.data.labelled import LabelledImages
from vitft.metrics.results import EvaluationResults
from vitft.predict.engine import DARK_NOTE, FIRST_PAGE_NOTE
from vitft.predict.labelled_prediction import LabelledPrediction
from vitft.system.text import count

log = logging.getLogger(__name__)

_MOST_NAMED = 10  # maximum number of unreadable files listed in the log


def warn_of_other_labels(relabelled: int) -> None:
    """Warn if training images have another label in the data than the model was trained with."""
    if relabelled:
        log.warning(
            f"{count(relabelled, 'training image')} {'has' if relabelled == 1 else 'have'} another "
            "label here than in training; to use the labels here, train again"
        )


def warn_of_own_answers(data: LabelledImages, predictions: Sequence[LabelledPrediction]) -> None:
    """Warn if the labels are the model's own predictions, as in a table of `vitft predict`.

    If most images are left out, e.g. because a later model was trained on them, the others are too
    few to decide.
    """
    answered = [row.is_correct for row in predictions if row.prediction.classes]
    if data.predicted and all(answered) and 2 * len(answered) > len(data.images):
        log.warning(
            f"every label in {data.source} equals the prediction of this model, and the table has "
            f"the columns of vitft predict: unless someone has corrected the column "
            f"{'labels' if data.labels else 'class'}, these results say nothing about its accuracy"
        )


def log_first_pages(predictions: Sequence[LabelledPrediction]) -> None:
    """Log the numbers of images of which only the first page or the upper bits were used."""
    if pages := sum(FIRST_PAGE_NOTE in row.prediction.notes for row in predictions):
        log.info(f"used only the {FIRST_PAGE_NOTE} in {count(pages, 'image')}")
    if dark := sum(DARK_NOTE in row.prediction.notes for row in predictions):
        verb = "is" if dark == 1 else "are"
        log.warning(f"{count(dark, 'image')} {verb} {DARK_NOTE}. Scale such images to 8 bits first")


def warn_of_bias(results: EvaluationResults) -> None:
    """Log warnings about images that are left out and about anything that biases the results."""
    data, images = results["data"], results["images"]
    unreadable = data["unreadable"]
    for row in unreadable[:_MOST_NAMED]:
        log.warning(f"skipped {row['path']}: {row['reason']}")
    if len(unreadable) > _MOST_NAMED:
        more = count(len(unreadable) - _MOST_NAMED, "more unreadable file")
        log.warning(f"skipped {more}")
    if data["trained"] is None:
        log.warning(
            "the model may have been trained on some of these images; this cannot be checked "
            "because there is no split.csv next to the model"
        )
    reasons = (
        (data["trained"], "used to train the model"),
        (data["trained_copies"], "nearly identical to training images"),
        (
            data["trained_paths"],
            "same paths as training images, and the contents could not be compared",
        ),
        (data["trained_groups"], "in the same groups as training images"),
    )
    total = images + sum(number or 0 for number, _ in reasons) + len(unreadable)
    for number, reason in reasons:
        if number:
            log.warning(f"skipped {number:,} of {count(total, 'image')}: {reason}")
    if data["validated"]:
        log.warning(
            f"the results may be slightly optimistic: {data['validated']:,} of "
            f"{count(images, 'image')} are validation images of the run, on which its "
            "probabilities were calibrated and, if it was trained in epochs, the epoch was selected"
        )
    if data["copies"]:
        log.warning(
            f"found {count(data['copies'], 'duplicate')} among the images, so the confidence "
            "intervals are too narrow"
        )
