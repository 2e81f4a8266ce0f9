"""The commands `vitft serve` and `vitft label`, with servers that stop at once."""

import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.run_files import make_run
from vitft.cli import label, serve
from vitft.cli.main import main
from vitft.serve.access import access_for
from vitft.serve.metrics import request_log


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the servers would be given, and their messages."""
    monkeypatch.chdir(tmp_path)
    found: dict[str, Any] = {"code": 143}

    def run_server(server: Any, bound: Any, message: str) -> int:
        found.update(server=server, port=bound.getsockname()[1], message=message)
        return int(found["code"])

    for module in (serve, label):
        monkeypatch.setattr(module, "run_server", run_server)
    return found


@pytest.fixture
def served(asked: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    make_run(Path("run"))
    engine = SimpleNamespace(
        classes=("a", "b", "c"), reference=None, thresholds=(), facts={}, name="engine"
    )
    monkeypatch.setattr("vitft.predict.open_engine.open_engine", lambda *_: engine)

    def make_server(*arguments: Any) -> str:
        asked["made"] = arguments
        return "server"

    monkeypatch.setattr("vitft.serve.server.make_server", make_server)
    return asked


def test_a_server_has_every_class_and_the_limits_of_the_user(
    served: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["serve", "--run", "run", "--port", "0", "--max-bytes", "2MB", "--queue", "5"]

    assert main([*words, "--threshold", "0.7"]) == 143

    engine, postprocess, limits, _ = served["made"]
    assert engine.name == served["made"][0].name == "engine"
    assert (postprocess.top_k, postprocess.threshold, postprocess.thresholds) == (3, 0.7, ())
    assert (limits.max_bytes, limits.queue) == (2_000_000, 5)
    assert served["server"] == "server"
    assert served["message"] == (
        f"serving at http://127.0.0.1:{served['port']}/ (press Ctrl-C to stop)"
    )
    printed = capsys.readouterr().err
    assert "run run: 3 classes" in printed
    assert "no images are flagged as unlike the training images" in " ".join(printed.split())
    assert "any machine that can reach" not in printed


def test_a_server_for_other_machines_warns_that_it_has_no_password(
    served: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    served["code"] = 0

    assert main(["serve", "--run", "run", "--port", "0", "--host", "0.0.0.0"]) == 0

    assert "any machine that can reach 0.0.0.0 can use this server" in capsys.readouterr().err
    assert served["message"].startswith(f"serving at http://127.0.0.1:{served['port']}/")


def test_requests_are_logged_only_on_request(
    served: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(request_log, "level", logging.WARNING)

    main(["serve", "--run", "run", "--port", "0"])
    assert request_log.level == logging.WARNING
    main(["serve", "--run", "run", "--port", "0", "--access-log"])

    assert request_log.level == logging.DEBUG


def test_the_model_of_a_server_may_be_a_graph_and_has_the_device_of_the_user(
    served: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    opened: list[tuple[Any, ...]] = []
    engine = SimpleNamespace(classes=("a", "b"), reference=None, thresholds=(), facts={})

    def open_engine(*arguments: Any) -> Any:
        opened.append(arguments)
        return engine

    monkeypatch.setattr("vitft.predict.open_engine.open_engine", open_engine)
    for name in ("graph.onnx", "program.pt2"):
        Path(name).write_bytes(b"x")

    assert main(["serve", "--run", "graph.onnx", "--port", "0", "--device", "cuda:1"]) == 143
    assert opened == [("graph.onnx", "cuda:1")]
    assert served["made"][0] is engine
    assert main(["serve", "--run", "program.pt2", "--port", "0"]) == 5
    assert "a torch.export program, which vitft cannot run" in capsys.readouterr().err
    assert len(opened) == 1


def test_the_names_that_a_server_accepts_are_those_of_its_address_and_of_the_user(
    served: dict[str, Any],
) -> None:
    words = ["serve", "--run", "run", "--port", "0", "--host", "127.0.0.1"]

    main([*words, "--allow-host", "photos.example", "--allow-host", "two.example"])

    access = served["made"][3]
    assert access == access_for("127.0.0.1", ["photos.example", "two.example"])
    assert access != access_for("127.0.0.1", [])


@pytest.fixture
def labelled(asked: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    Path("photos").mkdir()

    def session(pool: Any, file: Any, *, prefix: str, classes: list[str]) -> Any:
        asked.update(prefix=prefix, classes=classes)
        return SimpleNamespace(notes=("one note",), answers_by_class=lambda: {"a": 2, "b": 3})

    def pool(folder: Any, **options: Any) -> str:
        asked.update(pool=options)
        return "pool"

    def app(session: Any, access: Any, *, key: str) -> str:
        asked.update(key=key)
        return "app"

    monkeypatch.setattr(label, "find_pictures", lambda _: "folder")
    monkeypatch.setattr("vitft.serve.label.app.make_label_app", app)
    monkeypatch.setattr("vitft.serve.label.pool.load_pool", pool)
    monkeypatch.setattr("vitft.serve.label.session.Session", session)
    monkeypatch.setattr("vitft.serve.server.server_of", lambda app: f"server of {app}")
    return asked


def test_pictures_are_labelled_at_an_address_with_a_key(
    labelled: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["label", "photos", "--port", "0", "--classes", "a,, b"]) == 143

    printed = capsys.readouterr()
    assert labelled["message"] == (
        f"label the pictures at http://127.0.0.1:{labelled['port']}/?key={labelled['key']} "
        "(press Ctrl-C to stop)"
    )
    assert len(labelled["key"]) >= 22  # 128 bits
    assert labelled["server"] == "server of app"
    assert (labelled["prefix"], labelled["classes"]) == ("photos/", ["a", "b"])
    assert (labelled["pool"]["weights"], labelled["pool"]["run"]) == ("demo", None)
    assert "one note" in printed.err
    assert "has access to the pictures" not in printed.err
    assert printed.out.splitlines() == [
        "5 labelled pictures in labels.csv",
        "next: vitft finetune --data labels.csv --weights demo",
    ]


def test_settings_of_the_features_are_passed_on_and_other_machines_warned_of(
    labelled: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    labelled["code"] = 0
    Path("old.csv").write_text("path,label,chosen\n")
    words = ["--cache", "none", "--device", "cpu", "--host", "0.0.0.0", "--out", "old.csv"]

    assert main(["label", "photos", "--port", "0", *words]) == 0

    train = labelled["pool"]["train"]
    assert (train.cache, train.device) == ("none", "cpu")
    assert "can reach 0.0.0.0 has access to the pictures" in " ".join(
        capsys.readouterr().err.split()
    )
