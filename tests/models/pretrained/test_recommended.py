"""Recommended weights, and the weights of runs that name none."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from vitft.cli.main import main
from vitft.models.pretrained import recommended
from vitft.models.pretrained.catalog import find_entry
from vitft.models.pretrained.recommended import (
    Recommendation,
    affordable,
    cached_alternatives,
    default_weights,
    recommendations,
)
from vitft.models.registry import create_model
from vitft.system.errors import UsageError

MACHINE_SPEED, IS_CACHED = recommended.machine_speed, recommended.is_cached
"""The real functions, which the fixture replaces."""
TINY, SMALL, BASE = (one.name for one in recommendations() if one.default)


@pytest.fixture(autouse=True)
def cpu_of_known_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without weights in its cache that takes 1 s for 60 billion multiply-adds."""
    monkeypatch.setattr(recommended, "machine_speed", lambda *_, **__: 100.0)
    monkeypatch.setattr(recommended, "is_cached", lambda _: False)
    monkeypatch.setattr(recommended, "is_offline", lambda: False)


@pytest.mark.parametrize(
    ("images", "name"),
    [
        pytest.param(100, BASE, id="few images"),
        pytest.param(1_020, BASE, id="just within five minutes"),
        pytest.param(1_030, SMALL, id="just above"),
        pytest.param(10_000, TINY, id="many images"),
        pytest.param(10_000_000, TINY, id="the fastest, however long it takes"),
    ],
)
def test_the_most_accurate_weights_within_five_minutes_are_chosen(images: int, name: str) -> None:
    chosen, why = default_weights(images, device="cpu")

    assert chosen == name
    assert "apache-2.0" in why
    assert f"for {images:,} images" in why


def test_a_pass_may_take_exactly_five_minutes() -> None:
    fast, slow = (
        Recommendation(name=name, tier="fast", megabytes=1, gmacs=gmacs)
        for name, gmacs in (("fast", 1.0), ("slow", 3.0))
    )

    assert slow.seconds(6_000, 100.0) == pytest.approx(300)  # 60% of the speed
    assert affordable([fast, slow], 6_000, 100.0) == slow
    assert affordable([fast, slow], 6_001, 100.0) == fast
    assert affordable([fast, slow], 10**9, 100.0) == fast
    assert not fast.default


@pytest.mark.parametrize(
    ("device", "gpu", "speed"),
    [("auto", True, 5.0), ("cuda", True, 5.0), ("cpu", True, 2.0), ("auto", False, 2.0)],
)
def test_a_gpu_counts_unless_the_cpu_is_chosen(
    monkeypatch: pytest.MonkeyPatch, device: str, gpu: bool, speed: float
) -> None:
    monkeypatch.setattr(recommended, "GPU_SPEED", 5.0)
    monkeypatch.setattr(recommended, "cpu_speed", lambda: 2.0)
    monkeypatch.setattr(recommended, "has_gpu", lambda: gpu)

    assert MACHINE_SPEED(device) == speed
    assert MACHINE_SPEED() == (5.0 if gpu else 2.0)


def test_only_a_file_that_exists_is_in_the_cache(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    import huggingface_hub

    asked: list[object] = []
    (tmp_path / "x").write_bytes(b"")
    for found, is_there in ((str(tmp_path / "x"), True), (str(tmp_path / "y"), False),
                            (None, False), (object(), False)):  # fmt: skip

        def look(*names: str, revision: str, found: object = found) -> object:
            asked.append((*names, revision))
            return found

        monkeypatch.setattr(huggingface_hub, "try_to_load_from_cache", look)
        assert IS_CACHED(find_entry(TINY)) == is_there

    entry = find_entry(TINY)
    assert {*asked} == {(entry.repo, entry.file, entry.revision)}


def test_the_cost_of_the_default_is_stated(monkeypatch: pytest.MonkeyPatch) -> None:
    tiny = next(one for one in recommendations() if one.name == TINY)
    monkeypatch.setattr(recommended, "is_cached", lambda entry: entry.name == TINY)

    _, cached = default_weights(1, device="cpu")
    monkeypatch.setattr(recommended, "is_cached", lambda _: False)
    _, download = default_weights(10**6, device="cpu")

    assert cached.endswith("in the cache; about 1 s for 1 image")
    hours = tiny.seconds(10**6, 100.0) / 3600
    assert f"a download of {tiny.megabytes:,} MB; about {hours:.1f} h for 1,000,000" in download


def test_weights_in_the_cache_are_preferred_to_a_download(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recommended, "is_cached", lambda entry: entry.name == SMALL)

    chosen, why = default_weights(100, device="cpu")

    assert chosen == SMALL
    assert "in the cache" in why


def test_offline_without_weights_the_error_names_a_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recommended, "is_offline", lambda: True)

    with pytest.raises(UsageError, match="none of the default weights are in the cache") as error:
        default_weights(100, device="cpu")

    assert "--weights demo" in error.value.fix


def test_alternatives_are_cached_and_follow_weights_of_known_accuracy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(recommended, "is_cached", lambda entry: entry.name in (TINY, SMALL, BASE))

    found = {name: cached_alternatives(name, "apache-2.0") for name in (TINY, BASE, "my_weights")}

    assert {name: [one.name for one in others] for name, others in found.items()} == {
        TINY: [SMALL, BASE],
        BASE: [],
        "my_weights": [TINY, SMALL, BASE],
    }


@pytest.mark.parametrize(
    ("licence", "own"),
    [("apache-2.0", False), ("", False), ("dinov3-license", True)],
)
def test_alternatives_have_an_open_licence_or_that_of_the_run(
    monkeypatch: pytest.MonkeyPatch, licence: str, own: bool
) -> None:
    entry = replace(find_entry(SMALL), licence="dinov3-license")
    monkeypatch.setattr(recommended, "find_entry", lambda _: entry)
    monkeypatch.setattr(recommended, "is_cached", lambda _: True)

    assert bool(cached_alternatives(TINY, licence)) is own


@pytest.mark.parametrize("one", recommendations(), ids=lambda one: one.name)
def test_the_size_of_recommended_weights_is_that_of_the_architecture(
    one: recommended.Recommendation,
) -> None:
    entry = one.entry
    with torch.device("meta"):
        model = create_model(
            entry.architecture,
            image_size=entry.image_size,
            num_classes=entry.num_classes,
            **entry.options,
        )
    config = model.config
    parameters = sum(parameter.numel() for parameter in model.parameters())
    tokens = config.grid[0] * config.grid[1]
    linear = sum(p.numel() for n, p in model.named_parameters() if p.ndim > 1 and "embed" not in n)
    patches = sum(p.numel() for n, p in model.named_parameters() if n == "patch_embed.proj.weight")
    every = tokens + config.num_prefix
    gmacs = (tokens * patches + every * linear + 2 * config.depth * every**2 * config.width) / 1e9

    assert one.megabytes == pytest.approx(4 * parameters / 1e6, rel=0.02)
    assert one.gmacs == pytest.approx(gmacs, rel=0.05)
    assert not entry.licence.endswith("-nc")


def test_a_run_records_the_chosen_weights(
    image_folder: Path, tiny_weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "vitft.training.checks.default_weights", lambda *_, **__: (str(tiny_weights), "")
    )
    assert main(["finetune", "--data", str(image_folder), "--out", str(tmp_path / "run")]) == 0

    assert f'name = "{tiny_weights}"' in (tmp_path / "run" / "config.toml").read_text()
    card = json.loads((tmp_path / "run" / "environment.json").read_text())
    assert card["status"] == "finished"


def test_several_processes_must_name_the_weights(
    image_folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")

    assert main(["finetune", "--data", str(image_folder), "--dry-run"]) == 2
    assert "no weights given" in capsys.readouterr().err


def test_the_list_of_recommended_weights_has_their_cost(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["weights", "list"]) == 0

    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 1 + len(recommendations()) == 11
    assert [line.split()[0] for line in lines[1:]] == [one.name for one in recommendations()]
    assert [line.split()[1] for line in lines[1:]] == [one.tier for one in recommendations()]
