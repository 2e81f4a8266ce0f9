"""The command `vitft label`: arguments, HTTP, its page in Node, kill -9, training on the labels."""

import csv
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.children import started
from tests.support.limits import HANG_S
from tests.support.serving import Client, Reply
from vitft.cli.label import paths_in_table
from vitft.cli.main import main

NODE = shutil.which("node")
KEY = re.compile(r":(\d+)/\?key=([\w-]+)")


@contextmanager
def labelling(home: Path, *options: str) -> Iterator[tuple[Client, str, "subprocess.Popen[str]"]]:
    """Run the command in `home`, and yield a client, the key and the process."""
    command = [sys.executable, "-m", "vitft", "label", *options, "--port", "0", "--device", "cpu"]
    with started(command, cwd=home, env={**os.environ, "OMP_NUM_THREADS": "1"}) as child:
        assert child.stdout is not None
        found = KEY.search(child.stdout.readline())
        assert found, child.stderr and child.stderr.read()
        yield Client(int(found[1])), found[2], child


@pytest.fixture
def pictures(tmp_path: Path, image_folder: Path) -> Path:
    """Return a folder of 30 pictures without classes, with an unreadable one and a copy."""
    folder = tmp_path / "pictures"
    folder.mkdir()
    for i, path in enumerate(sorted(image_folder.rglob("*.png"))):
        shutil.copy(path, folder / f"{path.parent.name}_{i:02}.png")
    shutil.copy(folder / "red_20.png", folder / "red_copy.png")
    (folder / "broken.png").write_bytes(b"\x89PNG\r\n\x1a\nnothing")
    (folder / "notes.txt").write_text("not a picture")
    return folder


def post(client: Client, key: str, path: str, fields: Any, **headers: str) -> Reply:
    body = fields if isinstance(fields, bytes) else json.dumps(fields).encode()
    headers = {"content_type": "application/json", **headers}
    return client.ask("POST", f"/{path}?key={key}", body, **headers)


def get(client: Client, key: str, path: str, query: str = "") -> Reply:
    return client.ask("GET", f"/{path}?key={key}{query}")


def colour(state: dict[str, Any]) -> str:
    return str(state["question"]["path"]).partition("_")[0]


def rows(table: Path) -> list[dict[str, str]]:
    with table.open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.long
def test_labels_survive_kill_9_and_train_a_classifier(
    tmp_path: Path, pictures: Path, tiny_weights: Path
) -> None:
    before = {path.name: path.read_bytes() for path in pictures.iterdir()}
    options = ["pictures", "--weights", str(tiny_weights)]
    with labelling(tmp_path, *options) as (client, key, child):
        state = get(client, key, "state").json
        assert (state["pictures"], state["unreadable"], state["classes"]) == (30, 1, [])
        for _ in range(12):
            label = colour(state)
            state = post(
                client, key, "answer", {"picture": state["question"]["picture"], "label": label}
            ).json
        child.kill()
    assert len(rows(tmp_path / "labels.csv")) >= 12

    with labelling(tmp_path, *options) as (client, key, child):
        again = get(client, key, "state").json
        assert again["answered"] == 12
        assert again["question"]["picture"] == state["question"]["picture"]
        while again["question"]:
            body = {"picture": again["question"]["picture"], "label": colour(again)}
            again = post(client, key, "answer", body).json
        child.terminate()
        assert child.stdout is not None
        rest = child.stdout.read()
        assert child.wait() == 143
    assert "30 labelled pictures in labels.csv" in rest
    assert "vitft finetune --data labels.csv --weights" in rest
    assert {row["path"] for row in rows(tmp_path / "labels.csv")} == {
        f"pictures/{name}" for name in before if name.endswith(".png") and name != "broken.png"
    }
    assert {path.name: path.read_bytes() for path in pictures.iterdir()} == before

    run = ["--weights", str(tiny_weights), "--out", str(tmp_path / "run"), "--device", "cpu"]
    assert main(["finetune", "--data", str(tmp_path / "labels.csv"), *run]) == 0
    with (tmp_path / "run" / "split.csv").open(newline="") as file:
        assert len(list(csv.DictReader(file))) == 31

    with labelling(tmp_path, "pictures", "--run", "run", "--out", "more.csv") as (client, key, _):
        state = get(client, key, "state").json
        assert [one["name"] for one in state["classes"]] == ["blue", "green", "red"]


@pytest.mark.parametrize(
    ("root", "table", "expected"),
    [
        ("photos", "labels.csv", ("photos/", True)),
        ("data/photos", "data/labels.csv", ("photos/", True)),
        ("photos", "photos/labels.csv", ("", True)),
        ("photos", "out/labels.csv", ("", False)),
        ("/somewhere", "labels.csv", ("", False)),
        ("photos/../photos", "./labels.csv", ("photos/", True)),
    ],
)
def test_paths_in_the_table_are_relative_to_it_where_possible(
    root: str, table: str, expected: tuple[str, bool]
) -> None:
    assert paths_in_table(Path(root), Path(table)) == expected


PAGE = """
const [base, ...keys] = process.argv.slice(2), request = globalThis.fetch, elements = {};
class Element {
  constructor(tag) {
    Object.assign(this, { tagName: tag.toUpperCase(), own: "", children: [], style: {} });
    Object.assign(this, { events: {}, attributes: {}, className: "", value: "", hidden: false });
  }
  get textContent() { return this.own + this.children.map((child) => child.textContent).join(" "); }
  set textContent(text) { this.children = []; this.own = text; }
  append(...nodes) { this.children.push(...nodes); }
  replaceChildren(...nodes) { this.own = ""; this.children = nodes; }
  addEventListener(name, react) { this.events[name] = react; }
  setAttribute(name, value) { this.attributes[name] = value; }
  focus() {}
  blur() {}
}
const document = new Element("document"), pending = new Set();
document.createElement = (tag) => new Element(tag);
document.getElementById = (id) => (elements[id] ??= new Element("p"));
const fetch = (path, options) => {
  const reply = request(new URL(path, base), options);
  pending.add(reply);
  return reply.finally(() => pending.delete(reply));
};
const settled = async () => {
  for (let calm = 0; calm < 5; calm += pending.size ? -calm : 1)
    await new Promise((wake) => setTimeout(wake, 20));
};
const html = await (await request(base)).text();
const script = html.match(/<script>([^]*)<\\/script>/)[1];
const names = ["document", "fetch", "location", "Image", "innerWidth", "devicePixelRatio"];
const values = [document, fetch, { search: new URL(base).search }, class {}, 390, 3];
new Function(...names, script)(...values);
await settled();
const shown = [];
const target = { tagName: "BODY" };
for (const key of keys) {
  if (key.startsWith("+")) {
    document.getElementById("new-name").value = key.slice(1);
    elements.new.events.submit({ preventDefault() {} });
  } else if (key.startsWith("#")) {
    elements.tiles.children[Number(key.slice(1))].children[0].events.click();
  } else {
    document.events.keydown({ key, target, preventDefault() {} });
  }
  await settled();
  shown.push({
    name: elements.name.textContent, problem: elements.problem.own,
    classes: elements.classes.children.map((one) => one.textContent),
    tiles: elements.tiles?.children.map((one) => one.children[0].attributes["aria-pressed"]) ?? [],
    accept: elements.accept.hidden ? "" : elements.accept.textContent,
    status: elements.status?.own ?? "", accuracy: elements.accuracy.textContent,
    progress: elements.progress.textContent,
  });
}
console.log(JSON.stringify(shown));
process.exit(0);
"""
"""Program that opens the page in a minimal DOM and prints what it shows after each key."""


def pressed(home: Path, client: Client, key: str, *keys: str) -> list[dict[str, Any]]:
    program = home / "page.mjs"
    program.write_text(PAGE)
    done = subprocess.run(
        [str(NODE), str(program), f"http://127.0.0.1:{client.port}/?key={key}", *keys],
        capture_output=True,
        text=True,
        timeout=HANG_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return list(json.loads(done.stdout))


@pytest.mark.skipif(NODE is None, reason="node is not installed")
def test_the_page_labels_by_keys(tmp_path: Path, pictures: Path, tiny_weights: Path) -> None:
    table = tmp_path / "labels.csv"
    options = ["pictures", "--weights", str(tiny_weights), "--classes", "red,green"]
    with labelling(tmp_path, *options) as (client, key, _):
        shown = pressed(tmp_path, client, key, "1", "2", "+<b>blue</b>", "s", "u", "u", "Q")
        first = rows(table)
        group = pressed(tmp_path, client, key, "g", "1", "#0", "Enter")
        measured = pressed(tmp_path, client, key, "m", "1")

    assert shown[0]["classes"] == ["1 red 1", "2 green 0"]
    assert shown[2]["classes"][2].startswith("3 <b>blue</b>")
    assert shown[3]["progress"].replace("\xa0", " ") == (
        "3 pictures of 30 labelled, 1 skipped, 1 file unreadable."
    )
    assert shown[3]["status"] == f"Skipped. Next picture: {shown[3]['name']}"
    assert [row["label"] for row in first] == ["red", "green"]  # two undone: skip and new class
    assert shown[5]["name"] == shown[2]["name"] or shown[5]["name"] == shown[1]["name"]
    assert not any(step["problem"] for step in shown)
    assert group[1]["tiles"][0] == "true"
    assert group[2]["tiles"][0] == "false"
    assert group[2]["accept"].startswith(f"{len(group[2]['tiles']) - 1}")
    confirmed = [row for row in rows(table) if row["chosen"] == "confirmed"]
    assert len({row["path"] for row in confirmed if "copy" not in row["path"]}) in (
        len(group[2]["tiles"]) - 1,
        len(group[2]["tiles"]) - 2,
    )
    assert rows(table)[-1]["chosen"] == "audit"
    assert "not measured" not in measured[-1]["accuracy"]
    assert "not a random sample" in measured[-1]["accuracy"]
