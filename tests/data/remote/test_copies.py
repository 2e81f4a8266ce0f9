"""Local copies: fetched once, resumed, shared by processes, and the same data as a folder."""

import csv
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.conftest import draw_folder
from tests.support.limits import HANG_S
from tests.support.shards import serving_shards, shards_of, write_shards
from vitft.cli.main import main
from vitft.config import DataSpec
from vitft.data import DownloadLimits, place_of, prepare_data
from vitft.models import load_checkpoint
from vitft.system import DataError, ResourceError

PRIVATE = "data.allow_private_addresses=true"
SPEC = DataSpec(allow_private_addresses=True)
PATIENT = DownloadLimits(wait_s=0.01, pace=1000, attempts=3)
QUICK = replace(PATIENT, stall_s=2.0, attempts=9)
ROOT = Path(__file__).parents[3]


def train(data: str, weights: Path, out: Path, *options: str) -> None:
    words = ["finetune", "--data", data, "--weights", str(weights), "--out", str(out), *options]
    assert main([*words, "--set", PRIVATE]) == 0


def split_by_digest(run: Path) -> dict[str, tuple[str, str]]:
    with (run / "split.csv").open() as file:
        return {row["sha256"]: (row["label"], row["split"]) for row in csv.DictReader(file)}


def figures(run: Path) -> dict[str, Any]:
    found = json.loads((run / "eval.json").read_text())
    return {key: found[key] for key in ("top1", "loss", "per_class", "confusion") if key in found}


def test_shards_on_disk_and_on_the_web_are_the_folder_they_were_made_of(
    tmp_path: Path, tiny_weights: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = draw_folder(tmp_path / "data", per_class=8)
    contents = shards_of(folder)
    local = write_shards(tmp_path / "shards", contents)

    train(str(folder), tiny_weights, tmp_path / "folder")
    train(local, tiny_weights, tmp_path / "local")
    capsys.readouterr()
    with serving_shards(contents) as (site, asked):
        train(site.url, tiny_weights, tmp_path / "web", "-v")
        assert asked == [f"/part-{number:02}.tar" for number in range(4)]

    assert "features from the cache: 24 of 24" in capsys.readouterr().err
    of_folder = load_checkpoint(tmp_path / "folder" / "model.safetensors")[0]
    for name in ("local", "web"):
        assert split_by_digest(tmp_path / name) == split_by_digest(tmp_path / "folder")
        assert figures(tmp_path / name) == figures(tmp_path / "folder")
        tensors = load_checkpoint(tmp_path / name / "model.safetensors")[0]
        assert all(torch.equal(tensors[key], of_folder[key]) for key in of_folder)


COPY = (
    "import sys; from vitft.config.sections import DataSpec;"
    "from vitft.data.copies import prepare_data;"
    "print(prepare_data(sys.argv[1], DataSpec(allow_private_addresses=True)))"
)


def copying(data: str) -> "subprocess.Popen[str]":
    """A process that makes the local copy of a dataset and prints its path."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    words = [sys.executable, "-c", COPY, data]
    return subprocess.Popen(words, env=environment, text=True, stdout=subprocess.PIPE)


def test_a_killed_copy_is_continued_where_it_was(tmp_path: Path) -> None:
    contents = shards_of(draw_folder(tmp_path / "data", per_class=40), shards=3)
    with serving_shards(contents) as (site, asked):
        site.faults = ["", "stall"]
        process = copying(site.url)
        place = place_of(site.url)
        assert place is not None
        part = place.folder / "shards" / "part-01.tar.part"
        limit = time.monotonic() + HANG_S
        while not (part.exists() and part.stat().st_size) and time.monotonic() < limit:
            time.sleep(0.02)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        kept = part.stat().st_size
        assert 0 < kept < len(contents[1])
        assert not (place.folder / "index.csv").exists()
        asked.clear()

        index = prepare_data(site.url, SPEC)

        assert asked == [f"/part-01.tar bytes={kept}-", "/part-02.tar"]
        prepare_data(site.url, SPEC)
        assert len(asked) == 2
    assert not part.exists()
    copies = [(place.folder / "shards" / f"part-0{i}.tar").read_bytes() for i in range(3)]
    assert copies == contents
    assert index.read_text().count("\n") == 1 + 120


def test_processes_share_one_copy(tmp_path: Path) -> None:
    contents = shards_of(draw_folder(tmp_path / "data", per_class=4))
    with serving_shards(contents) as (site, asked):
        processes = [copying(site.url) for _ in range(3)]
        outputs = [process.communicate(timeout=HANG_S)[0] for process in processes]

        assert [process.returncode for process in processes] == [0, 0, 0]
        assert len({*outputs}) == 1
        assert sorted(asked) == [f"/part-{number:02}.tar" for number in range(4)]


FAULTS = {
    "a connection that is reset": (["reset"], PATIENT, 4),
    "an error of the server": (["503", "503"], PATIENT, 5),
    "a stall": (["stall"], QUICK, 9),
    "a size that is unknown": (["no length"] * 4, PATIENT, 4),
}


@pytest.mark.parametrize(("faults", "limits", "requests"), FAULTS.values(), ids=FAULTS)
def test_faults_of_the_network_are_outlived(
    tmp_path: Path, faults: list[str], limits: DownloadLimits, requests: int
) -> None:
    contents = shards_of(draw_folder(tmp_path / "data", per_class=20), shards=3)
    with serving_shards(contents) as (site, asked):
        site.faults = faults

        index = prepare_data(site.url, SPEC, limits)

        assert len(asked) <= requests
    copies = [(index.parent / "shards" / f"part-0{i}.tar").read_bytes() for i in range(3)]
    assert copies == contents


def test_a_missing_or_refused_shard_is_named_and_not_kept(tmp_path: Path) -> None:
    contents = shards_of(draw_folder(tmp_path / "data", per_class=4), shards=2)
    with serving_shards([*contents, b"<html>please log in</html>"]) as (site, asked):
        with pytest.raises(DataError, match=r"part-02.tar was rejected.*looks like a web page"):
            prepare_data(site.url, SPEC)
        site.files["/part-02.tar"] = contents[0]

        index = prepare_data(site.url, SPEC)

        assert asked.count("/part-00.tar") == 1
        assert index.read_text().count("\n") == 1 + 18
        with pytest.raises(DataError, match=r"cannot fetch http.*part-03.tar: .* 404"):
            prepare_data(site.url.replace("02}", "03}"), SPEC)


def test_a_secret_is_sent_but_never_written(tmp_path: Path, tiny_weights: Path) -> None:
    folder = draw_folder(tmp_path / "data", per_class=8)
    with serving_shards(shards_of(folder)) as (site, asked):
        train(f"{site.url}?sig=hidden123", tiny_weights, tmp_path / "run")
        assert asked[0] == "/part-00.tar?sig=hidden123"

    written = [*(tmp_path / "run").rglob("*"), *Path(os.environ["HOME"]).rglob("*")]
    assert len(written) > 20
    for path in written:
        assert "hidden123" not in path.name
        assert not path.is_file() or b"hidden123" not in path.read_bytes(), path


def test_a_disk_that_is_too_small_is_known_after_the_first_shard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    contents = shards_of(draw_folder(tmp_path / "data", per_class=20), shards=10)
    free = shutil.disk_usage(tmp_path)._replace(free=2 * len(contents[0]))
    monkeypatch.setattr("shutil.disk_usage", lambda _: free)

    with (
        serving_shards(contents) as (site, asked),
        pytest.raises(ResourceError, match="needs about another") as error,
    ):
        prepare_data(site.url, SPEC)

    assert len(asked) == 1
    assert "VITFT_CACHE" in error.value.fix
