"""Listing of a data folder: image files, entries that are not regular files, and unused entries.

Only the names and types of entries are used, and no file is opened.
"""

import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vitft.data.signatures import FORMAT_BY_SUFFIX
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
    ("not images", "no action is needed"): (
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


def unused_files(counts: Mapping[str, int]) -> list[dict[str, Any]]:
    """Return one entry per suffix, most frequent first, given the number of files of each."""
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    kinds = [(suffix, files, *_KINDS.get(suffix.lower(), _OTHER)) for suffix, files in ordered]
    return [dict(zip(("suffix", "files", "reason", "fix"), one, strict=True)) for one in kinds]


def unused_notes(counts: Mapping[str, int]) -> list[str]:
    """Return one note per reason, e.g. `not used: 4 files: 3 .cr2 and 1 .nef (...)`."""
    by_reason: dict[str, dict[str, int]] = {}
    for one in unused_files(counts):
        own = by_reason.setdefault(f"{one['reason']}: {one['fix']}", {})
        own[one["suffix"]] = one["files"]
    return [
        f"not used: {count(sum(own.values()), 'file')}: {by_suffix(own)} ({reason})"
        for reason, own in by_reason.items()
    ]


def by_suffix(counts: Mapping[str, int]) -> str:
    """Return the number of files with each suffix as text, e.g. `3 .cr2 and 1 .nef`."""
    entries = (f"{one['files']:,} {one['suffix']}" for one in unused_files(counts))
    return listing(entries, _MOST_KINDS)


# listing of a data folder: image files, entries that are not regular files, and unused entries ----

_REFERENCE_SUFFIXES = frozenset({".jpg", ".JPG", ".png", ".PNG"})
_HIDDEN, _FOLDER, _IMAGE = "hidden", "folder", "image"
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
    """Number of unused entries in each folder, by suffix or by kind, e.g. `_HIDDEN`."""
    nested: Counter[str] = field(default_factory=Counter)
    """Number of images in subfolders of each folder."""
    loops: int = 0  # number of links back to a folder already visited
    refused: list[str] = field(default_factory=list)  # folders without read permission
    listings: dict[str, tuple[list[str], int]] = field(default_factory=dict)

    def folders_of(self, folder: str) -> tuple[list[str], int]:
        """Return the sorted names of the visible folders in `folder`, and its image count."""
        if folder not in self.listings:
            names, loose, left_out = list[str](), 0, Counter[str]()
            for entry in self.entries(folder):
                if _leads(entry.is_dir) and not self.is_hidden(entry.name):
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

    def images(self, start: str = "", *, any_suffix: bool = False) -> Iterator[str]:
        """Yield the sorted relative paths of the image files in a folder and, usually, below.

        With `any_suffix`, all files that may be images are included, also pipes and broken links,
        and a folder that another one links to is listed at both places.
        Only the names in the current folder and in the folders above it are held in memory.
        """
        left_out = self.left_out[start] = Counter[str]()
        seen = {self.identity(self.root)} if start else set()
        above = {"": frozenset[object]()}  # identities of each folder and those above it
        waiting = [f"{start}/".lstrip("/")]  # the first is last, and folders end in a slash
        while waiting:
            folder = waiting.pop()
            if folder and not folder.endswith("/"):
                self.nested[start] += folder.count("/") > start.count("/") + 1
                yield folder
                continue
            identity = self.identity(self.full(folder[:-1]))
            outer = above.get(folder[:-1].rpartition("/")[0], frozenset())
            if identity in (outer if any_suffix else seen):
                self.loops += 1
                continue
            seen.add(identity)
            above[folder[:-1]] = outer | {identity}
            found: list[str] = []
            for entry in self.entries(folder[:-1]):
                path, kind = f"{folder}{entry.name}", self.kind_of(entry, any_suffix=any_suffix)
                if kind == _FOLDER and not self.reference:
                    found.append(f"{path}/")  # so that names sort like whole paths
                elif kind == _IMAGE and (any_suffix or self.reference or _leads(entry.is_file)):
                    found.append(path)
                elif kind == _IMAGE:
                    link = "dangling symbolic link" if entry.is_symlink() else "not a regular file"
                    self.bad.append((path, link))
                else:
                    left_out[kind] += 1
            waiting += sorted(found, reverse=True)

    def kind_of(self, entry: os.DirEntry[str], *, any_suffix: bool = False) -> str:
        """Return `_HIDDEN`, `_FOLDER`, `_IMAGE`, or the suffix of any other entry."""
        is_image = self.has_image_name(entry.name)
        if self.is_hidden(entry.name):
            return _HIDDEN
        if _leads(entry.is_dir) and not (self.reference and is_image):
            return _FOLDER
        is_image = is_image or (any_suffix and not is_surely_no_image(entry.name))
        return _IMAGE if is_image else suffix_of(entry.name)

    def total(self) -> Counter[str]:
        return sum(self.left_out.values(), Counter[str]())

    def unused(self, folder: str | None = None) -> Counter[str]:
        total = self.left_out.get(folder, Counter()) if folder is not None else self.total()
        return Counter({k: n for k, n in total.items() if k not in (_HIDDEN, _FOLDER, _IMAGE)})

    def hidden(self) -> str:
        number = self.total()[_HIDDEN]
        return count(number, "hidden entry", "hidden entries") if number else ""

    def notes(self) -> list[str]:
        total = self.total()
        notes = unused_notes(self.unused())
        if hidden := self.hidden():
            notes.append(f"not used: {hidden}")
        if number := total[_FOLDER]:
            notes.append(f"not used: {count(number, 'subfolder')} (as in the reference script)")
        if number := total[_IMAGE]:
            fix = "move them into a class folder to use them"
            notes.append(f"not used: {count(number, 'image')} outside the class folders ({fix})")
        if nested := {name: n for name, n in self.nested.items() if name and n}:
            found = [f"{count(n, 'image')} in subfolders of {m}" for m, n in nested.items()]
            verb = "is" if sum(nested.values()) == 1 else "are"
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
            problem = f"cannot read the folder {self.full(folder)}: {describe_os_error(error)}"
            fix = "check the disk or the network share"
            raise DataError(problem, fix=fix) from error

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
            fix = "make the folders readable (chmod -R u+rX) or remove them"
            raise DataError(f"permission denied: {listing(self.refused, 1)}", fix=fix)


def _leads(kind: Callable[[], bool]) -> bool:
    """Return whether an entry is of a kind or a link to one (False for circular links)."""
    try:
        return kind()
    except OSError:
        return False
