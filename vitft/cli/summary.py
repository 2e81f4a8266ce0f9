"""The screen at the end of `vitft finetune`: results, findings to decide on, next commands."""

import os
from dataclasses import replace
from pathlib import Path

from vitft.cli import output
from vitft.config.run import Config
from vitft.data.fixes import settled_paths
from vitft.messages.results import accuracy_without_copies as accuracy_text
from vitft.messages.results import chance_remedy, detail_lines, result_rows
from vitft.metrics.results import AuditResults, Estimate, RunResults
from vitft.predict.postprocess import run_results
from vitft.predict.validation import HeldOut, accuracy_without_copies
from vitft.report.decisions import undecided_numbers
from vitft.report.run_page import report_of_new_run
from vitft.system.console import LogHandler
from vitft.system.rundir import read_run_json
from vitft.system.text import count, labelled, shell_join, shell_quote

_ONE_LINE = 65
"""Maximum number of characters of commands on one line."""


def print_summary(
    run: Path, found: RunResults | None, config: Config, *, status: str, is_latest: bool
) -> None:
    """Print the results of a run, if it has any, and suggest the next commands."""
    folder = shell_quote(str(run))
    if status != "finished":
        output.warn(f"{status}. Resume with: vitft finetune --resume {folder}")
    if not found:
        return
    results, train = run_results(run, found), config.train
    remedy = chance_remedy(
        config.weights.name,
        config.optim.solver,
        mirrored=train.mirrors,
        too_few=bool(results.at_chance and results.at_chance.too_few),
    )
    rows = result_rows(results, found.get("budget"), remedy=remedy)
    without, review = _findings(run, config)
    if without:
        rows.append(("Copies", f"accuracy {accuracy_text(without)}"))
    if review and any(review.values()):
        labels, groups, across = review.values()
        texts = [count(labels, "probable label error")] * bool(labels)
        # A run logs the number of groups across splits
        of_them = f" ({across:,} across splits)" if 0 < across < groups else ""
        kinds = "group of duplicates", "groups of duplicates"
        texts += [count(groups, *kinds) + of_them] * bool(groups)
        rows.append(("Review", f"{' and '.join(texts)}, in the report"))
    page = report_of_new_run(run)
    output.rows(rows, strong=rows[0][0])
    if hidden := LogHandler.hidden:
        output.note(labelled("Notes", f"{hidden:,} more: use -v"))
    output.rows([("Report", str(page)) if page else ("Run", str(run))])
    for line in detail_lines(results, found, train.layers, config.optim.epochs):
        output.detail(line)
    which = "" if is_latest else f" --run {folder}"
    steps = [f"vitft predict photo.jpg{which}", f"vitft export --safetensors{which}"]
    if config.data.like:
        steps.insert(0, shell_join(["vitft", "compare", config.data.like, str(run)]))
    line = "   ·   ".join(steps)
    shown = [line] if len(line) <= _ONE_LINE else steps
    for number, step in enumerate(shown if status == "finished" else ()):
        output.note(labelled("" if number else "Next", step))


def print_json(run: Path, found: RunResults | None, config: Config, *, status: str) -> None:
    """Write the report of a run, and print its results as one JSON object (docs/schemas)."""
    if os.environ.get("RANK", "0") != "0":
        return
    page = report_of_new_run(run) if found else None
    without, review = _findings(run, config) if found else (None, None)
    output.as_json(
        {
            "run": str(run),
            "status": status,
            "results": replace(run_results(run, found), name=run.name).to_json() if found else None,
            "without_copies": without
            and {key: getattr(without, key) for key in ("value", "interval", "images", "groups")},
            "review": review,
            "report": page and str(page),
        }
    )


def _findings(run: Path, config: Config) -> tuple[Estimate | None, dict[str, int] | None]:
    """Return the accuracy without copies, and the numbers of findings to decide on, if known."""
    audit = read_run_json(run / "audit.json", AuditResults)
    if not audit:
        return None, None
    held_out, settled = HeldOut.read(run), settled_paths(config.data)
    groups = held_out.groups(len(held_out.validation))
    labels, copies = undecided_numbers(audit, settled)
    apart = [group for group in audit["duplicates"] if group["across_split"]]
    _, across = undecided_numbers({**audit, "duplicates": apart}, settled)
    review = {"mislabels": labels, "duplicates": copies, "across_split": across}
    return accuracy_without_copies(held_out.validation, audit, groups), review
