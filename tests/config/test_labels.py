"""Settings that multi-label classification excludes."""

from typing import Any

import pytest

from vitft.config.labels import check_several_labels
from vitft.config.run import config_from_table
from vitft.system.errors import UsageError


@pytest.mark.parametrize(
    ("table", "setting"),
    [
        ({"train": {"budget": "5m"}}, "--budget 5m"),
        ({"optim": {"class_weights": True}}, "optim.class_weights=true"),
        (
            {"train": {"sampling": "balanced"}, "optim": {"solver": "adamw"}},
            "train.sampling=balanced",
        ),
        ({"data": {"fixes": "mine.csv"}}, "data.fixes=mine.csv"),
    ],
)
def test_a_setting_that_needs_one_class_per_image_is_refused(
    table: dict[str, Any], setting: str
) -> None:
    with pytest.raises(UsageError) as caught:
        check_several_labels(config_from_table(table))

    assert caught.value.problem == f"{setting} cannot be used for multi-label classification"


def test_other_settings_may_be_used_with_several_labels() -> None:
    check_several_labels(config_from_table({}))
    check_several_labels(config_from_table({"train": {"freeze": "none"}}))
