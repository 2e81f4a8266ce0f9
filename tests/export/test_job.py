"""Export of a run: which formats are refused, how far they may differ, and what is noted."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.export.test_card import compared
from tests.support.export_run import make_run
from vitft.export.compare import check_comparison
from vitft.export.job import (
    Exported,
    format_of,
    licence_note,
    max_error_of,
    narrow_formats,
    remove_refused,
)
from vitft.export.plan import ExportPlan
from vitft.export.trained import load_trained
from vitft.models.card import Provenance
from vitft.system.errors import RunError


def plan(*formats: str, **fields: Any) -> ExportPlan:
    return ExportPlan(formats=formats or ("timm",), out=Path("out"), **fields)


def test_the_figures_of_an_export_are_those_of_the_worst_format() -> None:
    rows = (
        compared(images=6, difference=1e-7, changed=2),
        compared(images=6, difference=3e-5, changed=0),
        compared(images=6, difference=2e-5, changed=1),
    )

    found = Exported(folder=Path("out"), rows=rows)

    assert (found.images, found.difference, found.changed) == (6, 3e-5, 2)
    assert (found.notes, found.narrow, found.refused) == ((), (), ())


@pytest.mark.parametrize(
    ("name", "with_resize", "limit"),
    [
        ("onnx", False, 1e-4),
        ("onnx", True, 1e-2),
        ("transformers-js", False, 1e-2),
        ("timm", False, 1e-4),
    ],
)
def test_graphs_that_resize_may_differ_by_a_hundredth(
    name: str, limit: float, *, with_resize: bool
) -> None:
    assert max_error_of(name, plan(with_resize=with_resize)) == limit


def test_a_page_may_differ_by_the_rounding_of_its_weights() -> None:
    assert max_error_of("html", plan()) == max_error_of("html", plan(with_resize=True)) > 1e-2


def test_an_8_bit_graph_belongs_to_its_format() -> None:
    assert [format_of(compared(name=n)) for n in ("int8", "transformers-js, int8", "onnx")] == [
        "int8",
        "transformers-js",
        "onnx",
    ]


def folders(root: Path, *names: str) -> Path:
    for name in names:
        (root / name).mkdir(parents=True)
        (root / name / "model").touch()
    return root


def test_formats_that_differ_are_removed_with_their_first_error(tmp_path: Path) -> None:
    rows = [
        compared(name="timm"),
        compared(name="transformers-js", difference=0.5),
        compared(name="transformers-js, int8", images=100, changed=50),
        compared(name="onnx", difference=2.9e-4),  # logits up to 3
    ]

    refused = remove_refused(rows, plan(), folders(tmp_path, "timm", "transformers-js", "onnx"))

    assert [*refused] == ["transformers-js"]
    assert "--transformers-js export differ from the run's: logits by up to 0.5" in (
        refused["transformers-js"].problem
    )
    assert sorted(path.name for path in tmp_path.iterdir()) == ["onnx", "timm"]


def test_the_first_error_is_raised_if_no_format_is_left(tmp_path: Path) -> None:
    rows = [
        compared(name="onnx", difference=0.25),
        compared(name="transformers-js"),
        compared(name="transformers-js, int8", images=0),
    ]

    with pytest.raises(RunError, match=r"--onnx export differ .* by up to 0\.25"):
        remove_refused(rows, plan(), folders(tmp_path, "onnx", "transformers-js"))

    assert len([*tmp_path.iterdir()]) == 2  # the whole folder is removed by the caller


def test_nothing_is_removed_if_nothing_differs(tmp_path: Path) -> None:
    assert remove_refused([compared()], plan(), folders(tmp_path, "timm")) == {}
    assert remove_refused([], plan(), tmp_path) == {}
    assert (tmp_path / "timm" / "model").exists()


def test_the_difference_is_relative_to_the_largest_logit_above_one() -> None:
    for largest, limit in ((0.5, 1e-4), (1.0, 1e-4), (30.0, 3e-3)):
        check_comparison(compared(largest=largest, difference=0.999 * limit))
        with pytest.raises(RunError):
            check_comparison(compared(largest=largest, difference=1.001 * limit))


NO_LICENCE = "; to state one, export again with --licence NAME, e.g. --licence apache-2.0"


@pytest.mark.parametrize(
    ("weights", "formats", "chosen", "reason"),
    [
        ({"name": "noise"}, ("timm",), "", "vitft does not know that of the weights"),
        ({"name": "noise"}, ("timm", "preprocessing"), "", "vitft does not know that of"),
        ({"name": "noise"}, ("preprocessing",), "", ""),
        ({"name": "noise"}, ("timm",), "mit", ""),
        ({"name": "noise", "licence": "mit"}, ("timm",), "", ""),
        ({"name": "none"}, ("timm",), "", "the model was trained without pretrained weights, so"),
        ({"name": "random:1"}, ("html",), "", "the model was trained without pretrained weights"),
    ],
)
def test_a_licence_that_is_not_known_is_noted(
    tmp_path: Path, weights: Provenance, formats: tuple[str, ...], chosen: str, reason: str
) -> None:
    trained = load_trained(str(make_run(tmp_path, weights=weights)))

    found = licence_note(trained, plan(*formats, licence=chosen))

    if not reason:
        assert found == []
        return
    (note,) = found
    assert note.startswith(f"no licence is stated, because {reason}")
    assert note.endswith(NO_LICENCE)


def test_a_head_that_reads_one_block_is_the_same_in_every_format(tmp_path: Path) -> None:
    trained = load_trained(str(make_run(tmp_path)))

    assert narrow_formats(trained, plan("timm", "onnx", "transformers")) == ()


def test_formats_of_other_libraries_read_only_the_last_block(tmp_path: Path) -> None:
    trained = load_trained(str(make_run(tmp_path)))
    other = replace(trained)
    trained.__dict__["of_last_block"] = other  # as for a head that reads several blocks

    found = narrow_formats(trained, plan("timm", "onnx", "transformers", "safetensors"))

    assert found == ("timm", "transformers", "safetensors")
