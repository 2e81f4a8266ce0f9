"""Whether runs can be compared: complete runs, each given once, that share validation images."""

from collections.abc import Sequence
from string import ascii_uppercase
from typing import cast

from vitft.metrics.results import EvaluationResults
from vitft.report.run_files import Run
from vitft.system.errors import RunError, UsageError
from vitft.system.run_names import resume_command
from vitft.system.text import listing, shell_join


def check_runs(runs: Sequence[Run]) -> None:
    """Check that the runs can be compared.

    Raises:
        UsageError: A run is given twice, or there are more than 26 runs.
        RunError: A run has not finished, or has no validation predictions.
    """
    if len(runs) > len(ascii_uppercase):
        raise UsageError(
            f"cannot compare {len(runs)} runs",
            fix=f"compare at most {len(ascii_uppercase)} runs at a time",
        )
    evaluated = [run.is_evaluation for run in runs]
    if any(evaluated) and not all(evaluated):
        own, other = str(runs[evaluated.index(False)].path), runs[evaluated.index(True)]
        data = cast("EvaluationResults", other.measured)["data"]["path"]
        words = ["--data", data, "--run", own, "--out", f"{own}_evaluated"]
        raise UsageError(
            f"cannot compare the run {own} with {other.path}, an evaluation of other images",
            fix=f"evaluate the run too: `vitft evaluate {shell_join(words)}`",
        )
    paths = [run.path.resolve() for run in runs]
    for run, path in zip(runs, paths, strict=True):
        if paths.count(path) > 1:
            raise UsageError(f"{path} is given twice", fix="pass each run once")
        status = run.environment.get("status", "finished")
        if not run.predictions and status != "finished":
            raise RunError(
                f"cannot compare {run.path}: the run has not finished (status: {status})",
                fix=f"finish it with `{resume_command(run.path)}`",
            )
        if not run.predictions:
            raise RunError(
                f"cannot compare {run.path}: validation.npz, which contains the validation "
                "predictions, is missing",
                fix="repeat the run with this version of vitft",
            )


def nothing_shared(runs: Sequence[Run]) -> UsageError:
    """Return the error for runs without a common validation image, naming what differs."""
    names = [*dict.fromkeys(run.data_name for run in runs if run.data_name)]
    differences = [f"data ({listing(names)})"] * (len(names) > 1)
    differences += ["classes"] * (len({run.classes for run in runs}) > 1)
    seeds = [*dict.fromkeys(str(run.setting("data", "seed")) for run in runs)]
    differences += [f"data.seed ({listing(seeds)})"] * (len(seeds) > 1)
    differ = f"; the runs differ in {listing(differences)}" if differences else ""
    common = set.intersection(*(set(run.classes) for run in runs))
    if not common:
        return UsageError(
            f"cannot compare: the runs have no class in common{differ}",
            fix="compare runs that were trained on the same data",
        )
    return UsageError(
        f"cannot compare: no validation image is shared by all runs{differ}",
        fix="evaluate each run on the same labelled photos, which no run has seen: "
        f"{' and '.join(evaluate_commands(runs))}",
    )


def evaluate_commands(runs: Sequence[Run]) -> list[str]:
    """Return the commands that evaluate two runs on new images, in backquotes.

    For more than two runs, the result is a single command with the placeholder RUN.
    """
    names = [str(run.path) for run in runs] if len(runs) == 2 else ["RUN"]
    command = ["vitft", "evaluate", "--data", "NEW", "--run"]
    return [f"`{shell_join([*command, name])}`" for name in names]
