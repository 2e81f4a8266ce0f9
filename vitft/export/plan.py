"""What to export: the plan of an export, checked before torch is imported."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from vitft.system.errors import UsageError
from vitft.system.files import free_name
from vitft.system.imports import require_extra
from vitft.system.rundir import plan_run

EXPORT_FORMATS = {
    "safetensors": "one self-describing file, and a config.json for timm",
    "timm": "a folder for timm.create_model('local-dir:DIR', pretrained=True) and the hub",
    "transformers": "a folder for transformers' pipeline('image-classification', DIR)",
    "onnx": "an ONNX graph for onnxruntime and others, any batch size",
    "torch-export": "a program for torch.export.load, any batch size",
    "int8": "an ONNX graph with 8-bit weights, for CPUs; costs some accuracy",
}
"""Description of each format by its name, which is also its option."""

NEEDED_EXTRAS = {"transformers": "transformers", "onnx": "onnx", "int8": "onnx"}
"""Extra of vitft that each format needs, to write it or to reopen it; the others need none."""
GRAPH_FORMATS = ("onnx", "torch-export", "int8")
"""Formats that contain the computation, and so can contain the normalisation too."""
HUB_FORMATS = ("safetensors", "timm", "transformers")
"""Formats that a hub repository can contain."""
NUM_COMPARED = 64
"""Default number of validation images to compare on."""
REPO_NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportPlan:
    """What to write, where, and whether to upload it."""

    formats: tuple[str, ...]
    """Keys of `EXPORT_FORMATS`, in that order."""
    out: Path
    """A folder that does not exist yet, or is empty."""
    with_preprocessing: bool = False
    """Whether a graph takes bytes and normalises them itself."""
    with_resize: bool = False
    """Whether an ONNX graph also resizes and crops."""
    images: int = NUM_COMPARED
    """Number of validation images to compare on."""
    repo: str = ""
    """Hub repository, owner/name, to upload the folder to; empty for none."""
    private: bool = False
    """Whether the repository is private if it is created."""
    revision: str = ""
    """Branch of the repository; empty for main."""


def plan_export(
    formats: Sequence[str],
    out: str | None,
    *,
    with_preprocessing: bool = False,
    with_resize: bool = False,
    images: int = NUM_COMPARED,
    repo: str = "",
    private: bool = False,
    revision: str = "",
) -> ExportPlan:
    """Check the options of an export and return its plan. Writes nothing.

    Raises:
        UsageError: Options that exclude each other, or a library that is not installed.
        RunError: The folder contains files already, or is not writable.
    """
    if not formats:
        raise UsageError(
            "no export format given",
            fix=f"choose one or more: {', '.join(f'--{f}' for f in EXPORT_FORMATS)}",
        )
    if with_preprocessing and not set(formats) <= {*GRAPH_FORMATS}:
        raise UsageError(
            "--with-preprocessing is only for formats that contain the computation",
            fix=f"use it with {', '.join(f'--{f}' for f in GRAPH_FORMATS)} only; the other formats "
            "describe the preprocessing in their config.json",
        )
    if with_resize and [*formats] != ["onnx"]:
        raise UsageError(
            "--with-resize is only for --onnx", fix="use it with --onnx and no other format"
        )
    if images < 1:
        raise UsageError(f"invalid --images {images}", fix="use a number from 1")
    check_push(formats, repo, has_push_options=private or bool(revision))
    for name in formats:
        if name in NEEDED_EXTRAS:
            require_extra(NEEDED_EXTRAS[name], feature=f"export --{name}")
    return ExportPlan(
        formats=tuple(name for name in EXPORT_FORMATS if name in formats),
        out=free_name(Path("export")) if out is None else plan_run(out, ""),
        with_preprocessing=with_preprocessing or with_resize,
        with_resize=with_resize,
        images=images,
        repo=repo,
        private=private,
        revision=revision,
    )


def check_push(formats: Sequence[str], repo: str, *, has_push_options: bool) -> None:
    """Refuse an upload that cannot work, before the export begins."""
    if not repo:
        if has_push_options:
            raise UsageError(
                "--private and --revision need --push-to-hub", fix="add --push-to-hub owner/name"
            )
        return
    if not REPO_NAME.fullmatch(repo) or ".." in repo:
        raise UsageError(f"invalid --push-to-hub {repo!r}", fix="write owner/name, e.g. me/flowers")
    if len(formats) > 1 or formats[0] not in HUB_FORMATS:
        raise UsageError(
            "a hub repository can contain only one format, which a library opens by its name",
            fix=f"push with exactly one of {', '.join(f'--{f}' for f in HUB_FORMATS)}",
        )
    from huggingface_hub import constants, get_token

    if constants.is_offline_mode():
        raise UsageError(
            "--push-to-hub is impossible because HF_HUB_OFFLINE is set",
            fix="unset it, or omit --push-to-hub",
        )
    if not get_token():
        raise UsageError(
            "--push-to-hub needs a hub token, and none is set",
            fix="create a token with write access at huggingface.co/settings/tokens, then set "
            "HF_TOKEN or run `hf auth login`",
        )
