"""Similar images by the vectors of `vitft.embed`: last block or several, bf16 or float32.

    python -m benchmarks.accuracy.similar --data DIR --weights FILE [--per-class 200]

For every image, the ten most similar others (cosine similarity, brute force) should be of its class.
"""

import argparse
import tempfile
from pathlib import Path

import numpy as np

from vitft.config.run import Config
from vitft.config.sections import TrainSpec, WeightsSpec
from vitft.data.images import MAX_PIXELS
from vitft.data.transforms import eval_view
from vitft.features.extract import inspect_dataset, read_several_blocks
from vitft.predict.embeddings import list_images, load_embedder, load_features


def nearest(x: np.ndarray) -> np.ndarray:
    """Return the indices (n, 10) of the most similar other images."""
    unit = x / np.linalg.norm(x, axis=1, keepdims=True)
    cosines = unit @ unit.T
    np.fill_diagonal(cosines, -9)
    return np.argsort(-cosines, axis=1)[:, :10]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--weights", required=True)
    parser.add_argument("--per-class", type=int, default=200)
    args = parser.parse_args()
    folders = [folder for folder in sorted(args.data.iterdir()) if folder.is_dir()]
    paths = [path for one in folders for path in sorted(one.glob("*.jpg"))[: args.per_class]]
    y, images = np.array([path.parent.name for path in paths]), list_images([*map(str, paths)])
    weights = WeightsSpec(name=args.weights)
    vectors = {}
    with tempfile.TemporaryDirectory() as cache:
        train = TrainSpec(cache=cache)
        for precision in ("bf16", "fp32"):
            spec = TrainSpec(cache=cache, precision=precision)
            vectors[f"last block, {precision}"] = load_embedder(None, weights, spec)(images).vector
        pipeline, _ = load_features(None, weights, Config(train=train))
        pipeline = read_several_blocks(pipeline, images=len(paths))
        extractor, view = (
            pipeline.open_extractor(),
            eval_view(pipeline.transform),
        )
        assert extractor is not None
        inspected = inspect_dataset(
            images, max_pixels=MAX_PIXELS, allow_bad=True, extractor=extractor, view=view
        )
        rows = extractor.rows([row.sha256 for row in inspected.rows], view)
        vectors["several blocks"] = rows.numpy()
    for name, x in vectors.items():
        same = y[nearest(x)] == y[:, None]
        first, ten = same[:, 0].mean(), same.mean()
        print(f"| {name} | {x.shape[1]} values | nearest {first:.3f} | ten nearest {ten:.3f} |")
    bf16, fp32 = vectors["last block, bf16"], vectors["last block, fp32"]
    pairs = zip(nearest(bf16), nearest(fp32), strict=True)
    shared = np.mean([len({*a} & {*b}) for a, b in pairs]) / 10
    change = np.abs(bf16 @ bf16.T - fp32 @ fp32.T)
    print(f"bf16 and float32 share {shared:.3f} of the ten nearest. Change of a cosine: ", end="")
    print(f"root mean square {np.sqrt((change**2).mean()):.4f}, most {change.max():.4f}")


if __name__ == "__main__":
    main()
