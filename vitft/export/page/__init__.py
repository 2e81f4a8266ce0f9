"""Page of `export --html`: a model, its engine in JavaScript and a user interface in one file.

The engine (`resize.js`, `weights.js`, `model.js`) reproduces Pillow's resizing and
`models.numpy_vit`, and runs in a worker (`worker.js`). The content security policy forbids every
connection and every script except the page's own, which is allowed by its digest. Facts about the
model, such as class names, are in a JSON block; the script displays them as text.
"""

import base64
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vitft.report.cards import cards_script, cards_style, read_asset
from vitft.report.html import digest_source

PAGE_FOLDER = Path(__file__).parent
ENGINE = ("resize.js", "weights.js", "model.js", "worker.js")
PART_BYTES = 3 * 2**20
"""Maximum number of bytes in one element of the page; browsers limit the length of text nodes."""


def exported_page(meta: Mapping[str, Any], data: bytes) -> str:
    """Return the page for a model, given its weights and the facts that the scripts read."""
    style, script = cards_style() + read_asset(PAGE_FOLDER, "page.css"), cards_script()
    script += read_asset(PAGE_FOLDER, "page.js")
    policy = (
        f"default-src 'none'; style-src {digest_source(style)}; "
        f"script-src {digest_source(script)}; worker-src blob:; "
        "img-src blob: data:; connect-src 'none'; base-uri 'none'; "
        "form-action 'none'; trusted-types vitft-worker; require-trusted-types-for 'script'"
    )
    parts = {
        "policy": policy,
        "style": style,
        "script": script,
        "meta": json.dumps(meta, allow_nan=False).replace("<", "\\u003c"),  # cannot end the block
        "engine": engine(),
        "weights": "\n".join(
            '<script class="weights" type="application/octet-stream">'
            f"{base64.b64encode(data[i : i + PART_BYTES]).decode()}</script>"
            for i in range(0, len(data), PART_BYTES)
        ),
    }
    return re.sub(r"\{(\w+)\}", lambda found: parts[found[1]], read_asset(PAGE_FOLDER, "page.html"))


def engine() -> str:
    """Return the script of the worker."""
    return "".join(read_asset(PAGE_FOLDER, name) for name in ENGINE)


def read_page(page: str) -> tuple[dict[str, Any], bytes]:
    """Return the facts and the weights of a page written by `exported_page`."""
    meta = re.search(r'<script id="meta" type="application/json">(.*?)</script>', page, re.DOTALL)
    assert meta is not None
    parts = re.findall(
        r'<script class="weights" type="application/octet-stream">(.*?)</script>', page
    )
    return json.loads(meta[1]), b"".join(base64.b64decode(part) for part in parts)
