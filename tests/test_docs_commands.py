"""Every command of README and docs is run, or stands in docs_commands.toml with the reason.

What the reader has is replaced by something small: photos and tables by drawn flowers, published
weights by the bundled ones, public datasets by noise. Commands that train more than a head on these
get `--dry-run`; those of the walk-throughs (First hour, Teach a ViT) are run as they are.
"""

import os
import re
import shlex
import shutil
import sys
import tomllib
from collections.abc import Iterator
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.support.children import ended
from tests.support.serving import serving
from vitft.cli.main import build_parser, main
from vitft.data import draw_demo
from vitft.predict import Predictor
from vitft.system import UsageError

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
STARTS = re.compile(
    r"(?:\$ )?((?:\w+=\S+ )?(?:vitft|python|pip|pipx|uvx|git|make|curl|mv|sed|cd|docker|torchrun|"
    r"npm|node|\.|\w+/bin/\w+) .*)"
)
LISTED = {
    command: reason
    for reason, commands in tomllib.loads(
        (ROOT / "tests" / "docs_commands.toml").read_text()
    ).items()
    for command in commands
}


def blocks(page: str) -> Iterator[str]:
    """Yield the lines of the code blocks that have no language, or that of a shell."""
    for block in re.finditer(r"^```(\w*)\n(.*?)^```$", page, re.M | re.S):
        if block[1] in ("", "sh", "console"):
            yield from block[2].splitlines()
    above, inside = "", False
    for line in re.sub(r"^```.*?^```$", "", page, flags=re.M | re.S).splitlines():
        inside = line.startswith("    ") and (inside or not above.strip())
        if inside:
            yield line[4:]
        above = line


def commands(path: Path) -> list[str]:
    """The commands in the code blocks of a page, each once, without comments.

    Variables before a command of vitft, such as OMP_NUM_THREADS=1, are left out.
    """
    found = (STARTS.match(line) for line in blocks(path.read_text()))
    plain = (re.sub(r"^\w+=\S+ (?=vitft )|\s+# .*", "", m[1]).rstrip() for m in found if m)
    return list(dict.fromkeys(plain))


def named(path: Path) -> str:
    return str(path.relative_to(ROOT))


EVERY = {named(path): commands(path) for path in PAGES}


def inline() -> list[tuple[str, str]]:
    """The commands of vitft with options that stand in the text and tables of the pages."""
    return [
        (named(path), command)
        for path in PAGES
        for command in re.findall(r"`(vitft \w[^`\n]* --[^`\n]*)`", path.read_text())
        if not re.search(r"\.\.\.|\\\||<|--help$", command)
    ]


def parse(command: str) -> None:
    """Check the options of a command of vitft; what the text leaves out may be missing."""
    words = [
        word
        for word in shlex.split(command)[1:]
        if word not in ("-v", "-q", "--debug", "[options]")
    ]
    words = words[: words.index(">")] if ">" in words else words
    try:
        _, unknown = build_parser(words[0]).parse_known_args(words)
    except UsageError as error:
        if "arguments are required" not in error.problem:
            raise
        return
    assert not unknown, f"{command}: {unknown}"


def test_the_pages_have_commands() -> None:
    assert len({command for found in EVERY.values() for command in found}) > 80
    assert "vitft finetune --data photos" in EVERY["README.md"]


def test_the_list_of_commands_that_are_not_run_is_current() -> None:
    assert not {*LISTED} - {command for found in EVERY.values() for command in found}


@pytest.mark.parametrize(
    ("page", "command"),
    [
        (page, command)
        for page, found in [*EVERY.items(), *((page, [one]) for page, one in inline())]
        for command in found
        if command.startswith("vitft ") and " ..." not in command
    ],
)
def test_the_options_of_every_command_exist(page: str, command: str) -> None:
    parse(command)


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with everything that the pages take for granted, and a run."""
    folder = tmp_path_factory.mktemp("docs")
    draw_demo(folder / "demo_flowers", per_class=12)
    for path in sorted((folder / "demo_flowers").glob("*/*.jpg")):
        number = int(path.stem)
        target = folder / "photos" / path.parent.name / f"video{number % 6}_{number}.jpg"
        target.parent.mkdir(parents=True, exist_ok=True)
        exif = Image.Exif()
        exif.get_ifd(0x8769)[0x9003] = f"2024:05:01 10:{number:02}:00"  # when it was taken
        Image.open(path).save(target, quality=95, exif=exif)
    files = sorted((folder / "photos").glob("*/*.jpg"))
    shutil.copytree(folder / "photos", folder / "new_photos")
    rows = [f"{path.relative_to(folder)},{path.parent.name}" for path in files]
    (folder / "labels.csv").write_text("\n".join(["path,label", *rows]) + "\n")
    sites = [f"{row},{'north' if number % 3 else 'south'}" for number, row in enumerate(rows)]
    (folder / "new.csv").write_text("\n".join(["path,label,site", *sites]) + "\n")
    answers = [f"new_{row}" for row in rows[::2]]  # 30 of 60
    (folder / "answers.csv").write_text("\n".join(["path,label", *answers]) + "\n")
    (folder / "classes.csv").write_text("class,new_class\ntulip,bulb\n")
    (folder / "tree.csv").write_text("class,parent\ndaisy,composite\nsunflower,composite\n")
    (folder / "fixes.csv").write_text("path,action,label,new_label\n")
    for name in ("img", "photo", "rose"):
        shutil.copy(files[0], folder / f"{name}.jpg")
    Image.open(files[1]).save(folder / "lily.png")
    rng = np.random.default_rng(0)
    for name, shape in {"MNIST": (28, 28), "CIFAR10": (32, 32, 3)}.items():
        images, labels = rng.integers(0, 255, (20, *shape), dtype=np.uint8), np.arange(20) % 2
        parts = {"x_train": images, "y_train": labels, "x_test": images[::-1], "y_test": labels}
        np.savez(folder / f"{name}.npz", **parts)  # type: ignore[arg-type]
    (folder / "docs").symlink_to(ROOT / "docs")
    for name, seed in (("other", 1), ("base", 0)):
        command = (
            f"vitft finetune --data photos --weights demo --set train.seed={seed} --out runs/{name}"
        )
        call(command, folder)
    shutil.copy(folder / "runs" / "base" / "model.safetensors", folder / "model.safetensors")
    return folder


WALKS = ("docs/first_hour.md", "docs/teach.md")
"""Pages that draw their own flowers, and whose commands train as they stand there."""
OURS = {
    r" random:vit_tiny_patch16_224\b": "",  # with one architecture, the same as `none`
    r"\b(flower_photos|videos|DIR)\b": "photos",
    r"(?<!timm:)\bvit_(tiny|base)_patch16_224(_in21k)?\b": "demo",
    r"(?<=--weights )NAME\b": "demo",
    r"\b(RUN_BEFORE RUN_AFTER|pre post)\b": "runs/base runs/other",
    r"--like RUN_BEFORE\b": "--like runs/base",
    r"(?<=--run )RUN\b": "runs/latest",
    r"--precision 0\.95 --confidence 0\.95": "--precision 0.5 --confidence 0.9",  # 60 images
    r"--precision 0\.95 --tree": "--precision 0.5 --tree",
    r"\bIMAGES?(\.\.\.)?": "photo.jpg",
    r"\btorchvision:CIFAR10\b": "CIFAR10.npz",
    r"\b(torchvision:MNIST|mnist\.npz|FOLDER_WITH_IDX_FILES)\b": "MNIST.npz",
}
"""What stands in the pages, and what takes its place."""
LONG = {"--recipe", "--train", "--budget", "--image-size"}
"""Options of commands that train more than a head, or longer."""
FEW = ("--shots", "2", "--seeds", "1", "--no-baselines")


def ours(command: str) -> list[str]:
    """The arguments of a command of vitft, with our files in place of the reader's."""
    if not command.startswith("vitft weights"):
        for pattern, name in OURS.items():
            command = re.sub(pattern, name, command)
    if "docs/digits.toml" in command:
        command = f"{re.sub(r' --epochs [0-9]+', '', command)} --epochs 1"
    arguments = shlex.split(command)[1:]
    trained = "docs/digits.toml" in arguments
    if arguments[0] == "finetune" and not (trained or LONG.isdisjoint(arguments)):
        arguments.append("--dry-run")
    if arguments[0] == "study":
        first = arguments.index("--weights")
        last = arguments.index("--shots") if "--shots" in arguments else len(arguments)
        once = dict.fromkeys(arguments[first:last])  # each of the weights once
        arguments = [*arguments[:first], *once, *FEW]
    return arguments


def call(command: str, folder: Path) -> None:
    """Run a command in a folder: one of vitft in this process, another one in a shell."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        if not command.startswith("vitft "):
            patch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
            done = ended(["bash", "-c", command])
            assert done.returncode == 0, f"{command}\n{done.stderr[-2000:]}"
            return
        command, _, target = command.partition(" > ")
        words = ours(command)
        given = [
            name
            for word in words
            for name in (sorted(map(str, Path().glob(word))) if "*" in word else [word])
        ]
        with Path(target or os.devnull).open("w") as file, redirect_stdout(file):
            assert main(given) == 0, command


@pytest.fixture(scope="module")
def port(shelf: Path) -> Iterator[int]:
    """A server of the run, for the commands with curl."""
    with serving(Predictor.from_run(str(shelf / "runs" / "base"))) as client:
        yield client.port


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=[] if page == "README.md" else [pytest.mark.long])
        for page, found in EVERY.items()
        if {*found} - {*LISTED}
    ],
)
def test_the_commands_of_a_page_run(
    page: str, shelf: Path, port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VITFT_CACHE", str(shelf / "cache"))
    folder = tmp_path / "page"
    shutil.copytree(shelf, folder, symlinks=True, ignore=shutil.ignore_patterns("cache"))
    if page in WALKS:
        shutil.rmtree(folder / "demo_flowers")

    for command in EVERY[page]:
        program = re.split(r"\s", command.split("&& ")[-1])[0]
        if command not in LISTED and (program in ("vitft", "python") or shutil.which(program)):
            call(command.replace("127.0.0.1:8000", f"127.0.0.1:{port}"), folder)
    if page == "docs/teach.md":
        monkeypatch.chdir(folder)
        names = run_python(page)
        step_by_step = names["maps"][3][0, 1, 1:, 1:].mean(dim=0).unflatten(0, (10, 10))
        assert names["heat"] == pytest.approx(step_by_step.numpy(), abs=1e-5)
        assert names["tokens"].shape == (1, 101, 192)


def run_python(page: str) -> dict[str, Any]:
    """Run the Python of a page, and return its variables."""
    (code,) = re.findall(r"^```python\n(.*?)^```$", (ROOT / page).read_text(), re.M | re.S)
    names: dict[str, Any] = {}
    exec(compile(code, page, "exec"), names)
    return names
