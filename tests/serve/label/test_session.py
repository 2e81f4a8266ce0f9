"""Sessions: what is asked, what is learned, what is measured, and what a restart finds."""

import csv
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.serve.label.test_chooser import groups
from vitft.serve.label.answers import AnswerFile
from vitft.serve.label.pool import PicturePool, StandIns
from vitft.serve.label.session import MANY, Question, Session
from vitft.system.errors import UsageError

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
        question = session.questions(mode)[0]
        session.answer(question.picture, truth(question.picture))
        kinds.append(question.kind)
    return kinds


def rows(folder: Path) -> list[dict[str, str]]:
    with (folder / "labels.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def test_after_eight_chosen_pictures_every_fifth_is_of_the_audit_sample(tmp_path: Path) -> None:
    with opened(tmp_path) as session:
        kinds = answer(session, 23)

    audited = [i for i, kind in enumerate(kinds) if kind == "audit"]
    assert audited == [8, 13, 18]
    assert [row["chosen"] for row in rows(tmp_path)] == kinds
    assert rows(tmp_path)[0]["path"].startswith("photos/")


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
    assert accuracy["low"] == pytest.approx(0.596, abs=1e-3)  # Wilson's interval of 9 of 10
    assert accuracy["high"] == pytest.approx(0.982, abs=1e-3)


def test_audit_pictures_are_shown_without_a_guess(tmp_path: Path) -> None:
    with opened(tmp_path) as session:
        answer(session, 8)
        audit, chosen = session.state("audit"), session.describe(session.chosen_questions(1)[0])

    assert audit["question"]["kind"] == "audit"
    assert audit["question"]["guesses"] == []
    assert chosen["guesses"][0]["probability"] > 0.3


def test_a_restart_finds_the_same_session(tmp_path: Path) -> None:
    with opened(tmp_path, classes=["weed"]) as session:
        answer(session, 30)
        session.skip(session.questions("mixed")[0].picture)
        before = session.state("mixed")

    with opened(tmp_path, classes=["weed"]) as session:
        after = session.state("mixed")

    (note,) = after.pop("notes")
    assert before.pop("notes") == []
    assert "1 weed, " in note
    assert after == before
    assert next(one["name"] for one in after["classes"]) == "weed"
    assert after["skipped"] == 1


def test_undo_asks_about_the_same_picture_again(tmp_path: Path) -> None:
    with opened(tmp_path) as session:
        answer(session, 9)
        picture = session.questions("mixed")[0].picture
        before = session.state("mixed")
        session.answer(picture, "rose")
        assert session.state("mixed")["undo"] == f"{picture:03}.jpg: rose"

        session.undo()

        after = session.state("mixed")
        assert after["question"]["picture"] == picture
        assert after["question"]["reason"] == "again"
        assert after["classes"] == before["classes"]
        for _ in range(20):
            session.undo()  # nothing is left: no error
        assert session.state("mixed")["answered"] == 0


def test_several_pictures_are_confirmed_and_the_others_asked_about_next(tmp_path: Path) -> None:
    with opened(tmp_path) as session:
        answer(session, 8)
        likely = [picture for picture, _ in session.likely("daisy")]
        assert len(likely) == MANY
        session.confirm(likely[2:], "daisy", likely[:2])

        assert [q.picture for q in session.chosen_questions(2)] == likely[:2]
        assert not {*likely[2:]} & {picture for picture, _ in session.likely("daisy")}
        session.undo()
        assert {picture for picture, _ in session.likely("daisy")} == {*likely}

    assert len(rows(tmp_path)) == 8


def test_identical_files_get_one_answer_and_a_line_each(tmp_path: Path) -> None:
    with opened(tmp_path) as session:
        session.answer(1, "rose")

    assert [row["path"] for row in rows(tmp_path)] == ["photos/001.jpg", "photos/copy of 001.jpg"]


def test_all_pictures_can_be_answered(tmp_path: Path) -> None:
    with opened(tmp_path) as session:
        answer(session, len(Z))
        state = session.state("mixed")

    assert state["question"] is None
    assert state["answered"] == len(Z)
    assert state["accuracy"]["images"] == 40


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("", "must have 1 to 80 characters"),
        ("  ", "must have 1 to 80 characters"),
        ("x" * 81, "not 81"),
        ("a|b", "invalid class name"),
        ("a,b", "invalid class name"),
        ("a\u202eb", "invalid class name"),
        ("a\0b", "invalid class name"),
    ],
)
def test_unusable_class_names_are_refused(tmp_path: Path, name: str, message: str) -> None:
    with opened(tmp_path) as session, pytest.raises(UsageError, match=message):
        session.answer(0, name)

    assert rows(tmp_path) == []


def test_a_name_in_another_spelling_is_the_same_class(tmp_path: Path) -> None:
    with opened(tmp_path, classes=["Tulip", "tulip ", "rose"]) as session:
        session.answer(0, " TULIP")

        assert session.classes == ["Tulip", "rose"]


def test_a_picture_is_answered_once(tmp_path: Path) -> None:
    with opened(tmp_path) as session:
        session.answer(0, "rose")
        with pytest.raises(UsageError, match="already has an answer"):
            session.answer(0, "tulip")
        with pytest.raises(UsageError, match="already has an answer"):
            session.skip(0)
        with pytest.raises(UsageError, match="already has an answer"):
            session.confirm([0], "rose", [])
        with pytest.raises(UsageError, match="no picture 999"):
            session.answer(999, "rose")


def test_answers_about_other_pictures_are_kept_and_counted(tmp_path: Path) -> None:
    (tmp_path / "labels.csv").write_text("path,label,chosen\nelsewhere.jpg,weed,picked\n")

    with opened(tmp_path) as session:
        session.answer(0, "rose")
        assert session.notes[0].startswith("ignored 1 answer in labels.csv, because")
        assert session.classes == ["weed", "rose"]
        assert session.notes[1].startswith("the keys of the classes are in the order of their")
        assert ": 1 weed; --classes sets another order" in session.notes[1]

    assert [row["path"] for row in rows(tmp_path)] == ["elsewhere.jpg", "photos/000.jpg"]


@pytest.mark.parametrize(
    ("number", "keys"),
    [
        (10, "1 a, 2 b, 3 c, 4 d, 5 e, 6 f, 7 g, 8 h, 9 i and 10 j;"),
        (11, "1 a, 2 b, 3 c, 4 d, 5 e, 6 f, 7 g, 8 h, 9 i and 2 more;"),
    ],
)
def test_the_keys_of_nine_classes_are_listed(tmp_path: Path, number: int, keys: str) -> None:
    lines = [f"photos/{i:03}.jpg,{chr(97 + i)},picked" for i in range(number)]
    (tmp_path / "labels.csv").write_text("\n".join(["path,label,chosen", *lines]) + "\n")

    with opened(tmp_path) as session:
        (note,) = session.notes

    assert f"in the order of their first answers in labels.csv: {keys} --classes sets" in note


def test_classes_that_are_given_need_no_note_on_their_keys(tmp_path: Path) -> None:
    (tmp_path / "labels.csv").write_text("path,label,chosen\nphotos/000.jpg,rose,picked\n")

    with opened(tmp_path, classes=("tulip", "rose")) as session:
        assert session.notes == []
        assert session.classes == ["tulip", "rose"]


def test_a_run_guesses_before_the_first_answer_until_a_class_has_answers(tmp_path: Path) -> None:
    sure = torch.cat([torch.arange(0, 20), torch.arange(100, 120)])
    pool = make_pool(classes=("daisy", "rose"), stand_ins=StandIns(sure, Y[sure]))

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


# rules -------------------------------------------------------------------------------------------


def large_pool(pictures: int) -> PicturePool:
    """Return a pool of so many pictures with random features."""
    z = torch.nn.functional.normalize(torch.randn(pictures, 4), dim=1)
    digests = tuple(f"{i:064x}" for i in range(pictures))
    paths = tuple((f"{i}.jpg",) for i in range(pictures))
    return PicturePool(root=Path(), paths=paths, digests=digests, z=z)


@pytest.mark.parametrize(
    ("pictures", "audited"), [(4, 0), (5, 1), (999, 199), (1000, 200), (1010, 200)]
)
def test_a_fifth_of_the_pictures_but_at_most_200_are_audited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pictures: int, audited: int
) -> None:
    monkeypatch.setattr(
        "vitft.serve.label.session.first_pictures", lambda z: [*range(min(9, len(z)))]
    )
    with opened(tmp_path, large_pool(pictures)) as session:
        assert len(session.audit_sample) == audited
        assert sorted([*session.audit_sample, *session.random_rest]) == [*range(pictures)]
        assert not {*session.audit_sample} & {*session.typical}
        assert len(session.unlabelled()) == min(500, pictures - audited)


def test_the_first_ten_chosen_pictures_and_every_fourth_later_one_are_typical(
    tmp_path: Path,
) -> None:
    reasons: list[str] = []
    with opened(tmp_path) as session:
        while len(reasons) < 20:
            question = session.questions("mixed")[0]
            session.answer(question.picture, truth(question.picture))
            if question.kind == "picked":
                reasons.append(question.reason)
        ahead = [question.reason for question in session.chosen_questions(6)]

    assert reasons == ["typical"] * 10 + ["unsure" if i % 4 else "typical" for i in range(10, 20)]
    assert ahead == ["typical", "unsure", "unsure", "unsure", "typical", "unsure"]


def test_three_questions_are_known_ahead_and_none_is_asked_twice(tmp_path: Path) -> None:
    with opened(tmp_path) as session:
        answer(session, 8)
        questions = session.questions("mixed")
        audit = session.questions("audit")
        state = session.state("mixed")

    assert [one.kind for one in questions] == ["audit", "picked", "picked"]
    assert len({one.picture for one in questions}) == 3
    assert [one.picture for one in audit] == session.audit_sample[:3]
    assert state["upcoming"] == [one.picture for one in questions[1:]]
    assert state["question"]["picture"] == questions[0].picture


def test_likely_pictures_are_open_ones_with_this_guess_most_probable_first(
    tmp_path: Path,
) -> None:
    with opened(tmp_path) as session:
        answer(session, 20)
        probabilities = session.probabilities
        assert probabilities is not None
        found = {name: session.likely(name) for name in NAMES}
        state = session.state("mixed")
        taken = {*session.kind_of, *session.audit_sample}
        with pytest.raises(UsageError, match="there is no class weed"):
            session.likely("weed")

    for number, name in enumerate(session.classes):
        best, guessed = probabilities.max(dim=1)
        own = [i for i in range(len(Z)) if guessed[i] == number and i not in taken]
        wanted = sorted(own, key=lambda i: (-float(best[i]), i))[:40]
        assert [picture for picture, _ in found[name]] == wanted
        assert [p for _, p in found[name]] == pytest.approx([float(best[i]) for i in wanted])
        described = state["classes"][number]
        assert (described["name"], described["likely"]) == (name, len(own))
        assert described["answers"] == [*session.label_of.values()].count(number)


def test_a_question_has_up_to_three_guesses_and_the_number_of_copies(tmp_path: Path) -> None:
    with opened(tmp_path, classes=["a weed", "b weed"]) as session:
        answer(session, 12)
        two = session.describe(Question(1, "picked", "typical"))
        for picture in [i for i in range(200) if i not in session.kind_of][:1]:
            session.answer(picture, "a fourth")
        four = session.describe(Question(7, "picked", "typical"))

    named = [one["class"] for one in two["guesses"]]
    assert sorted(named) == sorted(NAMES)[: len(named)]  # classes without answers are no guess
    assert (two["copies"], four["copies"]) == (1, 0)
    assert two["path"] == "001.jpg"
    assert len(four["guesses"]) == 3
    probabilities = [one["probability"] for one in four["guesses"]]
    assert probabilities == sorted(probabilities, reverse=True)


def test_a_class_has_stand_ins_until_it_has_five_answers(tmp_path: Path) -> None:
    sure = torch.cat([torch.arange(0, 20), torch.arange(100, 120)])
    pool = make_pool(classes=("daisy", "rose"), stand_ins=StandIns(sure, Y[sure]))

    with opened(tmp_path, pool) as session:
        pictures = [i for i in range(40, 60) if i not in session.audit_sample]
        counts = []
        for picture in pictures[:5]:
            session.answer(picture, "daisy")
            counts.append(len({*session.trained.tolist()} & {*range(20)}))

    usable = len({*range(20)} - {*session.audit_sample})
    assert counts == [usable] * 4 + [0]


def test_the_stand_ins_of_a_class_weigh_as_much_as_five_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sure = torch.cat([torch.arange(0, 20), torch.arange(100, 110)])
    pool = make_pool(classes=("daisy", "rose"), stand_ins=StandIns(sure, Y[sure]))
    weights: list[Any] = []

    def fit(z: Any, y: Any, w: Any, *_: Any, classes: int) -> Any:
        weights.append((y, w))
        return torch.zeros(classes, z.shape[1] + 1)

    monkeypatch.setattr("vitft.serve.label.session.self_trained_head", fit)

    with opened(tmp_path, pool) as session:
        session.answer(next(i for i in range(40, 60) if i not in session.audit_sample), "rose")

    labels, found = weights[-1]
    assert found[0] == 1  # the answer
    assert found[1:][labels[1:] == 0].sum() == pytest.approx(5)
    assert found[1:][labels[1:] == 1].sum() == pytest.approx(5)


def test_only_an_undone_answer_about_one_picture_is_asked_again(tmp_path: Path) -> None:
    with opened(tmp_path) as session:
        assert session.state("mixed")["undo"] == ""
        answer(session, 8)
        free = [picture for picture, _ in session.likely("daisy")]
        session.confirm(free[:2], "daisy", [])
        assert session.state("mixed")["undo"] == "2 files: daisy"
        session.undo()
        assert session.ask_first == []
        session.answer(1, "rose")  # two files
        session.undo()
        assert session.ask_first == [1]
        session.skip(5)
        assert session.state("mixed")["undo"] == "005.jpg: skipped"


def test_there_are_up_to_a_thousand_classes_of_80_characters(tmp_path: Path) -> None:
    names = [f"{i:080}" for i in range(999)]

    with opened(tmp_path, classes=names) as session:
        session.answer(0, "the last one")
        with pytest.raises(UsageError, match="there are already 1,000 classes"):
            session.answer(2, "one more")
        session.answer(2, names[0])


def test_pictures_are_confirmed_together_only_outside_the_audit_sample(tmp_path: Path) -> None:
    with opened(tmp_path) as session:
        answer(session, 8)
        free = [i for i in session.random_rest if i not in session.kind_of]
        for pictures, taken_out in (([], []), (free[:1], session.audit_sample[-1:])):
            with pytest.raises(UsageError, match="cannot be confirmed together"):
                session.confirm(pictures, "rose", taken_out)
        session.confirm([free[0], free[0]], "rose", [])
        with pytest.raises(UsageError, match="no picture -1"):
            session.skip(-1)
        with pytest.raises(UsageError, match="no picture 200"):
            session.skip(200)

    assert [row["chosen"] for row in rows(tmp_path)].count("confirmed") == 1


def test_labelled_pictures_are_counted_by_class_in_the_order_of_the_classes(tmp_path: Path) -> None:
    with opened(tmp_path, classes=("tulip", "rose", "daisy")) as session:
        assert session.answers_by_class() == {}
        session.answer(0, "daisy")
        session.answer(1, "tulip")
        session.answer(2, "daisy")
        session.skip(3)

        assert [*session.answers_by_class().items()] == [("tulip", 1), ("daisy", 2)]


def test_the_step_to_undo_is_described(tmp_path: Path) -> None:
    with opened(tmp_path) as session:
        descriptions = [session.last_step()]
        open_ones = [int(i) for i in session.open_pictures() if i not in (0, 1)]
        session.answer(0, "rose")
        descriptions.append(session.last_step())
        session.answer(1, "tulip")
        descriptions.append(session.last_step())
        session.skip(open_ones[0])
        descriptions.append(session.last_step())
        session.confirm(open_ones[1:4], "daisy", [])
        descriptions.append(session.last_step())

    assert descriptions == [
        "",
        "000.jpg: rose",
        "2 files: tulip",  # identical files
        f"{open_ones[0]:03}.jpg: skipped",
        "3 files: daisy",
    ]
