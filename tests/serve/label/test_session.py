"""Sessions: what is asked, what is learned, what is measured, and what a restart finds."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.serve.label.test_chooser import groups
from vitft.metrics import wilson_interval
from vitft.serve import AnswerFile, PicturePool, Session
from vitft.system import UsageError

NAMES = ("daisy", "rose", "tulip")
SIZES = [100, 60, 40]
Z, Y = groups(SIZES, noise=0.3)


def make_pool(**options: Any) -> PicturePool:
    """Return a pool of 200 pictures in three groups; the second has two files."""
    paths = [(f"{i:03}.jpg",) for i in range(len(Z))]
    paths[1] = ("001.jpg", "copy of 001.jpg")
    digests = tuple(f"{i:064x}" for i in range(len(Z)))
    return PicturePool(root=Path(), paths=tuple(paths), digests=digests, z=Z, **options)


@contextmanager
def opened(folder: Path, pool: PicturePool | None = None, **options: Any) -> Iterator[Session]:
    with AnswerFile(folder / "labels.csv") as file:
        yield Session(pool or make_pool(), file, prefix="photos/", **options)


def truth(picture: int) -> str:
    return NAMES[int(Y[picture])]


def answer(session: Session, number: int, mode: Any = "mixed") -> list[str]:
    """Answer questions truthfully, and return the kinds of the questions."""
    kinds = []
    for _ in range(number):
        question = session.state(mode)["question"]
        session.answer(question["picture"], truth(question["picture"]))
        kinds.append(question["kind"])
    return kinds


def test_the_audit_sample_is_never_chosen_confirmed_or_learned_from(tmp_path: Path) -> None:
    with opened(tmp_path) as session:
        answer(session, 60)
        head = session.head
        likely = {picture for name in NAMES for picture, _ in session.likely(name)}
        answer(session, 10, "audit")

        assert head is not None
        assert session.head is not None
        assert torch.equal(head, session.head)
        assert not {*session.audit_sample} & {*session.trained.tolist()}
        assert not {*session.audit_sample} & likely
        assert len(session.audit_sample) == len(Z) // 5
        with pytest.raises(UsageError, match="cannot be confirmed"):
            session.confirm([session.audit_sample[-1]], "rose", [])


def test_the_accuracy_counts_the_audit_sample_only(tmp_path: Path) -> None:
    with opened(tmp_path) as session:
        assert session.accuracy() == {"images": 0, "sample": 40, "skipped": 0}
        for _ in range(8):
            answer(session, 1)
        for i, picture in enumerate(session.audit_sample[:11]):
            if i == 10:
                session.skip(picture)
            else:
                session.answer(picture, truth(picture) if i else "a weed")

        accuracy = session.accuracy()

    assert (accuracy["correct"], accuracy["images"], accuracy["skipped"]) == (9, 10, 1)
    assert (accuracy["low"], accuracy["high"]) == wilson_interval(9, 10)


def test_a_run_guesses_before_the_first_answer_until_a_class_has_answers(tmp_path: Path) -> None:
    sure = torch.cat([torch.arange(0, 20), torch.arange(100, 120)])
    pool = make_pool(classes=("daisy", "rose"), stand_ins=(sure, Y[sure]))

    with opened(tmp_path, pool) as session:
        assert session.probabilities is not None
        right = session.probabilities[:160].argmax(dim=1) == Y[:160]
        assert right.float().mean() > 0.9
        assert not {*session.trained.tolist()} & {*session.audit_sample}
        before = len(session.trained)
        for picture in [i for i in range(40, 60) if i not in session.audit_sample][:5]:
            session.answer(picture, "daisy")

        stand_ins = {*session.trained.tolist()} & {*range(20)}
        assert not stand_ins
        assert len(session.trained) < before

    with opened(tmp_path, replace(pool, stand_ins=None)) as session:
        assert session.probabilities is None  # answers for one class only


def test_answers_about_other_pictures_are_kept_but_not_used(tmp_path: Path) -> None:
    (tmp_path / "labels.csv").write_text("path,label,chosen\nelsewhere/9.jpg,rose,picked\n")

    with opened(tmp_path) as session:
        state, likely = session.state("mixed"), session.likely("rose")

    assert state["notes"][0].startswith("ignored 1 answer in labels.csv")
    assert (state["answered"], likely) == (0, [])
    assert len((tmp_path / "labels.csv").read_text().splitlines()) == 2


def test_there_are_at_most_a_thousand_classes(tmp_path: Path) -> None:
    with opened(tmp_path, classes=[f"class {i}" for i in range(1000)]) as session:
        session.answer(session.audit_sample[0], "class 999")
        with pytest.raises(UsageError, match="there are already 1,000 classes"):
            session.answer(session.audit_sample[1], "one more")
