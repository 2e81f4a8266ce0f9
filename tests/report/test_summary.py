"""The description of a run on its page: sentences, and its metrics with their intervals."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support.run_files import make_run
from vitft.report.run_files import Run, read_run
from vitft.report.summary import (
    cautions,
    describe_budget,
    describe_data,
    describe_model,
    describe_training,
    describe_unlike,
    key_figures,
    summary_sentences,
)


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return read_run(make_run(tmp_path / "run"))


def with_results(run: Run, **results: Any) -> Run:
    """Return the run with some results changed."""
    return replace(run, results={**run.results, **results})  # type: ignore[typeddict-item]


def several(run: Run, **labels: Any) -> Run:
    """Return the run as a multi-label one."""
    changed = with_results(run, labels=labels) if labels else run
    return replace(changed, split=replace(run.split, labels=run.classes))


def test_the_data_is_described_by_its_classes_and_the_sizes_of_its_parts(run: Run) -> None:
    text = describe_data(replace(run, audit={**run.audit, "bad": []}))
    bad = describe_data(run)
    copied = describe_data(
        replace(run, rows=(*run.rows, replace(run.rows[-1], path="copy")), audit={})  # type: ignore[typeddict-item]
    )
    labels = describe_data(several(run))
    poor = describe_data(with_results(run, balanced_interval=(0.2, 0.5), cross_validation=None))

    assert text == (
        "This model distinguishes 3 classes (daisy, poppy and rose). It was trained on 18 images "
        "from “flowers” and evaluated on 12 other images, the validation images."
    )
    assert bad.startswith(f"{text} The data: ")
    assert "Copies count once" not in bad
    assert copied.endswith("Copies count once.")
    assert labels.startswith("This multi-label model assigns each image any combination of 3 lab")
    assert poor.startswith(
        "This model was trained to distinguish 3 classes (daisy, poppy and rose), but it is not"
    )
    assert describe_data(replace(run, rows=())) == ""


@pytest.mark.parametrize(
    ("parameters", "size"),
    [(99_999, "99,999"), (100_000, "0.1 million"), (1_234_567, "1.2 million")],
)
def test_the_model_is_described_by_its_size_weights_and_input(
    run: Run, parameters: int, size: str
) -> None:
    text = describe_model(replace(run, parameters=parameters))

    assert text == (
        f"The Vision Transformer (2 blocks, {size} parameters) was pretrained (weights: demo); "
        "only a new linear head was trained. Its input is 16 × 16 pixels."
    )
    assert describe_model(replace(run, config={}, card=None)) == ""
    assert "(2 blocks, 24 parameters) was pretrained (weights: unknown)." in describe_model(
        replace(run, config={})
    )


@pytest.mark.parametrize(
    ("name", "origin"),
    [
        ("none", "initialised at random"),
        ("random:vit_base", "initialised at random"),
        ("random", "pretrained (weights: random)"),
    ],
)
def test_weights_are_described_as_pretrained_or_random(run: Run, name: str, origin: str) -> None:
    named = replace(run, config={**run.config, "weights": {"name": name}})

    assert f"24 parameters) was {origin}" in describe_model(named)
    assert describe_model(replace(named, card=None)).startswith(
        f"The network (24 parameters) was {origin}"
    )


@pytest.mark.parametrize(
    ("freeze", "text"),
    [
        ("head", "only a new linear head was trained"),
        ("blocks:1", "its last block and a new head were trained"),
        ("blocks:2", "its last 2 blocks and a new head were trained"),
        ("head,none", "only a new linear head was trained, then all of its layers were trained"),
        ("unknown", ""),
        ("", ""),
    ],
)
def test_the_trained_layers_are_described_stage_by_stage(freeze: str, text: str) -> None:
    assert describe_training(freeze) == text


TRIAL = {
    "layers": "blocks:2",
    "epochs": 1,
    "images": 1200,
    "held_out": 300,
    "top1": 0.8,
    "head_top1": 0.75,
    "loss": 0.51,
    "head_loss": 0.6,
}


@pytest.mark.parametrize(
    ("folds", "text"),
    [
        (1, "training images. The"),
        (2, "images, 2 times, each with other images"),
        (3, "images, 3 times, each with other images"),
    ],
)
def test_trials_of_a_time_budget_are_described(run: Run, folds: int, text: str) -> None:
    budget: dict[str, Any] = {"seconds": 60, "skipped": [], "chosen": "head"}
    budget["trials"] = [{**TRIAL, "folds": folds}]

    found = describe_budget(with_results(run, budget=budget))
    layers = describe_budget(with_results(run, budget={**budget, "chosen": "blocks:2"}))
    nothing = describe_budget(with_results(run, budget={**budget, "trials": []}))

    assert "for 1 epoch on 1,200 of the training images" in found
    assert text in found
    assert "was 80.0%, compared with 75.0% for the head alone" in found
    assert "0.510, compared with 0.600." in found
    assert found.endswith("no trial was clearly better than the head alone.")
    assert "clearly better" not in layers
    assert "clearly better" not in nothing
    assert describe_budget(run) == ""
    del budget["trials"][0]["folds"]  # of an older run: once
    assert "training images. The" in describe_budget(with_results(run, budget=budget))


def test_how_reliably_foreign_images_are_flagged_is_stated(run: Run) -> None:
    found: dict[str, Any] = {
        "reason": "",
        "unknown_class_range": (0.5, 1.0),
        "classes_left_out": 3,
        "false_alarms": 0.05,
        "features_trained": False,
    }

    def text(*, notes: bool = True, **changes: Any) -> str:
        audit: Any = {**run.audit, "out_of_distribution": {**found, **changes}}
        return describe_unlike(replace(run, notes_unlike=notes, audit=audit))

    assert "When 3 classes were left out one at a time" in text()
    assert (
        "of images of similar classes, 50% to 100% are flagged, depending on the class. " in text()
    )
    assert "5% of images of known classes are also flagged" in text()
    assert "These rates may be too high" in text(features_trained=True)
    assert "At least 5% of images of known classes" in text(features_trained=True)
    assert text(unknown_class_range=None).endswith("how reliably it does so was not measured.")
    assert text(false_alarms=None).endswith("how reliably it does so was not measured.")
    none = "The model does not flag images that are unlike the training images"
    assert text(notes=False) == f"{none}."
    assert text(notes=False, reason="too few") == f"{none}: too few."
    assert describe_unlike(replace(run, results={})) == ""  # type: ignore[typeddict-item]


def test_cautions_depend_on_the_status_the_selection_and_the_head(run: Run) -> None:
    def text(status: str = "finished", **results: Any) -> str:
        environment: Any = {**run.environment, "status": status}
        return cautions(with_results(replace(run, environment=environment), **results))

    assert text() == ""
    assert text("interrupted").startswith("The run was interrupted; these are the results of")
    assert text("failed") == "The status of the run is “failed”: the results may be incomplete."
    assert text(selected_on_validation=True).endswith(
        "was selected on the validation images, so the accuracy is slightly optimistic."
    )
    for freeze, epochs, words in (
        ("none", 20, "Epoch 3 of 20 was selected"),
        ("none", None, "Epoch 3 was selected"),
        ("head,none", 20, "Epoch 2 of 20 after fitting the head was selected"),
        ("head,blocks:1,none", 20, "Epoch 2 of 40 after fitting the head was selected"),
    ):
        config = {"train": {"freeze": freeze}, "optim": {"epochs": epochs}}
        chosen = with_results(run, selected_on_validation=True, best_epoch=3)
        assert cautions(replace(chosen, config=config)).startswith(words)  # type: ignore[arg-type]
    head = {"blocks": 4, "reads": "both", "last_block_top1": 0.7}
    assert text(head=head).startswith("The head reads the last 4 blocks. A head that reads only")
    assert "classifies 70.0% of the validation images" in text(head=head)
    assert text(head={**head, "last_block_top1": None}) == ""
    assert "only if exactly its labels are predicted" in cautions(several(run))
    environment: Any = {**run.environment, "status": "failed"}
    nothing = replace(run, results={}, environment=environment)  # type: ignore[typeddict-item]
    assert cautions(nothing) == "The run has no results: its status is “failed”."
    assert len(summary_sentences(run)) == 3


def test_the_metrics_of_a_run_are_listed_with_their_intervals(run: Run) -> None:
    figures = {one.name: one for one in key_figures(with_results(run, images=20))}

    assert [*figures] == [
        "accuracy", "cross-validated accuracy", "balanced accuracy", "calibration error",
    ]  # fmt: skip
    assert figures["accuracy"].meaning == "on 20 validation images"
    assert figures["cross-validated accuracy"].value == "80.0%"
    assert figures["cross-validated accuracy"].meaning.startswith("on 30 images, each predicted by")
    assert (figures["calibration error"].value, figures["calibration error"].interval) == (
        "3.0%", "1.0 to 8.0%",
    )  # fmt: skip
    assert all(one.bar for name, one in figures.items() if name != "calibration error")
    assert key_figures(replace(run, results={})) == []  # type: ignore[typeddict-item]
    few = [one.name for one in key_figures(with_results(run, images=19, balanced=None))]
    assert few == ["accuracy", "cross-validated accuracy"]
    further = [one.name for one in key_figures(with_results(run, best_epoch=2))]
    assert "cross-validated accuracy of the head alone, before further training" in further


@pytest.mark.parametrize(
    "changes", [{"ece": None}, {"ece_interval": None}], ids=["no error", "no interval"]
)
def test_a_calibration_error_without_an_interval_is_not_listed(
    run: Run, changes: dict[str, Any]
) -> None:
    before: Any = run.results["calibration"]
    changed = with_results(run, images=50, calibration={**before, **changes})

    assert "calibration error" not in [one.name for one in key_figures(changed)]
    unknown = with_results(run, images=50, calibration=None)
    assert "calibration error" not in [one.name for one in key_figures(unknown)]


def test_the_metrics_of_a_multi_label_run_begin_with_its_precision(run: Run) -> None:
    found = {"map": 0.7, "map_interval": (0.6, 0.8), "macro_f1": 0.65,
             "macro_f1_interval": (0.5, 0.75), "chance_map": 0.3}  # fmt: skip
    test = {"images": 9, "top1": 0.5, "top1_interval": (0.2, 0.8)}
    labels = several(run, **found)

    names = [one.name for one in key_figures(labels)]
    tested = key_figures(with_results(labels, test={**test, "labels": {**found, "map": 0.9}}))
    plain = key_figures(with_results(run, test=test))

    assert names == ["mean average precision", "mean F1", "all labels right", "mean recall"]
    assert [(one.name, one.value) for one in tested[:2]] == [
        ("test mean average precision", "90.0%"), ("test: all labels right", "50.0%"),
    ]  # fmt: skip
    assert [(one.name, one.value) for one in plain[:1]] == [("test accuracy", "50.0%")]
    assert plain[0].meaning == "on 9 test images, not used to train or select the model"


def test_a_model_without_weights_and_architecture_is_not_described(run: Run) -> None:
    assert describe_model(replace(run, config={}, card=None)) == ""
