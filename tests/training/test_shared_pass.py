"""Feature passes and head solves that several processes share: who reads and computes what."""

import json
import shutil
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from tests.conftest import draw_folder, tiny_home
from tests.support.ranks import counts, end_ranks, start_ranks
from vitft.features import spaces
from vitft.models import load_checkpoint

pytestmark = pytest.mark.long

COMMAND = ["finetune", "--data", "data", "--weights", "w.safetensors"]
PER_CLASS, COPIES, BAD = 24, 3, 1
IMAGES = 3 * PER_CLASS  # 5 runs of 16 files, with copies


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with weights, and images of which some are copies and one is damaged."""
    home = tiny_home(tmp_path_factory.mktemp("shared"))
    shutil.rmtree(home / "data")
    draw_folder(home / "data", per_class=PER_CLASS)
    for i in range(COPIES):  # far from their originals, in the shards of other ranks
        shutil.copy(home / f"data/blue/{i:03}.png", home / f"data/red/copy {i}.png")
    Image.new("CMYK", (20, 20)).save(home / "data/green/ink.jpg")
    (home / "data/red/torn.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    return home


def finish(home: Path, size: int, out: str, *options: str, **how: Any) -> list[dict[str, Any]]:
    """Run the command as `size` ranks, and return their counts."""
    ended = end_ranks(start_ranks(home, size, [*COMMAND, "--out", out, *options], **how))
    assert [code for code, _ in ended] == [0] * size, ended
    assert "Traceback" not in "".join(shown for _, shown in ended)
    return counts(home, size)


@pytest.fixture(scope="module")
def runs(home: Path) -> dict[int, list[dict[str, Any]]]:
    """Counts of the runs of 1, 2 and 4 processes, each with a cache of its own."""
    return {size: finish(home, size, f"run{size}", "--cache", f"cache{size}") for size in (1, 2, 4)}


def cached_rows(home: Path, cache: str) -> Counter[str]:
    """Return how many rows of the features, of each cut, and of facts are in a cache's files."""
    found: Counter[str] = Counter()
    for space in spaces(home / cache):
        kind = space.settings.get("cut") or space.settings["what"]
        for path in space.folder.glob("*.rows"):
            content = path.read_bytes()
            length = int.from_bytes(content[8:16], "little")
            found[kind] += json.loads(content[16 : 16 + length])["count"]
    return found


def have_equal_weights(*runs: Path) -> bool:
    one, other = (load_checkpoint(run / "model.safetensors")[0] for run in runs)
    return all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("size", [2, 4])
def test_each_file_is_opened_by_one_process_only(
    runs: dict[int, list[dict[str, Any]]], size: int
) -> None:
    alone = runs[1][0]["opened"]
    ranks = [Counter(rank["opened"]) for rank in runs[size]]

    assert sum(ranks, Counter()) == Counter(alone)
    assert all(not (one & other) for i, one in enumerate(ranks) for other in ranks[:i])
    assert len(alone) == IMAGES + COPIES + BAD
    assert max(map(len, ranks)) <= (48 if size == 2 else 32)


@pytest.mark.parametrize("size", [2, 4])
def test_heads_are_equal_to_the_bit_and_fitted_by_the_main_process(
    home: Path, runs: dict[int, list[dict[str, Any]]], size: int
) -> None:
    assert have_equal_weights(home / "run1", home / f"run{size}")
    for name in ("split.csv", "audit.json"):
        assert (home / "run1" / name).read_text() == (home / f"run{size}" / name).read_text()
    results = [json.loads((home / f"run{n}" / "eval.json").read_text()) for n in (1, size)]
    for found in results:
        del found["seconds"]
    assert results[0] == results[1]
    assert runs[size][0]["fits"] == runs[1][0]["fits"] > 0
    assert [rank["fits"] for rank in runs[size][1:]] == [0] * (size - 1)


@pytest.mark.parametrize("rank", [0, 1])
def test_a_signal_to_one_process_while_a_head_is_solved_stops_both(
    home: Path, runs: dict[int, list[dict[str, Any]]], rank: int
) -> None:
    words = [*COMMAND, "--out", f"stopped{rank}", "--cache", "cache2"]

    ended = end_ranks(start_ranks(home, 2, words, stop_rank=rank))

    assert [code for code, _ in ended] == [143, 143], ended
    assert (home / f"stopped{rank}" / "model.safetensors").exists()


def test_processes_without_a_common_cache_send_each_other_their_rows(
    home: Path, runs: dict[int, list[dict[str, Any]]]
) -> None:
    ranks = finish(home, 2, "apart", own_homes=True)

    assert have_equal_weights(home / "run1", home / "apart")
    assert sum(rank["computed"] for rank in ranks) == IMAGES + 1
    assert not set(ranks[0]["opened"]) & set(ranks[1]["opened"])


def test_a_pass_that_follows_a_killed_rank_has_equal_rows(
    home: Path, runs: dict[int, list[dict[str, Any]]]
) -> None:
    words = [*COMMAND, "--out", "resumed", "--cache", "killed"]
    (survivor, shown), (killed, _) = end_ranks(start_ranks(home, 2, words, kill_rank=1))
    assert (survivor, killed) == (6, -signal.SIGKILL), shown
    before = min(rows for cut, rows in cached_rows(home, "killed").items() if "images" not in cut)

    ranks = finish(home, 2, "resumed", "--cache", "killed")

    assert 16 <= before < IMAGES
    assert sum(rank["computed"] for rank in ranks) == IMAGES + 1 - before
    assert have_equal_weights(home / "run2", home / "resumed")
