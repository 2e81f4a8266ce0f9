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
        (
            "finetune data=photos epochs=3",
            "write options with --: {finetune --data photos --epochs 3}",
        ),
        (
            "finetune photos imgsz=96 lr0=0.1 optimizer=AdamW patience=5 optim.clip=1 name=x",
            "write options with --: {finetune --data photos --image-size 96 --lr 0.1 "
            "--solver adamw --set optim.patience=5 --set optim.clip=1 --out x}",
        ),
        (
            "finetune --data photos model=a.safetensors project=out plots=True",
            "leave out plots=True and write options with --: "
            "{finetune --data photos --weights a.safetensors --out out}",
        ),
        (
            "finetune --data photos --set optim.clip=1 group_duplicates=True",
            "write options with --: {finetune --data photos --set optim.clip=1 --group-duplicates}",
        ),
        ("finetune --data=photos plots=1", "leave out plots=1: {finetune --data=photos}"),
        (
            "finetune --data my photos 2026 --epochs 3",
            "put a name with spaces in quotes: {finetune --data 'my photos 2026' --epochs 3}",
        ),
        (
            "check my photos 2026",
            "put a name with spaces in quotes: {check 'my photos 2026'}",
        ),
        ("finetune a=b", "images are given with --data: {finetune --data a=b}"),
        ("evaluate photos model=a", "write options with --: {evaluate --data photos --run a}"),
        (
            "evaluate photos --data flowers model=a",
            "write options with --: {evaluate photos --data flowers --run a}",
        ),
        (
            "evaluate data=photos model=runs/a",
            "write options with --: {evaluate --data photos --run runs/a}",
        ),
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
        (
            "predict new pictures --out x.csv",
            "put a name with spaces in quotes: {predict 'new pictures' --out x.csv}",
        ),
        ("export photos --html", "the model is given with --run: {export --run photos --html}"),
        ("export --format onnx", "use --onnx: {export --onnx}"),
        ("export --format=torch_export", "use --torch-export: {export --torch-export}"),
        ("export format=onnx", "write options with --: {export --format onnx}"),
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
