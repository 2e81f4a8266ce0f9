"""The feature pass, and a second one that computes nothing."""

import hashlib
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from vitft.config import TrainSpec
from vitft.data import CropTransform, EvalTransform, Images, Row, crop_views, eval_view, scan
from vitft.features import Extractor, blocks_to_read, cut_model, inspect_dataset, run_prefix
from vitft.models import TimmConfig, TimmModel, VisionTransformer, create_model
from vitft.system import DataError, DivergedError, UsageError

TRANSFORM = EvalTransform(image_size=(16, 16))
CROP = CropTransform(image_size=TRANSFORM.image_size)


def extractor_of(
    model: VisionTransformer, cache: Path | None, precision: str = "fp32", layers: str = "head"
) -> Extractor:
    prefix = cut_model(model, layers).prefix
    assert prefix is not None
    return Extractor(prefix, folder=cache, precision=precision, max_pixels=10**8)


def inspected(extractor: Extractor, folder: Path, **options: Any) -> Images:
    options = {"max_pixels": 10**8, "allow_bad": False, "view": eval_view(TRANSFORM), **options}
    return inspect_dataset(scan(folder), extractor=extractor, **options)


def digests(extractor: Extractor, folder: Path) -> list[str]:
    return [file.sha256 for file in inspected(extractor, folder, allow_bad=True).rows]


@pytest.mark.parametrize("layers", ["head", "blocks:1"])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_rows_are_what_the_prefix_makes_of_the_documented_view(
    tiny_vit: VisionTransformer, image_folder: Path, tmp_path: Path, layers: str, precision: str
) -> None:
    extractor = extractor_of(tiny_vit, tmp_path / "cache", precision, layers)
    found = extractor.rows(digests(extractor, image_folder), eval_view(TRANSFORM))

    files = scan(image_folder).rows
    views = [TRANSFORM.pixels(Image.open(image_folder / f.path)) for f in files]
    expected = run_prefix(extractor.prefix, TRANSFORM.normalise(torch.from_numpy(np.stack(views))))
    tolerance = 1e-6 if precision == "fp32" else 0.05  # bf16 has 8 bits, and batches differ
    torch.testing.assert_close(found, expected.float(), atol=tolerance, rtol=tolerance)


def test_one_added_one_changed_one_deleted_computes_two(
    tiny_vit: VisionTransformer, image_folder: Path, tmp_path: Path
) -> None:
    first = extractor_of(tiny_vit, tmp_path / "cache")
    digests(first, image_folder)
    shutil.copy(image_folder / "red" / "000.png", image_folder / "red" / "same bytes.png")
    Image.new("RGB", (30, 30), (9, 9, 9)).save(image_folder / "red" / "added.png")
    Image.new("RGB", (30, 30), (99, 9, 9)).save(image_folder / "red" / "001.png")
    (image_folder / "red" / "002.png").unlink()

    second = extractor_of(tiny_vit, tmp_path / "cache")
    digests(second, image_folder)

    assert (first.computed, second.computed) == (30, 2)


def test_other_weights_another_cut_and_another_view_compute_afresh(
    tiny_vit: VisionTransformer, image_folder: Path, tmp_path: Path
) -> None:
    digests(extractor_of(tiny_vit, tmp_path / "cache"), image_folder)
    for precision, layers in [("bf16", "head"), ("fp32", "blocks:1")]:
        other = extractor_of(tiny_vit, tmp_path / "cache", precision, layers)
        digests(other, image_folder)
        assert other.computed == 30

    tiny_vit.patch_embed.proj.weight.data += 1e-3
    changed = extractor_of(tiny_vit, tmp_path / "cache")
    digests(changed, image_folder)
    assert changed.computed == 30


def test_views_are_fixed_by_seed_view_and_image(
    tiny_vit: VisionTransformer, image_folder: Path, tmp_path: Path
) -> None:
    files = list(scan(image_folder).rows)
    extractor = extractor_of(tiny_vit, tmp_path / "a")
    again = extractor_of(tiny_vit, tmp_path / "b")
    sha = digests(extractor, image_folder)
    rows = []
    for one, seed in ((extractor, 0), (again, 0), (again, 1)):
        views = crop_views(TRANSFORM, CROP, 2, seed)
        for view in views:
            one.compute(str(image_folder), files, view, progress=lambda _: None)
            rows.append(one.rows(sha, view))

    assert torch.equal(rows[0], rows[2])
    assert torch.equal(rows[1], rows[3])
    assert not torch.equal(rows[0], rows[1])
    assert not torch.equal(rows[0], rows[4])


def test_a_damaged_cache_is_noticed_and_recomputed(
    tiny_vit: VisionTransformer, image_folder: Path, tmp_path: Path
) -> None:
    first = extractor_of(tiny_vit, tmp_path / "cache")
    sha = digests(first, image_folder)
    whole = first.rows(sha, eval_view(TRANSFORM))
    shard = next(first.store(eval_view(TRANSFORM)).folder.glob("*.rows"))
    content = bytearray(shard.read_bytes())
    content[-3] ^= 64
    shard.write_bytes(content)

    second = extractor_of(tiny_vit, tmp_path / "cache")
    again = second.rows(digests(second, image_folder), eval_view(TRANSFORM))

    assert second.computed == 1
    torch.testing.assert_close(again, whole, atol=1e-6, rtol=0)


def test_bad_files_are_reported_like_a_check_without_features(
    tiny_vit: VisionTransformer, image_folder: Path
) -> None:
    from vitft.data import inspect_folder

    (image_folder / "red" / "torn.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    Image.new("CMYK", (20, 20)).save(image_folder / "red" / "ink.jpg")
    extractor = extractor_of(tiny_vit, None)

    for _ in range(2):  # the second time from what the first one kept
        assert inspected(extractor, image_folder) == inspect_folder(scan(image_folder))


CHILD = """
import os, signal, sys
from pathlib import Path
import torch
from tests.features.test_extract import digests, extractor_of
from vitft.features import cache
from vitft.features.extract import Extractor
from vitft.models.checkpoint import build_model, load_checkpoint
cache.time.monotonic = iter(range(0, 10**9, 301)).__next__  # longer than the longest pause
save = Extractor.save
def save_then_die(self, *args, **options):
    found = save(self, *args, **options)
    if self.computed == 16:
        os.kill(os.getpid(), signal.SIGKILL)
    return found
Extractor.save = save_then_die
state, card = load_checkpoint(Path(sys.argv[1]))
torch.set_num_threads(1)
digests(extractor_of(build_model(state, card.architecture), Path(sys.argv[3])), Path(sys.argv[2]))
"""


def test_a_pass_after_a_killed_one_computes_the_other_rows_only(
    tiny_weights: Path, image_folder: Path, tmp_path: Path
) -> None:
    from vitft.models import build_model, load_checkpoint

    state, card = load_checkpoint(tiny_weights)
    model = build_model(state, card.architecture)
    assert isinstance(model, VisionTransformer)
    undisturbed = extractor_of(model, tmp_path / "other")
    sha = digests(undisturbed, image_folder)
    words = [str(path) for path in (tiny_weights, image_folder, tmp_path / "c")]
    child = subprocess.run(
        [sys.executable, "-c", CHILD, *words],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    )
    assert child.returncode == -signal.SIGKILL

    resumed = extractor_of(model, tmp_path / "c")
    assert digests(resumed, image_folder) == sha

    assert resumed.computed == 30 - 16
    ours, theirs = (e.rows(sha, eval_view(TRANSFORM)) for e in (resumed, undisturbed))
    assert torch.equal(ours, theirs)


def test_exact_pixels_are_those_of_the_documented_view_in_bf16_too(
    tiny_vit: VisionTransformer, tmp_path: Path
) -> None:
    files, random = [], np.random.default_rng(0)
    for i in range(16):  # a batch
        noise = random.integers(0, 256, (40, 50, 3)).astype(np.uint8)
        Image.fromarray(noise).save(tmp_path / f"{i}.jpg", quality=95)
        content = (tmp_path / f"{i}.jpg").read_bytes()
        files.append(Row(f"{i}.jpg", 0, sha256=hashlib.sha256(content).hexdigest()))
    prefix, view = cut_model(tiny_vit, "head").prefix, eval_view(TRANSFORM)
    assert prefix is not None
    fast, exact = (
        Extractor(prefix, folder=tmp_path / "c", precision="bf16", max_pixels=10**6, exact=exact)
        for exact in (False, True)
    )

    for one in (exact, fast):
        one.compute(str(tmp_path), files, view, progress=lambda _: None)
    found, other = (one.rows([file.sha256 for file in files], view) for one in (exact, fast))

    views = [TRANSFORM.pixels(Image.open(tmp_path / file.path)) for file in files]
    expected = run_prefix(exact.prefix, TRANSFORM.normalise(torch.from_numpy(np.stack(views))))
    assert torch.equal(found, expected.float())
    assert not torch.equal(found, other)
    assert (exact.computed, fast.computed) == (16, 16)  # not mistaken for one another


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("factor", [1e18, 1e30, float("nan")])
def test_weights_whose_features_overflow_end_with_a_sentence(
    tiny_vit: VisionTransformer, image_folder: Path, precision: str, factor: float
) -> None:
    with torch.no_grad():
        for parameter in tiny_vit.parameters():
            parameter.mul_(factor)

    with pytest.raises(DivergedError, match="infinite, NaN or above"):
        digests(extractor_of(tiny_vit, None, precision), image_folder)


def test_rows_cached_by_another_process_are_found_after_a_refresh(
    tiny_vit: VisionTransformer, image_folder: Path, tmp_path: Path
) -> None:
    ours, theirs = (extractor_of(tiny_vit, tmp_path / "c") for _ in range(2))
    view = eval_view(TRANSFORM)
    ours.store(view)
    sha = digests(theirs, image_folder)

    with pytest.raises(DataError, match="are missing"):
        ours.rows(sha, view)
    ours.refresh()
    assert torch.equal(ours.rows(sha, view), theirs.rows(sha, view))


def test_rows_of_several_blocks_are_shared_with_a_head_on_the_last(
    tiny_vit: VisionTransformer, image_folder: Path, tmp_path: Path
) -> None:
    last = extractor_of(tiny_vit, tmp_path / "c")
    sha, view = digests(last, image_folder), eval_view(TRANSFORM)
    expected = last.rows(sha, view)
    tiny_vit.read_last_blocks(2)
    several = extractor_of(tiny_vit, tmp_path / "c")
    digests(several, image_folder)
    wide = several.rows(sha, view)

    again = several.of_last_block()

    assert several.computed == 30
    assert wide.shape[1] > expected.shape[1] == again.prefix.shape[0]
    torch.testing.assert_close(wide[:, : expected.shape[1]], expected)
    assert torch.equal(again.rows(sha, view), expected)
    assert tiny_vit.config.read_blocks == 1


@pytest.mark.parametrize(
    ("name", "options", "blocks"),
    [
        pytest.param("vit_tiny_patch16_224", {}, 6, id="tiny"),
        pytest.param("vit_small_patch16_224", {}, 4, id="small"),
        pytest.param("vit_base_patch16_224", {}, 2, id="base"),
        pytest.param("vit_large_patch16_224", {}, 2, id="large"),
        pytest.param("vit_huge_patch14_224", {}, 1, id="huge"),
        pytest.param("vit_base_patch16_224", {"pool": "mean"}, 4, id="one token per block"),
        pytest.param("vit_base_patch16_224", {"pool": "map"}, 1, id="attention pooling"),
        pytest.param("vit_tiny_patch16_224", {"depth": 3}, 3, id="only three blocks"),
    ],
)
def test_a_head_may_read_fewer_blocks_of_a_wider_model(
    name: str, options: dict[str, Any], blocks: int
) -> None:
    with torch.device("meta"):
        model = create_model(name, **options)

    assert blocks_to_read(model, TrainSpec(), images=1_000) == blocks


def test_a_head_reads_one_block_if_the_features_of_several_take_too_much_memory() -> None:
    with torch.device("meta"):
        model = create_model("vit_tiny_patch16_224")
    dimensions = replace(model.config, read_blocks=6).feature_size
    views, most = 3, 10**8  # values: 400 MB

    images = most // ((1 + views) * dimensions)

    assert blocks_to_read(model, TrainSpec(views=views), images=images) == 6
    assert blocks_to_read(model, TrainSpec(views=views), images=images + 1) == 1
    assert blocks_to_read(model, TrainSpec(views=views, head_blocks=2), images=images + 1) == 2


def timm_vit_of(image_size: int = 160) -> TimmModel:
    return TimmModel(TimmConfig(timm="test_vit", image_size=(image_size, image_size)))


def test_a_head_on_a_timm_model_reads_one_block() -> None:
    model = timm_vit_of()

    assert blocks_to_read(model, TrainSpec(head_blocks=1), images=10) == 1
    assert blocks_to_read(model, TrainSpec(), images=10) == 1
    with pytest.raises(UsageError, match="head_blocks=2 needs vitft"):
        blocks_to_read(model, TrainSpec(head_blocks=2), images=10)
