"""The weights that vitft knows by name: the rows of `weights/catalog.toml`.

Nothing here imports torch, so that a wrong name is reported at once; fetching is in `fetch`.
"""

import fnmatch
import functools
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any

from vitft.data.transforms import CROP
from vitft.system.errors import WeightsError
from vitft.system.resources import resource


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One set of published weights, and what must be known to use it."""

    name: str
    licence: str
    architecture: str = ""
    """Name that `vitft.create_model` builds; empty where the file itself says it."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Fields of `ViTConfig` in which the model differs from its architecture's."""
    data: str = ""
    """What the weights were trained on, the last step last."""
    repo: str = ""
    """Repository on the hub, owner/name; empty for a file that comes with vitft."""
    file: str = ""
    """File in the repository."""
    revision: str = "main"
    path: str = ""
    """File beside the catalogue, instead of `repo` and `file`."""
    image_size: tuple[int, int] = (224, 224)
    """Height and width in pixels that the weights were trained at."""
    mean: tuple[float, ...] = (0.5, 0.5, 0.5)
    std: tuple[float, ...] = (0.5, 0.5, 0.5)
    crop: float = CROP
    """Share of the resized image's side that the centre crop keeps."""
    interpolation: str = "bicubic"
    num_classes: int = 0
    """Outputs of the head in the file; 0 when it has none."""
    pre_logits: bool = False
    """Whether the file holds the Linear + Tanh in front of the head."""
    aliases: tuple[str, ...] = ()
    note: str = ""
    """What a user should be told when these weights are loaded."""
    sha256: str = ""
    """Of the file, where its publisher states it; else the digest that the hub states counts."""
    was: str = ""
    """File name under which older tools know the same weights."""

    @property
    def is_foreign(self) -> bool:
        """Whether this is any repository of the hub (hf:owner/name), of which nothing is known."""
        return self.name.startswith("hf:")

    @property
    def is_of_timm(self) -> bool:
        """Whether timm builds the model (timm:NAME), and tells what is known of it."""
        return self.name.startswith("timm:")

    @property
    def size(self) -> str:
        """Tiny, small, base, large or huge; empty where the file itself says it."""
        return self.architecture.split("_")[1] if self.architecture else ""

    def lines(self) -> list[str]:
        """What is known without fetching the file, one fact a line, for a console."""
        head = f"{self.num_classes} classes" if self.num_classes else "none in the file"
        rows = {
            "name": self.name,
            "also": ", ".join(self.aliases),
            "from": f"{self.repo}/{self.file} ({self.revision})" if self.repo else self.path,
            "model": " ".join(
                [self.architecture, *(f"{key}={value}" for key, value in self.options.items())]
            ),
            "trained on": self.data,
            "licence": self.licence,
            "head": "" if self.path else head,
            "pre_logits": "yes" if self.pre_logits else "" if self.path else "no",
            "pixels": ""
            if self.path  # the file's own card tells
            else f"{self.image_size[0]}x{self.image_size[1]}, {self.interpolation}, crop "
            f"{self.crop}, mean {self.mean}, std {self.std}",
            "sha256": self.sha256 or ("as the hub states it" if self.repo else ""),
            "formerly": self.was,
            "note": self.note,
        }
        return [f"{key + ':':<12}{value}" for key, value in rows.items() if value]


@functools.cache
def entries() -> tuple[Entry, ...]:
    """All rows of the catalogue, in its order."""
    text = (resource("weights") / "catalog.toml").read_text(encoding="utf-8")
    table = tomllib.loads(text)
    return tuple(entry_of(row, table["family"]) for row in table["weights"])


def entry_of(row: Mapping[str, Any], families: Mapping[str, Any]) -> Entry:
    """A row, completed by what its family has in common."""
    fields: dict[str, Any] = {**families[row["family"]], **row}
    del fields["family"]
    fields["options"] = {**families[row["family"]].get("options", {}), **row.get("options", {})}
    pairs: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in fields.items()}
    if pairs.get("repo", "").startswith("timm/"):
        pairs["aliases"] = (*pairs.get("aliases", ()), pairs["repo"])
    return Entry(**pairs)


@functools.cache
def refusals() -> Mapping[str, str]:
    """Patterns of names that people look for and vitft does not build, with the reason."""
    text = (resource("weights") / "catalog.toml").read_text(encoding="utf-8")
    refused: Mapping[str, str] = tomllib.loads(text)["refused"]
    return refused


def names() -> tuple[str, ...]:
    """Every name and alias, in the catalogue's order."""
    return tuple(by_name())


def known(name: str) -> bool:
    """Whether the catalogue has this name or alias."""
    return name in by_name()


def find(name: str) -> Entry:
    """The row called `name`, or one of whose aliases it is.

    Raises:
        WeightsError: No such name; the five nearest ones are named.
    """
    rows = by_name()
    if name not in rows:
        for pattern, reason in refusals().items():
            if fnmatch.fnmatchcase(name.removeprefix("timm/"), pattern):
                raise WeightsError(
                    f"vitft does not build {name}: {reason}",
                    fix="vitft weights list shows what it builds",
                )
        near = get_close_matches(name, rows, n=5, cutoff=0)
        raise WeightsError(
            f"no weights are called {name!r}",
            fix=f"the nearest names: {', '.join(near)}; or give the path of a weight file",
        )
    return rows[name]


@functools.cache
def by_name() -> Mapping[str, Entry]:
    """Rows under their names and all their aliases."""
    rows: dict[str, Entry] = {}
    for entry in entries():
        for name in (entry.name, *entry.aliases):
            assert name not in rows, f"catalog.toml gives {name} twice"
            rows[name] = entry
    return rows


def select_entries(
    *, size: str | None = None, licence: str | None = None, data: str | None = None
) -> list[Entry]:
    """Return the entries that match all filters.

    Args:
        size: tiny, small, base, large or huge.
        licence: A licence such as apache-2.0, or `commercial` for all without a -nc clause.
        data: Part of the name of the training data, such as 21k.
    """
    wanted = licence.lower() if licence else None
    return [
        entry
        for entry in entries()
        if (not size or entry.size == size)
        and (wanted != "commercial" or "-nc" not in entry.licence)
        and (wanted in (None, "commercial") or entry.licence == wanted)
        and (not data or data.lower() in entry.data)
    ]
