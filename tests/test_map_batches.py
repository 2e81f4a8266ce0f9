"""The example for Ray Data and Spark: what each of them calls, and Ray itself where installed."""

import math
import os
import pickle  # noqa: TID251 - as Ray and Spark send functions to their workers
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import vitft
from tests.conftest import tiny_home

EXAMPLES = Path(__file__).parents[1] / "examples"
HANG_S = 150
"""Time limit of a child process, in seconds: Ray waits forever for cores that it does not get."""
COLUMNS = ["path", "class", "probability", "notes", "error"]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with images, one of them damaged, and a run."""
    home = tiny_home(tmp_path_factory.mktemp("home"))
    vitft.finetune(
        data=home / "data", weights=home / "w.safetensors", out=home / "run", cache="none", seed=1
    )
    (home / "new").mkdir()
    for i, path in enumerate(sorted((home / "data").rglob("*.png"))[::7]):
        (home / "new" / f"{i}.png").write_bytes(path.read_bytes())
    (home / "new" / "damaged.png").write_bytes(b"\x89PNG\r\n\x1a\n but no more")
    return home


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.syspath_prepend(EXAMPLES)
    import map_batches  # type: ignore[import-not-found]

    yield map_batches
    sys.modules.pop("map_batches")


def batch_of(home: Path) -> dict[str, np.ndarray[Any, Any]]:
    paths = np.array([str(path) for path in sorted((home / "new").iterdir())], dtype=object)
    return {"path": paths}


def expected(home: Path) -> list[tuple[str, str]]:
    model = vitft.load(home / "run")
    found = model.predict(sorted((home / "new").iterdir()))
    return [(one.path, "" if one.error else one.answer) for one in found]


def test_a_batch_of_paths_or_bytes_gets_the_predictions_of_the_model(
    home: Path, example: Any
) -> None:
    batch = batch_of(home)
    contents = np.array([Path(path).read_bytes() for path in batch["path"]], dtype=object)
    kind, arguments = pickle.loads(pickle.dumps((example.Classify, {"run": str(home / "run")})))

    classify = kind(**arguments)

    for found in (classify(batch), classify({"bytes": contents, **batch})):
        assert list(found) == COLUMNS
        assert [*zip(found["path"], found["class"], strict=True)] == expected(home)
        bad = [path.endswith("damaged.png") for path in found["path"]]
        assert bad.count(True) == 1
        assert [bool(error) for error in found["error"]] == bad
        assert [math.isnan(value) for value in found["probability"]] == bad


def test_two_stages_give_the_same_rows_as_one(home: Path, example: Any) -> None:
    batch, run = batch_of(home), str(home / "run")
    batch["bytes"] = np.array([Path(path).read_bytes() for path in batch["path"]], dtype=object)

    found = example.Classify(run)(example.Prepare(run)(batch))

    for name, wanted in example.Classify(run)(batch).items():
        np.testing.assert_array_equal(found[name], wanted)


def test_pandas_frames_are_classified(home: Path, example: Any) -> None:
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    frame = pandas.DataFrame(batch_of(home))

    (found,) = example.classify_frames([frame], run=str(home / "run"))

    assert list(found.columns) == COLUMNS
    assert [*zip(found["path"], found["class"], strict=True)] == expected(home)


@pytest.mark.parametrize("engine", ["ray", "pyspark"])
def test_ray_and_spark_classify_a_folder(home: Path, tmp_path: Path, engine: str) -> None:
    pytest.importorskip(engine, reason=f"{engine} is not installed")
    from pyarrow import dataset

    subprocess.run(
        [
            sys.executable,
            str(EXAMPLES / "map_batches.py"),
            engine.removeprefix("py"),
            "run",
            "new",
            str(tmp_path / "out"),
        ],
        cwd=home,
        env={**os.environ, "PYSPARK_PYTHON": sys.executable},
        check=True,
        timeout=HANG_S,
    )

    rows = dataset.dataset(tmp_path / "out", format="parquet").to_table().to_pylist()
    found = {Path(row["path"]).name: row["class"] for row in rows}
    assert found == {Path(path).name: answer for path, answer in expected(home)}
    assert list(rows[0]) == COLUMNS
