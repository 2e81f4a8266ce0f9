"""The figures of a study as JSON, Markdown and sentences. Nothing is computed here but rounding."""

from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from vitft.system.console import visible

if TYPE_CHECKING:
    from vitft.study.run import Curve, Study

Lead = tuple[float, tuple[float, float]]


def to_json(study: "Study", leads: Mapping[str, Sequence[Lead]], setting: Mapping[str, str]) -> Any:  # noqa: ANN401
    """Everything, without anything that another run would have otherwise."""
    plan = study.plan
    return {
        "vitft": version("vitft"),
        "data": plan.folder.root.resolve().name,
        "classes": list(plan.folder.classes),
        "images": study.images,
        "test_images": study.tests,
        "own_test_images": plan.folder.layout == "split",
        "shots": list(plan.shots),
        "left_out": list(plan.left_out),
        "seeds": list(range(plan.seeds)),
        "always_the_largest_class": study.chance,
        **setting,
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
                        "each_seed": point.each,
                    }
                    for point in curve.points
                ],
            }
            for curve in study.curves
        ],
        "lead_of_the_first": [
            {"over": name, "shots": shots, "difference": mean, "interval": list(interval)}
            for name, rows in leads.items()
            for shots, (mean, interval) in zip(plan.shots, rows, strict=True)
        ],
    }


def short_rows(study: "Study") -> list[tuple[str, ...]]:
    """One line per contestant, per cent with half the width of the interval."""
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


def heading(study: "Study") -> str:
    """What was measured, in a line or two."""
    plan = study.plan
    draws = "1 draw" if plan.seeds == 1 else f"mean of {plan.seeds} draws"
    own = "the folder's own" if plan.folder.layout == "split" else "all others but the largest draw"
    return (
        f"accuracy in % by training images per class, {draws}, each with its 95 % interval; "
        f"{study.tests:,} test images ({own}); always naming the largest class: "
        f"{study.chance:.1%}"
    )


def sentences(study: "Study", leads: Mapping[str, Sequence[Lead]]) -> list[str]:
    """Who is ahead of whom at the most images, and wherever the first is not."""
    shots, first = study.plan.shots, study.curves[0].name
    told = []
    for name, rows in leads.items():
        mean, (low, high) = rows[-1]
        told.append(
            f"{first} at {shots[-1]} per class: {100 * mean:+.1f} points against {name} "
            f"(95 % interval {100 * low:+.1f} to {100 * high:+.1f})"
        )
        beaten = [str(s) for s, (_, (_, top)) in zip(shots, rows, strict=True) if top < 0]
        open_ = [str(s) for s, (_, (b, t)) in zip(shots, rows, strict=True) if b <= 0 <= t]
        if beaten:
            told.append(f"  {name} is ahead at {', '.join(beaten)} per class")
        if open_:
            told.append(f"  undecided at {', '.join(open_)} per class")
    return told


def to_markdown(
    study: "Study", leads: Mapping[str, Sequence[Lead]], setting: Mapping[str, str], command: str
) -> str:
    """A page with the command, the table and the differences."""
    plan = study.plan
    name = cell(plan.folder.root.resolve().name)
    on = ", ".join(f"{key} {value}" for key, value in setting.items())
    lines = [
        f"# {name}: accuracy by training images per class",
        "",
        f"    {visible(command)}",
        "",
        f"{study.images:,} different pictures of {len(plan.folder.classes)} classes; "
        f"{heading(study)}. Seeds 0 to {plan.seeds - 1}; on {cell(on)}.",
        "",
        *table(study.curves, plan.shots),
        "",
        f"## {cell(study.curves[0].name)} against the others",
        "",
        "Points of accuracy on the same test images, with 95 % intervals.",
        "",
        *differences(leads, plan.shots),
        "",
        "![The curves](study.png)",
    ]
    if plan.left_out:
        many = ", ".join(map(str, plan.left_out))
        lines += ["", f"The smallest class is too small for {many} per class."]
    return "\n".join(lines) + "\n"


def table(curves: Sequence["Curve"], shots: Sequence[int]) -> list[str]:
    """A Markdown table of accuracies."""
    rows = [
        [
            cell(curve.name),
            *(f"{100 * p.top1:.1f} ({spoken(p.interval)})" for p in curve.points),
        ]
        for curve in curves
    ]
    return markdown(["images per class", *map(str, shots)], rows)


def differences(leads: Mapping[str, Sequence[Lead]], shots: Sequence[int]) -> list[str]:
    """A Markdown table of the first one's leads."""
    rows = [
        [cell(name), *(f"{100 * mean:+.1f} ({spoken(ends)})" for mean, ends in points)]
        for name, points in leads.items()
    ]
    return markdown(["over", *map(str, shots)], rows)


def spoken(interval: tuple[float, float]) -> str:
    """Both ends in per cent."""
    low, high = interval
    return f"{100 * low:.1f} to {100 * high:.1f}"


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines of a table."""
    return [
        f"| {' | '.join(head)} |",
        f"|---{'|---:' * (len(head) - 1)}|",
        *(f"| {' | '.join(row)} |" for row in rows),
    ]


def cell(text: str) -> str:
    """A name that cannot break out of its cell or be read as markup."""
    return "".join(f"\\{c}" if c in "\\|`*_<>[]#" else c for c in visible(text))
