"""The door of `vitft predict`: inputs to sources, an engine to answer them, rows to a place.

A few images on a CPU are answered without torch. What can be refused is refused before a model is
loaded.
"""

import argparse
import contextlib
import os
import sys
from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING

from vitft.predict.output import RESUMABLE, Kept, Share
from vitft.predict.rows import FORMATS, Rows
from vitft.system import console
from vitft.system.errors import UsageError

if TYPE_CHECKING:
    from vitft.cli.parser import Parser
    from vitft.data.sources import ImageSource
    from vitft.predict.engine import Engine, Judge, Prediction
    from vitft.predict.torch_engine import Predictor

ENGINES = ("auto", "numpy", "torch")
INPUTS = """\
inputs:
  a file, a folder (all images below it, sorted by path), a pattern ('photos/*.jpg', '**' goes into
  folders), an address (https://..., up to 64 MB and 30 s), or - for standard input: the bytes of
  one image, or paths, one a line or with NULs between (find -print0).
  A .txt, .csv or .tsv file is read as a list if the first path in it exists; --list says so of any
  file. A list has one path a line; a CSV file a column path (or file, filename, image, url ...).
  Relative paths are looked for beside the list, else in the current folder.

rows:
  one for each input, in the order of the inputs; what is no image gets a row that says why, and the
  exit code is 3. Probabilities are shares of one over all classes. Notes: "not sure" below the
  threshold, "unlike the training images" if the picture's feature is further from them than 99 % of
  held-out images were.

large jobs:
  --out FILE is written as FILE.part until it is whole; after an interruption the same command with
  --resume goes on and ends in the same bytes (jsonl, csv).
  torchrun --nproc-per-node 4 -m -- vitft predict ... --out FILE (with the two dashes) splits the
  inputs over processes; the last to end puts the rows in order. The exit code is 0 then, whatever
  the images were.
"""


def add_predict(verbs: "argparse._SubParsersAction[Parser]") -> None:
    """`vitft predict`."""
    parser = verbs.add_parser(
        "predict",
        help="images in, class names out",
        epilog=INPUTS,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("images", nargs="*", metavar="IMAGE", help="files, folders, ...: see below")
    parser.add_argument("--list", action="append", default=[], metavar="FILE", help="of images")
    parser.add_argument("--run", metavar="DIR", help="run folder or checkpoint (default: latest)")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda, cuda:1, mps")
    parser.add_argument("--top-k", type=int, default=1, metavar="K", help="classes per image")
    parser.add_argument("--format", choices=FORMATS, help="default: table, or as --out is named")
    parser.add_argument("--out", metavar="FILE", help="write rows there; never overwrites")
    parser.add_argument("--resume", action="store_true", help="go on with an unfinished --out")
    parser.add_argument(
        "--threshold", type=float, metavar="P", help="answers below P are noted as not sure"
    )
    parser.add_argument(
        "--precision",
        type=float,
        metavar="P",
        help="choose the threshold: a share P of the sure answers was right on validation images",
    )
    parser.add_argument("--tta", action="store_true", help="also ask about the mirror image")
    parser.add_argument("--explain", metavar="DIR", help="new folder for where the model looked")
    parser.add_argument(
        "--dtype",
        choices=("fp32", "bf16"),
        default="fp32",
        help="bf16 is faster; probabilities move a little, close calls are settled in fp32",
    )
    parser.add_argument(
        "--engine", choices=ENGINES, default="auto", help="numpy needs no torch; default: by count"
    )
    parser.set_defaults(command=predict_command)


def predict_command(args: argparse.Namespace) -> int:
    """One row per image; exit code 3 if any could not be read."""
    from vitft.models.find import find_model

    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # read when NumPy is imported: see `quick`
    share = own_share()
    style = check_request(args, share)
    home = find_model(args.run).parent
    threshold = threshold_of(args, home)
    if args.explain is not None:
        from vitft.cli.explain import plan_out

        args.explain = plan_out(args.explain, "--explain")
    waiting = named_sources(args)
    engine, waiting = engine_for(args, waiting, share)
    share = replace(share, chunk=engine.batch)
    done = end_already(args, style, share)
    if done is not None:
        return done
    judge = judge_for(args, engine, home, threshold)
    with places(args, style, share, waiting) as (rows, mine):
        for prediction in predictions(args, engine, mine, judge):
            rows.add(
                prediction.path,
                prediction.classes,
                prediction.probabilities,
                prediction.error,
                prediction.notes,
            )
    say_end(args, rows)
    return 3 if rows.errors and share.world == 1 else 0


def check_request(args: argparse.Namespace, share: Share) -> str:
    """The format of the rows, if the options go together.

    Raises:
        UsageError: They do not.
    """
    from vitft.predict.output import check_out
    from vitft.predict.rows import style_of

    if not args.images and not args.list:
        raise UsageError("no IMAGE to name", fix="name files, folders, addresses, - or --list FILE")
    check_numbers(args)
    style = style_of(args.format, args.out)
    if args.resume and (args.out is None or style not in RESUMABLE):
        raise UsageError(
            "--resume goes on with a file of rows", fix="add --out FILE.jsonl or FILE.csv"
        )
    if share.world > 1 and (args.out is None or style not in RESUMABLE or "-" in args.images):
        raise UsageError(
            "several processes share inputs that each can read and write rows that can be joined",
            fix="add --out FILE.jsonl (or .csv), and give a list instead of standard input",
        )
    if args.engine == "numpy":
        idle = {"--explain": args.explain, "--dtype bf16": args.dtype != "fp32" or None}
        for option, value in idle.items():
            if value is not None:
                raise UsageError(f"{option} needs torch", fix="leave --engine numpy out")
    if args.out is not None:
        check_out(Path(args.out), share, resume=args.resume)
    return style


def check_numbers(args: argparse.Namespace) -> None:
    """Refuse counts and shares that mean nothing.

    Raises:
        UsageError: With the value.
    """
    if args.top_k < 1:
        raise UsageError(f"--top-k is {args.top_k}", fix="ask for at least one class")
    if args.threshold is not None and args.precision is not None:
        raise UsageError("--threshold and --precision both set it", fix="leave one of them out")
    for option in ("threshold", "precision"):
        value = getattr(args, option)
        if value is not None and not 0 < value <= 1:
            raise UsageError(f"--{option} is {value}", fix="a share over 0, up to 1, e.g. 0.95")


def own_share() -> Share:
    """Which part of the inputs is this process's: all, unless torchrun has started several."""
    rank, world = (os.environ.get(name, "") for name in ("RANK", "WORLD_SIZE"))
    if rank.isdigit() and world.isdigit() and int(world) > 1:
        return Share(rank=int(rank), world=int(world))
    return Share()


def named_sources(args: argparse.Namespace) -> "Iterator[ImageSource]":
    """Everything that the user named."""
    from vitft.data.sources import sources

    return sources(args.images, lists=args.list, stdin=sys.stdin.buffer)


def threshold_of(args: argparse.Namespace, home: Path) -> float:
    """The probability below which answers are not sure; 0 if none was asked for."""
    if args.precision is None:
        return args.threshold or 0.0
    from vitft.predict.threshold import threshold_for

    found = threshold_for(home, args.precision)
    low, high = found.interval
    console.note(
        f"sure from {found.value:.1%} on: {found.precision:.1%} of such answers were right "
        f"(95 % interval {low:.1%} to {high:.1%}), {found.coverage:.1%} of {found.images} "
        "validation images"
    )
    return found.value


def engine_for(
    args: argparse.Namespace, waiting: "Iterator[ImageSource]", share: Share
) -> "tuple[Engine, Iterator[ImageSource]]":
    """NumPy for a few images on a CPU, torch for the rest; gives back the sources it looked at."""
    from vitft.predict.numpy_engine import FEW, QuickEngine

    fits = args.device in ("auto", "cpu") and args.dtype == "fp32" and args.explain is None
    first = [*islice(waiting, FEW + 1)] if share.world == 1 else []
    are_few = 0 < len(first) <= FEW
    waiting = chain(first, waiting)
    if args.engine == "numpy" or (args.engine == "auto" and are_few and fits):
        from vitft.models.find import find_model

        engine = QuickEngine.open(find_model(args.run))
        if engine is not None:
            return engine, waiting
    predictor = with_torch(args)
    if args.engine == "numpy":
        raise UsageError(
            "this model is none that NumPy can run (a hybrid, or one of timm)",
            fix="leave --engine numpy out",
        )
    if are_few:
        predictor.work_together()
    return predictor, waiting


def with_torch(args: argparse.Namespace) -> "Predictor":
    """The engine in torch; the file is read and verified while torch is imported."""
    from vitft.models.find import find_model
    from vitft.predict.numpy_engine import begin_digest
    from vitft.system.imports import heavy_imports

    digest = begin_digest(find_model(args.run))
    with heavy_imports():
        from vitft.predict.torch_engine import Predictor

    return Predictor.from_run(args.run, device=args.device, precision=args.dtype, digest=digest)


def judge_for(args: argparse.Namespace, engine: "Engine", home: Path, threshold: float) -> "Judge":
    """What scores come to."""
    from vitft.features.ood import read_reference
    from vitft.predict.engine import Judge

    return Judge(
        classes=engine.classes,
        top_k=min(args.top_k, len(engine.classes)),
        threshold=threshold,
        reference=read_reference(home, engine.feature_size),
        keeps_views=args.explain is not None,
    )


@contextlib.contextmanager
def places(
    args: argparse.Namespace, style: str, share: Share, waiting: "Iterator[ImageSource]"
) -> "Iterator[tuple[Rows, Iterator[ImageSource]]]":
    """Where rows go, and the sources that have none yet."""
    from vitft.predict.output import into_file, kept_rows, part_path

    if args.out is None:
        rows = Rows(style, args.top_k)
        yield rows, waiting
        rows.close()
        return
    mine, kept, part = own(waiting, share), Kept(0, 0, 0), part_path(Path(args.out), share)
    if args.resume and part.exists():
        again = Rewound(mine, share.chunk)
        kept = kept_rows(part, style, args.top_k, again.names(), share.chunk)
        mine = again.after(kept.rows)
        console.note(f"resuming after {kept.rows:,} rows")
    with into_file(Path(args.out), style, args.top_k, share, kept) as rows:
        yield rows, mine


class Rewound:
    """Sources whose names are read, of which the last few are remembered."""

    def __init__(self, waiting: "Iterator[ImageSource]", most: int) -> None:
        self.waiting = waiting
        self.recent: deque[ImageSource] = deque(maxlen=most)
        self.count = 0

    def names(self) -> Iterator[str]:
        """The names, one at a time."""
        for source in self.waiting:
            self.recent.append(source)
            self.count += 1
            yield source.name

    def after(self, count: int) -> "Iterator[ImageSource]":
        """The sources after the first `count`, most of which have been read already."""
        again = list(self.recent)[len(self.recent) - (self.count - count) :]
        return chain(again, self.waiting)


def own(waiting: "Iterator[ImageSource]", share: Share) -> "Iterator[ImageSource]":
    """The chunks of this process."""
    if share.world == 1:
        return waiting
    return (
        source
        for place, source in enumerate(waiting)
        if place // share.chunk % share.world == share.rank
    )


def predictions(
    args: argparse.Namespace,
    engine: "Engine",
    mine: "Iterator[ImageSource]",
    judge: "Judge",
) -> "Iterator[Prediction]":
    """What the engine answers, with the pictures that were asked for on the way."""
    from vitft.predict.engine import Mirrored, answers
    from vitft.predict.numpy_engine import QuickEngine

    through = Mirrored(engine) if args.tta else engine
    if isinstance(engine, QuickEngine):
        return answers(through, mine, judge)
    from vitft.predict.torch_engine import Predictor

    assert isinstance(engine, Predictor)
    found = engine.answers(mine, judge, through=through)
    return explained(engine, found, args.explain) if args.explain is not None else found


def explained(
    predictor: "Predictor", found: "Iterator[Prediction]", folder: Path
) -> "Iterator[Prediction]":
    """The same predictions; of each image, a picture of where the model looked for its answer.

    Raises:
        UsageError: A model of timm, whose attention cannot be seen.
    """
    import torch
    from PIL import Image

    from vitft.explain import overlay, relevance_map
    from vitft.explain.explainer import plain_name
    from vitft.explain.heatmaps import as_png
    from vitft.models.timm_model import own as own_model
    from vitft.system.files import write_atomically, writing

    model = own_model(predictor.model, "--explain")
    with writing(folder, option="--explain"):
        folder.mkdir(parents=True, exist_ok=True)
    for number, prediction in enumerate(found, start=1):
        if prediction.view is not None:
            torch.set_num_threads(predictor.workers)
            heat = relevance_map(model, predictor.inputs(prediction.view[None]))[0]
            picture = as_png(overlay(Image.fromarray(prediction.view), heat))
            name = f"{number:06}-{plain_name(prediction.path)}.png"
            write_atomically(folder / name, picture)
        yield prediction


def say_end(args: argparse.Namespace, rows: Rows) -> None:
    """What a file of rows came to, and where the pictures are."""
    if args.out is not None:
        bad = f", {rows.errors:,} of them errors" if rows.errors else ""
        console.note(f"{rows.count:,} rows{bad}: {console.visible(args.out)}")
    if args.explain is not None:
        console.note(f"pictures: {console.visible(str(args.explain))}/")


def end_already(args: argparse.Namespace, style: str, share: Share) -> int | None:
    """The exit code, if an earlier run has left nothing to do."""
    from vitft.predict.output import ended, errors_in, merge, part_path

    if not args.resume:
        return None
    out = Path(args.out)
    if out.exists():
        console.note(f"{console.visible(args.out)} is finished already")
        return 3 if share.world == 1 and errors_in(out, style) else 0
    if ended(part_path(out, share)).exists():
        merge(out, style, share)
        return 0
    return None
