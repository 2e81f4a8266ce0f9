"""The `--set` option of commands that read a table of labels but do not train."""

from collections.abc import Iterable
from dataclasses import asdict

from vitft.config.run import config_from_table, merge_settings, parse_setting
from vitft.config.sections import DataSpec
from vitft.data.label_table import SETTING_OF
from vitft.system.errors import UsageError

_OTHERS = ("labels", "separator", "root", "classes", "allow_private_addresses")
TABLE_SETTINGS = (
    *(key for role, key in SETTING_OF.items() if role != "time"),  # only for a split
    *(f"data.{name}" for name in _OTHERS),
)


def with_table_settings(spec: DataSpec, texts: Iterable[str]) -> DataSpec:
    """Return the settings updated with the values of `--set`, which must be for tables."""
    settings = [parse_setting(text) for text in texts]
    for key, _ in settings:
        if key not in TABLE_SETTINGS:
            raise UsageError(
                f"{key} is not a setting for reading tables",
                fix=f"use one of {', '.join(TABLE_SETTINGS)}",
            )
    return config_from_table(merge_settings({"data": asdict(spec)}, settings)).data
