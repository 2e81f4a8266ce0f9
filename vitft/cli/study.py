"""`vitft study`: compare pretrained weights on a few images per class."""

import argparse
from dataclasses import replace

from vitft.cli import output
from vitft.cli.parser import Command, given
from vitft.config.run import config_from_table
from vitft.data.label_table import TABLE_SETTINGS, with_table_settings
from vitft.system.imports import heavy_imports, require_extra
from vitft.system.text import count, shell_join


@Command(
    "study",
    """
experiment:
--data DIR  image folder with one folder per class, table of labels, or demo
--weights NAME ...  weights as for vitft finetune, random:NAME (random weights), or none (random
    weights of the first architecture)
--shots N ...  numbers of training images per class (default: 5 10 25 50 100)
--seeds N := 3  number of random draws of the training images
--no-baselines  omit the baselines: raw pixels and colour histograms
run:
--out DIR  new folder for the results (default: study-<data>)
--cache
--device
--allow-pickle
--set
""",
    changed={
        "data": {"required": True},
        "weights": {"required": True},
        "shots": {"default": [5, 10, 25, 50, 100]},
    },
    settable=TABLE_SETTINGS,
)
def _study_command(args: argparse.Namespace) -> int:
    """Check the request, fit the heads, and write and print the accuracies."""
    require_extra("plots", feature="vitft study")
    from vitft.data.demo import demo_data
    from vitft.study.plan import BASELINES, check_study

    settings = {
        "data": {"path": args.data},
        "weights": {"allow_pickle": args.allow_pickle},
        "train": given(args, "cache", "device"),
    }
    more = [name for name in BASELINES if name not in args.weights and not args.no_baselines]
    names, shots, seeds = [*args.weights, *more], args.shots, args.seeds
    config = config_from_table(settings)
    config = replace(config, data=with_table_settings(demo_data(config.data), args.set))
    plan = check_study(config, names, shots, seeds=seeds, out=args.out)
    if plan.left_out:
        left_out = ", ".join(map(str, plan.left_out))
        output.note(
            f"skipping --shots {left_out}: the smallest class has too few images for more than "
            f"{plan.most}"
        )

    with heavy_imports():
        from vitft.study.run import HEAD_NOTE, leads, run_study, short_rows

    words = ["--data", args.data, "--weights", *args.weights, "--shots", *map(str, plan.shots)]
    words += ["--seeds", str(seeds), *(["--no-baselines"] if args.no_baselines else [])]
    words += ["--allow-pickle"] * args.allow_pickle + [w for s in args.set for w in ("--set", s)]
    study, described = run_study(plan, config, f"vitft study {shell_join(words)}")
    output.note(f"{described}. ± is the longer side of the interval (study.md has both)")
    counts = study["shots"]
    output.table(("images per class", *map(str, counts)), short_rows(study), numbers=len(counts))
    output.note(HEAD_NOTE)
    per_class = count(counts[-1], "image per class", "images per class")
    for name, differences in leads(study).items():
        mean, (low, high) = differences[-1]
        output.result(
            f"{study['curves'][0]['name']} compared with {name} at {per_class}: "
            f"{100 * mean:+.1f} points (95% CI {100 * low:+.1f} to {100 * high:+.1f})"
        )
        pairs = list(zip(counts, differences, strict=True))
        behind = [str(s) for s, (_, (_, top)) in pairs if top < 0]
        unclear = [str(s) for s, (_, (bottom, top)) in pairs if bottom <= 0 <= top]
        if behind:
            which = f"at which {name} is significantly better: {', '.join(behind)}"
            output.result(f"  images per class {which}")
        if unclear:
            which = f"without a significant difference: {', '.join(unclear)}"
            output.result(f"  images per class {which}")
    output.result(f"written: {plan.out}/study.png, study.md, study.json")
    return 0
