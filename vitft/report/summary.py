"""Description of a run for its report page: a few sentences, and all metrics with intervals."""

from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

from vitft.data.inspection import describe_counts
from vitft.data.transforms import describe_view
from vitft.features.ood import TOO_HIGH, alarms_text
from vitft.features.reference import power_text
from vitft.messages import results as messages
from vitft.messages.training import budget_lines, chosen_layers, selected_epoch
from vitft.models.pretrained.catalog import weights_name
from vitft.models.vit_config import ViTConfig
from vitft.report.charts import score_bar
from vitft.report.run_files import Run
from vitft.system.text import count, duration, interval, listing, percent, percent_or_bound

_WHAT_WAS_TRAINED: Mapping[str, str] = {  # by `train.layers`
    "head": "only a new linear head was trained",
    "pre_logits": "only its pre_logits layer and a new head were trained",
    "lora": "LoRA adapters and a new head were trained",
    "all": "all of its layers were trained",
}


class _KeyFigure(NamedTuple):
    """A metric with its 95% interval and an explanation."""

    name: str
    value: str
    interval: str
    meaning: str
    bar: str = ""  # SVG of the value and its interval; empty for the calibration error


def summary_sentences(run: Run) -> list[str]:
    """Return the non-empty paragraphs on data, model, time budget, flagged images and limits."""
    tried = list[str]()
    if budget := run.measured.get("budget"):
        tried = [f"the run had a time budget of {duration(budget['seconds'])}"]
        tried += budget_lines(budget)
        tried += [f"the run trained {chosen_layers(budget)}"] * bool(budget["chosen"])
    paragraphs = (
        _describe_data(run),
        _describe_model(run),
        " ".join(map(messages.sentence, tried)),
        _describe_unlike(run),
        cautions(run),
    )
    return [text for text in paragraphs if text]


def _describe_data(run: Run) -> str:
    """Return sentences about the classes and the numbers of images, or "" if there is no split."""
    parts = Counter(row.split for row in run.rows)
    if not run.rows:
        return ""
    origin = f" from “{run.data_name}”" if run.data_name else ""
    classes = f"{count(len(run.classes), 'class', 'classes')} ({listing(run.classes)})"
    clause = messages.chance_clause(run.results)
    if run.several:
        classes = f"{count(len(run.classes), 'label')} ({listing(run.classes)})"
    text = f"{messages.distinguishes('This model', classes, clause)}."
    if run.several and not clause:
        text = f"This multi-label model assigns each image any combination of {classes}."
    text += (
        f" It was trained on {count(parts['train'], 'image')}{origin} and evaluated on "
        f"{count(parts['val'], 'other image')}, the validation images."
    )
    bad, used = len(run.audit.get("bad", [])), len(run.rows)
    different = len({row.sha256 for row in run.rows})
    if bad or different < used:
        text += f" The data: {describe_counts(bad, used, different=different)}."
    return f"{text} Copies count once." if different < used else text


def _describe_model(run: Run) -> str:
    name, shape = str(run.setting("weights", "name") or ""), run.card and run.card.architecture
    if not name and not shape:
        return ""
    kind, blocks, size = "network", "", f"{run.parameters:,}"
    if isinstance(shape, ViTConfig):
        kind, blocks = "Vision Transformer", f"{count(shape.depth, 'block')}, "
    if run.parameters >= 100_000:
        size = f"{run.parameters / 1e6:,.1f} million"
    origin = f"was pretrained (weights: {weights_name(name) or 'unknown'})"
    if name == "none" or name.startswith("random:"):
        origin = "was initialised at random"
    trained = []  # a clause for each stage
    for stage in filter(None, run.layers.split(",")):
        number = stage.removeprefix("blocks:")
        if number != stage:
            last = "its last block" if number == "1" else f"its last {number} blocks"
            trained.append(f"{last} and a new head were trained")
        else:
            trained.append(_WHAT_WAS_TRAINED.get(stage, ""))
    pixels = shape.image_size if shape else ()
    inputs = f" Its input is {pixels[0]} × {pixels[1]} pixels." if pixels else ""
    if view := run.audit.get("view"):
        inputs += f" {messages.sentence(describe_view(view))}"
    training = f", and {', then '.join(filter(None, trained))}" if any(trained) else ""
    return f"The {kind} ({blocks}{size} parameters) {origin}{training}.{inputs}"


def _describe_unlike(run: Run) -> str:
    """Describe the reliability of the note "unlike the training images"."""
    found = run.audit.get("out_of_distribution")
    if not run.measured:
        return ""
    if not run.notes_unlike:
        because = f": {found['reason']}" if found and found["reason"] else ""
        return f"The model does not flag images that are unlike the training images{because}."
    text = "The model flags images that are unlike the training images"
    if not found or found["unknown_class_range"] is None or found["false_alarms"] is None:
        return f"{text}. How reliably it does so was not measured."
    power = power_text(found["unknown_class_range"])
    left_out = count(found["classes_left_out"], "class was", "classes were")
    return (
        f"{text}, but this is not fully reliable. When {left_out} left out one at a time, {power}. "
        f"{f'These rates {TOO_HIGH}. ' * found['features_trained']}"
        f"{alarms_text(found).capitalize()} of images of known classes are also flagged."
    )


def cautions(run: Run) -> str:
    """Return sentences about the limits of the results, or an empty string if none are known."""
    status = run.environment.get("status", "finished")
    if not run.measured:
        return f"The run has no results: its status is “{status}”."
    texts = []
    if status == "interrupted":
        texts.append("The run was interrupted. These are the results of the best weights so far.")
    elif status != "finished":
        texts.append(f"The status of the run is “{status}”: the results may be incomplete.")
    if run.several:
        texts.append(messages.EXACT_LABELS)
    if run.measured.get("selected_on_validation"):
        planned = int(run.setting("optim", "epochs") or 0)
        texts.append(messages.selection_note(selected_epoch(run.measured, run.layers, planned)))
    if (head := run.measured.get("head")) and head["last_block_top1"] is not None:
        texts.append(messages.last_block_note(head["blocks"], head["last_block_top1"]))
    return " ".join(texts)


def key_figures(run: Run) -> list[_KeyFigure]:
    """Return the metrics of a run, or an empty list if the run has no results."""
    if not run.measured:
        return []
    figures = []
    for name, value, ends, meaning in messages.metric_rows(run.results, run.measured):
        text, bar = percent(value), score_bar(name, value, ends, None)
        if name == "calibration error":
            text, bar = percent_or_bound(value, ends), ""
        figures.append(_KeyFigure(name, text, interval(ends), meaning, bar))
    return figures
