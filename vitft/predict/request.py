"""Request for a prediction job, validated before any expensive import."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from numbers import Real
from pathlib import Path
from typing import Self

from vitft.config.sections import DataSpec
from vitft.data.groups import with_group_by
from vitft.system.errors import UsageError
from vitft.system.imports import require_extra
from vitft.system.text import shell_quote

ROW_FORMATS = ("table", "json", "jsonl", "csv", "parquet", "xlsx")
FORMAT_OF_SUFFIX = {".json": "json", ".jsonl": "jsonl", ".ndjson": "jsonl", ".csv": "csv",
                    ".parquet": "parquet", ".pq": "parquet", ".xlsx": "xlsx",
                    ".txt": "table"}  # fmt: skip
_BINARY_FORMATS = {"parquet": ("Parquet", "parquet"), "xlsx": ("Excel", "spreadsheet")}
"""Formats that are not text, with their name and the extra that writes them."""
_COUNT_FORMATS = ("table", "json", "csv")
ENGINES = ("auto", "numpy", "torch")
PREDICT_DTYPES = ("auto", "fp32", "bf16")

_NEEDS = {"--confidence": "--precision 0.9", "--labels": "--counts", "--resume": "--out FILE.csv"}
"""Options that have no effect without another, with an example of it."""
_CONFLICTS = (
    ("--threshold", "--precision"),
    ("--confidence", "--tree"),
    ("--counts", "--tree"),  # it counts classes, not their parents
    ("--counts", "--group-by"),  # the mistakes of the model are known for single images,
    ("--counts", "--tta"),  # and without mirror images
    ("--group-by", "--precision"),  # which holds for single images
    ("--group-by", "--coverage"),
    ("--tta", "--precision"),
    ("--tta", "--confidence"),  # which needs the probabilities of the held-out images
    ("--tta", "--coverage"),
    ("--explain", "--resume"),  # it would draw only some of the images
)
"""Options that cannot be used together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Marks:
    """Options that mark uncertain predictions, or give each image several classes.

    Invalid or conflicting options raise UsageError.
    """

    threshold: float | None = None
    precision: float | None = None
    confidence: float | None = None
    coverage: float | None = None
    tree: str | None = None

    def __post_init__(self) -> None:
        for name in ("threshold", "precision", "confidence", "coverage"):
            value, below = getattr(self, name), name in ("confidence", "coverage")
            fix = f"use a number greater than 0 and {'below' if below else 'at most'} 1"
            is_number = isinstance(value, Real | None)
            if not is_number:
                raise UsageError(f"invalid --{name} {value!r}", fix=fix)
            if value is None or 0 < value < 1 or (value == 1 and not below):
                continue
            if 50 <= value < 100 or (value == 100 and not below):
                fix = f"use --{name} {value / 100:g} for {value:g}%"
            raise UsageError(f"invalid --{name} {value:g}", fix=fix)
        given = {f"--{f.name.replace('_', '-')}" for f in fields(self) if getattr(self, f.name)}
        for option, example in _NEEDS.items():
            needed = example.split()[0]
            if option in given and needed not in given:
                problem = f"{option} has no effect without {needed}"
                raise UsageError(problem, fix=f"add {example}, or remove {option}")
        for one, other in _CONFLICTS:
            if {one, other} <= given:
                problem = f"{one} and {other} cannot be used together"
                raise UsageError(problem, fix="remove one of them")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessShard:
    """The rows that one process writes: chunks `rank`, `rank + world`, and so on."""

    rank: int = 0
    world: int = 1
    chunk: int = 16  # number of rows computed together; a resumed run starts at a multiple of it

    @classmethod
    def from_environment(cls) -> Self:
        """Return the shard of this process: all rows unless torchrun started several processes."""
        rank, world = (os.environ.get(name, "") for name in ("RANK", "WORLD_SIZE"))
        if rank.isdigit() and world.isdigit() and int(world) > 1:
            return cls(rank=int(rank), world=int(world))
        return cls()

    def team(self) -> "list[Self]":
        """Return the shards of all processes."""
        return [replace(self, rank=rank) for rank in range(self.world)]


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictRequest(Marks):
    """Options of `vitft predict` (`vitft predict --help` describes them)."""

    images: Sequence[str] = ()
    lists: Sequence[str] = ()
    run: str | None = None
    device: str = "auto"
    top_k: int = 1
    format: str | None = None  # one of `ROW_FORMATS`; None to infer it (see `style`)
    counts: bool = False  # whether to print the number of images of each class instead of rows
    labels: str | None = None  # table of the classes of a random sample of the images to count
    out: str | None = None
    """Output file; None to pass the lines to the `write` argument of `run_prediction`."""
    bom: bool = False
    resume: bool = False
    tta: bool = False
    explain: str | None = None
    dtype: str = "auto"  # one of `PREDICT_DTYPES` (see `torch_dtype`)
    engine: str = "auto"
    allow_private_addresses: bool = False
    group_by: str | None = None  # a column, `folder` or a pattern, as in `data.group_by`
    shard: ProcessShard = field(default_factory=ProcessShard)

    @property
    def style(self) -> str:
        """Format of the rows: `format` or, if it is None, that of the suffix of `out`, or a table.

        With `counts`, `format` is that of the counts. The format is a UsageError if it is unknown,
        not for the terminal, or if its library is missing.
        """
        out = self.out
        style = (None if self.counts else self.format) or (
            "table" if out is None else FORMAT_OF_SUFFIX.get(Path(out).suffix.lower(), "")
        )
        if not style:
            raise UsageError(
                f"cannot infer a format from the suffix of --out {out}",
                fix=f"use one of the suffixes {', '.join(FORMAT_OF_SUFFIX)}"
                + ", or add --format, e.g. --format csv" * (not self.counts),
            )
        if style in _BINARY_FORMATS:
            name, extra = _BINARY_FORMATS[style]
            if out is None:
                raise UsageError(
                    f"{name} cannot be written to the terminal",
                    fix=f"add --out predictions.{style}",
                )
            require_extra(extra, feature=f"--format {style}")
        return style

    @property
    def torch_dtype(self) -> str:
        """Precision for the torch engine: `dtype`, or fp32 where `auto` must not choose bf16.

        bf16 keeps the most probable class, but a probability may cross a threshold, and the class
        of an average with other images may change. Overlays are computed in float32.
        """
        averages = self.tta or self.group_by
        needs_float32 = (self.threshold, self.precision, self.coverage, averages, self.explain)
        return "fp32" if self.dtype == "auto" and any(needs_float32) else self.dtype

    def __post_init__(self) -> None:
        if not self.images and not self.lists:
            if self.explain and Path(self.explain).is_dir():
                raise UsageError(
                    "no images given, because --explain takes the folder to write to",
                    fix=f"give both: vitft predict {shell_quote(self.explain)} --explain explained",
                )
            raise UsageError(
                "no images given",
                fix="pass files, folders, URLs, - for standard input, or --list FILE",
            )
        if self.top_k < 1:
            raise UsageError(f"invalid --top-k {self.top_k}", fix="use an integer of 1 or more")
        Marks.__post_init__(self)
        if self.tree is not None and self.threshold is None and self.precision is None:
            problem = "--tree has no effect without --threshold or --precision"
            raise UsageError(problem, fix="add --precision 0.9, or remove --tree")
        if self.counts and self.format not in (None, *_COUNT_FORMATS):
            raise UsageError(
                f"--counts does not support --format {self.format}",
                fix=f"use --format {', '.join(_COUNT_FORMATS[:-1])} or {_COUNT_FORMATS[-1]}",
            )
        of_rows = {
            "--top-k": self.top_k > 1,
            "--threshold": self.threshold,
            "--precision": self.precision,
            "--coverage": self.coverage,
            "--bom": self.bom,
        }
        if self.counts and self.out is None and (used := [o for o, v in of_rows.items() if v]):
            raise UsageError(
                f"{used[0]} has no effect, because --counts prints no rows",
                fix=f"remove {used[0]}, or write the rows to a file with --out",
            )
        if self.style != "csv" and self.bom:
            raise UsageError("--bom needs the CSV format", fix="add --format csv, or remove --bom")
        is_alone, has_stdin = self.shard.world == 1, "-" in self.images
        if not is_alone and (self.out is None or has_stdin or self.explain is not None):
            raise UsageError(
                "predicting with several processes needs an output file, and supports neither "
                "standard input nor --explain",
                fix="use --out FILE.csv, --list FILE instead of -, and vitft explain",
            )
        if self.engine == "numpy" and (used := self.torch_options):
            problem = f"the NumPy engine does not support {used[0]}"
            raise UsageError(problem, fix="remove --engine numpy")

    @property
    def groups(self) -> DataSpec:
        """Settings with the column or the pattern of the groups, if any."""
        if self.group_by is None:
            return DataSpec()
        return with_group_by(DataSpec(), self.group_by, "--group-by")

    @property
    def torch_options(self) -> list[str]:
        """The options that need the torch engine, as given."""
        return [
            *[f"--device {self.device}"] * (self.device not in ("auto", "cpu")),
            *["--dtype bf16"] * (self.dtype == "bf16"),
            *["--explain"] * (self.explain is not None),
        ]

    def check_several_labels(self) -> None:
        """Raise UsageError if an option does not work with a multi-label model."""
        if self.top_k > 1:
            raise UsageError(
                f"--top-k {self.top_k} has no effect: predictions of a multi-label model contain "
                "the probability of every label",
                fix="remove --top-k",
            )
        if self.group_by:
            raise UsageError(
                "--group-by does not support multi-label models",
                fix="remove --group-by, and combine the rows of the images",
            )

    def check_graph(self, path: Path) -> None:
        """Raise UsageError if an option does not work with the ONNX graph at `path`."""
        if used := [*[f"--engine {self.engine}"] * (self.engine != "auto"), *self.torch_options]:
            raise not_for_graphs(used[0], path)


def not_for_graphs(option: str, path: Path) -> UsageError:
    """Return the error for an option that does not work with an ONNX graph."""
    return UsageError(
        f"{option} cannot be used with the ONNX graph {path}, which onnxruntime runs on the CPU",
        fix=f"remove {option}, or use the run directory",
    )
