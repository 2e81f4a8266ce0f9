"""The page of a hub repository: valid metadata, limits from the run's figures, and pictures."""

import json
from pathlib import Path
from typing import Any

from huggingface_hub import ModelCard
from PIL import Image

from tests.export.test_card import compared
from tests.export.test_export import HOSTILE
from tests.support.export_run import make_run
from vitft.export import ExportPlan, load_trained, write_readme
from vitft.metrics import RunResults, read_results


def page(run: Path, folder: Path, **fields: Any) -> str:
    plan = ExportPlan(formats=("timm",), out=folder, repo="me/flowers", **fields)
    write_readme(load_trained(str(run)), folder, compared(), plan)
    return (folder / "README.md").read_text()


def results_of_run(run: Path, **changed: Any) -> RunResults:
    (run / "eval.json").write_text(
        json.dumps(json.loads((run / "eval.json").read_text()) | changed)
    )
    results = read_results(run / "eval.json")
    assert results is not None
    return results


def test_the_hub_library_reads_the_metadata_without_complaint(tmp_path: Path) -> None:
    weights: Any = {
        "name": "vit",
        "source": "google/vit-base/model.safetensors",
        "revision": "c0ffee",
        "licence": 'x"\n---\n- evil: yes',
    }
    run = make_run(tmp_path, classes=HOSTILE, weights=weights)
    results_of_run(run, top5=0.9, top5_interval=(0.7, 0.95))

    card: Any = ModelCard(page(run, tmp_path))  # raises an error for invalid evaluation results

    assert card.data.license == "other"
    assert card.data.license_name == weights["licence"]
    assert (card.data.base_model, card.data.base_model_relation) == ("google/vit-base", "finetune")
    assert card.data.model_name == "me/flowers"
    found = {one.metric_type: (one.metric_value, one.metric_name) for one in card.data.eval_results}
    assert found == {
        "accuracy": (0.5, "accuracy on 6 validation images, 95% CI 20.0 to 80.0%"),
        "balanced_accuracy": (*(0.5, "mean recall on 6 validation images, 95% CI 20.0 to 80.0%"),),
        "top5_accuracy": (*(0.9, "top-5 accuracy on 6 validation images, 95% CI 70.0 to 95.0%"),),
    }
    assert {one.dataset_split for one in card.data.eval_results} == {"validation"}
    own: Any = results_of_run(run)
    results_of_run(run, test={**own, "images": 9, "top1": 0.4, "left_out": 0})
    tested: Any = ModelCard(page(run, tmp_path))
    first = tested.data.eval_results[0]
    assert (first.dataset_split, first.metric_value) == ("test", 0.4)
    assert first.metric_name.startswith("accuracy on 9 test images")


def test_images_are_shown_only_with_a_licence_and_credit(tmp_path: Path) -> None:
    run = make_run(tmp_path)

    text = page(run, tmp_path, image_licence="cc-by-4.0", image_credit="A. <b>Nother")

    assert "](examples.jpg)" in text
    assert "Row by row: blue, green, red. Images: cc-by-4.0, A&#46; &#60;b&#62;Nother." in text
    with Image.open(tmp_path / "examples.jpg", formats=("JPEG",)) as picture:
        assert picture.size == (3 * 160, 160)
        assert not picture.getexif()
