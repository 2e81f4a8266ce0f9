"""Suggestions for wrong arguments, and numbers written in other ways."""

from pathlib import Path

import pytest

from vitft.cli.main import build_parser
from vitft.cli.parser import Commands, Parser, plain_number
from vitft.system.errors import UsageError


def small() -> Parser:
    parser = Parser(prog="vitft try")
    parser.add_argument("--size", type=int, metavar="N")
    parser.add_argument("--rate", type=float)
    parser.add_argument("--kind", choices=("alpha", "beta"))
    parser.add_argument("--letter", choices=[f"c{i}" for i in range(11)])
    return parser


def fix_of(*words: str, parser: Parser | None = None) -> str:
    parser = parser or small()
    parser.typed = ["try", *words]
    with pytest.raises(UsageError) as refused:  # noqa: PT012
        _, unknown = parser.parse_known_args(words)
        if unknown:
            parser.error(f"unrecognized arguments: {unknown[0]}")
    return refused.value.fix


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("95%", "0.95"),
        ("95 %", "0.95"),
        ("0,95", "0.95"),
        ("0.95", "0.95"),
        ("12,5%", "0.125"),
        (" 7 ", "7"),
        ("1e3", ""),
        ("-5%", ""),
        ("5%%", ""),
        ("a", ""),
    ],
)
def test_a_percentage_or_a_comma_is_understood(text: str, number: str) -> None:
    assert plain_number(text) == number


@pytest.mark.parametrize(
    ("words", "fix"),
    [
        (["--rate", "95%"], "use --rate 0.95"),
        (["--rate", "soon"], "run vitft try --help for usage"),
        (["--size", "224x224"], "use --size 224"),
        (["--size", "224x192"], "use --size 224 192"),
        (["--size", "big"], "run vitft try --help for usage"),
        (["--siez", "3"], "use --size"),
        (["--kind", "alhpa"], "use alpha"),
        (["--kind", "xyz"], "use one of alpha, beta"),
        (["--letter", "xyz"], "run vitft try --help for usage"),
        (["--unheard-of"], "run vitft try --help for usage"),
    ],
)
def test_the_fix_is_the_nearest_argument(words: list[str], fix: str) -> None:
    assert fix_of(*words) == fix


def test_up_to_ten_choices_are_listed() -> None:
    parser = small()
    parser.add_argument("--ten", choices=[f"c{i}" for i in range(10)])

    assert fix_of("--ten", "xyz", parser=parser) == "use one of " + ", ".join(
        f"c{i}" for i in range(10)
    )


def test_a_single_choice_is_not_one_of_several() -> None:
    parser = Parser(prog="vitft try")
    Commands(parser, "actions").add_parser("fetch", help="download an archive")

    assert fix_of("xyz", parser=parser) == "use fetch"


def test_an_option_is_not_abbreviated() -> None:
    assert fix_of("--siz", "3") == "use --size"


def test_required_options_are_named_with_their_values() -> None:
    parser = small()
    parser.add_argument("--out", metavar="DIR", required=True)
    parser.add_argument("--plain", required=True)

    assert fix_of(parser=parser) == "add --out DIR and --plain; run vitft try --help for usage"


def test_a_missing_command_is_answered_with_all_of_them() -> None:
    parser = Parser(prog="vitft try")
    commands = Commands(parser, "actions")
    for name in ("list", "clean"):
        commands.add_parser(name, help=f"{name} everything")

    assert fix_of(parser=parser) == "add one of list, clean; run vitft try --help for usage"
    assert parser.commands["list"].description == "List everything."
    assert {"list", "clean", "--help"} <= parser.words()
    assert "{ACTION}" not in parser.format_help()
    assert "ACTION" in parser.format_help()


@pytest.mark.parametrize(
    ("command", "word", "found"),
    [
        ("finetune", "photos", ("images are given", ("--data", "photos"))),
        ("export", "made", ("the model is given", ("--run", "made"))),
        ("export", "runs/none", ("the model is given", ("--run", "runs/none"))),
        ("export", "none.html", ("the output is named", ("--out", "none"))),
        ("compare", "none.html", ("the output is named", ("--out", "none.html"))),
        ("recipes", "none", ("", ())),
    ],
)
def test_a_superfluous_word_is_what_the_command_has_an_option_for(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    command: str,
    word: str,
    found: tuple[str, tuple[str, ...]],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("made").mkdir()

    assert build_parser(command).commands[command].option_for(word) == found


@pytest.mark.parametrize(
    ("command", "wrong", "meant"),
    [
        ("finetune", "--learning-rate", "--lr"),
        ("finetune", "--LEARNING_RATE=0.1", "--lr"),
        ("finetune", "--epoch", "--epochs"),
        ("finetune", "--output-dir", "--out"),
        ("finetune", "--images", "--data"),
        ("finetune", "--json", None),
        ("evaluate", "--json", "--format json"),
        ("evaluate", "--model", "--run"),
        ("predict", "--conf", "--threshold"),
        ("check", "--label-column", "--set data.label=VALUE"),
        ("finetune", "--zzzzzz", None),
    ],
)
def test_names_of_other_tools_are_answered_with_those_of_vitft(
    command: str, wrong: str, meant: str | None
) -> None:
    assert build_parser(command).commands[command].nearest(wrong, ()) == meant
