"""`vitft predict`: predict the classes of images."""

import argparse
import io
import os
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from vitft.cli import output
from vitft.cli.parser import Command
from vitft.predict.request import ENGINES, PREDICT_DTYPES, ROW_FORMATS, PredictRequest, ProcessShard

if TYPE_CHECKING:
    from vitft.predict.engine import Engine
    from vitft.predict.rows import Prediction

_INPUTS = """\
inputs:
  - a file, or a folder with all images in it and in its subfolders
  - a pattern in quotes, where '**' also matches subfolders: 'photos/**/*.jpg'
  - a web address, of at most 64 MB and 30 s
  - a list of paths: a .txt file, or a .csv or .tsv file with a column named path. Paths are
    relative to the folder of the list, or to the current folder.
  - standard input (-): the bytes of one image, or paths, one per line or separated by NUL

rows:
  There is one row per input, in the same order. A row has the path, class, probability, notes and
  error. If an input cannot be read, its row has an error, and the exit code is 3. An image that is
  farther from the training images than 98% of held-out images has the note "unlike the training
  images".

groups:
  --group-by takes a column of the list, folder for the parent folder, or a regular expression that
  captures the group in the path, e.g. 'burst([0-9]+)'. A row has the group, its number of images,
  and how many of them are unreadable. Its probabilities are the geometric means over the images,
  which assumes that all show the same class. A note is shown if most images have it. An image
  without a group is one of its own.

large jobs:
  Until all rows are there, they are in FILE.part, one JSON object per line. After an interruption,
  run the same command with --resume. The result is the same. To use several processes, run
  torchrun --nproc-per-node 4 -m -- vitft predict ... --out FILE. The exit code is then 0 even if
  some inputs cannot be read.
"""


@Command(
    "predict",
    f"""
images [IMAGE ...]  file, folder, pattern, URL, list of paths or -
common options:
--run
--format {"|".join(ROW_FORMATS)}  format of the rows (default: inferred from the suffix of --out,
    otherwise table)
--out FILE  new file for the rows (default: print them)
--top-k K := 1  number of classes per image
--threshold
--precision
--confidence
--coverage C  add the set of classes among which the right one is for a fraction C of new images
--tree FILE  table with the columns class and parent: an unsure class becomes its lowest sure parent
--counts  print the number of images of each class, adjusted for mistakes, instead of rows (table,
    json or csv)
--labels FILE  table with the columns path and label of a random sample, which corrects --counts
--group-by COLUMN|folder|PATTERN  one row per group (burst, video, patient) by column, parent folder
    or regular expression
--explain DIR  new folder for relevance overlays of the images
--resume  continue an unfinished output file
advanced options:
--list FILE  file with a list of images (may be repeated)
--allow-private-addresses
--device
--bom  begin CSV with a byte order mark, so that Excel reads it as UTF-8
--tta  average the predictions for each image and its mirror image
--dtype {"|".join(PREDICT_DTYPES)} := auto  number format: bf16 changes probabilities slightly, but
    no most probable class (default: auto, which is bf16 where faster)
--engine {"|".join(ENGINES)} := auto  numpy starts faster, without torch (default: auto, which is
    numpy for a few images on a CPU)
""",
    epilog=_INPUTS,
    changed={"list": {"dest": "lists"}},
    defaults={"device": "auto"},
)
def _predict_command(args: argparse.Namespace) -> int:
    """Write one row per image; return 3 if one could not be read and there is only one process."""
    options = {name: value for name, value in vars(args).items() if name != "command"}
    request = PredictRequest(**options, shard=ProcessShard.from_environment())
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # NumPy reads it on import (`NumpyEngine`)
    from vitft.predict.jobs import run_prediction

    stdin = sys.stdin.buffer if sys.stdin else io.BytesIO()  # it may be closed
    errors = run_prediction(
        request,
        write=output.exact,
        stdin=stdin,
        illustrate=_illustrate,
        tabulate=partial(output.table, numbers=3),
    )
    return 3 if errors and request.shard.world == 1 else 0


def _illustrate(
    engine: "Engine", predictions: "Iterator[Prediction]", folder: Path
) -> "Iterator[Prediction]":
    """Yield the predictions unchanged, writing a relevance overlay for each image to `folder`."""
    from vitft.explain.explainer import illustrate_predictions

    return illustrate_predictions(engine, predictions, folder)
