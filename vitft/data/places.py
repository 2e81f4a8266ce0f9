"""Values of `--data` that are not paths: `wds:` for tar shards, `hf:` for Hugging Face datasets.

Such a dataset is read through its local copy, a folder of the cache with the table `index.csv`,
which `data.copies` makes. Nothing here reads the network or imports anything slow.
"""

import hashlib
import os
import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

from vitft.system.cores import cache_folder
from vitft.system.text import redacted

KINDS = {"wds": "wds:https://HOST/train-{00..09}.tar", "hf": "hf:USER/NAME:train"}
"""Kinds of places with an example of each."""
INDEX = "index.csv"
COPY = re.compile(r"(?P<root>.+?-[0-9a-f]{12}\.copy)[\\/](?P<member>.+)", re.DOTALL)
"""Path of an image in a local copy."""


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
            address = absolute_path(address)
        elif self.kind == "hf":
            name, rest = self.hub_name()
            address = f"{name}:{rest}" if rest else name
        return f"{self.kind}:{redacted(address)}"

    def hub_name(self) -> tuple[str, str]:
        """Return the name of a Hugging Face dataset, and what follows its colon.

        The name of a local file or folder may contain any characters; it is made absolute.
        """
        name, colon, rest = self.address.rpartition(":")
        if not colon or os.path.exists(self.address):  # noqa: PTH110
            name, rest = self.address, ""
        local = os.path.exists(name)  # noqa: PTH110
        return os.path.abspath(name) if local else name, rest  # noqa: PTH100 - keeps links

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


def place_of(data: str) -> Place | None:
    """Return the place that a value of `--data` names, or None if the value is a path."""
    kind, colon, address = data.partition(":")
    return Place(kind, address) if colon and kind in KINDS else None


def short_name(data: str) -> str:
    """Return a short name for a value of `--data`: a path, or the last part of an address."""
    place = place_of(data)
    return data if place is None else place.name


def scheme_of(address: str) -> str:
    """Return the scheme of an address in lower case, or an empty string for a path."""
    match = re.match(r"([a-z][a-z0-9+.-]*)://", address, re.IGNORECASE)
    return match[1].lower() if match else ""


def absolute_path(address: str) -> str:
    """Return the absolute path for a path or a file:// address; links are kept."""
    path = re.sub(r"^file://", "", address, flags=re.IGNORECASE)
    return os.path.abspath(os.path.expanduser(path))  # noqa: PTH100, PTH111
