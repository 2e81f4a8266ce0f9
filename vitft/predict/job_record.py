"""Options of an unfinished job, in a file beside its rows, so that only the same job resumes it.

The file `NAME.part.json` is removed once `NAME` is complete. Files of older versions have none;
they are resumed without this check.
"""

import contextlib
import hashlib
from pathlib import Path

from vitft.models.graph_digest import DIGEST_KEY, recorded_digest
from vitft.predict.output import RESUMABLE, cannot_resume, record_path
from vitft.predict.request import PredictRequest
from vitft.system.errors import RunError
from vitft.system.safetensors_file import read_header
from vitft.system.structure import parse_json
from vitft.system.text import listing

JobOptions = dict[str, object]
_KEYS = {"model", "--top-k", "threshold", "--dtype", "--tta"}
"""Keys of a record."""


def job_options(
    request: PredictRequest, checkpoint: Path, threshold: float, thresholds: tuple[float, ...]
) -> JobOptions:
    """Return what decides the rows of a job besides its images, by the name shown to the user.

    The result is empty for a job that cannot be resumed.
    """
    if request.out is None or request.style not in RESUMABLE:
        return {}
    return {
        "model": _model_digest(checkpoint),
        "--top-k": request.top_k,
        "threshold": [threshold, *thresholds],
        "--dtype": request.torch_dtype,
        "--tta": request.tta,
    }


def _model_digest(path: Path) -> str:
    """Return the digest that a checkpoint or graph contains, or that of the file if it has none.

    Engines check a contained digest, so the contents are not hashed again.

    Raises:
        OSError: The file cannot be read.
    """
    recorded = ""
    if path.suffix.lower() == ".onnx":
        recorded = (recorded_digest(path) or b"").decode("ascii", "replace")
    else:
        with contextlib.suppress(ValueError):
            recorded = read_header(path).metadata.get(DIGEST_KEY, "")
    if recorded:
        return recorded
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def check_record(part: Path, options: JobOptions) -> None:
    """Check that a file of rows was begun with the same options.

    Raises:
        RunError: The options differ, or their file is damaged.
    """
    begun = read_options(part)
    if begun is None:
        return
    changed = [key for key, value in options.items() if begun[key] != value]
    differ = [_changed_option(key, begun[key], options[key]) for key in changed]
    if differ:
        raise cannot_resume(part, f"it was begun with {listing(differ)}")


def read_options(part: Path) -> JobOptions | None:
    """Return the options with which a file of rows was begun, or None without a record.

    Raises:
        RunError: The record is damaged, or another program wrote it.
    """
    path = record_path(part)
    try:
        found = parse_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValueError):
        found = None
    if not isinstance(found, dict) or not found.keys() >= _KEYS:
        raise RunError(
            f"{path} does not contain the options of a job of vitft predict",
            fix="move it elsewhere, or choose another file with --out",
        )
    return found


def _changed_option(key: str, begun: object, now: object) -> str:
    """Return what a job was begun with instead of the present value of an option."""
    if isinstance(begun, bool):
        return f"{key}, which is missing now" if begun else f"no {key}"
    return f"another {key}" if key in ("model", "threshold") else f"{key} {begun}, not {now}"
