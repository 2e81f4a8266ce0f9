"""The door of `vitft explain`: where a model looked, and what its weights look like."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from vitft.explain.method import FUSIONS, METHODS, Method
from vitft.system import console
from vitft.system.errors import UsageError
from vitft.system.imports import heavy_imports

if TYPE_CHECKING:
    from vitft.cli.parser import Commands
    from vitft.explain.model import Subject

DISTANCE_IMAGES = 128
"""Images that attention distance is averaged over at most, as in the ViT paper."""


def add_explain(verbs: "Commands") -> None:
    """`vitft explain`."""
    parser = verbs.add_parser("explain", help="pictures of where a model looked")
    parser.add_argument("images", nargs="*", metavar="IMAGE", help="files and folders")
    parser.add_argument("--run", metavar="DIR", help="run folder or checkpoint (default: latest)")
    parser.add_argument("--weights", metavar="NAME", help="pretrained weights instead of a run")
    parser.add_argument("--allow-pickle", action="store_true", help="read .pth files")
    parser.add_argument("--method", choices=METHODS, help="default: relevance, for a class")
    parser.add_argument("--class", dest="about", metavar="NAME", help="default: the model's answer")
    parser.add_argument("--fusion", choices=FUSIONS, help="how heads become one (default: mean)")
    parser.add_argument(
        "--discard", type=float, metavar="SHARE", help="weak connections that rollout leaves out"
    )
    parser.add_argument(
        "--block", type=int, metavar="N", help="of attention, from 0; default: last"
    )
    parser.add_argument("--head", type=int, metavar="N", help="of attention, from 0; default: all")
    parser.add_argument("--out", metavar="DIR", help="new folder (default: explained)")
    parser.add_argument("--arrays", action="store_true", help="also the raw numbers, as .npz")
    parser.add_argument(
        "--model", action="store_true", help="figures of the weights: filters, positions, distances"
    )
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda, cuda:1, mps")
    parser.set_defaults(command=explain_command)


def explain_command(args: argparse.Namespace) -> int:
    """Check what needs no torch, then write pictures and say where; 3 if an image was bad."""
    method = check_request(args)
    out = plan_out(args.out)
    if args.weights is not None:
        from vitft.models.pretrained import check_weights_name

        check_weights_name(args.weights, allow_pickle=args.allow_pickle)
    else:
        from vitft.models.find import find_model

        find_model(args.run)
    with heavy_imports():
        from vitft.explain.model import subject_of_run, subject_of_weights
    from vitft.data.sources import expand

    images = list(expand(args.images))
    subject = (
        subject_of_run(args.run, device=args.device)
        if args.weights is None
        else subject_of_weights(args.weights, allow_pickle=args.allow_pickle, device=args.device)
    )
    if args.model:
        return draw_model(subject, images, out)
    return draw_images(subject, method, images, out, args)


def check_request(args: argparse.Namespace) -> Method:
    """The method that the options describe.

    Raises:
        UsageError: An option that would change nothing, or nothing to explain.
    """
    if args.run is not None and args.weights is not None:
        raise UsageError("--run and --weights both name a model", fix="leave one of them out")
    if not args.images and not args.model:
        raise UsageError(
            "no image to explain",
            fix="name files or folders, or ask for --model, the figures of the weights",
        )
    name = args.method or METHODS[0]
    concerns = {
        "--class": (args.about, ("relevance",)),
        "--fusion": (args.fusion, ("rollout", "attention")),
        "--discard": (args.discard, ("rollout",)),
        "--block": (args.block, ("attention",)),
        "--head": (args.head, ("attention",)),
    }
    if args.model:
        idle = [option for option, (value, _) in concerns.items() if value is not None]
        idle += ["--method"] * (args.method is not None) + ["--arrays"] * args.arrays
        if idle:
            raise UsageError(f"{idle[0]} does not concern --model", fix="leave it out")
    for option, (value, methods) in concerns.items():
        if value is not None and name not in methods:
            raise UsageError(
                f"{option} does not concern --method {name}",
                fix=f"leave it out, or use --method {' or '.join(methods)}",
            )
    if args.fusion is not None and args.head is not None:
        raise UsageError("--fusion fuses all heads, --head names one", fix="leave one of them out")
    given = {"fusion": args.fusion, "discard": args.discard}
    return Method(
        name=name,
        block=args.block,
        head=args.head,
        **{key: value for key, value in given.items() if value is not None},
    )


def plan_out(out: str | None, option: str = "--out") -> Path:
    """Where the pictures go: the folder named, or the first free one of explained, explained-2 ...

    Raises:
        RunError: It holds files already, or cannot be written.
    """
    from vitft.system.files import free_name
    from vitft.system.rundir import plan_run

    place = out if out is not None else str(free_name(Path("explained")))
    return plan_run(place, "", option=option)


def draw_images(
    subject: "Subject", method: Method, images: list[str], out: Path, args: argparse.Namespace
) -> int:
    """A picture of each image, and a table of what they are."""
    from vitft.explain.explainer import Explaining

    target = None if args.about is None else subject.class_index(args.about)
    job = Explaining(subject=subject, method=method, out=out, target=target, arrays=args.arrays)
    rows, bad = [], 0
    with console.Progress("explain", len(images)) as progress:
        for done in job.images(images):
            bad += bool(done.error)
            progress.advance()
            share = "" if done.probability is None else f"{done.answer} {done.probability:.1%}"
            answer = f"error: {done.error}" if done.error else share
            rows.append((done.path, answer, done.shown, done.file.name if done.file else ""))
    sheet = job.finish()
    console.table(("image", "answer", "shown for", "picture"), rows)
    if bad < len(images):
        also = f", all on {sheet.name}" if sheet else ""
        count = "1 image" if len(images) - bad == 1 else f"{len(images) - bad} images"
        console.result(f"{method.name} of {count} in {shown(out)}/{also}")
        if sheet and len(images) - bad > len(job.tiles):
            console.note(f"{sheet.name} holds the first {len(job.tiles)}")
    return 3 if bad else 0


def draw_model(subject: "Subject", images: list[str], out: Path) -> int:
    """Three figures of the weights; the third needs images."""
    from vitft.explain.model import validation_images
    from vitft.explain.model_figures import patch_filters, position_similarity
    from vitft.report.plots import filters_png, positions_png
    from vitft.system.files import write_atomically, writing

    figures = {
        "filters.png": filters_png(*patch_filters(subject.model), title=f"{subject.name}: filters"),
        "positions.png": positions_png(
            position_similarity(subject.model), title=f"{subject.name}: positions"
        ),
    }
    images = images or validation_images(subject.run)
    distance, bad = distance_figure(subject, images)
    if distance:
        figures["distance.png"] = distance
    else:
        console.note("no distance.png: attention needs images, so name some after explain --model")
    with writing(out):
        out.mkdir(parents=True, exist_ok=True)
    for name, content in figures.items():
        write_atomically(out / name, content)
    console.result(f"{', '.join(figures)} of {console.visible(subject.name)} in {shown(out)}/")
    return 3 if bad else 0


def distance_figure(subject: "Subject", images: list[str]) -> tuple[bytes, int]:
    """Attention distance over some of the images; and how many of those could not be read."""
    if not images:
        return b"", 0
    from vitft.data.loading import decode_images, stack_batches
    from vitft.explain.model_figures import attention_distance, uniform_distance
    from vitft.report.plots import distance_png

    some = images[:: max(1, len(images) // DISTANCE_IMAGES)][:DISTANCE_IMAGES]
    stacks = list(stack_batches(decode_images(some, lambda _, i: subject.transform.pixels(i)), 8))
    failed = [error for stack in stacks for _, error in stack.failed]
    for error in failed:
        console.warn(console.visible(error.problem))
    distance, count = attention_distance(
        subject.model, (subject.inputs(s.pixels) for s in stacks if len(s.pixels))
    )
    if not count:
        return b"", len(failed)
    title = f"{subject.name}: attention distance"
    return distance_png(distance, count, uniform_distance(subject.model), title), len(failed)


def shown(path: Path) -> str:
    """A path as it may be printed."""
    return console.visible(str(path))
