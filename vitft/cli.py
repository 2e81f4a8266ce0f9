"""The door: parse, check what can be checked without torch, call one function, print.

Each verb's function imports what it needs, so `vitft --help` and a wrong option answer at once.
"""

import argparse
import re
import sys
import traceback
from collections.abc import Sequence
from difflib import get_close_matches
from importlib.metadata import version
from pathlib import Path
from typing import Any, NoReturn

from vitft import console
from vitft.cli_cache import add_cache
from vitft.cli_weights import add_weights
from vitft.config import Config, check_effect, from_table, merged, parse_setting, read_recipe
from vitft.errors import UsageError, VitftError


class Parser(argparse.ArgumentParser):
    """argparse whose complaints are VitftErrors with a next step."""

    def __init__(self, **options: Any) -> None:  # noqa: ANN401
        super().__init__(**options, allow_abbrev=False)

    def error(self, message: str) -> NoReturn:
        fix = f"see {self.prog} --help"
        words = re.findall(r"(?:unrecognized arguments: |invalid choice: ')([^\s']+)", message)
        near = get_close_matches(words[0], words_of(self), n=1) if words else []
        if near:
            fix = f"did you mean {near[0]}?"
        raise UsageError(message.partition(" (choose from")[0], fix=fix)


def words_of(parser: argparse.ArgumentParser) -> list[str]:
    """Every option and verb below a parser, for did-you-mean."""
    words: list[str] = []
    for action in parser._actions:
        words += [*action.option_strings, *map(str, action.choices or ())]
        if isinstance(action, argparse._SubParsersAction):
            words += [word for sub in action.choices.values() for word in words_of(sub)]
    return words


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code of `errors`."""
    console.prepare_streams()
    arguments = list(sys.argv[1:] if argv is None else argv)
    debug = "--debug" in arguments
    try:
        args = build_parser().parse_args([a for a in arguments if a != "--debug"])
        with console.quiet_pipe():
            return args.command(args)
    except VitftError as error:
        if debug:
            traceback.print_exc()
        console.fail(error)
        return error.exit_code
    except KeyboardInterrupt:
        console.interrupted()
        return 130
    except Exception:  # the only place that may: a bug ends here, with everything to report it
        traceback.print_exc()
        console.bug()
        return 1


def build_parser() -> Parser:
    """All verbs and their options."""
    parser = Parser(
        prog="vitft",
        description="Fine-tune a Vision Transformer on a folder of images.",
        epilog="Every verb explains itself: vitft finetune --help. --debug adds the traceback "
        "to an error.",
    )
    parser.add_argument("--version", action="version", version=f"vitft {version('vitft')}")
    verbs = parser.add_subparsers(title="verbs", metavar="VERB", required=True)
    add_finetune(verbs)
    add_predict(verbs)
    add_export(verbs)
    add_weights(verbs)
    add_cache(verbs)
    add_demo(verbs)
    return parser


Verbs = argparse._SubParsersAction  # the type argparse gives no public name

# option, the setting it stands for, how it is read, and its help
FINETUNE_OPTIONS: tuple[tuple[str, str, dict[str, Any], str], ...] = (
    ("--data", "data.path", {"metavar": "DIR"}, "image folder, one sub-folder per class; or demo"),
    ("--weights", "weights.name", {"metavar": "NAME"}, "catalogue name or weight file; or demo"),
    (
        "--freeze",
        "train.freeze",
        {"metavar": "WHAT"},
        "what trains: head, pre_logits, blocks:N, none",
    ),
    ("--epochs", "optim.epochs", {"type": int}, "passes over the training images"),
    ("--batch-size", "optim.batch_size", {"type": int, "metavar": "N"}, "images per step"),
    ("--lr", "optim.lr", {"type": float}, "peak learning rate"),
    (
        "--image-size",
        "weights.image_size",
        {"type": int, "nargs": "+", "metavar": "PX"},
        "side, or height and width; default: the weights' own",
    ),
    (
        "--pre-logits",
        "weights.pre_logits",
        {"metavar": "keep|drop"},
        "the Linear + Tanh before the head",
    ),
    ("--mean", "weights.mean", {"type": float, "nargs": "+"}, "channel means the weights expect"),
    ("--std", "weights.std", {"type": float, "nargs": "+"}, "channel deviations they expect"),
    ("--split", "data.split", {"metavar": "random|reference"}, "how images are held back"),
    ("--views", "train.views", {"type": int, "metavar": "K"}, "cached augmented views"),
    ("--cache", "train.cache", {"metavar": "DIR"}, "folder of cached features, or none"),
    ("--device", "train.device", {}, "auto, cpu, cuda, cuda:1, mps"),
)


def add_finetune(verbs: "Verbs[Parser]") -> None:
    """`vitft finetune`."""
    parser = verbs.add_parser("finetune", help="data and weights in, a run directory out")
    for option, setting, how, text in FINETUNE_OPTIONS:
        parser.add_argument(option, dest=setting, help=text, **how)
    parser.add_argument("--seed", type=int, help="of the split, the batch order and augmentation")
    parser.add_argument("--recipe", metavar="NAME", help="settings from a recipe or a TOML file")
    parser.add_argument("--out", metavar="DIR", help="run directory (default: runs/<when>-<data>)")
    parser.add_argument("--allow-pickle", action="store_true", help="read .pth files")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="any setting, e.g. optim.solver=sgd (listed in the run's config.toml)",
    )
    parser.set_defaults(command=finetune_command)


def config_from(args: argparse.Namespace) -> Config:
    """Recipe, then options, then --set; the same setting named twice is refused."""
    options = [
        (key, getattr(args, key))
        for _, key, _, _ in FINETUNE_OPTIONS
        if getattr(args, key) is not None
    ]
    if args.seed is not None:
        options += [("data.seed", args.seed), ("train.seed", args.seed)]
    if args.allow_pickle:
        options.append(("weights.allow_pickle", True))
    settings = [parse_setting(text) for text in args.set]
    twice = {key for key, _ in options} & {key for key, _ in settings}
    if twice:
        raise UsageError(
            f"{min(twice)} is named by an option and by --set", fix="leave one of them out"
        )
    table = read_recipe(args.recipe) if args.recipe else {}
    sizes = [
        ("weights.image_size", v[0] if len(v) == 1 else v)
        for k, v in options
        if k == "weights.image_size"
    ]
    config = from_table(merged(table, [*options, *settings, *sizes]))
    check_effect(config, [key for key, _ in [*options, *settings]])
    return config


def finetune_command(args: argparse.Namespace) -> int:
    """Check everything cheap first, then train and say what came of it."""
    from vitft.demo import demo_data
    from vitft.preflight import check_request
    from vitft.rundir import BASE

    config = demo_data(config_from(args))
    out = check_request(config, args.out)
    from vitft.train import finetune

    result = finetune(config, out=out)
    console.summary(
        result.run,
        result.figures,
        interrupted=result.interrupted,
        is_latest=result.run.parent == BASE,
    )
    return 130 if result.interrupted else 0


def add_predict(verbs: "Verbs[Parser]") -> None:
    """`vitft predict`."""
    parser = verbs.add_parser("predict", help="images in, class names out")
    parser.add_argument("images", nargs="+", metavar="IMAGE", help="files and folders")
    add_run(parser)
    parser.add_argument("--top-k", type=int, default=1, metavar="K", help="classes per image")
    parser.add_argument("--format", choices=console.FORMATS, default="table")
    parser.set_defaults(command=predict_command)


def predict_command(args: argparse.Namespace) -> int:
    """One row per image; exit code 3 if any could not be read."""
    from vitft.rundir import find_model

    if args.top_k < 1:
        raise UsageError(f"--top-k is {args.top_k}", fix="ask for at least one class")
    find_model(args.run)
    from vitft.predict import Predictor, expand

    images = list(expand(args.images))  # an empty folder is refused before the model is loaded
    predictor = Predictor.from_run(args.run, device=args.device)
    rows = console.Rows(args.format, args.top_k)
    for prediction in predictor.stream(images, top_k=args.top_k):
        rows.add(prediction.path, prediction.classes, prediction.probabilities, prediction.error)
    rows.close()
    return 3 if rows.errors else 0


def add_export(verbs: "Verbs[Parser]") -> None:
    """`vitft export`."""
    parser = verbs.add_parser("export", help="the trained model as files for other tools")
    parser.add_argument(
        "--safetensors",
        action="store_true",
        required=True,
        help="one self-describing file, and timm's config.json beside it",
    )
    parser.add_argument("--out", default="export", metavar="DIR", help="folder (default: export)")
    add_run(parser)
    parser.set_defaults(command=export_command)


def export_command(args: argparse.Namespace) -> int:
    """Write, compare, and only then say done."""
    from vitft.rundir import find_model

    find_model(args.run)
    from vitft.export import export_safetensors

    done = export_safetensors(args.run, Path(args.out).expanduser())
    for text in done.notes:
        console.note(text)
    on = f"{done.images} validation images" if done.images else "noise (the images are gone)"
    console.result(
        f"exported to {console.visible(str(done.folder))}: largest logit difference "
        f"{done.difference:.1e}, {done.changed} changed classes, on {on}"
    )
    return 0


def add_demo(verbs: "Verbs[Parser]") -> None:
    """`vitft demo`."""
    parser = verbs.add_parser("demo", help="the whole job on drawn flowers, without a network")
    parser.set_defaults(command=demo_command)


def demo_command(_: argparse.Namespace) -> int:
    """Fine-tune twice, predict, export, and say where to look."""
    from vitft.demo import run_demo

    run_demo()
    return 0


def add_run(parser: argparse.ArgumentParser) -> None:
    """Options of the verbs that use a trained model."""
    parser.add_argument("--run", metavar="DIR", help="run folder or checkpoint (default: latest)")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda, cuda:1, mps")
