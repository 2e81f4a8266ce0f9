"""The order of things: write every format, open it, compare it, and only then give it its name."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from vitft.export.card import write_readme
from vitft.export.compare import EXACT, RESIZED, Compared, Opened, check, compare
from vitft.export.graph import OPSET, open_onnx, open_program, write_onnx, write_program
from vitft.export.hf import not_for_hf, open_hf, write_hf
from vitft.export.int8 import write_int8
from vitft.export.native import (
    as_opened,
    not_for_timm,
    open_native,
    open_timm,
    write_native,
)
from vitft.export.plan import Order, plan_export
from vitft.export.resize import not_inside, view_difference
from vitft.export.trained import Trained, load_trained, samples
from vitft.models.checkpoint import Card
from vitft.system.errors import RunError
from vitft.system.files import whole_folder, writing
from vitft.system.signals import Stopper

Writer = Callable[[Trained, Path], None]


def nothing_against(_: Card) -> str:
    """Any model will do."""
    return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """How a format is written, and opened by the tool that it is for."""

    write: Writer
    open: Callable[[Path], Opened]
    refusal: Callable[[Card], str] = nothing_against
    """Why a model cannot be written in it, or nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """What was written and how it compares with the run."""

    folder: Path
    """The one format's files; of several formats, a folder each."""
    rows: tuple[Compared, ...]
    """One per format."""
    notes: tuple[str, ...] = ()

    @property
    def images(self) -> int:
        """How many of the user's validation images were compared; 0 if they are gone."""
        return self.rows[0].images

    @property
    def difference(self) -> float:
        """Largest difference of a logit, over all formats."""
        return max(row.difference for row in self.rows)

    @property
    def changed(self) -> int:
        """How many images have another best class, in the format that changes most."""
        return max(row.changed for row in self.rows)


def formats(order: Order) -> dict[str, Format]:
    """The formats of an order, ready to use."""
    takes_bytes, any_size = order.with_preprocessing, order.with_resize
    known = {
        "safetensors": Format(write=write_native, open=open_native),
        "timm": Format(write=write_native, open=open_timm, refusal=not_for_timm),
        "transformers": Format(write=write_hf, open=open_hf, refusal=not_for_hf),
        "onnx": Format(
            write=partial(write_onnx, takes_bytes=takes_bytes, any_size=any_size),
            open=open_onnx,
            refusal=not_inside if any_size else nothing_against,
        ),
        "torch-export": Format(
            write=partial(write_program, takes_bytes=takes_bytes), open=open_program
        ),
        "int8": Format(write=partial(write_int8, takes_bytes=takes_bytes), open=open_onnx),
    }
    return {name: known[name] for name in order.formats}


def export_run(run: str | None, order: Order) -> Exported:
    """Write a run in every format of the order; nothing of it stays unless all of it is right.

    Raises:
        RunError: No such run, a format that cannot hold the model, or an export that answers
            differently.
        ResourceError: The disk is full.
        Stopped: A signal came; what was written is gone again.
    """
    trained, wanted = load_trained(run), formats(order)
    for name, each in wanted.items():
        if reason := each.refusal(trained.card):
            raise RunError(
                f"--{name} cannot hold this model exactly: {reason}",
                fix="export it with --safetensors, --onnx or --torch-export, which hold any model",
            )
    with Stopper(), whole_folder(order.out) as fresh:
        opened: dict[str, Opened] = {}
        sizes: dict[str, int] = {}
        for name, each in wanted.items():
            folder = fresh if len(wanted) == 1 else fresh / name
            with writing(folder):
                folder.mkdir(exist_ok=True)
            each.write(trained, folder)
            opened[name] = each.open(folder)
            sizes[name] = sum(path.stat().st_size for path in folder.rglob("*"))
        original = as_opened(trained.model, trained.card, by="vitft")
        rows = compare(original, opened, samples(trained, order.images), sizes)
        for row in rows:
            check(row, exact=RESIZED if order.with_resize else EXACT)
        seen = resized_views(trained, order) if order.with_resize else ()
        if order.repo:
            write_readme(trained, fresh, order.repo, rows[0])
    notes = (*notes_of(trained, order, rows), *seen)
    return Exported(folder=order.out, rows=tuple(rows), notes=notes)


def resized_views(trained: Trained, order: Order) -> tuple[str, ...]:
    """How the views differ that the graph makes, in words.

    Raises:
        RunError: By too much.
    """
    transform = trained.card.transform
    found = view_difference(transform, samples(trained, order.images), OPSET)
    return (
        f"the graph's views differ from vitft's by at most {found.levels} grey levels of 255, in "
        f"{found.share:.2%} of the values",
    )


def notes_of(trained: Trained, order: Order, rows: list[Compared]) -> tuple[str, ...]:
    """What the user should know of an export that is right."""
    notes = [row.cost for row in rows if row.cost]
    reason = not_for_timm(trained.card)
    if "safetensors" in order.formats and reason:
        notes.append(f"{reason}, so only vitft opens the file; no config.json is written")
    if "transformers" in order.formats:
        notes.append(
            "transformers uses timm's transform here, which is the run's exactly: whoever opens "
            "the folder needs timm, too"
        )
    return tuple(notes)


def export_safetensors(run: str | None, out: Path) -> Exported:
    """Write `out/model.safetensors` and `out/config.json`, compared with the run.

    Raises:
        RunError: As `export_run`, or `out` holds files.
    """
    return export_run(run, plan_export(["safetensors"], str(out)))
