"""`vitft explain`: show which regions of an image a model uses."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from vitft.cli import output
from vitft.cli.parser import Command
from vitft.data.sources import expand
from vitft.explain.heatmaps import (
    FUSIONS,
    METHOD_OPTIONS,
    METHODS,
    MIN_SIDE_PX,
    Method,
    check_picture_side,
    chosen_method,
)
from vitft.predict.embeddings import chosen_weights
from vitft.system import console
from vitft.system.errors import UsageError
from vitft.system.files import free_name
from vitft.system.imports import heavy_imports, require_extra
from vitft.system.rundir import loading_step, plan_run
from vitft.system.text import count, percent

if TYPE_CHECKING:
    from vitft.explain.explainer import ExplainedModel


@Command(
    "explain",
    f"""
images [IMAGE ...]  image files and folders
common options:
--run DIR  run directory or checkpoint (default: runs/latest)
--weights NAME  pretrained weights to explain instead of a run
--class NAME  class to explain (default: the most probable one)
--out DIR  new folder for the images (default: explained)
--model  plot filters, position embeddings and attention distances, without images
--patches  draw how each image becomes patches and tokens
output options:
--size N  minimum shorter side of the results in pixels (default: {MIN_SIDE_PX})
--legend  add a colour bar to each image, e.g. for slides
--arrays  also write attribution maps and logits to .npz files
advanced options:
--method METHOD  attribution method (default: relevance, which is specific to a class)
--fusion {"|".join(FUSIONS)}  how to combine the attention heads (default: mean)
--discard FRACTION  fraction of the attention weights that rollout discards, smallest first
    (default: 0)
--block N  block for --method attention, counting from 0 (default: the last)
--head N  head for --method attention, counting from 0 (default: all)
--device
--allow-pickle
""",
    changed={
        "class": {"dest": "about"},
        "method": {"metavar": f"{{{','.join(METHODS)}}}"},  # `chosen_method` checks it
    },
    exclusive=("--weights", "--run"),
    defaults={"device": "auto"},
)
def _explain_command(args: argparse.Namespace) -> int:
    """Write the figures, print a summary and return the exit code: 3 if an image is unreadable."""
    if not args.images and not args.model:
        raise UsageError(
            "no images given", fix="pass files or folders, or use --model to plot the weights"
        )
    if args.model or args.patches:
        _check_figures(args)
    check_picture_side(args.size)
    options = {name: getattr(args, name) for name in METHOD_OPTIONS}
    method = chosen_method(args.method, options, about=args.about)
    out = plan_run(args.out or str(free_name(Path("explained"))), "")
    chosen_weights(args.run, args.weights, allow_pickle=args.allow_pickle)
    images = list(expand(args.images))
    with heavy_imports(loading_step(args.weights or args.run)):
        from vitft.explain.explainer import load_run_model, load_weights_model

    model = (
        load_weights_model(args.weights, device=args.device, allow_pickle=args.allow_pickle)
        if args.weights is not None
        else load_run_model(args.run, device=args.device)
    )
    if args.model:
        from vitft.explain.explainer import validation_files
        from vitft.explain.model_figures import write_model_figures

        names, failed = write_model_figures(model, images or validation_files(model.run), out)
        for error in failed:
            output.warn(error.problem)
        if "distance.png" not in names:
            reason = "none of the images could be read"
            if not images:
                reason = "attention distances are measured on images: pass some after --model"
            output.note(f"distance.png was not written: {reason}")
        output.result(f"plots of {model.name} written to {out}/: {', '.join(names)}")
        return 3 if failed else 0
    if args.patches:
        return _draw_patches(model, images, out)
    return _draw_images(model, method, images, out, args)


def _check_figures(args: argparse.Namespace) -> None:
    """Check that --model or --patches is not combined with options that it does not use."""
    figure = "--model" if args.model else "--patches"
    unused = {
        "--patches": args.model and args.patches,
        "--method": args.method is not None,
        "--class": args.about is not None,
        **{f"--{name}": getattr(args, name) is not None for name in METHOD_OPTIONS},
        "--arrays": args.arrays,
        "--size": args.size is not None,
        "--legend": args.legend,
    }
    for option, is_given in unused.items():
        if is_given:
            raise UsageError(f"{option} has no effect with {figure}", fix=f"remove {option}")
    require_extra("plots", feature=f"vitft explain {figure}")


def _draw_images(
    model: "ExplainedModel", method: Method, images: list[str], out: Path, args: argparse.Namespace
) -> int:
    """Write one figure per image, print a table and return the exit code."""
    from vitft.explain.explainer import Explainer, class_index
    from vitft.predict.postprocess import Postprocess

    target = None if args.about is None else class_index(args.about, model.outputs.classes)
    postprocess = Postprocess(outputs=model.outputs)
    if args.weights is None and model.outputs.classes:
        postprocess = Postprocess.for_run(args.run, model)
        postprocess.announce()
    job = Explainer(
        model=model,
        method=method,
        out=out,
        postprocess=postprocess,
        target=target,
        arrays=args.arrays,
        size=args.size or MIN_SIDE_PX,
        legend=args.legend,
    )
    rows, failed = list[tuple[str, ...]](), 0
    by_class = method.name == "relevance"  # attention and rollout do not depend on a class
    with console.Progress("explaining", len(images)) as progress:
        for done in job.images(images):
            failed += bool(done.error)
            progress.advance()
            found = "" if done.probability is None else f"{done.answer} {percent(done.probability)}"
            found += f" ({', '.join(done.notes)})" if done.notes else ""
            answer = f"error: {done.error}" if done.error else found
            files = ", ".join(file.name for file in (done.file, done.heads) if file)
            rows.append((done.path, answer, *[done.shown] * by_class, files))
    sheet = job.finish()
    output.table(("path", "prediction", *["explained class"] * by_class, "file"), rows)
    if sheet and len(images) - failed > len(job.tiles):
        output.note(f"{sheet.name} shows only the first {len(job.tiles)} images")
    where = f"{out}/{f', overview: {sheet.name}' if sheet else ''}"
    return _print_end(f"{method.name} maps", len(images), failed, where)


def _draw_patches(model: "ExplainedModel", images: list[str], out: Path) -> int:
    """Draw how each image becomes tokens, print a table and return the exit code."""
    from vitft.explain.model_figures import write_patch_figures

    rows, failed = [], 0
    with console.Progress("drawing", len(images)) as progress:
        for done in write_patch_figures(model, images, out):
            failed += bool(done.error)
            progress.advance()
            rows.append((done.path, done.file.name if done.file else f"error: {done.error}"))
    output.table(("path", "picture"), rows)
    return _print_end("patches and tokens", len(images), failed, f"{out}/")


def _print_end(what: str, images: int, failed: int, where: str) -> int:
    """Print what was drawn and what to do about images that failed; return the exit code."""
    if failed < images:
        output.result(f"{what} of {count(images - failed, 'image')} written to {where}")
    if failed:
        them = "it" if failed == 1 else "them"
        output.note(
            f"{count(failed, 'image')} could not be explained: replace {them}, or leave {them} out"
        )
    return 3 if failed else 0
