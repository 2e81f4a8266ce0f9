"""Pictures of a hub page: the confusion matrix, and example images if their licence allows it."""

import io
from collections.abc import Sequence

from PIL import Image, ImageDraw, ImageFont, ImageOps

from vitft.export.trained import TrainedRun, unchanged_images
from vitft.metrics.results import RunResults

CONFUSION_FILE, EXAMPLES_FILE = "confusion.png", "examples.jpg"
MOST_LABELLED = 40
"""Maximum number of classes for which the matrix shows names and numbers."""
_MOST_DRAWN = 1000
"""Maximum number of classes for which a matrix is drawn."""
CELL, NAME_WIDTH, FONT_PX = 44, 150, 14
"""Side of a numbered cell, width of the class names and font size, in pixels."""
RIGHT, WRONG, INK, PAPER = (11, 110, 79), (190, 60, 30), (30, 30, 30), (255, 255, 255)
MOST_EXAMPLES, EXAMPLE_SIDE, EXAMPLE_COLUMNS = 24, 160, 6
"""Maximum number of example images, their side in pixels, and the number per row."""


def confusion_png(classes: Sequence[str], results: RunResults) -> bytes | None:
    """Return the confusion matrix as a PNG.

    The result is None for multi-label models and for models with too many classes. Rows are true
    classes and columns are predictions. The larger its fraction of the row, the darker a cell is:
    correct predictions in green, others in orange.
    """
    matrix, size = results["confusion"], len(classes)
    if size > _MOST_DRAWN or "labels" in results:
        return None
    is_named = size <= MOST_LABELLED
    cell = CELL if is_named else max(2, 800 // size)
    margin = NAME_WIDTH if is_named else 0
    picture = Image.new("RGB", (margin + cell * size + 1, margin + cell * size + 1), PAPER)
    canvas, font = ImageDraw.Draw(picture), ImageFont.load_default(FONT_PX)
    for i, row in enumerate(matrix):
        for j, number in enumerate(row):
            left, top = margin + j * cell, margin + i * cell
            fraction = number / max(1, sum(row))
            colour = RIGHT if i == j else WRONG
            shade = tuple(round(255 + (c - 255) * min(1, fraction**0.5)) for c in colour)
            line = (225, 225, 225) if is_named else None
            canvas.rectangle((left, top, left + cell, top + cell), fill=shade, outline=line)
            if is_named and number:
                place = left + cell / 2, top + cell / 2
                ink = PAPER if fraction > 0.3 else INK
                canvas.text(place, str(number), ink, font, anchor="mm")
    if is_named:
        _draw_names(picture, classes)
    buffer = io.BytesIO()
    picture.save(buffer, "png", optimize=True)
    return buffer.getvalue()


def _draw_names(picture: Image.Image, classes: Sequence[str]) -> None:
    """Write the names beside the rows and, rotated to read upwards, above the columns.

    Long names are shortened, and the number of the class replaces a name that is not ASCII.
    """
    font = ImageFont.load_default(FONT_PX)
    for i, name in enumerate(classes):
        text = name if name.isascii() and name.isprintable() else f"class {i}"
        while font.getlength(text) > NAME_WIDTH - 12:
            text = text.removesuffix("...")[:-1] + "..."
        label = Image.new("RGB", (NAME_WIDTH - 8, CELL), PAPER)
        above = label.copy()
        ImageDraw.Draw(label).text((label.width, CELL / 2), text, INK, font, anchor="rm")
        picture.paste(label, (0, NAME_WIDTH + i * CELL))
        ImageDraw.Draw(above).text((0, CELL / 2), text, INK, font, anchor="lm")
        picture.paste(above.transpose(Image.Transpose.ROTATE_90), (NAME_WIDTH + i * CELL, 0))


def example_images(trained: TrainedRun) -> tuple[bytes, list[str]] | None:
    """Return a JPEG grid of at most one validation image per class, and the class names in order.

    The JPEG has no metadata. The result is None for multi-label models, and if the validation
    images cannot be found.
    """
    if trained.card.thresholds:
        return None
    found: dict[int, Image.Image] = {}
    wanted = min(MOST_EXAMPLES, len(trained.card.classes))
    for sample in unchanged_images(trained.run, trained.card, 20 * len(trained.card.classes)):
        side = (EXAMPLE_SIDE, EXAMPLE_SIDE)
        if (label := int(sample.label)) not in found:
            found[label] = ImageOps.fit(sample.image, side, Image.Resampling.LANCZOS)
        if len(found) == wanted:
            break
    if not found:
        return None
    columns = min(EXAMPLE_COLUMNS, len(found))
    rows = -(-len(found) // columns)
    sheet = Image.new("RGB", (columns * EXAMPLE_SIDE, rows * EXAMPLE_SIDE), PAPER)
    for i, label in enumerate(sorted(found)):
        place = i % columns * EXAMPLE_SIDE, i // columns * EXAMPLE_SIDE
        sheet.paste(found[label], place)
    buffer = io.BytesIO()
    sheet.save(buffer, "jpeg", quality=90)
    return buffer.getvalue(), [trained.card.classes[label] for label in sorted(found)]
