"""The option `--set` of commands that read a table of labels."""

from dataclasses import replace

import pytest

from vitft.cli.table_settings import TABLE_SETTINGS, table_settings, with_table_settings
from vitft.config.sections import DataSpec
from vitft.system.errors import UsageError


def test_settings_of_a_table_are_applied_and_the_others_kept() -> None:
    spec = DataSpec(path="photos", max_pixels=99_999)

    found = with_table_settings(spec, ["data.label=species", "data.root=.", "data.labels=several"])

    assert found == replace(spec, label="species", root=".", labels="several")
    assert with_table_settings(spec, []) == spec


@pytest.mark.parametrize("text", ["data.path=x", "train.epochs=3", "data.max_pixels=9"])
def test_other_settings_are_refused(text: str) -> None:
    key = text.partition("=")[0]

    with pytest.raises(UsageError, match=f"{key} is not a setting for reading tables") as refused:
        with_table_settings(DataSpec(), ["data.label=species", text])
    assert refused.value.fix == f"use one of {', '.join(TABLE_SETTINGS)}"
    with pytest.raises(UsageError):
        with_table_settings(DataSpec(), ["species"])


def test_only_settings_that_differ_from_the_usual_ones_are_passed_on() -> None:
    assert table_settings(DataSpec(path="photos", max_pixels=99_999)) == []
    spec = with_table_settings(DataSpec(), ["data.label=species", "data.separator=;"])

    words = table_settings(spec)

    assert words[::2] == ["--set", "--set"]
    assert with_table_settings(DataSpec(), words[1::2]) == spec
    assert table_settings(replace(DataSpec(), classes="c.csv")) == ["--classes", "c.csv"]
