"""Groups of images by a column of their table, by their folder, or by a part of their path."""

import os
from collections.abc import Iterable
from dataclasses import replace

from vitft.config.sections import DataSpec
from vitft.system.console import visible
from vitft.system.errors import DataError, UsageError


def with_group_by(spec: DataSpec, value: str, option: str) -> DataSpec:
    """Return the settings with the value of an option that is given like `data.group_by`."""
    if not value:
        fix = "name a column, folder or a regular expression"
        raise UsageError(f"{option} is empty", fix=fix)
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


def groups_of(images: Iterable[tuple[str, str]], spec: DataSpec, option: str) -> list[str]:
    """Return the group of each image, given its path and its cell in the column of groups.

    A DataError says that no image has a group.
    """
    pairs = [*images]
    found = [spec.group_in(path) if spec.group_by else cell for path, cell in pairs]
    if pairs and not any(found):
        problem = f"the column {spec.group} is empty ({option})"
        if spec.group_by:
            problem = f"{option} {spec.group_by} matches none of the paths, e.g. "
            problem += visible(pairs[0][0])
        fix = f"correct {option}: a column, folder or a regular expression for the paths"
        raise DataError(problem, fix=fix)
    return found
