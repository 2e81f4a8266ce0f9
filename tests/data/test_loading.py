"""Decoding in threads: in order, a few at a time, without leftovers."""

import itertools
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.support.limits import HANG_S
from vitft.data import loading
from vitft.data.folder import File
from vitft.data.loading import (
    Pixels,
    decode_images,
    in_chunks,
    in_order,
    overlapped,
    stack_batches,
    wait_for,
)
from vitft.system.errors import ImageError


@pytest.fixture
def numbered(tmp_path: Path) -> list[str]:
    """Twelve images whose grey level is their number; the third and the last are damaged."""
    paths = []
    for number in range(12):
        path = tmp_path / f"{number:02}.png"
        Image.new("RGB", (4, 4), (number, number, number)).save(path)
        paths.append(str(path))
    Path(paths[2]).write_bytes(b"")
    Path(paths[11]).write_bytes(b"<html>")
    return paths


def as_array(_: int, image: Image.Image) -> Pixels:
    return np.array(image)


def threads() -> int:
    return sum(thread.name.startswith("vitft-decode") for thread in threading.enumerate())


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_results_come_in_the_order_of_the_paths(numbered: list[str], workers: int) -> None:
    def slow_at_first(number: int, image: Image.Image) -> Pixels:
        time.sleep(0.002 * (12 - number))
        return np.full(1, image.getpixel((0, 0))[0] * 100 + number)  # type: ignore[index]

    results = list(decode_images(numbered, slow_at_first, workers=workers))

    assert [-1 if isinstance(r, ImageError) else int(r[0]) for r in results] == [
        *(0, 101, -1, 303, 404, 505, 606, 707, 808, 909, 1010, -1)
    ]


def test_a_bad_file_gets_its_error_and_never_another_files_image(numbered: list[str]) -> None:
    errors = {
        n: r for n, r in enumerate(decode_images(numbered, as_array)) if isinstance(r, ImageError)
    }

    assert {n: (e.path, e.reason) for n, e in errors.items()} == {
        2: (numbered[2], "empty file"),
        11: (numbered[11], "not an image (looks like HTML)"),
    }
    assert all(e.__traceback__ is None and e.__context__ is None for e in errors.values())


def test_an_endless_list_of_paths_is_read_only_a_little_ahead(numbered: list[str]) -> None:
    asked = 0

    def endless() -> Iterator[str]:
        nonlocal asked
        for path in itertools.cycle(numbered):
            asked += 1
            yield path

    images = decode_images(endless(), as_array, workers=2, ahead=5)
    first = list(itertools.islice(images, 100))
    images.close()

    assert len(first) == 100
    assert asked <= 105
    assert threads() == 0


@pytest.mark.parametrize(
    ("workers", "ahead", "asked"), [(2, None, 8), (3, None, 12), (2, 5, 5), (2, 1, 1), (2, 0, 1)]
)
def test_four_items_per_worker_are_in_progress_by_default(
    workers: int, ahead: int | None, asked: int
) -> None:
    taken: list[int] = []

    def items() -> Iterator[int]:
        for number in range(100):
            taken.append(number)
            yield number

    results = in_order(str, items(), workers=workers, ahead=ahead)

    assert [next(results), len(taken)] == ["0", asked]
    assert [next(results), len(taken)] == ["1", asked + 1]
    results.close()


def test_items_are_divided_into_chunks() -> None:
    assert list(in_chunks(range(7), 3)) == [[0, 1, 2], [3, 4, 5], [6]]
    assert list(in_chunks(range(6), 3)) == [[0, 1, 2], [3, 4, 5]]
    assert list(in_chunks([], 3)) == []


def test_work_is_finished_in_order_in_one_thread_while_the_next_is_started() -> None:
    started: list[int] = []
    finished: list[tuple[int, str]] = []
    held = threading.Event()

    def start(item: int) -> Callable[[], int]:
        started.append(item)

        def finish() -> int:
            held.wait(10)
            finished.append((item, threading.current_thread().name))
            return item * 10

        return finish

    results = overlapped(range(6), start)
    threading.Timer(0.1, held.set).start()

    assert next(results) == 0
    assert started == [0, 1, 2]  # two are unfinished when the next one is taken
    assert [*results] == [10, 20, 30, 40, 50]
    assert [item for item, _ in finished] == [*range(6)]
    assert {name for _, name in finished} == {"vitft-finish_0"}


def test_finished_work_is_not_held_back() -> None:
    started: list[int] = []

    def start(item: int) -> Callable[[], int]:
        started.append(item)
        time.sleep(0.02)  # the one before is finished by now
        return lambda: item

    results = overlapped(range(9), start, ahead=8)

    assert next(results) == 0
    assert len(started) < 4
    results.close()
    assert not [t for t in threading.enumerate() if t.name.startswith("vitft-finish")]


def test_unfinished_work_is_cancelled_when_the_results_are_closed() -> None:
    finished: list[int] = []

    def start(item: int) -> Callable[[], None]:
        def finish() -> None:
            time.sleep(0.03)
            finished.append(item)

        return finish

    results = overlapped(range(9), start, ahead=8)
    next(results)
    results.close()

    assert len(finished) <= 3


def test_a_long_wait_is_logged_after_half_a_minute_and_each_time_it_doubles(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    waits: list[float] = []

    class Slow(Future[str]):
        def result(self, timeout: float | None = None) -> str:
            waits.append(timeout or 0)
            if len(waits) < 4:
                raise TimeoutError
            return "done"

    assert wait_for("slow.png", Slow()) == "done"

    assert waits == [30, 30, 60, 120]
    assert [record.getMessage() for record in caplog.records] == [
        f"still waiting for slow.png after {seconds} s" for seconds in (30, 60, 120)
    ]


@pytest.mark.parametrize("error", [ValueError("a bug"), KeyboardInterrupt()])
def test_an_error_in_a_view_ends_the_stream_and_its_threads(
    numbered: list[str], error: BaseException
) -> None:
    def fail(number: int, image: Image.Image) -> Pixels:
        if number == 5:
            raise error
        return as_array(number, image)

    with pytest.raises(type(error)):
        list(decode_images(numbered, fail))

    assert threads() == 0


def test_a_slow_file_is_named_while_it_is_awaited(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(loading, "PATIENCE_S", 0.05)

    def read(file: File) -> str:
        time.sleep(0.25 if file.path == "slow.png" else 0)
        return file.path

    files = [File("quick.png", 0), File("slow.png", 0)]

    assert list(in_order(read, files, workers=1)) == ["quick.png", "slow.png"]
    shown = capsys.readouterr().err
    assert shown.count("waiting for slow.png after 0 s") in (2, 3)  # after 0.05, 0.1 and 0.2 s
    assert "quick" not in shown


def test_an_awaited_batch_is_named_by_its_first_file() -> None:
    assert loading.first_path([File("a.png", 0), File("b.png", 0)]) == "a.png"
    assert loading.first_path((7, "photos/a.png")) == "photos/a.png"
    assert loading.first_path(("photos/a.png", "cat")) == "photos/a.png"
    assert loading.first_path(Path("a.png")) == "a.png"


def test_a_timeout_of_the_function_itself_is_raised() -> None:
    def fail(_: int) -> None:
        raise TimeoutError("lost")

    with pytest.raises(TimeoutError, match="lost"):
        list(in_order(fail, [1], workers=1))


def test_ctrl_c_ends_a_long_decode_immediately(numbered: list[str]) -> None:
    code = (
        "import itertools, sys, numpy\nfrom vitft.data.loading import decode_images\n"
        "paths = itertools.cycle(sys.argv[1:])\n"
        "images = decode_images(paths, lambda _, image: numpy.array(image), workers=3)\n"
        "for n, _ in enumerate(images):\n"
        "    if n == 50: print('on', flush=True)"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", code, *numbered],
        env={"PYTHONPATH": str(Path(__file__).parents[2])},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with child:
        assert child.stdout is not None
        assert child.stdout.readline() == "on\n"

        child.send_signal(signal.SIGINT)

        _, told = child.communicate(timeout=10)
    assert child.returncode == -signal.SIGINT
    assert told.rstrip().endswith("KeyboardInterrupt")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_a_command_whose_read_has_stalled(
    image_folder: Path, tmp_path: Path, number: int, code: int
) -> None:
    stalled = (
        "import time\nfrom vitft.data import inspection\n"
        "def stall(*_, **__):\n    print('on', flush=True)\n    time.sleep(600)\n"
        "inspection.read_bytes = stall\n"
        "from vitft.__main__ import run\nrun()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", stalled, "check", str(image_folder)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "on\n"

        child.send_signal(number)

        _, errors = child.communicate(timeout=HANG_S)
    assert child.returncode == code
    assert "Traceback" not in errors


def test_a_read_that_ends_soon_after_ctrl_c_leaves_no_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(loading, "wait_for", interrupted)

    with pytest.raises(KeyboardInterrupt):
        list(in_order(lambda _: time.sleep(0.05), range(10), workers=2))

    assert threads() == 0


def test_pending_work_is_cancelled_when_the_generator_is_closed() -> None:
    begun: list[int] = []

    def work(item: int) -> int:
        begun.append(item)
        time.sleep(0.02)
        return item

    results = in_order(work, range(1000), workers=2, ahead=400)
    next(results)
    results.close()

    assert len(begun) < 20
    assert threads() == 0


def test_an_error_of_the_list_of_paths_is_not_swallowed(numbered: list[str]) -> None:
    def broken() -> Iterator[str]:
        yield numbered[0]
        raise OSError("the list ends here")

    with pytest.raises(OSError, match="the list ends here"):
        list(decode_images(broken(), as_array))

    assert threads() == 0


def test_larger_images_than_allowed_are_errors(numbered: list[str]) -> None:
    results = list(decode_images(numbered[:1], as_array, max_pixels=15))

    assert isinstance(results[0], ImageError)
    assert "too large: 4x4" in results[0].reason


def test_batches_are_full_and_have_the_indices_of_their_rows(numbered: list[str]) -> None:
    stacks = list(stack_batches(decode_images(numbered, as_array), 4))

    assert [stack.indices for stack in stacks] == [(0, 1, 3, 4), (5, 6, 7, 8), (9, 10)]
    assert [stack.pixels.shape for stack in stacks] == [(4, 4, 4, 3), (4, 4, 4, 3), (2, 4, 4, 3)]
    assert all((s.pixels[:, 0, 0, 0] == s.indices).all() for s in stacks)
    assert [[n for n, _ in stack.failed] for stack in stacks] == [[2], [], [11]]


def test_a_stack_of_nothing_but_errors_still_reports_them(numbered: list[str]) -> None:
    stacks = list(stack_batches(decode_images([numbered[2], numbered[11]], as_array), 4))

    assert len(stacks) == 1
    assert stacks[0].indices == ()
    assert [number for number, _ in stacks[0].failed] == [0, 1]


@pytest.mark.parametrize("make", [lambda p: p, Path], ids=["str", "Path"])
def test_paths_may_be_strings_or_paths(numbered: list[str], make: Callable[[str], str]) -> None:
    assert not isinstance(next(decode_images([make(numbered[0])], as_array)), ImageError)
