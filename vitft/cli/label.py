"""`vitft label`: label unsorted images on a web page, the most informative ones first."""

import argparse
import os
import secrets
from collections.abc import Mapping
from pathlib import Path

from vitft.cli import output
from vitft.cli.parser import Command, given
from vitft.cli.serve import check_port, run_server
from vitft.config.sections import TrainSpec
from vitft.data.mistaken import check_is_folder
from vitft.data.table import leads_outside, path_in
from vitft.models.find import find_model
from vitft.models.pretrained.catalog import check_weights_name
from vitft.serve.label.answers import AnswerFile
from vitft.serve.label.pool import find_pictures, load_pool
from vitft.serve.limits import ServeLimits, access_for, is_loopback
from vitft.system.errors import UsageError
from vitft.system.imports import heavy_imports, require_extra
from vitft.system.signals import Stopper
from vitft.system.text import count, labelled, listing, shell_join, shell_quote

_BUNDLED = "demo"  # name of the default weights, which are bundled with vitft

_MIN_PER_CLASS = 2
"""Number of images per class without which a class cannot be split into training and validation."""


@Command(
    "label",
    f"""
data DIR  folder of images, with or without subfolders
--weights NAME  pretrained weights for the features (larger ones need fewer answers, default:
    {_BUNDLED})
--run RUN  run directory or checkpoint for the features and the first guesses
--classes A,B,...  class names, separated by commas (the page can add more)
--out FILE := labels.csv  table to which the answers are appended
--host
--port PORT := 8001  port to listen on, or 0 for any free port
--cache
--device
""",
    description="Label images on a web page. The page asks about the most informative images, "
    "guesses the rest and tests itself on a random sample. Each answer is immediately "
    "appended to a table for vitft finetune --data. Press Ctrl-C to stop, and run the same command "
    "again to continue.",
    exclusive=("--weights", "--run"),
    defaults={"classes": ""},
)
def _label_command(args: argparse.Namespace) -> int:
    """Serve the page until a signal arrives; return 130 for SIGINT or 143 for other signals."""
    root, table = Path(args.data).expanduser(), Path(args.out).expanduser()
    names = [name.strip() for name in args.classes.split(",") if name.strip()]
    if repeated := next((name for name in names if names.count(name) > 1), ""):
        raise UsageError(
            f"--classes names {repeated} twice", fix="give every class once, separated by commas"
        )
    check_port(args.port)
    if root.is_file():
        raise UsageError(
            f"{root} is a file, not a folder of images",
            fix=f"to continue a table, run `vitft label FOLDER --out {shell_quote(str(root))}`"
            if root.suffix.lower() == ".csv"
            else "use a folder of image files, because arrays already contain labels",
        )
    check_is_folder(root)
    _check_table(table, root, is_default=args.out == "labels.csv")
    weights = args.weights or _BUNDLED
    if args.run is None:
        check_weights_name(weights, allow_pickle=None)
    else:
        find_model(args.run)
    access = access_for(args.host, [])
    require_extra("serve", feature="vitft label")
    folder = find_pictures(root)
    with heavy_imports():
        from vitft.serve.label.app import make_label_app
        from vitft.serve.label.session import Session
        from vitft.serve.server import listen

    train = TrainSpec(**given(args, "cache", "device"))
    with AnswerFile(table) as file, listen(args.host, args.port) as bound, Stopper() as stopper:
        pool = load_pool(folder, weights=weights, run=args.run, names=names, train=train)
        session = Session(pool, file, prefix=_prefix_in_table(root, table), classes=names)
        for text in session.notes:
            output.note(text)
        key = secrets.token_urlsafe(16)
        app = make_label_app(session, access, key=key)
        if not is_loopback(args.host):
            output.warn(
                f"anyone who knows the address below and can reach {args.host} has access to the "
                "images. The connection is not encrypted"
            )
        about = f"label the images at {{}}?key={key}"
        code = run_server(app, ServeLimits(), bound, args.host, about=about)
        _print_next(session.answers_by_class(), table, args)
    return stopper.exit_code or code


def _check_table(table: Path, root: Path, *, is_default: bool) -> None:
    """Check the path of the table."""
    if table.suffix.lower() != ".csv" or table.is_dir():
        raise UsageError(f"invalid --out {table}: not a CSV file", fix="use e.g. --out labels.csv")
    if not table.absolute().parent.is_dir():
        raise UsageError(
            f"the folder of --out {table} does not exist", fix="create it, or choose another folder"
        )
    home = table.absolute().parent.resolve()
    if is_default and root.resolve() in (home, *home.parents):
        raise UsageError(
            "labels.csv would be written to the image folder",
            fix="choose a file with --out, or write it there anyway with --out "
            f"{shell_quote(str(root / 'labels.csv'))}",
        )


def _prefix_in_table(root: Path, table: Path) -> str:
    """Return the prefix of the pictures' paths in the table: absolute unless below its folder."""
    home, place = Path(os.path.abspath(table)).parent, os.path.abspath(root)  # noqa: PTH100 - keeps links
    if place == str(home):
        return ""
    below = path_in(home, place)
    return f"{place if leads_outside(below) else below}/"


def _print_next(answers: Mapping[str, int], table: Path, args: argparse.Namespace) -> None:
    """Print the number of labelled pictures, and the next command or what is missing for it."""
    output.result(f"{count(sum(answers.values()), 'labelled image')} in {table}")
    answers = {name: number for name, number in answers.items() if number}
    few = [f"{name} ({number})" for name, number in answers.items() if number < _MIN_PER_CLASS]
    if few or len(answers) < 2:
        missing = f". Too few: {listing(few)}" if few else ""
        need = f"at least 2 classes, and at least {_MIN_PER_CLASS} images of every class{missing}"
        output.result(labelled("Next", f"run the same command again: training needs {need}"))
        return
    words = ["--data", str(table), "--weights", args.run or args.weights or _BUNDLED]
    output.result(labelled("Next", shell_join(["vitft", "finetune", *words])))
