"""Images that a program passes: single ones and sequences, their names and their batches."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from vitft.predict.pictures import numbered_batches, picture_name, read_picture
from vitft.system.errors import ImageError, UsageError

GREY = np.zeros((4, 5), np.uint8)


@pytest.mark.parametrize(
    "one",
    [
        "a.jpg",
        Path("a.jpg"),
        b"bytes",
        Image.new("RGB", (2, 2)),
        GREY,
        np.zeros((4, 5, 3), np.uint8),
        torch.zeros(3, 4, 5),
    ],
    ids=lambda one: type(one).__name__,
)
def test_a_single_image_is_a_batch_of_one(one: Any) -> None:
    (((index, picture),),) = numbered_batches(one, 4)

    assert index == 0
    assert picture is one


def test_a_stack_of_images_is_a_sequence_of_them() -> None:
    for stack in (np.zeros((3, 4, 5, 3), np.uint8), torch.zeros(3, 3, 4, 5)):
        batches = [*numbered_batches(stack, 2)]

        assert [[index for index, _ in batch] for batch in batches] == [[0, 1], [2]]
        assert batches[0][0][1].shape == stack.shape[1:]


def test_batches_are_numbered_on_and_an_iterator_is_read_only_as_far_as_needed() -> None:
    taken: list[int] = []

    def pictures() -> Iterator[str]:
        for i in range(5):
            taken.append(i)
            yield f"{i}.jpg"

    batches = numbered_batches(pictures(), 2)

    assert next(batches) == [(0, "0.jpg"), (1, "1.jpg")]
    assert taken == [0, 1]
    assert [*batches] == [[(2, "2.jpg"), (3, "3.jpg")], [(4, "4.jpg")]]
    assert [*numbered_batches([], 2)] == []


def test_other_types_are_refused() -> None:
    with pytest.raises(UsageError, match="images have unsupported type int"):
        next(numbered_batches(3, 2))  # type: ignore[arg-type]


def test_an_image_is_called_by_its_path_or_its_number() -> None:
    assert picture_name(7, "a.jpg") == "a.jpg"
    assert picture_name(7, Path("b/a.jpg")) == str(Path("b/a.jpg"))
    assert picture_name(7, b"bytes") == "7"
    assert picture_name(7, GREY) == "7"


def test_a_file_is_read_and_folders_and_patterns_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.jpg").write_bytes(b"content")

    assert read_picture(tmp_path / "a.jpg") == b"content"
    with pytest.raises(ImageError, match="a folder; pass its files"):
        read_picture(tmp_path)
    with pytest.raises(ImageError, match="a pattern; pass its files"):
        read_picture(tmp_path / "*.jpg")
    with pytest.raises(ImageError, match="not found") as missing:
        read_picture(tmp_path / "b.jpg")
    assert "pattern" not in str(missing.value)
