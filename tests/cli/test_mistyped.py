"""Mistyped arguments are answered with the command that was probably meant."""

from pathlib import Path

import pytest

from vitft.cli.main import main


@pytest.mark.parametrize(
    ("typed", "fix"),
    [
        (
            "finetune photos --epochs 3",
            "images are given with --data: {finetune --data photos --epochs 3}",
        ),
        ("finetune data=photos epochs=3", "use --data"),
        ("train --data photos", "use finetune"),
        ("patches x.jpg", "use explain --patches"),
        ("validate --data photos", "use evaluate"),
        ("predict --weights x a.jpg", "use --run"),
        ("predict --conf 0.5 a.jpg", "use --threshold"),
        ("export --openvino", "use --onnx"),
        ("export --coreml", "use --torch-export"),
        ("report runs/x", "the model is given with --run: {report --run runs/x}"),
        ("evaluate --run x", "add --data DIR|TABLE; run vitft evaluate --help for usage"),
        (
            "study --out x",
            "add --data DIR and --weights NAME; run vitft study --help for usage",
        ),
        ("weights", "add one of list, show, fetch, inspect; run vitft weights --help for usage"),
        ("evaluate photos", "images are given with --data: {evaluate --data photos}"),
        ("predict --input new", "images are given without an option: {predict new}"),
        (
            "predict --images=new --top-k 2",
            "images are given without an option: {predict new --top-k 2}",
        ),
        ("label --data photos", "images are given without an option: {label photos}"),
        ("check --folder photos", "images are given without an option: {check photos}"),
        ("export photos --html", "the model is given with --run: {export --run photos --html}"),
        ("export --format onnx", "use --onnx: {export --onnx}"),
        ("export --format=torch_export", "use --torch-export: {export --torch-export}"),
        ("export format=onnx", "run vitft export --help for usage"),
        ("finetune --data my photos", "run vitft finetune --help for usage"),
        (
            "export --format engine",
            "use {export --onnx: an ONNX graph for onnxruntime and other tools (any batch size); "
            "see docs/export.md",
        ),
        ("export --html page.html", "the output is named with --out: {export --html --out page}"),
    ],
)
def test_a_missing_or_superfluous_option_is_answered_with_the_command(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    typed: str,
    fix: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("photos", "a=b", "my photos 2026", "new pictures"):
        (tmp_path / name).mkdir()

    assert main(typed.split()) == 2

    wanted = fix.replace("{", "vitft ").removesuffix("}")
    assert f"\n  fix: {wanted}\n" in capsys.readouterr().err


def test_a_misspelt_recipe_is_answered_with_the_one_that_was_probably_meant(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["finetune", "--recipe", "cifar-10"]) == 2

    assert "\n  fix: did you mean cifar10? Use a TOML file, or one of" in capsys.readouterr().err
