"""Notes on predictions: from a server with --threshold, and on its page, run by Node."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.children import started
from tests.support.limits import HANG_S
from tests.support.reference_run import FOREIGN, make_reference_run
from tests.support.serving import Client
from vitft.data import BLANK_REMARK
from vitft.models import VisionTransformer

NODE = shutil.which("node")
PAGE = """
import { readFile } from "node:fs/promises";

const [base, ...paths] = process.argv.slice(2), request = globalThis.fetch, elements = {};
class Element {
  constructor(tag) {
    Object.assign(this, { tag, own: "", children: [], dataset: {}, style: {}, events: {} });
    this.classList = { add() {}, remove() {} };
  }
  get textContent() { return this.own + this.children.map((child) => child.textContent).join(" "); }
  set textContent(text) { this.children = []; this.own = text; }
  append(...nodes) { this.children.push(...nodes); }
  replaceChildren(...nodes) { this.own = ""; this.children = nodes; }
  addEventListener(name, react) { this.events[name] = react; }
  setAttribute() {}
  remove() {}
  focus() {}
  *below() { for (const child of this.children) { yield child; yield* child.below(); } }
  querySelectorAll(tagAndClass) {
    const [tag, name] = tagAndClass.split(".");
    const fits = (each) => each.tag === tag && (!name || each.className === name);
    return [...this.below()].filter(fits);
  }
  querySelector(tagAndClass) { return this.querySelectorAll(tagAndClass)[0] ?? null; }
}
const document = new Element("document");
document.body = new Element("body");
document.createElement = (tag) => new Element(tag);
document.getElementById = (id) => (elements[id] ??= new Element("p"));
const html = await (await request(base)).text();
const main = document.getElementById("main");
main.dataset.maxBytes = html.match(/data-max-bytes="(\\d+)"/)[1];
main.dataset.explains = html.match(/data-explains="(\\w+)"/)[1];
const fetch = (path, options) => request(new URL(path, base), options);
const script = html.match(/<script>([^]*)<\\/script>/)[1];
new Function("document", "fetch", "location", script)(document, fetch, { href: base });
const files = document.getElementById("files"), cards = document.getElementById("cards");
files.files = await Promise.all(paths.map(async (path) => new File([await readFile(path)], path)));
files.events.change();
const isDone = () => elements.known?.own
  && cards.children.every((card) => card.querySelector("ol.classes"));
while (!isDone()) await new Promise((wake) => setTimeout(wake, 20));
const notes = cards.children.map(
  (card) => card.querySelectorAll("p.notes").map((note) => note.textContent));
const shown = (id) => elements[id]?.textContent ?? "";
const [known, flags, score, facts] = ["known", "notes", "score", "facts"].map(shown);
const caution = elements.caution?.own ?? "";
console.log(JSON.stringify({ known, notes, flags, score, facts, caution }));
process.exit(0);
"""
"""Program that opens the page of a server in a minimal DOM and chooses files."""
needs_node = pytest.mark.skipif(NODE is None, reason="node is not installed")


@pytest.fixture
def flagging(tmp_path: Path, tiny_vit: VisionTransformer) -> Iterator[Client]:
    """The command `vitft serve --threshold 0.99` for a run that flags foreign images."""
    run = make_reference_run(tmp_path, tiny_vit)
    options = ["--run", str(run), "--port", "0", "--threshold", "0.99", "--device", "cpu"]
    command = [sys.executable, "-m", "vitft", "serve", *options]
    with started(command, stderr=None, env={**os.environ, "OMP_NUM_THREADS": "1"}) as child:
        assert child.stdout is not None
        found = re.search(r":(\d+)/", child.stdout.readline())
        assert found, child.poll()
        yield Client(int(found[1]))


def opened(client: Client, folder: Path, *files: Path) -> dict[str, Any]:
    """Return what the page of a server shows on the model and, for each file, the notes."""
    program = folder / "page.mjs"
    program.write_text(PAGE)
    done = subprocess.run(
        [str(NODE), str(program), f"http://127.0.0.1:{client.port}/", *map(str, files)],
        capture_output=True,
        text=True,
        timeout=HANG_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


@needs_node
def test_the_page_shows_the_notes_on_each_image(flagging: Client, tmp_path: Path) -> None:
    page = opened(flagging, tmp_path, tmp_path / "0.png", tmp_path / "foreign.png")

    assert page["notes"] == [["not sure"], [f"not sure; {FOREIGN}; {BLANK_REMARK}"]]
    assert page["known"] == "Run run distinguishes 3 classes."
