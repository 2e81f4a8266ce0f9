"""The folder in which the commands of saved texts run."""

from pathlib import Path

import pytest


@pytest.fixture
def home(tiny_weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Enter an empty folder T beside w.safetensors, and return the folder of both."""
    (tmp_path / "T").mkdir()
    monkeypatch.chdir(tmp_path / "T")
    (tmp_path / "w.safetensors").write_bytes(tiny_weights.read_bytes())
    return tmp_path
