"""The accuracy of a model in one plain sentence, for the terminal and the report."""

from vitft.metrics.chance import chance_level
from vitft.metrics.results import RunResults
from vitft.system.text import count, interval, percent

BEST_RULE = (
    "the one with the highest accuracy or, where accuracies differ by no more than one standard "
    "error, the lowest loss"
)
"""How the best epoch is selected; the rule is that of `training.best.is_better`."""


def verdict(results: RunResults) -> str:
    """Return a sentence that states how many new images the model will probably misclassify.

    The sentence includes the 95% interval, which is wide if there are few validation images. For a
    model at chance level, the sentence states this instead. In a multi-label run, an image
    with a label that is missing or wrong counts as misclassified. The result is empty for
    results of older runs, which do not contain the interval.
    """
    if not results.get("top1_interval"):
        return ""
    if clause := chance_level(results):
        return f"This model {clause}."
    least, most = (1 - bound for bound in reversed(results["top1_interval"]))
    wrong = round(1 - results["top1"], 9)  # 7.5% is rounded up, also where it is 7.4999...%
    digits = 0 if wrong >= 0.01 else 1
    if wrong == 0 and "labels" not in results:
        return (
            f"All {count(results['images'], 'validation image')} were classified correctly, but up "
            f"to {percent(most, 0 if most >= 0.01 else 1)} of new images may be misclassified."
        )
    bounds = interval([least, most], digits)
    what = "get wrong labels" if "labels" in results else "be misclassified"
    return f"About {percent(wrong, digits)} of new images will {what} ({bounds})."


def selected_epoch(results: RunResults, freeze: str, planned: int = 0) -> str:
    """Return the epoch of the saved weights in words, e.g. `epoch 3 of 20`.

    As in the table of epochs, a head that was fitted before the first epoch is not counted.

    Args:
        results: Results of the run, which count such a head as the first epoch.
        freeze: Trained layers, e.g. `head,none`.
        planned: Number of epochs of each stage; 0 to leave out the total.
    """
    number, stages, after = results["best_epoch"], len(freeze.split(",")), ""
    if freeze.startswith("head,"):
        number, stages, after = number - 1, stages - 1, " after fitting the head"
    if not number:
        return "the fitted head"
    return f"epoch {number}{f' of {planned * stages}' if planned else ''}{after}"
