"""Rows of Hugging Face datasets as tar shards of a local copy.

The rows are streamed once through the library `datasets`. An image is stored as the bytes of its
file, and the other columns as JSON (see `remote.samples`). A shard is written whole, with the
position of the stream after it, so that an interrupted copy continues with the next row.
"""

import contextlib
import hashlib
import io
import json
import logging
import math
import os
import shutil
import tarfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from vitft.data.parts import part_named
from vitft.data.remote.places import Place, ShardPlace, safe_name
from vitft.data.remote.samples import COPY_OPTION
from vitft.data.signatures import identify_format
from vitft.data.table import PATH_COLUMNS
from vitft.data.walk import suffix_of
from vitft.system import console
from vitft.system.errors import DataError, VitftError
from vitft.system.files import read_regular, write_json, writing
from vitft.system.structure import parse_json
from vitft.system.text import listing, redacted

log = logging.getLogger(__name__)

_SHARD_ROWS = 500  # number of rows in a shard
_PROGRESS = "progress.json"
_SUFFIXES = {
    "JPEG": "jpg", "PNG": "png", "WebP": "webp", "BMP": "bmp", "GIF": "gif", "TIFF": "tif",
    "AVIF": "avif", "HEIC": "heic",
}  # fmt: skip
"""Mapping from the formats of images to the components of their names."""
_CHECK = "check the name, the split and the network, or log in with `hf auth login`"


class _HubName(NamedTuple):
    """The parts of `hf:NAME[@REVISION][:[CONFIG/]SPLIT]`."""

    name: str
    revision: str = ""
    config: str = ""
    split: str = ""


def parse_name(address: str) -> _HubName:
    """Return the parts of a name; a local file or folder name may contain any characters."""
    if os.path.exists(address):  # noqa: PTH110
        return _HubName(os.path.abspath(address))  # noqa: PTH100 - `parquet` is also a format
    name, colon, rest = address.rpartition(":")
    if not colon:
        name, rest = address, ""
    config, _, split = rest.rpartition("/")
    if os.path.exists(name):  # noqa: PTH110
        return _HubName(os.path.abspath(name), "", config, split)  # noqa: PTH100
    name, _, revision = name.partition("@")
    return _HubName(name, revision, config, split)


def copy_rows(place: Place) -> tuple[list[ShardPlace], list[str], str]:
    """Write, or continue writing, the rows of a dataset to shards in the folder of its locked copy.

    Return the shards, notes on splits that are not used, and the version of the data: a commit on
    the hub, or a digest of names, sizes and times of local files.
    """
    hub = parse_name(place.address)
    try:
        with _quiet_libraries():
            progress: dict[str, Any] = {}
            with contextlib.suppress(OSError, ValueError):
                progress = parse_json(read_regular(place.folder / _PROGRESS, limit=2**28))
            local = os.path.exists(hub.name)  # noqa: PTH110
            version = local_version(hub.name) if local else str(progress.get("version", ""))
            if not version:
                from huggingface_hub import HfApi

                version = str(HfApi().dataset_info(hub.name, revision=hub.revision or None).sha)
            if progress.get("version") != version:  # new, or changed since it was copied
                shutil.rmtree(place.folder / "shards", ignore_errors=True)
                progress = {"version": version, "splits": {}}
                write_json(place.folder / _PROGRESS, progress)
            if "all" not in progress:
                import datasets

                options = _load_arguments(hub, "" if local else version)
                progress["all"] = ["train"]
                if "data_files" not in options:
                    options["config_name"] = options.pop("name")
                    progress["all"] = list(datasets.get_dataset_split_names(**options))
            names, notes = _chosen_splits(place, hub, progress["all"])
            shards = []
            for split in names:
                _copy_split(place, hub, split, progress)
                shards += progress["splits"][split]["shards"]
            return [ShardPlace(name, f"hf://{hub.name}/{name}") for name in shards], notes, version
    except VitftError:
        raise
    except Exception as error:  # `datasets` and the libraries below it raise anything
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        reason = redacted((lines or [type(error).__name__])[0])[:200]
        raise DataError(f"cannot read {place.text}: {reason}", fix=_CHECK) from error


@contextlib.contextmanager
def _quiet_libraries() -> Iterator[None]:
    """Keep `datasets` from drawing progress bars and logging inside the block."""
    import datasets

    level = datasets.logging.get_verbosity()
    datasets.logging.set_verbosity_error()
    datasets.disable_progress_bars()
    try:
        yield
    finally:
        datasets.logging.set_verbosity(level)


def local_version(path: str) -> str:
    """Return a digest of the names, sizes and modification times of local files."""
    root = Path(path)
    files = sorted(file for file in root.rglob("*") if file.is_file()) if root.is_dir() else [root]
    lines = [f"{file} {(s := file.stat()).st_size} {s.st_mtime_ns}" for file in files]
    return hashlib.sha256("\n".join(lines).encode("utf-8", "surrogateescape")).hexdigest()


def _load_arguments(hub: _HubName, version: str) -> dict[str, Any]:
    if hub.name.endswith(".parquet") and os.path.isfile(hub.name):  # noqa: PTH113
        return {"path": "parquet", "data_files": hub.name}
    revision = {} if os.path.exists(hub.name) else {"revision": version}  # noqa: PTH110
    return {"path": hub.name, "name": hub.config or None, **revision}


def _chosen_splits(place: Place, hub: _HubName, names: list[str]) -> tuple[list[str], list[str]]:
    """Return the splits to copy, and notes on the others."""
    if hub.split:
        if hub.split not in names:
            raise DataError(
                f"{place.text}: there is no split {hub.split}. Splits found: {listing(names)}",
                fix="use one of these splits",
            )
        return [hub.split], []
    known = names if len(names) == 1 else [name for name in names if part_named(name)]
    if not known:
        raise DataError(
            f"{place.text}: none of the splits is named train, validation or test. Splits found: "
            f"{listing(names)}",
            fix=f"choose one of them, e.g. hf:{hub.name}:{names[0]}",
        )
    others = [name for name in names if name not in known]
    return known, [f"not used: the splits {listing(others)}"] if others else []


def _copy_split(place: Place, hub: _HubName, split: str, progress: dict[str, Any]) -> None:
    """Write the rows of a split to shards, beginning after the last whole shard."""
    import datasets

    state = progress["splits"].setdefault(split, {"shards": [], "stream": None, "done": False})
    if state["done"]:
        return
    version = progress["version"]
    stream = datasets.load_dataset(**_load_arguments(hub, version), split=split, streaming=True)
    features: Mapping[str, Any] = stream.features or {}
    images = _image_columns(features)
    if not images:
        raise DataError(
            f"{place.text} has no column of images. Columns found: {listing(features)}",
            fix="use a dataset with a column of the type Image",
        )
    for name in images:
        if isinstance(features[name], datasets.Image):
            stream = stream.cast_column(name, datasets.Image(decode=False))
    if state["stream"]:
        stream.load_state_dict(state["stream"])
    found = stream.info.splits if stream.info else None
    total = found[split].num_examples if found and split in found else 0
    first = len(state["shards"]) * _SHARD_ROWS
    rows = iter(stream)
    with console.Progress(f"copying {place.name} {split}", max(total - first, 1)) as bar:
        while not state["done"]:
            name = f"{safe_name(split)}-{len(state['shards']):05}.tar"
            number = len(state["shards"]) * _SHARD_ROWS
            path = place.folder / "shards" / name
            part = path.with_name(f"{name}.part")
            # One shard
            written = 0
            with writing(part, option=COPY_OPTION):
                part.parent.mkdir(parents=True, exist_ok=True)
                file = part.open("wb")
            with file, tarfile.open(fileobj=file, mode="w", format=tarfile.USTAR_FORMAT) as tar:
                while written < _SHARD_ROWS and (row := next(rows, None)) is not None:
                    for component, data in _row_members(row, images, features):
                        info = tarfile.TarInfo(f"{number + written:07}.{component}")
                        info.size = len(data)
                        with writing(part, option=COPY_OPTION):
                            tar.addfile(info, io.BytesIO(data))
                    written += 1
            if written:
                part.replace(path)
                state["shards"].append(name)
                bar.advance(written)
            state["done"] = written < _SHARD_ROWS
            state["stream"] = None if state["done"] else stream.state_dict()
            write_json(place.folder / _PROGRESS, progress)


def _image_columns(features: Mapping[str, Any]) -> list[str]:
    """Return the columns of images or their bytes, beginning with the one of a usual name."""
    import datasets

    found = []
    for name, feature in features.items():
        is_bytes = getattr(feature, "dtype", "") in ("binary", "large_binary")
        is_file = isinstance(feature, dict) and {*feature} == {"bytes", "path"}
        usual = name.lower() in PATH_COLUMNS
        if isinstance(feature, datasets.Image) or is_file or (is_bytes and usual):
            found.append(name)
    return sorted(found, key=lambda name: name.lower() not in PATH_COLUMNS)


def _row_members(
    row: Mapping[str, Any], images: list[str], features: Mapping[str, Any]
) -> Iterator[tuple[str, bytes]]:
    """Yield the images of a row and its other columns as JSON, each with its component."""
    for place, name in enumerate(images):
        data, path = image_bytes(row[name])
        if data is not None:
            suffix = _SUFFIXES.get(identify_format(data)) or suffix_of(path).lstrip(".")
            suffix = suffix if suffix in _SUFFIXES.values() else "jpg"  # is reported as unreadable
            yield (f"{safe_name(name)}.{suffix}" if place else suffix), data
    fields = {
        name: _json_value(value, features.get(name))
        for name, value in row.items()
        if name not in images
    }
    yield "json", json.dumps(fields).encode()


def image_bytes(value: Any) -> tuple[bytes | None, str]:  # noqa: ANN401 - a cell of any type
    """Return the bytes of an image's file and its path; the bytes are None if there is no image."""
    if not isinstance(value, dict):
        return value, ""
    data, path = value.get("bytes"), value.get("path") or ""
    if data is None and path:
        import fsspec

        with fsspec.open(path, "rb") as file:
            data = file.read()
    return data, path


def _json_value(value: Any, feature: Any) -> Any:  # noqa: ANN401 - a cell of any type
    """Return a cell for JSON: names instead of class indices, and text for other objects."""
    if isinstance(value, list | tuple):
        inner = getattr(feature, "feature", feature[0] if isinstance(feature, list) else None)
        return [_json_value(item, inner) for item in value]
    if hasattr(feature, "int2str") and isinstance(value, int):
        return feature.int2str(value) if value >= 0 else None
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if value is None or isinstance(value, str | int | float | bool):
        return value
    return {} if isinstance(value, dict | bytes) else str(value)
