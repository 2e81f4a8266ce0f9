"""Promises that hold for every input, on inputs that Hypothesis draws; the same in every run."""

import csv
import hashlib
import io
import json
import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from vitft.config import DataSpec, config_from_table, merge_settings, read_toml, to_toml
from vitft.data import EvalTransform, Images, Row, split
from vitft.features import key_of
from vitft.models import Card, VisionTransformer, ViTConfig, parse_card, vit_shapes
from vitft.predict import Prediction, RowFormat, text_lines
from vitft.system import StructureError, UsageError, structured

few = settings(
    max_examples=40,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
# Names as a file system gives them: any text, and bytes that are not UTF-8 as lone surrogates.
characters = st.characters(exclude_characters="\0", exclude_categories=["Cs"])
names = st.text(
    characters | st.characters(min_codepoint=0xDC80, max_codepoint=0xDCFF), min_size=1
).filter(lambda name: os.fsdecode(os.fsencode(name)) == name)  # as names of files are
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=8,
)


@st.composite
def architectures(draw_value: Callable[[st.SearchStrategy[Any]], Any]) -> ViTConfig | None:
    """Draw an architecture, or None if its settings are incompatible."""
    sides = st.sampled_from([8, 16, 24, 40])
    heads = draw_value(st.sampled_from([1, 2, 3]))
    try:
        return ViTConfig(
            image_size=(draw_value(sides), draw_value(sides)),
            patch_size=(draw_value(st.sampled_from([4, 8])), draw_value(st.sampled_from([2, 8]))),
            width=heads * draw_value(st.integers(1, 9)),
            heads=heads,
            depth=draw_value(st.integers(1, 4)),
            mlp_ratio=draw_value(st.floats(0.1, 5)),
            qkv_bias=draw_value(st.booleans()),
            num_classes=draw_value(st.integers(0, 4)),
            pre_logits=draw_value(st.booleans()),
            pool=draw_value(st.sampled_from(["cls", "mean"])),
            norm=draw_value(st.sampled_from(["pre", "post"])),
            layer_scale=draw_value(st.sampled_from([0.0, 1e-5])),
            registers=draw_value(st.integers(0, 3)),
            prefix_positions=draw_value(st.booleans()),
            distilled=draw_value(st.booleans()),
            convs=draw_value(st.sampled_from([(), (4,), (4, 6)])),
            read_blocks=draw_value(st.integers(1, 2)),
        )
    except UsageError:
        return None


@few
@given(architectures(), st.lists(names, min_size=4, max_size=4, unique=True))
def test_any_architecture_has_the_shapes_of_its_model_and_survives_its_card(
    config: ViTConfig | None, classes: list[str]
) -> None:
    if config is None:
        return
    with torch.device("meta"):
        state = VisionTransformer(config).state_dict()
    shapes = {name: facts.shape for name, facts in vit_shapes(config).items()}
    assert shapes == {name: tuple(tensor.shape) for name, tensor in state.items()}
    card = Card(
        architecture=config,
        transform=EvalTransform(image_size=config.image_size),
        classes=tuple(classes[: config.num_classes]),
    )

    assert parse_card(card.to_json()) == card


@few
@given(json_values)
def test_any_json_is_a_card_or_a_sentence(value: object) -> None:
    for text in (json.dumps(value), json.dumps({"architecture": value, "transform": value})):
        try:
            parse_card(text)
        except ValueError as error:
            assert str(error)  # noqa: PT017 - either outcome is right


@few
@given(json_values)
def test_a_value_of_any_type_is_refused_or_kept(value: object) -> None:
    for kind in (int, float, str, list[int], dict[str, float], tuple[int, str], int | None):
        try:
            found = structured(value, kind)
        except StructureError:
            continue
        assert list(found) == list(value) if isinstance(value, list) else found == value


@few
@given(
    st.sampled_from(["optim.lr", "optim.weight_decay", "data.path", "train.seed", "optim.epochs"]),
    st.floats(1e-9, 10) | st.integers(1, 10**6) | names.filter(lambda n: max(n) < "\udc80"),
)
def test_settings_survive_toml(tmp_path: Path, key: str, value: object) -> None:
    try:
        config = config_from_table(merge_settings({}, [(key, value)]))
    except UsageError:
        return  # of another type
    path = tmp_path / "config.toml"
    path.write_bytes(to_toml(config).encode("utf-8"))

    assert config_from_table(read_toml(path)) == config


@few
@given(
    st.lists(st.integers(2, 60), min_size=2, max_size=6), st.floats(0.01, 0.99), st.integers(0, 99)
)
def test_a_split_draws_a_fixed_part_of_each_class_and_never_all(
    counts: list[int], rate: float, seed: int
) -> None:
    rows = [
        Row(f"{label}/{i}", label, sha256=hashlib.sha256(f"{label} {i}".encode()).hexdigest())
        for label, n in enumerate(counts)
        for i in range(n)
    ]
    spec = DataSpec(split="random", val_rate=rate, seed=seed)
    classes = tuple(str(label) for label in range(len(counts)))

    manifest = split(Images(Path("d"), classes, rows), spec)

    assert manifest.digest == split(Images(Path("d"), classes, rows), spec).digest
    drawn = Counter(row.label for row in manifest.val)
    assert [drawn[label] for label in range(len(counts))] == [
        min(n - 1, max(int(n * rate), 1)) for n in counts
    ]


@few
@given(
    st.lists(names, min_size=1, max_size=5, unique=True), st.lists(names, min_size=1, unique=True)
)
def test_any_path_and_class_name_survive_split_csv(
    tmp_path: Path, paths: list[str], classes: list[str]
) -> None:
    classes = sorted(classes)[:1]
    paths = [p for p in paths if not p.startswith("/") and ".." not in p.split("/")]
    rows = tuple(Row(path, 0, "train", "1" * 64) for path in paths)
    manifest = Images(tmp_path, tuple(classes) if rows else (), rows)
    manifest.write(tmp_path / "split.csv")

    assert Images.from_csv(tmp_path / "split.csv", tmp_path) == manifest


@few
@given(st.lists(st.text("0123456789abcdef /", max_size=6), max_size=3))
def test_keys_of_different_parts_differ(parts: list[str]) -> None:
    assert key_of(*parts) == key_of(*parts)
    assert key_of(*parts, "x") != key_of(*parts)
    assert len(key_of(*parts)) == 32


@few
@given(names, st.lists(names, min_size=2, max_size=2), st.sampled_from(["csv", "jsonl"]))
def test_any_name_survives_the_rows_of_predict_and_no_cell_is_a_formula(
    path: str, classes: list[str], style: str
) -> None:
    one = Prediction(path=path, classes=tuple(classes), probabilities=(0.75, 0.25))

    lines = [*text_lines(RowFormat(style, 2), [one])]

    if style == "jsonl":
        row = json.loads(lines[0])
        assert row["path"] == path
        assert [c["class"] for c in row["classes"]] == classes
        return
    _, cells = csv.reader(io.StringIO("\r\n".join(lines), newline=""))
    for cell, name in zip((cells[0], cells[1], cells[3]), (path, *classes), strict=True):
        assert cell == name or cell == f"'{name}"
        assert not cell.startswith(("=", "+", "@", "\t", "\r"))
