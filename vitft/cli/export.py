"""`vitft export`: export a trained model to other formats, and push it to the Hugging Face Hub."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from vitft.cli import output
from vitft.cli.parser import Command
from vitft.export.plan import (
    CLOSED_FORMATS,
    DEFAULT_OPSET,
    EXPORT_FORMATS,
    NUM_COMPARED,
    ExportPlan,
    plan_export,
)
from vitft.system import console
from vitft.system.errors import RunError, UsageError
from vitft.system.imports import heavy_imports
from vitft.system.rundir import loading_step
from vitft.system.text import count, labelled, listing, shell_quote

if TYPE_CHECKING:
    from vitft.export.job import Exported

_FORMATS = "\n".join(f"--{name}  {text}" for name, text in EXPORT_FORMATS.items())


def _by_option(name: str) -> UsageError:
    """Return the error for `--format NAME`, which names the option."""
    known = name.lower().replace("_", "-")
    problem = "--format is table or json, and each export format has its own option"
    if known in EXPORT_FORMATS:
        return UsageError(problem, fix=f"use vitft export --{known} (see docs/export.md)")
    return UsageError(problem, fix=f"use one of --{', --'.join(EXPORT_FORMATS)}")


@Command(
    "export",
    f"""
formats:  one or more formats (several are written to one folder each)
{_FORMATS}
ONNX and PyTorch graphs:
--with-preprocessing  accept uint8 images and normalise them inside the graph
--with-resize  ONNX only: accept images of any size
--half  ONNX only: store the weights in 16 bits, for half the file size
--opset N := {DEFAULT_OPSET}  operator set of ONNX graphs, for older runtimes (16 to 18)
run:
--run RUN  run directory, checkpoint or hf:OWNER/NAME (default: runs/latest)
--out DIR  new folder for the export (default: export, or export-2 and so on)
--format FORMAT := table  output format: table or json
--images N := {NUM_COMPARED}  number of validation images on which the export is compared
--licence NAME  licence stated in the README, e.g. mit (default: licence of the pretrained weights)
Hugging Face Hub:
--push-to-hub OWNER/NAME  repository to push the export to
--private  make the repository private when creating it
--revision BRANCH  branch to push to (default: main)
--dry-run  write the folder for the Hub for review, without network or upload
--image-licence NAME  licence of your images, which lets the model page show one image per class
--image-credit TEXT  authors and source of your images
""",
    defaults=dict.fromkeys(
        ("licence", "push_to_hub", "revision", "image_licence", "image_credit"), ""
    ),
)
def _export_command(args: argparse.Namespace) -> int:
    """Export the model, print a comparison with the run, and push the export if requested."""
    from vitft.models.find import find_model

    if args.format not in ("table", "json"):  # as in other tools
        raise _by_option(args.format)
    options = (
        *("with_preprocessing", "with_resize", "half", "opset", "images", "licence"),
        *("private", "revision", "dry_run", "image_licence", "image_credit"),
    )
    formats = [name for name in EXPORT_FORMATS if getattr(args, name.replace("-", "_"))]
    plan = plan_export(
        formats or ["timm"] * bool(args.push_to_hub),
        args.out,
        repo=args.push_to_hub,
        **{name: getattr(args, name) for name in options},
    )
    find_model(args.run)  # fails before torch is imported
    with heavy_imports(loading_step(args.run)):
        from vitft.export.job import export_run

    done = export_run(args.run, plan)
    for text in done.notes:
        output.note(text)
    if args.format == "json":
        _print_json(done, plan)
    else:
        _print_text(done, plan)
    if done.refused:  # the other formats are kept, and JSON lists the rejected ones
        fixes = dict.fromkeys(error.fix for error in done.refused)
        problem = "; ".join(error.problem for error in done.refused)
        output.fail(RunError(problem, fix="; ".join(fixes)))
        return RunError.exit_code
    if args.format == "json":
        return 0
    if args.out is None and done.folder != Path("export"):
        note = f"export/ already existed, so this export is in {done.folder}/"
        usable = [name for name in plan.formats if name not in CLOSED_FORMATS]
        inner = usable[0] if usable and len(plan.formats) > 1 else ""
        if usable:
            note += f": other commands need --run {shell_quote(str(done.folder / inner))}"
        output.note(note)
    if plan.dry_run:
        output.note(f"not pushed (--dry-run): read {done.folder}/README.md first")
        output.note(labelled("Next", f"hf upload {plan.repo} {shell_quote(str(done.folder))}"))
    elif plan.repo:
        from vitft.export.job import push

        output.note(f"pushing to {plan.repo}")
        output.result(f"pushed: {push(done, plan)}")
    return 0


def _print_text(done: "Exported", plan: ExportPlan) -> None:
    """Print the comparison with the run and the sizes of the files."""
    noise = "random noise, because the validation images are missing"
    on = count(done.images, "validation image") if done.images else noise
    changed = count(done.changed, "changed prediction")
    changed += f", largest logit difference {done.difference:.1e}"
    answers = changed if done.changed else "identical predictions"
    sizes = listing(f"{row.name} {row.size / 1e6:.1f} MB" for row in done.rows)
    checked = [("Checked", f"on {on}: {answers}"), *[("", text) for text in done.compared_with]]
    output.rows([*checked, ("Wrote", f"{done.folder}/ ({sizes})")])
    if console.shows_details():
        output.table(
            ("format", "loaded by", "logit difference", "changed", "images/s", "run's images/s"),
            [
                (
                    *(one.name, one.by, f"{one.difference:.1e}", str(one.changed)),
                    *(f"{speed:.1f}" for speed in (one.speed, one.original_speed)),
                )
                for one in done.rows
            ],
            numbers=4,
        )
    if plan.formats == ("transformers",):
        output.note(
            labelled("Next", f'transformers.pipeline("image-classification", "{done.folder}")')
        )


def _print_json(done: "Exported", plan: ExportPlan) -> None:
    """Push an export if requested, and print it as JSON (docs/schemas)."""
    from vitft.export.job import push

    single = len(plan.formats) == 1
    output.as_json(
        {
            "folder": str(done.folder),
            "images": done.images,
            "formats": [
                {
                    "name": one.name,
                    "folder": str(done.folder if single else done.folder / one.form),
                    "loaded_by": one.by,
                    "compared_with": "last-block head" if one.form in done.narrow else "run",
                    "logit_difference": one.difference,
                    "changed": one.changed,
                    "bytes": one.size,
                    "oldest_onnxruntime": plan.oldest_runtime(one.name),
                }
                for one in done.rows
            ],
            "rejected": [{"problem": error.problem, "fix": error.fix} for error in done.refused],
            "pushed": push(done, plan) if plan.repo and not plan.dry_run else None,
        }
    )
