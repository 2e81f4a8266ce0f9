"""The accuracy of a model in one plain sentence, for the terminal and the report."""

from vitft.metrics.chance import chance_level
from vitft.metrics.results import RunResults
from vitft.system.text import count, interval, percent

RARE = 0.25
"""Fractions up to this value are shown as `1 in N`, larger ones as percentages."""


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
    wrong = 1 - results["top1"]
    if wrong == 0 and "labels" not in results:
        return (
            f"All {count(results['images'], 'validation image')} were classified correctly, but up "
            f"to {one_in(most)} new images may be misclassified."
        )
    if most <= RARE and least > 0 and "labels" not in results:
        return (
            f"About {one_in(wrong)} new images will be misclassified (between {one_in(least)} and "
            f"{one_in(most)})."
        )
    bounds = interval([least, most], 0)
    if "labels" in results:
        return f"About {percent(wrong, 0)} of new images will get wrong labels ({bounds})."
    return f"About {percent(wrong, 0)} of new images will be misclassified ({bounds})."


def one_in(fraction: float) -> str:
    """Return a fraction such as 0.06 as `1 in 17`."""
    return f"1 in {round(1 / fraction):,}"
