"""Postprocessing of logits and features into classes, probabilities and notes.

It is shared by `vitft predict`, the Python API, the server, `vitft evaluate`, `vitft explain` and
the validation predictions of the report.

Notation: B images, C classes, D dimensions of a feature, k classes per prediction.
"""

import contextlib
import logging
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, Protocol, Self, TypeVar

import numpy as np

from vitft.config.run import read_run_config
from vitft.data.duplicates import BLANK_REMARK, is_blank_view
from vitft.data.places import short_name
from vitft.data.table import MAX_TABLE_BYTES
from vitft.features.ood import Reference
from vitft.messages.results import estimate_text, using
from vitft.metrics.intervals import Flags, Floats
from vitft.metrics.outputs import Outputs
from vitft.metrics.results import Results, RunResults, read_results
from vitft.models.card import sha256_of
from vitft.models.find import find_model, model_files
from vitft.models.pretrained.catalog import canonical_name, weights_name
from vitft.predict.rows import NOT_SURE, OUT_OF_DISTRIBUTION, Prediction
from vitft.predict.tree import ClassTree
from vitft.system.errors import RunError
from vitft.system.rundir import BASE, LATEST, MODEL, RunDir, read_environment, run_path
from vitft.system.text import listing

log = logging.getLogger(__name__)

_Content = TypeVar("_Content")
ScoreArray = np.ndarray[Any, np.dtype[np.float32]]
_Targets = Sequence[int] | Flags  # class indices (B,), or whether each image has each label (B, C)


class Scores(NamedTuple):
    """Output of a model for a batch of images; features that were not computed are empty."""

    logits: ScoreArray  # (B, C)
    features: ScoreArray = np.empty((0, 0), np.float32)  # inputs to the head (B, D)
    intermediate: ScoreArray = np.empty((0, 0), np.float32)  # intermediate features (B, D)


class _Trained(Protocol):
    """What postprocessing needs of a trained model, e.g. of an `engine.Engine`."""

    @property
    def outputs(self) -> Outputs: ...
    @property
    def split(self) -> str: ...
    @property
    def results(self) -> Results | None: ...
    @property
    def reference(self) -> Reference | None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Postprocess:
    """Callable that converts scores into predictions."""

    outputs: Outputs
    top_k: int = 1  # number of classes per prediction; capped at the model's number of classes
    threshold: float = 0.0  # probability below which a prediction is marked `not sure`
    set_limits: Sequence[float] = ()
    """Smallest probability with which each class is in the prediction set of an image; empty
    without prediction sets."""
    tree: ClassTree | None = None  # its nodes replace classes that are not sure
    reference: Reference | None = None  # statistics for out-of-distribution notes
    run: Results | None = None  # numbers of the run that produced the model
    place: str = ""  # where the model was found, in the user's words
    file_time: float = 0.0  # time of the model file in seconds since 1970

    @classmethod
    def for_run(cls, run: str | None, engine: _Trained, *, top_k: int = 1) -> Self:
        """Create an instance for a run, checkpoint, graph or `hf:owner/name`, or the latest run."""
        checkpoint = find_model(run, graphs=True)
        folder, place = checkpoint.parent, run or f"{BASE}/{LATEST}"
        results = run_results(folder, _or_warn(read_results, folder / "eval.json"), engine.results)
        if not results.name:  # without a run, that of the folder, checkpoint or repository
            real = checkpoint.resolve().parent.name  # the file may be a link
            name = real if checkpoint.name == MODEL else checkpoint.stem
            remote = canonical_name(run) if run else ""
            results = replace(results, name=remote if remote.startswith("hf:") else name)
        split = RunDir(folder).split
        is_run = engine.split and RunDir(folder).eval.exists()  # else the table is not of vitft
        with contextlib.suppress(OSError):  # there may be none
            small = is_run and split.stat().st_size < MAX_TABLE_BYTES
            if small and sha256_of(split) != engine.split:
                log.warning(
                    f"{split} is not the split with which {checkpoint.name} was trained. Numbers "
                    "and held-out images in this folder are those of another model"
                )
        others = [name for name in model_files(folder) if name != checkpoint.name]
        if others and not (run and run_path(run).is_file()):  # the user named none of several
            place += f" (file {checkpoint.name}, not {listing(others)})"
        return cls(
            outputs=engine.outputs,
            top_k=top_k,
            reference=engine.reference,
            run=results,
            place=place,
            file_time=checkpoint.stat().st_mtime,
        )

    @property
    def run_name(self) -> str:
        return "" if self.run is None else self.run.name

    def describe(self) -> str:
        """Return a line about the model and its accuracy, or "" if the run is unknown."""
        return using(self.run, self.place, self.file_time) if self.run else ""

    def announce(self) -> None:
        """Log `describe()` and, for `-v`, a line with all that is known about the run."""
        flags = "no images are flagged as unlike the training images"
        flags = self.reference.power() if self.reference else flags
        if self.run:
            log.info(self.describe())
            texts = f"run {self.run.name}", *map(estimate_text, self.run.estimates)
            log.debug("; ".join(filter(None, (*texts, self.outputs.counted, flags))))

    def __call__(
        self,
        paths: Sequence[str],
        scores: Scores,
        targets: _Targets | None = None,
        *,
        views: Sequence[np.ndarray[Any, np.dtype[np.uint8]]] = (),
    ) -> list[Prediction]:
        """Return one prediction for each of B paths.

        If targets are given, as class indices (B,) or label indicators (B, C), each prediction
        includes the probability of its target. If the views are given, as uint8 (H, W, 3) without
        borders, blank images have a note. Logits that are not finite raise a RunError.
        """
        if not np.isfinite(scores.logits).all():
            raise not_finite()
        several, classes = self.outputs.several, self.outputs.classes
        given = self.outputs.predicted(scores.logits) if several else None  # (B, C)
        probabilities = self.outputs.probabilities(scores.logits)  # (B, C)
        order, most = probabilities.argmax(axis=1)[:, None], len(classes) if several else self.top_k
        if most > 1:  # stable: ties keep the order of the classes, as with argmax
            order = np.argsort(-probabilities, axis=1, kind="stable")[:, :most]  # (B, k)
        unlike = [False] * len(paths)
        if self.reference is not None and not several:
            unlike = self.reference.are_unlike(scores.features, scores.intermediate)
        predictions = []
        for i, path in enumerate(paths):
            best, labels, of_labels, of_target = probabilities[i, order[i]], None, 0.0, 0.0
            if given is not None:
                labels = tuple(classes[k] for k in order[i] if given[i, k])
                of_target = of_labels = _set_probability(probabilities[i], given[i])
                if targets is not None:
                    of_target = _set_probability(probabilities[i], np.asarray(targets[i], bool))
            elif targets is not None:
                of_target = float(probabilities[i, targets[i]])
            is_unsure = not several and best[0] < self.threshold
            is_blank = bool(views) and is_blank_view(views[i])
            notes = {NOT_SURE: is_unsure, OUT_OF_DISTRIBUTION: unlike[i], BLANK_REMARK: is_blank}
            predictions.append(
                Prediction(
                    path=path,
                    classes=tuple(classes[k] for k in order[i]),
                    probabilities=tuple(best.tolist()),
                    prediction_set=self._set(probabilities[i]),
                    labels=labels,
                    labels_probability=of_labels,
                    run=self.run_name,
                    notes=tuple(note for note, holds in notes.items() if holds),
                    target_probability=of_target,
                    logits=scores.logits[i],
                )
            )
        if self.tree is not None:
            predictions = [*self._rolled_up(self.tree, predictions, probabilities)]
        return predictions

    def _rolled_up(
        self, tree: ClassTree, predictions: Sequence[Prediction], probabilities: Floats
    ) -> Iterator[Prediction]:
        """Yield predictions with the answers of a tree, given probabilities of classes (B, C)."""
        answers = zip(predictions, *tree.answers(probabilities), strict=True)
        for one, level, node, probability in answers:
            if 0 < level < len(tree.nodes):
                names = (tree.nodes[level - 1][node], *one.classes)
                values = (float(probability), *one.probabilities)
                notes = tuple(note for note in one.notes if note != NOT_SURE)
                one = replace(one, classes=names, probabilities=values, notes=notes)
            yield replace(one.top(self.top_k), level=int(level))

    def _set(self, probabilities: Floats) -> tuple[str, ...]:
        """Return the prediction set for probabilities (C,): at least the most probable class."""
        if not len(self.set_limits):
            return ()
        order = np.argsort(-probabilities, kind="stable")
        kept = probabilities[order] >= np.asarray(self.set_limits)[order]
        return tuple(self.outputs.classes[k] for k in [order[0], *order[1:][kept[1:]]])


def _set_probability(probabilities: Floats, members: Flags) -> float:
    """Return the probability of exactly these labels (C,), assuming that labels are independent."""
    return float(np.where(members, probabilities, 1 - probabilities).prod())


def answer_groups(
    predictions: Iterable[Prediction], postprocess: Postprocess
) -> Iterator[Prediction]:
    """Yield images without a group, then one prediction per group, in the order of first images.

    The probabilities of a group, such as a burst, a video or a patient, are the geometric means
    over its readable images, divided by their sum: the softmax of the mean logits. This assumes
    that all images of a group show the same class. A sum of logits would also assume that the
    images err independently, and would be overconfident.

    A group has the notes that more than half of its readable images have, but is marked `not sure`
    by its own probability.
    """
    images, readable = Counter[str](), Counter[str]()
    totals, notes = dict[str, Any](), defaultdict[str, Counter[str]](Counter)  # of readable images
    for one in predictions:
        if not one.group:
            yield one
            continue
        images[one.group] += 1
        if one.logits is not None:
            readable[one.group] += 1
            totals[one.group] = totals.get(one.group, 0.0) + one.logits.astype(np.float64)
            notes[one.group].update({*one.notes} - {NOT_SURE})
    postprocess = replace(postprocess, reference=None)
    for name, number in images.items():
        answer = Prediction(path=name, error="no readable image", run=postprocess.run_name)
        if scored := readable[name]:
            mean = np.asarray(totals[name] / scored, np.float32)
            (answer,) = postprocess([name], Scores(mean[None]))
            usual = (note for note, times in notes[name].items() if 2 * times > scored)
            answer = replace(answer, notes=(*answer.notes, *usual))
        yield replace(answer, images=number, unreadable=number - scored)


def not_finite() -> RunError:
    """Return the error for a model whose outputs are infinite or NaN."""
    return RunError(
        "the logits of the model are not finite: training diverged, or the file is damaged",
        fix="train again with a lower learning rate",
    )


# the numbers of the run that produced a model, from its files or from the model file itself: if one
# is missing or damaged, they are unknown, because predictions do not depend on them --------------


def run_results(folder: Path, found: RunResults | None, carried: Results | None = None) -> Results:
    """Return the numbers of the run in the folder of a run or an export.

    `found` is the content of its eval.json. The numbers `carried` by the model file are used where
    no file of a run states them.
    """
    environment = _or_warn(read_environment, folder / "environment.json")
    has_settings = (folder / "config.toml").exists()
    settings = (_or_warn(read_run_config, folder) if has_settings else None) or {}
    results = Results.of(found, environment)
    if carried and found is None and environment is None:
        results = carried
    data, weights = (
        str(settings.get(section, {}).get(key) or "")
        for section, key in (("data", "path"), ("weights", "name"))
    )
    return replace(
        results,
        data=Path(short_name(data)).name or results.data,
        weights=weights_name(weights) or results.weights,
    )


def _or_warn(read: Callable[[Path], _Content | None], path: Path) -> _Content | None:
    """Return the result of `read` for a file, or log a warning and return None if it is damaged."""
    try:
        return read(path)
    except RunError as error:
        log.warning(error.problem)
        return None
