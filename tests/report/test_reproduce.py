"""Defaults of the settings of a run."""

from pathlib import Path

import pytest

from tests.support.run_files import make_run
from vitft.report import reproduce
from vitft.report.run_files import read_run


def test_the_default_batch_size_is_that_for_the_training_images(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = read_run(make_run(tmp_path / "run", per_class=10, held_back=4))  # three classes
    monkeypatch.setattr(reproduce, "default_batch_size", lambda _, images, **__: images)

    assert reproduce.own_defaults(run)["optim.batch_size"] == 18
