"""Results of a study as files and as text: JSON, Markdown, a figure and sentences."""

import json
from collections.abc import Mapping, Sequence
from importlib.metadata import version

from vitft.study.plan import BASELINES
from vitft.study.results import AccuracyDifference, FewShotCurve, StudyResults
from vitft.system.console import visible
from vitft.system.files import atomic_folder, write_atomically
from vitft.system.text import count, percent

Leads = Mapping[str, Sequence[AccuracyDifference]]


def write_results(study: StudyResults, command: str) -> None:
    """Write study.json, study.md and study.png to the folder of the plan.

    Args:
        study: The results.
        command: The command line that repeats the study.

    Raises:
        RunError: The folder cannot be written.
    """
    leads = study.leads()
    figures = json.dumps(to_json(study, leads), indent=2, allow_nan=False)
    with atomic_folder(study.plan.out) as folder:
        write_atomically(folder / "study.json", figures + "\n")
        write_atomically(folder / "study.md", to_markdown(study, leads, command))
        write_atomically(folder / "study.png", to_figure(study))


def to_json(study: StudyResults, leads: Leads) -> dict[str, object]:
    """Return the content of study.json, which is the same for every repetition of the study."""
    plan = study.plan
    return {
        "vitft": version("vitft"),
        "data": plan.folder.root.resolve().name,
        "classes": list(plan.folder.classes),
        "images": study.images,
        "test_images": study.test_images,
        "own_test_images": plan.folder.layout == "split",
        "shots": list(plan.shots),
        "left_out": list(plan.left_out),
        "seeds": list(range(plan.seeds)),
        "always_the_largest_class": study.majority,
        "device": study.device,
        "precision": study.precision,
        "curves": [
            {
                "name": curve.name,
                "weights": curve.weights,
                "features": curve.features,
                "points": [
                    {
                        "shots": point.shots,
                        "top1": point.top1,
                        "interval": list(point.interval),
                        "each_seed": point.accuracies,
                    }
                    for point in curve.points
                ],
            }
            for curve in study.curves
        ],
        "lead_of_the_first": [
            {"over": name, "shots": shots, "difference": mean, "interval": list(interval)}
            for name, differences in leads.items()
            for shots, (mean, interval) in zip(plan.shots, differences, strict=True)
        ],
    }


def to_figure(study: StudyResults) -> bytes:
    """Return the curves as a PNG file."""
    from vitft.report.plots import AccuracyCurve, accuracy_curves_png

    plan = study.plan
    curves = [
        AccuracyCurve(
            name=curve.name,
            accuracies=[point.top1 for point in curve.points],
            intervals=[point.interval for point in curve.points],
            is_baseline=curve.name in BASELINES,
        )
        for curve in study.curves
    ]
    return accuracy_curves_png(
        plan.shots,
        curves,
        majority=study.majority,
        title=f"{plan.folder.root.resolve().name}: linear heads on frozen features",
        detail=f"{mean_of(plan.seeds)}, bands are 95 % intervals; "
        f"{count(study.test_images, 'test image')}",
    )


def to_markdown(study: StudyResults, leads: Leads, command: str) -> str:
    """Return the content of study.md: the command, a table of accuracies, and the differences."""
    plan = study.plan
    name = markdown_cell(plan.folder.root.resolve().name)
    seeds = "Seed 0" if plan.seeds == 1 else f"Seeds 0 to {plan.seeds - 1}"
    lines = [
        f"# {name}: accuracy by training images per class",
        "",
        f"    {visible(command)}",
        "",
        f"{count(study.images, 'distinct image')} of {len(plan.folder.classes)} classes; "
        f"{heading(study)}. {seeds}; "
        f"device {markdown_cell(study.device)}, precision {markdown_cell(study.precision)}.",
        "",
        *accuracy_table(study.curves, plan.shots),
        "",
        f"## {markdown_cell(study.curves[0].name)} compared with the others",
        "",
        "Differences in percentage points on the same test images, with 95 % intervals.",
        "",
        *difference_table(leads, plan.shots),
        "",
        "![The curves](study.png)",
    ]
    if plan.left_out:
        many = ", ".join(map(str, plan.left_out))
        lines += ["", f"The smallest class is too small for {many} training images per class."]
    return "\n".join(lines) + "\n"


def heading(study: StudyResults) -> str:
    """Return what was measured, in one or two lines."""
    has_tests = study.plan.folder.layout == "split"
    origin = "the folder's own" if has_tests else "the images not drawn for training"
    return (
        f"accuracy in % by training images per class, {mean_of(study.plan.seeds)}, with 95 % "
        f"intervals; {count(study.test_images, 'test image')} ({origin}); baseline (largest "
        f"class): {percent(study.majority)}"
    )


def mean_of(seeds: int) -> str:
    """Return `1 seed` or `mean of 3 seeds`."""
    return "1 seed" if seeds == 1 else f"mean of {seeds} seeds"


def short_rows(study: StudyResults) -> list[tuple[str, ...]]:
    """Return a row per curve for the terminal: percent, and half the width of the interval."""
    return [
        (
            curve.name,
            *(
                f"{100 * p.top1:.1f} ±{50 * (p.interval[1] - p.interval[0]):.1f}"
                for p in curve.points
            ),
        )
        for curve in study.curves
    ]


def lead_sentences(study: StudyResults) -> list[str]:
    """Compare the first curve with the others at the most shots, and where it is not ahead."""
    shots, first = study.plan.shots, study.curves[0].name
    lines = []
    for name, differences in study.leads().items():
        mean, (low, high) = differences[-1]
        lines.append(
            f"{first} at {shots[-1]} per class: {100 * mean:+.1f} points compared with {name} "
            f"(95 % interval {100 * low:+.1f} to {100 * high:+.1f})"
        )
        pairs = list(zip(shots, differences, strict=True))
        behind = [str(s) for s, (_, (_, top)) in pairs if top < 0]
        unclear = [str(s) for s, (_, (bottom, top)) in pairs if bottom <= 0 <= top]
        if behind:
            lines.append(f"  {name} is ahead at {', '.join(behind)} per class")
        if unclear:
            lines.append(f"  no significant difference at {', '.join(unclear)} per class")
    return lines


def accuracy_table(curves: Sequence[FewShotCurve], shots: Sequence[int]) -> list[str]:
    """Return a Markdown table of accuracies."""
    rows = [
        [
            markdown_cell(curve.name),
            *(f"{100 * p.top1:.1f} ({bounds(p.interval)})" for p in curve.points),
        ]
        for curve in curves
    ]
    return markdown_table(["images per class", *map(str, shots)], rows)


def difference_table(leads: Leads, shots: Sequence[int]) -> list[str]:
    """Return a Markdown table of the differences between the first curve and the others."""
    rows = [
        [markdown_cell(name), *(f"{100 * mean:+.1f} ({bounds(ends)})" for mean, ends in points)]
        for name, points in leads.items()
    ]
    return markdown_table(["compared with", *map(str, shots)], rows)


def bounds(interval: tuple[float, float]) -> str:
    """Return both ends of an interval in percent, without a percent sign."""
    low, high = interval
    return f"{100 * low:.1f} to {100 * high:.1f}"


def markdown_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of a Markdown table with numbers to the right."""
    return [
        f"| {' | '.join(head)} |",
        f"|---{'|---:' * (len(head) - 1)}|",
        *(f"| {' | '.join(row)} |" for row in rows),
    ]


def markdown_cell(text: str) -> str:
    """Escape a name so that it neither ends its cell nor is read as markup."""
    return "".join(f"\\{c}" if c in "\\|`*_<>[]#" else c for c in visible(text))
