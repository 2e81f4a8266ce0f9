"""Embeddings: values equal to the model's own features, files, similar images and the cache."""

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import timm
import torch
from PIL import Image
from safetensors.torch import save_file

import vitft
from tests.conftest import tiny_home
from vitft.cli.main import main
from vitft.models import VisionTransformer, ViTConfig, load_checkpoint, save_checkpoint

Array = np.ndarray[Any, np.dtype[np.float32]]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with data, weights, a run, its cache, and a model whose head reads two blocks."""
    home = tiny_home(tmp_path_factory.mktemp("embed"))
    vitft.finetune(
        data=home / "data",
        weights=home / "w.safetensors",
        out=home / "run",
        cache=home / "cache",
        device="cpu",
        settings={"train.precision": "fp32"},
    )
    torch.manual_seed(0)
    tensors, card = load_checkpoint(home / "run" / "model.safetensors")
    assert isinstance(card.architecture, ViTConfig)
    model = VisionTransformer(replace(card.architecture, read_blocks=2))
    tensors = {**model.state_dict(), **{k: v for k, v in tensors.items() if "head" not in k}}
    (home / "two").mkdir()
    save_checkpoint(
        home / "two" / "model.safetensors", tensors, replace(card, architecture=model.config)
    )
    return home


def unit(features: Array) -> Array:
    """Scale rows to length 1, in float64."""
    exact = features.astype(np.float64)
    return (exact / np.sqrt((exact**2).sum(axis=1, keepdims=True))).astype(np.float32)


def embed(home: Path, *words: str) -> int:
    """Run the command on the data of the fixture."""
    return main(["embed", str(home / "data"), "--device", "cpu", *words])


@pytest.mark.parametrize(("run", "dimensions"), [("run", 32), ("two", 96)])
def test_a_run_gives_the_features_of_its_predictions_of_length_one(
    home: Path, run: str, dimensions: int
) -> None:
    found = vitft.embed(home / "data", run=home / run, dtype="fp32", cache="none", device="cpu")
    files = sorted((home / "data").rglob("*.png"))
    scored = vitft.load(home / run, device="cpu").features([*map(str, files)])

    assert scored.shape == (18, dimensions)
    assert found.path == tuple(map(str, files))
    assert found.sha256 == tuple(hashlib.sha256(f.read_bytes()).hexdigest() for f in files)
    assert (found.precision, found.skipped) == ("fp32", ())
    assert found.vector.dtype == np.float32
    np.testing.assert_allclose(found.vector, unit(scored[:, :32]), atol=1e-6)


@pytest.mark.parametrize("name", ["test_vit", "test_resnet"])
def test_weights_of_timm_give_timms_own_pooled_output(
    home: Path, tmp_path: Path, name: str
) -> None:
    torch.manual_seed(0)
    model: Any = timm.create_model(name).eval()
    path = tmp_path / "m.safetensors"
    save_file({key: value.contiguous() for key, value in model.state_dict().items()}, path)
    found = vitft.embed(
        home / "data", weights=f"timm:{name}={path}", dtype="fp32", cache="none", device="cpu"
    )
    data = timm.data.resolve_model_data_config(model)
    view = timm.data.create_transform(**data, is_training=False)
    pixels = torch.stack([view(Image.open(path).convert("RGB")) for path in found.path])
    with torch.no_grad():
        pooled = model.forward_head(model.forward_features(pixels), pre_logits=True)

    np.testing.assert_allclose(found.vector, unit(pooled.numpy()), atol=2e-5)


def test_images_of_the_run_are_read_from_the_cache(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cache = ["--cache", str(home / "cache"), "--dtype", "fp32", "--out", str(tmp_path / "v.npz")]

    for model in (["--run", str(home / "run")], ["--weights", str(home / "w.safetensors")]):
        assert embed(home, "-v", *model, *cache) == 0
        assert "features from the cache: 18 of 18 images" in capsys.readouterr().err
        (tmp_path / "v.npz").unlink()


def test_files_have_one_row_per_image_and_the_same_vectors(home: Path, tmp_path: Path) -> None:
    words = ["--run", str(home / "run"), "--cache", "none", "--out"]
    assert embed(home, *words, str(tmp_path / "v.npz")) == 0
    assert embed(home, *words, str(tmp_path / "v.parquet")) == 0

    arrays, table = np.load(tmp_path / "v.npz"), pq.read_table(tmp_path / "v.parquet")
    assert table.column_names == ["path", "sha256", "vector"] == [*arrays][:3]
    for name in ("model", "precision"):
        assert table.schema.metadata[name.encode()].decode() == arrays[name].item()
    assert str(table.schema.field("vector").type) == "fixed_size_list<element: float>[32]"
    for name in ("path", "sha256"):
        assert table[name].to_pylist() == arrays[name].tolist()
    vectors = np.stack(table["vector"].to_numpy())
    np.testing.assert_array_equal(vectors, arrays["vector"])
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-6)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["v.npz", "v.parquet"]


def test_the_most_similar_images_are_those_of_brute_force(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    near, out = str(home / "data" / "red" / "003.png"), tmp_path / "v.npz"
    words = ["--run", str(home / "run"), "--cache", "none", "--out", str(out)]
    assert embed(home, *words, "--near", near, "--top-k", "7", "--format", "json") == 0

    similar = json.loads(capsys.readouterr().out)["similar"]
    file = np.load(out)
    exact = file["vector"].astype(np.float64)
    cosines = exact @ exact[file["path"].tolist().index(near)]
    nearest = np.argsort(-cosines)[:7]
    assert [one["path"] for one in similar] == file["path"][nearest].tolist()
    assert [one["similarity"] for one in similar] == pytest.approx(cosines[nearest], abs=2e-6)


def test_a_path_may_be_relative(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(home / "data")
    names: list[str | Path] = [home / "data" / "red" / "000.png", "red/000.png"]

    found = vitft.embed(names, run=home / "run", cache="none", device="cpu")

    assert found.path == tuple(map(str, names))
    assert len({*found.sha256}) == 1


def test_vectors_of_different_models_are_told_apart(home: Path, tmp_path: Path) -> None:
    options: Any = {"cache": "none", "device": "cpu"}
    found = vitft.embed(home / "data", run=home / "run", **options)
    own = vitft.embed(home / "data", weights=home / "w.safetensors", **options)
    other = vitft.embed(home / "data", weights="demo", **options)
    found.save(f"{tmp_path}/v.npz")

    assert np.load(tmp_path / "v.npz")["model"].item() == found.model == own.model != other.model
    assert len(found.most_similar(found.vector[0])) == 10
    nine, one = (dict(found.most_similar(n * found.vector[0])) for n in (9, 1))
    assert nine == pytest.approx(one, abs=2e-6)
    with pytest.raises(vitft.VitftError, match=r"shape .* instead of \(32,\)"):
        found.most_similar(other.vector[0])
    with pytest.raises(vitft.VitftError, match="cannot infer a format"):
        found.save("v.csv")


@pytest.mark.parametrize(
    ("images", "options", "problem"),
    [
        ([], {}, "one or more paths"),
        (Image.new("RGB", (9, 9)), {}, "one or more paths"),
        ("-", {}, "standard input is empty"),
        ("data", {"weights": "demo"}, "cannot be combined"),
        ("data", {"dtype": "fp8"}, "invalid dtype='fp8'"),
        ("data", {"device": "gpu"}, 'use device="auto"'),
    ],
)
def test_python_gets_an_error_with_a_fix(
    home: Path, images: Any, options: dict[str, Any], problem: str
) -> None:
    with pytest.raises(vitft.VitftError, match=problem):
        vitft.embed(images, run=home / "run", **options)


def test_several_processes_are_rejected(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in {"RANK": "0", "WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)

    assert embed(home, "--out", "v.npz") == 2
    assert "does not support several processes" in capsys.readouterr().err
