"""The page of a hub repository: valid metadata, limits from the run's figures, and pictures."""

import hashlib
import json
from pathlib import Path
from typing import Any

from huggingface_hub import ModelCard
from PIL import Image

from tests.export.test_card import compared
from tests.export.test_export import HOSTILE
from tests.support.export_run import make_run
from vitft.config import config_from_table, to_toml
from vitft.export import ExportPlan, limits_of, load_trained, write_readme
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
        "accuracy": (0.5, "accuracy on 6 validation images, 95% interval 20.0 to 80.0%"),
        "balanced_accuracy": (
            *(0.5, "mean recall on 6 validation images, 95% interval 20.0 to 80.0%"),
        ),
        "top5_accuracy": (
            *(0.9, "top-5 accuracy on 6 validation images, 95% interval 70.0 to 95.0%"),
        ),
    }
    assert {one.dataset_split for one in card.data.eval_results} == {"validation"}
    own: Any = results_of_run(run)
    results_of_run(run, test={**own, "images": 9, "top1": 0.4, "left_out": 0})
    tested: Any = ModelCard(page(run, tmp_path))
    first = tested.data.eval_results[0]
    assert (first.dataset_split, first.metric_value) == ("test", 0.4)
    assert first.metric_name.startswith("accuracy on 9 test images")


def test_labels_that_the_fixes_of_the_run_keep_are_not_called_wrong(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    results = results_of_run(run, confusion=[[2, 0, 0], [0, 2, 0], [0, 0, 2]])
    results["balanced_interval"] = (0.9, 1.0)
    mislabel: dict[str, object] = {"label": "blue", "suggested": "red"}
    mislabel |= {"given_probability": 0.1, "suggested_probability": 0.9}
    audit = {
        "images": 9,
        "bad": [],
        "odd": [],
        "duplicates": [],
        "mislabels": [{"path": f"blue/{i}.png", **mislabel} for i in range(3)],
        "imbalance": {"largest": None, "smallest": None, "ratio": None},
    }
    (run / "audit.json").write_text(json.dumps(audit))
    fixes = tmp_path / "fixes.csv"

    def sentences(decided: int) -> str:
        lines = [f"blue/{i}.png,keep" for i in range(decided)]
        fixes.write_text("\n".join(["path,action", *lines]) + "\n")
        spec = {"path": "d", "fixes": str(fixes)}
        spec["fixes_digest"] = hashlib.sha256(fixes.read_bytes()).hexdigest()
        table = {"data": spec, "weights": {"name": "demo"}}
        (run / "config.toml").write_text(to_toml(config_from_table(table)))
        return "\n".join(limits_of(run, ("blue", "green", "red"), results))

    assert "3 labels in the data are probably wrong" in sentences(0)
    assert "1 label in the data is probably wrong" in sentences(2)
    assert "probably wrong" not in sentences(3)


def test_images_are_shown_only_with_a_licence_and_credit(tmp_path: Path) -> None:
    run = make_run(tmp_path)

    text = page(run, tmp_path, image_licence="cc-by-4.0", image_credit="A. <b>Nother")

    assert "](examples.jpg)" in text
    assert "Row by row: blue, green, red. Images: cc-by-4.0, A&#46; &#60;b&#62;Nother." in text
    with Image.open(tmp_path / "examples.jpg", formats=("JPEG",)) as picture:
        assert picture.size == (3 * 160, 160)
        assert not picture.getexif()
