"""What `vitft export` prints, and formats of other tools."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from vitft.cli import export
from vitft.cli.export import export_command, print_export
from vitft.cli.main import build_parser, main
from vitft.export.job import Exported
from vitft.export.plan import NUM_COMPARED, ExportPlan
from vitft.system.errors import RunError


def row(name: str, difference: float, changed: int, images: int = 9) -> Any:
    return SimpleNamespace(
        name=name,
        by="timm",
        difference=difference,
        changed=changed,
        size=2_560_000,
        speed=12.34,
        original_speed=20.0,
        images=images,
    )


def exported(*rows: Any, **more: Any) -> Exported:
    return Exported(folder=Path("export"), rows=rows, **more)


def plan(*formats: str, **more: Any) -> ExportPlan:
    return ExportPlan(formats=formats, **{"out": Path("export"), **more})


def test_each_format_is_compared_with_the_run(capsys: pytest.CaptureFixture[str]) -> None:
    print_export(
        exported(row("timm", 1e-6, 0), row("int8", 2e-2, 1), notes=("a note",)),
        plan("timm", "int8"),
    )

    printed = capsys.readouterr()
    head, *lines, last = (" ".join(line.split()) for line in printed.out.splitlines())
    assert printed.out.splitlines()[1].startswith("timm    timm")
    assert printed.out.splitlines()[1].endswith("1.0e-06        0  2.6      12.3            20.0")
    assert head == ("format loaded by logit difference changed MB images/s run's images/s")
    assert lines == [
        "timm timm 1.0e-06 0 2.6 12.3 20.0",
        "int8 timm 2.0e-02 1 2.6 12.3 20.0",
    ]
    assert last == (
        "exported to export: largest logit difference 2.0e-02, 1 changed prediction on 9 "
        "validation images"
    )
    assert printed.err == "a note\n"


def test_noise_and_heads_on_the_last_block_are_stated(capsys: pytest.CaptureFixture[str]) -> None:
    print_export(
        exported(row("timm", 1e-6, 0, images=0), narrow=("safetensors", "timm", "html")),
        plan("transformers"),
    )

    printed = capsys.readouterr()
    assert printed.out.splitlines()[-1].endswith(
        "0 changed predictions on random noise because the validation images are missing "
        "(--safetensors, --timm and --html: from the model with a head on the last block, "
        "not from the run)"
    )
    assert printed.err.startswith("next: transformers.pipeline(")
    print_export(exported(row("timm", 1e-6, 0)), plan("timm", "transformers"))
    assert "next:" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "fix"),
    [
        ("onnx", "use --onnx: vitft export --onnx"),
        ("Torch_Export", "use --torch-export: vitft export --torch-export"),
        ("tflite", "use vitft export --torch-export: "),
        ("openvino", "use vitft export --onnx: "),
        ("xyz", "use one of --safetensors, --timm, "),
    ],
)
def test_a_format_by_name_is_answered_with_its_option(
    capsys: pytest.CaptureFixture[str], name: str, fix: str
) -> None:
    assert main(["export", "--format", name]) == 2

    assert f"fix: {fix}" in capsys.readouterr().err


def test_nothing_is_exported_by_default() -> None:
    args = vars(build_parser("export").parse_args(["export"]))

    assert args == {
        "formats": [],
        "format": None,
        "with_preprocessing": False,
        "with_resize": False,
        "run": None,
        "out": None,
        "images": NUM_COMPARED,
        "licence": "",
        "push_to_hub": "",
        "private": False,
        "revision": "",
        "dry_run": False,
        "image_licence": "",
        "image_credit": "",
        "command": export_command,
    }
    several = build_parser("export").parse_args(["export", "--onnx", "--timm"])
    assert several.formats == ["onnx", "timm"]


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[ExportPlan]:
    """Plans of exports that are not carried out."""
    monkeypatch.chdir(tmp_path)
    plans: list[ExportPlan] = []

    def export_run(_: str | None, plan: ExportPlan) -> Exported:
        plans.append(plan)
        return Exported(folder=plan.out, rows=(row("timm", 1e-6, 0),))

    monkeypatch.setattr("vitft.export.job.export_run", export_run)
    monkeypatch.setattr("vitft.models.find.find_model", lambda _: Path("m"))
    return plans


def test_the_hub_gets_the_format_of_timm_by_default(
    asked: list[ExportPlan], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["export", "--push-to-hub", "me/flowers", "--dry-run"]) == 0

    assert (asked[0].formats, asked[0].repo, asked[0].dry_run) == (("timm",), "me/flowers", True)
    printed = capsys.readouterr().err
    assert "not pushed (--dry-run): read export/README.md first" in printed
    assert "next: hf upload me/flowers export" in printed
    assert main(["export"]) == 2


def test_every_option_is_part_of_the_plan(asked: list[ExportPlan]) -> None:
    graph = ["--onnx", "--with-resize", "--with-preprocessing", "--images", "7", "--licence", "mit"]
    hub = ["--push-to-hub", "me/flowers", "--private", "--revision", "b", "--dry-run"]
    images = ["--image-licence", "cc-by-4.0", "--image-credit", "me"]

    assert main(["export", *graph, "--out", "one"]) == 0
    assert main(["export", *hub, *images, "--out", "two"]) == 0

    first, second = asked
    assert first == plan(
        "onnx",
        out=Path("one"),
        with_resize=True,
        with_preprocessing=True,
        images=7,
        licence="mit",
    )
    assert second == plan(
        "timm",
        out=Path("two"),
        repo="me/flowers",
        private=True,
        revision="b",
        dry_run=True,
        image_licence="cc-by-4.0",
        image_credit="me",
    )


def test_a_push_reports_the_address(
    asked: list[ExportPlan], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("vitft.export.hub.push", lambda *_: "https://hub/me/flowers")
    monkeypatch.setattr(export, "plan_export", lambda *_, **more: plan("timm", repo=more["repo"]))

    assert main(["export", "--push-to-hub", "me/flowers"]) == 0

    printed = capsys.readouterr()
    assert "pushing to me/flowers" in printed.err
    assert printed.out.splitlines()[-1] == "pushed: https://hub/me/flowers"


def test_another_folder_than_export_is_named(
    asked: list[ExportPlan], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["export", "--timm"]) == 0
    assert "already existed" not in capsys.readouterr().err
    Path("export").mkdir()
    assert main(["export", "--timm"]) == 0

    assert "so this export is in export-2/: other commands need --run export-2" in (
        " ".join(capsys.readouterr().err.split())
    )
    assert main(["export", "--timm", "--out", "own"]) == 0
    assert "already existed" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("formats", "end"),
    [
        (("timm",), "export-2/: other commands need --run export-2"),
        (("html", "onnx", "timm"), "export-2/: other commands need --run export-2/onnx"),
        (("torch-export", "html", "preprocessing"), "export-2/"),
    ],
)
def test_an_export_is_proposed_as_run_if_it_can_be_opened(
    formats: tuple[str, ...], end: str
) -> None:
    note = export.moved_note(Path("export-2"), formats)
    assert note == f"export/ already existed, so this export is in {end}"


def test_formats_that_differ_from_the_run_are_errors_beside_the_others(
    asked: list[ExportPlan], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    refused = tuple(RunError(f"--{name} differs", fix="use --onnx") for name in ("int8", "html"))
    done = cast("Any", exported(row("timm", 1e-6, 0), refused=refused))
    monkeypatch.setattr("vitft.export.job.export_run", lambda *_: done)

    assert main(["export", "--timm", "--int8", "--html"]) == 5

    printed = capsys.readouterr()
    assert "exported to export" in printed.out
    assert "vitft: error: --int8 differs; --html differs\n  fix: use --onnx\n" in printed.err
