"""Image files in; of each a picture of where the model looked, and the numbers, on disk.

Nothing that exists is overwritten: the folder is new or empty. Printing is the door's.
"""

import io
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from vitft.data.loading import Pixels, decode_images, stack_batches
from vitft.explain.attribution import attention_maps, explain, scaled
from vitft.explain.heatmaps import Tile, as_png, contact_sheet, heads_sheet, overlay
from vitft.explain.method import Method
from vitft.explain.model import Subject
from vitft.predict.postprocess import Postprocess, Scores
from vitft.system.console import visible
from vitft.system.files import write_atomically, writing

SHEET = "sheet.png"
BATCH, ON_SHEET = 8, 48
"""Images explained together, and images at most on the sheet."""

Array = np.ndarray[Any, np.dtype[np.float32]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Explained:
    """What became of one image."""

    path: str
    answer: str = ""
    """The model's class; empty without classes."""
    probability: float | None = None
    """Of the answer, a share of one."""
    shown: str = ""
    """The class that the map is about; empty where the method knows no classes."""
    file: Path | None = None
    error: str = ""

    def caption(self) -> str:
        """One line for people."""
        said = []
        if self.probability is not None:
            said.append(f"{visible(self.answer)} {self.probability:.0%}")
        if self.shown not in ("", self.answer):
            said.append(f"shown for {visible(self.shown)}")
        return ": ".join(filter(None, (", ".join(said), visible(Path(self.path).name))))


@dataclass(slots=True, kw_only=True)
class Explaining:
    """One request: a model, a method, a folder to write into."""

    subject: Subject
    method: Method
    out: Path
    target: int | None = None
    """The class that relevance is about; None for each image's best."""
    arrays: bool = False
    """Whether the raw numbers are written beside each picture."""
    tiles: list[Tile] = field(default_factory=list)

    def images(self, paths: Iterable[str]) -> Iterator[Explained]:
        """One result per path, in order; what can be read has been written by then."""
        paths, transform = list(paths), self.subject.transform
        views = decode_images(paths, lambda _, image: transform.pixels(image))
        done = 0
        for stack in stack_batches(views, BATCH):
            errors = {number: error.reason for number, error in stack.failed}
            found = dict(zip(stack.numbers, self.of_views(stack.pixels), strict=True))
            count = len(found) + len(errors)
            for number in range(done, done + count):
                if number in errors:
                    yield Explained(path=paths[number], error=errors[number])
                else:
                    yield self.written(number, paths[number], *found[number])
            done += count

    def of_views(self, pixels: Pixels) -> Iterator[tuple[Pixels, Array, Array]]:
        """Each view (S, S, 3) with what its patches counted (gh, gw) and its logits (C,)."""
        if not len(pixels):
            return
        target = None if self.target is None else torch.full((len(pixels),), self.target)
        heat = explain(self.subject.model, self.subject.inputs(pixels), self.method, target)
        yield from zip(pixels, heat.values, heat.logits, strict=True)

    def written(
        self, number: int, path: str, view: Pixels, heat: Array, logits: Array
    ) -> Explained:
        """Write the picture of one image, and what else was asked for."""
        stem = f"{number + 1:03}-{plain_name(path)}"
        file = self.out / f"{stem}.png"
        done = self.described(path, file, logits)
        shown = scaled(heat[None])[0]
        picture = Image.fromarray(view)
        laid_over = overlay(picture, shown)
        self.put(file, as_png(laid_over))
        if len(self.tiles) < ON_SHEET:
            self.tiles.append(Tile((picture, laid_over), done.caption()))
        is_overview = self.method == Method(name="attention", fusion=self.method.fusion)
        if is_overview or self.arrays:
            maps = self.attention(view)
            if is_overview:
                patches = maps_of_patches(self.subject, maps)
                self.put(self.out / f"{stem}-heads.png", as_png(heads_sheet(patches)))
            if self.arrays:
                self.put(self.out / f"{stem}.npz", as_npz(heat=heat, attention=maps, logits=logits))
        return done

    def described(self, path: str, file: Path, logits: Array) -> Explained:
        """The model's answer and the class that is shown, from the logits (C,)."""
        classes = self.subject.classes
        if not classes:
            return Explained(path=path, file=file)
        (prediction,) = Postprocess(classes=classes)([path], Scores(logits[None]))
        answer = prediction.classes[0]
        about = answer if self.target is None else classes[self.target]
        return Explained(
            path=path,
            answer=answer,
            probability=prediction.probabilities[0],
            shown=about if self.method.name == "relevance" else "",
            file=file,
        )

    @torch.no_grad()
    def attention(self, view: Pixels) -> Array:
        """The attention of every block and head for one view: (L, H, N, N)."""
        maps, _ = attention_maps(self.subject.model, self.subject.inputs(view[None]))
        return torch.cat(maps).float().cpu().numpy()

    def put(self, file: Path, content: bytes) -> None:
        """Write one file, in a folder that is made for the first."""
        with writing(self.out):
            self.out.mkdir(parents=True, exist_ok=True)
        write_atomically(file, content)

    def finish(self) -> Path | None:
        """Write the sheet, if there are several images; returns where it is."""
        if len(self.tiles) < 2:
            return None
        self.put(self.out / SHEET, as_png(contact_sheet(self.tiles)))
        return self.out / SHEET


def maps_of_patches(subject: Subject, maps: Array) -> Array:
    """The part of attention (L, H, N, N) that the head's input pays: (L, H, gh, gw), 0 to 1."""
    config = subject.model.config
    rows = (
        maps[:, :, : config.num_read] if config.pool == "cls" else maps[:, :, config.num_prefix :]
    )
    seen = rows.mean(axis=2)[..., config.num_prefix :]  # (L, H, P)
    flat = seen.reshape(-1, *config.grid)
    return scaled(flat).reshape(*seen.shape[:2], *config.grid)


def as_npz(**arrays: Array) -> bytes:
    """The bytes of a numpy archive."""
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)  # type: ignore[arg-type]
    return buffer.getvalue()


def plain_name(path: str) -> str:
    """The name of a file without its ending, of letters and digits alone, and not too long."""
    return re.sub(r"[^\w.-]+", "_", Path(path).stem)[:50]
