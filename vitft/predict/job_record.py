"""Options of an unfinished job, in a file beside its rows, so that only the same job resumes it.

The file `NAME.part.json` is removed together with `NAME.part`. Files of older versions have none;
they are resumed without this check.
"""

import hashlib
import json
from pathlib import Path

from vitft.predict.output import cannot_resume
from vitft.predict.request import PredictRequest
from vitft.system.files import write_atomically
from vitft.system.structure import parse_json

JobOptions = dict[str, object]


def record_path(part: Path) -> Path:
    """Return the path of the options of the job that writes a file of rows."""
    return part.with_name(f"{part.name}.json")


def job_options(
    request: PredictRequest, checkpoint: Path, threshold: float, thresholds: tuple[float, ...]
) -> JobOptions:
    """Return what decides the rows of a job besides its images, by the name shown to the user."""
    with checkpoint.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return {
        "model": digest,
        "--top-k": request.top_k,
        "threshold": [threshold, *thresholds],
        "--dtype": request.dtype,
        "--tta": request.tta,
    }


def check_record(part: Path, options: JobOptions) -> None:
    """Check that a file of rows was begun with the same options.

    Raises:
        RunError: The options differ, or their file is damaged.
    """
    try:
        begun = parse_json(record_path(part).read_bytes())
    except FileNotFoundError:
        return
    except (OSError, ValueError) as error:
        raise cannot_resume(part, f"{record_path(part)} is damaged") from error
    names = [key for key, value in options.items() if not same(begun, key, value)]
    if names:
        raise cannot_resume(part, f"it was begun with another {' and another '.join(names)}")


def same(begun: object, key: str, value: object) -> bool:
    """Return whether a record has the given value."""
    return isinstance(begun, dict) and begun.get(key) == value


def write_record(part: Path, options: JobOptions) -> None:
    """Write the options beside a file of rows.

    Raises:
        RunError, ResourceError: The file cannot be written.
    """
    write_atomically(record_path(part), json.dumps(options))
