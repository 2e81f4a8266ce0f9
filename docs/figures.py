"""Draw the figures of docs/teach.md and docs/tutorials.md.

    python docs/figures.py runs docs        # after the commands of docs/teach.md

The run digits gives patches, positions and its curve, the run first patches and attention, the runs
pre and post (and pre1, post1, ... with other seeds) the norms. The curves of docs/tutorials.md are
those of the tables in benchmarks/notebook/tutorials.md.
"""

import argparse
import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from io import BytesIO
from pathlib import Path

import matplotlib as mpl
import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray
from PIL import Image

from vitft.data.images import open_image
from vitft.explain.attribution import attention_maps, attention_title, explain, scale_maps
from vitft.explain.explainer import ExplainedModel, head_maps, load_run_model, validation_files
from vitft.explain.heatmaps import Method, overlay
from vitft.explain.model_figures import patch_figure, position_similarity
from vitft.report.charts import axis_of

PAGE = Path(__file__).resolve().parents[1] / "benchmarks" / "notebook" / "tutorials.md"
RUNS = ("digits", "first", "pre", "post")
SEED_RUNS = tuple(f"{name}{seed}" for seed in (1, 2) for name in ("pre", "post"))
"""The runs of the norms with further training seeds, which the page has, too."""
BLUE, ORANGE, GREY = "#0969da", "#bc4c00", "#818b98"


def save(figure: Figure, path: Path) -> None:
    """Write a figure without the date and the version of matplotlib, and print its path."""
    metadata = {"Date": None} if path.suffix == ".svg" else {"Software": None}
    figure.savefig(path, dpi=150, metadata=metadata, bbox_inches="tight")
    print(path, flush=True)


def picture(axes: Axes, image: NDArray[np.generic], title: str = "", **how: object) -> None:
    """Show an image without ticks."""
    axes.imshow(image, interpolation="nearest", **how)
    axes.set(xticks=[], yticks=[])
    axes.set_title(title, fontsize=9)


def draw_patches(runs: Path, out: Path) -> None:
    """Draw how a digit and a drawn flower become tokens, as `vitft explain --patches` does."""
    data = tomllib.loads((runs / "digits" / "config.toml").read_text())["data"]["path"]
    digit = f"{data}/all/3/00003.bmp"
    for name, run, path in (
        ("teach_patches.png", runs / "digits", digit),
        ("teach_flower_patches.png", runs / "first", chosen(runs / "first", "sunflower")),
    ):
        model = load_run_model(str(run), device="cpu")
        view = model.transform.pixels(open_image(path))
        png = patch_figure(model.net, model.inputs, view, Path(path).name)
        # All colours are kept: with a palette, those of the colour bar would be wrong.
        Image.open(BytesIO(png)).convert("RGB").save(out / name, optimize=True)
        print(out / name, flush=True)


def draw_positions(run: Path, out: Path) -> None:
    """Draw the similarity of each position embedding to all others, as a grid of maps."""
    net = load_run_model(str(run), device="cpu").net
    similar = position_similarity(net.config, net.pos_embed)  # (gh, gw, gh, gw)
    rows, columns = net.config.grid
    figure = Figure(figsize=(4.2, 4.2), layout="constrained")
    grid = figure.subplots(rows, columns)
    for row in range(rows):
        for column in range(columns):
            axes = grid[row, column]
            picture(axes, similar[row, column], cmap="viridis", vmin=float(similar.min()), vmax=1)
            axes.plot(column, row, "o", color=ORANGE, markersize=4)
    save(figure, out / "teach_positions.png")


@torch.no_grad()
def draw_attention(run: Path, out: Path) -> None:
    """Draw the attention of every head for a drawn flower, as `vitft explain` does."""
    model = load_run_model(str(run), device="cpu")
    pixels = opened(model, chosen(run, "sunflower"))
    maps, _ = attention_maps(model.net, model.inputs(pixels[None]))
    config = model.net.config
    heats = head_maps(config, torch.cat(maps).numpy())  # (L, H, gh, gw)
    figure = Figure(figsize=(1.9 * (config.heads + 1), 1.9 * config.depth), layout="constrained")
    figure.suptitle(attention_title(config), fontsize=11)
    grid = figure.subplots(config.depth, config.heads + 1)
    for block, heads in enumerate(heats):
        picture(grid[block, 0], pixels, "image" if block == 0 else "")
        grid[block, 0].set_ylabel(f"block {block}", fontsize=9)
        for head, heat in enumerate(heads):
            title = f"head {head}" if block == 0 else ""
            picture(grid[block, head + 1], heat, title, cmap="magma")
    save(figure, out / "teach_heads.png")


def draw_methods(run: Path, out: Path) -> None:
    """Draw rollout and relevance of one flower of each kind."""
    model = load_run_model(str(run), device="cpu")
    methods = {"rollout": Method(name="rollout"), "relevance": Method()}
    figure = Figure(figsize=(1.75 * len(model.outputs.classes), 5.4), layout="constrained")
    grid = figure.subplots(3, len(model.outputs.classes))
    for column, name in enumerate(model.outputs.classes):
        pixels = opened(model, chosen(run, name))
        picture(grid[0, column], pixels, name)
        for row, method in enumerate(methods.values(), 1):
            values, _ = explain(model.net, model.inputs(pixels[None]), method)
            blended = overlay(Image.fromarray(pixels), scale_maps(values)[0])
            picture(grid[row, column], np.asarray(blended))
    for row, label in enumerate(("image", *methods)):
        grid[row, 0].set_ylabel(label, fontsize=9)
    save(figure, out / "teach_rollout.png")


def chosen(run: Path, name: str) -> str:
    """Return the first validation image of a class."""
    return next(path for path in validation_files(run) if f"/{name}/" in path)


def opened(model: ExplainedModel, path: str) -> NDArray[np.uint8]:
    """Return the view (S, S, 3) of an image file."""
    return model.transform.pixels(Image.open(path).convert("RGB"))


def curves(
    axes: Axes, lines: Mapping[str, tuple[Sequence[float], str, str]], **how: object
) -> None:
    """Draw accuracies in percent by epoch; a line is its values, colour and style."""
    epochs: Sequence[float] = ()
    for label, (values, colour, style) in lines.items():
        epochs = how.get("epochs", range(1, len(values) + 1))
        axes.plot(epochs, values, style, color=colour, label=label, linewidth=1.8)
    axes.set(ylim=(0, 100), xlabel="epoch", ylabel="accuracy, %")
    axes.set_xticks([tick for tick, _ in axis_of(epochs, "epoch", "epoch").ticks])
    axes.grid(color="#d1d9e0", linewidth=0.7)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=9)


def accuracy(run: Path, part: str) -> list[float]:
    """Return the accuracy of each epoch in percent."""
    lines = (run / "metrics.jsonl").read_text().splitlines()
    return [100 * row[f"{part}_top1"] for row in map(json.loads, lines) if "epoch" in row]


def draw_scratch(runs: Path, out: Path) -> None:
    """Draw the learning curve of the digits."""
    figure = Figure(figsize=(6, 3.2))
    curves(
        figure.subplots(),
        {
            "training images": (accuracy(runs / "digits", "train"), GREY, "--"),
            "validation images": (accuracy(runs / "digits", "val"), BLUE, "-"),
        },
    )
    save(figure, out / "teach_scratch.svg")


def draw_norms(runs: Path, out: Path) -> None:
    """Draw the learning curves of pre-norm and post-norm, a line per seed."""
    figure = Figure(figsize=(6, 3.2))
    axes = figure.subplots()
    for name, label, colour in (("pre", "pre-norm", BLUE), ("post", "post-norm", ORANGE)):
        for run in norm_runs(runs, name):
            curves(axes, {label: (accuracy(run, "val"), colour, "-")})
            label = "_"  # once in the legend
    save(figure, out / "teach_norm.svg")
    if missing := [name for name in SEED_RUNS if not (runs / name / "eval.json").is_file()]:
        names = ", ".join(str(runs / name) for name in missing)
        print(f"teach_norm.svg has fewer training seeds than docs/teach.md: no run {names}")


def norm_runs(runs: Path, name: str) -> list[Path]:
    """Return the finished runs of a norm, one per training seed."""
    return [path.parent for path in sorted(runs.glob(f"{name}*/eval.json"))]


def recorded(section: str) -> list[tuple[list[int], dict[str, list[float]]]]:
    """Return the tables of accuracies by epoch in a section of the notebook."""
    page = PAGE.read_text()
    text = page.split(f"\n## {section}\n")[1].split("\n## ")[0]
    found = []
    for table in re.findall(r"(?:^\|.*\n)+", text, re.M):
        rows = [
            [cell.strip() for cell in line.strip("|\n").split("|")] for line in table.splitlines()
        ]
        if rows[0][0] == "epoch":
            values = {row[0].removesuffix(", %"): [float(x) for x in row[1:]] for row in rows[2:]}
            found.append(([int(x) for x in rows[0][1:]], values))
    return found


def draw_tutorials(out: Path) -> None:
    """Draw the recorded learning curves of the tutorials' experiments."""
    pictures = {
        "tutorials_cifar10.svg": ("From scratch on CIFAR-10", ("cifar10-tutorial", "cifar10")),
        "tutorials_mnist.svg": ("From scratch on MNIST", ("",)),
        "tutorials_norm.svg": ("Pre-norm and post-norm", ("",)),
    }
    styles = {"training images": "--", "test images": "-"}
    colours = {"cifar10-tutorial": ORANGE, "cifar10": BLUE, "pre-norm": BLUE, "post-norm": ORANGE}
    for name, (section, labels) in pictures.items():
        figure = Figure(figsize=(6, 3.2))
        axes = figure.subplots()
        for label, (epochs, rows) in zip(labels, recorded(section), strict=True):
            for row, values in rows.items():
                kind, _, images = row.rpartition(", ")
                what = kind or label
                line = (values, colours.get(what, BLUE), styles[images])
                curves(axes, {f"{what}, {images}".removeprefix(", "): line}, epochs=epochs)
        axes.set_ylim(0 if "cifar" not in name else 20, 100)
        save(figure, out / name)


def arguments() -> argparse.Namespace:
    """Return the arguments, after checking that the runs exist."""
    parser = argparse.ArgumentParser(description="Draw the figures of teach.md and tutorials.md.")
    parser.add_argument("runs", type=Path, help=f"folder that contains {', '.join(RUNS)}")
    parser.add_argument("out", type=Path, help="folder for the figures")
    args = parser.parse_args()
    missing = [name for name in RUNS if not (args.runs / name / "eval.json").is_file()]
    if missing:
        parser.error(
            f"no finished run {', '.join(str(args.runs / name) for name in missing)}: "
            "first run the commands of docs/teach.md"
        )
    return args


def main(runs: Path, out: Path) -> None:
    """Draw all figures into a folder."""
    mpl.rcParams["svg.hashsalt"] = "vitft"
    out.mkdir(parents=True, exist_ok=True)
    draw_tutorials(out)
    draw_patches(runs, out)
    draw_positions(runs / "digits", out)
    draw_scratch(runs, out)
    draw_attention(runs / "first", out)
    draw_methods(runs / "first", out)
    draw_norms(runs, out)


if __name__ == "__main__":
    chosen_folders = arguments()
    main(chosen_folders.runs, chosen_folders.out)
