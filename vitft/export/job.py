"""Export of a run: write each format, reopen it, compare it with the run, and keep or remove it."""

import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from vitft.export.card import write_readme
from vitft.export.formats.base import (
    ExportComparison,
    ExportFormat,
    OpenedModel,
    compare_exports,
    open_module,
    timed_step,
)
from vitft.export.formats.html import HtmlFormat
from vitft.export.formats.onnx import (
    MAX_ERROR_ROUNDED,
    Int8Format,
    OnnxFormat,
    TorchExportFormat,
    TransformersJsFormat,
)
from vitft.export.formats.preprocessing import PreprocessingFormat
from vitft.export.formats.timm import (
    SafetensorsFormat,
    TimmFormat,
    TransformersFormat,
    unsupported_part,
)
from vitft.export.plan import EXPORT_FORMATS, ExportPlan
from vitft.export.trained import load_trained
from vitft.models.pretrained.fetch import describe_failure, http_error, plain_http, status_of
from vitft.report.html import filled
from vitft.system import console
from vitft.system.errors import RunError, WeightsError
from vitft.system.files import atomic_folder, writing
from vitft.system.imports import version
from vitft.system.rundir import resume_command
from vitft.system.signals import Stopper
from vitft.system.text import listing, shell_quote

_FORMATS: Mapping[str, type[ExportFormat]] = {
    one.name: one
    for one in (
        *(SafetensorsFormat, TimmFormat, TransformersFormat, TransformersJsFormat, HtmlFormat),
        *(OnnxFormat, TorchExportFormat, Int8Format, PreprocessingFormat),
    )
}


def _format_options(names: Iterable[str]) -> str:
    """Return the options of formats as text, such as `--onnx, --timm and --html`."""
    return listing((f"--{name}" for name in names), most=len(EXPORT_FORMATS))


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """Folder written by an export, and the comparison of each format with the run."""

    folder: Path  # folder with the files of a single format, or with one subfolder per format
    rows: tuple[ExportComparison, ...]
    notes: tuple[str, ...] = ()
    refused: tuple[RunError, ...] = ()
    """One error for each format that was removed, because its predictions differ from the run's."""
    narrow: tuple[str, ...] = ()
    """Formats whose head reads only the last block, unlike that of the run. They were compared with
    the run's model with this head."""

    @property
    def compared_with(self) -> tuple[str, ...]:
        """What the `narrow` formats were compared with, as a sentence; empty if none is narrow."""
        which = f"{_format_options(self.narrow)} compared" if len(self.rows) > 1 else "compared"
        text = f"{which} with a head on the last block, not the run's head"
        return (text,) if self.narrow else ()

    @property
    def images(self) -> int:
        """Number of validation images compared; 0 if noise images were used instead."""
        return self.rows[0].images

    @property
    def difference(self) -> float:
        """Largest difference in any logit from the original model, over all formats."""
        return max(row.difference for row in self.rows)

    @property
    def changed(self) -> int:
        """Number of images whose predicted class differs, for the worst format."""
        return max(row.changed for row in self.rows)


def export_run(run: str | None, plan: ExportPlan) -> Exported:
    """Export a run in each format of the plan, and keep the formats that agree with the run.

    Raises:
        RunError: A format cannot represent the model, or no format agrees with the run.
    """
    trained = load_trained(run)
    formats = {name: _FORMATS[name](trained, plan) for name in plan.formats}
    in_timm = not unsupported_part("timm", trained.card.architecture)
    for name, each in formats.items():
        if reason := each.obstacle():
            also = "--timm (which transformers also opens)" if in_timm else "--safetensors"
            raise RunError(
                f"--{name} cannot represent this model exactly: {reason}",
                fix="use --with-preprocessing instead of --with-resize"
                if plan.with_resize
                else f"use {also}, --onnx or --torch-export",
            )
    with Stopper(), atomic_folder(plan.out) as fresh:
        folders = {name: fresh if len(formats) == 1 else fresh / name for name in formats}
        opened = dict[str, dict[str, tuple[OpenedModel, int]]]()
        for name, each in formats.items():
            with timed_step(f"writing --{name}"):
                with writing(folders[name]):
                    folders[name].mkdir(exist_ok=True)
                each.write(folders[name])
                opened[name] = each.reopen(folders[name])
        rows: list[ExportComparison] = []
        for source in dict.fromkeys((trained, trained.of_last_block)):
            names = [name for name, each in formats.items() if each.trained is source]
            if not names:
                continue
            which = f"{_format_options(names)} " if len(names) < len(formats) else ""
            original = open_module(source.model, source.card)
            exports = dict(pair for name in names for pair in opened[name].items())
            images = source.comparison_images(plan.images)
            total = source.num_comparison_images(plan.images)
            with console.Progress(f"comparing {which}with the run", total) as progress:
                rows += compare_exports(original, exports, images, done=progress.advance)
        refused = _refused(rows, formats, plan)
        for name in refused:
            with writing(fresh):
                shutil.rmtree(folders.pop(name))
        named = {row.name: row for row in rows if row.form in folders}
        kept = {name: formats[name] for name in folders}
        is_other = trained.of_last_block is not trained
        narrow = tuple(name for name, one in kept.items() if one.reads_last_block and is_other)
        has_model = any(one.is_model for one in kept.values())
        notes = filled(
            "notes.j2",
            rows=[*named.values()],
            status=trained.results.status,
            resume=resume_command(trained.run),
            formats=kept,
            narrow=_format_options(narrow),
            narrow_reason=trained.last_block_reason,
            obstacle=unsupported_part("timm", trained.of_last_block.card.architecture),
            is_licensed=not has_model or plan.licence or trained.pretrained_licence,
            from_scratch=trained.is_from_scratch,
        )
        for name, one in kept.items():
            if one.is_model:
                second = named.get(f"{name}, int8")
                write_readme(one.trained, folders[name], named[name], plan, second=second)
    return Exported(
        folder=plan.out,
        rows=tuple(named.values()),
        notes=tuple(filter(None, notes.split("\n"))),
        refused=tuple(refused.values()),
        narrow=narrow,
    )


def _refused(
    rows: Sequence[ExportComparison], formats: Mapping[str, ExportFormat], plan: ExportPlan
) -> dict[str, RunError]:
    """Return an error for each format that does not agree with the run; raise it if none does."""
    refused: dict[str, RunError] = {}
    for row in rows:
        may_differ = plan.with_resize or plan.half
        limit = MAX_ERROR_ROUNDED if may_differ else formats[row.form].max_error
        try:
            row.check(limit, is_half=plan.half)
        except RunError as error:
            refused.setdefault(row.form, error)
    if len(refused) == len(formats):
        raise next(iter(refused.values()))
    return refused


# upload of an exported folder to a hub repository, in one commit ----------------------------------


def push(done: Exported, plan: ExportPlan) -> str:
    """Upload an exported folder and return the URL of the commit.

    Raises:
        WeightsError: The hub rejected the upload or could not be reached; the folder is kept.
    """
    from huggingface_hub import HfApi
    from huggingface_hub.utils.tqdm import disable_progress_bars

    api = HfApi()
    disable_progress_bars()
    try:
        with plain_http():
            api.create_repo(plan.repo, private=plan.private or None, exist_ok=True)
            if plan.revision:
                api.create_branch(plan.repo, branch=plan.revision, exist_ok=True)
            commit = api.upload_folder(
                repo_id=plan.repo,
                folder_path=done.folder,
                revision=plan.revision or None,
                commit_message=f"Upload by vitft {version('vitft')}",
            )
    except (http_error(), OSError, RuntimeError, ValueError) as error:
        status = status_of(error)
        cause = error if status or error.__cause__ is None else error.__cause__
        reason = describe_failure(cause if isinstance(cause, Exception) else error)
        owner, folder = plan.repo.split("/")[0], shell_quote(str(done.folder))
        raise WeightsError(
            f"the upload to {plan.repo} failed: {reason}. The export is in {done.folder}",
            fix=f"set HF_TOKEN to a token with write access to {owner}"
            if status in (401, 403)
            else f"upload it later: hf upload {plan.repo} {folder}",
        ) from error
    return str(commit.commit_url)
