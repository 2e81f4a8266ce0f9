"""Classify the images of a folder with Ray Data or Spark, on as many machines as they run on.

    python examples/map_batches.py ray RUN IMAGES OUT
    python examples/map_batches.py spark RUN IMAGES OUT

Each worker loads the model once. RUN (a run directory or a model file) and IMAGES must be readable
by all workers under the same path, e.g. on a network disk; IMAGES may also be an address that Ray
or Spark reads itself, e.g. in an object store. OUT is a new folder of Parquet files with the
columns of `SCHEMA`. Install `ray[data]`, or `pyspark`, pandas and pyarrow, beside vitft.
"""

import pickle  # noqa: TID251 - between the workers of one job
import sys
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import vitft

Batch = dict[str, np.ndarray[Any, Any]]
SCHEMA = "path string, class string, probability double, notes string, error string"
"""Columns of the result. An unusable image has an `error`, no class and no probability (NaN)."""


class Prepare:
    """Decoder of batches, for workers without a GPU: the first of two stages."""

    def __init__(self, run: str) -> None:
        """Load the model of a run directory or model file, whose transform prepares the images."""
        self.model = vitft.load(run, device="cpu")

    def __call__(self, batch: Batch) -> Batch:
        """Return `path` and `prepared`, which `Classify` reads, given `path` and `bytes`."""
        prepared = [pickle.dumps(one) for one in self.model.prepare(list(batch["bytes"]))]
        return {"path": batch["path"], "prepared": np.array(prepared, dtype=object)}


class Classify:
    """Classifier of batches, as Ray Data's `map_batches` uses it: constructed once per worker."""

    def __init__(self, run: str) -> None:
        """Load the model of a run directory or model file on the worker's device."""
        self.model = vitft.load(run)

    def __call__(self, batch: Batch) -> Batch:
        """Classify a batch with the column `path` and, if the workers do not read files, `bytes`.

        `path` contains the paths of the images, and `bytes` the contents of these files. In their
        place, there may be the column `prepared` of `Prepare`.
        """
        if "prepared" in batch:
            found = self.model.predict([pickle.loads(one) for one in batch["prepared"]])
        else:
            found = self.model.predict(list(batch["bytes"] if "bytes" in batch else batch["path"]))
        return {
            "path": batch["path"],
            "class": np.array(["" if one.error else one.answer for one in found], dtype=object),
            "probability": np.array([np.nan if one.error else one.probability for one in found]),
            "notes": np.array(["; ".join(one.notes) for one in found], dtype=object),
            "error": np.array([one.error for one in found], dtype=object),
        }


def classify_frames(frames: Iterable[Any], *, run: str) -> Iterator[Any]:
    """Classify the pandas frames of one partition, as Spark's `mapInPandas` calls it.

    The model is loaded once per partition, so partitions should hold thousands of images.
    """
    classify = Classify(run)
    for frame in frames:
        found = classify({name: frame[name].to_numpy() for name in frame})
        yield frame[["path"]].assign(**found)


def with_ray(
    run: str, images: str, out: str, *, workers: int = 1, gpus: float = 0, decoders: int = 0
) -> None:
    """Classify a folder with Ray Data; `gpus` is the number of GPUs of each worker.

    With `decoders`, as many other workers decode the images, so that a GPU need not wait for it.
    Each worker takes a core, and reading needs another one: as many workers as there are cores wait
    forever.
    """
    import ray

    files = ray.data.read_binary_files(images, include_paths=True)  # columns `bytes` and `path`
    if decoders:
        files = files.map_batches(
            Prepare,
            fn_constructor_kwargs={"run": run},
            batch_size=256,
            compute=ray.data.ActorPoolStrategy(size=decoders),
        )
    files.map_batches(
        Classify,
        fn_constructor_kwargs={"run": run},
        batch_size=256,
        compute=ray.data.ActorPoolStrategy(size=workers),
        num_gpus=gpus,
    ).write_parquet(out)


def with_spark(run: str, images: str, out: str) -> None:
    """Classify a folder with Spark, on the workers of the current or a local session.

    The environment variable `PYSPARK_PYTHON` must name the Python that has vitft.
    """
    from pyspark.sql import SparkSession

    spark = SparkSession.builder.getOrCreate()
    files = spark.read.format("binaryFile").option("recursiveFileLookup", "true").load(images)
    rows = files.selectExpr("path", "content AS bytes")
    rows.mapInPandas(partial(classify_frames, run=run), SCHEMA).write.parquet(out)


if __name__ == "__main__":
    if len(sys.argv) != 5 or sys.argv[1] not in ("ray", "spark"):
        sys.exit(__doc__)
    engine, run_path, folder, result = sys.argv[1:]
    # Workers have another working folder, and an address is left as it is.
    places = [p if "://" in p else str(Path(p).resolve()) for p in (run_path, folder, result)]
    {"ray": with_ray, "spark": with_spark}[engine](*places)
