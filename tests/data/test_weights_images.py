"""Images on which the backbone of a run's weights was trained."""

from pathlib import Path

import pytest

from vitft.data.split import Manifest, Row
from vitft.data.weights_images import images_of_weights


def write_run(run: Path, freeze: str, weights: str, *, images: int) -> Path:
    """Write the settings and the split of a run whose image digests begin with its name."""
    run.mkdir()
    (run / "config.toml").write_text(
        f'[data]\npath = "photos"\n[weights]\nname = "{weights}"\n[train]\nfreeze = "{freeze}"\n'
    )
    rows = [
        Row(f"a/{i}.png", i % 2, "train" if i else "val", f"{i:x}{run.name}".ljust(64, "0"))
        for i in range(images)
    ]
    Manifest(Path("photos"), ("a", "b"), tuple(rows)).write(run / "split.csv")
    return run


@pytest.mark.parametrize(
    ("freeze", "number"),
    [("head", 0), ("lora", 3), ("blocks:2", 3), ("head,blocks:2", 3), ("none", 3)],
)
def test_images_count_only_where_the_backbone_was_trained_on_them(
    tmp_path: Path, freeze: str, number: int
) -> None:
    run = write_run(tmp_path / "a", freeze, "demo", images=4)

    assert len(images_of_weights(str(run))) == number
    (run / "model.safetensors").touch()
    assert len(images_of_weights(str(run / "model.safetensors"))) == number
