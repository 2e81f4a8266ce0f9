"""Recognition of file formats by their first bytes, without decoding.

Only the formats in `SUPPORTED` are ever decoded (by `data.images`); the others are recognised so
that messages can name them.
"""

from collections.abc import Mapping

_ACCEPTED_SIGNATURES: Mapping[bytes, str] = {
    b"\xff\xd8\xff": "JPEG",
    b"\x89PNG\r\n\x1a\n": "PNG",
    **dict.fromkeys((b"GIF87a", b"GIF89a"), "GIF"),
    b"BM": "BMP",
    **dict.fromkeys((b"II*\0", b"MM\0*", b"II+\0", b"MM\0+"), "TIFF"),  # `+` marks BigTIFF
}
SUPPORTED = ("JPEG", "PNG", "WebP", "BMP", "GIF", "TIFF", "AVIF", "HEIC")
FORMAT_BY_SUFFIX: Mapping[str, str] = {
    ".jpg": "JPEG", ".jpeg": "JPEG", ".jfif": "JPEG", ".png": "PNG", ".webp": "WebP", ".bmp": "BMP",
    ".gif": "GIF", ".tif": "TIFF", ".tiff": "TIFF", ".avif": "AVIF", ".heic": "HEIC",
    ".heif": "HEIC", ".hif": "HEIC",
}  # fmt: skip

_FOREIGN_SIGNATURES: Mapping[bytes, str] = {
    **dict.fromkeys((b"%!PS", b"\xc5\xd0\xd3\xc6"), "EPS"),
    b"%PDF": "PDF",
    b"8BPS": "PSD",
    b"SIMPLE  =": "FITS",
    b"DDS ": "DDS",
    b"\0\0\1\0": "ICO",
    **dict.fromkeys((b"\0\0\0\x0cjP  ", b"\xff\x4f\xff\x51"), "JPEG 2000"),
    **dict.fromkeys((b"\0\0\0\x0cJXL ", b"\xff\x0a"), "JPEG XL"),
    b"v/1\x01": "OpenEXR",
    b"#?RADIANCE": "Radiance HDR",
    b"gimp xcf": "XCF",
    b"PK\x03\x04": "ZIP",
    b"\x1f\x8b": "gzip",
    b"Rar!": "RAR",
    b"7z\xbc\xaf\x27\x1c": "7z",
    b"\x93NUMPY": "NumPy",
    b"\x89HDF": "HDF5",
    b"\x1aE\xdf\xa3": "Matroska",
    **{b"P%d%c" % (n, blank): "PNM" for n in range(1, 8) for blank in b"\n\r\t #"},
}
_TEXT_SIGNATURES: Mapping[bytes, str] = {
    b"version https://git-lfs": "a Git LFS pointer: run git lfs pull",
    **dict.fromkeys((b"<!doctype html", b"<html"), "HTML"),
    b"<svg": "SVG",
    **dict.fromkeys((b"{", b"[{", b'["', b"[["), "JSON"),
    b"<": "XML",
    **dict.fromkeys(  # PNG, JPEG, GIF and WebP in base64, and a data URI
        (b"ivbor", b"/9j/", b"r0lgod", b"uklgr", b"data:image/"), "base64, which must be decoded"
    ),
}


def identify_format(data: bytes) -> str:
    """Return the name of an accepted format, or a short reason why the bytes are rejected."""
    for start, kind in _ACCEPTED_SIGNATURES.items():
        if data.startswith(start):
            return kind
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "WebP"
    foreign = _foreign_kind(data)
    if foreign in SUPPORTED:
        return foreign
    if foreign:
        return f"unsupported format {foreign} (supported: {', '.join(SUPPORTED)})"
    return f"not an image ({looks_like(data)})"


def _foreign_kind(data: bytes) -> str:
    """Return the name of a known format not in `_ACCEPTED_SIGNATURES`, or an empty string."""
    if data[4:8] == b"ftyp":  # first: a box of 256 bytes begins like an icon
        # Its brands name the format (ISO/IEC 14496-12, 4.3)
        end = min(int.from_bytes(data[:4]), 256)
        major, *brands = (data[i : i + 4] for i in (8, *range(16, end, 4)))
        families = {brand[:3] for brand in (major, *brands)}
        if major[:3] in (b"hei", b"hev"):
            return "HEIC"
        is_image = major[:3] in (b"avi", b"mif", b"msf") or not {b"iso", b"mp4"} & families
        if is_image and {b"avi", b"mif", b"msf"} & families:  # the brands name the codec
            return "AVIF" if b"avi" in families else "HEIC"
        return "CR3" if major == b"crx " else "MP4"
    for start, kind in _FOREIGN_SIGNATURES.items():
        if data.startswith(start):
            return kind
    return "DICOM" if data[128:132] == b"DICM" else ""


def looks_like(data: bytes) -> str:
    """Return a guess at the content of bytes without a known signature."""
    head = data[:1024].removeprefix(b"\xef\xbb\xbf").lstrip().lower()
    if not head.strip(b"\0"):
        return "only zero bytes"
    if b"<svg" in head:
        return "looks like SVG"
    for start, kind in _TEXT_SIGNATURES.items():
        if head.startswith(start):
            return f"looks like {kind}"
    printable = sum(byte >= 32 or byte in b"\t\n\r" for byte in head)
    return (
        "looks like text" if printable == len(head) and b"\x7f" not in head else "unknown content"
    )
