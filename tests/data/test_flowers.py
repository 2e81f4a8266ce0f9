"""The drawn flowers and the bundled weights, which were not trained on them."""

from collections import Counter
from pathlib import Path

from PIL import Image

from vitft.data import draw_demo

KINDS = ("daisy", "poppy", "rose", "sunflower", "tulip")


def contents(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*.jpg"))
    }


def test_the_demo_is_an_image_folder_of_five_kinds(tmp_path: Path) -> None:
    draw_demo(tmp_path, per_class=2, size=48)

    files = sorted(tmp_path.rglob("*.*"))
    assert Counter(path.parent.name for path in files) == dict.fromkeys(KINDS, 2)
    assert {path.name for path in files} == {"0001.jpg", "0002.jpg"}
    for path in files:
        with Image.open(path) as image:
            assert (image.size, image.mode) == ((48, 48), "RGB")


def test_the_same_seed_draws_the_same_bytes_and_another_seed_others(tmp_path: Path) -> None:
    for name, seed in (("first", 3), ("again", 3), ("other", 4)):
        draw_demo(tmp_path / name, per_class=1, size=48, seed=seed)

    first, again, other = (contents(tmp_path / name) for name in ("first", "again", "other"))
    assert first == again
    assert first.keys() == other.keys()
    assert all(first[name] != other[name] for name in first)
