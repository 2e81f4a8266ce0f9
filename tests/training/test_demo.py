"""The demo: a run from random weights, then one from the bundled weights, which is shown."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.training_data import data_set, row
from vitft.system import RunDir, Stopped
from vitft.training import demo, run_demo


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Any]:
    """Let runs, predictions, exports and reports only be noted."""
    seen: list[Any] = []
    results = {"random:demo": {"top1": 0.4}, "demo": {"top1": 0.9}}

    def finetune(config: Any, *, out: Path) -> Any:
        seen.append((config.weights.name, out.name))
        status = {"interrupted": False, "exit_code": 0} | stopped.get(config.weights.name, {})
        return SimpleNamespace(figures=results[config.weights.name], **status)

    def check(config: Any, out: Any) -> tuple[Any, Path]:
        assert out is None
        run = tmp_path / config.weights.name.replace(":", "-")
        run.mkdir()
        rows = [row(f"{i:02}.png", 0, "val" if i % 2 else "train") for i in range(2 * images[0])]
        data_set(rows, classes=("a",)).manifest.write(RunDir(run).split)
        return config, run

    class Predictor:
        def stream(self, paths: list[str], *, top_k: int) -> list[str]:
            seen.append((len(paths), Path(paths[0]).name, Path(paths[-1]).name, top_k))
            return [*paths]

    stopped: dict[str, Any] = {}
    images = [20]
    seen.append((stopped, images))
    monkeypatch.setattr(demo, "demo_data", lambda spec: spec)
    monkeypatch.setattr(demo, "check_request", check)
    monkeypatch.setattr(demo, "run_finetuning", finetune)
    monkeypatch.setattr(demo, "Predictor", SimpleNamespace(from_run=lambda _: Predictor()))
    compared = SimpleNamespace(difference=0.5, images=7)
    monkeypatch.setattr(demo, "export_safetensors", lambda *_: compared)
    monkeypatch.setattr(demo, "write_report", lambda run: run / "report.html")
    return seen


@pytest.mark.parametrize(
    ("validated", "shown"),
    [
        (20, (7, "01.png", "37.png", 2)),  # every third image
        (5, (5, "01.png", "09.png", 2)),
        (12, (6, "01.png", "21.png", 2)),
    ],
)
def test_the_pretrained_run_comes_second_and_is_shown_on_about_six_images(
    calls: list[Any], tmp_path: Path, validated: int, shown: Any
) -> None:
    calls[0][1][0] = validated

    found = run_demo()

    assert calls[1:] == [("random:demo", "random-demo"), ("demo", "demo"), shown]
    assert (found.random["top1"], found.pretrained["top1"]) == (0.4, 0.9)
    assert (found.export, found.report) == (tmp_path / "demo/export", tmp_path / "demo/report.html")
    assert (found.export_difference, found.export_images) == (0.5, 7)
    assert len(found.predictions) == shown[0]


def test_a_run_that_is_stopped_stops_the_demo(calls: list[Any]) -> None:
    calls[0][0]["random:demo"] = {"interrupted": True, "exit_code": 143}

    with pytest.raises(Stopped) as caught:
        run_demo()

    assert caught.value.exit_code == 143
    assert len(calls) == 2
