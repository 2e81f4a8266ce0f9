"""One answer per group of images, such as a burst, a video or a patient.

The probabilities of a group are the geometric means over its readable images, divided by their sum:
the softmax of the mean logits. This assumes that all images of a group show the same class. A sum
of logits would also assume that the images err independently, and would be overconfident.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from vitft.predict.postprocess import Postprocess, Scores
from vitft.predict.rows import NOT_SURE, Prediction


@dataclass(slots=True)
class _Group:
    """What is known of the images of a group so far."""

    total: Any = 0.0  # sum of the logits (C,) of the readable images
    images: int = 0
    unreadable: int = 0
    notes: Counter[str] = field(default_factory=Counter)


def answer_groups(
    predictions: Iterable[Prediction], postprocess: Postprocess
) -> Iterator[Prediction]:
    """Yield images without a group, then one prediction per group, in the order of first images.

    It has the notes that more than half of the readable images have, but is marked `not sure` by
    its own probability.
    """
    groups = dict[str, _Group]()
    for one in predictions:
        if not one.group:
            yield one
            continue
        group = groups.setdefault(one.group, _Group())
        group.images += 1
        if one.logits is None:
            group.unreadable += 1
        else:
            group.total = group.total + one.logits.astype(np.float64)
            group.notes.update({*one.notes} - {NOT_SURE})
    postprocess = replace(postprocess, reference=None)
    for name, group in groups.items():
        if scored := group.images - group.unreadable:
            mean = np.asarray(group.total / scored, np.float32)
            (answer,) = postprocess([name], Scores(mean[None]))
            usual = (note for note, images in group.notes.items() if 2 * images > scored)
            answer = replace(answer, notes=(*answer.notes, *usual))
        else:
            answer = Prediction(path=name, error="no readable image", run=postprocess.run_name)
        yield replace(answer, images=group.images, unreadable=group.unreadable)
