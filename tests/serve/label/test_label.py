"""The command `vitft label`: arguments, HTTP, its page in Node, kill -9, training on the labels."""

import csv
import json
import shlex
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.contract.built.runs import CLASSES, single
from tests.contract.built.towers import tower
from tests.support.serving import Client, Reply, command_serving, shown_by
from vitft import load, zeroshot
from vitft.cli.main import main
from vitft.config import TrainSpec
from vitft.data import Images
from vitft.serve import find_pictures, load_pool

PAGE = Path(__file__).with_name("page.mjs")


@contextmanager
def labelling(home: Path, *options: str) -> Iterator[tuple[Client, str, "subprocess.Popen[str]"]]:
    """Run the command in `home`, and yield a client, the key and the process."""
    words = ["label", *options, "--device", "cpu"]
    with command_serving(*words, cwd=home) as (client, child, line):
        yield client, line.partition("?key=")[2].split()[0], child


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
    assert "30 labelled images in labels.csv" in rest
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


def test_answers_belong_to_one_folder(
    tmp_path: Path, pictures: Path, tiny_weights: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(pictures, tmp_path / "more")
    (tmp_path / "table").mkdir()
    options = ["--weights", str(tiny_weights), "--out", "table/t.csv"]
    for folder in ("pictures", "more"):
        with labelling(tmp_path, folder, *options) as (client, key, child):
            state = get(client, key, "state").json
            assert state["answered"] == 0
            for _ in range(12):
                body = {"picture": state["question"]["picture"], "label": colour(state)}
                state = post(client, key, "answer", body).json
            child.terminate()
            assert child.stdout is not None
            printed = child.stdout.read()

    command = shlex.split(printed.partition("Next       vitft ")[2].splitlines()[0])
    out = tmp_path / "run"
    assert main([*command, "--out", str(out), "--device", "cpu"]) == 0
    assert len(Images.from_csv(out / "split.csv", out).rows) == 24


def test_confident_predictions_of_a_run_represent_its_classes(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    single(tmp_path)
    train = TrainSpec(cache="none", device="cpu")

    pool = load_pool(
        find_pictures(tmp_path / "T"), weights="", run=str(tmp_path / "R"), train=train
    )

    assert pool.classes == CLASSES
    assert pool.stand_ins is not None
    pictures, labels = (part.tolist() for part in pool.stand_ins)
    assert {pool.paths[i][0].partition("/")[0] for i in pictures} == {*CLASSES}
    assert all(
        pool.paths[i][0].startswith(CLASSES[y]) for i, y in zip(pictures, labels, strict=True)
    )
    assert len(pictures) == len({*pictures}) > 20
    assert "say nothing about new images" not in caplog.text
    settings = (tmp_path / "R" / "config.toml").read_text()  # as if it had trained a block
    settings = settings.replace('layers = "head"', 'layers = "blocks:1"')
    (tmp_path / "R" / "config.toml").write_text(settings)
    load_pool(find_pictures(tmp_path / "T"), weights="", run=str(tmp_path / "R"), train=train)
    assert "say nothing about new images" in caplog.text


def test_first_guesses_come_from_class_names_if_the_weights_read_text(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    single(tmp_path)
    tower(tmp_path / "w", "Siglip")
    train, names = TrainSpec(cache="none", device="cpu"), ["owl", "cat", "red"]
    folder, weights = find_pictures(tmp_path / "T"), str(tmp_path / "w")

    pool = load_pool(folder, weights=weights, run=None, train=train, names=names)

    expected = load(
        zeroshot(tmp_path / "T", classes=names, weights=weights, out=tmp_path / "m", device="cpu")
    ).predict([tmp_path / "T" / paths[0] for paths in pool.paths])
    sure = {i: one.classes[0] for i, one in enumerate(expected) if one.probabilities[0] > 0.901}
    assert pool.classes == (*names,)
    assert pool.stand_ins is not None
    guessed = {
        i: names[y] for i, y in zip(*(part.tolist() for part in pool.stand_ins), strict=True)
    }
    assert set() != {*sure.items()} <= {*guessed.items()}

    (tmp_path / "w" / "tokenizer.json").unlink()
    pool = load_pool(folder, weights=weights, run=None, train=train, names=names)
    assert pool.stand_ins is None
    assert "no first guesses from the class names" in caplog.text


def test_a_start_that_fails_leaves_no_new_table(
    tmp_path: Path, pictures: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table, old = tmp_path / "new.csv", tmp_path / "old.csv"
    old.write_bytes(b"path,label,chosen\r\n")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        for out in (table, old):
            assert main(["label", str(pictures), "--out", str(out), "--port", port]) == 2
            assert f"port {port}" in capsys.readouterr().err

    assert not table.exists()
    assert old.exists()


def test_the_page_labels_by_keys(tmp_path: Path, pictures: Path, tiny_weights: Path) -> None:
    table = tmp_path / "labels.csv"
    options = ["pictures", "--weights", str(tiny_weights), "--classes", "red,green"]
    with labelling(tmp_path, *options) as (client, key, _):
        url = f"http://127.0.0.1:{client.port}/?key={key}"
        shown = shown_by(PAGE, url, "1", "2", "+<b>blue</b>", "s", "u", "u", "Q")
        first = rows(table)
        group = shown_by(PAGE, url, "g", "1", "#0", "Enter")
        measured = shown_by(PAGE, url, "m", "1")

    assert shown[0]["classes"] == ["1 red 1", "2 green 0"]
    assert shown[2]["classes"][2].startswith("3 <b>blue</b>")
    assert shown[3]["progress"].replace("\xa0", " ") == (
        "3 images of 30 labelled, 1 skipped, 1 file unreadable."
    )
    assert shown[3]["status"] == f"Skipped. Next image: {shown[3]['name']}"
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
