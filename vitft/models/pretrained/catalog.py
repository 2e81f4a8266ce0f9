"""The catalogue of pretrained weights: the entries of `weights/catalog.toml`.

Does not import torch, so that a wrong name is reported at once. `fetch` downloads the files.
"""

import functools
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from vitft.data.transforms import CROP, Fit
from vitft.models.card import timm_modules
from vitft.system.cores import GPU_SPEED, cpu_speed, has_gpu
from vitft.system.errors import UsageError, WeightsError
from vitft.system.files import resource
from vitft.system.suggest import suggest
from vitft.system.text import count, duration

# licence terms of pretrained weights, derived from the licence names on the hub -------------------

_Terms = Literal["open", "non-commercial", "own terms", "not stated"]

_OPEN_LICENCES = frozenset(
    {
        "apache-2.0", "mit", "bsd-2-clause", "bsd-3-clause", "cc0-1.0", "cc-by-4.0", "unlicense",
        "mpl-2.0", "isc",
    }
)  # fmt: skip
"""Licences that allow any use and modification, and require attribution at most. They impose no
additional terms on models that are fine-tuned from the weights."""
_NON_COMMERCIAL = ("-nc", "noncommercial", "non-commercial", "apple-amlr", "seer-license")
"""Substrings of licence names that indicate a ban on commercial use. AMLR (Apple) and SEER are
research licences, although their names do not show it."""


def licence_terms(licence: str) -> _Terms:
    """Return the kind of a licence's terms, e.g. `own terms` for `dinov3-license`."""
    name = licence.lower()
    if name in ("", "unknown", "not stated") or name.startswith("see "):
        return "not stated"
    if any(part in name for part in _NON_COMMERCIAL):
        return "non-commercial"
    return "open" if name in _OPEN_LICENCES else "own terms"


def marked_licence(licence: str) -> str:
    """Return the name of a licence, with its terms in parentheses unless it is open or unknown."""
    terms = licence_terms(licence)
    return f"{licence} ({terms})" if terms in ("non-commercial", "own terms") else licence


def obligation(licence: str) -> str:
    """Return a sentence on what a licence requires of fine-tuned models, or an empty string."""
    terms = licence_terms(licence)
    start = "The terms of the pretrained weights also apply to this model"
    if terms == "non-commercial":
        return f"{start} and forbid commercial use."
    share = "include the text of their licence when you distribute the model"
    return f"{start}: {share}." if terms == "own terms" else ""


# names of models: those of weight files, and suggestions for unknown ones -------------------------

SIZE_LETTERS = {"tiny": "Ti", "small": "S", "base": "B", "large": "L", "huge": "H"}
"""Letters of the sizes in the notation of papers, such as ViT-B/16."""


def file_name(path: Path) -> str:
    """Return the name of the weights in a file: its stem, or its folder's name for `model.*`."""
    is_plain = path.stem in ("model", "pytorch_model")
    return path.absolute().parent.name if is_plain else path.stem


def weights_name(name: str) -> str:
    """Return the catalogue name of weights; for a path, return the name of its file or folder."""
    path = Path(name)
    if path.suffix in (".safetensors", ".bin", ".pth", ".npz"):
        return file_name(path)
    return path.name if name.startswith(("/", "~", ".")) else name


def similar_models(name: str, known: Iterable[str]) -> list[str]:
    """Return up to five names of models that were probably meant, the most similar ones first.

    `name` may be as in papers (ViT-B/16), in torchvision or on the hub (google/vit-base-patch16).
    """
    text = re.sub(r"[^a-z0-9./]+", "_", name.lower())
    sizes = {letter.lower(): size for size, letter in SIZE_LETTERS.items()} | {"t": "tiny"}
    short = re.match(r"(vit|deit3?)_(ti|[tsblh])[_/]?(\d+)(?![0-9])", text)
    full = f"{short[1]}_{sizes[short[2]]}_patch{short[3]}" if short else text.rpartition("/")[2]
    return suggest(full, known, cutoff=0, inside=True, most=5)


# the catalogue of pretrained weights: the entries of `weights/catalog.toml` -----------------------

REPOSITORY = r"[\w-][\w.-]*/[\w-][\w.-]*"  # pattern for owner/name on the hub


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogEntry:
    """Published weights and the facts needed to use them."""

    name: str
    licence: str
    architecture: str = ""  # for `vitft.create_model`; empty if it is inferred from the file
    options: Mapping[str, Any] = field(default_factory=dict)  # other fields of `ViTConfig`
    data: str = ""  # names of the training datasets, in the order of training
    repo: str = ""  # hub repository, owner/name; empty for a bundled file
    file: str = ""  # name of the file in the repository
    revision: str = "main"
    gated_source: str = ""
    """Hub repository in which the publisher offers the same weights to accounts that accept its
    terms; empty if there is none. `repo` itself is not gated."""
    path: str = ""  # of a bundled file, in the catalogue's folder; replaces `repo` and `file`
    image_size: tuple[int, int] = (224, 224)  # height and width in pixels, in training
    mean: tuple[float, ...] = (0.5, 0.5, 0.5)
    std: tuple[float, ...] = (0.5, 0.5, 0.5)
    crop: float = CROP  # fraction of the resized image's side that the centre crop keeps
    interpolation: str = "bicubic"
    fit: Fit = "crop"  # resizing method: `crop` keeps the aspect ratio, and `squash` changes it
    num_classes: int = 0  # number of outputs of the head in the file; 0 if there is no head
    pre_logits: bool = False  # whether the file contains the Linear + Tanh before the head
    aliases: tuple[str, ...] = ()
    note: str = ""
    sha256: str = ""  # digest from the publisher; empty if only the hub provides a digest
    local: str = ""  # path of the user's own file (timm:NAME=FILE)
    was: str = ""  # file name of the same weights in older tools

    @property
    def is_hub_repository(self) -> bool:
        """Whether this is an arbitrary hub repository (hf:owner/name)."""
        return self.name.startswith("hf:")

    @property
    def is_timm(self) -> bool:
        """Whether this is a timm model (timm:NAME), which timm builds and describes."""
        return self.name.startswith("timm:")

    @property
    def pixels(self) -> dict[str, Any]:
        """Fields of the evaluation transform, except the image size."""
        names = ("mean", "std", "crop", "interpolation", "fit")
        return {name: getattr(self, name) for name in names}

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
            "gated": f"{self.gated_source} has the same weights and requires an account, but the "
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
def _read_catalog() -> Mapping[str, Any]:
    """Return the content of catalog.toml."""
    return tomllib.loads((resource("weights") / "catalog.toml").read_text(encoding="utf-8"))


@functools.cache
def catalog_entries() -> tuple[CatalogEntry, ...]:
    """Return all entries of the catalogue, in the order of the file."""
    entries = []
    for row in _read_catalog()["weights"]:
        family = _read_catalog()["family"][row["family"]]
        options = {**family.get("options", {}), **row.get("options", {})}
        fields: dict[str, Any] = {**family, **row, "options": options}
        del fields["family"]
        if fields.get("repo", "").startswith("timm/"):
            fields["aliases"] = [*fields.get("aliases", ()), fields["repo"]]
        pairs: Any = {k: tuple(v) if isinstance(v, list) else v for k, v in fields.items()}
        entries.append(CatalogEntry(**pairs))
    return tuple(entries)


def find_entry(name: str) -> CatalogEntry:
    """Return the entry with this name or alias, or a new one if only timm's registry has it.

    Raises:
        WeightsError: The name is unknown, or vitft's own model does not support these weights.
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
            fix = f"for a repository on the hub, use hf:{name}. Otherwise, {fix}"
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


# recommended weights, and the default choice of weights -------------------------------------------

_Tier = Literal["fast", "balanced", "best"]
_ACCEPTABLE_S = 300.0  # maximum seconds of the feature pass with the default weights
_EFFICIENCY = 0.6  # speed of a model with image decoding, relative to a matrix product


@dataclass(frozen=True, slots=True, kw_only=True)
class Recommendation:
    """Recommended weights, with their cost."""

    name: str
    tier: _Tier
    megabytes: int  # size of the download in 10^6 bytes
    gmacs: float  # billions of multiply-adds for one image at the native size
    default: bool = False  # whether these weights may be chosen by default

    @property
    def entry(self) -> CatalogEntry:
        """Entry of the catalogue for these weights."""
        return find_entry(self.name)

    def seconds(self, images: int, speed: float) -> float:
        """Return the estimated time in seconds of a pass over `images` images.

        `speed` is the speed of the machine in billions of multiply-adds per second.
        """
        return images * self.gmacs / (speed * _EFFICIENCY)


@functools.cache
def recommendations() -> tuple[Recommendation, ...]:
    """Return the recommended weights, from the fastest to the most accurate."""
    return tuple(Recommendation(**row) for row in _read_catalog()["recommended"])


def machine_speed(device: str = "auto") -> float:
    """Return the speed of a device in billions of multiply-adds per second."""
    return GPU_SPEED if device != "cpu" and has_gpu() else cpu_speed()


def default_weights(images: int, *, device: str) -> tuple[str, str]:
    """Return the name of the default weights for a run, and the reason for choosing them.

    Of the defaults in the local cache or, if there are none, of all, they are the most accurate
    with a feature pass of at most `_ACCEPTABLE_S`, or else the fastest.

    Raises:
        UsageError: None of the default weights are in the cache, and HF_HUB_OFFLINE is set.
    """
    from huggingface_hub import constants

    choices = [one for one in recommendations() if one.default]
    cached = [one for one in choices if _is_cached(one.entry)]
    if not cached and constants.is_offline_mode():
        raise UsageError(
            "no weights given, none of the default weights are in the cache, and HF_HUB_OFFLINE is "
            "set",
            fix=f"run `vitft weights fetch {choices[0].name}` while online, pass the path of a "
            "weight file with --weights, or use --weights demo, which needs no network",
        )
    speed = machine_speed(device)
    several = cached or choices
    affordable = [one for one in several if one.seconds(images, speed) <= _ACCEPTABLE_S]
    chosen = affordable[-1] if affordable else several[0]
    seconds = chosen.seconds(images, speed)
    origin = "in the cache" if cached else f"a download of {chosen.megabytes:,} MB"
    return chosen.name, (
        f"{chosen.name}: {chosen.tier}, {chosen.entry.licence}, {origin}, about "
        f"{duration(max(1, seconds))} for {count(images, 'image')}"
    )


def cached_alternatives(name: str, licence: str) -> list[Recommendation]:
    """Return recommended weights in the local cache that are probably more accurate than `name`.

    Their licence is open or `licence`, that of the weights `name`. If these are not among the
    recommended ones, all others are listed.
    """
    every = recommendations()
    names = [one.name for one in every]
    better = every[names.index(name) + 1 :] if name in names else every
    return [
        one
        for one in better
        if (licence_terms(one.entry.licence) == "open" or one.entry.licence == licence)
        and _is_cached(one.entry)
    ]


def _is_cached(entry: CatalogEntry) -> bool:
    """Return whether the hub's local cache contains the file of an entry."""
    from huggingface_hub import try_to_load_from_cache

    found = try_to_load_from_cache(entry.repo, entry.file, revision=entry.revision)
    return isinstance(found, str) and Path(found).exists()
