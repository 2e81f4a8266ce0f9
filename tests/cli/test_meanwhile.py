"""What happens to files while a command works: images vanish, another command is faster."""

import contextlib
import logging
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.contract.built.runs import single
from tests.contract.rows import draw, run
from tests.support.fail_points import FailPoints


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A current folder with 30 images in T, and R, their run."""
    monkeypatch.chdir(tmp_path)
    single(tmp_path)
    return tmp_path


@contextlib.contextmanager
def when_logged(text: str, act: Callable[[], object]) -> Iterator[None]:
    """Call a function when a message that contains a text is logged."""
    handler, logger = logging.Handler(), logging.getLogger("vitft")
    handler.emit = lambda record: text in record.getMessage() and act()
    logger.addHandler(handler)
    yield
    logger.removeHandler(handler)


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("finetune --data T --device cpu", "found 1 group of duplicates"),
        ("check T", "checking images and labels: 31/31"),
    ],
)
def test_pages_show_the_other_images_if_some_have_vanished_since(
    here: Path, command: str, message: str
) -> None:
    (here / "T/cat/twin.jpg").write_bytes((here / "T/dog/0.jpg").read_bytes())

    def vanish() -> None:
        (here / "T/cat/twin.jpg").unlink()
        (here / "T/dog/0.jpg").unlink()

    with when_logged(message, vanish):
        code, printed = run(f"{command} --weights w.safetensors --cache none --out N -v".split())

    assert (code, "no thumbnails" in printed) == (0, False), printed
    pages = [*here.glob("N/*.html")]
    assert pages[0].read_text().count("data:image/jpeg") >= 5


def test_a_demo_folder_that_another_command_finishes_first_is_used(here: Path) -> None:
    def draw_faster() -> None:
        for name in ("rose", "tulip"):
            draw(here / "demo_flowers" / name / "1.jpg")

    command = ["finetune", "--data", "demo", "--weights", "w.safetensors"]
    with FailPoints(here, 20, "EACCES"):
        alone = run(command)
    with when_logged("creating flower images", draw_faster), FailPoints(here, 20, "EACCES"):
        second = run(command)

    assert (alone[0], "cannot write demo_flowers" in alone[1]) == (5, True), alone
    assert (second[0], "rose (1) and tulip (1)" in second[1]) == (3, True), second


def test_ctrl_c_prints_how_to_continue_a_prediction(here: Path) -> None:
    command = ["predict", "T", "--run", "R", "--out", "rows.csv"]
    with FailPoints(here, 4, die=lambda: signal.raise_signal(signal.SIGINT)):
        code, printed = run(command)

    assert code == 130
    assert "rows.csv.part. To continue, add --resume to the same command" in printed
    assert run([*command, "--resume"])[0] == 0
