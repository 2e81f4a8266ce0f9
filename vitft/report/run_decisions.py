"""Decisions on the page of a run: its findings, earlier decisions and the next commands."""

from pathlib import Path

from vitft.data.fixes import Fix, read_fixes
from vitft.data.proposals import propose_fixes
from vitft.report.decisions import DecisionPart, make_decisions
from vitft.report.reproduce import command_of
from vitft.report.run_files import Run, Thumbnails
from vitft.system.errors import VitftError
from vitft.system.text import shell_quote

DOWNLOADED = "~/Downloads/fixes.csv"
"""Path where browsers usually save the table of decisions."""
OTHER_PATH = (
    "Change the path if your browser saved it elsewhere, or under another name such as "
    "fixes (1).csv."
)


def run_decisions(run: Run, thumbnails: Thumbnails) -> DecisionPart | None:
    """Return the findings of a run with the controls to decide on them, or None without findings.

    The saved table includes the fixes that the run applied, because a run applies only one table.
    """
    if not run.audit:
        return None
    former, warning = former_fixes(run)
    return make_decisions(
        run.audit,
        propose_fixes(run.audit),
        classes=run.classes,
        labels={row.path: run.split.classes[row.label] for row in run.rows},
        thumbnail=thumbnails.of_path,
        several=run.several,
        former=former,
        warning=warning,
        steps=_next_steps(run),
    )


def former_fixes(run: Run) -> tuple[list[Fix], str]:
    """Return the fixes that a run applied, or a warning if their table is changed or missing."""
    table = str(run.setting("data", "fixes") or "")
    if not table:
        return [], ""
    try:
        return read_fixes(Path(table), str(run.setting("data", "fixes_digest") or "")), ""
    except VitftError as error:
        return [], (
            f"This run applied the decisions in {table}, which cannot be shown here "
            f"({error.problem}). Copy those that still hold into the saved table."
        )


def _next_steps(run: Run) -> list[tuple[str, str]]:
    """Return the commands that repeat a run with the saved decisions and compare both runs."""
    data = {
        key: value
        for key, value in run.config.get("data", {}).items()
        if key not in ("fixes", "fixes_digest", "like")
    }
    command = command_of({**run.config, "data": data})
    if not command:
        return []
    name = shell_quote(str(run.path))
    is_drawn = data.get("split") == "content" and not run.audit.get("own_split", False)
    is_drawn &= not data.get("group_duplicates")
    near = any(group["kind"] == "near" for group in run.audit.get("duplicates", []))
    together = " --group-duplicates" * (near and is_drawn)
    like = f" --like {name}" if data.get("split") == "content" else ""
    return [
        (
            f"Repeat the run with the table. {OTHER_PATH}",
            f"{command} --fixes {DOWNLOADED}{together}{like}",
        ),
        ("Compare both runs.", f"vitft compare {name} runs/latest"),
    ]
