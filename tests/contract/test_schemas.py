"""Every JSON, CSV and HTTP answer has the fields of its schema in docs/schemas, and no other."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from referencing import Registry, Resource
from safetensors.torch import save_file

from tests.contract.built.weights import state
from tests.contract.samples import Samples

FOLDER = Path(__file__).parents[2] / "docs" / "schemas"
SCHEMAS: dict[str, Any] = {p.stem: json.loads(p.read_text()) for p in sorted(FOLDER.glob("*.json"))}
REGISTRY: Registry[Any] = Registry().with_resources(
    (f"{name}.json", Resource.from_contents(schema)) for name, schema in SCHEMAS.items()
)
RARE = {
    "environment": {"earlier"},
    "evaluation": {"confused_pairs", "cross_validated"},
    "eval": {"confused_pairs"},
    "exported": {"problem", "fix"},
    "graph": {"grey_range"},
    "metrics": {"cv_classes"},
    "preprocessing": {"grey_range"},
    "split": {"kept_together"},
}
"""Fields that the samples lack, because they need many classes, 16-bit images, near-duplicates, a
resumed run with other arithmetic, an export that predicts differently or, of `evaluate`,
calibration with training images. Trials of a budget are left out."""


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Samples]:
    folder = tmp_path_factory.mktemp("samples")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        save_file(state(), folder / "tiny.safetensors")
        yield Samples(Path("tiny.safetensors"))


@pytest.mark.parametrize("name", SCHEMAS)
def test_what_is_written_and_answered_has_its_schema(name: str, samples: Samples) -> None:
    validator = Draft202012Validator(SCHEMAS[name], registry=REGISTRY)
    values = samples.of(name)

    assert values
    for value in values:
        for error in validator.iter_errors(value):
            raise AssertionError(f"{error.json_path}: {error.message[:500]}")


@pytest.mark.parametrize("name", SCHEMAS)
def test_every_field_of_a_schema_is_written_or_answered(name: str, samples: Samples) -> None:
    schema = {
        **SCHEMAS[name],
        "$defs": {**SCHEMAS[name].get("$defs", {}), "budget": {}, "start": {}},
    }
    documented = {*fields(schema)}
    written = {key for value in samples.of(name) for node in nodes(value) for key in node}

    assert documented - written == RARE.get(name, set())


@pytest.mark.parametrize("name", SCHEMAS)
def test_a_schema_is_valid_and_allows_no_other_fields(name: str) -> None:
    Draft202012Validator.check_schema(SCHEMAS[name])
    closed = ("additionalProperties", "unevaluatedProperties")

    for node in nodes({k: v for k, v in SCHEMAS[name].items() if k != "$defs"}):
        if "properties" in node and "type" in node and "step" not in node["properties"]:
            assert any(node.get(word) is False for word in closed), node


def test_every_schema_is_named_in_the_documentation() -> None:
    text = (FOLDER.parent / "commands.md").read_text(encoding="utf-8")

    assert [name for name in SCHEMAS if f"(schemas/{name}.json)" not in text] == []


def fields(schema: Any, home: str = "") -> Iterator[str]:
    """Yield the fields of a schema and of the definitions in other files to which it refers.

    `home` is the file of such a definition; all definitions in a schema are parts of it.
    """
    for node in nodes(schema):
        yield from node.get("properties", ())
        file, _, place = node.get("$ref", "").partition("#/$defs/")
        if place and (file := file.removesuffix(".json") or home):
            yield from fields(SCHEMAS[file]["$defs"][place], file)


def nodes(value: Any) -> Iterator[dict[str, Any]]:
    """Yield every object in a JSON value."""
    if isinstance(value, dict):
        yield value
    for child in (
        value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    ):
        yield from nodes(child)
