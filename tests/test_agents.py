"""A program that knows only docs/agents.md, and reads only JSON, does the whole job."""

import csv
import json
import os
import re
import shutil
import sys
import urllib.request
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.support.children import ended, started
from tests.support.ranks import free_port
from vitft.data import draw_demo

PAGE = (Path(__file__).parents[1] / "docs" / "agents.md").read_text(encoding="utf-8")
STEPS = dict(re.findall(r"^\| ([a-z ]+) \| `vitft (.+?)` \|", PAGE, re.M))
CLI = (sys.executable, "-m", "vitft")
CORRECT = re.search(r"^    vitft (.+)$", PAGE, re.M)


@pytest.fixture
def photos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Drawn flowers, of which two are in the wrong folder."""
    monkeypatch.chdir(tmp_path)
    draw_demo(tmp_path / "photos", per_class=24)
    for name in ("new", "test"):
        draw_demo(tmp_path / name, per_class=3)
    for i, path in enumerate(sorted((tmp_path / "photos" / "daisy").glob("*.jpg"))[:2]):
        shutil.move(path, tmp_path / "photos" / "rose" / f"wrong{i}.jpg")
    return tmp_path / "photos"


def asked(words: str, code: int = 0) -> Any:
    """Run a command of the page, and return the JSON that it prints."""
    words = words.replace("NAME", "demo") + " --device cpu" * words.startswith("finetune")
    done = ended([*CLI, *words.split()], env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert done.returncode == code, done.stderr
    return json.loads(done.stdout)


@pytest.mark.long
def test_a_program_goes_from_a_folder_to_a_corrected_exported_and_served_model(
    photos: Path,
) -> None:
    assert "demo" not in {one["name"] for one in asked(STEPS["choose weights"])["weights"]}
    checked = asked(STEPS["check the images"])
    wrong = {one["path"]: one["suggested"] for one in checked["mislabels"]}
    with Path(checked["fixes"]).open(newline="", encoding="utf-8-sig") as file:
        rows = list(csv.DictReader(file))
    for row in rows:
        if row["path"] in wrong:
            row["action"] = "move" if "wrong" in row["path"] else "keep"
    with Path(checked["fixes"]).open("w", newline="", encoding="utf-8-sig") as file:
        table = csv.DictWriter(file, list(rows[0]))
        table.writeheader()
        table.writerows(rows)
    assert {wrong[path] for path in wrong if "wrong" in path} == {"daisy"}

    first = asked(STEPS["train"])
    assert CORRECT
    better = asked(CORRECT[1])
    assert (first["status"], better["status"]) == ("finished", "finished")
    assert better["results"]["headline"]["value"] > first["results"]["headline"]["value"]
    assert better["results"]["at_chance"] is None
    assert Path(better["report"]).is_file()

    predictions = asked(STEPS["predict"].replace("--run run", "--run corrected"))
    counts = asked(STEPS["count"].replace("--run run", "--run corrected"))
    answers = Counter(one["classes"][0]["class"] for one in predictions if "notes" not in one)
    assert {
        one["class"]: one["predicted"] for one in counts["classes"] if one["predicted"]
    } == answers
    for one in counts["classes"]:
        assert one["interval"][0] <= one["images"] <= one["interval"][1]
    right = [Path(one["path"]).parent.name == one["classes"][0]["class"] for one in predictions]
    assert sum(right) / len(right) > 0.7
    asking = STEPS["find similar images"].replace("1.jpg", "tulip/0001.jpg")
    found = asked(asking.replace("--run run", "--run corrected"))["similar"]
    assert found[0] == {"path": "photos/tulip/0001.jpg", "similarity": 1.0}  # the same file
    assert asked(STEPS["evaluate"].replace("--run run", "--run corrected"))["top1"] > 0.7
    compared = asked(STEPS["compare"].replace("other", "corrected"))
    assert [one["name"] for one in compared["runs"]] == ["run", "corrected"]
    exported = asked(STEPS["export"].replace("--run run", "--run corrected"))
    assert [(one["name"], one["changed"]) for one in exported["formats"]] == [("onnx", 0)]

    port = free_port()
    words = STEPS["serve"].replace("--run run", "--run corrected").replace("8000", str(port))
    with started([*CLI, *words.split()]) as server:
        assert server.stdout is not None
        assert "serving at" in server.stdout.readline()
        url, image = f"http://127.0.0.1:{port}", next((photos / "tulip").glob("*.jpg"))
        with urllib.request.urlopen(f"{url}/healthz") as answer:
            assert answer.status == 200
        request = urllib.request.Request(
            f"{url}/predict", image.read_bytes(), {"content-type": "image/jpeg"}
        )
        with urllib.request.urlopen(request) as answer:
            assert json.load(answer)["results"][0]["classes"][0]["class"] == "tulip"
