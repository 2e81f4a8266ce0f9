"""The screen at the end of `vitft finetune`: results, findings to decide on, next commands."""

import os
from dataclasses import replace
from pathlib import Path

from vitft.cli import output
from vitft.config.run import Config
from vitft.data.fixes import settled_paths
from vitft.messages.results import chance_remedy, detail_lines, result_rows
from vitft.metrics.results import AuditResults, RunResults
from vitft.predict.postprocess import run_results
from vitft.predict.validation import HeldOut, accuracy_without_copies
from vitft.report.decisions import undecided_findings
from vitft.report.run_page import report_of_new_run
from vitft.system.console import LogHandler
from vitft.system.rundir import read_run_json
from vitft.system.text import labelled, shell_join, shell_quote

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
    audit = read_run_json(run / "audit.json", AuditResults)
    if audit:
        held_out = HeldOut.read(run)
        groups = held_out.groups(len(held_out.validation))
        if known := accuracy_without_copies(held_out.validation, audit, groups):
            rows.append(("Copies", f"accuracy {known}"))
        if undecided := undecided_findings(audit, settled_paths(config.data)):
            rows.append(("Review", f"{undecided}, in the report"))
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


def print_json(run: Path, found: RunResults | None, *, status: str) -> None:
    """Write the report of a run, and print its results as one JSON object (docs/schemas)."""
    if os.environ.get("RANK", "0") != "0":
        return
    page = report_of_new_run(run) if found else None
    fields = {
        "run": str(run),
        "status": status,
        "results": replace(run_results(run, found), name=run.name).to_json() if found else None,
        "report": page and str(page),
    }
    output.as_json(fields)
