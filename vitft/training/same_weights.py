"""The pretrained weights of an unfinished run: recorded at its start, the same when it is resumed.

    resume/weights.json   origin of the weights: name, commit and SHA-256

A state contains only what is trained, so frozen layers must come from the same file again.
"""

from dataclasses import replace
from pathlib import Path

from vitft.config.sections import WeightsSpec
from vitft.models.card import Provenance
from vitft.models.pretrained.locate import canonical_name
from vitft.models.pretrained.report import LoadReport
from vitft.system.errors import RunError
from vitft.system.files import write_json, writing
from vitft.system.run_content import read_run_json
from vitft.system.rundir import RunDir

WEIGHTS_FILE = "weights.json"


def record_weights(run: RunDir, origin: Provenance) -> None:
    """Write where the weights of a new run come from."""
    if run.writes:
        with writing(run.resume):
            run.resume.mkdir(exist_ok=True)
        write_json(run.resume / WEIGHTS_FILE, origin)


def recorded_weights(folder: Path) -> Provenance:
    """Return what `record_weights` wrote to a folder; it is empty if there is no such file.

    Raises:
        RunError: The file is damaged.
    """
    return read_run_json(folder / WEIGHTS_FILE, Provenance) or {}


def at_recorded_commit(spec: WeightsSpec, recorded: Provenance) -> WeightsSpec:
    """Return the settings, with the commit of a hub repository that the run began with."""
    name, commit = canonical_name(spec.name), recorded.get("revision", "")
    if not (name.startswith("hf:") and commit):
        return spec
    return replace(spec, name=f"{name.partition('@')[0]}@{commit}")


def checked_report(report: LoadReport, name: str, recorded: Provenance) -> LoadReport:
    """Return the report on the loaded weights, with their name as at the start of the run.

    Raises:
        RunError: The weights are not those that the run began with.
    """
    before, now = recorded.get("sha256", ""), report.provenance.get("sha256", "")
    if before and now != before:
        raise RunError(
            f"the weights {name} have changed since the start of the run (sha256 was "
            f"{before[:12]} and is now {now[:12]})",
            fix="restore the original weights, or start a new run",
        )
    if not recorded:
        return report
    return replace(report, provenance={**report.provenance, "name": recorded.get("name", name)})
