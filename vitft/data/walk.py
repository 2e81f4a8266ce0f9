"""Listing of a data folder: image files, entries that are not regular files, and unused entries.

Only the names and types of entries are used, and no file is opened.
"""

import glob
import os
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from vitft.data.signatures import FORMAT_BY_SUFFIX
from vitft.metrics.results import UnusedFiles
from vitft.system.errors import DataError
from vitft.system.files import CHECKSUM_SUFFIXES
from vitft.system.text import count, describe_os_error, listing

# number of unused files in a folder by suffix, with a reason and a fix for each suffix ------------

_NO_SUFFIX = "(no suffix)"
ARCHIVE_SUFFIXES = frozenset({".7z", ".bz2", ".gz", ".rar", ".tar", ".tgz", ".xz", ".zip"})
_MOST_KINDS = 6  # maximum number of suffixes or classes named in one note
_RAW = "camera raw images are not supported", "export them as TIFF or JPEG"
_FOREIGN = "this format is not supported", "convert them to PNG or JPEG"
_OTHER = (
    "not a known image suffix",
    "correct the suffix if they are images, or convert them to PNG or JPEG",
)
_NOT_IMAGES = "not images", "no action is needed"
_SUFFIXES: Mapping[tuple[str, str], str] = {
    _RAW: ".3fr .arw .cr2 .cr3 .dng .nef .orf .pef .raf .raw .rw2 .srw",
    _FOREIGN: (
        ".cur .dcm .dds .eps .exr .fits .hdr .icns .ico .j2k .jp2 .jpx .jxl .nii .pbm .pgm .pnm "
        ".ppm .psd .qoi .svg .tga .wmf .xcf"
    ),
    ("documents are not read", "save their pages as PNG or JPEG"): ".pdf",
    ("videos are not supported", "extract frames as images"): (
        ".3gp .avi .m4v .mkv .mov .mp4 .mpg .webm .wmv"
    ),
    ("archives are not opened", "unpack them if they contain images"): " ".join(ARCHIVE_SUFFIXES),
    ("checksums of the files next to them", "no action is needed"): " ".join(CHECKSUM_SUFFIXES),
    _NOT_IMAGES: (
        ".aae .bat .bib .bin .c .cfg .conf .cpp .css .csv .db .dll .doc .docx .exe .h5 .htm .html "
        ".ini .ipynb .js .json .jsonl .lock .log .lst .mat .md .mp3 .npy .npz .odt .onnx .parquet "
        ".part .pickle .pkl .ppt .pptx .pt .pth .py .pyc .r .rst .safetensors .sh .so .sqlite .tex "
        ".thm .tmp .toml .tsv .txt .wav .xls .xlsx .xml .xmp .yaml .yml authors changelog changes "
        "citation contributing copying copyright dockerfile licence license makefile manifest "
        "notice readme todo version"
    ),
}
"""Suffixes of unused files, and names of documents without one, by reason and fix."""
_KINDS = {suffix: kind for kind, own in _SUFFIXES.items() for suffix in own.split()}


def suffix_of(name: str) -> str:
    """Return the suffix of a file name in lower case, `_NO_SUFFIX`, or the name of a document."""
    stem, dot, suffix = name.rpartition(".")
    if stem and dot and suffix:
        return f".{suffix.lower()}"
    return name if name.lower() in _KINDS else _NO_SUFFIX


def is_surely_no_image(name: str) -> bool:
    """Return whether the suffix belongs to a document, a data file, a video or an archive."""
    return _KINDS.get(suffix_of(name).lower(), _OTHER) not in (_RAW, _FOREIGN, _OTHER)


def unused_files(counts: Mapping[str, int]) -> list[UnusedFiles]:
    """Return one entry per suffix, most frequent first, given the number of files of each."""
    entries: list[UnusedFiles] = []
    for suffix, files in sorted(counts.items(), key=lambda item: (-item[1], item[0])):
        reason, fix = _KINDS.get(suffix.lower(), _OTHER)
        entries.append({"suffix": suffix, "files": files, "reason": reason, "fix": fix})
    return entries


def unused_notes(counts: Mapping[str, int]) -> list[str]:
    """Return one note per reason, e.g. `not used: 4 files: 3 .cr2 and 1 .nef (...)`."""
    by_reason: dict[tuple[str, str], list[UnusedFiles]] = {}
    for entry in unused_files(counts):
        by_reason.setdefault((entry["reason"], entry["fix"]), []).append(entry)
    return [
        f"not used: {count(sum(e['files'] for e in entries), 'file')}: {by_suffix(entries)} "
        f"({reason}: {fix})"
        for (reason, fix), entries in by_reason.items()
    ]


def by_suffix(entries: Iterable[UnusedFiles]) -> str:
    """Return the number of files with each suffix as text, e.g. `3 .cr2 and 1 .nef`."""
    return listing((f"{e['files']:,} {e['suffix']}" for e in entries), _MOST_KINDS)


# listing of a data folder: image files, entries that are not regular files, and unused entries ----

_REFERENCE_SUFFIXES = frozenset({".jpg", ".JPG", ".png", ".PNG"})
HIDDEN, FOLDER, IMAGE = "hidden", "folder", "image"
"""Kinds of entries that are unused for a reason other than their suffix."""
SYSTEM_FILES = frozenset({"__macosx", "thumbs.db", "desktop.ini", "@eadir", "$recycle.bin"})


@dataclass(slots=True)
class Walk:
    """State of one walk through a folder."""

    root: str
    reference: bool = False
    """Whether the reference script's rules apply: four suffixes, any entry type, no subfolders."""
    bad: list[tuple[str, str]] = field(default_factory=list)
    """Paths with an image suffix that are not regular files, with the reasons."""
    left_out: dict[str, Counter[str]] = field(default_factory=dict)
    """Number of unused entries in each folder, by suffix or by kind, e.g. `HIDDEN`."""
    nested: dict[str, int] = field(default_factory=dict)
    """Number of images in subfolders, for each folder that has any."""
    loops: int = 0  # number of links back to a folder already visited
    refused: list[str] = field(default_factory=list)  # folders without read permission
    listings: dict[str, tuple[list[str], int]] = field(default_factory=dict)

    def folders_of(self, folder: str) -> tuple[list[str], int]:
        """Return the sorted names of the visible folders in `folder`, and its image count."""
        if folder not in self.listings:
            names, loose, left_out = list[str](), 0, Counter[str]()
            for entry in self.entries(folder):
                if is_folder(entry) and not self.is_hidden(entry.name):
                    if entry.is_symlink() and self.identity(entry.path) == self.identity(self.root):
                        self.loops += 1
                    else:
                        names.append(entry.name)
                else:
                    loose += self.has_image_name(entry.name)
                    left_out[self.kind_of(entry)] += 1
            self.left_out[folder] = left_out
            self.listings[folder] = sorted(names), loose
        return self.listings[folder]

    def images_in(self, folder: str) -> list[str]:
        """Return the sorted relative paths of the image files in `folder` and, usually, below."""
        found: list[str] = []
        start, left_out = folder, Counter[str]()
        seen = {self.identity(self.root)} if folder else set()
        waiting = [folder]
        while waiting:
            folder = waiting.pop()
            identity = self.identity(self.full(folder))
            if identity in seen:
                self.loops += 1
                continue
            seen.add(identity)
            for entry in self.entries(folder):
                path = f"{folder}/{entry.name}" if folder else entry.name
                is_image = self.has_image_name(entry.name)
                is_used = not self.reference and not self.is_hidden(entry.name)
                if is_image and (self.reference or (is_used and _is_file(entry))):
                    found.append(path)
                elif is_used and is_folder(entry):
                    waiting.append(path)
                elif is_image and is_used:
                    link = entry.is_symlink()
                    self.bad.append(
                        (path, "dangling symbolic link" if link else "not a regular file")
                    )
                else:
                    left_out[self.kind_of(entry)] += 1
        self.left_out[start] = left_out
        depth = start.count("/") + 1
        if nested := sum(path.count("/") > depth for path in found):
            self.nested[start] = nested
        return sorted(found)

    def kind_of(self, entry: os.DirEntry[str]) -> str:
        """Return the suffix of an unused entry, or `HIDDEN`, `FOLDER` or `IMAGE`."""
        if self.is_hidden(entry.name):
            return HIDDEN
        if is_folder(entry):
            return FOLDER
        return IMAGE if self.has_image_name(entry.name) else suffix_of(entry.name)

    def total(self) -> Counter[str]:
        return sum(self.left_out.values(), Counter[str]())

    def unused(self, folder: str | None = None) -> Counter[str]:
        total = self.left_out.get(folder, Counter()) if folder is not None else self.total()
        return Counter({k: n for k, n in total.items() if k not in (HIDDEN, FOLDER, IMAGE)})

    def hidden(self) -> str:
        number = self.total()[HIDDEN]
        return count(number, "hidden entry", "hidden entries") if number else ""

    def notes(self) -> list[str]:
        total = self.total()
        notes = unused_notes(self.unused())
        if hidden := self.hidden():
            notes.append(f"not used: {hidden}")
        if number := total[FOLDER]:
            notes.append(f"not used: {count(number, 'subfolder')} (as in the reference script)")
        if number := total[IMAGE]:
            fix = "move them into a class folder to use them"
            notes.append(f"not used: {count(number, 'image')} outside the class folders ({fix})")
        if self.nested:
            found = [f"{count(n, 'image')} in subfolders of {m}" for m, n in self.nested.items()]
            verb = "is" if sum(self.nested.values()) == 1 else "are"
            notes.append(f"{listing(found, _MOST_KINDS)} {verb} used")
        if self.loops:
            notes.append(f"{count(self.loops, 'circular link')} not followed")
        return notes

    def has_image_name(self, name: str) -> bool:
        stem, dot, suffix = name.rpartition(".")
        if self.reference:
            return bool(stem.strip(".")) and dot + suffix in _REFERENCE_SUFFIXES
        return dot + suffix.lower() in FORMAT_BY_SUFFIX

    def is_hidden(self, name: str) -> bool:
        """Return whether a name belongs to a hidden or system file (not in the reference)."""
        return not self.reference and (name.startswith(".") or name.lower() in SYSTEM_FILES)

    def entries(self, folder: str) -> list[os.DirEntry[str]]:
        """Return the entries of a folder, none if it is `refused` (DataError if it is damaged)."""
        try:
            with os.scandir(self.full(folder)) as found:
                return list(found)
        except PermissionError:
            self.refused.append(self.full(folder))
            return []
        except OSError as error:
            raise DataError(
                f"cannot read the folder {self.full(folder)}: {describe_os_error(error)}",
                fix="check the disk or the network share",
            ) from error

    def identity(self, path: str) -> tuple[int, int] | None:
        """Return the device and inode of a folder, or None if they cannot be read."""
        try:
            status = Path(path).stat()
        except OSError:
            return None
        return status.st_dev, status.st_ino

    def full(self, folder: str) -> str:
        return f"{self.root}/{folder}" if folder else self.root

    def raise_if_refused(self) -> None:
        if self.refused:
            more = f" and {len(self.refused) - 1} more" if len(self.refused) > 1 else ""
            fix = "make the folders readable (chmod -R u+rX) or remove them"
            raise DataError(f"permission denied: {self.refused[0]}{more}", fix=fix)


def _is_file(entry: os.DirEntry[str]) -> bool:
    """Return whether an entry is a regular file or a link to one (False for circular links)."""
    try:
        return entry.is_file()
    except OSError:
        return False


def is_folder(entry: os.DirEntry[str]) -> bool:
    """Return whether an entry is a folder or a link to one (False for circular links)."""
    try:
        return entry.is_dir()
    except OSError:
        return False


def literal_folders(pattern: str) -> str:
    """Escape the first folders of a pattern if they exist as typed, e.g. `shoes [old]/*.jpg`."""
    folder = os.path.dirname(pattern)  # noqa: PTH120
    while glob.has_magic(folder):
        if os.path.isdir(folder):  # noqa: PTH112 - Path would raise on odd names
            return glob.escape(folder) + pattern[len(folder) :]
        folder = os.path.dirname(folder)  # noqa: PTH120
    return pattern
