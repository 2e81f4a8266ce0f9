"""The page of a hub repository: valid metadata, limits from the run's figures, and pictures."""

import hashlib
import io
import json
import socket
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import ModelCard
from markdown_it import MarkdownIt
from PIL import Image

from tests.export.test_card import compared
from tests.export.test_export import HOSTILE
from tests.support.export_run import make_run
from vitft.cli.main import main
from vitft.config.run import config_from_table, to_toml
from vitft.export.card import write_readme
from vitft.export.limits import limits_of
from vitft.export.pictures import confusion_png
from vitft.export.plan import ExportPlan, plan_export
from vitft.export.trained import load_trained
from vitft.features.reference import REFERENCE_FILE
from vitft.metrics.results import RunResults, read_results
from vitft.system.errors import UsageError


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


def test_the_limits_are_the_figures_of_the_run(tmp_path: Path) -> None:
    run = make_run(tmp_path, classes=("a", "b", "c"))
    rows = {
        name: {
            **json.loads((run / "eval.json").read_text())["per_class"]["a"],
            "images": images,
            "recall": recall,
        }
        for name, images, recall in (("a", 20, 0.9), ("b", 9, 1.0), ("c", 40, 0.7))
    }
    confusion = [[18, 2, 0], [0, 9, 0], [12, 0, 28]]
    results = results_of_run(
        run, per_class=rows, confusion=confusion, balanced_interval=(0.7, 0.9), images=69
    )

    text = "\n".join(limits_of(run, ("a", "b", "c"), results))

    assert "one of 3 classes. It always names one of them" in text
    assert (
        "recalls on the validation images are: c 70.0% on 40 images (95% interval 10.0 to 90.0%); a"
        in text
    )
    assert "1 class has fewer than 10 validation images" in text
    confused = "confusions on the validation images are: c predicted as a (12 of 40); a predicted"
    assert f"{confused} as b (2 of 20)." in text
    assert "vitft predict" not in text  # the run has no reference of its training images


def test_figures_of_another_head_are_named_as_such(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    head = {"blocks": 2, "reads": "several blocks", "candidates": [], "last_block_top1": 0.4}
    results_of_run(run, head=head)

    card: Any = ModelCard(page(run, tmp_path))

    assert [(one.metric_type, one.metric_value) for one in card.data.eval_results] == [
        ("accuracy", 0.4)
    ]
    assert "the run's head, which reads the last 2 blocks (validation accuracy 40.0%" in card.text
    assert "were measured with the run's head and are left out" in card.text
    assert "Confusion matrix" not in card.text


def test_only_the_run_and_the_web_page_are_said_to_flag_images(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    (run / REFERENCE_FILE).touch()

    text = "\n".join(limits_of(run, ("blue", "green", "red"), None))

    assert "Given the run directory, `vitft predict` flags images" in text
    assert "only the web page (--html) does so" in text


def test_a_model_without_figures_claims_none(tmp_path: Path) -> None:
    run = make_run(tmp_path)

    text = "\n".join(limits_of(run, ("blue", "green", "red"), None))

    assert "The accuracy of the model was not measured." in text
    assert "%" not in text


def test_problems_of_the_data_are_limits(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    results = results_of_run(run, confusion=[[2, 0, 0], [0, 2, 0], [0, 0, 2]])
    results["balanced_interval"] = (0.9, 1.0)
    members = [{"path": part, "label": "red", "split": part} for part in ("train", "val")]
    group = {"kind": "near", "members": members, "across_split": True, "labels_differ": False}
    audit = {
        "images": 9,
        "bad": [],
        "odd": [],
        "duplicates": [group],
        "mislabels": [],
        "imbalance": {"largest": None, "smallest": None, "ratio": None},
    }
    (run / "audit.json").write_text(json.dumps(audit))

    text = "\n".join(limits_of(run, ("blue", "green", "red"), results))

    assert "1 group of identical or nearly identical images contains both training and" in text
    assert "The lowest recalls" in text


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


def test_hostile_names_stay_text_among_the_limits(tmp_path: Path) -> None:
    run = make_run(tmp_path, classes=HOSTILE)
    results_of_run(run, balanced_interval=(0.9, 1.0))

    body = page(run, tmp_path).split("---\n", 2)[2]

    section = body.split("## Intended use and limits")[1].split("\n## ")[0]
    tokens = MarkdownIt("gfm-like", {"linkify": False, "html": True}).parse(section)
    kinds = {t.type for token in tokens for t in (token, *(token.children or []))}
    assert not kinds & {"html_block", "html_inline", "link_open", "image", "heading_open"}
    assert "The lowest recalls on the validation images are" in section


def test_the_page_shows_the_confusion_matrix(tmp_path: Path) -> None:
    run = make_run(tmp_path)

    text = page(run, tmp_path)

    assert "](confusion.png)" in text
    with Image.open(tmp_path / "confusion.png", formats=("PNG",)) as picture:
        assert picture.format == "PNG"
        assert picture.width == picture.height == 150 + 3 * 44 + 1
    assert not (tmp_path / "examples.jpg").exists()


def test_cells_of_right_answers_are_green_and_those_of_mistakes_orange(tmp_path: Path) -> None:
    results = results_of_run(make_run(tmp_path), confusion=[[9, 0, 0], [4, 5, 0], [0, 0, 9]])

    picture = confusion_png(("blue", "grün", "x" * 99), results)

    assert picture is not None
    with Image.open(io.BytesIO(picture), formats=("PNG",)) as opened:
        cells = {
            (i, j): opened.convert("RGB").getpixel((150 + 44 * j + 5, 150 + 44 * i + 5))
            for i in range(3)
            for j in range(3)
        }
    right: Any = cells[0, 0]
    wrong: Any = cells[1, 0]
    assert right[1] > max(right[0], right[2])
    assert wrong[0] > max(wrong[1], wrong[2])
    assert cells[0, 1] == (255, 255, 255)


def test_a_matrix_of_many_classes_has_no_names_and_a_huge_one_is_left_out(tmp_path: Path) -> None:
    results = results_of_run(make_run(tmp_path))
    results["confusion"] = [[1] * 200] * 200

    picture = confusion_png(["n"] * 200, results)

    assert picture is not None
    with Image.open(io.BytesIO(picture), formats=("PNG",)) as opened:
        assert opened.width == 200 * 4 + 1
    assert confusion_png(["n"] * 1001, results) is None


def test_images_are_shown_only_with_a_licence_and_credit(tmp_path: Path) -> None:
    run = make_run(tmp_path)

    text = page(run, tmp_path, image_licence="cc-by-4.0", image_credit="A. <b>Nother")

    assert "](examples.jpg)" in text
    assert "Row by row: blue, green, red. Images: cc-by-4.0, A&#46; &#60;b&#62;Nother." in text
    with Image.open(tmp_path / "examples.jpg", formats=("JPEG",)) as picture:
        assert picture.size == (3 * 160, 160)
        assert not picture.getexif()


REFUSED: list[Any] = [
    pytest.param({"image_licence": "all-mine"}, "is not known to permit publishing", id="unknown"),
    pytest.param({"image_licence": "cc-by-nd-4.0"}, "is not known to permit", id="no derivatives"),
    pytest.param({"image_licence": "cc-by-4.0"}, "requires naming the authors", id="no credit"),
    pytest.param({"image_credit": "me"}, "is not known to permit", id="credit alone"),
    pytest.param({"image_licence": "cc-by-4.0", "image_credit": "a\nb"}, "one line", id="lines"),
    pytest.param({"repo": "", "dry_run": True}, "need --push-to-hub", id="nothing to push"),
]


@pytest.mark.parametrize(("fields", "problem"), REFUSED)
def test_what_must_not_be_published_is_refused(fields: dict[str, Any], problem: str) -> None:
    with pytest.raises(UsageError, match=problem):
        plan_export(["timm"], None, **{"repo": "me/flowers", "dry_run": True, **fields})


def test_a_dry_run_writes_the_folder_without_network_or_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_: Any) -> None:
        raise AssertionError("a connection was opened")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    run, out = make_run(tmp_path), tmp_path / "page"
    command = ["export", "--safetensors", "--run", str(run), "--push-to-hub", "me/flowers"]

    assert main([*command, "--dry-run", "--image-licence", "cc0-1.0", "--out", str(out)]) == 0

    assert sorted(path.name for path in out.iterdir()) == [
        *("README.md", "config.json", "confusion.png", "examples.jpg", "model.safetensors")
    ]
    printed = capsys.readouterr()
    assert "pushed" not in printed.out
    assert f"not pushed (--dry-run): read {out}/README.md first" in printed.err
    assert f"next: hf upload me/flowers {out}" in printed.err


@pytest.mark.parametrize(
    ("ece", "text"),
    [
        (0.0, "No difference between the probabilities and the accuracy could be measured"),
        (0.061, "The probabilities differ from the accuracy by 6.1% on average"),
    ],
)
def test_a_calibration_error_that_cannot_be_measured_is_not_called_zero(
    tmp_path: Path, ece: float, text: str
) -> None:
    run = make_run(tmp_path)
    measured = {"ece": ece, "ece_interval": (0.0, 0.135)}
    found = {"balanced_interval": (0.7, 0.9), "calibration": measured, "images": 50}
    results: Any = {**results_of_run(run), **found}

    (sentence,) = [one for one in limits_of(run, ("a", "b", "c"), results) if text in one]

    assert "13.5%" in sentence
