"""Results as HTML for the output cells of notebooks, and objects that are shown this way.

The markup uses the style sheet of the pages, nested under the class `vitft` so that it does not
affect the rest of the notebook. It contains no script and makes no requests. It is light, or dark
if the notebook is.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from vitft.data.images import THUMBNAIL_SIDE, jpeg_uri, thumbnail_jpeg
from vitft.messages.results import headline_text, weakest_sentence
from vitft.predict.rows import Prediction
from vitft.predict.validation import mistakes
from vitft.report.charts import chart_sections
from vitft.report.html import filled, notebook_part
from vitft.report.run_files import Thumbnails, read_run
from vitft.report.run_page import cautions, key_figures
from vitft.system.text import listing, shell_quote

_MAX_MISTAKES, _MAX_PREDICTIONS, _MAX_LINES, _MAX_CLASSES = 12, 24, 20, 20
"""Maximum numbers of mistakes and predictions shown as HTML, of predictions shown as text, and of
class names."""


class Predictions(list[Prediction]):
    """A list of predictions that a notebook shows as a table, with the images of the first ones.

    Only the predictions in the table keep their `view`.
    """

    def add_batch(self, batch: Iterable[Prediction]) -> None:
        """Append predictions; those beyond the table lose their `view`."""
        for one in batch:
            self.append(one if len(self) < _MAX_PREDICTIONS else replace(one, view=None))

    def __repr__(self) -> str:
        lines = [*map(repr, self[:_MAX_LINES])]
        if len(self) > _MAX_LINES:
            lines.append(f"... and {len(self) - _MAX_LINES:,} more")
        return "[" + ",\n ".join(lines) + "]"

    def _repr_html_(self) -> str:
        shown = self[:_MAX_PREDICTIONS]
        pictures = [
            "" if one.view is None else _data_uri(Image.fromarray(one.view)) for one in shown
        ]
        pairs = [[*zip(one.classes, one.probabilities, strict=True)] for one in shown]
        rows = [*zip(shown, pictures, pairs, strict=True)]
        return notebook_part("predictions", rows=rows, more=len(self) - len(shown))


class Explanation(Image.Image):
    """A PIL image with a map drawn over it, with the method and the values of the map.

    `map_name` is the method with the block and the head, if the map shows one, and `meaning`
    describes the brighter parts. For relevance, `about` is the class that the map explains, and
    `probability` its probability. `heat` contains the unscaled map (gh, gw).
    """

    def __init__(
        self,
        image: Image.Image,
        view: Image.Image,
        method: str,
        heat: NDArray[np.float32],
        about: str = "",
        probability: float | None = None,
        *,
        map_name: str,
        meaning: str,
    ) -> None:
        super().__init__()
        super().__setstate__(image.__getstate__())
        self.view, self.method, self.heat = view, method, heat
        self.about, self.probability = about, probability
        self.map_name, self.meaning = map_name, meaning

    def __getstate__(self) -> list[Any]:
        more = ("view", "method", "heat", "about", "probability", "map_name", "meaning")
        return [*super().__getstate__(), {name: getattr(self, name) for name in more}]

    def __setstate__(self, state: list[Any]) -> None:
        *image, more = state
        super().__setstate__(image)
        self.__dict__ |= more

    def __repr__(self) -> str:
        size = f"size={self.width}x{self.height}"
        if self.probability is None:
            return f"Explanation({self.map_name}, {size})"
        return f"Explanation(about={self.about!r}, probability={self.probability:.3f}, {size})"

    def _repr_html_(self) -> str:
        pictures = [_data_uri(image, side=max(image.size)) for image in (self.view, self)]
        return notebook_part("explanation", pictures=pictures, explained=self)

    def _repr_png_(self) -> None:
        """Return None so that a notebook does not store the picture again, without its caption."""

    _repr_jpeg_ = _repr_png_


def result_card(folder: Path) -> str:
    """Return the results of a run: key figures, mistakes, training curves and the next step."""
    run = read_run(folder)
    wrong, page = mistakes(run.predictions), folder / "report.html"
    has_results = bool(run.results.headline)
    with_classes = has_results and not run.several
    weakest = weakest_sentence(run.results, len(run.classes)) if with_classes else ""
    limits = filled("cautions.j2", **cautions(run)).strip("\n").replace("\n", " ")
    charts = chart_sections(run)
    return notebook_part(
        "result",
        name=run.name,
        lead=headline_text(run.results) if with_classes else "",
        figures=key_figures(run),
        texts=[text for text in (weakest, limits) if text],
        call=f'vitft.load({str(folder)!r}).predict("photo.jpg")' if has_results else "",
        page=str(page) if page.is_file() else f"vitft report --run {shell_quote(str(folder))}",
        mistakes=wrong[:_MAX_MISTAKES],
        num_mistakes=len(wrong),
        sections=[one for one in (charts["training"], charts["learning"]) if one],
        thumbnails=Thumbnails([run]),
        class_index={name: i for i, name in enumerate(run.classes)},
        several=run.several,
    )


def trained_card(line: str, classes: Sequence[str], facts: Sequence[tuple[str, str]]) -> str:
    """Return a line about a model, its classes, and `facts` as pairs (name, value)."""
    names = listing(classes, most=_MAX_CLASSES)
    return notebook_part("model", line=line, classes=names, facts=facts)


def _data_uri(image: Image.Image, side: int = THUMBNAIL_SIDE) -> str:
    return jpeg_uri(thumbnail_jpeg(image, side))
