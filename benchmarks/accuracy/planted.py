"""Recall and precision of `vitft check` on five kinds of faults planted in a copy of a real folder.

    python -m benchmarks.accuracy.planted DIR --weights NAME [--seeds 3]

Planted per seed: 50 exact copies under other names; 50 copies that were cropped (up to 3% off each edge),
resized (0.5 to 0.9) or only encoded again (JPEG quality 60 to 95); 30 images moved to another class; 20
copies (half of them exact) of training images among the validation images of a run's split; and 20 files
damaged in ten ways. DIR itself is only read.

Recall is the fraction of planted faults that are found, precision the fraction of the findings that were
planted. Findings of the untouched folder are excluded from both, except for labels, where a false alarm in
a real folder is part of the result: there both precisions are printed.
"""

import argparse
import io
import json
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image, ImageOps

from vitft.data.image_table import SPLIT_COLUMNS
from vitft.data.images import inspect_folder
from vitft.data.scan import scan

EXACT, NEAR, SWAPPED, ACROSS, BROKEN = 50, 50, 30, 20, 20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("--weights", required=True)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0, help="the first one")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="planted-") as scratch:
        cache = Path(scratch) / "cache"
        before = run_check(args.data, args.weights, cache, Path(scratch) / "before", split=None)
        known = facts_of(before)
        print("untouched:", {kind: len(found) for kind, found in known.items()})
        rows = []
        for seed in range(args.seed, args.seed + args.seeds):
            folder = Path(scratch) / f"seed{seed}"
            copy_images(args.data, folder)
            planted, split = plant(folder, random.Random(seed), known)
            found = facts_of(
                run_check(folder, args.weights, cache, Path(scratch) / f"out{seed}", split=split)
            )
            rows.append(score(planted, found, known))
            print(f"seed {seed}:", json.dumps(rows[-1]))
            shutil.rmtree(folder)
    for kind in rows[0]:
        text = []
        for name in rows[0][kind]:
            values = [row[kind][name] for row in rows]
            spread = f"{min(values):.3f} to {max(values):.3f}"
            text.append(f"{name} {statistics.mean(values):.3f} ({spread})")
        print(f"{kind:8s} " + ", ".join(text))


def copy_images(data: Path, folder: Path) -> None:
    """Copy the images of `data` and nothing else."""
    for file in scan(data).rows:
        target = folder / file.path
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(data / file.path, target)


def run_check(data: Path, weights: str, cache: Path, out: Path, *, split: dict | None) -> dict:
    """Run `vitft check --format json` as a user would and return its output."""
    out.mkdir(parents=True)
    command = [sys.executable, "-m", "vitft", "check", str(data), "--format", "json"]
    command += ["--out", str(out), "--cache", str(cache)]
    if split is None:
        command += ["--weights", weights]
    else:
        command += ["--run", str(fake_run(data, weights, out / "run", split))]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr)
    return json.loads(done.stdout)


def fake_run(data: Path, weights: str, run: Path, split: dict[str, str]) -> Path:
    """Write the two files of a run directory that a check reads: settings and split."""
    run.mkdir()
    weights = str(Path(weights).resolve()) if Path(weights).exists() else weights
    (run / "config.toml").write_text(f"[weights]\nname = {json.dumps(weights)}\n")
    sheet = [",".join(SPLIT_COLUMNS)]
    for file in inspect_folder(scan(data), allow_bad=True).rows:
        label = label_of(file.path)
        sheet.append(f'"{file.path}","{label}",{split.get(file.path, "train")},{file.sha256}')
    (run / "split.csv").write_text("\n".join(sheet) + "\n")
    return run


def label_of(path: str) -> str:
    return path.split("/")[0]


def plant(folder: Path, rng: random.Random, known: dict) -> tuple[dict, dict[str, str]]:
    """Plant the faults; return them by kind, and the split that the leaking copies cross."""
    files = [file.path for file in scan(folder).rows]
    classes = sorted({label_of(path) for path in files})
    suspicious = {path for pair in known["near"] | known["exact"] for path in pair}
    order = [path for path in files if path not in suspicious]
    rng.shuffle(order)
    take = iter(order)
    split = {path: "val" if rng.random() < 0.2 else "train" for path in files}
    planted: dict[str, set] = {k: set() for k in ("exact", "near", "across", "labels", "broken")}

    for number in range(EXACT):
        source = next(take)
        copy = f"{label_of(source)}/copy-{number}{Path(source).suffix}"
        shutil.copyfile(folder / source, folder / copy)
        split[copy] = split[source]
        planted["exact"].add(frozenset((source, copy)))
    for number in range(NEAR):
        source = next(take)
        copy = f"{label_of(source)}/again-{number}.jpg"
        (folder / copy).write_bytes(altered(folder / source, rng))
        split[copy] = split[source]
        planted["near"].add(frozenset((source, copy)))
    for number in range(ACROSS):
        source = next(take)
        exact = number % 2 == 0
        copy = f"{label_of(source)}/leak-{number}.jpg"
        content = (folder / source).read_bytes() if exact else altered(folder / source, rng)
        (folder / copy).write_bytes(content)
        split[source], split[copy] = "train", "val"
        planted["across"].add(frozenset((source, copy)))
    for number in range(SWAPPED):
        source = next(take)
        label = rng.choice([name for name in classes if name != label_of(source)])
        moved = f"{label}/moved-{number}{Path(source).suffix}"
        (folder / source).rename(folder / moved)
        split[moved] = split.pop(source)
        planted["labels"].add(moved)
    for number in range(BROKEN):
        source = next(take)
        broken = f"{label_of(source)}/broken-{number}.jpg"
        (folder / broken).write_bytes(damaged((folder / source).read_bytes(), number, rng))
        planted["broken"].add(broken)
    return planted, split


def altered(path: Path, rng: random.Random) -> bytes:
    """Return an altered copy, as one downloaded from elsewhere."""
    image = ImageOps.exif_transpose(Image.open(path, formats=["JPEG", "PNG"])).convert("RGB")
    how = rng.choice(("encoded", "resized", "trimmed", "all"))
    if how in ("trimmed", "all"):
        width, height = image.size
        left, top, right, bottom = (rng.uniform(0, 0.03) for _ in range(4))
        image = image.crop(
            (round(left * width), round(top * height), round(width - right * width),
             round(height - bottom * height))
        )  # fmt: skip
    if how in ("resized", "all"):
        scale = rng.uniform(0.5, 0.9)
        image = image.resize((round(image.width * scale), round(image.height * scale)))
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=rng.randint(60, 95))
    return buffer.getvalue()


def damaged(data: bytes, number: int, rng: random.Random) -> bytes:
    """Return content damaged in one of ten ways."""
    half, middle = len(data) // 2, len(data) // 3
    kinds = (
        b"",
        data[:half],
        data[:-2],
        data[: rng.randint(3, 20)],
        b"<html>404 not found</html>",
        bytes(len(data)),
        rng.randbytes(len(data)),
        data[:middle] + bytes(half) + data[middle + half :],
        b"\x89PNG\r\n\x1a\n" + data[8:],
        b"%PDF-1.7\n" + data,
    )
    return kinds[number % len(kinds)]


def facts_of(audit: dict) -> dict[str, set]:
    """Return the findings by kind: pairs of paths for copies, paths for the others."""
    facts: dict[str, set] = {
        "exact": set(),
        "near": set(),
        "across": set(),
        "labels": {entry["path"] for entry in audit["mislabels"]},
        "broken": {entry["path"] for entry in audit["bad"]}
        | {entry["path"] for entry in audit["odd"] if entry["reason"].startswith("damaged")},
    }
    for group in audit["duplicates"]:
        members = group["members"]
        pairs = {
            frozenset((one["path"], other["path"]))
            for i, one in enumerate(members)
            for other in members[i + 1 :]
        }
        facts[group["kind"]] |= pairs
        facts["across"] |= {
            pair
            for pair in pairs
            if {m["split"] for m in members if m["path"] in pair} == {"train", "val"}
        }
    return facts


def score(planted: dict, found: dict, known: dict) -> dict[str, dict[str, float]]:
    """Return recall and precision of each kind."""
    exact_across = {pair for pair in planted["across"] if pair in found["exact"]}
    truth = planted | {
        "exact": planted["exact"] | exact_across,
        "near": planted["near"] | (planted["across"] - exact_across),
    }
    table = {}
    for kind, faults in truth.items():
        reported = found[kind] - (known[kind] if kind not in ("labels", "across") else set())
        if kind == "across":
            reported -= known["near"] | known["exact"]
        hits = len(reported & faults)
        table[kind] = {"recall": hits / len(faults), "precision": hits / max(1, len(reported))}
        if kind == "labels":
            fresh = reported - known["labels"]
            table[kind]["precision apart from untouched"] = hits / max(1, len(fresh))
    return table


if __name__ == "__main__":
    main()
