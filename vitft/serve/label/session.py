"""State of `vitft label`: the answers so far, the head fitted to them, and the next question.

One thread uses a session at a time. A random sample of the pictures, the audit sample, is never
used to fit the head. The accuracy is measured on it alone, because the other answered pictures were
not drawn at random.
"""

import unicodedata
from collections.abc import Iterable, Sequence
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from vitft.data.label_table import AUDIT, CONFIRMED, PICKED, SKIPPED
from vitft.metrics.intervals import wilson_interval
from vitft.serve.label.answers import Answer, AnswerFile
from vitft.serve.label.chooser import first_pictures, random_order, unsure_pictures
from vitft.serve.label.guesses import guess, guess_head
from vitft.serve.label.pool import PicturePool
from vitft.system.device import one_thread
from vitft.system.errors import UsageError
from vitft.system.text import count

Mode = Literal["mixed", "audit"]
"""`mixed`: chosen pictures and some of the audit sample; `audit`: only the audit sample."""
AUDIT_SIZE, AUDIT_FRACTION = 200, 5
"""Maximum size of the audit sample: number of pictures, and fraction of all pictures."""
AUDIT_START, AUDIT_EVERY = 4, 4
"""In mixed mode, the first 8 pictures are chosen. Then one audit picture follows every 4 chosen
ones.
"""
STAND_IN_WEIGHT = 5.0
"""Total weight of the pictures that represent a class of the run, in units of one answer."""
MANY = 40
"""Maximum number of pictures to confirm at once."""
MAX_CLASSES, MAX_NAME = 1000, 80


class Question(NamedTuple):
    """A picture to ask about."""

    picture: int
    kind: str
    """`audit` or `picked`."""
    reason: Literal["random", "typical", "unsure", "again", "rest"]


class Session:
    """Answers about the pictures of a pool, and what to ask next.

    Args:
        pool: The pictures.
        file: The open file of answers; its answers about pictures of the pool are used.
        prefix: Text before each path of the pool in the file.
        classes: Names of the first classes, besides those of the pool.

    Raises:
        UsageError: The name of a class is invalid.
    """

    def __init__(
        self, pool: PicturePool, file: AnswerFile, *, prefix: str, classes: Sequence[str] = ()
    ) -> None:
        self.pool, self.file, self.prefix = pool, file, prefix
        self.notes = list(file.notes)
        size = min(AUDIT_SIZE, len(pool.paths) // AUDIT_FRACTION)
        self.audit_sample = random_order(list(pool.digests))[:size]
        rest = sorted({*range(len(pool.paths))} - {*self.audit_sample})
        self.typical = [rest[i] for i in first_pictures(pool.z[rest])]
        self.first_classes = list(pool.classes)
        for name in classes:
            self.first_classes.append(self.checked_name(name, self.first_classes))
        self.ask_first: list[int] = []
        """Pictures to ask about first: pictures that were taken out of a group or undone."""
        self.picture_of = {prefix + path: i for i, paths in enumerate(pool.paths) for path in paths}
        unknown = sum(answer.path not in self.picture_of for answer in file.answers)
        if unknown:
            self.notes.append(
                f"{count(unknown, 'answer')} in {file.path.name} refer to pictures that are not in "
                "the folder or cannot be read"
            )
        self.refresh()

    # answers -----------------------------------------------------------------------------------

    def refresh(self) -> None:
        """Update the classes, the answered pictures and the head after a change of the file."""
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
        """Fit the head to all answers except those of the audit sample, and apply it.

        With answers for fewer than two classes, there is no head, and there are no probabilities.
        """
        z = self.pool.z
        trained = [i for i in self.label_of if self.kind_of[i] != AUDIT]
        pictures, labels = torch.tensor(trained), torch.tensor([self.label_of[i] for i in trained])
        weights = torch.ones(len(trained))
        if self.pool.stand_ins is not None:
            extra, own = self.usable_stand_ins(labels)
            number = torch.bincount(own, minlength=len(self.classes))[own]
            pictures, labels = torch.cat([pictures.long(), extra]), torch.cat([labels.long(), own])
            weights = torch.cat([weights, STAND_IN_WEIGHT / number])
        self.trained = pictures
        self.head: Tensor | None = None
        self.probabilities: Tensor | None = None
        if len(labels.unique()) > 1:
            with one_thread(when=True):  # waiting for others takes longer than so few products
                self.head = guess_head(z[pictures], labels, weights, classes=len(self.classes))
                self.probabilities = guess(z, self.head)

    def usable_stand_ins(self, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Return unanswered pictures for classes with few answers, and the indices of the classes.

        `labels` contains the class indices of the answers. The audit sample is left out.
        """
        stand_ins = self.pool.stand_ins
        assert stand_ins is not None
        answers = torch.bincount(labels.long(), minlength=len(self.classes))
        kept = answers[stand_ins.labels] < STAND_IN_WEIGHT
        taken = torch.zeros(len(self.pool.z), dtype=torch.bool)
        taken[[*self.kind_of, *self.audit_sample]] = True
        kept &= ~taken[stand_ins.pictures]
        return stand_ins.pictures[kept], stand_ins.labels[kept]

    def answer(self, picture: int, label: str) -> None:
        """Record the class of one picture; the name may be that of a new class.

        Raises:
            UsageError: The picture is unknown or already answered, or the name is invalid.
            DataError, RunError, ResourceError: The file cannot be written.
        """
        self.check_open([picture])
        name = self.checked_name(label, self.classes)
        self.record([picture], name, AUDIT if picture in self.audit_sample else PICKED)

    def confirm(self, pictures: Sequence[int], label: str, taken_out: Sequence[int]) -> None:
        """Record the same class for several pictures; pictures taken out are asked about next.

        Raises:
            UsageError: There are no pictures, one is unknown, already answered or in the audit
                sample, or the name is invalid.
            DataError, RunError, ResourceError: The file cannot be written.
        """
        self.check_open([*pictures, *taken_out])
        if not pictures or {*pictures, *taken_out} & {*self.audit_sample}:
            raise UsageError("these pictures cannot be confirmed", fix="reload the page")
        name = self.checked_name(label, self.classes)
        self.record(list(dict.fromkeys(pictures)), name, CONFIRMED)
        self.ask_first = [*taken_out, *self.ask_first]

    def skip(self, picture: int) -> None:
        """Record that a picture has no label. It is not asked about again.

        Raises:
            UsageError: The picture is unknown or already answered.
            DataError, RunError, ResourceError: The file cannot be written.
        """
        self.check_open([picture])
        self.record([picture], "", SKIPPED)

    def record(self, pictures: Iterable[int], label: str, kind: str) -> None:
        """Append the answers for all files of some pictures, and fit the head again."""
        self.file.append(
            [
                Answer(self.prefix + path, label, kind)
                for picture in pictures
                for path in self.pool.paths[picture]
            ]
        )
        self.refresh()

    def undo(self) -> None:
        """Remove the last step; its pictures are asked about next.

        Raises:
            DataError, RunError, ResourceError: The file cannot be written.
        """
        removed = self.file.undo()
        back = [self.picture_of[a.path] for a in removed if a.path in self.picture_of]
        if len({*back}) == 1:
            self.ask_first = [back[0], *self.ask_first]
        self.refresh()

    def check_open(self, pictures: Iterable[int]) -> None:
        """Raise a UsageError if a picture is unknown or already answered."""
        for picture in pictures:
            if not 0 <= picture < len(self.pool.paths):
                raise UsageError(f"there is no picture {picture}", fix="reload the page")
            if picture in self.kind_of:
                raise UsageError(
                    f"{self.pool.paths[picture][0]} is already answered", fix="reload the page"
                )

    def checked_name(self, name: str, known: Sequence[str]) -> str:
        """Return a class name without outer spaces, in the spelling of a known class if any.

        Raises:
            UsageError: The name is empty, too long or contains unusable characters, or there are
                too many classes.
        """
        name = unicodedata.normalize("NFC", " ".join(name.split()))
        for other in known:
            if unicodedata.normalize("NFC", other).casefold() == name.casefold():
                return other
        if not name or len(name) > MAX_NAME:
            raise UsageError(
                f"a class name needs 1 to {MAX_NAME} characters, not {len(name)}",
                fix="use a short name, e.g. tulip",
            )
        if any(unicodedata.category(c).startswith("C") or c in "|," for c in name):
            raise UsageError(
                f"invalid class name {name!r}",
                fix="use letters, digits and spaces, without commas, | or invisible characters",
            )
        if len(known) >= MAX_CLASSES:
            raise UsageError(f"more than {MAX_CLASSES:,} classes", fix="use an existing class")
        return name

    # questions ---------------------------------------------------------------------------------

    def questions(self, mode: Mode, most: int = 3) -> list[Question]:
        """Return the next questions; later ones may change with the answer to the first."""
        audit = [i for i in self.audit_sample if i not in self.kind_of]
        if mode == "audit":
            return [Question(i, AUDIT, "random") for i in audit[:most]]
        kinds = [*self.kind_of.values()]
        picked = kinds.count(PICKED)
        due = kinds.count(AUDIT) < (picked - AUDIT_START) // AUDIT_EVERY
        chosen = self.chosen_questions(most)
        if audit and (due or not chosen):
            return [Question(audit[0], AUDIT, "random"), *chosen][:most]
        return chosen

    def chosen_questions(self, most: int) -> list[Question]:
        """Return the most informative pictures outside the audit sample, best first."""
        again = [i for i in dict.fromkeys(self.ask_first) if i not in self.kind_of]
        found = [
            Question(i, AUDIT if i in self.audit_sample else PICKED, "again") for i in again[:most]
        ]
        typical = [i for i in self.typical if i not in self.kind_of and i not in again]
        found += [Question(i, PICKED, "typical") for i in typical[: most - len(found)]]
        if len(found) < most:
            done = {q.picture for q in found} | {*self.kind_of} | {*self.audit_sample}
            rest = torch.tensor([i for i in range(len(self.pool.paths)) if i not in done])
            found += self.unsure_questions(rest.long(), most - len(found))
        return found

    def unsure_questions(self, rest: Tensor, most: int) -> list[Question]:
        """Return the pictures among `rest` (m,) for which the head is unsure."""
        if self.probabilities is None:
            return [Question(int(i), PICKED, "rest") for i in rest[:most]]
        chosen = unsure_pictures(self.probabilities, self.pool.z, rest, self.trained, most)
        return [Question(i, PICKED, "unsure") for i in chosen]

    def likely(self, label: str) -> list[tuple[int, float]]:
        """Return unanswered pictures that look like a class, most probable first.

        Returns:
            Up to `MANY` pairs of a picture outside the audit sample and the probability.

        Raises:
            UsageError: There is no such class.
        """
        if label not in self.classes:
            raise UsageError(f"there is no class {label}", fix="reload the page")
        number = self.classes.index(label)
        if self.probabilities is None:
            return []
        chosen = self.open_pictures()
        best, labels = self.probabilities[chosen].max(dim=1)
        order = best.argsort(descending=True, stable=True)
        order = order[labels[order] == number][:MANY]
        return [(int(chosen[i]), float(best[i])) for i in order]

    def open_pictures(self) -> Tensor:
        """Return the indices (m,) of the unanswered pictures outside the audit sample."""
        is_open = torch.ones(len(self.pool.paths), dtype=torch.bool)
        is_open[[*self.kind_of, *self.audit_sample]] = False
        return torch.where(is_open)[0]

    # report ------------------------------------------------------------------------------------

    def accuracy(self) -> dict[str, Any]:
        """Return the accuracy on the answered audit sample, with its 95% interval."""
        answered = [i for i in self.label_of if self.kind_of[i] == AUDIT]
        skipped = sum(self.kind_of.get(i) == SKIPPED for i in self.audit_sample)
        result: dict[str, Any] = {
            "images": len(answered),
            "sample": len(self.audit_sample),
            "skipped": skipped,
        }
        if not answered or self.probabilities is None:
            return result
        labels = torch.tensor([self.label_of[i] for i in answered])
        correct = int((self.probabilities[answered].argmax(dim=1) == labels).sum())
        low, high = wilson_interval(correct, len(answered))
        return {**result, "correct": correct, "low": low, "high": high}

    def state(self, mode: Mode) -> dict[str, Any]:
        """Return everything that the page shows, as JSON."""
        questions = self.questions(mode)
        counts = [0] * len(self.classes)
        for label in self.label_of.values():
            counts[label] += 1
        guessed = [0] * len(self.classes)
        if self.probabilities is not None and len(rest := self.open_pictures()):
            best = self.probabilities[rest].argmax(dim=1)
            guessed = torch.bincount(best, minlength=len(self.classes)).tolist()
        kinds = [*self.kind_of.values()]
        return {
            "classes": [
                {"name": name, "answers": counts[i], "likely": guessed[i]}
                for i, name in enumerate(self.classes)
            ],
            "question": self.describe(questions[0]) if questions else None,
            "upcoming": [question.picture for question in questions[1:]],
            "pictures": len(self.pool.paths),
            "answered": len(self.label_of),
            "skipped": kinds.count(SKIPPED),
            "accuracy": self.accuracy(),
            "undo": self.last_step(),
            "notes": self.notes,
            "unreadable": len(self.pool.bad),
        }

    def last_step(self) -> str:
        """Return a description of the step to undo, or an empty string if there is none."""
        if not self.file.steps:
            return ""
        size = len(self.file.steps[-1])
        path, label, _ = self.file.answers[-1]
        what = path.rpartition("/")[2] if size == 1 else count(size, "file")
        return f"{what}: {label or 'skipped'}"

    def describe(self, question: Question) -> dict[str, Any]:
        """Return a question as JSON; for the audit, without guesses, to avoid bias."""
        guesses: list[dict[str, Any]] = []
        if question.kind != AUDIT and self.probabilities is not None:
            row = self.probabilities[question.picture]
            best = row.topk(min(3, len(row)))
            guesses = [
                {"class": self.classes[int(i)], "probability": float(p)}
                for p, i in zip(best.values, best.indices, strict=True)
                if p > 0
            ]
        return {
            "picture": question.picture,
            "path": self.pool.paths[question.picture][0],
            "copies": len(self.pool.paths[question.picture]) - 1,
            "kind": question.kind,
            "reason": question.reason,
            "guesses": guesses,
        }
