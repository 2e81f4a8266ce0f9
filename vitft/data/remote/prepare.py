"""Local copies of remote datasets: made once, then read without the network.

A shard is fetched whole into the cache, resumed after an interruption, checked and indexed; shards
on this machine are only indexed. One process makes the copy, others wait for it.
"""

import contextlib
import logging
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path

from vitft.config.sections import DataSpec
from vitft.data.arrays import data_path
from vitft.data.download.fetch import DownloadLimits, fetch_to_part, remove_part
from vitft.data.download.web_image import PrivateAddressError
from vitft.data.remote.hugging_face import copy_rows, local_version, parse_name
from vitft.data.remote.places import (
    FILE_SYSTEMS,
    INDEX,
    Place,
    ShardPlace,
    check_place,
    list_shards,
    scheme_of,
)
from vitft.data.remote.samples import (
    COPY_OPTION,
    MEMBERS,
    SOURCE,
    IndexReader,
    LocalCopy,
    ShardFile,
    ShardSamples,
    encode_positions,
    index_table,
    read_copy,
    read_samples,
)
from vitft.data.table import encode_table
from vitft.system import console
from vitft.system.errors import DataError, UsageError
from vitft.system.files import check_space, try_lock, write_atomically, write_json, writing
from vitft.system.imports import install_command, require_extra
from vitft.system.text import count, describe_os_error, labelled

log = logging.getLogger(__name__)
_EXTRAS = {"s3": "s3", "hf": "sources"}
"""Mapping from schemes to the extras that install their libraries."""
_WAIT_S, _PATIENCE_S = 0.2, 5.0
"""Seconds between attempts to lock a copy, and seconds after which a message is logged."""
_PRIVATE_FIX = (
    "if you trust this address, add --set data.allow_private_addresses=true, or in predict "
    "--allow-private-addresses"
)


def check_libraries(address: str) -> None:
    """Raise a UsageError with the command to run if a library for the address is missing."""
    scheme = scheme_of(address)
    library = FILE_SYSTEMS[scheme]
    needed, feature = ("fsspec", library), f"reading {scheme}://"
    if extra := _EXTRAS.get(scheme):
        require_extra(extra, feature=feature, libraries=needed)
        return
    try:
        require_extra("sources", feature=feature, libraries=needed)
    except UsageError as error:
        raise UsageError(error.problem, fix=install_command(("fsspec", library))) from error


def prepare_data(data: str, spec: DataSpec, limits: DownloadLimits | None = None) -> Path:
    """Return the path of a dataset (see `data_path`), after making the local copy if it has one.

    Raises:
        UsageError: The place is not supported, a library is missing, or a setting has no effect.
        DataError: A shard is missing, cannot be fetched, or is rejected.
        ResourceError: The disk is full or too small.
        RunError: The cache folder is not writable.
    """
    place = check_place(data)
    if place is None:
        return data_path(data, spec.root)
    if spec.root:
        raise UsageError(
            f"data.root={spec.root} has no effect: {place.text} contains its images",
            fix="remove it",
        )
    limits = replace(
        limits or DownloadLimits(), allow_private=spec.allow_private_addresses, option=COPY_OPTION
    )
    if scheme_of(place.address) in FILE_SYSTEMS:
        check_libraries(place.address)
    _make_copy(place, limits)
    return data_path(data)


def copied_images(data: str, *, allow_private: bool) -> Iterator[tuple[str, str]]:
    """Yield the name (SHARD/MEMBER) and the path of each image after `prepare_data`."""
    index = prepare_data(data, DataSpec(allow_private_addresses=allow_private))
    reader = IndexReader(index, data)
    rows = iter(reader)
    header = next(rows)
    if "path" not in header:
        fix = "keep one image in each sample, named KEY.jpg"
        raise reader.error(f"each sample has several images ({', '.join(header)})", fix=fix)
    column = header.index("path")
    return ((row[column], f"{index.parent}/{row[column]}") for row in rows)


def _make_copy(place: Place, limits: DownloadLimits) -> None:
    """Make the local copy of a dataset, or complete it; a complete copy is not touched."""
    shards = [] if place.kind == "hf" else list_shards(place.address)
    if _is_complete(read_copy(place.folder), place, shards):
        return
    if place.kind == "hf":
        require_extra("sources", feature=f"reading {place.text}")
    with _locked_copy(place):
        if _is_complete(read_copy(place.folder), place, shards):
            return
        notes: list[str] = []
        version = ""
        if place.kind == "hf":
            shards, notes, version = copy_rows(place)
        found = _ready_shards(place, shards, limits)
        contents = {file.name: samples for file, samples in found}
        table = index_table(contents)
        if not table.images:
            raise DataError(
                f"{place.text} contains no images: {count(len(shards), 'shard')} without KEY.jpg, "
                "KEY.png or another image",
                fix="write each image as KEY.jpg and its class as KEY.cls, or in KEY.json",
            )
        folder = place.folder
        (folder / SOURCE).unlink(missing_ok=True)
        write_atomically(folder / MEMBERS, encode_positions(contents))
        write_atomically(folder / INDEX, encode_table(table.header, table.rows))
        copy = LocalCopy(
            data=place.text,
            version=version,
            shards=tuple(file for file, _ in found),
            notes=(*notes, *table.notes),
            images=table.images,
        )
        write_json(folder / SOURCE, asdict(copy))


def _is_complete(copy: LocalCopy | None, place: Place, shards: Sequence[ShardPlace]) -> bool:
    """Return whether a copy has all shards, and none has changed since it was indexed."""
    if copy is None or not all(file.is_unchanged(place.folder) for file in copy.shards):
        return False
    if place.kind == "hf":  # no list of shards
        name = parse_name(place.address).name
        return not os.path.exists(name) or copy.version == local_version(name)  # noqa: PTH110
    return [file.name for file in copy.shards] == [shard.name for shard in shards]


def _ready_shards(
    place: Place, shards: Sequence[ShardPlace], limits: DownloadLimits
) -> list[tuple[ShardFile, ShardSamples]]:
    """Return all shards with their samples, after fetching those that are new."""
    found: list[tuple[ShardFile, ShardSamples]] = []
    is_local = all(_is_local(shard) for shard in shards)
    if not is_local and place.kind != "hf":
        log.info(labelled("Data", f"copying {place.text} to {place.folder}"))
    with contextlib.ExitStack() as stack:
        progress = None  # each download has its own progress bar
        if is_local:
            bar = console.Progress(f"reading {place.name}", len(shards), unit="shards")
            progress = stack.enter_context(bar)
        for number, shard in enumerate(shards, start=1):
            log.debug(f"shard {number} of {len(shards)}: {shard.name}")
            found.append(_ready_shard(place, shard, limits))
            # Those that are left must fit on the disk; their size is the mean of those fetched
            sizes = [file.size for file, _ in found if file.file.startswith("shards/")]
            needed = (len(shards) - number) * sum(sizes) / max(1, len(sizes))
            check_space(place.folder.parent, needed, place.text, option=COPY_OPTION)
            if progress:
                progress.advance()
    return found


def _is_local(shard: ShardPlace) -> bool:
    return scheme_of(shard.address) in ("", "file")


def _ready_shard(
    place: Place, shard: ShardPlace, limits: DownloadLimits
) -> tuple[ShardFile, ShardSamples]:
    """Return a shard with its samples, after fetching it if necessary."""
    name = f"shards/{shard.name}"
    path = place.folder / name
    if _is_local(shard):
        path, name = Path(shard.address), shard.address
    elif not path.is_file():
        part = path.with_name(f"{path.name}.part")
        with writing(part, option=COPY_OPTION):
            part.parent.mkdir(parents=True, exist_ok=True)
        try:
            fetch_to_part(shard.address, part, limits=limits)
        except DataError as error:
            if not isinstance(error.__cause__, PrivateAddressError):
                raise
            raise DataError(error.problem, fix=_PRIVATE_FIX) from error
        with writing(path, option=COPY_OPTION):
            part.replace(path)
        remove_part(part)
    try:
        contents = read_samples(path, shown=shard.address)
        state = path.stat()
    except OSError as error:
        raise DataError(
            f"cannot read the shard {shard.address}: {describe_os_error(error)}",
            fix="check the path and its permissions",
        ) from error
    except DataError:
        if not _is_local(shard):
            path.unlink(missing_ok=True)
        raise
    return ShardFile(shard.name, name, state.st_size, str(state.st_mtime_ns)), contents


@contextlib.contextmanager
def _locked_copy(place: Place) -> Iterator[None]:
    """Lock a copy, waiting as long as another process holds the lock; no lock on Windows."""
    path = place.folder / ".lock"
    with writing(path, option=COPY_OPTION):
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("ab")
    told = time.monotonic() + _PATIENCE_S
    with file:
        while not try_lock(file.fileno()):
            if time.monotonic() > told:
                log.info(f"waiting for another process that is copying {place.text}")
                told = float("inf")
            time.sleep(_WAIT_S)
        yield
