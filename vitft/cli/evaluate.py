"""The door of `vitft evaluate`: figures of a trained model on labelled images."""

import argparse
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitft.system import console
from vitft.system.errors import UsageError
from vitft.system.imports import heavy_imports

if TYPE_CHECKING:
    from vitft.cli.parser import Parser
    from vitft.predict.evaluate import Answer

STYLES = ("table", "json", "csv")
WIDEST = 12
"""Classes up to which the whole confusion matrix fits a terminal."""
LONGEST = 30
"""Classes up to which each has a row on the terminal."""
SHARES = (
    ("top1", "accuracy"),
    ("top5", "among the best 5"),
    ("balanced", "balanced accuracy"),
)
OF_CLASS = ("recall", "precision", "f1")


def add_evaluate(verbs: "argparse._SubParsersAction[Parser]") -> None:
    """`vitft evaluate`."""
    parser = verbs.add_parser(
        "evaluate",
        help="how good a trained model is on labelled images",
        description="Judge a trained model on labelled images that it has not seen. Classes are "
        "matched by name. Images that trained it are left out. The exit code is 3 if an image "
        "could not be read.",
    )
    parser.add_argument(
        "--data",
        required=True,
        metavar="DIR|CSV",
        help="class folders (or train and val folders of them), or a table path,label",
    )
    parser.add_argument(
        "--subset", choices=("train", "val"), help="of a folder with both (default: val)"
    )
    parser.add_argument("--run", metavar="DIR", help="run folder or checkpoint (default: latest)")
    parser.add_argument("--format", choices=STYLES, default="table")
    parser.add_argument("--out", metavar="DIR", help="also write eval.json and predictions.csv")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda, cuda:1, mps")
    parser.set_defaults(command=evaluate_command)


def evaluate_command(args: argparse.Namespace) -> int:
    """Figures to stdout, remarks to stderr; exit code 3 if any image could not be read."""
    from vitft.data.arrays import data_path
    from vitft.data.labelled import find_labelled
    from vitft.models.find import find_model
    from vitft.system.rundir import create_run

    data = find_labelled(data_path(args.data), subset=args.subset)
    find_model(args.run)
    out = planned(args.out, Path(data.root))
    for text in data.notes:
        console.note(console.visible(text))
    with heavy_imports():
        from vitft.predict.evaluate import evaluate

    done = evaluate(data, args.run, device=args.device)
    say_what_counts(done.figures)
    show(done.figures, args.format)
    if out is not None:
        from vitft.system.files import write_atomically

        folder = create_run(out)
        folder.write_json("eval.json", done.figures)
        table = "".join(predictions(done.answers)).encode("utf-8", "surrogateescape")
        write_atomically(folder.path / "predictions.csv", table)
        console.note(f"written: {console.visible(str(folder.path))}")
    return 3 if done.figures["data"]["unreadable"] else 0


def planned(out: str | None, data: Path) -> Path | None:
    """Where to write, if anywhere; creates nothing.

    Raises:
        RunError: The folder is not empty or not writable.
        UsageError: It lies inside the data.
    """
    from vitft.system.rundir import plan_run

    if out is None:
        return None
    path = plan_run(out, str(data))
    if data.is_dir() and data.resolve() in (path.resolve(), *path.resolve().parents):
        raise UsageError(f"the folder {out} lies inside the data", fix="choose another --out")
    return path


def say_what_counts(figures: Mapping[str, Any]) -> None:
    """Which images are counted and which not, and what that means for the figures."""
    data, images = figures["data"], figures["images"]
    unreadable = data["unreadable"]
    for row in unreadable[:10]:
        console.warn(f"left out: {console.visible(row['path'])}: {console.visible(row['reason'])}")
    if len(unreadable) > 10:
        console.warn(f"left out: {len(unreadable) - 10} more unreadable files")
    if data["trained"] is None:
        console.warn(
            "there is no split.csv beside the model, so it is not known whether it was trained on "
            "some of these images"
        )
    elif data["trained"]:
        everything = images + data["trained"] + len(unreadable)
        console.warn(
            f"{data['trained']:,} of {everything:,} images trained this model and are left out"
        )
    if data["validated"]:
        console.warn(
            f"{data['validated']:,} of the {images:,} images counted were the run's validation "
            "images: they helped to choose what is judged here, so the figures flatter slightly"
        )
    if data["copies"]:
        console.warn(
            f"{data['copies']:,} images are copies of others, so the intervals are too narrow"
        )


def show(figures: Mapping[str, Any], style: str) -> None:
    """The figures on stdout."""
    if style == "json":
        console.exact(json.dumps(figures, indent=2, allow_nan=False))
    elif style == "csv":
        for row in long_table(figures):
            console.exact(console.csv_line(row))
    else:
        show_tables(figures)


def long_table(figures: Mapping[str, Any]) -> Iterator[tuple[object, ...]]:
    """One figure a row, the classes' after those of all; what is undefined is empty."""
    yield "figure", "class", "value", "low", "high"
    calibration = figures["calibration"]
    yield "images", "", figures["images"], "", ""
    for name in ("top1", "top5", "balanced", "loss"):
        yield name, "", *cells(figures, name)
    yield "ece", "", *cells(calibration, "ece")
    yield "ece_before", "", *cells(calibration, "ece_before")
    for label, row in figures["per_class"].items():
        yield "images", label, row["images"], "", ""
        for name in OF_CLASS:
            yield name, label, *cells(row, name)


def cells(figures: Mapping[str, Any], name: str) -> tuple[object, object, object]:
    """A figure and the ends of its interval, empty where undefined."""
    low, high = figures.get(f"{name}_interval") or ("", "")
    value = figures[name]
    return ("" if value is None else value), low, high


def show_tables(figures: Mapping[str, Any]) -> None:
    """What people read: all images, each class, what is taken for what."""
    calibration = figures["calibration"]
    rows = [
        (text, percent(figures[name]), between(figures[f"{name}_interval"]))
        for name, text in SHARES
        if figures[name] is not None
    ]
    rows.append(("always the largest class", percent(figures["majority"]), ""))
    low, high = figures["loss_interval"]
    rows.append(("log-loss (nats)", f"{figures['loss']:.3f}", f"{low:.3f} to {high:.3f}"))
    error = percent(calibration["ece"])
    rows.append(("calibration error", error, between(calibration["ece_interval"])))
    if calibration["ece_before"] is not None:
        at = f"at temperature 1 instead of {calibration['temperature']:.2f}"
        rows.append(("  before", percent(calibration["ece_before"]), at))
    console.table((f"{figures['images']:,} images", "", "95 % interval"), rows, numbers=2)
    console.result("")
    show_classes(figures["per_class"])
    console.result("")
    show_confusion(figures["confusion"], list(figures["per_class"]))


def show_classes(per_class: Mapping[str, Mapping[str, Any]]) -> None:
    """Recall, precision and F1 of the classes that occur, or of the worst found among them."""
    occurring = [(name, row) for name, row in per_class.items() if row["images"]]
    if len(occurring) > LONGEST:
        occurring = sorted(occurring, key=lambda pair: pair[1]["recall"])[:LONGEST]
        console.note(f"the {LONGEST} classes found least; --format json or csv has them all")
    rows = [
        (name, str(row["images"]), *(with_interval(row, figure) for figure in OF_CLASS))
        for name, row in occurring
    ]
    console.table(("class", "images", "found (recall)", "precision", "F1"), rows, numbers=4)


def show_confusion(matrix: Sequence[Sequence[int]], names: Sequence[str]) -> None:
    """The matrix where it fits, else the ten most frequent mistakes."""
    if len(names) <= WIDEST:
        rows = [(name, *map(str, row)) for name, row in zip(names, matrix, strict=True)]
        console.table(("true \\ named", *names), rows, numbers=len(names))
        return
    mistakes = sorted(
        (-count, i, j)
        for i, row in enumerate(matrix)
        for j, count in enumerate(row)
        if count and i != j
    )
    console.table(
        ("class", "taken for", "images"),
        [(names[i], names[j], str(-count)) for count, i, j in mistakes[:10]],
        numbers=1,
    )


def percent(share: float | None) -> str:
    """A share as people write it."""
    return "" if share is None else f"{share:.1%}"


def between(interval: Sequence[float] | None) -> str:
    """The ends of an interval of a share."""
    return "" if interval is None else f"{interval[0]:.1%} to {interval[1]:.1%}"


def with_interval(row: Mapping[str, Any], name: str) -> str:
    """A figure of a class, its interval in brackets."""
    value, interval = row[name], row[f"{name}_interval"]
    return "" if value is None else f"{value:.1%} ({between(interval)})"


def predictions(answers: Iterable["Answer"]) -> Iterator[str]:
    """The lines of predictions.csv; no cell is a formula to a spreadsheet."""
    columns = ("path", "label", "predicted", "probability", "label_probability", "right")
    yield console.csv_line((*columns, "left_out")) + "\r\n"
    for answer in answers:
        if answer.left_out:
            said: tuple[object, ...] = ("", "", "", "")
        else:
            said = (
                answer.predicted,
                f"{answer.probability:.6f}",
                f"{answer.label_probability:.6f}",
                int(answer.predicted == answer.label),
            )
        yield console.csv_line((answer.path, answer.label, *said, answer.left_out)) + "\r\n"
