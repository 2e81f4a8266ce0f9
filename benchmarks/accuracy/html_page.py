"""The page of `export --html` in headless Chromium, from the disk and without a network, beside predict.

    python -m benchmarks.accuracy.html_page --run RUN --data DIR [--pictures FOLDER]

64 photos of DIR: 8 stored turned with an EXIF orientation, 8 PNG with alpha, 8 CMYK JPEG, 4 of 12 megapixels,
a WebP, a grey, a palette and a 16-bit image, and 32 as they are. Printed are the file's size, equal classes
and notes, the largest difference of a probability, violations of the content security policy, the seconds for
each photo that the page reports, and those of all from choosing to the last card. With --pictures,
screenshots at 1280 and 390 pixels are written.
"""

import argparse
import base64
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageOps

from tests.support.chromium import Chromium
from vitft.export import export_run
from vitft.export.plan import plan_export

SHOWN = """Array.from(document.querySelectorAll(".card"), (card) => ({
  answer: JSON.parse(card.dataset.prediction || "null"),
  notes: Array.from(card.querySelectorAll(".notes, .problem"), (note) => note.textContent),
}))"""
ORIENTATION = 0x112
UNDO = {2: Image.Transpose.FLIP_LEFT_RIGHT, 3: Image.Transpose.ROTATE_180, 4: Image.Transpose.FLIP_TOP_BOTTOM,
        5: Image.Transpose.TRANSPOSE, 6: Image.Transpose.ROTATE_90, 7: Image.Transpose.TRANSVERSE,
        8: Image.Transpose.ROTATE_270}  # fmt: skip
"""For each EXIF orientation, the operation on the upright pixels that it undoes."""


def turned(image: Image.Image, path: Path, index: int) -> None:
    orientation = 2 + index % 7
    exif = Image.Exif()
    exif[ORIENTATION] = orientation
    image.transpose(UNDO[orientation]).save(path.with_suffix(".jpg"), exif=exif, quality=95)


def transparent(image: Image.Image, path: Path, _: int) -> None:
    ramp = np.linspace(120, 255, image.width).astype(np.uint8)
    image.putalpha(Image.fromarray(np.tile(ramp, (image.height, 1))))
    image.save(path.with_suffix(".png"))


def cmyk(image: Image.Image, path: Path, _: int) -> None:
    image.convert("CMYK").save(path.with_suffix(".jpg"), quality=95)


def large(image: Image.Image, path: Path, _: int) -> None:
    ImageOps.fit(image, (4000, 3000)).save(path.with_suffix(".jpg"), quality=95)


def other(image: Image.Image, path: Path, index: int) -> None:
    if index == 0:
        image.save(path.with_suffix(".webp"), quality=95)
    elif index == 1:
        image.convert("L").save(path.with_suffix(".png"))
    elif index == 2:
        image.quantize(128).save(path.with_suffix(".png"))
    else:
        grey = np.asarray(image.convert("L")).astype(np.uint16) * 257
        Image.fromarray(grey).save(path.with_suffix(".png"))


def plain(image: Image.Image, path: Path, _: int) -> None:
    image.save(path.with_suffix(".jpg"), quality=95)


KINDS: dict[str, tuple[Callable[[Image.Image, Path, int], None], int]] = {
    "turned": (turned, 8), "transparent": (transparent, 8), "CMYK": (cmyk, 8),
    "12 megapixels": (large, 4), "other formats": (other, 4), "plain": (plain, 32),
}  # fmt: skip


def write_photos(data: Path, into: Path) -> Iterator[tuple[str, Path]]:
    """Write the photos, and yield the kind and path of each."""
    sources = sorted(data.rglob("*.jpg"))
    total = sum(count for _, count in KINDS.values())
    chosen = iter(sources[:: len(sources) // total])
    for kind, (write, count) in KINDS.items():
        for i in range(count):
            stem = into / f"{kind.replace(' ', '-')}-{i}"
            write(Image.open(next(chosen)).convert("RGB"), stem.with_suffix(""), i)
            yield kind, next(into.glob(f"{stem.name}.*"))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--run", required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--pictures", type=Path)
    args = parser.parse_args()
    program = shutil.which("chromium") or shutil.which("google-chrome") or sys.exit("no Chromium")
    with tempfile.TemporaryDirectory() as temporary:
        home = Path(temporary)
        (home / "photos").mkdir()
        photos = [*write_photos(args.data, home / "photos")]
        page = export_run(args.run, plan_export(["html"], str(home / "page"))).folder / "index.html"
        print(f"{page.stat().st_size / 1e6:.1f} MB, {len(photos)} photos")
        files = [path for _, path in photos]
        expected = predict(args.run, files)
        with Chromium(program, home / "profile", page) as browser:
            begun = time.perf_counter()
            browser.choose("#files", *files)
            browser.wait_for(
                f"document.querySelectorAll('#cards .classes, #cards .problem').length >= {len(files)}")  # fmt: skip
            wall, shown = time.perf_counter() - begun, browser.evaluate(SHOWN)
            complaints = browser.complaints()
            if args.pictures:
                take_pictures(browser, args.pictures)
        report(photos, expected, shown)
        print(f"{len(complaints)} violations and errors; {wall:.1f} s for all photos")


def predict(run: str, files: list[Path]) -> list[dict[str, Any]]:
    """Return the predictions of `vitft predict`."""
    words = ["predict", *map(str, files), "--run", run, "--top-k", "5", "--format", "jsonl"]
    done = subprocess.run(
        [sys.executable, "-m", "vitft", *words], check=True, capture_output=True, text=True
    )
    return [json.loads(line) for line in done.stdout.splitlines()]


def take_pictures(browser: Chromium, folder: Path) -> None:
    """Write screenshots of the page at two widths."""
    folder.mkdir(parents=True, exist_ok=True)
    for width, height in ((1280, 900), (390, 844)):
        browser.send("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1,
                     mobile=width < 600)  # fmt: skip
        time.sleep(0.5)
        picture = browser.send("Page.captureScreenshot", format="png")["data"]
        (folder / f"html_{width}.png").write_bytes(base64.b64decode(picture))


def report(
    photos: list[tuple[str, Path]], expected: list[dict[str, Any]], shown: list[dict[str, Any]]
) -> None:
    """Print the comparison by kind of photo."""
    for kind in KINDS:
        rows = [i for i, (one, _) in enumerate(photos) if one == kind]
        equal, notes, off, took = 0, 0, 0.0, []
        for i in rows:
            want, row = expected[i], shown[i]
            if row["answer"] is None:
                print(f"{photos[i][1].name}: {row['notes']}")
                continue
            found = {one["class"]: one["probability"] for one in row["answer"]["classes"]}
            equal += max(found, key=found.__getitem__) == want["classes"][0]["class"]
            off = max(
                off, *(abs(found[one["class"]] - one["probability"]) for one in want["classes"])
            )
            unlike = [
                "unlike the training images" in " ".join(text)
                for text in (row["notes"], want.get("notes", []))
            ]
            notes += unlike[0] == unlike[1]
            took.append(sum(row["answer"]["seconds"]))
        print(f"{kind:14} {equal} of {len(rows)} classes equal, {notes} notes equal, probabilities within {off:.4f}, "
              f"{statistics.median(took):.2f} s per image (median), {max(took):.2f} at most")  # fmt: skip


if __name__ == "__main__":
    main()
