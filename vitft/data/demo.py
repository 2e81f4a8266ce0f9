"""`--data demo`: a folder of drawn flowers."""

import contextlib
import logging
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from vitft.config.run import Config
from vitft.data.flowers import draw_demo

log = logging.getLogger(__name__)

FLOWERS = Path("demo_flowers")
"""Where the drawn images are put, in the folder the command is run in."""


def demo_data(config: Config) -> Config:
    """Replace `--data demo` by a folder of drawn flowers, drawn now if it is not there yet."""
    if config.data.path != "demo":
        return config
    if not FLOWERS.exists():
        log.info(f"drawing flowers into {FLOWERS}/")
        draw_demo(FLOWERS)
    return replace(config, data=replace(config.data, path=str(FLOWERS)))


@contextlib.contextmanager
def demo_elsewhere(config: Config) -> Iterator[Config]:
    """As `demo_data`, but flowers that are drawn now are gone afterwards."""
    if config.data.path != "demo" or FLOWERS.exists():
        yield demo_data(config)
        return
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / FLOWERS
        draw_demo(place)
        yield replace(config, data=replace(config.data, path=str(place)))
