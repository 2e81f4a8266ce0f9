"""Source code that turns model outputs into classes or labels, for the programs of `snippets`."""

from collections.abc import Sequence

TORCH_ANSWER = """\
    probabilities = logits.softmax(dim=1)[0]
    best = int(probabilities.argmax())
    return labels[best], float(probabilities[best])"""
NUMPY_ANSWER = """\
    probabilities = np.exp(logits - logits.max())
    probabilities /= probabilities.sum()
    best = int(probabilities.argmax())
    return labels[best], float(probabilities[best])"""
"""Code that turns logits into the most probable class."""


def answer_text(thresholds: object) -> str:
    """Return the docstring of `classify`; `thresholds` is empty unless the model is multi-label."""
    if thresholds:
        return "Return the labels of an image, with their probabilities."
    return "Return the most probable class of an image, and its probability."


def given_labels(probabilities: str, thresholds: Sequence[float]) -> str:
    """Return code that selects the labels of an image; `probabilities` is code for a list."""
    return f"""\
    probabilities = {probabilities}
    thresholds = {[*thresholds]!r}
    triples = zip(labels, probabilities, thresholds)
    return {{label: value for label, value, least in triples if value >= least}}"""


def pipeline_answer(in_grey: str, thresholds: object) -> str:
    """Return code that calls a transformers pipeline and returns its prediction.

    `in_grey` is the code that converts the image to grey, if needed.
    """
    image = f"open_rgb(path){in_grey}"
    if thresholds:
        return f"""\
    found = classifier({image}, top_k=None)
    scores = {{one["label"]: one["score"] for one in found}}
    return {{label: value for label, value in scores.items() if value >= thresholds[label]}}"""
    return f"""\
    best = classifier({image}, top_k=1)[0]
    return best["label"], best["score"]"""
