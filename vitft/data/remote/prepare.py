"""Local copies of remote datasets: made once, then read without the network.

A shard is fetched whole into the cache, resumed after an interruption, checked and indexed; shards
on this machine are only indexed. One process makes the copy, others wait for it.
"""

import contextlib
import json
import logging
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from vitft.config.sections import DataSpec
from vitft.data.arrays import data_path
from vitft.data.download.resumable import (
    DownloadLimits,
    RemoteVersion,
    fetch_to_part,
    file_size,
    read_version,
    remove_part,
    version_file,
)
from vitft.data.download.web_image import PrivateAddressError
from vitft.data.remote.hugging_face import copy_rows, local_version, parse_name
from vitft.data.remote.places import (
    FILE_SYSTEMS,
    INDEX,
    WEB,
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
    IndexedShard,
    IndexReader,
    IndexTable,
    LocalCopy,
    ShardFile,
    encode_positions,
    read_copy,
    read_samples,
    read_samples_record,
    write_samples,
)
from vitft.data.table import encode_table
from vitft.system import console
from vitft.system.errors import DataError, UsageError, VitftError
from vitft.system.files import check_space, write_atomically, write_json, writing
from vitft.system.imports import install_command, require_extra
from vitft.system.text import count, describe_os_error, labelled, redacted

log = logging.getLogger(__name__)


# resumable download of a file from an object store (s3, gs, az, hf) through fsspec ----------------

_EXTRAS = {"s3": "s3", "hf": "sources"}
"""Mapping from schemes to the extras that install their libraries."""
PIECE = 2**22  # number of bytes read at a time


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


def _fetch_file(address: str, part: Path, *, limits: DownloadLimits) -> None:
    """Download a file into `part`, resuming a partial download of the same version."""
    failures = 0
    while True:
        before = file_size(part)
        try:
            _attempt_file(address, part, limits)
            return
        except VitftError:
            raise
        except Exception as error:  # each library has its own errors
            reason = redacted(" ".join(str(error).split()))[:160] or type(error).__name__
            if isinstance(error, FileNotFoundError):
                reason = "the file does not exist"
            failures = failures + 1 if file_size(part) - before < limits.pace else 1
            final = isinstance(error, FileNotFoundError | PermissionError)
            if final or not isinstance(error, OSError) or failures >= limits.attempts:
                raise DataError(
                    f"cannot fetch {address}: {reason}",
                    fix="check the address, the credentials and the network, and run the command "
                    "again",
                ) from error
            wait = limits.wait_s * 2 ** (failures - 1)
            log.info(f"{reason}; retrying in {wait:g} s")
            time.sleep(wait)


def _attempt_file(address: str, part: Path, limits: DownloadLimits) -> None:
    from fsspec.core import url_to_fs

    system, path = url_to_fs(address)
    system.invalidate_cache()  # an attempt may follow a change
    found: dict[str, Any] = system.info(path)
    size = int(found["size"])
    tag = str(found.get("ETag") or found.get("etag") or found.get("LastModified") or "")
    version = RemoteVersion(url=redacted(address), etag=tag, size=size)
    start = file_size(part) if tag and read_version(part, address) == version else 0
    if size > limits.max_bytes:
        raise DataError(
            f"{address} is larger than {limits.max_bytes / 1e9:g} GB", fix="use smaller shards"
        )
    check_space(part.parent, size - start, "the download", option=limits.option)
    label = f"fetching {console.visible(part.name.removesuffix('.part'))}"
    with writing(part, option=limits.option):
        part.touch()
        target = part.open("r+b")
    with target, console.Progress(label, max(1, round(size / 1e6)), unit="MB") as progress:
        target.truncate(start)
        target.seek(start)
        write_atomically(version_file(part), json.dumps(asdict(version)))
        while start < size:
            piece = system.cat_file(path, start=start, end=min(start + PIECE, size))
            if not piece:
                raise OSError(f"the file ended after {start:,} of {size:,} bytes")
            with writing(part, option=limits.option):
                target.write(piece)
                target.flush()
            start += len(piece)
            progress.advance(round(start / 1e6) - progress.done)


# local copies of remote datasets: made once, then read without the network ------------------------

WAIT_S, PATIENCE_S = 0.2, 5.0
"""Seconds between attempts to lock a copy, and seconds after which a message is logged."""
_PRIVATE_FIX = (
    "if you trust this address, add --set data.allow_private_addresses=true, or in predict "
    "--allow-private-addresses"
)


def prepare_data(data: str, spec: DataSpec, limits: DownloadLimits | None = None) -> Path:
    """Return the path of a dataset (see `data_path`), after making the local copy if it has one.

    Raises:
        UsageError: The place is not supported, a library is missing, or a setting has no effect.
        DataError: A shard is missing, cannot be fetched, or is refused.
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
        if not any(one.images for shard in found for one in shard.contents.samples.values()):
            raise DataError(
                f"{place.text} contains no images: {count(len(shards), 'shard')} without KEY.jpg, "
                "KEY.png or another image",
                fix="write each image as KEY.jpg and its class as KEY.cls, or in KEY.json",
            )
        folder = place.folder
        (folder / SOURCE).unlink(missing_ok=True)
        table = IndexTable({shard.file.name: shard.contents for shard in found})
        write_atomically(folder / MEMBERS, encode_positions(table))
        write_atomically(folder / INDEX, encode_table(table.header, table.rows()))
        copy = LocalCopy(
            data=place.text,
            version=version,
            shards=tuple(shard.file for shard in found),
            notes=(*notes, *table.notes()),
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
) -> list[IndexedShard]:
    """Return all shards with their samples, after fetching and indexing those that are new."""
    found = []
    if all(_is_local(shard) for shard in shards):
        with console.Progress(f"reading {place.name}", len(shards), unit="shards") as progress:
            for shard in shards:
                found.append(_ready_shard(place, shard, limits))
                progress.advance()
            return found
    if place.kind != "hf":
        log.info(labelled("Data", f"copying {place.text} to {place.folder}"))
    for number, shard in enumerate(shards, start=1):  # each download has its own progress bar
        log.debug(f"shard {number} of {len(shards)}: {shard.name}")
        found.append(_ready_shard(place, shard, limits))
        # Those that are left must fit on the disk; their size is the mean of those fetched
        sizes = [shard.file.size for shard in found if shard.file.file.startswith("shards/")]
        needed = (len(shards) - number) * sum(sizes) / max(1, len(sizes))
        check_space(place.folder.parent, needed, place.text, option=COPY_OPTION)
    log.debug(f"{count(len(shards), 'shard')} copied")
    return found


def _is_local(shard: ShardPlace) -> bool:
    return scheme_of(shard.address) in ("", "file")


def _ready_shard(place: Place, shard: ShardPlace, limits: DownloadLimits) -> IndexedShard:
    """Return a shard with its samples, after fetching and indexing it if necessary."""
    kept = place.folder / "shards" / shard.name
    path = Path(shard.address) if _is_local(shard) else kept
    record = kept.with_name(f"{kept.name}.json")
    known = read_samples_record(record)
    if known is not None and known.file.is_unchanged(place.folder):
        return known
    with writing(record, option=COPY_OPTION):
        record.parent.mkdir(parents=True, exist_ok=True)
    if not _is_local(shard) and not path.is_file():
        part = path.with_name(f"{path.name}.part")
        if scheme_of(shard.address) in WEB:
            try:
                fetch_to_part(shard.address, part, limits=limits)
            except DataError as error:
                if not isinstance(error.__cause__, PrivateAddressError):
                    raise
                raise DataError(error.problem, fix=_PRIVATE_FIX) from error
        else:
            _fetch_file(shard.address, part, limits=limits)
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
    name = str(path) if _is_local(shard) else f"shards/{shard.name}"
    file = ShardFile(shard.name, name, state.st_size, str(state.st_mtime_ns))
    indexed = IndexedShard(file, contents)
    write_samples(record, indexed)
    return indexed


@contextlib.contextmanager
def _locked_copy(place: Place) -> Iterator[None]:
    """Lock a copy, waiting as long as another process holds the lock; no lock on Windows."""
    folder = place.folder
    with writing(folder, option=COPY_OPTION):
        folder.mkdir(parents=True, exist_ok=True)
    try:
        import fcntl
    except ImportError:  # Windows
        yield
        return
    with writing(folder / ".lock", option=COPY_OPTION):
        file = (folder / ".lock").open("ab")
    started, told = time.monotonic(), False
    with file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if not told and time.monotonic() - started > PATIENCE_S:
                    log.info(f"waiting for another process that is copying {place.text}")
                    told = True
                time.sleep(WAIT_S)
        yield
