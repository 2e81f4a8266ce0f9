"""README paragraphs on files that other libraries open differently from vitft."""

from vitft.data.transforms import EvalTransform

ONLY_VITFT = "floating-point images and 12-bit TIFF files can only be opened by vitft itself."


def caveat(transform: EvalTransform) -> str:
    """Return a paragraph on files that other libraries open differently from vitft."""
    rest = ONLY_VITFT
    if transform.grey_range:
        low, high = transform.grey_range
        rest = (
            "in grey images with more than 8 bits, `open_rgb` scales the range of the training "
            f"images ({low:,.6g} to {high:,.6g}) to 0..255. 16-bit colour can only be opened by "
            "vitft itself."
        )
    return (
        "Other libraries ignore the EXIF rotation, render transparency in arbitrary colours and "
        "clip 16-bit grey to white. `open_rgb` handles all three as vitft did when it trained the "
        f"model; {rest}"
    )


def javascript_caveat(transform: EvalTransform) -> str:
    """Return a paragraph on files that transformers.js opens differently from vitft."""
    wide, colour, page = "keeps the upper 8 bits of 16-bit grey images", "", ""
    if transform.grey_range:
        low, high = transform.grey_range
        wide = (
            f"scales the range of the training images ({low:,.6g} to {high:,.6g}) to 0..255 in "
            "16-bit grey images"
        )
        colour = "16-bit colour, "
        page = (
            " Web pages open images themselves and do not scale 16-bit images in this way; convert "
            "such images first."
        )
    return (
        "`openRgb` converts images as vitft did when it trained the model: it rotates them "
        "according to EXIF, composites them on white, converts CMYK without a colour profile and "
        f"{wide}; {colour}{ONLY_VITFT}{page}"
    )
