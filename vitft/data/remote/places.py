"""Values of `--data` that are not paths: `wds:` for tar shards, `hf:` for Hugging Face datasets.

Such a dataset is read through its local copy, a folder of the cache with the table `index.csv`,
which `remote.copies` makes. Nothing here reads the network or imports anything slow.
"""

import glob
import hashlib
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

from vitft.system.cores import cache_folder
from vitft.system.errors import DataError, UsageError
from vitft.system.text import redacted

_EXAMPLES = {"wds": "wds:https://HOST/train-{00..09}.tar", "hf": "hf:USER/NAME:train"}
INDEX = "index.csv"
COPY = re.compile(r"(?P<root>.+?-[0-9a-f]{12}\.copy)[\\/](?P<member>.+)", re.DOTALL)
"""Path of an image in a local copy."""
_MAX_SHARDS = 100_000
_WEB = ("http", "https")
FILE_SYSTEMS = {
    "s3": "s3fs", "gs": "gcsfs", "az": "adlfs", "abfs": "adlfs", "hf": "huggingface_hub",
}  # fmt: skip
"""Mapping from the schemes that fsspec reads to the libraries that it needs for them."""
_SCHEME = re.compile(r"([a-z][a-z0-9+.-]*)://", re.IGNORECASE)
_ARCHIVE_NAME = re.compile(r"\.(tar|tar\.\w+|tgz|tbz2?|txz|zip)$", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Place:
    """A dataset that is not a folder, a table or an array dataset on this machine."""

    kind: str  # wds or hf
    address: str
    """Shards with braces, or the name of a Hugging Face dataset; as given, i.e. with secrets."""

    @property
    def text(self) -> str:
        """Value of `--data` for messages and settings: without secrets, with absolute paths."""
        address = self.address
        if self.kind == "wds" and scheme_of(address) in ("", "file"):
            address = os.path.abspath(_local_path(address))  # noqa: PTH100 - keeps links
        elif self.kind == "hf":
            name, rest = hub_name(address)
            address = f"{name}:{rest}" if rest else name
        return f"{self.kind}:{redacted(address)}"

    @property
    def name(self) -> str:
        path = unquote(urlsplit(self.address).path) if scheme_of(self.address) else self.address
        name = re.sub(r"\.tar$", "", path.rstrip("/").rpartition("/")[2])
        return re.sub(r"[^\w.]+", "_", name).strip("._")[:60] or "data"

    @property
    def folder(self) -> Path:
        """Folder of the local copy. A secret that has changed does not change the folder."""
        digest = hashlib.sha256(self.text.encode("utf-8", "surrogateescape")).hexdigest()[:12]
        return cache_folder("data") / f"{self.name}-{digest}.copy"


def hub_name(address: str) -> tuple[str, str]:
    """Return the name of a Hugging Face dataset, and what follows its colon.

    The name of a local file or folder may contain any characters; it is made absolute.
    """
    name, colon, rest = address.rpartition(":")
    if not colon or os.path.exists(address):  # noqa: PTH110
        name, rest = address, ""
    local = os.path.exists(name)  # noqa: PTH110
    return os.path.abspath(name) if local else name, rest  # noqa: PTH100 - keeps links


def place_of(data: str) -> Place | None:
    """Return the place that a value of `--data` names, or None if the value is a path."""
    kind, colon, address = data.partition(":")
    return Place(kind, address) if colon and kind in _EXAMPLES else None


def short_name(data: str) -> str:
    """Return a short name for a value of `--data`: a path, or the last part of an address."""
    place = place_of(data)
    return data if place is None else place.name


def check_place(data: str) -> Place | None:
    """Return the place that a value of `--data` names, if any (UsageError if it lacks `wds:`)."""
    place = place_of(data)
    if place is not None:
        if not place.address.strip("/"):
            raise UsageError(
                f"{data} names no data", fix=f"use e.g. --data {_EXAMPLES[place.kind]}"
            )
        return place
    scheme = scheme_of(data)
    archive = _ARCHIVE_NAME.search(urlsplit(data).path if scheme else data)
    is_tar = archive is not None and archive[1].lower() == "tar"
    fetch = "fetch an archive of images with vitft data fetch --url URL"
    if is_tar and (scheme or not os.path.isdir(data)):  # noqa: PTH112
        problem = "is a tar file, which may be a shard or an archive of a folder"
        fix = (
            f"use --data wds:{data} if it is a shard (KEY.jpg, KEY.cls). Otherwise, unpack it, or "
        )
        raise UsageError(f"{data} {problem}", fix=fix + fetch)
    if scheme:
        what = "is a web address, not" if scheme in _WEB else "cannot be read as"
        fix = "use wds:URL{00..99}.tar for tar shards, copy the folder to this machine, or "
        raise UsageError(f"{data} {what} a folder or a table", fix=fix + fetch)
    if archive is not None and os.path.isfile(data):  # noqa: PTH113
        raise UsageError(f"{data} is an archive", fix="unpack it, and use the folder")
    return None


def scheme_of(address: str) -> str:
    """Return the scheme of an address in lower case, or an empty string for a path."""
    match = _SCHEME.match(address)
    return match[1].lower() if match else ""


def _local_path(address: str) -> str:
    return os.path.expanduser(re.sub(r"^file://", "", address, flags=re.IGNORECASE))  # noqa: PTH111


def _texts_in_braces(inside: str) -> Sequence[str] | None:
    """Return the texts for which a pair of braces stands, or None if there are none."""
    if numbers := re.fullmatch(r"(\d+)\.\.(\d+)", inside):
        limits = numbers.groups()
        first, last = map(int, limits)
        # Numbers have leading zeros if one of the limits has
        width = max(map(len, limits)) if any(n[0] == "0" and len(n) > 1 for n in limits) else 0
        step = 1 if last >= first else -1
        every = range(first, last + step, step)
        return [f"{n:0{width}}" for n in every[: _MAX_SHARDS + 1]]
    return inside.split(",") if "," in inside else None


def list_shards(address: str) -> list[tuple[str, str]]:
    """Return the shards that an address with braces or, for paths, a pattern names.

    Each has a name, its path relative to the folder that contains all shards, with slashes, and an
    address with secrets or a path.
    """
    scheme = "pipe" if address.lower().startswith("pipe:") else scheme_of(address)
    if scheme not in ("", "file", *_WEB, *FILE_SYSTEMS):
        schemes = ", ".join(f"{name}://" for name in (*_WEB, *FILE_SYSTEMS))
        raise UsageError(
            f"wds:{address}: {scheme}: is not supported",
            fix=f"use a path, {schemes}, or copy the shards to this machine",
        )
    addresses = [address]
    while match := re.search(r"\{([^{}]*)\}", addresses[0]):
        if (texts := _texts_in_braces(match[1])) is None:
            fix = "use {00..99} for numbers, or {train,val} for names"
            raise UsageError(f"wds:{address}: {{{match[1]}}} is not a list of shards", fix=fix)
        if len(texts) * len(addresses) > _MAX_SHARDS:
            fix = "correct the numbers in braces, or divide the data"
            raise UsageError(f"wds:{address} names more than {_MAX_SHARDS:,} shards", fix=fix)
        addresses = [one.replace(match[0], text, 1) for one in addresses for text in texts]
    if scheme in ("", "file"):
        paths = [os.path.abspath(_local_path(one)) for one in addresses]  # noqa: PTH100
        addresses = [path for one in paths for path in _matching(one)]
    paths = [unquote(urlsplit(one).path) if scheme in _WEB else one for one in addresses]
    for path, one in zip(paths, addresses, strict=True):
        if not path.lower().endswith(".tar"):
            packed = _ARCHIVE_NAME.search(path)
            raise UsageError(
                f"wds:{one} is {'a compressed archive' if packed else 'not a .tar file'}",
                fix="use uncompressed .tar shards: single images are read from them",
            )
    prefix = os.path.commonprefix(paths)  # noqa: RUF071 - cut at a slash
    folder = prefix.rpartition("/")[0]  # the longest in which all files lie
    names = [safe_name(path[len(folder) :]) for path in paths]
    if len({*names}) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise UsageError(f"wds:{address} names {twice} twice", fix="name each shard once")
    return list(zip(names, addresses, strict=True))


def _matching(path: str) -> list[str]:
    """Return the sorted files that match a path with `*` or `?`, or any other path itself."""
    if os.path.lexists(path) or not any(sign in path for sign in "*?"):
        return [path]
    found = sorted(glob.glob(path))  # noqa: PTH207 - names as typed
    if not found:
        raise DataError(f"no shards match {path}", fix="check the pattern and the folder")
    return found


def safe_name(path: str) -> str:
    """Return the relative path of a shard as a name that every file system accepts."""
    parts = (re.sub(r"[^\w.@+-]", "_", part) for part in path.split("/"))
    return "/".join(part for part in parts if part.strip("."))
