"""Thumbnails of the validation images, as data URIs for a page of limited size."""

from collections.abc import Sequence

from vitft.report.run_files import Run

BUDGET = 2_000_000
"""Characters of embedded thumbnails; a page stays below 3 MB."""


class Thumbnails:
    """Provides thumbnails that the runs saved, until the page has reached its size limit."""

    def __init__(self, runs: Sequence[Run]) -> None:
        self.runs = runs
        self.budget = BUDGET

    def get(self, sha256: str, *, attention: bool = False) -> str:
        """Return the thumbnail of the first run that has one; empty beyond the limit."""
        if self.budget <= 0:
            return ""
        found = (run.thumbnail(sha256, attention=attention) for run in self.runs)
        uri = next((uri for uri in found if uri), "")
        self.budget -= len(uri)
        return uri

    def of_path(self, path: str) -> str:
        """Return the thumbnail of an image of the first run's split."""
        row = self.runs[0].by_path.get(path)
        return self.get(row.sha256) if row else ""
