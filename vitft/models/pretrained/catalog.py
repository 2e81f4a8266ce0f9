"""Names of pretrained weights: the catalogue `weights/catalog.toml`, the hub, timm, and files.

Does not import torch, so that a wrong name or path is reported at once. `fetch` downloads files.
"""

import contextlib
import fnmatch
import functools
import itertools
import os
import platform
import re
import shutil
import sys
import time
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from vitft.data.mistaken import mistaken_data
from vitft.data.signatures import looks_like
from vitft.data.transforms import CROP, CROP_MODES, RESAMPLING, Fit
from vitft.models.card import TimmConfig, parse_card, timm_modules
from vitft.models.vit_config import SIZES, frozen_blocks, similar_models
from vitft.system.cores import usable_cores
from vitft.system.errors import UsageError, WeightsError
from vitft.system.files import INDEX_SUFFIX, WEIGHT_SUFFIXES, resource, weight_format
from vitft.system.rundir import run_path
from vitft.system.suggest import near_path, path_fix
from vitft.system.tensors import read_header
from vitft.system.text import count, duration, listing, shell_quote

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


def _licence_terms(licence: str) -> _Terms:
    """Return the kind of a licence's terms, e.g. `own terms` for `dinov3-license`."""
    name = licence.lower()
    if name in ("", "unknown", "not stated") or name.startswith("see "):
        return "not stated"
    if any(part in name for part in _NON_COMMERCIAL):
        return "non-commercial"
    return "open" if name in _OPEN_LICENCES else "own terms"


def obligation(licence: str) -> str:
    """Return a sentence on what a licence requires of fine-tuned models, or an empty string."""
    rules = {
        "non-commercial": " and forbid commercial use.",
        "own terms": ": include the text of their licence when you distribute the model.",
    }
    rule = rules.get(_licence_terms(licence), "")
    return f"The terms of the pretrained weights also apply to this model{rule}" if rule else ""


# names of weights --------------------------------------------------------------------------------


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


# the catalogue of pretrained weights: the entries of `weights/catalog.toml` -----------------------

_Tier = Literal["fast", "balanced", "best"]
_EFFICIENCY = 0.6  # speed of a model with image decoding, relative to a matrix product
_REPOSITORY = r"[\w-][\w.-]*/[\w-][\w.-]*"  # pattern for owner/name on the hub


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogEntry:
    """Published weights and the facts needed to use them."""

    name: str
    licence: str
    architecture: str = ""  # for `vitft.create_model`; empty if it is inferred from the file
    options: Mapping[str, Any] = field(default_factory=dict)  # other fields of `ViTConfig`
    data: str = ""  # names of the training datasets, in the order of training
    repo: str = ""  # hub repository, owner/name; empty for a bundled file
    file: str = "model.safetensors"  # name of the file in the repository
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
    tier: _Tier | None = None  # of recommended weights
    megabytes: int = 0  # size of the download of recommended weights in 10^6 bytes
    gmacs: float = 0.0
    """Billions of multiply-adds of recommended weights for one image at the native size."""
    default: bool = False  # whether these weights may be chosen by default

    @property
    def terms(self) -> _Terms:
        """Kind of the licence's terms."""
        return _licence_terms(self.licence)

    @property
    def marked_licence(self) -> str:
        """Name of the licence, with its terms in parentheses unless it is open or unknown."""
        is_marked = self.terms in ("non-commercial", "own terms")
        return f"{self.licence} ({self.terms})" if is_marked else self.licence

    @property
    def is_hub_repository(self) -> bool:
        """Whether this is an arbitrary hub repository (hf:owner/name)."""
        return self.name.startswith("hf:")

    @property
    def is_timm(self) -> bool:
        """Whether this is a timm model (timm:NAME), which timm builds and describes."""
        return self.name.startswith("timm:")

    @property
    def bundled(self) -> Path | None:
        """Path of a bundled file."""
        return resource("weights") / self.path if self.path else None

    @property
    def pixels(self) -> dict[str, Any]:
        """Fields of the evaluation transform, except the image size."""
        names = ("mean", "std", "crop", "interpolation", "fit")
        return {name: getattr(self, name) for name in names}

    @property
    def size(self) -> str:
        """Model size: tiny, small, base, large or huge; empty if `architecture` is empty."""
        return self.architecture.split("_")[1] if self.architecture else ""

    def seconds(self, images: int, speed: float) -> float:
        """Return the estimated time in seconds of a pass over `images` images.

        `speed` is the speed of the machine in billions of multiply-adds per second.
        """
        return images * self.gmacs / (speed * _EFFICIENCY)

    def lines(self) -> list[str]:
        """Return a description, one fact per line, without fetching the file."""
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
            "licence": self.marked_licence,
            "head": f"{self.num_classes} classes" if self.num_classes else "none in the file",
            "pre_logits": "yes" if self.pre_logits else "no",
            "pixels": f"{self.image_size[0]}x{self.image_size[1]}, {self.interpolation}, crop "
            f"{self.crop}, mean {self.mean}, std {self.std}",
            "sha256": self.sha256 or ("as published on the hub" if self.repo else ""),
            "formerly": self.was,
            "note": self.note,
        }
        if self.path:  # the card of bundled weights contains these facts
            rows |= dict.fromkeys(("head", "pre_logits", "pixels"), "")
        return fact_lines(rows.items())


def fact_lines(facts: Iterable[tuple[str, str]]) -> list[str]:
    """Return a line for each fact, its name in a column of its own, without those that are ""."""
    return [f"{name + ':':<12}{value}" for name, value in facts if value]


@functools.cache
def _read_catalog() -> Mapping[str, Any]:
    return tomllib.loads((resource("weights") / "catalog.toml").read_text(encoding="utf-8"))


@functools.cache
def catalog_entries() -> tuple[CatalogEntry, ...]:
    """Return all entries of the catalogue, in the order of the file."""
    catalog = _read_catalog()
    costs = {row["name"]: row for row in catalog["recommended"]}
    entries = []
    for row in catalog["weights"]:
        family = catalog["family"][row["family"]]
        options = {**family.get("options", {}), **row.get("options", {})}
        fields = {**family, **row, **costs.get(row["name"], {}), "options": options}
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
    rows, known = entries_by_name(), name.removeprefix("timm/")
    architecture = known.partition(".")[0]
    if name in rows:
        return rows[name]
    if architecture in timm_modules():
        from vitft.models.registry import translate

        try:
            translate(architecture)
        except UsageError as error:
            problem, fix = (t.replace(architecture, known) for t in (error.problem, error.fix))
            raise WeightsError(problem, fix=fix) from error
        entry = complete_entry(CatalogEntry(name=f"timm:{known}", licence=""))
        is_restricted = entry.terms == "non-commercial"
        note = "the licence forbids commercial use" if is_restricted else ""
        return replace(entry, name=entry.name.removeprefix("timm:"), options={}, note=note)
    more = similar_models(name, [f"timm:{one}" for one in timm_modules() if one not in rows])
    near = [*similar_models(name, rows)[:3], *more[:2]]
    fix = f"check the name (similar ones are {', '.join(near)}), or pass the path of a file"
    is_path = Path(name).parent.is_dir()  # e.g. of a run whose name is mistyped
    is_size = re.match(r"(?i)(vit|deit)-[a-z]{1,2}/\d", name)  # as in papers, e.g. ViT-B/16
    if re.fullmatch(_REPOSITORY, name, re.ASCII) and not (is_path or is_size):
        fix = f"for a repository on the hub, use hf:{name}. Otherwise, {fix}"
    raise WeightsError(f"unknown weights {name!r}", fix=fix)


@functools.cache
def entries_by_name() -> Mapping[str, CatalogEntry]:
    """Return a mapping from each name and alias to its entry."""
    return {name: entry for entry in catalog_entries() for name in (entry.name, *entry.aliases)}


def complete_entry(entry: CatalogEntry, *, is_published: bool = True) -> CatalogEntry:
    """Return the entry of `timm:NAME`, completed with timm's metadata."""
    import timm
    from timm.models import get_pretrained_cfg

    name = entry.name.removeprefix("timm:")
    architecture = name.partition(".")[0]
    try:
        known: Any = get_pretrained_cfg(name) if timm.is_model(architecture) else None
    except RuntimeError:  # the architecture does not have this tag
        known = None
    if known is None or (is_published and not known.hf_hub_id):
        near = similar_models(name, timm.list_models() + timm.list_pretrained())
        raise WeightsError(
            f"timm {timm.__version__} has no weights named {name}",
            fix=f"choose another name, e.g. {', '.join(near)}",
        )
    return replace(
        entry,
        name=f"timm:{architecture}{'.' + known.tag if known.tag else ''}",
        licence=known.license or "not stated" if is_published else "",
        architecture=architecture,
        options={"fixed_input_size": known.fixed_input_size},
        data=known.tag or "",
        repo=known.hf_hub_id or "",
        file=known.hf_hub_filename or "model.safetensors",
        image_size=tuple(known.input_size[1:]),
        mean=tuple(known.mean),
        std=tuple(known.std),
        crop=float(known.crop_pct),
        interpolation=known.interpolation if known.interpolation in RESAMPLING else "bicubic",
        fit=CROP_MODES.get(known.crop_mode or "", "crop"),
        num_classes=known.num_classes,
    )


# recommended weights, and the default choice of weights -------------------------------------------

_GPU_SPEED = 3000.0
"""Assumed speed of a GPU, in billions of multiply-adds per second; even slow GPUs reach it in
fp16."""
_ACCEPTABLE_S = 300.0  # maximum seconds of the feature pass with the default weights


@functools.cache
def recommendations() -> tuple[CatalogEntry, ...]:
    """Return the recommended weights, from the fastest to the most accurate."""
    return tuple(entries_by_name()[row["name"]] for row in _read_catalog()["recommended"])


def has_gpu() -> bool:
    """Return whether torch will probably find a GPU (there is an NVIDIA driver or Apple chip)."""
    is_apple = sys.platform == "darwin" and platform.machine() == "arm64"
    return is_apple or shutil.which("nvidia-smi") is not None


@functools.cache
def _cpu_speed() -> float:
    """Return the speed of the CPU in billions of multiply-adds per second.

    The benchmark is a product of float32 matrices with the shapes of the first MLP layer of a
    ViT-B/16 for four images: the best of three runs, 0.1 to 0.5 s together, in CPU time, so that
    other jobs on the machine do not affect the result.
    """
    import numpy as np

    tokens, width, hidden = 4 * 197, 768, 3072
    x = np.ones((tokens, width), np.float32)
    w = np.ones((width, hidden), np.float32)
    seconds = []
    for _ in range(3):
        started = time.process_time()
        x @ w
        seconds.append(time.process_time() - started)
    return usable_cores() * tokens * width * hidden / 1e9 / max(min(seconds), 1e-6)


def machine_speed(device: str = "auto") -> float:
    """Return the speed of a device in billions of multiply-adds per second."""
    return _GPU_SPEED if device != "cpu" and has_gpu() else _cpu_speed()


def default_weights(images: int, *, device: str) -> tuple[str, str]:
    """Return the name of the default weights for a run, and the reason for choosing them.

    Of the defaults in the local cache or, if there are none, of all, they are the most accurate
    with a feature pass of at most `_ACCEPTABLE_S`, or else the fastest.
    """
    from huggingface_hub import constants

    choices = [one for one in recommendations() if one.default]
    cached = [one for one in choices if cached_file(one)]
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
        f"{chosen.name}: {chosen.tier}, {chosen.licence}, {origin}, about "
        f"{duration(max(1, seconds))} for {count(images, 'image')}"
    )


def cached_alternatives(name: str) -> list[CatalogEntry]:
    """Return recommended weights in the local cache that are probably more accurate than `name`.

    Their licence is open, and the most accurate ones are first. If `name` is not among the
    recommended ones, all are listed.
    """
    better = itertools.takewhile(lambda one: one.name != name, reversed(recommendations()))
    return [entry for entry in better if entry.terms == "open" and cached_file(entry)]


def cached_file(entry: CatalogEntry) -> Path | None:
    """Return the file of an entry in the hub's local cache, or None if it is not there."""
    from huggingface_hub import try_to_load_from_cache

    if not entry.repo:
        return None  # a bundled file
    found = try_to_load_from_cache(entry.repo, entry.file, revision=entry.revision)
    return Path(found) if isinstance(found, str) else None


_FILE_SUFFIXES = (*WEIGHT_SUFFIXES, ".onnx", ".h5", ".gguf", ".zip", ".tar")
"""Suffixes that identify a string as a path rather than a name, even if no such file exists."""
_BLOCK = re.compile(r"(?:blocks|encoder\.layer|vit\.encoder\.layer)\.(\d+)\.")
"""Beginning of the name of a tensor of a block, in files of vitft and timm or transformers."""
_CHOOSE_WEIGHTS = ", and choose weights from `vitft weights list`"
RANDOM = "random:"  # `random:NAME` has NAME's architecture and random weights


def check_weights_name(
    name_or_path: str | Path,
    *,
    allow_pickle: bool | None = True,
    allow_random: bool = False,
    layers: str = "head",
) -> None:
    """Check that `load_backbone` can find these weights, without torch or network access.

    `allow_pickle` is None if the user cannot allow pickles. `layers` are the stages of training.

    Raises:
        WeightsError: They cannot be found, or are of an unsupported kind or a rejected pickle.
        UsageError: The weights are known to have fewer blocks than `layers`.
    """
    if isinstance(name_or_path, str) and allow_random:
        name_or_path = name_or_path.removeprefix(RANDOM)
    found = locate(name_or_path)
    depth, file = 0, found if isinstance(found, Path) else found.bundled or found.local
    if isinstance(found, CatalogEntry) and found.size in SIZES:
        depth = SIZES[found.size].depth
    if file:
        path = check_weight_file(Path(file), allow_pickle=allow_pickle)
        if not depth and weight_format(path) == "safetensors":
            with contextlib.suppress(OSError, ValueError):
                blocks = map(_BLOCK.match, read_header(path).tensors)
                depth = max((1 + int(block[1]) for block in blocks if block), default=0)
    for stage in layers.split(",") if depth else ():
        frozen_blocks(stage.strip(), depth)


def locate(name_or_path: str | Path) -> CatalogEntry | Path:
    """Return the catalogue entry or the path of the weight file for a name or path.

    Catalogue names take precedence. For `hf:` and `timm:` names, an entry is created.
    """
    name = os.fspath(name_or_path)
    path = Path(name).expanduser()
    if isinstance(name_or_path, str):
        name = canonical_name(name)
        if entry := entries_by_name().get(name) or _parse_prefixed_name(name):
            return entry
    if "://" in name:
        raise WeightsError(
            f"{name} is a web address, and weights are fetched only from huggingface.co",
            fix="download the file, and pass its path",
        )
    if not name.strip():
        raise WeightsError(
            "the name of the weights is empty",
            fix="use a name from `vitft weights list`, or the path of a weight file",
        )
    if path.is_dir():
        return _weights_in_folder(path)
    if file_and_part(path)[0].exists():
        return check_weight_file(path)
    is_name = isinstance(name_or_path, str) and not name.startswith((".", "~", os.sep))
    is_misspelt = bool(path.suffix and near_path(path, _may_be_weights))
    is_file = path.suffix.lower() in _FILE_SUFFIXES or is_misspelt
    if not is_name or name.endswith(os.sep) or is_file:
        raise WeightsError(
            f"weights not found: {path}",
            fix=path_fix(
                path, _may_be_weights, otherwise="or choose a name from `vitft weights list`"
            ),
        )
    return find_entry(name)  # raises an error that suggests similar names


def absolute_name(name: str) -> str:
    """Return the absolute path of local weights, without `latest`, or the given name of others."""
    path = run_path(name)
    is_local = file_and_part(path)[0].exists() and name != "none"
    if not is_local or canonical_name(name) in entries_by_name():
        return name
    return str(path.resolve() if path.is_dir() else path.parent.resolve() / path.name)


def _weights_in_folder(path: Path) -> Path:
    """Return a folder's weight file: model.safetensors, or the only one of the best format."""
    with os.scandir(path) as found:
        entries = sorted(entry.name + "/" * entry.is_dir() for entry in found)
    parts = re.compile(r"-\d+-of-\d+\.")  # of which only their index counts
    training = re.compile(r"(training_args|optimizer|scheduler|scaler|rng_state|random_states)")
    names = [n for n in entries if n.lower().endswith((*WEIGHT_SUFFIXES, ".tar", INDEX_SUFFIX))]
    names = [n for n in names if not parts.search(n) and not training.match(n)]
    for pattern in ("model.safetensors", "*.safetensors*", "pytorch_model.bin", "*"):
        files = fnmatch.filter(names, pattern)
        if len(files) == 1:
            return check_weight_file(path / files[0])
        if files:
            raise WeightsError(
                f"{path} contains {count(len(files), 'weight file')}: {listing(files)}",
                fix=f"pass one of them, e.g. {shell_quote(str(path / files[0]))}",
            )
    if (path / "model.onnx").is_file():
        raise WeightsError(
            f"{path} contains an ONNX graph, from which no weights are loaded",
            fix="use it with --run or vitft.load, or export the run with --safetensors",
        )
    if data := mistaken_data(path):
        raise WeightsError(f"{path} is {data[0]}, not weights", fix=data[1] + _CHOOSE_WEIGHTS)
    raise WeightsError(
        f"{path} contains no weight file ({listing(entries) if entries else 'it is empty'})",
        fix="pass a weight file, a run directory or a folder exported by vitft",
    )


def file_and_part(path: Path) -> tuple[Path, str | None]:
    """Return the file and the name of one of its models from `FILE#NAME`, or None for no name."""
    file, sign, part = str(path).rpartition("#")
    return (Path(file), part) if sign and not path.exists() else (path, None)


def _may_be_weights(entry: "os.DirEntry[str]") -> bool:
    return entry.is_dir() or entry.name.lower().endswith(WEIGHT_SUFFIXES)


def canonical_name(name: str) -> str:
    """Return hf:owner/name[@revision] for an address on the hub or timm's `hf-hub:`, or `name`."""
    found = re.fullmatch(r"(hf[-_]hub:|(https?://)?(www\.)?(huggingface\.co|hf\.co)/)(.+)", name)
    if found is None:
        return name
    named = re.sub(r"/(?:tree|blob|resolve)/([^/?]+).*|/?(?:\?.*)?$", r"@\1", found[5], count=1)
    return f"hf:{named.removesuffix('@main').rstrip('@')}"


def _parse_prefixed_name(name: str) -> CatalogEntry | None:
    """Return the entry for a name that begins with `hf:` or `timm:`, or None for any other name."""
    if name == "none" or name.startswith(RANDOM):
        other = "" if name == "none" else name.removeprefix(RANDOM)
        raise WeightsError(
            f"{name} means new random weights, but pretrained weights are needed here",
            fix=f"use {other or 'a name from `vitft weights list`'}",
        )
    if name.startswith("hf:"):
        pattern = rf"hf:(?P<repo>{_REPOSITORY})(@(?P<revision>[\w][\w./-]*))?"
        match = re.fullmatch(pattern, name, re.ASCII)
        if match is None or ".." in name:
            raise WeightsError(
                f"invalid hub name {name!r}",
                fix="use hf:owner/name or hf:owner/name@revision, e.g. "
                "hf:google/vit-base-patch16-224-in21k",
            )
        licence, revision = f"see https://huggingface.co/{match['repo']}", match["revision"]
        return CatalogEntry(
            name=name, licence=licence, repo=match["repo"], revision=revision or "main"
        )
    if not name.startswith("timm:"):
        return None
    # timm:NAME[.TAG] or timm:NAME=FILE, as yet without timm's metadata
    model, has_file, file = name.partition("=")
    if not re.fullmatch(r"timm:[a-z0-9_]{1,100}(\.[\w-]{1,100})?", model, re.ASCII):
        raise WeightsError(
            f"invalid timm name {model!r}",
            fix="use timm:NAME, timm:NAME.TAG or timm:NAME=FILE, e.g. "
            "timm:convnext_tiny.in12k_ft_in1k",
        )
    if not has_file:
        return CatalogEntry(name=name, licence="see timm's metadata")
    path = Path(file).expanduser()
    return CatalogEntry(name=model, licence="", local=str(check_weight_file(path)))


def check_weight_file(path: Path, *, allow_pickle: bool | None = True) -> Path:
    """Return `path`, a FILE or FILE#NAME, or raise WeightsError if it is not a supported file."""
    file, _ = file_and_part(path)
    if not file.is_file():
        raise WeightsError(
            f"{file} is not a regular file" if file.exists() else f"weights not found: {file}",
            fix="check the path of the weight file",
        )
    if data := mistaken_data(file):
        problem = f"{file} is {data[0]}, not a weight file"
        raise WeightsError(problem, fix=data[1] + _CHOOSE_WEIGHTS)
    kind = weight_format(file)
    if not kind:
        suffix = f"the suffix {file.suffix}" if file.suffix else "no suffix"
        raise WeightsError(
            f"{file} is not a weight file: it has {suffix}",
            fix="use a .safetensors, .pth, .pt or .bin file, or a .npz file in Google's format",
        )
    if kind != "pickle" or allow_pickle:
        return path
    with file.open("rb") as opened:
        content = looks_like(opened.read(64))
    if content.startswith("looks like"):
        raise WeightsError(f"{path} is not a weight file: it {content}", fix="use another file")
    fix = "use a .safetensors file"
    if allow_pickle is not None:
        fix += ", or add --allow-pickle (in Python: allow_pickle=True), which reads only tensors "
        fix += "and runs no code"
    raise WeightsError(f"{path} is a Python pickle, which can contain code", fix=fix)


def is_timm(found: CatalogEntry | Path) -> bool:
    """Return whether an entry names a timm model, or a file is a checkpoint of one."""
    if isinstance(found, CatalogEntry):
        return found.is_timm
    if found.suffix.lower() != ".safetensors":
        return False
    try:
        card = parse_card(read_header(found).metadata.get("vitft.card", ""))
    except (OSError, ValueError):
        return False  # the error is reported when the file is read
    return isinstance(card.architecture, TimmConfig)


def locate_entry(name: str) -> CatalogEntry | Path:
    """Return the result of `locate`, after adding timm's metadata to the entry of a timm model."""
    found = locate(name)
    return complete_entry(found) if isinstance(found, CatalogEntry) and found.is_timm else found
