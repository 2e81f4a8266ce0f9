"""Distillation: the probabilities of a trained teacher as soft targets of a student.

The target of an image is (1 - w) * its label + w * softmax(z / T), where z are the logits of the
teacher for the whole, unaugmented image, and w is `train.teacher_weight`. So the loss is a weighted
sum of the cross-entropies with the label and with the teacher's softened probabilities. The logits
of the student are not divided by T, because a temperature is fitted to the finished student.

Source: Hinton et al. 2015, "Distilling the Knowledge in a Neural Network",
https://arxiv.org/abs/1503.02531.
"""

import logging
from dataclasses import replace

from vitft.config.run import Config
from vitft.data.split import images_of_weights, run_of_weights
from vitft.data.transforms import eval_view
from vitft.metrics.classification import are_right, fraction_right
from vitft.predict.embeddings import load_features
from vitft.system.text import count, labelled, percent, shell_quote
from vitft.training.batches import Dataset, StageInputs
from vitft.training.setup import compute_views

log = logging.getLogger(__name__)

_TEMPERATURE = 2.0  # divides the teacher's logits (benchmarks/notebook/fine_tuning.md)


def with_soft_targets(data: Dataset, config: Config) -> Dataset:
    """Return the data with the teacher's probabilities for all training images.

    The features of the teacher are cached. Each process computes its shard.
    """
    name, rows = config.train.teacher, data.manifest.train
    pipeline, classes = load_features(name, None, config)
    extractor = pipeline.open_extractor()
    assert extractor is not None, "a model cut before its head has frozen layers"
    own = replace(data, transform=pipeline.transform)
    views = [eval_view(own.transform)]
    compute_views(extractor, own, rows, views, "extracting features of the teacher")
    logits = StageInputs(data=own, cut=pipeline.cut, extractor=extractor).logits(rows)
    logits = logits[:, [classes.index(one) for one in data.manifest.outputs.classes]]
    if data.group.is_main:
        same = percent(fraction_right(are_right(logits, data.labels(rows).cpu())))
        folder = run_of_weights(name)
        log.info(labelled("Teacher", f"{folder}, right about {same} of the training images"))
        held_out = [*data.manifest.val, *data.manifest.test]
        seen = images_of_weights(name, head=True)
        number = sum(row.sha256 in seen for row in held_out)
        if number:
            log.warning(
                f"the teacher was trained on {number:,} of "
                f"{count(len(held_out), 'held-out image')}, so the accuracy on them says nothing "
                f"about new images. --like {shell_quote(str(folder))} holds out the images of "
                "that run"
            )
        elif not seen:
            log.warning(
                "it is not known which images the teacher was trained on: if any are held out, the "
                "accuracy on them says nothing about new images"
            )
    soft = (logits / _TEMPERATURE).softmax(dim=1).numpy()
    by_digest = {row.sha256: one for row, one in zip(rows, soft, strict=True)}
    return replace(data, soft=by_digest, soft_weight=config.train.teacher_weight)
