"""Shared fixtures: small, seeded models, weights and images."""

import gc
import logging
import os
import random
import shutil
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from vitft.data import EvalTransform
from vitft.models import Card, VisionTransformer, ViTConfig, save_checkpoint
from vitft.system import LogHandler, show_log

COLOURS = {"blue": (40, 60, 200), "green": (50, 190, 60), "red": (200, 50, 40)}


def pytest_collection() -> None:
    """Do not look for garbage while all tests are imported, which takes a quarter of the time."""
    gc.disable()


def pytest_collection_finish() -> None:
    """Leave what was imported out of garbage collections, which take 0.2 s or more with torch.

    What the tests allocate later is collected as before.
    """
    gc.collect()
    gc.freeze()
    gc.enable()


def pytest_unconfigure() -> None:
    """Let the interpreter collect at its end; libraries would report what is left as leaks."""
    gc.unfreeze()


@pytest.fixture(autouse=True, scope="session")
def interruptible() -> None:
    """Restore the default signal handlers, which background jobs and nohup replace."""
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.fixture(autouse=True, scope="session")
def unsynced() -> Iterator[None]:
    """Do not wait until files are on the disk, which takes longer than most commands."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", os.fstat)  # which also checks the descriptor
        yield


@pytest.fixture(autouse=True)
def shown_log() -> Iterator[None]:
    """Print the log of the package, as every command does."""
    show_log()
    yield
    logger = logging.getLogger("vitft")
    for handler in [h for h in logger.handlers if isinstance(h, LogHandler)]:
        logger.removeHandler(handler)
    logger.propagate = True


@pytest.fixture(autouse=True)
def one_thread() -> None:
    """Use one thread, which is faster for tiny matrices."""
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def seeded() -> None:
    """Seed the global generators, so that every test draws the same numbers in any order."""
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002 - used by timm
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def own_home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Set an empty home folder, so that no test uses the user's cache."""
    home = tmp_path_factory.mktemp("home")
    monkeypatch.setenv("HOME", str(home))
    for name in ("XDG_CACHE_HOME", "VITFT_CACHE"):
        monkeypatch.delenv(name, raising=False)
    return home


@pytest.fixture
def tiny_config() -> ViTConfig:
    """Return a configuration of two blocks, 32 wide, for 16 pixels in patches of 4."""
    return tiny(3)


@pytest.fixture
def tiny_vit(tiny_config: ViTConfig) -> VisionTransformer:
    """Return a random model of `tiny_config`, the same in every test."""
    torch.manual_seed(0)
    return VisionTransformer(tiny_config).eval()


@pytest.fixture(scope="session")
def backbone_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a backbone with pre_logits in our own format and return its path."""
    torch.manual_seed(0)
    model = VisionTransformer(tiny(0, pre_logits=True))
    return save_model(tmp_path_factory.mktemp("weights") / "tiny.safetensors", model)


@pytest.fixture
def tiny_weights(backbone_file: Path, tmp_path: Path) -> Path:
    """Return the path of a copy of the backbone."""
    (tmp_path / "weights").mkdir()
    return Path(shutil.copy(backbone_file, tmp_path / "weights"))


@pytest.fixture
def image_folder(tmp_path: Path) -> Path:
    """Draw three classes of ten noisy coloured images each."""
    return draw_folder(tmp_path / "colours", per_class=10)


@pytest.fixture
def few(tmp_path: Path) -> Path:
    """Draw three classes of seven images: uneven batches, 16 or 17 steps of 8 in three epochs."""
    return draw_folder(tmp_path / "few", per_class=7)


def tiny_home(home: Path, *, per_class: int = 6) -> Path:
    """Fill a folder with data (3 classes of colours) and w.safetensors (two blocks)."""
    draw_folder(home / "data", per_class=per_class)
    save_backbone(home)
    return home


def draw_folder(root: Path, *, per_class: int) -> Path:
    """Draw noisy images of one colour per class, in one folder per class."""
    noisy = np.random.default_rng(0)
    for name, colour in COLOURS.items():
        (root / name).mkdir(parents=True)
        for i in range(per_class):
            noise = noisy.normal(0, 30, (20, 24, 3))
            pixels = np.clip(np.array(colour) + noise, 0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(root / name / f"{i:03}.png")
    return root


# weights ----------------------------------------------------------------------------------------


def tiny(classes: int, **fields: Any) -> ViTConfig:
    """Return a configuration: two blocks, 32 wide, for 16 pixels in patches of 4, or `fields`."""
    shape = {"image_size": (16, 16), "patch_size": (4, 4), "width": 32, "depth": 2, "heads": 2}
    return ViTConfig(num_classes=classes, **{**shape, **fields})


def save_model(path: Path, model: VisionTransformer, classes: Sequence[str] = ()) -> Path:
    """Write a model with the transform of its image size, and return the path."""
    transform = EvalTransform(image_size=model.config.image_size)
    card = Card(architecture=model.config, transform=transform, classes=tuple(classes))
    path.parent.mkdir(parents=True, exist_ok=True)
    save_checkpoint(path, model.state_dict(), card)
    return path


def save_backbone(folder: Path) -> Path:
    """Write w.safetensors, a random model of two blocks, and return its path."""
    torch.manual_seed(0)
    return save_model(folder / "w.safetensors", VisionTransformer(tiny(0)))


def random_timm(name: str, image_size: int | tuple[int, int], **options: Any) -> Any:
    """Return a timm ViT of our architecture `name` with random weights, without its slow init.

    The same million random numbers fill every matrix; LayerNorm weights are near one, so that
    the logits are of the order of one.
    """
    import timm

    size, patch = name.split("_")[1], int(name.split("_")[2].removeprefix("patch"))
    known = f"vit_{size}_patch{14 if size == 'huge' else 16}_224"
    arguments = {"img_size": image_size, "patch_size": patch, "num_classes": 10, **options}
    with torch.device("meta"):
        model = timm.create_model(known, **arguments)
    model.to_empty(device="cpu")
    noise = torch.randn(1_000_003, generator=torch.Generator().manual_seed(0)) * 0.02
    offset = 0
    for key, tensor in model.state_dict().items():
        fill(tensor, noise.roll(offset), centre=float("norm" in key and "weight" in key))
        offset += 7919
    return model.eval()


def fill(tensor: torch.Tensor, noise: torch.Tensor, *, centre: float) -> None:
    """Fill `tensor` with `noise`, repeated, plus `centre`."""
    repeats = -(-tensor.numel() // noise.numel())
    tensor.copy_(noise.repeat(repeats)[: tensor.numel()].view_as(tensor) + centre)
