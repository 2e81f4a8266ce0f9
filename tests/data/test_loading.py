"""Decoding in threads: in order, a few at a time, without leftovers."""

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from tests.support.children import started
from tests.support.limits import HANG_S
from vitft.data import Row, decode_images, draw_shifts, in_order, shift_and_flip
from vitft.system import ImageError

Pixels = np.ndarray[Any, np.dtype[np.uint8]]


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
    monkeypatch.setattr("vitft.data.images.PATIENCE_S", 0.01)
    shown = ""

    def read(file: Row) -> str:
        nonlocal shown
        while file.path == "slow.png" and "slow.png" not in shown:
            shown += capsys.readouterr().err
        return file.path

    files = [Row("quick.png", 0), Row("slow.png", 0)]

    assert list(in_order(read, files, workers=1)) == ["quick.png", "slow.png"]
    assert "waiting for slow.png after 0 s" in shown


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_a_command_whose_read_has_stalled(
    image_folder: Path, tmp_path: Path, number: int, code: int
) -> None:
    stalled = (
        "import os, time\nfrom vitft.data import images\n"
        "def stall(*_, **__):\n    os.write(1, b'on\\n')\n    time.sleep(600)\n"  # of each thread
        "images.read_bytes = stall\n"
        "from vitft.__main__ import run\nrun()"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    command = [sys.executable, "-c", stalled, "check", str(image_folder)]
    with started(command, cwd=tmp_path, env=environment) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "on\n"

        child.send_signal(number)

        _, errors = child.communicate(timeout=HANG_S)
    assert child.returncode == code
    assert "Traceback" not in errors


def test_an_error_of_the_list_of_paths_is_not_swallowed(numbered: list[str]) -> None:
    def broken() -> Iterator[str]:
        yield numbered[0]
        raise OSError("the list ends here")

    with pytest.raises(OSError, match="the list ends here"):
        list(decode_images(broken(), as_array))

    assert threads() == 0


def moves_of(images: list[int], *, turns: list[int] | None = None, epoch: int = 0) -> torch.Tensor:
    own, options = torch.tensor(turns or [0] * len(images)), {"count": 10, "seed": 3, "padding": 2}
    return draw_shifts(torch.tensor(images), own, epoch=epoch, flip=0.5, **options)


def test_a_move_is_a_crop_of_the_padded_image_and_perhaps_its_mirror_image() -> None:
    random = np.random.default_rng(0)
    pixels = torch.from_numpy(random.integers(0, 256, (20, 6, 5, 3), np.uint8))
    down, across = (torch.from_numpy(random.integers(0, 5, 20)) for _ in range(2))
    mirrored = torch.arange(20) % 2 == 0

    found = shift_and_flip(pixels, torch.stack([down, across, mirrored]), 2)

    padded = np.pad(pixels.numpy(), ((0, 0), (2, 2), (2, 2), (0, 0)))
    for i in range(20):
        wanted = padded[i, down[i] : down[i] + 6, across[i] : across[i] + 5]
        assert np.array_equal(found[i].numpy(), wanted[:, ::-1] if mirrored[i] else wanted)


def test_how_an_image_moves_does_not_depend_on_its_batch() -> None:
    whole, part = moves_of([4, 1, 7, 2]), moves_of([7, 4])

    for all_four, two in zip(whole, part, strict=True):
        assert all_four[[2, 0]].tolist() == two.tolist()


def test_every_move_within_the_padding_occurs() -> None:
    moves = draw_shifts(torch.arange(5000), torch.zeros(5000, dtype=torch.long), count=5000, seed=0,
                        epoch=0, padding=2, flip=0.25)  # fmt: skip

    assert set(moves[0].tolist()) == set(moves[1].tolist()) == {0, 1, 2, 3, 4}
    # Four standard deviations of a share of 5,000 images are 2.4 points.
    assert moves[2].float().mean().item() == pytest.approx(0.25, abs=0.025)
