"""`vitft evaluate`: evaluate a trained model on labelled images."""

import argparse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from vitft.cli import output
from vitft.cli.parser import Parser, add_threshold_options
from vitft.cli.shared_options import add_shared
from vitft.cli.table_settings import TABLE_SETTINGS, add_table_settings, with_table_settings
from vitft.config.sections import DataSpec
from vitft.metrics.confusions import class_pair_counts
from vitft.predict.request import check_threshold
from vitft.system.imports import heavy_imports
from vitft.system.rundir import check_outside, loading_step, plan_run
from vitft.system.text import (
    csv_line,
    interval,
    is_measurable,
    is_scaled,
    not_calibrated,
    percent,
    percent_or_bound,
    scored_images,
)

MOST_LISTED = 30
"""Maximum number of classes listed on the terminal."""
ACCURACIES = {"top1": "accuracy", "top5": "top-5 accuracy", "balanced": "balanced accuracy"}
LABEL_METRICS = {
    "map": "mean average precision",
    "macro_f1": "mean F1 of the labels",
    "micro_f1": "F1 over all decisions",
}
"""Titles of the metrics of a multi-label model."""
CLASS_METRICS = ("recall", "precision", "f1")


def add_evaluate(parser: Parser) -> None:
    """Add the options of `vitft evaluate`."""
    parser.description = (
        "Evaluate a trained model on labelled images. Classes are matched by name. Images that "
        "the model was trained on, and their near-duplicates, are excluded. With --threshold or "
        "--precision, the results include the fraction of predictions that are kept and their "
        "accuracy. The exit code is 3 if an image cannot be read."
    )
    common, data = parser.section("common options"), parser.section("data options")
    common.add_argument(
        "--data",
        required=True,
        metavar="DIR|TABLE",
        help="folder with one folder per class, table with the columns path and label, hf:NAME or "
        "wds:URL",
    )
    add_shared(common, "--run")
    add_shared(common, "--format", choices=("table", "json", "csv"))
    common.add_argument("--out", metavar="DIR", help="new folder for eval.json and predictions.csv")
    add_threshold_options(common)
    add_shared(common, "--device", default="auto")
    add_table_settings(data)
    data.add_argument(
        "--subset",
        choices=("train", "val", "test"),
        help="part of the data to evaluate (default: val if there is one, else test)",
    )
    parser.settable = TABLE_SETTINGS
    parser.set_defaults(command=evaluate_command)


def evaluate_command(args: argparse.Namespace) -> int:
    """Evaluate a model, print the results and return the exit code.

    The exit code is 3 if an image could not be read.
    """
    from vitft.data.labelled import find_labelled
    from vitft.data.remote.prepare import prepare_data
    from vitft.predict.answer_kind import gives_several

    check_threshold(args.threshold, args.precision)
    spec = with_table_settings(DataSpec(), args.set)
    if spec.labels == "auto":
        spec = replace(spec, labels="several" if gives_several(args.run) else "one")
    data = find_labelled(prepare_data(args.data, spec), subset=args.subset, spec=spec)
    out = None if args.out is None else plan_run(args.out, "")
    if out is not None:
        check_outside(out, Path(data.source))
    for text in data.notes:
        output.note(text)
    with heavy_imports(loading_step(args.run)):
        from vitft.predict.evaluation import evaluate

    done = evaluate(
        data, args.run, device=args.device, threshold=args.threshold, precision=args.precision
    )
    if args.format == "json":
        output.as_json(done.results)
    elif args.format == "csv":
        for row in long_table(done.results):
            output.exact(csv_line(row))
    else:
        print_tables(done.results)
    if out is not None:
        output.note(f"written: {done.write(out)}")
    return 3 if done.results["data"]["unreadable"] else 0


def long_table(results: Mapping[str, Any]) -> Iterator[tuple[object, ...]]:
    """Yield rows: a header, then the overall and per-class metrics; undefined values are empty."""
    yield "figure", "class", "value", "low", "high"
    calibration = results["calibration"]
    yield "images", "", results["images"], "", ""
    for name in (*ACCURACIES, "loss"):
        yield name, "", *value_cells(results, name)
    several = results.get("labels") or {"per_label": {}}
    for name in LABEL_METRICS if "map" in several else ():
        yield name, "", *value_cells(several, name)
    if kept := results.get("kept"):
        yield "threshold", "", kept["threshold"], "", ""
        yield "kept_images", "", kept["images"], "", ""
        yield "kept_fraction", "", *value_cells(kept, "fraction")
        yield "kept_top1", "", *value_cells(kept, "top1")
    yield "ece", "", *value_cells(calibration, "ece")
    yield "ece_before", "", *value_cells(calibration, "ece_before")
    for label, row in results["per_class"].items():
        yield "images", label, row["images"], "", ""
        for name in CLASS_METRICS:
            yield name, label, *value_cells(row, name)
        if label in several["per_label"]:
            yield "ap", label, *value_cells(several["per_label"][label], "ap")


def value_cells(results: Mapping[str, Any], name: str) -> tuple[object, object, object]:
    """Return a metric and the bounds of its interval; undefined values are empty strings."""
    low, high = results.get(f"{name}_interval") or ("", "")
    value = results[name]
    return ("" if value is None else value), low, high


def print_tables(results: Mapping[str, Any]) -> None:
    """Print tables of the overall metrics, the metrics of each class, and the confusions."""
    calibration = results["calibration"]
    rows = [
        (text, percent(results[name]), interval(results[f"{name}_interval"]))
        for name, text in ACCURACIES.items()
        if results[name] is not None
    ]
    if found := results.get("labels"):
        rows = [
            *((text, percent(found[name]), interval(found[f"{name}_interval"]))
              for name, text in LABEL_METRICS.items()),
            ("all labels right", *rows[0][1:]),
        ]  # fmt: skip
        rows.insert(1, ("  random scores", percent(found["chance_map"]), ""))
    else:
        rows.append(("baseline (largest class)", percent(results["majority"]), ""))
    if kept := results.get("kept"):
        kept_title = f"kept at threshold {percent(kept['threshold'])}"
        rows.append((kept_title, percent(kept["fraction"]), interval(kept["fraction_interval"])))
        rows.append(("  accuracy of these", percent(kept["top1"]), interval(kept["top1_interval"])))
    bounds = results["loss_interval"]
    shown = f"{bounds[0]:.3f} to {bounds[1]:.3f}" if bounds else "too few groups"
    rows.append(("log-loss (nats)", f"{results['loss']:.3f}", shown))
    if not (doubt := not_calibrated(results)):
        error = percent_or_bound(calibration["ece"], calibration["ece_interval"])
        rows.append(("calibration error", error, interval(calibration["ece_interval"])))
    temperature = calibration["temperature"]
    if not doubt and is_scaled(temperature) and calibration["ece_before"] is not None:
        at = "" if temperature is None else f"at temperature 1 instead of {temperature:.2f}"
        before = calibration["ece_before"]
        shown = percent(before) if is_measurable(before) else "too small to measure"
        rows.append(("  before scaling", shown, at))
    output.table((scored_images(results), "", "95% interval"), rows, numbers=2)
    if doubt:
        output.note(doubt)
    output.result("")
    print_classes(results["per_class"])
    if results.get("labels"):
        return
    output.result("")
    print_confusion(class_pair_counts(results), list(results["per_class"]))


def print_classes(per_class: Mapping[str, Mapping[str, Any]]) -> None:
    """Print the recall, precision and F1 score of each class that has images.

    If there are many such classes, only the weakest ones are printed.
    """
    occurring = [(name, row) for name, row in per_class.items() if row["images"]]
    if len(occurring) > MOST_LISTED:
        occurring = sorted(occurring, key=lambda pair: pair[1]["recall"])[:MOST_LISTED]
        output.note(
            f"only the {MOST_LISTED} classes with the lowest recall are listed; "
            "use --format json or csv for all of them"
        )
    rows = [
        (name, str(row["images"]), *(c for m in CLASS_METRICS for c in metric_cells(row, m)))
        for name, row in occurring
    ]
    bounds = "95% interval"
    columns = ("class", "images", "recall", bounds, "precision", bounds, "F1", bounds)
    output.table(columns, rows, numbers=7, drop=(7, 5, 3))


def print_confusion(counts: Mapping[tuple[int, int], int], names: Sequence[str]) -> None:
    """Print the confusion matrix for up to 12 classes, else the ten most frequent confusions."""
    if len(names) <= 12:  # fits on a terminal
        columns, indices = ["true \\ predicted", *names], range(len(names))
        rows = [[names[i], *(str(counts.get((i, j), 0)) for j in indices)] for i in indices]
        if not output.fits_terminal(columns, rows):  # the columns are numbered like the rows
            columns[1:] = [str(i + 1) for i in indices]
            rows = [[f"{i + 1} {name}", *cells] for i, (name, *cells) in enumerate(rows)]
        output.table(columns, rows, numbers=len(names))
        return
    mistakes = sorted((-count, i, j) for (i, j), count in counts.items() if i != j)
    output.table(
        ("class", "predicted as", "images"),
        [(names[i], names[j], str(-count)) for count, i, j in mistakes[:10]],
        numbers=1,
    )


def metric_cells(row: Mapping[str, Any], name: str) -> tuple[str, str]:
    """Return a metric of a class and its interval, or two empty strings if it is undefined."""
    value, bounds = row[name], row[f"{name}_interval"]
    return ("", "") if value is None else (percent(value), interval(bounds))
