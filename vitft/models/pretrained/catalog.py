"""The catalogue of pretrained weights: the entries of `weights/catalog.toml`.

Does not import torch, so that a wrong name is reported at once. `fetch` downloads the files.
"""

import functools
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vitft.data.transforms import CROP, Fit
from vitft.models.licences import marked_licence
from vitft.models.model_names import similar_models
from vitft.models.timm_config import timm_modules
from vitft.system.errors import WeightsError
from vitft.system.files import resource

REPOSITORY = r"[\w-][\w.-]*/[\w-][\w.-]*"
"""Regular expression for the name of a hub repository, owner/name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogEntry:
    """Published weights and the facts needed to use them."""

    name: str
    licence: str
    architecture: str = ""
    """Name for `vitft.create_model`; empty if the architecture is inferred from the file."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Values of `ViTConfig` fields that override `architecture`."""
    data: str = ""
    """Names of the training datasets, in the order of training."""
    repo: str = ""
    """Hub repository, owner/name; empty for a bundled file."""
    file: str = ""
    """Name of the file in the repository."""
    revision: str = "main"
    gated_source: str = ""
    """Hub repository in which the publisher offers the same weights to accounts that accept its
    terms; empty if there is none. `repo` itself is not gated."""
    path: str = ""
    """Path of a bundled file relative to the catalogue's folder; replaces `repo` and `file`."""
    image_size: tuple[int, int] = (224, 224)
    """Height and width in pixels of the images used in training."""
    mean: tuple[float, ...] = (0.5, 0.5, 0.5)
    std: tuple[float, ...] = (0.5, 0.5, 0.5)
    crop: float = CROP
    """Fraction of the resized image's side that the centre crop keeps."""
    interpolation: str = "bicubic"
    fit: Fit = "crop"
    """Resizing method: `crop` keeps the aspect ratio, and `squash` changes it."""
    num_classes: int = 0
    """Number of outputs of the head in the file; 0 if there is no head."""
    pre_logits: bool = False
    """Whether the file contains the Linear + Tanh before the head."""
    aliases: tuple[str, ...] = ()
    note: str = ""
    sha256: str = ""
    """Digest from the publisher; empty if only the hub provides a digest."""
    local: str = ""
    """Path of the user's own file, used instead of the published file (timm:NAME=FILE)."""
    was: str = ""
    """File name of the same weights in older tools."""

    @property
    def is_hub_repository(self) -> bool:
        """Whether this is an arbitrary hub repository (hf:owner/name)."""
        return self.name.startswith("hf:")

    @property
    def is_timm(self) -> bool:
        """Whether this is a timm model (timm:NAME), which timm builds and describes."""
        return self.name.startswith("timm:")

    @property
    def size(self) -> str:
        """Model size: tiny, small, base, large or huge; empty if `architecture` is empty."""
        return self.architecture.split("_")[1] if self.architecture else ""

    def lines(self) -> list[str]:
        """Return a description, one fact per line, without fetching the file."""
        head = f"{self.num_classes} classes" if self.num_classes else "none in the file"
        rows = {
            "name": self.name,
            "aliases": ", ".join(self.aliases),
            "source": f"{self.repo}/{self.file} ({self.revision})" if self.repo else self.path,
            "gated": f"{self.gated_source} has the same weights and requires an account; the "
            "source above does not"
            if self.gated_source
            else "",
            "model": " ".join([self.architecture, *(f"{k}={v}" for k, v in self.options.items())]),
            "trained on": self.data,
            "licence": marked_licence(self.licence),
            "head": head,
            "pre_logits": "yes" if self.pre_logits else "no",
            "pixels": f"{self.image_size[0]}x{self.image_size[1]}, {self.interpolation}, crop "
            f"{self.crop}, mean {self.mean}, std {self.std}",
            "sha256": self.sha256 or ("as published on the hub" if self.repo else ""),
            "formerly": self.was,
            "note": self.note,
        }
        if self.path:  # the card of bundled weights contains these facts
            rows |= dict.fromkeys(("head", "pre_logits", "pixels"), "")
        return [f"{key + ':':<12}{value}" for key, value in rows.items() if value]


@functools.cache
def read_catalog() -> Mapping[str, Any]:
    """Return the content of catalog.toml."""
    return tomllib.loads((resource("weights") / "catalog.toml").read_text(encoding="utf-8"))


@functools.cache
def catalog_entries() -> tuple[CatalogEntry, ...]:
    """Return all entries of the catalogue, in the order of the file."""
    entries = []
    for row in read_catalog()["weights"]:
        family = read_catalog()["family"][row["family"]]
        options = {**family.get("options", {}), **row.get("options", {})}
        fields: dict[str, Any] = {**family, **row, "options": options}
        del fields["family"]
        if fields.get("repo", "").startswith("timm/"):
            fields["aliases"] = [*fields.get("aliases", ()), fields["repo"]]
        pairs: Any = {k: tuple(v) if isinstance(v, list) else v for k, v in fields.items()}
        entries.append(CatalogEntry(**pairs))
    return tuple(entries)


def find_entry(name: str) -> CatalogEntry:
    """Return the entry with this name or alias.

    If the name is only in timm's registry, timm is imported, and a new entry is created from
    timm's metadata.

    Raises:
        WeightsError: The name is unknown, or vitft's own model does not support these weights. The
            message suggests similar names or states the reason.
    """
    rows = entries_by_name()
    if name not in rows:
        known = name.removeprefix("timm/")
        if known.partition(".")[0] in timm_modules():
            from vitft.models.pretrained.timm_weights import registry_entry

            return registry_entry(known)
        more = similar_models(name, [f"timm:{one}" for one in timm_modules() if one not in rows])
        near = [*similar_models(name, rows)[:3], *more[:2]]
        fix = f"check the name (similar ones are {', '.join(near)}), or pass the path of a file"
        is_path = Path(name).parent.is_dir()  # e.g. of a run whose name is mistyped
        is_size = re.match(r"(?i)(vit|deit)-[a-z]{1,2}/\d", name)  # as in papers, e.g. ViT-B/16
        if re.fullmatch(REPOSITORY, name, re.ASCII) and not (is_path or is_size):
            fix = f"for a repository on the hub, use hf:{name}; otherwise, {fix}"
        raise WeightsError(f"unknown weights {name!r}", fix=fix)
    return rows[name]


@functools.cache
def entries_by_name() -> Mapping[str, CatalogEntry]:
    """Return a mapping from each name and alias to its entry."""
    rows: dict[str, CatalogEntry] = {}
    for entry in catalog_entries():
        for name in (entry.name, *entry.aliases):
            assert name not in rows, f"catalog.toml lists {name} more than once"
            rows[name] = entry
    return rows
