"""`vitft evaluate`: evaluate a trained model on labelled images."""

import argparse
import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitft.cli import output
from vitft.cli.parser import Command
from vitft.config.sections import DataSpec
from vitft.data.groups import with_group_by
from vitft.data.label_table import TABLE_SETTINGS, column_kind, with_table_settings
from vitft.data.table import is_table
from vitft.messages.results import (
    by_table,
    class_table,
    evaluation_details,
    evaluation_rows,
    long_table,
)
from vitft.metrics.results import Results, class_pair_counts
from vitft.predict.request import Marks
from vitft.system import console
from vitft.system.console import stdout, visible
from vitft.system.errors import DataError, UsageError
from vitft.system.imports import heavy_imports
from vitft.system.rundir import check_outside, loading_step, plan_run
from vitft.system.text import csv_line, interval, percent

if TYPE_CHECKING:
    from vitft.data.image_table import Images

_MOST_VALUES = 1000  # maximum number of values of --by


@Command(
    "evaluate",
    """
common options:
--data DIR|TABLE  folder with one folder per class, table with the columns path and label, hf:NAME
    or wds:URL
--run
--format table|json|csv := table  output format
--out DIR  new folder for eval.json and predictions.csv
--threshold
--precision
--confidence
--device
--tree FILE  table with the columns class and parent: also the accuracy at each level
--by COLUMN|folder|PATTERN  also the accuracy by column, by parent folder (folder), or by regular
    expression on the path, e.g. '(site[0-9]+)'
data options:
--set
--group-by COLUMN|folder|PATTERN  groups (patient, video), given like --by, which get one answer
    each (default: the group column, or the groups of the run)
--subset train|val|test  part of the data to evaluate (default: val if there is one, else test)
""",
    description="Evaluate a trained model on labelled images. Classes are matched by name. Images "
    "that the model was trained on, and their near-duplicates, are excluded. With --threshold or "
    "--precision, the results also describe the predictions that are kept. The exit code is 3 if "
    "an image cannot be read.",
    changed={"data": {"required": True}},
    settable=TABLE_SETTINGS,
    defaults={"device": "auto"},
)
def _evaluate_command(args: argparse.Namespace) -> int:
    """Evaluate a model, print the results and return the exit code: 3 if an image is unreadable."""
    from vitft.data.copies import prepare_data
    from vitft.models.find import find_model
    from vitft.predict.engine import gives_several

    marks = Marks(
        threshold=args.threshold,
        precision=args.precision,
        confidence=args.confidence,
        tree=args.tree,
    )
    spec = with_table_settings(DataSpec(), args.set)
    by, model = None, find_model(args.run, graphs=True)
    source = prepare_data(args.data, spec)
    if spec.labels == "auto" and is_table(source):
        spec = replace(spec, labels="several" if gives_several(model) else "one")
    data, run_groups = _find_images(source, model.parent, args, spec)
    if args.by is not None:
        by = args.by, _values_by_path(data, args.by)
    out = None if args.out is None else plan_run(args.out, "")
    if out is not None:
        check_outside(out, Path(data.source))
    for text in (*data.notes, *data.warnings):
        output.note(text)
    with heavy_imports(loading_step(args.run)):
        from vitft.predict.evaluation import evaluate

    done = evaluate(data, args.run, device=args.device, marks=marks, by=by, run_groups=run_groups)
    if args.format == "json":
        output.as_json(done.results)
    elif args.format == "csv":
        for row in long_table(done.results):
            output.exact(csv_line(row))
    else:
        _print_evaluation(done.results)
    if out is not None:
        output.note(f"written: {done.write(out)}")
    return 3 if done.results["data"]["unreadable"] else 0


def _find_images(
    source: Path, run: Path, args: argparse.Namespace, spec: DataSpec
) -> tuple["Images", dict[str, str] | None]:
    """List the labelled images, with the groups in the column that the run was given, if any.

    Columns for --group-by and --by are read, too. If the images have other groups, those of the
    run follow by path: none, if the table does not have their column.
    """
    from vitft.data.scan import find_labelled, with_groups
    from vitft.predict.run_images import group_column

    given = {"--group-by": args.group_by, "--by": args.by}
    others = {
        option: with_group_by(DataSpec(), value, option).group
        for option, value in given.items()
        if value is not None
    }
    find = partial(find_labelled, source, subset=args.subset, others=others)
    column, found = "" if spec.group else group_column(run), None
    if column and is_table(source):
        with contextlib.suppress(DataError):  # perhaps there is no such column here
            found = find(spec=replace(spec, group=column))
    is_same, run_groups = found is not None or not column, dict[str, str]()
    found = found or find(spec=spec)
    is_same = is_same or not found.table or column_kind(column) == column_kind(found.grouped)
    if args.group_by is not None:
        if is_same:
            run_groups = dict(zip(found.column("path"), found.column("group"), strict=True))
        return with_groups(found, args.group_by, "--group-by"), run_groups
    return found, None if is_same else {}


def _values_by_path(data: "Images", column: str) -> dict[str, str]:
    """Return the values whose accuracy is compared, of which there are some but not too many."""
    from vitft.data.scan import with_groups

    if column == "none":
        fix = "name a column, folder or a regular expression"
        raise UsageError("--by none has no values to compare", fix=fix)
    found = with_groups(data, column, "--by").column("group")
    if (number := len({*found})) > _MOST_VALUES:
        raise DataError(
            f"{column} has {number:,} values, but at most {_MOST_VALUES:,} are supported",
            fix="choose another column, or write ranges such as 20-29 instead of numbers",
        )
    return dict(zip(data.column("path"), found, strict=True))


def _print_evaluation(found: Mapping[str, Any]) -> None:
    """Print the accuracy, a table of the classes and, with -v, all other metrics."""
    details, results = console.shows_details(), Results.of_evaluation(found)
    output.rows(evaluation_rows(results, found), strong="Accuracy")
    for line in evaluation_details(results, found):
        output.detail(line)
    output.result("")
    headings, rows = class_table(found, details=details)
    occurring = sum(row["images"] > 0 for row in found["per_class"].values())
    if len(rows) < occurring:
        output.note(f"the {len(rows)} of {occurring} classes with the lowest recall:")
    narrow = (7, 5, 3) if details else (4, 3)
    remarks = int(not details and "labels" not in found)
    numbers = len(headings) - 1 - remarks
    output.table(headings, rows, numbers=numbers, remarks=remarks, drop=narrow)
    if levels := found.get("levels"):
        output.result("")
        _print_levels(levels)
    if by := found.get("by"):
        output.result("")
        headings, rows = by_table(by)
        if len(rows) < len(by["values"]):
            number = len(by["values"])
            output.note(f"the {len(rows)} of {number} values with the lowest accuracy:")
        output.table(headings, rows, numbers=len(headings) - 1, drop=(5, 3))
    if details and not found.get("labels"):
        output.result("")
        _print_confusion(class_pair_counts(found), list(found["per_class"]))


def _print_levels(levels: Sequence[Mapping[str, Any]]) -> None:
    """Print a table of the levels of a tree of classes, with their answers if there are any."""
    rows, has_answers = [], any(row["kept"] for row in levels)
    for row in levels:
        kept = row["kept"] or {"fraction": 0.0, "top1": None}
        is_right = ["", ""] if kept["top1"] is None else [*_with_bounds(kept)]
        cells = [str(row["level"]), f"{row['classes']:,}", *_with_bounds(row)]
        rows.append(cells + [percent(kept["fraction"]), *is_right] * has_answers)
    headings = ["level", "classes", "accuracy", "95% CI", "answered", "right", "95% CI"]
    output.table(headings[: len(rows[0])], rows, numbers=len(rows[0]), drop=(6, 3))


def _with_bounds(found: Mapping[str, Any]) -> tuple[str, str]:
    return percent(found["top1"]), interval(found["top1_interval"])


def _print_confusion(counts: Mapping[tuple[int, int], int], names: Sequence[str]) -> None:
    """Print the confusion matrix if it fits, else the ten most frequent confusions."""
    from rich.cells import cell_len

    numbers, columns = range(len(names)), [cell_len(visible(name)) for name in names]
    width = max(len("true \\ predicted"), *columns) + sum(columns) + 2 * len(names)
    if len(names) <= 12 and width <= stdout().width:
        rows = [[names[i], *(str(counts.get((i, j), 0)) for j in numbers)] for i in numbers]
        output.table(["true \\ predicted", *names], rows, numbers=len(names))
        return
    mistakes = sorted((-count, i, j) for (i, j), count in counts.items() if i != j)
    rows = [[names[i], names[j], str(-count)] for count, i, j in mistakes[:10]]
    if rows:
        output.table(["class", "predicted as", "images"], rows, numbers=1)
