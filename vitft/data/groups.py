"""Groups of images by a column of their table, by their folder, or by a part of their path."""

import os
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import starmap

from vitft.config.sections import DataSpec
from vitft.system.console import visible
from vitft.system.errors import DataError, UsageError
from vitft.system.text import shell_quote


def with_group_by(spec: DataSpec, value: str, option: str) -> DataSpec:
    """Return the settings with the value of an option that is given like `data.group_by`."""
    try:
        return replace(spec, group="", group_by=value)
    except UsageError as error:
        raise UsageError(
            error.problem.replace("data.group_by=", f"{option} "), fix=error.fix
        ) from error


def no_columns(source: str | os.PathLike[str], column: str, option: str) -> DataError:
    """Return the error for a column of data without columns."""
    kind = "a folder" if os.path.isdir(source) else "not a table"  # noqa: PTH112 - never raises
    return DataError(
        f"{source} is {kind}, so it has no column {column} ({option})",
        fix=f"use {option} folder, or a regular expression such as 'patient([0-9]+)'",
    )


def groups_of(images: Iterable[tuple[str, str]], spec: DataSpec, option: str) -> Iterator[str]:
    """Yield the group of each image, given its path and its cell in the column of groups.

    Nothing is yielded before an image has a group. A DataError says that none has one.
    """

    def group_of(path: str, cell: str) -> str:
        return spec.group_in(path) if spec.group_by else cell

    first, images = "", iter(images)
    for waiting, (path, cell) in enumerate(images):
        if group := group_of(path, cell):
            yield from [*[""] * waiting, group]
            yield from starmap(group_of, images)
            return
        first = first or path
    if first:
        problem = f"the column {spec.group} is empty ({option})"
        if spec.group_by:
            given = f"{option} {shell_quote(spec.group_by)}"
            problem = f"{given} matches none of the paths, e.g. {visible(first)}"
        fix = f"correct {option}: a column, folder or a regular expression for the paths"
        raise DataError(problem, fix=fix)
