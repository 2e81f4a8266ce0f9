"""`vitft embed` and `vitft zeroshot`: embeddings of images, and classifiers from class names."""

import argparse
import sys
from pathlib import Path
from typing import Any

from vitft.cli import output
from vitft.cli.parser import Command, given
from vitft.config.schema import require
from vitft.config.sections import TrainSpec
from vitft.data.images import open_image
from vitft.models.pretrained.text import PROMPTS
from vitft.predict.embeddings import (
    check_vector_file,
    check_zero_shot,
    chosen_weights,
    list_images,
    load_embedder,
    write_zero_shot,
)
from vitft.predict.output import check_output
from vitft.predict.request import PREDICT_DTYPES, ProcessShard
from vitft.system.imports import heavy_imports
from vitft.system.rundir import loading_step
from vitft.system.text import count, labelled, shell_join


@Command(
    "embed",
    f"""
images IMAGE ...  image file, folder, pattern in quotes, or list of paths (.txt, .csv or -)
common options:
--out FILE  new file for the vectors: .parquet or .npz
--near IMAGE  print the images that are most similar to this one
--top-k K  number of similar images (default: 10)
--run
--weights NAME  pretrained weights that compute the vectors, instead of a run
--format
advanced options:
--dtype {"|".join(PREDICT_DTYPES)} := auto  number format of the computation (default: auto, which
    is bf16 where faster)
--cache
--device
--allow-pickle
""",
    exclusive=("--weights", "--run"),
)
def _embed_command(args: argparse.Namespace) -> int:
    """Write the vectors, print similar images, and return 3 if an image could not be read."""
    _check_options(args)
    weights = chosen_weights(args.run, args.weights, allow_pickle=args.allow_pickle)
    near = None if args.near is None else list_images([args.near])
    if near is not None:
        open_image(args.near)  # an unreadable one is an error at once
    images = list_images(args.images, sys.stdin.buffer if sys.stdin else None)
    named = given(args, "cache", "device")
    with heavy_imports(loading_step(args.weights or args.run)):
        embed = load_embedder(args.run, weights, TrainSpec(**named, precision=args.dtype))
    query = None if near is None else embed(near).vector[0]
    found = embed(images)
    similar = None if query is None else found.most_similar(query, args.top_k or 10)
    if args.out is not None:
        found.save(Path(args.out))
    fields = ("path", "similarity")
    if args.format == "json":
        output.as_json({
            "file": args.out,
            "images": len(found.path),
            "dimensions": found.vector.shape[1],
            "model": found.model,
            "precision": found.precision,
            "skipped": [dict(zip(("path", "reason"), one, strict=True)) for one in found.skipped],
            "similar": similar and [dict(zip(fields, one, strict=True)) for one in similar],
        })  # fmt: skip
        return 3 if found.skipped else 0
    if similar is not None:
        output.table(fields, [(path, f"{cosine:.4f}") for path, cosine in similar], numbers=1)
    if args.out is not None:
        what = f"{count(len(found.path), 'vector')} of {found.vector.shape[1]:,} values"
        output.result(f"{what}, computed in {found.precision}, written to {args.out}")
    return 3 if found.skipped else 0


def _check_options(args: argparse.Namespace) -> None:
    """Check that the options are valid and have an effect together."""
    fix = "add --out vectors.parquet to write vectors, or --near IMAGE to find similar images"
    require(bool(args.out or args.near), "neither --out nor --near is given", fix=fix)
    has_effect = args.top_k is None or args.near is not None
    require(has_effect, "--top-k needs --near", fix="add --near IMAGE, or remove --top-k")
    fix = "use an integer of 1 or more"
    require(args.top_k is None or args.top_k >= 1, f"invalid --top-k {args.top_k}", fix=fix)
    fix = "run it without torchrun. It uses all cores, or one GPU"
    is_alone = ProcessShard.from_environment().world == 1
    require(is_alone, "vitft embed does not support several processes", fix=fix)
    if args.out is not None:
        out = Path(args.out)
        check_vector_file(out, name=f"--out {out}")
        check_output(out, ProcessShard(), resume=False)


@Command(
    "zeroshot",
    """
images IMAGE ...  image file, folder, pattern in quotes, or list of paths (.txt, .csv or -)
--classes A,B,...  class names, separated by commas
--weights NAME  CLIP or SigLIP with its text tower: hf:OWNER/NAME or a folder
--prompt TEXT  text with {} for the class name (may be repeated)
--out DIR := zeroshot  new folder for the model
--cache
--device
""",
    description="Write a classifier from class names alone. The text tower of CLIP or SigLIP turns "
    "the names into a linear head. Unlabelled images set the scale of its probabilities. The "
    "accuracy stays unknown until you measure it on labelled images.",
)
def _zeroshot_command(args: argparse.Namespace) -> int:
    """Write the model, and print what it is and how to measure its accuracy."""
    classes = [name.strip() for name in (args.classes or "").split(",") if args.classes]
    prompts = args.prompt or PROMPTS
    out = check_zero_shot(args.weights or "", classes, prompts, args.out)
    images = list_images(args.images, sys.stdin.buffer if sys.stdin else None)
    named = given(args, "cache", "device")
    with heavy_imports():
        import torch  # noqa: F401

    options: Any = {"classes": classes, "prompts": prompts, "out": out, "train": TrainSpec(**named)}
    path = write_zero_shot(images, weights=args.weights, **options)
    output.result(labelled("Wrote", f"{path}, {count(len(classes), 'class', 'classes')}"))
    output.result(labelled("Accuracy", "not measured: no labelled image was used"))
    words = ["vitft", "predict", *args.images, "--run", str(out)]
    output.result(labelled("Next", shell_join(words)))
    return 0
