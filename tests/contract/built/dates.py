"""Photos with EXIF dates."""

from functools import partial
from pathlib import Path

from PIL import Image

from tests.contract.rows import draw, expand

EXIF, TAKEN = 0x8769, 0x9003


def photos(folder: Path, *, undated: int = 0, text: str = "2024:05:{:02} 12:00:00") -> None:
    """Draw p with ten images each of cat and dog, one of each a day, some without a date."""
    for name in ("cat", "dog"):
        for path in expand(f"p/{name}/{{0-9}}.jpg"):
            draw(folder / path)
            number = int(Path(path).stem)
            exif = Image.Exif()
            if number >= undated:
                exif.get_ifd(EXIF)[TAKEN] = text.format(number + 1)
            with Image.open(folder / path) as image:
                image.load()
            image.save(folder / path, quality=95, exif=exif)


one_undated = partial(photos, undated=1)
many_undated = partial(photos, undated=3)
one_day = partial(photos, text="2024:05:01 12:00:00")
damaged = partial(photos, text="0000:00:{:02} xx")
null = partial(photos, text="0001:01:{:02} 00:00:00")  # as databases write it


def one_after_the_other(folder: Path) -> None:
    """Take the photos of cat before those of dog."""
    photos(folder)
    for name in ("cat", "dog"):
        for path in expand(f"p/{name}/{{0-9}}.jpg"):
            with Image.open(folder / path) as image:
                exif = image.getexif()
                image.load()
            day = f"2024:{5 + (name == 'dog'):02}:{int(Path(path).stem) + 1:02} 12:00:00"
            exif.get_ifd(EXIF)[TAKEN] = day
            image.save(folder / path, quality=95, exif=exif)
