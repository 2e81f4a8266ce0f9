"""The door of `vitft study`: weights beside weights, over more and more images of each class."""

import argparse
import json
import shlex
from typing import Any

from vitft.system import console
from vitft.system.imports import heavy_imports

Verbs = argparse._SubParsersAction  # the type argparse gives no public name


def add_study(verbs: "Verbs[Any]") -> None:
    """`vitft study`."""
    parser = verbs.add_parser(
        "study", help="accuracy by training images per class, weights beside weights"
    )
    parser.add_argument(
        "--data", required=True, metavar="DIR", help="image folder, one sub-folder per class; demo"
    )
    parser.add_argument(
        "--weights",
        required=True,
        nargs="+",
        metavar="NAME",
        help="as for finetune; random:NAME or none (the first one's architecture) untrained",
    )
    parser.add_argument(
        "--shots",
        type=int,
        nargs="+",
        default=[5, 10, 25, 50, 100],
        metavar="N",
        help="training images per class (default: 5 10 25 50 100)",
    )
    parser.add_argument("--seeds", type=int, default=3, metavar="N", help="draws (default: 3)")
    parser.add_argument("--out", metavar="DIR", help="new folder (default: study-<data>)")
    parser.add_argument(
        "--no-baselines", action="store_true", help="without raw pixels and colour histograms"
    )
    parser.add_argument("--cache", metavar="DIR", help="folder of cached features, or none")
    parser.add_argument("--device", help="auto, cpu, cuda, cuda:1, mps")
    parser.add_argument("--allow-pickle", action="store_true", help="read .pth files")
    parser.set_defaults(command=study_command)


def study_command(args: argparse.Namespace) -> int:
    """Check everything cheap first, then compute, say and write what came out."""
    from vitft.config.run import config_from_table
    from vitft.data.demo import demo_data
    from vitft.study.plan import BASELINES, check_study

    settings = {
        "data": {"path": args.data},
        "weights": {"allow_pickle": args.allow_pickle},
        "train": {k: v for k in ("cache", "device") if (v := getattr(args, k)) is not None},
    }
    more = [name for name in BASELINES if name not in args.weights and not args.no_baselines]
    names, shots, seeds = [*args.weights, *more], args.shots, args.seeds
    config = demo_data(config_from_table(settings))
    plan = check_study(
        config.data.path, names, shots, seeds=seeds, out=args.out, allow_pickle=args.allow_pickle
    )
    if plan.left_out:
        many = ", ".join(map(str, plan.left_out))
        console.note(f"left out: {many} images per class, the smallest class has too few")

    with heavy_imports():
        from vitft.study.formats import heading, sentences, short_rows, to_json, to_markdown
        from vitft.study.picture import study_png
        from vitft.study.run import leads, run_study, setting_of
        from vitft.system.files import whole_folder, write_atomically

    study = run_study(plan, config)
    ahead, setting = leads(study), setting_of(config)
    words = ["--data", args.data, "--weights", *args.weights, "--shots", *map(str, plan.shots)]
    words += ["--seeds", str(seeds), *(["--no-baselines"] if args.no_baselines else [])]
    figures = json.dumps(to_json(study, ahead, setting), indent=2, allow_nan=False)
    page = to_markdown(study, ahead, setting, f"vitft study {shlex.join(words)}")
    with whole_folder(plan.out) as folder:
        write_atomically(folder / "study.json", figures + "\n")
        write_atomically(folder / "study.md", page)
        write_atomically(folder / "study.png", study_png(study))
    console.note(heading(study))
    console.table(
        ("images per class", *map(str, study.plan.shots)),
        short_rows(study),
        numbers=len(study.plan.shots),
    )
    for text in sentences(study, ahead):
        console.result(console.visible(text))
    place = console.visible(str(plan.out))
    console.result(f"written: {place}/study.png, study.md, study.json")
    return 0
