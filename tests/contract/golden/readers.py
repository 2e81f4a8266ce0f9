"""Readers of a run directory: each returns what it shows of ../run as text.

They run in the folder with the images of the row. To add a reader, write a function of a `Run` here
and name it in `USUAL`, or in the `readers` of the rows for which it makes a difference.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from safetensors.numpy import load_file

import vitft
from tests.contract.app_client import served
from tests.contract.golden.snapshots import drawn_markup, page_text
from tests.contract.rows import draw, run

RUN = Path("../run")
NEW = [f"../new/{name}.jpg" for name in ("c", "d", "f")]
"""Images that the run has not seen, in the colours of cats, dogs and foxes."""
TIMES = ("seconds", "time", "images_per_second", "used", "final_seconds", "relative_time")


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A run of a row."""

    data: list[str]
    """Options of the command that say how the images are read; the first is their place."""
    weights: Path
    printed: str


def shown(*words: str) -> str:
    """Return a command line, its exit code and what it prints."""
    code, printed = run(words)
    return f"$ vitft {' '.join(words)}\n{printed}[exit {code}]\n\n"


def flat_lines(value: Any, name: str = "") -> Iterator[str]:
    """Return a JSON value as lines of a dotted name and a number, text or list."""
    if isinstance(value, dict) and value:
        for key, inner in value.items():
            if key not in TIMES:
                yield from flat_lines(inner, f"{name}.{key}" if name else str(key))
    elif isinstance(value, list) and any(isinstance(inner, dict) for inner in value):
        for number, inner in enumerate(value):
            yield from flat_lines(inner, f"{name}[{number}]")
    else:
        yield f"{name}: {short(value)}"


def short(value: Any) -> str:
    """Return a JSON value with five digits of every number."""
    if isinstance(value, list):
        return f"[{', '.join(map(short, value))}]"
    return f"{value:.5g}" if isinstance(value, float) else json.dumps(value, ensure_ascii=False)


def terminal(the: Run) -> str:
    return the.printed


def results(the: Run) -> str:
    """Numbers of the run: eval.json, audit.json and metrics.jsonl."""
    parts = []
    for name in ("eval.json", "audit.json"):
        if (RUN / name).exists():
            parts += [f"--- {name}", *flat_lines(json.loads((RUN / name).read_text()))]
    if (RUN / "metrics.jsonl").exists():
        steps = map(json.loads, (RUN / "metrics.jsonl").read_text().splitlines())
        parts += ["--- metrics.jsonl"]
        parts += [", ".join(flat_lines(step)) for step in steps]
    return "\n".join(parts)


def files(the: Run) -> str:
    """Names of the files of the run, split.csv without digests, and the settings."""
    parts = sorted(str(path.relative_to(RUN)) for path in RUN.rglob("*") if path.is_file())
    for name in ("class_indices.json", "split.csv", "config.toml"):
        if (RUN / name).exists():
            parts += [f"--- {name}", (RUN / name).read_text()]
    environment = json.loads((RUN / "environment.json").read_text())
    parts += [f"{name}: {environment[name]}" for name in ("status", "precision", "processes")]
    return "\n".join(parts)


def weights(the: Run) -> str:
    """Shape, mean, standard deviation and sum of magnitudes of every tensor that was trained."""
    if not (RUN / "model.safetensors").exists():
        return "no model.safetensors"
    before = load_file(the.weights)
    lines = []
    for name, tensor in sorted(load_file(RUN / "model.safetensors").items()):
        values = tensor.astype(np.float64)
        if name in before and np.array_equal(before[name], tensor):
            continue
        size = f"mean {values.mean():.3f} std {values.std():.5f} sum {np.abs(values).sum():.4f}"
        lines.append(f"{name} {list(tensor.shape)} {size}")
    return "\n".join(lines)


def predict(the: Run) -> str:
    Path("../new/damaged.jpg").write_bytes(b"no image")
    return (
        shown("predict", "--run", str(RUN), *NEW, "../new/damaged.jpg", "--device", "cpu")
        + shown("predict", "--run", str(RUN), *NEW, "--top-k", "3", "--format", "jsonl")
        + shown("predict", "--run", str(RUN), *NEW, "--engine", "torch", "--device", "cpu",
                "--tta", "--threshold", "0.6", "--format", "csv")
    )  # fmt: skip


def precision(the: Run) -> str:
    return shown("predict", "--run", str(RUN), *NEW, "--precision", "0.8")


def check(the: Run) -> str:
    text = shown("check", *the.data, "--run", str(RUN), "--cache", "none", "--device", "cpu",
                 "--out", "../checked")  # fmt: skip
    for name in ("fixes.csv", "check.html"):
        path = Path("../checked", name)
        if path.exists():
            content = path.read_text(encoding="utf-8")
            text += f"--- {name}\n{page_text(content) if name == 'check.html' else content}\n"
    return text


def compare(the: Run, kind: str = "") -> str:
    """Comparison with the run of the command in `before`, as text and as a page, or as JSON."""
    if kind:
        _, printed = run(["compare", "../before", str(RUN), "--format", kind])
        value, end = json.JSONDecoder().raw_decode(printed)
        return "\n".join([*flat_lines(value), printed[end:]])
    text = shown("compare", "../before", str(RUN), "--out", "../compared.html")
    page = Path("../compared.html")
    return text + (page_text(page.read_text(encoding="utf-8")) if page.exists() else "")


def details(the: Run) -> str:
    data = ["--data", *the.data, "--run", str(RUN), "--device", "cpu"]
    return shown("evaluate", *data, "--threshold", "0.6", "-v")


def evaluate(the: Run) -> str:
    data = ["--data", *the.data, "--run", str(RUN), "--device", "cpu"]
    text = shown("evaluate", *data, "--out", "../evaluated", "--threshold", "0.6")
    for name in ("eval.json", "predictions.csv"):
        path = Path("../evaluated", name)
        if path.exists():
            content = path.read_text()
            lines = flat_lines(json.loads(content)) if path.suffix == ".json" else [content]
            text += "\n".join([f"--- {name}", *lines, ""])
    if Path("../before").exists():
        data[data.index(str(RUN))] = "../before"
        text += shown("evaluate", *data, "--out", "../evaluated-before")
        text += shown("compare", "../evaluated-before", "../evaluated")
    return text


def explain(the: Run) -> str:
    text = shown("explain", *NEW, "--run", str(RUN), "--out", "../explained", "--arrays",
                 "--device", "cpu")  # fmt: skip
    for path in sorted(Path("../explained").glob("*.npz")):
        with np.load(path) as arrays:
            text += f"--- {path.name}\n"
            text += "\n".join(" ".join(f"{x:.3f}" for x in row) for row in arrays["heat"]) + "\n"
    return text


def notebook(the: Run) -> str:
    """What a notebook shows of the model and its predictions."""
    trained = vitft.load(RUN, device="cpu")
    predictions = trained.predict(NEW, top_k=2)
    features = trained.features(NEW)
    norms = ", ".join(f"{x:.4f}" for x in np.linalg.norm(features, axis=1))
    explained = trained.explain(NEW[0], size=40, legend=True)
    return "\n".join([
        repr(trained), page_text(trained._repr_html_()), *map(repr, predictions),
        page_text(predictions._repr_html_()), f"features {features.shape}, of norm {norms}",
        f"explained {explained.size}", page_text(explained._repr_html_()),
    ])  # fmt: skip


def http(the: Run) -> str:
    """Answers of the server."""
    image = {"content-type": "image/jpeg"}
    with served(str(RUN)) as client:
        answers = {path: client.ask("GET", path) for path in ("/healthz", "/labels")}
        answers["/predict"] = client.ask("POST", "/predict", Path(NEW[0]).read_bytes(), image)
        answers["/predict of a text"] = client.ask("POST", "/predict", b"no image", image)
    parts = []
    for path, answer in answers.items():
        text = answer.body.decode()
        parts += [f"--- {path}: {answer.status} {answer.headers['content-type']}"]
        parts += flat_lines(json.loads(text)) if text.startswith("{") else [page_text(text)]
    return "\n".join(parts)


def pictures(the: Run) -> str:
    """Charts as SVG, and size and brightness, by cells, of the plots as PNG."""
    text = shown("report", "--run", str(RUN), "--charts", "../charts")
    for path in sorted(Path("../charts").glob("*.svg")):
        text += f"--- {path.name}\n{drawn_markup(path.read_text(encoding='utf-8'))}\n"
    device = ("--device", "cpu")
    text += shown("explain", "--model", "--run", str(RUN), "--out", "../plots", *device)
    text += shown("explain", "--patches", NEW[0], "--run", str(RUN), "--out", "../patches", *device)
    text += shown("explain", *NEW[:2], "--run", str(RUN), "--out", "../maps", "--legend", *device)
    if Path("../before").exists():
        text += shown("compare", "../before", str(RUN), "--out", "../plots/compared.png")
    for path in sorted(Path("..").glob("[mp][al]*/*.png")):
        with Image.open(path) as picture:
            cells = np.asarray(picture.convert("L").resize((8, 5), Image.Resampling.BOX)) / 255
        lines = [" ".join(f"{x:.2f}" for x in row) for row in cells]
        text += "\n".join([f"--- {path.name} {picture.size}", *lines, ""])
    return text


def page(the: Run) -> str:
    path = RUN / "report.html"
    return page_text(path.read_text(encoding="utf-8")) if path.exists() else "no page"


def markup(the: Run) -> str:
    return drawn_markup((RUN / "report.html").read_text(encoding="utf-8"))


def export(the: Run, kind: str) -> str:
    """What `vitft export` prints, and the README and JSON files of an export."""
    out = Path(f"../export-{kind}")
    text = shown("export", f"--{kind}", "--run", str(RUN), "--out", str(out), "-v")
    text += "\n".join(sorted(str(path.relative_to(out)) for path in out.rglob("*.*"))) + "\n"
    for path in sorted(out.glob("*.*")):
        if path.suffix == ".md":
            text += f"--- {path.name}\n{path.read_text()}\n"
        if path.suffix == ".json":
            text += "\n".join([f"--- {path.name}", *flat_lines(json.loads(path.read_text())), ""])
    return text


USUAL = ("terminal", "results", "weights", "predict", "page")


def read(the: Run, readers: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Return the name and the text of each reader."""
    for path in NEW:
        draw(Path(path), 40, 32)
    for name in readers:
        function, _, kind = name.partition("-")
        yield name, globals()[function](the, *([kind] if kind else []))
