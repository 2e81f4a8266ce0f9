"""Removal of passwords and tokens from URLs in anything that is shown or written."""

import re

LOGIN = re.compile(
    r"([a-z][a-z0-9+.-]*://)(?:[^\s/?#]*|[^\s/?#@]*:(?!\d*[/?#])[^\s@]*)@", re.IGNORECASE
)
"""User name and password before the host. A password that contains a slash is found as well,
because only a port number can follow the colon of a host."""
PARAMETER = re.compile(
    r"([?&;](?:[\w.-]*(?:token|secret|passw(?:or)?d|signature|credential|api[_-]?key)|sig|pwd)=)"
    r"[^&#;\s'\"]+",
    re.IGNORECASE,
)
"""Values of query parameters such as those of signed URLs."""


def redacted(text: str) -> str:
    """Return text in which `***` replaces passwords, user names and tokens in URLs."""
    if "://" not in text:
        return text
    return PARAMETER.sub(r"\1***", LOGIN.sub(r"\1***@", text))
