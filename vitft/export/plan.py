"""What an export is asked to do, and what can be refused of it before torch is imported."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from vitft.system.errors import UsageError
from vitft.system.extras import require_extra
from vitft.system.files import free_name
from vitft.system.rundir import plan_run

FORMATS = {
    "safetensors": "one self-describing file, and timm's config.json beside it",
    "timm": "a folder for timm.create_model('local-dir:DIR', pretrained=True) and the hub",
    "transformers": "a folder for transformers' pipeline('image-classification', DIR)",
    "onnx": "a graph for onnxruntime and others, any batch size",
    "torch-export": "a program for torch.export.load, any batch size",
    "int8": "an ONNX graph with weights of 8 bits, for CPUs; costs some accuracy",
}
"""Name of each format, which is its option too, and what it is."""

NEEDED_EXTRAS = {"transformers": "transformers", "onnx": "onnx", "int8": "onnx"}
"""Extra of vitft that each format needs, to write it or to reopen it; the others need none."""
GRAPHS = ("onnx", "torch-export", "int8")
"""Formats that hold the computation, and so could hold the normalisation too."""
FOLDERS = ("safetensors", "timm", "transformers")
"""Formats that a repository of the hub can hold."""
COMPARED = 64
"""How many validation images an export is compared on, unless the user says otherwise."""
REPO = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What to write, where, and what to do with it."""

    formats: tuple[str, ...]
    """Some of `FORMATS`, in that order."""
    out: Path
    """A folder that does not exist yet, or is empty."""
    with_preprocessing: bool = False
    """Whether a graph takes bytes and normalises them itself."""
    with_resize: bool = False
    """Whether an ONNX graph resizes and crops, too."""
    images: int = COMPARED
    """How many validation images to compare on."""
    repo: str = ""
    """Repository of the hub, owner/name, to push the folder to; empty for none."""
    private: bool = False
    """Whether that repository is private, if it is made now."""
    revision: str = ""
    """Branch of it; empty for main."""


def plan_export(
    formats: Sequence[str],
    out: str | None,
    *,
    with_preprocessing: bool = False,
    with_resize: bool = False,
    images: int = COMPARED,
    repo: str = "",
    private: bool = False,
    revision: str = "",
) -> Order:
    """Check an export's options; writes nothing.

    Raises:
        UsageError: Options that do not go together, or a library that is not installed.
        RunError: The folder holds files already, or cannot be written.
    """
    if not formats:
        raise UsageError(
            "no format given", fix=f"name one or several: {', '.join(f'--{f}' for f in FORMATS)}"
        )
    if with_preprocessing and not set(formats) <= {*GRAPHS}:
        raise UsageError(
            "--with-preprocessing concerns graphs only",
            fix=f"use it with {', '.join(f'--{f}' for f in GRAPHS)} alone; the other formats "
            "state their preprocessing in their config.json",
        )
    if with_resize and [*formats] != ["onnx"]:
        raise UsageError("--with-resize concerns one ONNX graph", fix="use it with --onnx alone")
    if images < 1:
        raise UsageError(f"--images is {images}", fix="compare on at least one image")
    check_push(formats, repo, is_told_more=private or bool(revision))
    for name in formats:
        if name in NEEDED_EXTRAS:
            require_extra(NEEDED_EXTRAS[name], feature=f"export --{name}")
    return Order(
        formats=tuple(name for name in FORMATS if name in formats),
        out=free_name(Path("export")) if out is None else plan_run(out, ""),
        with_preprocessing=with_preprocessing or with_resize,
        with_resize=with_resize,
        images=images,
        repo=repo,
        private=private,
        revision=revision,
    )


def check_push(formats: Sequence[str], repo: str, *, is_told_more: bool) -> None:
    """Refuse a push that cannot work, before hours of it have been waited for."""
    if not repo:
        if is_told_more:
            raise UsageError(
                "--private and --revision concern a push", fix="add --push-to-hub owner/name"
            )
        return
    if not REPO.fullmatch(repo) or ".." in repo:
        raise UsageError(
            f"--push-to-hub {repo!r} names no repository", fix="write owner/name, e.g. me/flowers"
        )
    if len(formats) > 1 or formats[0] not in FOLDERS:
        raise UsageError(
            "a repository holds one format that a library opens by its name",
            fix=f"push with exactly one of {', '.join(f'--{f}' for f in FOLDERS)}",
        )
    from huggingface_hub import constants, get_token

    if constants.is_offline_mode():
        raise UsageError(
            "HF_HUB_OFFLINE is set, so nothing can be pushed", fix="unset it, or leave the push out"
        )
    if not get_token():
        raise UsageError(
            "a push needs a token of the hub, and there is none",
            fix="make one that may write at huggingface.co/settings/tokens, then set HF_TOKEN or "
            "run `hf auth login`",
        )
