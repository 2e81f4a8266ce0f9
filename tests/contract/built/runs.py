"""Finished runs, and what is made of them: each is made once per session, and then copied.

R is a run of the images in T (classes cat, dog and owl); M one with several labels per image.
"""

import atexit
import contextlib
import functools
import json
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from PIL import Image

from tests.conftest import save_backbone, tiny
from tests.contract.rows import draw, run
from tests.support.fail_points import FailPoints
from vitft.data import EvalTransform
from vitft.models import (
    Card,
    TimmConfig,
    TimmModel,
    VisionTransformer,
    load_checkpoint,
    save_checkpoint,
)

CLASSES = ("cat", "dog", "owl")


def single(folder: Path) -> None:
    """Write T, 10 images of each class, and R, its run."""
    copy("single", folder)


def with_blanks(folder: Path) -> None:
    """Write T, R and new: a1 and a2, which are uniform, and a3."""
    single(folder)
    draw(folder / "new" / "a3.png")
    for number, grey in ((1, 90), (2, 120)):
        Image.new("L", (16, 16), grey).save(folder / "new" / f"a{number}.png")


def on_hub(folder: Path) -> None:
    """Write T, R and the cache of downloads, with its model as me/pets."""
    single(folder)
    repository = folder / "hub" / "models--me--pets"
    for place, content in (
        ("refs/main", b"a" * 40),
        (f"snapshots/{'a' * 40}/model.safetensors", (folder / "R/model.safetensors").read_bytes()),
    ):
        (repository / place).parent.mkdir(parents=True)
        (repository / place).write_bytes(content)


def stopped_before_processes_were_counted(folder: Path) -> None:
    """Write T, R and old, a stopped run whose environment.json lacks the number of processes."""
    single(folder)
    line = "finetune --data T --weights R --train all --epochs 2 --max-time 0.001s --out old"
    assert run([*line.split(), "--cache", "none", "--device", "cpu"])[0] == 0
    facts = json.loads((folder / "old" / "environment.json").read_text())
    assert facts.pop("processes") == 1
    (folder / "old" / "environment.json").write_text(json.dumps(facts))


def without_fixes(folder: Path) -> None:
    """Write T and R, whose settings name a table of fixes that is not there."""
    single(folder)
    settings = folder / "R" / "config.toml"
    settings.write_text(settings.read_text().replace('fixes = ""', 'fixes = "gone.csv"'))


def latest(folder: Path) -> None:
    """Write T and runs/first, the newest of all runs."""
    single(folder)
    shutil.copytree(folder / "R", folder / "runs" / "first")
    (folder / "runs" / "latest").symlink_to("first")


def interrupted(folder: Path) -> None:
    """Write T, R and new, and in rows.csv.part the first of two rows and half of the second."""
    single(folder)
    for name in ("new/cat.jpg", "new/owl.jpg"):
        draw(folder / name)
    with FailPoints(folder, 3, "ENOSPC"):  # calls to open it and write the options and a row
        assert run(["predict", "new", "--run", "R", "--out", "rows.csv"])[0] == 6


def several(folder: Path) -> None:
    """Write T, t.csv with the labels fur and wild of its images, and M, its run."""
    copy("several", folder)


def backbone(folder: Path) -> None:
    """Write w.safetensors, weights without classes."""
    copy("backbone", folder)


def exported(folder: Path) -> None:
    """Write R and its exports in E: onnx, timm, transformers and safetensors."""
    copy("exported", folder)


def with_graph(folder: Path) -> None:
    """Write T and R, which also contains its graph, and G, which only has a folder for it."""
    exported(folder)
    shutil.copytree(folder / "E" / "onnx", folder / "G" / "onnx")
    shutil.copyfile(folder / "E" / "onnx" / "model.onnx", folder / "R" / "model.onnx")


def broken(folder: Path) -> None:
    """Write T, R and copies of R that are cut, changed, or lack a file."""
    single(folder)
    for name in ("cut", "flipped", "no_split", "other_split", "no_validation", "unfinished"):
        shutil.copytree(folder / "R", folder / name)
    content = (folder / "R" / "model.safetensors").read_bytes()
    (folder / "cut" / "model.safetensors").write_bytes(content[:-40])
    (folder / "flipped" / "model.safetensors").write_bytes(content[:-1] + b"\x7f")
    (folder / "no_split" / "split.csv").unlink()
    (folder / "other_split" / "split.csv").write_text("path,label,split,sha256\n")
    (folder / "no_validation" / "validation.npz").unlink()
    (folder / "unfinished" / "model.safetensors").unlink()


def unusual(folder: Path) -> None:
    """Write untrained models: nan, whose logits are not finite, resnet of timm, and later of timm.

    The installed timm does not have the network of later.
    """
    timm = TimmConfig(timm="test_resnet", image_size=(16, 16), num_classes=3)
    for name, model in (("nan", VisionTransformer(tiny(3))), ("resnet", TimmModel(timm).eval())):
        transform = EvalTransform(image_size=(16, 16))
        card = Card(architecture=model.config, transform=transform, classes=CLASSES)
        weights = dict(model.state_dict())
        if name == "nan":
            weights["head.bias"] = torch.full((3,), float("nan"))
        (folder / name).mkdir()
        save_checkpoint(folder / name / "model.safetensors", weights, card)
    tensors, card = load_checkpoint(folder / "resnet" / "model.safetensors")
    (folder / "later").mkdir()
    card = replace(card, architecture=replace(timm, timm="resnet_of_later"))
    save_checkpoint(folder / "later" / "model.safetensors", tensors, card)


def overflowing(folder: Path) -> None:
    """Write T, R and w.safetensors, whose tensors are multiplied by 1e30."""
    single(folder)
    backbone(folder)
    for path in (folder / "R" / "model.safetensors", folder / "w.safetensors"):
        tensors, card = load_checkpoint(path)
        save_checkpoint(path, {name: 1e30 * value for name, value in tensors.items()}, card)


def graphs(folder: Path) -> None:
    """Write R, its graph in E/onnx, a damaged copy and a graph of another program."""
    exported(folder)
    content = bytearray((folder / "E" / "onnx" / "model.onnx").read_bytes())
    content[len(content) // 2] ^= 1
    (folder / "damaged.onnx").write_bytes(content)
    onnx = pytest.importorskip("onnx")
    end = onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [1])
    node = onnx.helper.make_node("Identity", ["x"], ["y"])
    out = onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [1])
    graph = onnx.helper.make_graph([node], "g", [end], [out])
    opset = [onnx.helper.make_opsetid("", 18)]
    model = onnx.helper.make_model(graph, opset_imports=opset, ir_version=8)
    onnx.save(model, folder / "foreign.onnx")


def trained(folder: Path) -> None:
    """Write R, and copies of its training images: with their label, another
    one, an empty class; and doubled, a new image twice."""
    single(folder)
    rows = (folder / "R" / "split.csv").read_text().splitlines()[1:]
    cats = [row.split(",")[0] for row in rows if row.startswith("cat/") and ",train," in row]
    for name, label in (("copies", "cat"), ("relabelled", "dog"), ("hollow", "cat")):
        (folder / name / label).mkdir(parents=True)
        for number, path in enumerate(cats[:2]):
            shutil.copyfile(folder / "T" / path, folder / name / label / f"new{number}.jpg")
    draw(folder / "relabelled" / "dog" / "unseen.jpg")
    draw(folder / "doubled" / "dog" / "unseen.jpg")
    shutil.copyfile(folder / "doubled/dog/unseen.jpg", folder / "doubled/dog/again.jpg")
    (folder / "hollow" / "empty").mkdir()


def merged(folder: Path) -> None:
    """Write C, a run in which the images of T/kitten belong to the class cat."""
    copy("merged", folder)


def copy(kind: str, folder: Path) -> None:
    """Copy what `made` makes."""
    shutil.copytree(made(kind), folder, dirs_exist_ok=True, symlinks=True)


@functools.cache
def made(kind: str) -> Path:
    """Return a folder with the files of a kind, which exists until the process ends."""
    folder = Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    with contextlib.chdir(folder):
        {
            "backbone": save_backbone,
            "single": make_single,
            "several": make_several,
            "exported": make_exported,
            "merged": make_merged,
        }[kind](folder)
    return folder


def make_single(folder: Path) -> None:
    """Draw T and train R in the current folder."""
    backbone(folder)
    for name in CLASSES:
        for number in range(10):
            draw(Path("T", name, f"{number}.jpg"))
    command("finetune --data T --weights w.safetensors --out R --cache none --device cpu")


def make_several(folder: Path) -> None:
    """Draw T and train M in the current folder."""
    backbone(folder)
    lines = ["path,labels"]
    for name, labels in (("cat", "fur"), ("dog", "fur|wild"), ("owl", "wild"), ("eel", "")):
        for number in range(10):
            draw(Path("T", name, f"{number}.jpg"))
            lines.append(f"T/{name}/{number}.jpg,{labels}")
    Path("t.csv").write_text("\n".join([*lines, ""]))
    command("finetune --data t.csv --weights w.safetensors --out M --cache none --device cpu")


def make_merged(folder: Path) -> None:
    """Draw T and train C in the current folder."""
    backbone(folder)
    for name in ("kitten", "cat", "dog"):
        for number in range(6):
            draw(Path("T", name, f"{number}.jpg"))
    Path("changes.csv").write_text("class,new_class\nkitten,cat\n")
    options = "--classes changes.csv --out C --cache none --device cpu"
    command(f"finetune --data T --weights w.safetensors {options}")


def make_exported(folder: Path) -> None:
    """Export R to E in the current folder."""
    single(folder)
    command("export --run R --onnx --timm --transformers --safetensors --out E")


def command(line: str) -> None:
    """Run a command, which must succeed."""
    code, printed = run(line.split())
    assert code == 0, printed
