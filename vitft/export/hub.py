"""A folder pushed to a repository of the hub, in one commit.

What the repository held before stays in its history. Large files go by LFS over plain HTTP, for
the reason that `pretrained.fetch`, where reading is, gives for it.
"""

import contextlib
import importlib
import shlex
from collections.abc import Iterator
from importlib.metadata import version

from vitft.export.job import Exported
from vitft.export.plan import Order
from vitft.models.pretrained.hub import failure_reason, http_error, plain_http, status_of
from vitft.system.errors import VitftError, WeightsError


def push(done: Exported, order: Order) -> str:
    """Upload an exported folder; returns the address of the commit.

    Raises:
        WeightsError: The hub refused it or could not be reached; the folder is still there.
    """
    from huggingface_hub import HfApi

    api = HfApi()
    try:
        with plain_http(), without_bars():
            api.create_repo(order.repo, private=order.private or None, exist_ok=True)
            if order.revision:
                api.create_branch(order.repo, branch=order.revision, exist_ok=True)
            commit = api.upload_folder(
                repo_id=order.repo,
                folder_path=done.folder,
                revision=order.revision or None,
                commit_message=f"Upload by vitft {version('vitft')}",
            )
    except (http_error(), OSError, RuntimeError, ValueError) as error:
        raise refused(done, order, error) from error
    return str(commit.commit_url)


def refused(done: Exported, order: Order, error: Exception) -> VitftError:
    """The error of a push that did not come to an end."""
    cause = error if status_of(error) or error.__cause__ is None else error.__cause__
    reason = failure_reason(cause if isinstance(cause, Exception) else error)
    problem = f"the push to {order.repo} failed: {reason}; the export itself is in {done.folder}"
    if status_of(error) in (401, 403):
        return WeightsError(
            problem, fix=f"set HF_TOKEN to a token that may write to {order.repo.split('/')[0]}"
        )
    folder = shlex.quote(str(done.folder))
    return WeightsError(problem, fix=f"push it again later: hf upload {order.repo} {folder}")


@contextlib.contextmanager
def without_bars() -> Iterator[None]:
    """Without the library's own progress bars."""
    bars = importlib.import_module("huggingface_hub.utils")
    were_off = bars.are_progress_bars_disabled()
    if not were_off:
        bars.disable_progress_bars()
    try:
        yield
    finally:
        if not were_off:
            bars.enable_progress_bars()
