"""`vitft.embed` and its file beside the feature pass alone, in turns, without a cache.

    python -m benchmarks.speed.embed --data DIR [--crops 10000] [--weights NAME] [--repeats 3]

Both load the model and read, decode and compute every image, or so many different crops of 200 pixels. `embed` also
normalises the vectors and writes a Parquet file. A further row reads all vectors from a cache that the pass has filled.
The last line compares the ten images most similar to every tenth one with brute force in float64 on the file.
"""

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
from PIL import Image

from benchmarks.timing import cpu_seconds, interleave, median_range
from vitft.config.run import Config
from vitft.config.sections import TrainSpec, WeightsSpec
from vitft.data.images import MAX_PIXELS
from vitft.data.transforms import eval_view
from vitft.features.extract import inspect_dataset
from vitft.predict.embeddings import Embeddings, list_images, load_embedder, load_features


def timed(job: Callable[[], object]) -> tuple[float, float]:
    """Return the wall and the processor seconds of a job."""
    wall, cpu = time.perf_counter(), cpu_seconds()
    job()
    return time.perf_counter() - wall, cpu_seconds() - cpu


def write_crops(data: Path, number: int, into: Path) -> None:
    """Write different crops of 200 pixels of the photos in the folders of a folder."""
    rng, photos = np.random.default_rng(0), sorted(data.glob("*/*.jpg"))
    into.mkdir()
    for first, path in enumerate(photos):
        with Image.open(path) as opened:
            image = opened.convert("RGB")
        for i in range(first, number, len(photos)):
            left, top = (int(rng.integers(max(1, side - 200))) for side in image.size)
            crop = image.crop((left, top, left + 200, top + 200))
            crop.save(into / f"{i:05}.jpg", quality=90)


def equal_neighbours(found: Embeddings, file: Path) -> float:
    """Return how many of the ten most similar images of every tenth one are those of brute force."""
    table = pq.read_table(file).to_pydict()
    x, shared = np.array(table["vector"], np.float64), list[float]()
    for i in range(0, len(x), 10):
        nearest = np.argsort(-(x @ x[i]), kind="stable")[:10]
        similar = {path for path, _ in found.most_similar(found.vector[i])}
        shared.append(len(similar & {table["path"][j] for j in nearest}) / 10)
    return float(np.mean(shared))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--crops", type=int)
    parser.add_argument("--weights", default="demo")
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    weights, data = WeightsSpec(name=args.weights), args.data
    with tempfile.TemporaryDirectory() as temporary:
        out = Path(temporary) / "vectors.parquet"
        if args.crops:
            write_crops(args.data, args.crops, data := Path(temporary) / "crops")
        images = list_images([str(data)])

        def run_pass(cache: str) -> None:
            pipeline, _ = load_features(None, weights, Config(train=TrainSpec(cache=cache)))
            extractor = pipeline.open_extractor()
            view = eval_view(pipeline.transform)
            inspect_dataset(
                images, max_pixels=MAX_PIXELS, allow_bad=True, extractor=extractor, view=view
            )

        def embed(cache: str) -> Embeddings:
            found = load_embedder(None, weights, TrainSpec(cache=cache))(images)
            found.save(out)
            return found

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
        same = equal_neighbours(embed(f"{temporary}/cache"), out)
        print(f"neighbours of brute force: {100 * same:.2f}%")


if __name__ == "__main__":
    main()
