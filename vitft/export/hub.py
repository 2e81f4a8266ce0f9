"""Upload of an exported folder to a hub repository, in one commit.

Earlier content of the repository stays in its history. Large files are uploaded through LFS
instead of Xet (see `pretrained.hub.plain_http`).
"""

import contextlib
import importlib
from collections.abc import Iterator
from importlib.metadata import version

from vitft.export.job import Exported
from vitft.export.plan import ExportPlan
from vitft.models.pretrained.hub import describe_failure, http_error, plain_http, status_of
from vitft.system.errors import WeightsError
from vitft.system.text import shell_quote


def push(done: Exported, plan: ExportPlan) -> str:
    """Upload an exported folder and return the URL of the commit.

    Raises:
        WeightsError: The hub rejected the upload or could not be reached; the folder is kept.
    """
    from huggingface_hub import HfApi

    api = HfApi()
    try:
        with plain_http(), _hidden_progress_bars():
            api.create_repo(plan.repo, private=plan.private or None, exist_ok=True)
            if plan.revision:
                api.create_branch(plan.repo, branch=plan.revision, exist_ok=True)
            commit = api.upload_folder(
                repo_id=plan.repo,
                folder_path=done.folder,
                revision=plan.revision or None,
                commit_message=f"Upload by vitft {version('vitft')}",
            )
    except (http_error(), OSError, RuntimeError, ValueError) as error:
        status = status_of(error)
        cause = error if status or error.__cause__ is None else error.__cause__
        reason = describe_failure(cause if isinstance(cause, Exception) else error)
        owner, folder = plan.repo.split("/")[0], shell_quote(str(done.folder))
        raise WeightsError(
            f"the upload to {plan.repo} failed: {reason}; the export is in {done.folder}",
            fix=f"set HF_TOKEN to a token with write access to {owner}"
            if status in (401, 403)
            else f"upload it later: hf upload {plan.repo} {folder}",
        ) from error
    return str(commit.commit_url)


@contextlib.contextmanager
def _hidden_progress_bars() -> Iterator[None]:
    """Hide the progress bars of huggingface_hub inside the `with` block."""
    bars = importlib.import_module("huggingface_hub.utils")
    if bars.are_progress_bars_disabled():
        yield
        return
    bars.disable_progress_bars()
    try:
        yield
    finally:
        bars.enable_progress_bars()
