"""Loading and cutting of a model, the pass over its images, and the disk space of its tokens."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

from vitft.config.sections import ModelSpec, TrainSpec, WeightsSpec
from vitft.data.scan import scan
from vitft.data.transforms import EvalTransform, eval_view
from vitft.features import pipeline
from vitft.features.cut import cut_model
from vitft.features.extract import Extractor
from vitft.features.fingerprints import Fingerprints
from vitft.features.pipeline import (
    FrozenPipeline,
    blocks_to_read,
    build_pipeline,
    check_disk_space,
    format_bytes,
    inspect_dataset,
    load_pipeline,
    log_cached_features,
    read_several_blocks,
    set_checkpointing,
)
from vitft.models.registry import create_model
from vitft.models.timm_config import TimmConfig
from vitft.models.timm_model import TimmModel
from vitft.models.vit import VisionTransformer
from vitft.system import console
from vitft.system.device import pick_device
from vitft.system.errors import ResourceError, RunError, UsageError

VIEW = eval_view(EvalTransform(image_size=(16, 16)))


class Disk(NamedTuple):
    """What `shutil.disk_usage` returns."""

    total: int
    used: int
    free: int


def extractor_of(model: VisionTransformer, folder: Path, freeze: str) -> Extractor:
    prefix = cut_model(model, freeze).prefix
    assert prefix is not None
    return Extractor(prefix, folder=folder, precision="bf16", max_pixels=10**6)


def test_the_size_of_the_tokens_is_logged_first(
    tiny_vit: VisionTransformer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    extractor = extractor_of(tiny_vit, tmp_path, "blocks:1")
    tokens, width = extractor.prefix.shape

    check_disk_space(extractor, VIEW, images=1000)

    said = " ".join(capsys.readouterr().err.split())
    assert f"(1,000 images x {tokens} tokens x {width} values x 2 bytes)" in said


def test_tokens_that_do_not_fit_on_the_disk_are_refused_first(
    tiny_vit: VisionTransformer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    extractor = extractor_of(tiny_vit, tmp_path, "blocks:1")
    tokens, width = extractor.prefix.shape
    room = 1000 * tokens * width * 2
    free = [room]
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Disk(10 * room, 0, free[0]))

    check_disk_space(extractor, VIEW, images=1000)  # it just fits
    free[0] = room - 1
    with pytest.raises(ResourceError, match=r"(?s)1,000 images .* free.*fix: .*--cache DIR"):
        check_disk_space(extractor, VIEW, images=1000)


def test_cached_tokens_need_no_space(
    tiny_vit: VisionTransformer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    extractor = extractor_of(tiny_vit, tmp_path, "blocks:1")
    store = extractor.store(VIEW)
    store.places.update({bytes([i]): (0, i) for i in range(3)})
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Disk(1, 1, 0))

    check_disk_space(extractor, VIEW, images=3)
    with pytest.raises(ResourceError):
        check_disk_space(extractor, VIEW, images=4)


def test_one_feature_per_image_is_not_logged(
    tiny_vit: VisionTransformer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Disk(1, 1, 0))

    check_disk_space(extractor_of(tiny_vit, tmp_path, "head"), VIEW, images=1000)

    assert capsys.readouterr().err == ""


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
    with pytest.raises(UsageError, match="head_blocks=2 cannot be used with timm"):
        blocks_to_read(model, TrainSpec(head_blocks=2), images=10)


def built(model: VisionTransformer, spec: TrainSpec, stage: str = "head") -> FrozenPipeline:
    transform = EvalTransform(image_size=(16, 16))
    cpu = torch.device("cpu")
    return build_pipeline(model, transform, stage, spec, device=cpu, precision="fp32")


def test_a_pipeline_whose_head_reads_several_blocks_has_a_wider_cut(
    tiny_vit: VisionTransformer,
) -> None:
    one = built(tiny_vit, TrainSpec())
    width = tiny_vit.config.width

    assert read_several_blocks(one, TrainSpec(head_blocks=1), images=10) is one
    several = read_several_blocks(one, TrainSpec(), images=10)

    assert several.cut.prefix is not None
    assert several.cut.prefix.shape[0] > several.cut.prefix.leading == width
    assert {name.split(".")[0] for name in several.trained} >= {"head"}


def test_adapters_are_added_for_the_stage_lora_only(
    tiny_vit: VisionTransformer, monkeypatch: pytest.MonkeyPatch
) -> None:
    adapted: list[str] = []
    stage = ""
    monkeypatch.setattr(pipeline, "add_adapters", lambda *_: adapted.append(stage))

    for stage in ("head", "blocks:1", "lora", "none"):
        built(tiny_vit, TrainSpec(), stage)

    assert adapted == ["lora"]
    assert built(tiny_vit, TrainSpec()).trained == ("head.weight", "head.bias")


@pytest.mark.parametrize("enabled", [True, False])
def test_checkpointing_is_switched_in_both_kinds_of_models(
    tiny_vit: VisionTransformer, enabled: bool
) -> None:
    theirs = timm_vit_of()

    set_checkpointing(tiny_vit, enabled)
    set_checkpointing(theirs, enabled)

    assert tiny_vit.checkpointing is enabled
    assert theirs.net.grad_checkpointing is enabled


def test_a_timm_model_without_checkpointing_refuses_only_its_use() -> None:
    model = timm_vit_of()

    def unsupported(enable: bool) -> None:
        raise AssertionError("not supported")

    model.net.set_grad_checkpointing = unsupported

    set_checkpointing(model, False)
    with pytest.raises(UsageError, match="timm does not support it"):
        set_checkpointing(model, True)


def test_checkpointing_of_some_blocks_of_a_timm_model_is_refused() -> None:
    def build(stage: str, spec: TrainSpec) -> FrozenPipeline:
        transform, cpu = EvalTransform(image_size=(160, 160)), torch.device("cpu")
        return build_pipeline(timm_vit_of(), transform, stage, spec, device=cpu, precision="fp32")

    assert build("blocks:1", TrainSpec()).cut.prefix is not None
    assert build("none", TrainSpec(checkpointing=True)).cut.prefix is None
    with pytest.raises(UsageError, match="cannot be combined with --freeze blocks:1"):
        build("blocks:1", TrainSpec(checkpointing=True))


def test_checkpointing_of_some_blocks_of_our_models_is_allowed(tiny_vit: VisionTransformer) -> None:
    found = built(tiny_vit, TrainSpec(checkpointing=True), "blocks:1")

    assert found.cut.prefix is not None
    assert tiny_vit.checkpointing
    built(tiny_vit, TrainSpec(), "blocks:1")
    assert not tiny_vit.checkpointing


# the extractor and its pass ----------------------------------------------------------------------


def test_only_a_chosen_cache_folder_of_features_must_be_usable(
    tiny_vit: VisionTransformer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "file").touch()
    frozen = built(tiny_vit, TrainSpec())

    monkeypatch.setenv("VITFT_CACHE", str(tmp_path / "default"))
    usual = frozen.open_extractor(TrainSpec(), max_pixels=99)
    own = frozen.open_extractor(TrainSpec(cache=str(tmp_path / "own")), max_pixels=99)
    none = frozen.open_extractor(TrainSpec(cache="none"), max_pixels=99)

    assert usual is not None
    assert own is not None
    assert none is not None
    assert usual.folder == tmp_path / "default" / "features"
    assert own.folder == tmp_path / "own"
    assert own.max_pixels == 99
    assert tmp_path not in none.folder.parents
    assert capsys.readouterr().err == ""
    monkeypatch.setenv("VITFT_CACHE", str(tmp_path / "file"))
    assert frozen.open_extractor(TrainSpec(), max_pixels=99) is not None
    assert "features are not cached" in capsys.readouterr().err
    with pytest.raises(RunError):
        frozen.open_extractor(TrainSpec(cache=str(tmp_path / "file")), max_pixels=99)
    assert built(tiny_vit, TrainSpec(), "none").open_extractor(TrainSpec(), max_pixels=9) is None


def test_exact_pixels_are_those_of_the_setting(tiny_vit: VisionTransformer) -> None:
    lean = replace(built(tiny_vit, TrainSpec()), precision="bf16")

    for exact in (True, False):
        spec = TrainSpec(cache="none", exact_pixels=exact)
        extractor = lean.open_extractor(spec, max_pixels=99)
        assert extractor is not None
        assert extractor.is_exact is exact


def test_a_loaded_pipeline_is_frozen_on_the_chosen_device(
    image_folder: Path,
    tiny_weights: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def load(**options: Any) -> FrozenPipeline:
        return load_pipeline(
            scan(image_folder),
            "head",
            weights=WeightsSpec(name=str(tiny_weights)),
            model=ModelSpec(),
            train=TrainSpec(device="cpu", precision="fp32"),
            max_pixels=10**6,
            **options,
        )[0]

    numbers: list[int] = []

    def watched(name: str, *, number: int) -> torch.device:
        numbers.append(number)
        return pick_device(name, number=number)

    monkeypatch.setattr(pipeline, "pick_device", watched)
    found = load(announce=False, local_rank=3)
    assert capsys.readouterr().err == ""
    load()

    assert "2 blocks, width 32" in capsys.readouterr().err
    assert (found.device.type, found.precision) == ("cpu", "fp32")
    assert found.cut.pooled
    assert found.trained == ("head.weight", "head.bias")
    assert numbers == [3, 0]  # of the GPU


@pytest.mark.parametrize("kind", ["features", "fingerprints", "neither", "no view"])
def test_a_pass_inspects_every_image_whatever_is_computed(
    tiny_vit: VisionTransformer,
    image_folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
) -> None:
    made: list[Any] = []
    real = console.Progress

    def watched(*arguments: Any) -> Any:
        made.append(real(*arguments))
        made[-1].first_label = arguments[0]
        made[-1].skipped = []
        made[-1].skip = made[-1].skipped.append
        return made[-1]

    monkeypatch.setattr(console, "Progress", watched)
    shutil.copy(image_folder / "red" / "000.png", image_folder / "red" / "copy.png")
    fingerprints = None if kind == "neither" else Fingerprints("none")
    extractor = (
        extractor_of(tiny_vit, tmp_path, "head") if kind in ("features", "no view") else None
    )

    for repeated in (False, True):
        before = 0 if extractor is None else extractor.computed
        found = inspect_dataset(
            scan(image_folder),
            max_pixels=10**6,
            allow_bad=False,
            extractor=extractor,
            view=VIEW if kind == "features" else None,
            fingerprints=fingerprints,
            label="computing",
        )

        assert len(found.good) == 31
        assert fingerprints is None or len(fingerprints.by_digest) == 30
        computed = 0 if extractor is None else extractor.computed - before
        assert computed == (30 if kind == "features" and not repeated else 0)
        first = "checking images" if extractor is None else "computing"
        assert made[-1].first_label == first
        last = "computing" if computed else "checking images"
        assert made[-1].label == last
        assert made[-1].skipped == ([1] if computed else [])  # the copy takes no time


@pytest.mark.parametrize(
    ("computed", "said"),
    [(0, "features from the cache: 30 of 30 images"), (29, "cache: 1 of 30 images"), (30, "")],
)
def test_the_number_of_cached_features_is_logged(
    image_folder: Path, capsys: pytest.CaptureFixture[str], computed: int, said: str
) -> None:
    shutil.copy(image_folder / "red" / "000.png", image_folder / "red" / "copy.png")
    found = inspect_dataset(scan(image_folder), max_pixels=10**6, allow_bad=False)
    capsys.readouterr()

    log_cached_features(found, computed)

    err = capsys.readouterr().err
    assert said in err
    assert bool(err) == bool(said)


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 MB"), (1_500_000, "2 MB"), (999_999_999, "1000 MB"), (10**9, "1.0 GB")],
)
def test_sizes_are_in_decimal_units(size: int, text: str) -> None:
    assert format_bytes(size) == text
