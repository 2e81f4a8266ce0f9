"""What the documentation site changes in the pages, which are written for the repository."""

import re

OUTSIDE = re.compile(
    r"\[([^\]]+)\]\((?:\.\./)+((?:benchmarks|maintainers|recipes|weights|vitft|tests)[^)#]*)[^)]*\)"
)


def on_page_markdown(markdown: str, **_: object) -> str:
    """Replace links to files of the repository that are not on the site by their paths."""
    return OUTSIDE.sub(r"\1 (`\2`)", markdown)
