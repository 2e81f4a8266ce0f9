"""Requests of prediction jobs: formats, thresholds, and options that exclude each other."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from vitft.predict.output import ProcessShard
from vitft.predict.request import (
    PredictRequest,
    check_threshold,
    choose_format,
    requested_thresholds,
)
from vitft.predict.torch_engine import Predictor
from vitft.system.errors import UsageError
from vitft.system.spelling import parameter


def request(**options: Any) -> PredictRequest:
    return PredictRequest(**{"images": ("a.jpg",), **options})


def test_a_request_without_options_is_a_plain_table_of_one_class() -> None:
    found = request()

    assert (found.top_k, found.style, found.torch_dtype, found.engine) == (
        1,
        "table",
        *["auto"] * 2,
    )
    assert (found.bom, found.resume, found.tta, found.allow_private_addresses) == (False,) * 4
    assert (found.run, found.out, found.explain, found.threshold, found.precision) == (None,) * 5
    assert found.shard.world == 1


def test_images_or_a_list_of_them_are_required() -> None:
    with pytest.raises(UsageError, match="no images given\n"):
        PredictRequest()
    with pytest.raises(UsageError, match="no images given\n"):
        PredictRequest(explain="new")
    assert PredictRequest(lists=("list.txt",)).images == ()
    assert request(explain=".").explain == "."  # the folder exists, which is checked later


@pytest.mark.parametrize("top_k", [0, -1])
def test_a_number_of_classes_is_at_least_one(top_k: int) -> None:
    with pytest.raises(UsageError, match=f"invalid --top-k {top_k}"):
        request(top_k=top_k)
    assert request(top_k=1).top_k == 1


@pytest.mark.parametrize(
    ("options", "dtype"),
    [
        ({}, "auto"),
        ({"threshold": 0.5}, "fp32"),
        ({"precision": 0.5}, "fp32"),
        ({"tta": True}, "fp32"),
        ({"explain": "new"}, "fp32"),
        ({"threshold": 0.5, "dtype": "bf16"}, "bf16"),
        ({"dtype": "bf16"}, "bf16"),
        ({"dtype": "fp32"}, "fp32"),
    ],
)
def test_an_automatic_precision_is_float32_where_bf16_could_change_the_result(
    options: dict[str, Any], dtype: str
) -> None:
    assert request(**options).torch_dtype == dtype


@pytest.mark.parametrize("suffix", ["csv", "jsonl"])
def test_jobs_are_resumed_and_divided_only_with_rows_in_a_text_file(suffix: str) -> None:
    both = ProcessShard(rank=0, world=2)

    assert request(out=f"o.{suffix}", resume=True, shard=both).resume
    for bad in ({"resume": True}, {"resume": True, "out": "o.json"}):
        with pytest.raises(UsageError, match="--resume needs a JSONL or CSV"):
            request(**bad)
    for bad in ({}, {"out": "o.txt"}, {"out": f"o.{suffix}", "images": ("-",)}):
        with pytest.raises(UsageError, match="several processes"):
            request(**bad, shard=both)
    assert request(images=("-",), out=f"o.{suffix}").style == suffix
    assert request(images=("-",)).style == "table"


def test_a_byte_order_mark_is_for_csv() -> None:
    assert request(bom=True, format="csv").bom
    with pytest.raises(UsageError, match="--bom needs the CSV format"):
        request(bom=True, out="o.jsonl")


@pytest.mark.parametrize(
    ("options", "named"),
    [({"explain": "new"}, "--explain"), ({"dtype": "bf16"}, "--dtype bf16")],
)
def test_the_numpy_engine_refuses_what_only_torch_does(options: dict[str, Any], named: str) -> None:
    with pytest.raises(UsageError, match=f"NumPy engine does not support {named}"):
        request(engine="numpy", **options)
    assert request(engine="torch", **options)
    assert request(engine="numpy", dtype="fp32")


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"engine": "numpy"}, "--engine numpy"),
        ({"engine": "torch"}, "--engine torch"),
        ({"device": "cuda"}, "--device cuda"),
        ({"dtype": "bf16"}, "--dtype bf16"),
        ({"explain": "new"}, "--explain"),
    ],
)
def test_a_graph_refuses_options_of_other_engines(options: dict[str, Any], named: str) -> None:
    with pytest.raises(UsageError, match=f"^{named} cannot be used with the ONNX graph m.onnx"):
        request(**options).check_graph(Path("m.onnx"))


def test_a_graph_accepts_the_options_that_it_follows_anyway() -> None:
    request().check_graph(Path("m.onnx"))
    request(device="cpu", dtype="fp32", tta=True, threshold=0.5).check_graph(Path("m.onnx"))


@pytest.mark.parametrize("value", [1e-9, 0.5, 1.0])
def test_a_threshold_is_above_zero_and_at_most_one(value: float) -> None:
    check_threshold(value, None)
    check_threshold(None, value)
    check_threshold(None, None)
    with pytest.raises(UsageError, match="--threshold and --precision cannot be used together"):
        check_threshold(value, value)


@pytest.mark.parametrize(
    ("value", "fix"),
    [
        (0.0, "use a number greater than 0 and at most 1"),
        (-0.5, "use a number greater than 0 and at most 1"),
        (1.01, "use a number greater than 0 and at most 1"),
        (49.9, "use a number greater than 0 and at most 1"),
        (50.0, "use --NAME 0.5 for 50%"),
        (95.0, "use --NAME 0.95 for 95%"),
        (100.0, "use --NAME 1 for 100%"),
        (100.5, "use a number greater than 0 and at most 1"),
        (float("nan"), "use a number greater than 0 and at most 1"),
    ],
)
def test_other_thresholds_are_refused_and_percentages_answered_with_the_fraction(
    value: float, fix: str
) -> None:
    for name, values in (("threshold", (value, None)), ("precision", (None, value))):
        with pytest.raises(UsageError, match=f"^invalid --{name} ") as refused:
            check_threshold(*values)
        assert refused.value.fix == fix.replace("NAME", name)
    with pytest.raises(UsageError) as refused:
        check_threshold(95.0, None, spell=parameter)
    assert refused.value.fix == "use threshold=0.95 for 95%"


def test_the_given_threshold_is_for_not_sure_or_for_every_label() -> None:
    one = cast("Predictor", SimpleNamespace(thresholds=()))
    several = cast("Predictor", SimpleNamespace(thresholds=(0.3, 0.6)))

    assert requested_thresholds(None, None, Path(), one) == (0.0, ())
    assert requested_thresholds(0.7, None, Path(), one) == (0.7, ())
    assert requested_thresholds(None, None, Path(), several) == (0.0, (0.3, 0.6))
    assert requested_thresholds(0.0, None, Path(), several) == (0.0, (0.3, 0.6))
    assert requested_thresholds(0.7, None, Path(), several) == (0.0, (0.7, 0.7))


@pytest.mark.parametrize(
    ("out", "style"),
    [
        ("x.json", "json"),
        ("x.JSONL", "jsonl"),
        ("x.ndjson", "jsonl"),
        ("x.csv", "csv"),
        ("x.parquet", "parquet"),
        ("x.pq", "parquet"),
        ("x.xlsx", "xlsx"),
        ("x.txt", "table"),
    ],
)
def test_every_suffix_has_its_format(out: str, style: str) -> None:
    assert choose_format(None, out) == style


@pytest.mark.parametrize("suffix", ["xls", "xlsm", "XLSB"])
def test_older_excel_formats_are_answered_with_the_present_one(suffix: str) -> None:
    with pytest.raises(UsageError, match="names an Excel format that vitft does not write"):
        choose_format(None, f"my rows.{suffix}")
    with pytest.raises(UsageError) as refused:
        choose_format(None, f"my rows.{suffix}")
    assert refused.value.fix == "use --out 'my rows.xlsx'"
    assert choose_format("csv", f"my.{suffix}") == "csv"


@pytest.mark.parametrize(("style", "name"), [("parquet", "Parquet"), ("xlsx", "Excel")])
def test_a_binary_format_needs_a_file(style: str, name: str) -> None:
    with pytest.raises(UsageError, match=f"^{name} cannot be written to the terminal") as refused:
        choose_format(style, None)
    assert refused.value.fix == f"add --out predictions.{style}"


@pytest.mark.parametrize(
    ("options", "problem", "fix"),
    [
        pytest.param(
            {"images": ()},
            "no images given",
            "pass files, folders, URLs, - for standard input, or --list FILE",
            id="no images",
        ),
        pytest.param(
            {"images": (), "explain": "."},
            "no images given: --explain takes the new folder to write to",
            "give both: vitft predict . --explain explained",
            id="images after --explain",
        ),
        pytest.param({"top_k": 0}, "invalid --top-k 0", "use an integer of 1 or more", id="top 0"),
        pytest.param(
            {"threshold": 0.5, "precision": 0.9},
            "--threshold and --precision cannot be used together",
            "remove one of them",
            id="two thresholds",
        ),
        pytest.param(
            {"bom": True},
            "--bom needs the CSV format",
            "add --format csv, or remove --bom",
            id="byte order mark",
        ),
        pytest.param(
            {"resume": True},
            "--resume needs a JSONL or CSV output file",
            "add --out FILE.jsonl or --out FILE.csv",
            id="resumed table",
        ),
        pytest.param(
            {"shard": ProcessShard(rank=0, world=2)},
            "predicting with several processes needs a JSONL or CSV output file and does not "
            "support standard input",
            "use --out FILE.jsonl or --out FILE.csv, and --list FILE instead of -",
            id="processes",
        ),
        pytest.param(
            {"engine": "numpy", "explain": "new", "dtype": "bf16"},
            "the NumPy engine does not support --explain",
            "remove --engine numpy",
            id="NumPy",
        ),
    ],
)
def test_a_refused_request_has_a_fix(options: dict[str, Any], problem: str, fix: str) -> None:
    with pytest.raises(UsageError) as refused:
        request(**options)

    assert (refused.value.problem, refused.value.fix) == (problem, fix)


def test_a_refused_graph_or_suffix_has_a_fix() -> None:
    with pytest.raises(UsageError) as graph:
        request(engine="torch", device="cuda").check_graph(Path("model.onnx"))
    with pytest.raises(UsageError) as suffix:
        choose_format(None, "rows.dat")

    assert graph.value.problem == (
        "--engine torch cannot be used with the ONNX graph model.onnx, which onnxruntime runs on "
        "the CPU"
    )
    assert graph.value.fix == "remove --engine torch, or use the run directory"
    assert suffix.value.problem == "cannot infer a format from the suffix of --out rows.dat"
    assert suffix.value.fix.startswith("use one of the suffixes .")
    assert suffix.value.fix.endswith(", or add --format, e.g. --format csv")
