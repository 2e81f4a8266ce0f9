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

from tests.serve.test_serve import make_predictor
from tests.support.limits import HANG_S
from tests.support.reference_run import FOREIGN, make_reference_run
from tests.support.run_files import add_test_results, make_run
from tests.support.serving import Client, serving
from vitft.data.fingerprint import BLANK_REMARK
from vitft.metrics.chance import chance_level
from vitft.metrics.results import read_results
from vitft.models.vit import VisionTransformer
from vitft.predict.postprocess import Postprocess
from vitft.predict.torch_engine import Predictor

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
    with subprocess.Popen(
        [sys.executable, "-m", "vitft", "serve", *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    ) as child:
        try:
            assert child.stdout is not None
            found = re.search(r":(\d+)/", child.stdout.readline())
            assert found, child.poll()
            yield Client(int(found[1]))
        finally:
            child.terminate()


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


def test_a_server_with_a_threshold_notes_predictions_that_are_not_sure(
    flagging: Client, tmp_path: Path
) -> None:
    images = [(name, (tmp_path / name).read_bytes()) for name in ("0.png", "foreign.png")]

    rows = flagging.form("/predict", *images).json["results"]

    assert [row["notes"] for row in rows] == [["not sure"], ["not sure", FOREIGN, BLANK_REMARK]]


@needs_node
def test_the_page_shows_the_notes_on_each_image(flagging: Client, tmp_path: Path) -> None:
    page = opened(flagging, tmp_path, tmp_path / "0.png", tmp_path / "foreign.png")

    assert page["notes"] == [["not sure"], [f"not sure; {FOREIGN}; {BLANK_REMARK}"]]
    assert page["known"] == "Run run distinguishes 3 classes."


@needs_node
def test_the_page_says_when_the_model_does_not_flag_foreign_images(
    tmp_path: Path, tiny_vit: VisionTransformer
) -> None:
    make_reference_run(tmp_path, tiny_vit)
    with serving(make_predictor()) as client:
        page = opened(client, tmp_path, tmp_path / "foreign.png")

    assert page["notes"] == [[BLANK_REMARK]]
    assert page["flags"].startswith("Images that are unlike the training images are not flagged")


def poor_results(folder: Path, **changed: Any) -> None:
    """Write the results and settings of a run at chance level beside its checkpoint."""
    source = make_run(folder / "source", ("blue", "green", "red"))
    results = json.loads((source / "eval.json").read_text())
    results |= {"top1": 0.25, "top1_interval": [0.09, 0.53], "majority": 1 / 3}
    results |= {"balanced_interval": [0.09, 0.53], **changed}
    (folder / "run" / "eval.json").write_text(json.dumps(results))
    shutil.copy(source / "config.toml", folder / "run")


@needs_node
@pytest.mark.parametrize(
    ("changed", "clause"),
    [
        pytest.param({}, "is not measurably better than guessing", id="several classes"),
        pytest.param(
            {"confusion": [[0, 4, 0], [0, 4, 0], [0, 4, 0]]},
            "always predicts green",
            id="always one class",
        ),
    ],
)
def test_the_page_does_not_claim_that_a_model_at_chance_level_distinguishes_classes(
    tmp_path: Path, tiny_vit: VisionTransformer, changed: dict[str, Any], clause: str
) -> None:
    run = make_reference_run(tmp_path, tiny_vit)
    poor_results(tmp_path, **changed)
    results = read_results(run / "eval.json")
    assert results is not None
    assert chance_level(results) == clause  # as in the log and the report
    predictor = Predictor.from_run(str(run), device="cpu")
    postprocess = Postprocess.for_run(str(run), predictor, top_k=3)
    with serving(predictor, postprocess=postprocess) as client:
        page = opened(client, tmp_path, tmp_path / "0.png")

    assert page["known"] == (
        f"Run run was trained to distinguish 3 classes, but it {clause}; "
        "accuracy 25.0% on 12 validation images."
    )
    assert "accuracy on 12 validation images; 95% interval: 9.0 to 53.0%" in page["score"]
    assert "mark at 33.3%: always the most frequent class" in page["score"]
    assert "weights demo" in page["facts"]
    assert page["caution"] == f"Do not rely on this model: it {clause}."


@needs_node
def test_the_page_and_the_labels_state_the_accuracy_on_test_images(
    tmp_path: Path, tiny_vit: VisionTransformer
) -> None:
    run = make_reference_run(tmp_path, tiny_vit)
    poor_results(tmp_path)
    add_test_results(run)
    predictor = Predictor.from_run(str(run), device="cpu")
    postprocess = Postprocess.for_run(str(run), predictor, top_k=3)
    with serving(predictor, postprocess=postprocess) as client:
        page = opened(client, tmp_path, tmp_path / "0.png")
        facts = client.ask("GET", "/labels").json

    assert "test: 88.0% (83.0 to 92.0%) on 240 images, evaluated once" in page["score"]
    assert (facts["tested"], facts["tested_images"]) == (0.88, 240)
    assert facts["tested_interval"] == [0.83, 0.92]


@needs_node
def test_the_page_states_the_cross_validated_accuracy_as_the_report_does(
    tmp_path: Path, tiny_vit: VisionTransformer
) -> None:
    run = make_reference_run(tmp_path, tiny_vit)
    poor_results(tmp_path, top1=0.5, top1_interval=[0.25, 0.75])
    results = json.loads((run / "eval.json").read_text())
    more = {"images": 60, "of": 60, "top1": 0.75, "top1_interval": [0.6, 0.85], "curve": []}
    results["cross_validation"] = {**more, "gain_from_twice": None, "weak_spots": []}
    results["calibration"]["cross_validated"] = 40
    (run / "eval.json").write_text(json.dumps({**results, "best_epoch": 1}))
    predictor = Predictor.from_run(str(run), device="cpu")
    postprocess = Postprocess.for_run(str(run), predictor, top_k=3)
    with serving(predictor, postprocess=postprocess) as client:
        page = opened(client, tmp_path, tmp_path / "0.png")

    assert "cross-validated on 60 images: 75.0% (60.0 to 85.0%)" in page["score"]
