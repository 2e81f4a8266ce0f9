"""Wrong labels planted among photos, and how many `vitft check` and cleanlab report.

    python -m benchmarks.accuracy.wrong_labels --weights FILE --data DIR [DIR ...] [--seeds 3] [--clusters 0]

The classes of all folders form one data set. `uniform` errors are any other class; `confusable` ones are drawn in
proportion to the probabilities that heads fitted to the right labels give to the other classes, so that similar
classes are exchanged. `none` plants nothing. `--clusters K` divides each class of at least 100 photos into K
clusters of its features, for more and more similar classes. cleanlab (`pip install cleanlab`) gets the same
calibrated probabilities, with its defaults.
"""

import argparse
import tempfile
from pathlib import Path

import numpy as np
import torch

from benchmarks.folders import merge_splits
from vitft.config.sections import TrainSpec
from vitft.features.label_errors import out_of_fold_logits, score_given_labels
from vitft.serve.label.pool import find_pictures, load_pool


def features(weights: str, folders: list[Path], into: Path) -> tuple[torch.Tensor, np.ndarray]:
    """Return the features of all photos (n, D), and their classes by name."""
    rows, names = [], list[str]()
    for folder in folders:
        pictures = find_pictures(merge_splits(folder, into))
        pool = load_pool(pictures, weights=weights, run=None, train=TrainSpec())
        rows.append(pool.z)
        names += [f"{folder.name}/{Path(paths[0]).parent.name}" for paths in pool.paths]
    return torch.cat(rows).float(), np.array(names)


def clustered(x: torch.Tensor, names: np.ndarray, clusters: int) -> np.ndarray:
    """Return the names of the classes after large ones are divided into clusters."""
    from sklearn.cluster import KMeans

    new = names.astype(object)
    for name in np.unique(names):
        rows = np.flatnonzero(names == name)
        if clusters > 1 and len(rows) >= 100:
            found = KMeans(clusters, n_init=3, random_state=0).fit_predict(x[rows].numpy())
            new[rows] = [f"{name} {i}" for i in found]
    return new.astype(str)


def confusions(x: torch.Tensor, y: np.ndarray, classes: int) -> np.ndarray:
    """Return, for each class, the mean probability of each other class (C, C); rows sum to 1."""
    own = torch.arange(len(y))
    chances = out_of_fold_logits(x, torch.from_numpy(y), own, classes=classes, seed=0).softmax(1)
    found = np.stack([chances.numpy()[y == c].mean(axis=0) for c in range(classes)])
    np.fill_diagonal(found, 0)
    return found / found.sum(axis=1, keepdims=True)


def cleanlab_issues(y: np.ndarray, probabilities: torch.Tensor) -> np.ndarray | None:
    try:
        from cleanlab.filter import find_label_issues
    except ImportError:
        return None
    rows = probabilities.double().numpy()
    return np.asarray(find_label_issues(y, rows / rows.sum(axis=1, keepdims=True), n_jobs=1))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--weights", required=True)
    parser.add_argument("--data", type=Path, nargs="+", required=True)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--fraction", type=float, default=0.05)
    parser.add_argument("--clusters", type=int, default=0)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        x, names = features(args.weights, args.data, Path(folder))
    names = clustered(x, names, args.clusters)
    classes, truth = np.unique(names, return_inverse=True)
    chances, own = confusions(x, truth, len(classes)), torch.arange(len(truth))
    planted = round(args.fraction * len(truth))
    print(
        f"{len(classes)} classes, {len(truth)} photos, {planted} wrong labels, {args.seeds} seeds: found + others"
    )
    for kind in ("none", "uniform", "confusable"):
        counts: dict[str, list[tuple[int, int]]] = {}
        for seed in range(1 if kind == "none" else args.seeds):
            random, y = np.random.default_rng([seed, len(kind)]), truth.copy()
            for i in random.permutation(len(y))[: 0 if kind == "none" else planted]:
                if kind == "uniform":
                    y[i] = (y[i] + 1 + random.integers(len(classes) - 1)) % len(classes)
                else:
                    y[i] = random.choice(len(classes), p=chances[y[i]])
            given, bad = torch.from_numpy(y), y != truth
            logits = out_of_fold_logits(x, given, own, classes=len(classes), seed=0)
            found, wrong = score_given_labels(logits, x, given, own)
            reports = {
                "vitft": (wrong > 0.5).numpy(),
                "cleanlab": cleanlab_issues(y, found),
            }
            for tool, report in reports.items():
                if report is not None:
                    counts.setdefault(tool, []).append(
                        (int((report & bad).sum()), int((report & ~bad).sum()))
                    )
        print(f"  {kind:10s}", ", ".join(
            f"{tool} {found:.0f} + {others:.0f}"
            for tool, rows in counts.items() for found, others in [np.mean(rows, axis=0)]
        ), flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
