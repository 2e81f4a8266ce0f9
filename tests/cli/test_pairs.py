"""Arguments written as KEY=VALUE."""

from pathlib import Path

import pytest

from vitft.cli.main import build_parser
from vitft.cli.pairs import option_words, translate_pairs


def translated(command: str, *words: str) -> tuple[list[str], list[str]]:
    parser = build_parser(command).commands[command]
    found, unknown = translate_pairs(
        [command, *words], parser._option_string_actions, parser.settable
    )
    return found[1:], unknown


@pytest.mark.parametrize(
    ("command", "words", "found", "unknown"),
    [
        ("finetune", ["data=d"], ["--data", "d"], []),
        ("finetune", ["DATA=d"], ["--data", "d"], []),
        ("finetune", ["image_size=96"], ["--image-size", "96"], []),
        ("finetune", ["model=a"], ["--weights", "a"], []),
        ("predict", ["model=a"], ["--run", "a"], []),
        ("finetune", ["optimizer=AdamW"], ["--solver", "adamw"], []),
        ("finetune", ["recipe=Own.toml"], ["--recipe", "Own.toml"], []),
        ("finetune", ["group_duplicates=True"], ["--group-duplicates"], []),
        ("finetune", ["group_duplicates=False"], ["--set", "data.group_duplicates=false"], []),
        ("finetune", ["compile=True"], ["--set", "train.compile=true"], []),
        ("finetune", ["train.compile=FALSE"], ["--set", "train.compile=false"], []),
        ("finetune", ["optim.schedule=Cosine"], ["--set", "optim.schedule=cosine"], []),
        ("finetune", ["fit=Smaller"], ["--fit", "Smaller"], []),
        ("finetune", ["lora_targets=QKV"], ["--set", "train.lora_targets=QKV"], []),
        ("finetune", ["optim.clip=1"], ["--set", "optim.clip=1"], []),
        ("finetune", ["plots=True"], [], ["plots=True"]),
        ("finetune", ["--set", "optim.clip=1"], ["--set", "optim.clip=1"], []),
        ("finetune", ["--dry-run", "epochs=3"], ["--dry-run", "--epochs", "3"], []),
        ("finetune", ["dry_run=True"], [], ["dry_run=True"]),
        ("finetune", ["there=1"], ["there=1"], []),
        ("evaluate", ["data.label=x"], ["--set", "data.label=x"], []),
        ("evaluate", ["optim.clip=1"], [], ["optim.clip=1"]),
        ("report", ["optim.clip=1"], [], ["optim.clip=1"]),
        ("evaluate", ["device=cpu"], ["--device", "cpu"], []),
    ],
)
def test_pairs_become_options_of_the_command_if_it_has_them(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    command: str,
    words: list[str],
    found: list[str],
    unknown: list[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("there=1").touch()

    assert translated(command, *words) == (found, unknown)


def test_the_words_of_a_pair_are_empty_without_a_counterpart() -> None:
    actions = build_parser("finetune").commands["finetune"]._option_string_actions

    assert option_words("plots", "True", actions, ()) == []
    assert option_words("lr0", "0.1", actions, ()) == ["--lr", "0.1"]
    assert option_words("lr0", "0.1", {}, ()) == []
