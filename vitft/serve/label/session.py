"""State of `vitft label`: the answers so far, the head fitted to them, and the next question.

One thread uses a session at a time. A random sample of the pictures, the audit sample, is never
used to fit the head. The accuracy is measured on it alone, because the other labelled pictures were
not drawn at random.
"""

import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from vitft.data.parts import AUDIT, CONFIRMED, PICKED, SKIPPED
from vitft.features.logistic import linear_logits
from vitft.metrics.intervals import wilson_interval
from vitft.serve.label.answers import AnswerFile
from vitft.serve.label.chooser import (
    PSEUDO_LABELLED,
    first_pictures,
    random_order,
    self_trained_head,
    unsure_pictures,
)
from vitft.serve.label.pool import PicturePool
from vitft.system.device import one_thread
from vitft.system.errors import UsageError
from vitft.system.structure import Natural
from vitft.system.text import count, listing

_Question = tuple[int, Literal["random", "typical", "unsure", "again", "rest"]]
"""A picture to ask about, and why."""
Mode = Literal["mixed", "audit"]
"""`mixed`: chosen pictures and some of the audit sample; `audit`: only the audit sample."""
_AUDIT_SIZE, _AUDIT_FRACTION = 200, 5
"""The audit sample contains 1 / `_AUDIT_FRACTION` of all pictures, but at most `_AUDIT_SIZE`."""
_AUDIT_START, _AUDIT_EVERY = 4, 4
"""In mixed mode, one audit picture follows every 4 chosen pictures after the first 8."""
TYPICAL_START, _TYPICAL_EVERY = 10, 4
"""The first 10 chosen pictures are typical, and so is every fourth of the later ones."""
_STAND_IN_WEIGHT = 5.0  # total weight of the pictures that represent a class, in answers
_MANY = 40  # maximum number of pictures to confirm at once
_MAX_CLASSES, _MAX_NAME = 1000, 80
_AHEAD = 3  # number of questions that a page shows, or loads in advance


class Session:
    """Answers about the pictures of a pool, and the next questions.

    `prefix` precedes the paths of the pool in the open file of answers. `classes` are initial ones
    in addition to those of the pool. Wrong names and pictures raise a UsageError.
    """

    def __init__(
        self, pool: PicturePool, file: AnswerFile, *, prefix: str, classes: Sequence[str] = ()
    ) -> None:
        self.pool, self.file, self.prefix = pool, file, prefix
        self.notes = list(file.notes)
        size = min(_AUDIT_SIZE, len(pool.paths) // _AUDIT_FRACTION)
        order = random_order(list(pool.digests))
        self.audit_sample, self.random_rest = order[:size], order[size:]
        rest = sorted({*range(len(pool.paths))} - {*self.audit_sample})
        self.typical = [rest[i] for i in first_pictures(pool.z[rest])]
        self.first_classes = list(pool.classes)
        for name in classes:
            self.first_classes.append(self.checked_name(name, self.first_classes))
        self.ask_first: list[int] = []  # taken out of a group, or with an undone answer
        self.picture_of = {prefix + path: i for i, paths in enumerate(pool.paths) for path in paths}
        unknown = sum(path not in self.picture_of for path, *_ in file.answers)
        if unknown:
            self.notes.append(
                f"ignored {count(unknown, 'answer')} in {file.path.name}, because the images are "
                "not in the folder or cannot be read"
            )
        steps = list[tuple[int, int]]()  # adjacent answers about one picture are undone together
        for i, (start, number) in enumerate(file.steps):
            one, other = (self.picture_of.get(a[0]) for a in (file.answers[i - 1], file.answers[i]))
            if steps and one is not None and one == other:
                start, number = steps[-1][0], steps.pop()[1] + number
            steps.append((start, number))
        file.steps = steps
        self.refresh()
        if set(self.classes) != set(self.first_classes):
            keys = listing([f"{i} {name}" for i, name in enumerate(self.classes, 1)], most=9)
            self.notes.append(
                f"the keys of the classes are in the order of their first answers in "
                f"{file.path.name}: {keys}. --classes sets another order"
            )

    def refresh(self) -> None:
        """Update the classes, the pictures with answers and the head after the file has changed."""
        self.classes = list(dict.fromkeys(self.first_classes))
        self.label_of: dict[int, int] = {}
        self.kind_of: dict[int, str] = {}
        index = {name: i for i, name in enumerate(self.classes)}
        for path, label, kind in self.file.answers:
            picture = self.picture_of.get(path)
            if label and label not in index:
                index[label] = len(self.classes)
                self.classes.append(label)
            if picture is None or picture in self.kind_of:
                continue
            self.kind_of[picture] = kind
            if label:
                self.label_of[picture] = index[label]
        self.fit()

    def fit(self) -> None:
        """Fit the head to all answers outside the audit sample, if two classes have any."""
        z = self.pool.z
        trained = [i for i in self.label_of if self.kind_of[i] != AUDIT]
        pictures, labels = torch.tensor(trained), torch.tensor([self.label_of[i] for i in trained])
        weights = torch.ones(len(trained))
        if self.pool.stand_ins is not None:
            # Unlabelled pictures represent classes with few answers, except the audit sample.
            extra, own = self.pool.stand_ins
            answers = torch.bincount(labels.long(), minlength=len(self.classes))
            kept = answers[own] < _STAND_IN_WEIGHT
            kept &= torch.isin(extra, self.open_pictures())
            extra, own = extra[kept], own[kept]
            number = torch.bincount(own, minlength=len(self.classes))[own]
            pictures, labels = torch.cat([pictures.long(), extra]), torch.cat([labels.long(), own])
            weights = torch.cat([weights, _STAND_IN_WEIGHT / number])
        self.trained = pictures
        self.head: Tensor | None = None
        self.probabilities: Tensor | None = None
        if len(labels.unique()) > 1:
            with one_thread(when=True):  # synchronising threads would take longer
                self.head = self_trained_head(
                    z[pictures], labels, weights, z[self.unlabelled()], classes=len(self.classes)
                )
                self.probabilities = linear_logits(z, self.head).softmax(dim=1)

    def unlabelled(self) -> Tensor:
        """Return a random sample of the unlabelled pictures (u,) outside the audit sample."""
        done = {*self.kind_of, *self.trained.tolist()}
        return torch.tensor([i for i in self.random_rest if i not in done][:PSEUDO_LABELLED]).long()

    def answer(self, picture: Natural, label: str) -> None:
        """Record the class of one picture; `label` may be the name of a new class."""
        self.check_open([picture])
        name = self.checked_name(label, self.classes)
        self.record([picture], name, self.kind_if_asked(picture))

    def confirm(self, pictures: list[Natural], label: str, taken_out: list[Natural]) -> None:
        """Record the same class for several pictures; those in `taken_out` are asked about next."""
        self.check_open([*pictures, *taken_out])
        if not pictures or {*pictures, *taken_out} & {*self.audit_sample}:
            raise UsageError("these images cannot be confirmed together", fix="reload the page")
        name = self.checked_name(label, self.classes)
        self.record(list(dict.fromkeys(pictures)), name, CONFIRMED)
        self.ask_first = [*taken_out, *self.ask_first]

    def skip(self, picture: Natural) -> None:
        """Record that a picture has no label. It is not asked about again."""
        self.check_open([picture])
        self.record([picture], "", SKIPPED)

    def kind_if_asked(self, picture: int) -> str:
        return AUDIT if picture in self.audit_sample else PICKED

    def record(self, pictures: Iterable[int], label: str, kind: str) -> None:
        """Append the answers for all files of some pictures, and fit the head again."""
        paths = [path for picture in pictures for path in self.pool.paths[picture]]
        self.file.append([(self.prefix + path, label, kind) for path in paths])
        self.refresh()

    def undo(self) -> None:
        """Remove the last step. If it concerns one picture, this picture is asked about next."""
        removed = self.file.undo()
        back = [self.picture_of[path] for path, *_ in removed if path in self.picture_of]
        if len({*back}) == 1:
            self.ask_first = [back[0], *self.ask_first]
        self.refresh()

    def check_open(self, pictures: Iterable[int]) -> None:
        """Raise a UsageError if a picture is unknown or already has an answer."""
        for picture in pictures:
            if picture >= len(self.pool.paths):
                raise UsageError(f"there is no image {picture}", fix="reload the page")
            if picture in self.kind_of:
                raise UsageError(
                    f"{self.pool.paths[picture][0]} already has an answer", fix="reload the page"
                )

    def checked_name(self, name: str, known: Sequence[str]) -> str:
        """Return a class name with normalised spaces, spelled as in `known` if that contains it."""
        name = unicodedata.normalize("NFC", " ".join(name.split()))
        for other in known:
            if unicodedata.normalize("NFC", other).casefold() == name.casefold():
                return other
        hidden = any(unicodedata.category(c).startswith("C") or c in "|," for c in name)
        if hidden or not 1 <= len(name) <= _MAX_NAME:
            fix = f"use 1 to {_MAX_NAME} characters without commas, | or invisible characters"
            raise UsageError(f"invalid class name {name[: 2 * _MAX_NAME]!r}", fix=fix)
        if len(known) >= _MAX_CLASSES:
            problem = f"there are already {_MAX_CLASSES:,} classes"
            raise UsageError(problem, fix="use an existing class")
        return name

    def questions(self, mode: Mode) -> list[_Question]:
        """Return the next questions; later ones may change once the first is answered."""
        audit = [i for i in self.audit_sample if i not in self.kind_of]
        if mode == "audit":
            return [(i, "random") for i in audit[:_AHEAD]]
        kinds = [*self.kind_of.values()]
        picked = kinds.count(PICKED)
        due = kinds.count(AUDIT) < (picked - _AUDIT_START) // _AUDIT_EVERY
        chosen = self.chosen_questions()
        if audit and (due or not chosen):
            return [(audit[0], "random"), *chosen][:_AHEAD]
        return chosen

    def chosen_questions(self) -> list[_Question]:
        """Return the most informative pictures outside the audit sample, best first."""
        again = [i for i in dict.fromkeys(self.ask_first) if i not in self.kind_of]
        found: list[_Question] = [(i, "again") for i in again[:_AHEAD]]
        done = {*again, *self.kind_of}
        typical = [i for i in self.typical if i not in done]
        others = [i for i in self.random_rest if i not in done]
        is_unsure = self.probabilities is not None and bool(others)
        picked = [*self.kind_of.values()].count(PICKED)
        if self.probabilities is not None and others:
            others = unsure_pictures(
                self.probabilities,
                self.pool.z,
                candidates=torch.tensor(others),
                answered=self.trained,
                others=self.unlabelled(),
                most=_AHEAD,
            )
        while len(found) < _AHEAD and (typical or others):
            is_due = picked < TYPICAL_START or picked % _TYPICAL_EVERY == 0 or not is_unsure
            if typical and (is_due or not others):
                found.append((typical[0], "typical"))
            else:
                found.append((others[0], "unsure" if is_unsure else "rest"))
            typical, others = ([i for i in each if i != found[-1][0]] for each in (typical, others))
            picked += 1
        return found

    def likely(self, label: str) -> list[tuple[int, float]]:
        """Return up to `_MANY` unlabelled pictures and probabilities of a class, highest first."""
        if label not in self.classes:
            raise UsageError(f"there is no class {label}", fix="reload the page")
        number = self.classes.index(label)
        if self.probabilities is None:
            return []
        chosen = self.open_pictures()
        best, labels = self.probabilities[chosen].max(dim=1)
        order = best.argsort(descending=True, stable=True)
        order = order[labels[order] == number][:_MANY]
        return [(int(chosen[i]), float(best[i])) for i in order]

    def open_pictures(self) -> Tensor:
        """Return the indices (m,) of the unlabelled pictures outside the audit sample."""
        is_open = torch.ones(len(self.pool.paths), dtype=torch.bool)
        is_open[[*self.kind_of, *self.audit_sample]] = False
        return torch.where(is_open)[0]

    def accuracy(self) -> dict[str, Any]:
        """Return the accuracy on the labelled part of the audit sample, with its 95% interval."""
        answered = [i for i in self.label_of if self.kind_of[i] == AUDIT]
        skipped = sum(self.kind_of.get(i) == SKIPPED for i in self.audit_sample)
        sizes = {"images": len(answered), "sample": len(self.audit_sample), "skipped": skipped}
        if not answered or self.probabilities is None:
            return sizes
        labels = torch.tensor([self.label_of[i] for i in answered])
        correct = int((self.probabilities[answered].argmax(dim=1) == labels).sum())
        low, high = wilson_interval(correct, len(answered))
        return {**sizes, "correct": correct, "low": low, "high": high}

    def answers_by_class(self) -> dict[str, int]:
        """Return the number of labelled pictures of each class, in class order."""
        counts = Counter(self.label_of.values())
        return {name: counts[i] for i, name in enumerate(self.classes)}

    def state(self, mode: Mode) -> dict[str, Any]:
        """Return everything that the page shows, as JSON."""
        questions, undo = self.questions(mode), ""
        if self.file.steps:
            (_, size), (path, label, _) = self.file.steps[-1], self.file.answers[-1]
            what = path.rpartition("/")[2] if size == 1 else count(size, "file")
            undo = f"{what}: {label or 'skipped'}"
        answers, guessed = self.answers_by_class(), [0] * len(self.classes)
        if self.probabilities is not None and len(rest := self.open_pictures()):
            best = self.probabilities[rest].argmax(dim=1)
            guessed = torch.bincount(best, minlength=len(self.classes)).tolist()
        return {
            "classes": [
                {"name": name, "answers": answers[name], "likely": likely}
                for name, likely in zip(self.classes, guessed, strict=True)
            ],
            "question": self.describe(*questions[0]) if questions else None,
            "upcoming": [picture for picture, _ in questions[1:]],
            "pictures": len(self.pool.paths),
            "answered": len(self.label_of),
            "skipped": [*self.kind_of.values()].count(SKIPPED),
            "accuracy": self.accuracy(),
            "undo": undo,
            "notes": self.notes,
            "unreadable": len(self.pool.bad),
        }

    def describe(self, picture: int, reason: str) -> dict[str, Any]:
        """Return a question as JSON. Audit questions contain no guesses, to avoid bias."""
        guesses, kind = list[dict[str, Any]](), self.kind_if_asked(picture)
        if kind != AUDIT and self.probabilities is not None:
            row = self.probabilities[picture]
            best = row.topk(min(3, len(row)))
            guesses = [
                {"class": self.classes[int(i)], "probability": float(p)}
                for p, i in zip(best.values, best.indices, strict=True)
                if p > 0
            ]
        return {
            "picture": picture,
            "path": self.pool.paths[picture][0],
            "copies": len(self.pool.paths[picture]) - 1,
            "kind": kind,
            "reason": reason,
            "guesses": guesses,
        }
