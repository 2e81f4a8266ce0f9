"""Every row of requests.toml: what `vitft serve` and `vitft label` answer, without a network.

name     what the row shows, unique
to       what is served: a run with `classes` (default) or `labels`, one with a threshold that no
         probability reaches (`unsure`), a `graph`, or the pictures of `label`
key      key of the labelling page, if another one than that of the page
before   requests that come first, with the keys of a row
write    table from paths to texts that are written before the request
ask      method and address
send     name of an image of `CONTENTS` to send; `form`: names of several, in a form
text     body; `times`: how often it is repeated; `json`: body as JSON
headers  further headers, or others than usual
status   (default 200)
says     words of the answer; `never`: words that it does not contain
sends    headers of the answer
table    lines that labels.csv contains afterwards
"""

import json
import shutil
import tomllib
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from safetensors.torch import save_file

from tests.contract.app_client import KEY, AppClient, form, labelled, served
from tests.contract.built.weights import state
from tests.contract.rows import draw, expand
from tests.contract.samples import stdout_of
from tests.support.serving import Reply
from vitft.serve import ServeLimits

ROWS = tomllib.loads(Path(__file__).with_name("requests.toml").read_text())["request"]
KEYS = (__doc__ or "").replace("`", " ").split()
LIMITS = ServeLimits(max_bytes=300_000, queue=4)


def drawn(name: str) -> bytes:
    draw(Path(name))
    return Path(name).read_bytes()


def between(first: str, second: str) -> bytes:
    """Return a file of the mean of two images."""
    Image.blend(Image.open(first), Image.open(second), 0.5).save("between.jpg", quality=95)
    return Path("between.jpg").read_bytes()


def bomb() -> bytes:
    """Return a small PNG file whose header states 20,000 x 20,000 pixels."""
    content = bytearray(drawn("aster/9.png"))
    content[16:24] = (20_000).to_bytes(4, "big") * 2
    content[29:33] = zlib.crc32(content[12:29]).to_bytes(4, "big")
    return bytes(content)


@pytest.fixture(scope="module")
def open_client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], AppClient]]:
    """Return a function that makes a run of a kind and serves it, once for all rows."""
    folder = tmp_path_factory.mktemp("served")
    machine = f"--weights {folder}/tiny.safetensors --cache none --device cpu"
    save_file(state(), folder / "tiny.safetensors")
    rows = []
    for name, cells in {"aster": "1,0", "begonia": "0,1", "clover": "1,1"}.items():
        for path in expand(f"{folder}/data/{name}/{{0-7}}.jpg"):
            draw(Path(path))
            rows.append(f"{path},{cells}\n")
    (folder / "several.csv").write_text("image,rust,scab\n" + "".join(rows))
    commands = {
        "classes": f"finetune --data {folder}/data {machine}",
        "labels": f"finetune --data {folder}/several.csv --set data.label=rust,scab {machine}",
        "graph": f"export --run {folder}/classes --onnx",
    }
    with ExitStack() as stack:

        @cache
        def client(kind: str) -> AppClient:
            name = "classes" if kind == "unsure" else kind
            if kind == "graph":  # it is made from this run
                client("classes")
            if not (folder / name).exists():
                stdout_of(f"{commands[name]} --out {folder}/{name}")
            threshold = 0.999999 * (kind == "unsure")
            return stack.enter_context(served(f"{folder}/{name}", LIMITS, threshold))

        yield client


@pytest.fixture(scope="module")
def contents(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("contents"))
        photo = drawn("aster/8.jpg")
        return {
            "photo.jpg": photo,
            "other.jpg": drawn("clover/8.jpg"),
            "between.jpg": between("aster/8.jpg", "clover/8.jpg"),
            "half.jpg": photo[: len(photo) // 2],
            "text.jpg": b"hello",
            "empty.jpg": b"",
            "scans.jpg": b"\xff\xd8" + b"\xff\xda" * 101,
            "bomb.png": bomb(),
        }


@pytest.fixture
def client(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[AppClient]:
    row = request.node.callspec.params["row"]
    if row.get("to") != "label":
        yield request.getfixturevalue("open_client")(row.get("to", "classes"))
        return
    monkeypatch.chdir(tmp_path)
    save_file(state(), "tiny.safetensors")
    for letter in "bdnr":
        for path in expand(f"leaves/{letter}{{0-5}}.jpg"):
            draw(Path(path))
    Path("leaves/more").mkdir()
    shutil.copy("leaves/b1.jpg", "leaves/more/copy.jpg")
    with labelled("leaves", Path("labels.csv"), weights=Path("tiny.safetensors")) as served_here:
        yield served_here


@pytest.mark.parametrize("row", ROWS, ids=[row["name"] for row in ROWS])
def test_a_request_is_answered_as_its_row_says(
    row: dict[str, Any], client: AppClient, contents: dict[str, bytes]
) -> None:
    assert all(key in KEYS for key in row), "the row has an unknown key"
    for earlier in row.get("before", ()):
        assert ask(client, {"to": row.get("to")} | earlier, contents).status == 200
    for path, text in row.get("write", {}).items():
        Path(path).write_text(text)

    answer = ask(client, row, contents)

    body = answer.body.decode("utf-8", "replace")
    assert answer.status == row.get("status", 200), body
    for words in row.get("says", ()):
        assert words in body.replace('\\"', '"'), body
    for words in row.get("never", ()):
        assert words not in body
    assert row.get("sends", {}).items() <= answer.headers.items()
    for line in row.get("table", ()):
        assert line in Path("labels.csv").read_text()
    check_safety(answer)


def check_safety(answer: Reply) -> None:
    """Check what holds for every answer: no other site reads it, and an error has a reason."""
    safe = {"x-content-type-options": "nosniff", "referrer-policy": "no-referrer"}
    assert safe.items() <= answer.headers.items()
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    assert not any(name.startswith("access-control") for name in answer.headers)
    if answer.status >= 400:
        assert answer.json["error"]
        assert "Traceback" not in answer.json["error"]


def ask(client: AppClient, row: Mapping[str, Any], contents: Mapping[str, bytes]) -> Reply:
    """Send the request of a row."""
    method, address = row["ask"].split(" ", 1)
    body, headers = row.get("text", "").encode("latin-1") * row.get("times", 1), {}
    if "send" in row:
        body, headers = contents[row["send"]], {"content-type": "image/jpeg"}
    elif "form" in row:
        body, headers = form(*((name, contents[name]) for name in row["form"]))
    elif "json" in row:
        body, headers = json.dumps(row["json"]).encode(), {"content-type": "application/json"}
    if row.get("to") == "label":
        address += f"{'&' if '?' in address else '?'}key={row.get('key', KEY)}"
    return client.ask(method, address, body, headers | row.get("headers", {}))
