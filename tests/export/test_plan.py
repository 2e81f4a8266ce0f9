"""Options of an export: their defaults, their limits and what excludes what."""

from pathlib import Path
from typing import Any

import pytest

from vitft.cli.main import main
from vitft.export.plan import EXPORT_FORMATS, HUB_FORMATS, plan_export
from vitft.system.errors import UsageError

PUSH = {"repo": "me/flowers", "dry_run": True}


def test_formats_are_in_the_order_of_the_options_and_each_is_written_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    plan = plan_export(["onnx", "timm", "onnx", "safetensors"], None)

    assert plan.formats == ("safetensors", "timm", "onnx")
    assert plan.out == Path("export")
    (tmp_path / "export").mkdir()
    assert plan_export(["timm"], None).out == Path("export-2")
    assert plan_export(["timm"], "mine").out == Path("mine")
    assert not any((plan.with_preprocessing, plan.with_resize, plan.private, plan.dry_run))


def test_the_help_states_how_many_images_are_compared_by_default(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["export", "--help"]) == 0

    shown = " ".join(capsys.readouterr().out.split())
    number = plan_export(["timm"], "out").images
    assert f"compare the exported model with the original (default: {number})" in shown


ACCEPTED: list[Any] = [
    pytest.param(["timm"], {"images": 1}, id="one image"),
    pytest.param(["timm"], {"licence": "x" * 100}, id="a licence of 100 characters"),
    pytest.param(["onnx"], {"with_resize": True}, id="a graph that resizes"),
    pytest.param(["onnx", "int8"], {"with_preprocessing": True}, id="graphs that normalise"),
    pytest.param(["timm"], {**PUSH, "image_licence": "cc0-1.0"}, id="free images"),
    pytest.param(
        ["timm"],
        {**PUSH, "image_licence": "cc-by-4.0", "image_credit": "x" * 500},
        id="a credit of 500 characters",
    ),
    pytest.param(["timm"], {"repo": "a" * 96 + "/" + "b" * 96, "dry_run": True}, id="long names"),
    *(pytest.param([name], PUSH, id=f"{name} on the hub") for name in HUB_FORMATS),
]
REFUSED: list[Any] = [
    pytest.param([], {}, "no export format given", id="no format"),
    pytest.param(["coreml"], {}, "no export format given", id="an unknown format"),
    pytest.param(["timm"], {"images": 0}, "invalid --images 0", id="no image"),
    pytest.param(["timm"], {"licence": "x" * 101}, "invalid --licence", id="a long licence"),
    pytest.param(["timm"], {"licence": "a\tb"}, "invalid --licence", id="a tab"),
    pytest.param(["onnx", "int8"], {"with_resize": True}, "--onnx alone", id="two that resize"),
    pytest.param(
        ["onnx", "timm"], {"with_preprocessing": True}, "contain a computation graph", id="timm"
    ),
    pytest.param(["timm"], {"private": True}, "need --push-to-hub", id="private"),
    pytest.param(["timm"], {"revision": "x"}, "need --push-to-hub", id="a branch"),
    pytest.param(["timm"], {"image_licence": "mit"}, "need --push-to-hub", id="a licence"),
    pytest.param(["timm"], {"image_credit": "me"}, "need --push-to-hub", id="a credit"),
    pytest.param(["timm", "onnx"], PUSH, "exactly one format", id="two formats on the hub"),
    pytest.param(["onnx"], PUSH, "exactly one format", id="a graph on the hub"),
    pytest.param(
        ["timm"],
        {**PUSH, "image_licence": "mit", "image_credit": "x" * 501},
        "expected text on one line",
        id="a long credit",
    ),
    pytest.param(
        ["timm"],
        {**PUSH, "image_licence": "cc0-1.0", "image_credit": "x\n"},
        "expected text on one line",
        id="lines",
    ),
    *(
        pytest.param(["timm"], {"repo": name, "dry_run": True}, "invalid --push-to-hub", id=name)
        for name in ("flowers", "me/a/b", "me/", "/a", "me/a..b", "-me/a", "m e/a", "ü/a")
    ),
    pytest.param(
        ["timm"], {"repo": "a" * 97 + "/b", "dry_run": True}, "invalid --push", id="a long owner"
    ),
]


@pytest.mark.parametrize(("formats", "options"), ACCEPTED)
def test_valid_options_are_accepted(
    tmp_path: Path, formats: list[str], options: dict[str, Any]
) -> None:
    plan = plan_export(formats, str(tmp_path / "out"), **options)

    assert {*plan.formats} == {*formats} <= {*EXPORT_FORMATS}


@pytest.mark.parametrize(("formats", "options", "problem"), REFUSED)
def test_invalid_options_are_refused(
    tmp_path: Path, formats: list[str], options: dict[str, Any], problem: str
) -> None:
    with pytest.raises(UsageError, match=problem):
        plan_export(formats, str(tmp_path / "out"), **options)


@pytest.mark.parametrize(
    ("token", "is_offline", "problem"),
    [
        ("", False, "needs a hub token"),
        ("x", True, "while HF_HUB_OFFLINE is set"),
        ("x", False, ""),
    ],
)
def test_an_upload_needs_a_token_and_the_network(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, token: str, is_offline: bool, problem: str
) -> None:
    monkeypatch.setattr("huggingface_hub.get_token", lambda: token)
    monkeypatch.setattr("huggingface_hub.constants.is_offline_mode", lambda: is_offline)
    out = str(tmp_path / "out")

    if not problem:
        assert plan_export(["timm"], out, repo="me/flowers").repo == "me/flowers"
        return
    with pytest.raises(UsageError, match=problem):
        plan_export(["timm"], out, repo="me/flowers")
