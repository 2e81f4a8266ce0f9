"""Plan of an export, validated before torch is imported."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vitft.system.errors import UsageError
from vitft.system.files import free_name
from vitft.system.imports import require_extra
from vitft.system.rundir import plan_run

EXPORT_FORMATS = {
    "safetensors": "one self-describing file, with a config.json for timm",
    "timm": "a folder for timm.create_model('local-dir:DIR', pretrained=True) and the hub",
    "transformers": "a folder for transformers.pipeline('image-classification', DIR)",
    "transformers-js": "a folder for transformers.js, in Node and in browsers",
    "html": "one web page that classifies images in a browser, without a network",
    "onnx": "an ONNX graph for onnxruntime and other tools (any batch size)",
    "torch-export": "a program for torch.export.load (any batch size)",
    "int8": "an ONNX graph with 8-bit weights for CPUs (smaller, slightly less exact)",
    "preprocessing": "the transform for programs in other languages, with test vectors (no model)",
}
"""Mapping from format names, which are also the option names, to descriptions."""

_NEEDED_EXTRAS = {
    "transformers": "transformers",
    "transformers-js": "onnx",
    "onnx": "onnx",
    "int8": "onnx",
}
"""Extra of vitft that is required to write or reopen a format; formats not listed require none."""
_GRAPH_FORMATS = ("onnx", "torch-export", "int8")
"""Formats that contain the computation graph and can therefore include the normalisation."""
CLOSED_FORMATS = ("torch-export", "html", "preprocessing")
"""Formats that vitft itself cannot open with `--run`."""
_HUB_FORMATS = ("safetensors", "timm", "transformers", "transformers-js")
"""Formats that a hub repository can contain."""
_ONNX_FORMATS = ("onnx", "int8")
DEFAULT_OPSET = 18  # operator set of ONNX graphs
_OLDEST_RUNTIMES = {16: "1.11", 17: "1.12", 18: "1.14"}
"""Oldest onnxruntime that opens a graph, by opset
(https://onnxruntime.ai/docs/reference/compatibility.html)."""
NUM_COMPARED = 64  # default number of validation images used to compare exports with the original
_MAX_LICENCE = 100  # maximum number of characters in the name of a licence
_MAX_CREDIT = 500  # maximum number of characters in the credit of example images
_FREE_IMAGE_LICENCES = ("cc0-1.0", "pddl", "unlicense")
"""Licences that permit publishing images without naming the authors."""
_CREDITED_IMAGE_LICENCES = (
    *("cc-by-2.0", "cc-by-2.5", "cc-by-3.0", "cc-by-4.0"),
    *("cc-by-sa-2.0", "cc-by-sa-2.5", "cc-by-sa-3.0", "cc-by-sa-4.0"),
    *("cc-by-nc-4.0", "cc-by-nc-sa-4.0", "apache-2.0", "mit"),
)
"""Licences that permit publishing downscaled images if the authors are named."""
_REPO_NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportPlan:
    """Formats to write, output folder and upload options of an export."""

    formats: tuple[str, ...]  # keys of `EXPORT_FORMATS`, in the same order
    out: Path  # output folder, new or empty; by default `export`, `export-2`, ...
    with_preprocessing: bool = False
    """Whether graphs accept bytes and normalise them; implied by `with_resize`."""
    with_resize: bool = False
    half: bool = False  # whether the graph stores its matrices in 16 bits
    opset: int = DEFAULT_OPSET  # key of `_OLDEST_RUNTIMES`
    images: int = NUM_COMPARED
    repo: str = ""
    """Hub repository (owner/name) that the folder is uploaded to; empty for no upload."""
    private: bool = False  # whether to make the repository private if it is created
    revision: str = ""  # branch of the repository; empty for `main`
    licence: str = ""
    """Licence for the README; if empty, the licence of the pretrained weights is used."""
    dry_run: bool = False
    """Whether to write the folder for the hub without uploading it or using the network."""
    image_licence: str = ""
    """Licence of the images; if it permits publication, the hub page shows one image per class."""
    image_credit: str = ""  # authors of the images, shown below them

    def oldest_runtime(self, name: str) -> str | None:
        """Return the oldest onnxruntime that opens a format, or None for other formats."""
        return _OLDEST_RUNTIMES[self.opset] if name in _ONNX_FORMATS else None


def plan_export(formats: Sequence[str], out: str | None, **options: Any) -> ExportPlan:  # noqa: ANN401
    """Check the options of an export (fields of `ExportPlan`), and return its plan."""
    plan = ExportPlan(
        formats=tuple(name for name in EXPORT_FORMATS if name in formats),
        out=free_name(Path("export")) if out is None else plan_run(out, ""),
        **options,
    )
    if not plan.formats:
        raise UsageError(
            "no export format given",
            fix=f"choose one or more: {', '.join(f'--{f}' for f in EXPORT_FORMATS)}",
        )
    _check_graph(plan)
    if plan.images < 1:
        raise UsageError(f"invalid --images {plan.images}", fix="use an integer of 1 or more")
    if len(plan.licence) > _MAX_LICENCE or not plan.licence.isprintable():
        raise UsageError(
            "invalid --licence: expected a short name on one line",
            fix="use an identifier such as apache-2.0, mit or cc-by-4.0",
        )
    _check_push(plan)
    for name in plan.formats:
        if name in _NEEDED_EXTRAS:
            require_extra(_NEEDED_EXTRAS[name], feature=f"export --{name}")
    return plan


def _check_graph(plan: ExportPlan) -> None:
    """Check the options of formats that contain the computation graph."""
    if plan.with_preprocessing and not {*plan.formats} <= {*_GRAPH_FORMATS}:
        raise UsageError(
            "--with-preprocessing can only be used with formats that contain a computation graph",
            fix=f"use it only with {', '.join(f'--{f}' for f in _GRAPH_FORMATS)}. The other "
            "formats describe the preprocessing in their config.json",
        )
    for option, is_set in (("--with-resize", plan.with_resize), ("--half", plan.half)):
        if is_set and plan.formats != ("onnx",):
            raise UsageError(
                f"{option} can only be used with --onnx alone",
                fix=f"run vitft export twice: with --onnx {option}, and with the other formats",
            )
    is_onnx = {*plan.formats} <= {*_ONNX_FORMATS}
    if plan.opset not in _OLDEST_RUNTIMES or (plan.opset != DEFAULT_OPSET and not is_onnx):
        lowest, highest = min(_OLDEST_RUNTIMES), max(_OLDEST_RUNTIMES)
        fix = f"use {lowest} to {highest}, only with --onnx and --int8"
        raise UsageError(f"invalid --opset {plan.opset}", fix=fix)


def _check_push(plan: ExportPlan) -> None:
    """Check the upload options before the export begins."""
    repo = plan.repo
    if not repo:
        if plan.private or plan.revision or plan.dry_run or plan.image_licence or plan.image_credit:
            raise UsageError(
                "--private, --revision, --dry-run, --image-licence and --image-credit need "
                "--push-to-hub",
                fix="add --push-to-hub owner/name",
            )
        return
    if not _REPO_NAME.fullmatch(repo) or ".." in repo:
        raise UsageError(
            f"invalid --push-to-hub {repo!r}", fix="use the form owner/name, e.g. me/flowers"
        )
    if len(plan.formats) > 1 or plan.formats[0] not in _HUB_FORMATS:
        raise UsageError(
            "--push-to-hub needs exactly one format that a library can load from the hub",
            fix=f"use one of {', '.join(f'--{f}' for f in _HUB_FORMATS)}",
        )
    _check_image_licence(plan)
    if plan.dry_run:
        return
    from huggingface_hub import constants, get_token

    if constants.is_offline_mode():
        raise UsageError(
            "--push-to-hub cannot be used while HF_HUB_OFFLINE is set",
            fix="unset HF_HUB_OFFLINE, or add --dry-run",
        )
    if not get_token():
        raise UsageError(
            "--push-to-hub needs a hub token, but none is set",
            fix="create a token with write access at huggingface.co/settings/tokens, then set "
            "HF_TOKEN or run `hf auth login`",
        )


def _check_image_licence(plan: ExportPlan) -> None:
    """Check that the licence of the images permits publishing them, and that credit is given."""
    licence, credit = plan.image_licence, plan.image_credit
    known = _FREE_IMAGE_LICENCES + _CREDITED_IMAGE_LICENCES
    if (licence or credit) and licence not in known:
        raise UsageError(
            f"--image-licence {licence!r} is not known to permit publishing images",
            fix=f"use {', '.join(known)}, or remove --image-licence to publish no images",
        )
    if licence in _CREDITED_IMAGE_LICENCES and not credit:
        raise UsageError(
            f"{licence} requires naming the authors of the images",
            fix="add --image-credit 'AUTHORS AND SOURCE'",
        )
    if len(credit) > _MAX_CREDIT or not credit.isprintable():
        raise UsageError(
            "invalid --image-credit: expected text on one line",
            fix=f"use up to {_MAX_CREDIT} printable characters",
        )
