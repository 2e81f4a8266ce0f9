"""Check for settings that cannot be used for multi-label classification."""

from vitft.config.run import Config
from vitft.config.schema import require


def check_several_labels(config: Config) -> None:
    """Check that the settings can be used for multi-label classification.

    Raises:
        UsageError: A setting requires exactly one class per image.
    """
    needs_one_class = {
        f"--budget {config.train.budget}": bool(config.train.budget),
        "optim.class_weights=true": config.optim.class_weights,
        "train.sampling=balanced": config.train.sampling == "balanced",
        f"data.fixes={config.data.fixes}": bool(config.data.fixes),
    }
    for setting, is_set in needs_one_class.items():
        require(
            not is_set,
            f"{setting} cannot be used for multi-label classification",
            fix="remove it, or use data.labels=one if each image has exactly one class",
        )
