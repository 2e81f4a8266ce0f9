"""Errors that a user can fix, and their exit codes."""

import pytest

from vitft.system import ImageError, Stopped, VitftError, errors


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("VitftError", 1),
        ("UsageError", 2),
        ("DataError", 3),
        ("ImageError", 3),
        ("WeightsError", 4),
        ("RunError", 5),
        ("ResourceError", 6),
        ("DivergedError", 7),
        ("LockedError", 8),
    ],
)
def test_every_kind_of_error_has_its_documented_exit_code(name: str, code: int) -> None:
    kind = getattr(errors, name)

    assert kind.exit_code == code
    assert issubclass(kind, VitftError)
    assert f"{name} " in (errors.__doc__ or "")


def test_an_error_states_the_problem_and_the_fix() -> None:
    error = VitftError("too small", fix="make it larger")

    assert str(error) == "too small\n  fix: make it larger"
    assert (error.problem, error.fix) == ("too small", "make it larger")
    image = ImageError("a.jpg", "empty file")
    assert (image.path, image.reason) == ("a.jpg", "empty file")
    assert str(image) == "a.jpg: empty file\n  fix: replace or remove the file"


def test_a_stop_is_an_interruption_with_an_exit_code() -> None:
    assert Stopped(143).exit_code == 143
    assert isinstance(Stopped(0), KeyboardInterrupt)
