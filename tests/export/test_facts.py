"""Facts about a run as sentences: model, view, data, accuracy and licences."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from tests.export.test_card import compared, plan
from tests.support.export_run import make_run
from vitft.export import card as card_module
from vitft.export.card import evaluation_of, run_metrics, usage_snippets, write_readme
from vitft.export.compare import ExportComparison
from vitft.export.eight_bits import eight_bit_accuracy, is_eight_bits
from vitft.export.facts import (
    accuracy_sentence,
    catalog_origin,
    class_figures,
    count_images,
    data_name,
    data_sentence,
    licence_sentence,
    model_sentence,
    results_of,
    view_sentence,
)
from vitft.export.trained import (
    TrainedRun,
    last_block_accuracy,
    last_block_reason,
    load_trained,
    unfinished_status,
    without_paths,
)
from vitft.metrics.intervals import wilson_interval
from vitft.metrics.results import RunResults
from vitft.models.pretrained.catalog import catalog_entries


@pytest.fixture
def trained(tmp_path: Path) -> TrainedRun:
    return load_trained(str(make_run(tmp_path)))


def changed(results: Any, **changes: Any) -> Any:
    """Return results with some values changed."""
    return {**results, **changes}


def with_weights(trained: TrainedRun, **weights: str) -> Any:
    """Return the card with other pretrained weights."""
    return replace(trained.card, weights=weights)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("weights", "history"),
    [
        ({"name": "vit_tiny"}, "fine-tuned from <vit_tiny>"),
        ({"name": "/home/me/my_weights"}, "fine-tuned from <my_weights>"),
        ({"name": "model", "from": "vit_tiny"}, "fine-tuned from <vit_tiny>"),
        ({"name": "none"}, "trained from random weights"),
        ({"name": "random:vit_tiny"}, "trained from random weights"),
        ({}, "fine-tuned"),
    ],
)
def test_the_model_is_described_by_its_shape_and_its_origin(
    trained: TrainedRun, weights: dict[str, str], history: str
) -> None:
    text = model_sentence(with_weights(trained, **weights), lambda name: f"<{name}>")

    assert text.startswith(
        f"Vision Transformer with 2 blocks of width 32 and a patch size of 4 pixels, {history} with"
    )


def test_the_view_is_described_by_its_numbers(trained: TrainedRun) -> None:
    card = replace(trained.card, transform=replace(trained.card.transform, image_size=(16, 24)))

    assert view_sentence(card).startswith("Images are resized and cropped to 16 x 24 pixels (")
    squashed = replace(card, transform=replace(card.transform, fit="squash"))
    assert view_sentence(squashed).startswith("Images are resized to 16 x 24 pixels (")


def test_the_data_is_described_by_its_name_and_its_sizes(trained: TrainedRun) -> None:
    run = trained.run

    assert data_sentence(trained, str.upper) == (
        "The data is PHOTOS: 3 images for training and 6 for validation."
    )
    counts = count_images(run)
    assert {part: found[""] for part, found in counts.items()} == {"train": 3, "val": 6, "test": 0}
    assert (counts["val"]["green"], counts["train"]["green"]) == (2, 1)
    split = run / "split.csv"
    split.write_text(split.read_text().replace(",val,", ",test,", 1))
    assert data_sentence(trained, str).endswith("and 5 for validation, plus 1 for testing.")
    results = cast("RunResults", {"test": {"left_out": 1}})
    assert data_sentence(trained, str, results).endswith(
        "plus 0 for testing (1 more is a copy of the others)."
    )
    split.unlink()
    (run / "config.toml").unlink()
    assert data_name(run) == "images"
    assert data_sentence(trained, str) == "The data is images."


def test_each_class_has_its_images_recall_and_precision(trained: TrainedRun) -> None:
    results = results_of(trained)

    assert results is not None
    assert class_figures(trained, results)[1] == ("green", "1", "2", "50.0%", "–")
    assert class_figures(trained, None)[2] == ("red", "1", "2", "–", "–")


def test_the_accuracy_is_stated_with_what_tells_more(trained: TrainedRun) -> None:
    results: Any = results_of(trained)
    more = {"top1": 0.75, "top1_interval": (0.6, 0.85), "images": 60, "of": 60}
    test = {"images": 9, "top1": 0.5, "top1_interval": (0.2, 0.8)}

    plain = accuracy_sentence(changed(results, selected_on_validation=False))
    crossed = accuracy_sentence(
        changed(
            results,
            best_epoch=1,
            cross_validation=more,
            seconds=1.0,
            calibration={"cross_validated": 40},
        )
    )
    tested = accuracy_sentence(changed(results, test=test))
    found = {"map": 0.7, "map_interval": (0.6, 0.8), "chance_map": 0.3, "macro_f1": 0.65,
             "macro_f1_interval": (0.5, 0.75)}  # fmt: skip
    labels = accuracy_sentence(changed(results, labels=found, test={**test, "labels": found}))

    assert plain == (
        "Accuracy 50.0% (95% interval 20.0 to 80.0%) on 6 held-out validation images; baseline "
        "(largest class): 33.3%."
    )
    assert "; cross-validated on 60 images: 75.0% (60.0 to 85.0%); baseline" in crossed
    assert tested.startswith("Test: 50.0% (20.0 to 80.0%) on 9 images, evaluated once. Accuracy ")
    assert labels.startswith("Test: mean average precision 70.0% (60.0 to 80.0%) on 9 images")
    assert (
        "Mean average precision 70.0% (95% interval 60.0 to 80.0%; random scores: 30.0%) and mean "
        "F1 over the labels 65.0% (95% interval 50.0 to 75.0%) on 6 held-out validation images. The"
    ) in labels


@pytest.mark.parametrize(
    ("licence", "chosen", "text"),
    [
        ("apache-2.0", "", "Same licence as the pretrained weights: apache-2.0."),
        ("apache-2.0", "Apache-2.0", "Apache-2.0."),
        ("apache-2.0", "mit", "mit (pretrained weights: apache-2.0)."),
        ("", "mit", "mit."),
        ("", "", "Not stated; the author can state it with vitft export --licence NAME."),
    ],
)
def test_the_licence_is_stated_with_that_of_the_weights(
    trained: TrainedRun, licence: str, chosen: str, text: str
) -> None:
    card = with_weights(trained, name="noise", **({"licence": licence} if licence else {}))

    assert licence_sentence(card, chosen, str) == text


@pytest.mark.parametrize("name", ["none", "random:vit_tiny_patch16_224"])
def test_a_model_without_pretrained_weights_has_no_licence_of_theirs(
    trained: TrainedRun, name: str
) -> None:
    card = with_weights(trained, name=name)

    assert "there were no pretrained weights" in licence_sentence(card, "", str)
    assert licence_sentence(card, "mit", str) == "mit."


def test_the_origin_of_weights_is_found_by_name_or_digest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first, second, *_ = catalog_entries()
    entry = replace(second, sha256="ab" * 32)
    other = replace(first, sha256="")
    monkeypatch.setattr("vitft.export.facts.catalog_entries", lambda: (other, entry))
    monkeypatch.setattr("vitft.export.facts.entries_by_name", lambda: {entry.name: entry})

    assert catalog_origin({"name": entry.name}) == entry
    assert catalog_origin({"name": "model", "from": entry.name}) == entry
    assert catalog_origin({"name": "model", "sha256": entry.sha256}) == entry
    assert catalog_origin({"name": "model", "sha256": ""}) is None
    assert catalog_origin({}) is None


# the model card ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("classes", "more"), [(199, ""), (200, ""), (201, "1 more class"), (203, "3 more classes")]
)
def test_two_hundred_classes_are_listed_and_the_others_counted(
    trained: TrainedRun,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    classes: int,
    more: str,
) -> None:
    names = tuple(f"c{i}" for i in range(classes))
    rows = [(name, "1", "2", "–", "–") for name in names]
    monkeypatch.setattr(card_module, "class_figures", lambda *_: rows)
    many = replace(trained, card=replace(trained.card, classes=names))

    lines = readme(many, tmp_path).splitlines()

    assert sum(line.startswith("| c") and "class" not in line for line in lines) == min(
        classes, 200
    )
    assert [line for line in lines if line.startswith("(")] == ([f"({more})"] if more else [])
    assert "| c0 | 1 | 2 | – | – |" in lines
    labels = replace(many, card=replace(many.card, thresholds=(0.5,) * classes))
    assert "| label | training images | validation images |" in readme(labels, tmp_path)


def readme(trained: TrainedRun, folder: Path, row: ExportComparison | None = None) -> str:
    """Return the README of an export."""
    write_readme(trained, folder, row or compared(), plan())
    return (folder / "README.md").read_text()


def test_the_comparison_is_stated_with_the_results(trained: TrainedRun, tmp_path: Path) -> None:
    usual = readme(trained, tmp_path, compared(changed=1, difference=2.5e-6))
    bare = readme(trained, tmp_path, compared(images=0))
    small = readme(trained, tmp_path, compared(name="int8"))

    assert "## Results\n\nAccuracy 50.0%" in usual
    assert (
        "The exported model was opened with timm 1.2 and compared with the original on 6 "
        "validation images: largest logit difference 2.5e-06, 1 changed prediction."
    ) in usual
    assert "on random noise, because the validation images were missing" in bare
    assert "0 changed predictions" in bare
    assert "The original float32 model: Accuracy 50.0%" in small
    assert "The graph model.onnx has 8-bit weights" in small


def test_metrics_are_those_of_the_exported_head(trained: TrainedRun) -> None:
    results: Any = {**(results_of(trained) or {}), "top5": 0.9, "top5_interval": (0.7, 0.95)}
    narrow = changed(results, head={"blocks": 4, "last_block_top1": 0.4, "reads": "both"})
    labels = changed(results, labels={"map": 0.7, "map_interval": (0.6, 0.8)})

    assert [one[0] for one in run_metrics(trained.card, results)] == [
        "accuracy", "balanced_accuracy", "top5_accuracy",
    ]  # fmt: skip
    assert [one[0] for one in run_metrics(trained.card, narrow)] == ["accuracy"]
    assert run_metrics(trained.card, labels) == [
        ("mean_average_precision", "mean average precision", 0.7, (0.6, 0.8))
    ]
    found = evaluation_of(trained.card, compared(), results, "photos")
    assert [one.metric_value for one in found] == [0.5, 0.5, 0.9]
    assert found[2].metric_name == (
        "top-5 accuracy on 6 validation images, 95% interval 70.0 to 95.0%"
    )
    assert evaluation_of(trained.card, compared(), None, "photos") == []
    (small,) = evaluation_of(trained.card, compared(name="int8", correct=(6, 5)), None, "photos")
    assert small.metric_value == pytest.approx(5 / 6, abs=1e-6)


@pytest.mark.parametrize(
    ("form", "repo", "titles"),
    [
        ("onnx", "", ["onnxruntime", "OpenVINO", "vitft"]),
        ("int8", "", ["onnxruntime", "OpenVINO", "vitft"]),
        ("torch-export", "", ["PyTorch"]),
        ("transformers", "", ["transformers", "vitft"]),
        ("transformers-js", "", ["transformers.js", "vitft"]),
        ("transformers-js", "me/flowers", ["transformers.js"]),
        ("timm", "", ["timm", "vitft"]),
        ("safetensors", "", ["timm", "vitft"]),
    ],
)
def test_each_format_has_the_programs_that_open_it(
    trained: TrainedRun, form: str, repo: str, titles: list[str]
) -> None:
    found = usage_snippets(trained.card, form, plan(repo=repo))

    assert [one.title for one in found] == titles


def test_the_introduction_counts_classes_or_labels(trained: TrainedRun, tmp_path: Path) -> None:
    several = replace(trained, card=replace(trained.card, thresholds=(0.5, 0.5, 0.5)))

    usual, page = readme(trained, tmp_path), readme(several, tmp_path, compared(name="html"))

    assert "\n# An image classifier with 3 classes\n" in usual
    assert "The programs below do this.\n" in usual
    assert "\n# An image classifier with 3 labels\n" in page
    assert "\nThis is a multi-label model" in page
    assert "The page does this.\n" in page


def test_the_readme_names_the_grey_range(trained: TrainedRun, tmp_path: Path) -> None:
    wide = replace(
        trained,
        card=replace(
            trained.card, transform=replace(trained.card.transform, grey_range=(120.0, 3900.5))
        ),
    )
    node = compared(name="transformers-js")

    plain, ranged = readme(trained, tmp_path), readme(wide, tmp_path)
    plain_js, ranged_js = readme(trained, tmp_path, node), readme(wide, tmp_path, node)

    assert "floating-point images and 12-bit TIFF files can only be opened by vitft" in plain
    assert "training images (120 to 3,900.5) to 0..255." in ranged
    assert "keeps the upper 8 bits of 16-bit grey images; floating" in plain_js
    assert "training images (120 to 3,900.5) to 0..255 in 16-bit grey" in ranged_js
    assert (
        "convert such images first." in plain_js,
        "convert such images first." in ranged_js,
    ) == (
        False,
        True,
    )


# 8 bits ------------------------------------------------------------------------------------------


def test_the_accuracy_with_8_bits_is_stated_with_its_interval() -> None:
    row = compared(name="int8", images=40, changed=1, correct=(36, 34))
    low, high = (100 * end for end in wilson_interval(34, 40))

    assert eight_bit_accuracy(row) == (
        f"Its accuracy is 85.0% (95% interval {low:.1f} to {high:.1f}%) on 40 validation images, "
        "compared with 90.0% for the original float32 model on the same images (1 changed "
        "prediction)."
    )
    assert [is_eight_bits(compared(name=name)) for name in ("int8", "timm", "x, int8")] == [
        True, False, True,
    ]  # fmt: skip


# heads and status --------------------------------------------------------------------------------


def test_the_accuracy_of_an_exported_head_is_that_of_its_blocks(trained: TrainedRun) -> None:
    results: Any = results_of(trained)
    head = {"blocks": 4, "reads": "both", "candidates": [], "last_block_top1": 1 / 3}
    path = trained.run / "eval.json"
    whole = "because timm and transformers cannot load a head that reads several blocks"

    assert last_block_accuracy(trained.card, results) is None
    assert last_block_accuracy(trained.card, None) is None
    assert last_block_accuracy(trained.card, changed(results, head=head)) == 1 / 3
    several = replace(trained.card.architecture, read_blocks=2)  # type: ignore[arg-type]
    whole_head = replace(trained.card, architecture=several)
    assert last_block_accuracy(whole_head, changed(results, head=head)) is None
    assert last_block_reason(trained.run) == whole
    path.write_text(json.dumps({**results, "head": head}))
    assert last_block_reason(trained.run).endswith(
        "reads the last 4 blocks (validation accuracy 33.3% instead of 50.0%)"
    )
    narrow: Any = results_of(trained)
    assert (narrow["top1"], narrow["top1_interval"]) == (1 / 3, wilson_interval(2, 6))
    path.write_text(json.dumps({**results, "head": {**head, "last_block_top1": 0.5}}))
    assert last_block_reason(trained.run).endswith(
        "(validation accuracy 50.0%, as with the run's head)"
    )
    path.write_text(json.dumps({**results, "head": {**head, "last_block_top1": None}}))
    assert last_block_reason(trained.run) == whole
    path.unlink()
    assert last_block_reason(trained.run) == whole


def test_local_paths_are_shortened_and_the_status_is_read(trained: TrainedRun) -> None:
    local = with_weights(trained, name="x", source="/home/me/secret/weights.safetensors")
    hub = with_weights(trained, name="x", source="me/repo/weights.safetensors")

    assert without_paths(local).weights["source"] == "weights.safetensors"
    assert without_paths(hub) == hub
    assert unfinished_status(trained.run) == ""
    environment = {"status": "interrupted", "device": "cpu", "precision": "fp32", "python": "3"}
    (trained.run / "environment.json").write_text(
        json.dumps({**environment, "system": "x", "packages": {}})
    )
    assert unfinished_status(trained.run) == "interrupted"
