"""Small runs of every kind, and all that they write, print and answer, by documented schema."""

import contextlib
import csv
import io
import json
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from PIL import Image

from tests.contract.app_client import KEY, form, labelled, served
from tests.contract.rows import draw, expand
from vitft.cli.main import main

LABELS = {"d": "1,0", "r": "0,1", "b": "1,1", "n": "0,0"}


class Samples:
    """Values by the schema that they must have, made in steps when they are needed."""

    def __init__(self, weights: Path) -> None:
        self.found: dict[str, list[Any]] = {}
        self.steps = make_samples(self, weights)

    def of(self, schema: str) -> list[Any]:
        """Return all values of a schema; each step makes all those of its schemas."""
        while schema not in self.found:
            next(self.steps)
        return self.found[schema]

    def add(self, schema: str, *values: Any) -> None:
        """Add values of a schema."""
        self.found.setdefault(schema, []).extend(values)

    def add_files(self, folder: Path, schemas: Mapping[str, str]) -> None:
        """Add the files of a folder: JSON, lines of JSON, or rows of a table with text cells."""
        for name, schema in schemas.items():
            self.add(schema, *values_of(name, (folder / name).read_text(encoding="utf-8-sig")))


RUN_FILES = {
    "eval.json": "eval",
    "audit.json": "audit",
    "environment.json": "environment",
    "class_indices.json": "class_indices",
    "metrics.jsonl": "metrics",
    "split.csv": "split",
}


def values_of(name: str, text: str) -> list[Any]:
    """Return the values in a file: an element for each line or row, or the whole value."""
    if name.endswith(".csv"):
        return list(csv.DictReader(io.StringIO(text)))
    if name.endswith(".jsonl"):
        return [json.loads(line) for line in text.splitlines()]
    return [json.loads(text)]


def stdout_of(line: str, code: int = 0) -> str:
    """Run a command and return what it prints to stdout."""
    out, notes = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(notes):
        assert main(line.split()) == code, notes.getvalue()
    return out.getvalue()


def draw_data() -> None:
    """Draw photos with parts, copies and files that are no images, and leaves in groups."""
    for part, numbers in (("train", "{0-7}"), ("val", "{8-11}"), ("test", "{12-15}")):
        for name in ("aster", "begonia", "clover"):
            for path in expand(f"plants/{part}/{name}/{numbers}.jpg"):
                draw(Path(path))
    shutil.copy("plants/train/aster/0.jpg", "plants/train/begonia/8.jpg")
    shutil.copy("plants/train/aster/1.jpg", "plants/test/aster/copy.jpg")
    draw(Path("plants/train/aster/clover.jpg"))
    for part in ("train", "test"):
        Path(f"plants/{part}/aster/broken.jpg").write_bytes(b"\xff\xd8broken")
    Image.new("RGB", (400, 3), "red").save("plants/train/aster/line.png")
    Path("plants/train/notes.txt").write_text("x")
    for letter in LABELS:
        for path in expand(f"leaves/{letter}{{0-5}}.jpg"):
            draw(Path(path))
    rows = [
        (f"leaves/{letter}{i}.jpg", letter, f"{letter}{i // 2}")
        for letter in LABELS
        for i in range(6)
    ]
    several = [f"{path},{LABELS[letter]},{group}\n" for path, letter, group in rows]
    Path("several.csv").write_text("image,rust,scab,patient\n" + "".join(several))
    two = [row for row in rows if row[1] in "dr"]
    one = [f"{path},{letter},{group}\n" for path, letter, group in two]
    Path("groups.csv").write_text("path,label,patient\n" + "".join(one))


def make_samples(samples: Samples, weights: Path) -> Iterator[None]:
    """Make small runs in the current folder, step by step, and add all that they write."""
    draw_data()
    machine = f" --weights {weights} --cache none --device cpu"
    parts = "--data plants --set data.allow_bad=true"
    for out, line in {
        "solved": f"finetune {parts}",
        "several": "finetune --data several.csv --set data.label=rust,scab",
        "groups": "finetune --data groups.csv",
        "trained": "finetune --data groups.csv --set data.group=none --train all --epochs 1",
        "budget": f"finetune {parts} --budget 30s",
    }.items():
        stdout_of(f"{line} --out {out}{machine}")
        samples.add_files(Path(out), RUN_FILES)
    line = "finetune --data groups.csv --set data.split=random --weights trained --out again"
    stdout_of(f"{line} --cache none --device cpu")
    samples.add_files(Path("again"), RUN_FILES)
    yield
    checked = json.loads(stdout_of(f"check plants --format json --out checked{machine}"))
    several = stdout_of("check several.csv --set data.label=rust,scab --format json --out more")
    samples.add("check", checked, json.loads(several))
    samples.add_files(Path("checked"), {"fixes.csv": "fix"})
    stdout_of(f"finetune {parts} --fixes checked/fixes.csv --like solved --out fixed{machine}")
    samples.add("comparison", json.loads(stdout_of("compare solved fixed --format json")))
    samples.add("recipes", json.loads(stdout_of("recipes --format json")))
    for options in ("", " --size tiny"):
        samples.add("weights", json.loads(stdout_of(f"weights list --format json{options}")))
    samples.add("error", json.loads(stdout_of("check nowhere --format json", 3)))
    line = f"finetune --data groups.csv --out printed --format json{machine}"
    samples.add("finetune", json.loads(stdout_of(line)))
    yield
    add_answers(samples)
    yield
    add_responses(samples)
    add_labelling(samples, weights)
    yield
    shots = f"--weights {weights} none --shots 2 4 --seeds 2 --cache none --device cpu"
    stdout_of(f"study --data groups.csv --set data.group=none --out study {shots}")
    samples.add_files(Path("study"), {"study.json": "study"})
    yield
    add_exports(samples)
    yield


def add_answers(samples: Samples) -> None:
    """Add what `evaluate` and `predict` write and print."""
    stdout_of("evaluate --data plants/test --run solved --threshold 0.5 --out evaluated", 3)
    stdout_of("evaluate --data groups.csv --run groups --by patient --out grouped")
    Path("tree.csv").write_text("class,parent\naster,flower\nbegonia,flower\n")
    line = "evaluate --data plants/test --run solved --tree tree.csv --threshold 0.5 --out levels"
    stdout_of(line, 3)
    for folder in ("evaluated", "grouped", "levels"):
        files = {"eval.json": "evaluation", "predictions.csv": "evaluated_row"}
        samples.add_files(Path(folder), files)
    printed = stdout_of(
        "evaluate --data several.csv --set data.label=rust,scab --run several --format json"
    )
    samples.add("evaluation", json.loads(printed))
    images = "plants/test/aster"
    for line in (f"--near {images}/12.jpg", "--out vectors.npz"):
        printed = stdout_of(f"embed {images} --run solved {line} --cache none --format json", 3)
        samples.add("embeddings", json.loads(printed))
    solved = f"{images} --run solved"
    for line in (
        f"{solved} --threshold 0.99 --top-k 2",
        f"{solved} --coverage 0.8",
        f"{solved} --tree tree.csv --threshold 0.5",
        f"{solved} --group-by folder",
        f"{images} --run several",
    ):
        samples.add("prediction", *json.loads(stdout_of(f"predict {line} --format json", 3)))
        samples.add(
            "prediction", *values_of(".jsonl", stdout_of(f"predict {line} --format jsonl", 3))
        )
        samples.add(
            "prediction_row", *values_of(".csv", stdout_of(f"predict {line} --format csv", 3))
        )
    for run in ("solved", "groups"):
        line = f"predict {images} --run {run} --counts --format"
        samples.add("counts", json.loads(stdout_of(f"{line} json", 3)))
        samples.add("counts_row", *values_of(".csv", stdout_of(f"{line} csv", 3)))


def add_responses(samples: Samples) -> None:
    """Add what `serve` answers."""
    photo = Path("plants/test/aster/12.jpg").read_bytes()
    body, headers = form(("a.jpg", photo), ("b.jpg", b"text"))
    nothing, no_headers = form(("b.jpg", b"text"), ("c.jpg", b""))
    for name in ("solved", "several"):
        with served(name, threshold=0.5 * (name == "solved")) as client:
            samples.add("serve_labels", client.ask("GET", "/labels").json)
            samples.add("serve_healthz", client.ask("GET", "/healthz").json)
            samples.add("serve_predictions", client.ask("POST", "/predict", body, headers).json)
            samples.add("serve_error", client.ask("POST", "/predict", nothing, no_headers).json)
            samples.add("serve_error", client.ask("GET", "/nothing").json)


def add_labelling(samples: Samples, weights: Path) -> None:
    """Add the states of a labelling session until each picture has an answer."""
    table = Path("labels.csv")
    with labelled("leaves", table, weights=weights, classes=("d", "r", "b", "n")) as client:

        def post(route: str, **body: object) -> Any:
            sent, head = json.dumps(body).encode(), {"content-type": "application/json"}
            answer = client.ask("POST", f"/{route}?key={KEY}", sent, head)
            samples.add("label_state" if answer.status == 200 else "serve_error", answer.json)
            return answer.json

        state = client.ask("GET", f"/state?key={KEY}").json
        samples.add("label_state", state)
        post("answer", picture=999, label="d")
        state = post("skip", picture=state["question"]["picture"])
        post("undo")
        while (question := state["question"]) and state["answered"] < 12:
            state = post(
                "answer", picture=question["picture"], label=Path(question["path"]).name[0]
            )
        found = [client.ask("GET", f"/likely?class={name}&key={KEY}").json for name in "drbn"]
        samples.add("label_likely", *found)
        for group in found:
            numbers = [each["picture"] for each in group["pictures"]]
            if numbers:
                state = post("confirm", pictures=numbers, label=group["class"], taken_out=[])
        while question := state["question"]:
            state = post("skip", picture=question["picture"])
    samples.add_files(Path(), {"labels.csv": "label_row"})


def add_exports(samples: Samples) -> None:
    """Add what describes exported models."""
    import onnx

    line = "export --run solved --preprocessing --transformers --out export --format json"
    samples.add("exported", json.loads(stdout_of(line)))
    stdout_of("export --run groups --transformers --out export-groups/transformers")
    stdout_of("export --run again --transformers --out export-again/transformers")
    stdout_of("export --run several --onnx --out export-several/onnx")
    samples.add_files(Path("export/preprocessing"), {"preprocessing.json": "preprocessing"})
    for graph in sorted(Path().glob("export*/*/model.onnx")):
        facts = {entry.key: entry.value for entry in onnx.load(graph).metadata_props}
        samples.add("graph", json.loads(facts["vitft"]))
        samples.add("results", json.loads(facts["vitft"])["run"])
    for config in Path().glob("export*/transformers/config.json"):
        samples.add("results", json.loads(config.read_text())["vitft_run"])
