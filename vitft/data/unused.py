"""Number of unused files in a folder by suffix, with a reason and a fix for each suffix."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from vitft.metrics.results import UnusedFiles
from vitft.system.files import CHECKSUM_SUFFIXES
from vitft.system.text import count, listing

_NO_SUFFIX = "(no suffix)"
ARCHIVE_SUFFIXES = frozenset({".7z", ".bz2", ".gz", ".rar", ".tar", ".tgz", ".xz", ".zip"})
_MOST_KINDS = 6
"""Maximum number of suffixes or classes named in one note."""


@dataclass(frozen=True, slots=True)
class _UnusedKind:
    """Suffixes of unused files that share a reason and a fix."""

    suffixes: frozenset[str]
    reason: str
    fix: str


_CONTAINER_FIX = "convert them to PNG or JPEG"
_UNUSED_KINDS = (
    _UnusedKind(
        frozenset({
            ".3fr", ".arw", ".cr2", ".cr3", ".dng", ".nef", ".orf", ".pef", ".raf", ".raw", ".rw2",
            ".srw",
        }),
        "camera raw images are not supported", "export them as TIFF or JPEG",
    ),
    _UnusedKind(
        frozenset({
            ".cur", ".dcm", ".dds", ".eps", ".exr", ".fits", ".hdr", ".icns", ".ico", ".j2k",
            ".jp2", ".jpx", ".jxl", ".nii", ".pbm", ".pgm", ".pnm", ".ppm", ".psd", ".qoi",
            ".svg", ".tga", ".wmf", ".xcf",
        }),
        "this format is not supported", _CONTAINER_FIX,
    ),
    _UnusedKind(
        frozenset({".pdf"}), "documents are not read", "save their pages as PNG or JPEG"
    ),
    _UnusedKind(
        frozenset({".3gp", ".avi", ".m4v", ".mkv", ".mov", ".mp4", ".mpg", ".webm", ".wmv"}),
        "videos are not supported", "extract frames as images",
    ),
    _UnusedKind(
        ARCHIVE_SUFFIXES,
        "archives are not opened", "unpack them if they contain images",
    ),
    _UnusedKind(CHECKSUM_SUFFIXES, "checksums of the files beside them", "no action is needed"),
    _UnusedKind(
        frozenset({
            ".aae", ".bat", ".bib", ".bin", ".c", ".cfg", ".conf", ".cpp", ".css", ".csv", ".db",
            ".dll", ".doc", ".docx", ".exe", ".h5", ".htm", ".html", ".ini", ".ipynb", ".js",
            ".json", ".jsonl", ".lock", ".log", ".lst", ".mat", ".md", ".mp3", ".npy", ".npz",
            ".odt", ".onnx", ".parquet", ".part", ".pickle", ".pkl", ".ppt", ".pptx", ".pt", ".pth",
            ".py", ".pyc", ".r", ".rst", ".safetensors", ".sh", ".so", ".sqlite", ".tex", ".thm",
            ".tmp", ".toml", ".tsv", ".txt", ".wav", ".xls", ".xlsx", ".xml", ".xmp", ".yaml",
            ".yml",
        }),
        "not images", "no action is needed",
    ),
)  # fmt: skip
_OTHER_SUFFIX = _UnusedKind(
    frozenset(),
    "not a known image suffix",
    "correct the suffix if they are images, or convert them to PNG or JPEG",
)
_DOCUMENT_NAMES = frozenset({
    "authors", "changelog", "changes", "citation", "contributing", "copying", "copyright",
    "dockerfile", "licence", "license", "makefile", "manifest", "notice", "readme", "todo",
    "version",
})  # fmt: skip
"""Names of documents without a suffix, in lower case."""
_KIND_BY_SUFFIX = {suffix: kind for kind in _UNUSED_KINDS for suffix in kind.suffixes}
_DOCUMENTS = _UNUSED_KINDS[-1]


def suffix_of(name: str) -> str:
    """Return the suffix of a file name in lower case, `_NO_SUFFIX`, or the name of a document."""
    stem, dot, suffix = name.rpartition(".")
    if stem and dot and suffix:
        return f".{suffix.lower()}"
    return name if name.lower() in _DOCUMENT_NAMES else _NO_SUFFIX


def _kind_of(suffix: str) -> _UnusedKind:
    """Return the kind of the files with a suffix, as returned by `suffix_of`."""
    if suffix.lower() in _DOCUMENT_NAMES:
        return _DOCUMENTS
    return _KIND_BY_SUFFIX.get(suffix, _OTHER_SUFFIX)


def is_surely_no_image(name: str) -> bool:
    """Return whether the suffix belongs to a document, a data file, a video or an archive."""
    kind = _kind_of(suffix_of(name))
    return kind in (*_UNUSED_KINDS[2:], _DOCUMENTS)


def unused_files(counts: Mapping[str, int]) -> list[UnusedFiles]:
    """Return one entry per suffix, most frequent first.

    `counts` maps each suffix to its number of files.
    """
    entries: list[UnusedFiles] = []
    for suffix, files in sorted(counts.items(), key=lambda item: (-item[1], item[0])):
        kind = _kind_of(suffix)
        entries.append({"suffix": suffix, "files": files, "reason": kind.reason, "fix": kind.fix})
    return entries


def unused_notes(counts: Mapping[str, int]) -> list[str]:
    """Return one note per reason, e.g. `not used: 4 files: 3 .cr2 and 1 .nef (...)`."""
    by_reason: dict[tuple[str, str], list[UnusedFiles]] = {}
    for entry in unused_files(counts):
        by_reason.setdefault((entry["reason"], entry["fix"]), []).append(entry)
    return [
        f"not used: {count(sum(e['files'] for e in entries), 'file')}: {by_suffix(entries)} "
        f"({reason}; {fix})"
        for (reason, fix), entries in by_reason.items()
    ]


def by_suffix(entries: Iterable[UnusedFiles]) -> str:
    """Return the number of files with each suffix as text, e.g. `3 .cr2 and 1 .nef`."""
    return listing((f"{e['files']:,} {e['suffix']}" for e in entries), _MOST_KINDS)


def sub_folder_note(nested: Mapping[str, int]) -> str:
    """Return a note on images in subfolders, given the number of them in each class folder."""
    found = [f"{count(n, 'image')} in subfolders of {name}" for name, n in nested.items()]
    verb = "is" if sum(nested.values()) == 1 else "are"
    return f"{listing(found, _MOST_KINDS)} {verb} used" if found else ""
