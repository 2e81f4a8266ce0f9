"""Redaction of passwords and tokens from URLs in anything that is shown or written."""

import re

_LOGIN = re.compile(
    r"([a-z][a-z0-9+.-]*://)(?:[^\s/?#]*|[^\s/?#@]*:(?!\d*[/?#])[^\s@]*)@", re.IGNORECASE
)
"""User name and password before the host. The password may contain a slash: if a colon is
not followed by a port number, the text after it must be a password."""
_PARAMETER = re.compile(
    r"([?&;](?:[\w.-]*(?:token|secret|passw(?:or)?d|signature|credential|api[_-]?key)|sig|pwd)=)"
    r"[^&#;\s'\"]+",
    re.IGNORECASE,
)
"""Query parameters that contain secrets, such as the signature of a signed URL."""


def redacted(text: str) -> str:
    """Return text with passwords, user names and tokens in URLs replaced by `***`."""
    if "://" not in text:
        return text
    return _PARAMETER.sub(r"\1***", _LOGIN.sub(r"\1***@", text))
