"""Summary at the top of a run's report page: a few sentences and the key figures."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from vitft.config.sections import layers_text
from vitft.data.view_facts import describe_view
from vitft.features.ood import power_text
from vitft.metrics.chance import chance_level
from vitft.metrics.results import Interval, LabelResults, Metrics
from vitft.models.vit_config import ViTConfig
from vitft.predict.validation import mistakes
from vitft.report.advice import ClassRecall, cross_validated_recalls, validation_recalls
from vitft.report.run_files import Run
from vitft.system.text import count, duration, interval, listing, percent

WHAT_WAS_TRAINED: Mapping[str, str] = {  # by `train.freeze`
    "head": "only a new linear head was trained",
    "pre_logits": "only its pre_logits layer and a new head were trained",
    "lora": "LoRA adapters and a new head were trained",
    "none": "all of its layers were trained",
}


@dataclass(frozen=True, slots=True)
class KeyFigure:
    """A number with its name, its 95% interval or another detail, and an explanation."""

    name: str
    value: str
    interval: str
    meaning: str


def summary_sentences(run: Run) -> list[str]:
    """Return the non-empty paragraphs on data, model, results, notes and limits."""
    paragraphs = (
        describe_data(run),
        describe_model(run),
        describe_results(run),
        describe_budget(run),
        describe_unlike(run),
        cautions(run),
    )
    return [text for text in paragraphs if text]


def describe_data(run: Run) -> str:
    """Return sentences on the classes and the numbers of images; empty if there is no split."""
    parts = Counter(row.split for row in run.rows)
    if not run.rows:
        return ""
    origin = f" from the folder “{run.data_name}”" if run.data_name else ""
    classes = f"{count(len(run.classes), 'class', 'classes')} ({listing(run.classes)})"
    text = f"This model distinguishes {classes}."
    if run.several:
        labels = f"{count(len(run.classes), 'label')} ({listing(run.classes)})"
        text = f"This model assigns any number of these labels to an image: {labels}."
        classes = labels
    if clause := chance_level(run.results):
        text = f"This model was trained to distinguish {classes}, but it {clause}."
    return (
        f"{text} It was trained on {count(parts['train'], 'image')}{origin} and "
        f"evaluated on {count(parts['val'], 'other image')}, the validation images."
    )


def describe_model(run: Run) -> str:
    """Describe the architecture, the initial weights, the trained layers and the input."""
    name, shape = str(run.setting("weights", "name") or ""), run.card and run.card.architecture
    if not name and not shape:
        return ""
    kind = "Vision Transformer" if isinstance(shape, ViTConfig) else "network"
    number = run.parameters
    size = f"{number:,}" if number < 100_000 else f"{number / 1e6:,.1f} million"
    blocks = f"{count(shape.depth, 'block')}, " if isinstance(shape, ViTConfig) else ""
    origin = f"was pretrained (weights: {weights_name(name) or 'unknown'})"
    if name == "none" or name.startswith("random:"):
        origin = "was initialised at random"
    trained = describe_training(str(run.setting("train", "freeze") or ""))
    pixels = shape.image_size if shape else ()
    inputs = f" Its input is {pixels[0]} × {pixels[1]} pixels." if pixels else ""
    view = run.audit.get("view")
    if view:
        text = describe_view(view)
        inputs += f" {text[0].upper()}{text[1:]}."
    training = f"; {trained}" if trained else ""
    return f"The {kind} ({blocks}{size} parameters) {origin}{training}.{inputs}"


def describe_training(freeze: str) -> str:
    """Describe which layers were trained, with one clause for each stage of `train.freeze`."""
    words = []
    for stage in filter(None, freeze.split(",")):
        blocks = stage.removeprefix("blocks:")
        if blocks != stage:
            last = "its last block" if blocks == "1" else f"its last {blocks} blocks"
            words.append(f"{last} and a new head were trained")
        else:
            words.append(WHAT_WAS_TRAINED.get(stage, ""))
    return ", then ".join(word for word in words if word)


def weights_name(name: str) -> str:
    """Return the catalogue name of weights; for a path, return the name of its file or folder."""
    path = Path(name)
    if path.suffix in (".safetensors", ".bin", ".pth", ".npz"):
        return path.parent.name if path.stem in ("model", "pytorch_model") else path.stem
    return path.name if name.startswith(("/", "~", ".")) else name


def describe_results(run: Run) -> str:
    """Return sentences about the accuracy and its interval, the baseline and the weakest class."""
    results = run.results
    if not results:
        return ""
    if "labels" in results:
        return describe_labels(run)
    text = (
        f"It classifies {percent(results['top1'])} of the "
        f"{count(results['images'], 'validation image')} correctly (95% interval: "
        f"{interval(results['top1_interval'])})."
    )
    if test := results.get("test"):
        text += (
            f" Of the {count(test['images'], 'test image')}, which were not used to train or "
            f"select the model, it classifies {percent(test['top1'])} correctly (95% interval: "
            f"{interval(test['top1_interval'])})."
        )
    if results.get("majority") is not None:
        text += (
            " The accuracy of always predicting the largest class is "
            f"{percent(results['majority'])}."
        )
    return text if chance_level(results) else f"{text} {describe_weakest(run)}".strip()


def describe_labels(run: Run) -> str:
    """Return sentences about the results of a model with several labels per image."""
    parts: list[tuple[str, LabelResults, Metrics]] = [
        ("validation", run.results["labels"], run.results)
    ]
    if test := run.results.get("test"):
        parts.append(("test", test["labels"], test))
    return " ".join(
        f"On the {count(whole['images'], f'{name} image')}, its mean average precision is "
        f"{percent(found['map'])} (95% interval: {interval(found['map_interval'])}; random "
        f"scores: {percent(found['chance_map'])}), and the mean F1 score of the labels is "
        f"{percent(found['macro_f1'])} (95% interval: {interval(found['macro_f1_interval'])}). "
        f"It gives {percent(whole['top1'])} of the images exactly their labels."
        for name, found, whole in parts
    )


def describe_weakest(run: Run) -> str:
    """Return sentences about the weakest class in cross-validation and on the validation images."""
    cross_validated, validation = cross_validated_recalls(run)[:1], validation_recalls(run)[:1]
    weakest = [one for one in cross_validated + validation if one.recall < 1]
    if not weakest:
        return "No image was misclassified." if validation else ""
    text = f"The weakest class is {recall_text(weakest[0])}."
    if len(weakest) == 2 and weakest[0].name != weakest[1].name:
        text += f" On the validation images alone, it is {recall_text(weakest[1])}."
    return text


def describe_budget(run: Run) -> str:
    """Return sentences about the trials of a run with a time budget; empty for other runs."""
    budget = run.results.get("budget")
    if not budget:
        return ""
    text = f"The run had a time budget of {duration(budget['seconds'])}."
    for trial in budget["trials"]:
        text += (
            f" A trial trained {layers_text(trial['layers'])} on {trial['images']:,} of the "
            f"training images. The accuracy on the {trial['held_out']:,} other training images was "
            f"{percent(trial['top1'])}, compared with {percent(trial['head_top1'])} for the head "
            "alone."
        )
    if budget["chosen"] == "head" and budget["trials"]:
        text += " Only the head was trained, because no trial was clearly better than the head."
    for skipped in budget["skipped"]:
        text += (
            f" Training {layers_text(skipped['layers'])} was not tried: it needs a budget of about "
            f"{duration(skipped['seconds_needed'])}."
        )
    return text


def describe_unlike(run: Run) -> str:
    """Describe the reliability of the note "unlike the training images"."""
    found = run.audit.get("out_of_distribution")
    if not run.results:
        return ""
    if not run.notes_unlike:
        because = f": {found['reason']}" if found and found["reason"] else ""
        return f"The model does not flag images that are unlike the training images{because}."
    text = "The model flags images that are unlike the training images"
    if not found or found["unknown_class"] is None or found["false_alarms"] is None:
        return f"{text}; how reliably it does so was not measured."
    power = power_text(found["unknown_class"])
    left_out = count(found["classes_left_out"], "class", "classes")
    return (
        f"{text}, but this is not fully reliable. When {left_out} were left out one at a "
        f"time, {power} were flagged (95% interval: "
        f"{interval(found['unknown_class_interval'], 0)}; by class: "
        f"{interval(found['unknown_class_range'], 0)}). About "
        f"{percent(found['false_alarms'], 0)} of images from known classes are also flagged."
    )


def recall_text(one: ClassRecall) -> str:
    """Return the name of a class, its recall and the interval of the recall as text."""
    return (
        f"{one.name}, with a recall of {percent(one.recall, 0)} on {one.measured_on} "
        f"({interval(one.interval, 0)})"
    )


def cautions(run: Run) -> str:
    """Return sentences on the limits of the results, or an empty string if none are known."""
    status = run.environment.get("status", "finished")
    if not run.results:
        return f"The run has no results: its status is “{status}”."
    texts = []
    if status == "interrupted":
        texts.append("The run was interrupted; these are the results of the best weights so far.")
    elif status != "finished":
        texts.append(f"The status of the run is “{status}”: the results may be incomplete.")
    if run.several:
        texts.append(
            "On this page, an image counts as correct, also for the accuracy, if it gets exactly "
            "its labels."
        )
    if run.results.get("selected_on_validation"):
        texts.append(
            f"Epoch {run.results['best_epoch']} of {run.results['epochs']} was selected on the "
            "validation images, so the accuracy is slightly optimistic."
        )
    if (head := run.results.get("head")) and head["last_block_top1"] is not None:
        texts.append(
            f"The head reads the last {head['blocks']} blocks. A head that reads only the last "
            "block, as in exports for timm and transformers, classifies "
            f"{percent(head['last_block_top1'])} of the validation images correctly."
        )
    return " ".join(texts)


def key_figures(run: Run) -> list[KeyFigure]:
    """Return the key figures of a run, or an empty list if the run has no results."""
    results = run.results
    if not results:
        return []
    validation = f"on {count(results['images'], 'validation image')}"
    fractions: list[tuple[str, float, Interval | None, str]]
    fractions = [("accuracy", results["top1"], results["top1_interval"], validation)]
    if found := results.get("labels"):
        exact = ("all labels right", *fractions[0][1:])
        ranking = "mean over the labels; it does not depend on the thresholds"
        fractions = [
            ("mean average precision", found["map"], found["map_interval"], ranking),
            ("mean F1", found["macro_f1"], found["macro_f1_interval"], "mean over the labels"),
            exact,
        ]
    if test := results.get("test"):
        images = f"on {count(test['images'], 'test image')}, evaluated once after training"
        fractions.append(("test accuracy", test["top1"], test["top1_interval"], images))
    if more := results.get("cross_validation"):
        scored = f"on {count(more['images'], 'image')}, each predicted by a head that was not"
        name, bounds = "cross-validated accuracy", more.get("top1_interval")
        fractions.append((name, more["top1"], bounds, f"{scored} trained on it"))
    if results.get("balanced") is not None:
        bounds, meaning = results.get("balanced_interval"), "mean recall of all classes"
        fractions.append(("balanced accuracy", results["balanced"], bounds, meaning))
    if (calibration := results.get("calibration")) and calibration.get("ece") is not None:
        bounds = calibration.get("ece_interval")
        meaning = "mean difference between confidence and accuracy"
        fractions.append(("calibration error", calibration["ece"], bounds, meaning))
    figures = [
        KeyFigure(name, percent(v), interval(ends), text) for name, v, ends, text in fractions
    ]
    if run.predictions:
        wrong = mistakes(run.predictions)
        confident = sum(one.probability > 0.9 for one in wrong)
        detail = f"{confident:,} with a confidence above 90%" if wrong else ""
        figures.append(KeyFigure("mistakes", f"{len(wrong):,}", detail, validation))
    return figures
