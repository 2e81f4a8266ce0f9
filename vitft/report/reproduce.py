"""Settings of a run: the command that repeats it, those that differ between runs, and digests."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from vitft.config.defaults import default_batch_size, default_lr, idle_augmentation, without_effect
from vitft.config.run import config_from_table, merge_settings, setting_words
from vitft.models.card import Provenance
from vitft.report.run_files import Run
from vitft.system.errors import UsageError
from vitft.system.text import shell_join, shell_quote

_DECISIVE = ("train.layers", "train.augment", "optim.solver")  # other defaults depend on them
_SHAPE_FIELDS = {
    "weights.image_size": "image_size",
    "model.channels": "in_channels",
    **{
        f"model.{name}": name
        for name in (
            *("patch_size", "width", "depth", "heads", "mlp_ratio", "norm", "pool", "convs"),
            "registers",
        )
    },
}
"""Mapping from settings to the fields of an architecture that contain their values."""


def command_of(config: Mapping[str, Any]) -> str:
    """Return the command that repeats a run, or an empty string if its settings are invalid.

    Apart from the data and the weights, the command includes only settings that have an effect and
    differ from their defaults.
    """
    try:
        config_from_table(dict(config))
        settings = effective_settings(config)
        given = {key: settings[key] for key in ("data.path", "weights.name") if settings.get(key)}
        parts = [f"--{key.partition('.')[0]} {shell_quote(str(v))}" for key, v in given.items()]
        for key in _DECISIVE:
            if key in settings and settings[key] != _defaults_with(given).get(key):
                given[key] = settings[key]
                parts.append(shell_join(setting_words(key, settings[key])))
        usual = _defaults_with(given)
        parts += [
            shell_join(setting_words(key, value))
            for key, value in settings.items()
            if key not in given and usual.get(key) != value
        ]
        return "vitft finetune " + " ".join(parts)
    except (UsageError, AttributeError, TypeError):
        return ""


def effective_settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a run that have an effect, by dotted name.

    The settings of the training loop, such as the epochs, have none if L-BFGS fits the head.
    """
    settings = _dotted(config)
    if not {"optim.solver", "train.layers"} <= settings.keys():
        return settings
    stages = str(settings["train.layers"]).split(",")
    unused = without_effect(str(settings["optim.solver"]), len(stages))
    unused |= idle_augmentation(settings.get("train.augment", ""), settings.get("train.views", 0))
    return {key: value for key, value in settings.items() if key not in unused}


def _dotted(config: Mapping[str, Any]) -> dict[str, Any]:
    return {f"{name}.{k}": v for name, section in config.items() for k, v in section.items()}


def different_settings(runs: Sequence[Run]) -> list[tuple[str, list[Any]]]:
    """Return each setting that differs between runs, in alphabetical order, with its values.

    The value is None in a run where the setting is unset or had no effect. The digest of the fixes
    is left out if the runs name different tables of fixes.
    """
    tables = [effective_settings(run.config) for run in runs]
    rows = []
    for key in sorted({key for table in tables for key in table}):
        values = [table.get(key) for table in tables]
        if any(value != values[0] for value in values):
            rows.append((key, values))
    has_fixes = any(key == "data.fixes" for key, _ in rows)
    return [row for row in rows if not (has_fixes and row[0] == "data.fixes_digest")]


def shown_settings(runs: Sequence[Run]) -> list[tuple[str, list[Any]]]:
    """Return the settings that differ between runs, for a table.

    It lacks settings without effect in some runs and with the same default in all others. If the
    input size or a dimension of the model is not set in a run, because it comes from the pretrained
    weights or the images, the values come from the trained models.
    """
    rows, defaults = [], [_own_defaults(run) for run in runs]
    for key, values in different_settings(runs):
        own = [
            (table[key], usual.get(key))
            for table, usual in zip(
                (effective_settings(r.config) for r in runs), defaults, strict=True
            )
            if key in table
        ]
        if len(own) < len(runs) and all(value == usual == own[0][0] for value, usual in own):
            continue
        built = [_value_of_model(run, key) for run in runs]
        if None not in values or None in built:
            rows.append((key, values))
        elif any(value != built[0] for value in built):
            rows.append((key, built))
    return rows


def _value_of_model(run: Run, key: str) -> Any:  # noqa: ANN401 - any TOML value
    """Return the input size or a dimension of a run's model as in config.toml, None for others."""
    if run.card is None or key not in _SHAPE_FIELDS:
        return None
    value = getattr(run.card.architecture, _SHAPE_FIELDS[key], None)
    if key == "model.patch_size" and value and len({*value}) == 1:
        return value[0]
    return list(value) if isinstance(value, tuple) else value


def _own_defaults(run: Run) -> dict[str, Any]:
    """Return the defaults of all settings for the solver and the layers of a run, by dotted name.

    They are empty if this version does not know the solver or the layers. For timm models, they
    lack the learning rate and the batch size, which depend on the layers.
    """
    settings = _dotted(run.config)
    named = [key for key in ("weights.name", *_DECISIVE) if key in settings]
    try:
        found = _defaults_with({key: settings[key] for key in named})
    except UsageError:
        return {}
    shape = run.card and run.card.architecture
    if not shape or shape.timm:
        return found
    layers, images = found["train.layers"], sum(row.split == "train" for row in run.rows)
    batch_size = default_batch_size(layers, images, batch_norm=False)
    return {
        "optim.lr": default_lr(layers, shape.width),
        **found,
        "optim.batch_size": found.get("optim.batch_size") or batch_size,
    }


def _defaults_with(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the given settings and the defaults of all others, without those that are None."""
    config = config_from_table(merge_settings({}, list(given.items())))
    return {
        key: list(value) if isinstance(value, tuple) else value
        for key, value in _dotted(dataclasses.asdict(config)).items()
        if value is not None
    }


def environment_rows(run: Run) -> list[tuple[str, str]]:
    """Return rows (name, value): device, precision, Python version, system, package versions."""
    known: Mapping[str, Any] = run.environment
    keys = ("device", "precision", "python", "system")
    first = [(key, str(known[key])) for key in keys if known.get(key)]
    first += [("before it was resumed", text) for text in known.get("earlier", [])]
    return first + [(name, str(v)) for name, v in known.get("packages", {}).items()]


def digests(run: Run) -> list[tuple[str, str]]:
    """Return the digests of the model, split and weights, and the weights' source and licence."""
    weights = run.card.weights if run.card else Provenance()
    pairs = [
        ("trained model (SHA-256 of card and tensors)", run.digest),
        ("split.csv (SHA-256 of the table)", run.card.split if run.card else ""),
        ("pretrained weights (SHA-256 of the file)", str(weights.get("sha256", ""))),
        ("pretrained weights, source", str(weights.get("source", ""))),
        ("pretrained weights, licence", str(weights.get("licence", ""))),
    ]
    return [(name, value) for name, value in pairs if value]
