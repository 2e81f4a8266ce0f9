"""Index of a local copy: its samples as a table of labels."""

import csv
import io
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from vitft.data.parts import part_named
from vitft.data.remote.samples import Sample, ShardSamples
from vitft.data.table import TableReader, open_text
from vitft.data.unused import unused_notes
from vitft.system.errors import DataError, RunError
from vitft.system.text import count, listing


class IndexTable:
    """The samples of all shards as a table.

    The column `path` contains the image of a sample or, if it has several, the one whose component
    has no dot, e.g. `jpg` rather than `seg.png`. If that does not choose one image of each sample,
    there is one column for each component, and `data.path_column` chooses.
    """

    def __init__(self, shards: Mapping[str, ShardSamples]) -> None:
        self.shards = shards
        components: dict[str, None] = {}
        fields: dict[str, None] = {}
        self.images = self.without = 0
        has_main = True
        for _, sample in self.samples():
            components |= dict.fromkeys(sample.images)
            fields |= dict.fromkeys(sample.fields)
            self.images += bool(sample.images)
            self.without += not sample.images
            has_main = has_main and (not sample.images or len(_main_images(sample)) == 1)
        self.fields = tuple(fields)
        parts = () if "split" in fields else _parts_of_names(shards)
        self.parts = dict(zip(shards, parts, strict=False))
        self.components = tuple(
            sorted(name for name in components if not (has_main and "." not in name))
        )
        if has_main and not any("." not in name for name in components):
            self.components = ()  # the only image of each sample has a dot in its component
        own = ["path"] * has_main + [*self.components] + ["split"] * bool(self.parts)
        taken = {name.lower() for name in own}
        names = [f"json.{name}" if name.lower() in taken else name for name in self.fields]
        self.has_main = has_main
        self.header = [*own, *names]

    def samples(self) -> Iterator[tuple[str, Sample]]:
        """Yield the samples of all shards, each with the name of its shard."""
        for name, contents in self.shards.items():
            for sample in contents.samples.values():
                yield name, sample

    def rows(self) -> Iterator[list[str]]:
        """Yield one row for each sample with an image."""
        for shard, sample in self.samples():
            if not sample.images:
                continue
            found = {name: f"{shard}/{one.name}" for name, one in sample.images.items()}
            main = [found[_main_images(sample)[0]]] if self.has_main else []
            part = [self.parts[shard]] if self.parts else []
            others = (found.get(name, "") for name in self.components)
            yield [*main, *others, *part, *(sample.fields.get(name, "") for name in self.fields)]

    def notes(self) -> list[str]:
        """Return notes on samples and members that are not used, and on the split."""
        unused: Counter[str] = Counter()
        for contents in self.shards.values():
            unused.update(contents.unused)
        notes = unused_notes(unused)
        if self.without:
            notes.append(f"not used: {count(self.without, 'sample')} without an image")
        if self.parts:
            parts = listing(dict.fromkeys(self.parts.values()))
            notes.append(f"the names of the shards divide the data into {parts}")
        return notes


def _main_images(sample: Sample) -> list[str]:
    """Return the components of a sample's images that have no dot, or its only component."""
    if len(sample.images) == 1:
        return [*sample.images]
    return [name for name in sample.images if "." not in name]


def _parts_of_names(names: Iterable[str]) -> tuple[str, ...]:
    """Return the subset that each shard's name contains as a word, e.g. `train-00.tar`.

    The result is empty unless every name contains one, and there are training images and others.
    """
    words = [{*map(part_named, re.split(r"[^A-Za-z]+", name))} - {""} for name in names]
    if not all(len(found) == 1 for found in words):
        return ()
    parts = tuple(str(next(iter(found))) for found in words)
    return parts if "train" in parts and len({*parts}) > 1 else ()


class IndexReader(TableReader):
    """Reader for the index of a local copy; its errors name the dataset and the sample."""

    def __init__(self, index: Path, data: str) -> None:
        choose = "choose the field that contains it with --set data.label=NAME"
        if not data.startswith("hf:"):
            choose = f"write the class of each sample as KEY.cls or in KEY.json, or {choose}"
        super().__init__(index, missing="run the command again", fix=choose)
        self.shown = data

    def error(
        self, problem: str, *, line: int = 0, column: str = "", fix: str = ""
    ) -> DataError | RunError:
        """Return the error for a problem with a field of a sample, given the line of the index."""
        line = line or self.line
        rows = csv.reader(open_text(io.BytesIO(self.data), self.data))
        cells = next((cells for number, cells in enumerate(rows, 1) if number == line), [""])
        sample = f"the sample {cells[0]}" if line > 1 else ""
        places = [self.shown, sample, f"the field {column.strip()[:40]}" * bool(column)]
        if setting := re.search(r"--set data\.(path_column|split_column|group)=\w+", fix):
            fix = f"choose a field with {setting[0]}"
        elif not fix or re.search("cell|line|rename", fix):  # of a table that the user wrote
            fix = self.fix
        return DataError(f"{', '.join(filter(None, places))}: {problem}", fix=fix)
