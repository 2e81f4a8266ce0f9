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

DEMO_FOLDER = Path("demo_flowers")
"""Folder of the drawn images, relative to the current folder."""


def demo_data(config: Config) -> Config:
    """Replace `--data demo` by a folder of drawn flowers, drawn now if it does not exist."""
    if config.data.path != "demo":
        return config
    if not DEMO_FOLDER.exists():
        log.info(f"drawing flowers into {DEMO_FOLDER}/")
        draw_demo(DEMO_FOLDER)
    return replace(config, data=replace(config.data, path=str(DEMO_FOLDER)))


@contextlib.contextmanager
def temporary_demo_data(config: Config) -> Iterator[Config]:
    """Like `demo_data`, but delete flowers that had to be drawn at the end."""
    if config.data.path != "demo" or DEMO_FOLDER.exists():
        yield demo_data(config)
        return
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / DEMO_FOLDER
        draw_demo(place)
        yield replace(config, data=replace(config.data, path=str(place)))
