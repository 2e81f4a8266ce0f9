"""`vitft.embed` and its file beside the feature pass alone, in turns, without a cache.

    python -m benchmarks.speed.embed --data DIR [--weights NAME] [--repeats 3]

Both load the model and read, decode and compute every image. `embed` also normalises the vectors and
writes a Parquet file. A further row reads all vectors from a cache that the pass has filled.
"""

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.timing import cpu_seconds, interleave, median_range
from vitft.config.sections import TrainSpec, WeightsSpec
from vitft.data.images import MAX_PIXELS
from vitft.data.transforms import eval_view
from vitft.features.extract import inspect_dataset
from vitft.predict.embeddings import list_images, load_embedder, load_features


def timed(job: Callable[[], object]) -> tuple[float, float]:
    """Return the wall and the processor seconds of a job."""
    wall, cpu = time.perf_counter(), cpu_seconds()
    job()
    return time.perf_counter() - wall, cpu_seconds() - cpu


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", required=True)
    parser.add_argument("--weights", default="demo")
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    weights, images = WeightsSpec(name=args.weights), list_images([args.data])
    with tempfile.TemporaryDirectory() as temporary:
        out = Path(temporary) / "vectors.parquet"

        def run_pass(cache: str) -> None:
            pipeline, _ = load_features(None, weights, train := TrainSpec(cache=cache))
            extractor = pipeline.open_extractor(train, max_pixels=MAX_PIXELS)
            view = eval_view(pipeline.transform)
            inspect_dataset(
                images, max_pixels=MAX_PIXELS, allow_bad=True, extractor=extractor, view=view
            )

        def embed(cache: str) -> None:
            load_embedder(None, weights, TrainSpec(cache=cache))(images).save(out)

        run_pass(f"{temporary}/cache")
        turns = interleave(
            {
                "feature pass": lambda: timed(lambda: run_pass("none")),
                "embed": lambda: timed(lambda: embed("none")),
                "embed, cached": lambda: timed(lambda: embed(f"{temporary}/cache")),
            },
            args.repeats,
        )
        for name, found in turns.items():
            wall, cpu = zip(*found, strict=True)
            print(f"| {name} | wall {median_range(wall)} s | cpu {median_range(cpu)} s |")
        walls, cpus = (
            [b[i] / a[i] for a, b in zip(turns["feature pass"], turns["embed"], strict=True)]
            for i in (0, 1)
        )
        print(
            f"{len(images.rows):,} images, ratio of embed to the pass: wall {median_range(walls)}"
        )
        print(f"processor {median_range(cpus)}. File: {out.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
