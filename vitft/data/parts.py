"""Subsets of a dataset that has its own split, and usual names of folders that are not classes."""

import re
import unicodedata
from collections.abc import Collection, Iterable, Mapping
from typing import Literal

from vitft.system.errors import DataError
from vitft.system.text import count, listing

Part = Literal["train", "val", "test", ""]  # subset of a dataset; empty before the data are split

PART_NAMES: tuple[tuple[Part, frozenset[str]], ...] = (
    ("train", frozenset({"train", "training", "trn"})),
    ("val", frozenset({"val", "valid", "validation", "dev", "eval"})),
    ("test", frozenset({"test", "testing", "tst"})),
)
"""Each subset and its usual names, in lower case."""


def part_named(name: str) -> Part:
    """Return the subset to which a name such as `Validation` refers, or an empty string."""
    return next((part for part, names in PART_NAMES if name.lower() in names), "")


def check_one_name_each(source: object, names: Iterable[str], what: str, fix: str) -> None:
    """Raise a DataError if two of the names stand for the same subset, such as dev and eval."""
    for part, _ in PART_NAMES:
        if len(same := [name for name in names if part_named(name) == part]) > 1:
            raise DataError(f"{source} has more than one {part} {what}: {listing(same)}", fix=fix)


_FOLDER_WORDS = """
    validate pred preds predict prediction predictions inference submission holdout heldout
    evaluation development fold folds part parts set sets subset split splits batch batches chunk
    shard data database folder original originals augmented augmentation aug resized cropped labeled
    labelled unlabeled unlabelled all extra entrenamiento prueba entrainement entraînement treino
    teste validacion validación validacao validação validierung 训练 训练集 测试 测试集 验证 验证集
    image images img imgs photo photos picture pictures pics samples frames jpg jpeg png bmp label
    labels annotation annotations mask masks segmentation segmentations segmentationclass
    segmentationobject groundtruth gt bbox bboxes meta metadata xml json csv txt input inputs output
    outputs target targets thumbnails thumbs overlays imagenes imágenes imagens fotos bilder 图片
"""
_WORD = re.compile(
    f"(?:{'|'.join({*_FOLDER_WORDS.split()}.union(*(names for _, names in PART_NAMES)))})+"
)
"""One or more words for subsets or containers of images, such as `train`, `imgs` or `testset`."""


def words_of(name: str) -> list[str]:
    """Return the words of letters in a name; a capital after a small letter begins a new one."""
    form = unicodedata.normalize("NFC", name)
    found = re.findall(r"[A-Z]?[^\W\d_A-Z]+|[A-Z]+(?![^\W\d_A-Z])", form)
    return [word.lower() for word in found]


def rest_of(name: str) -> tuple[str, ...] | None:
    """Return the words of a name except those for subsets or containers; None if it has none."""
    words = words_of(name)
    rest = tuple(word for word in words if not _WORD.fullmatch(word))
    if _WORD.fullmatch("".join(words)):
        return ()
    return rest if len(rest) < len(words) else None


def are_parts(names: Collection[str]) -> bool:
    """Return whether folder names stand for subsets or containers of images, not for classes.

    Each name must have such a word, and two of them must otherwise be equal: `seg_train` and
    `seg_test`, but not `good_train` and `bad_train`, nor `mask` and `no_mask`.
    """
    rests = [rest_of(name) for name in names]
    return None not in rests and len({*rests}) < len(rests)


# the column `chosen` of a table of `vitft label`: how each image was chosen -----------------------

CHOSEN = "chosen"  # name of the column in which `vitft label` records how it chose each image
PICKED, CONFIRMED, AUDIT, SKIPPED = "picked", "confirmed", "audit", "skipped"
"""Values of `chosen`: as informative, confirmed with others, drawn at random, without a label."""
CHOSEN_PARTS: Mapping[str, Part] = {PICKED: "train", CONFIRMED: "train", AUDIT: "val"}
"""Subset to which each value of the column `chosen` assigns an image if it serves as the split."""


def note_on_chosen(images: Collection[tuple[str, str]]) -> str:
    """Return a note, if useful, on a split by `images`: their classes and values of the column."""
    drawn = sum(chosen == AUDIT for _, chosen in images)
    parts = {(name, CHOSEN_PARTS.get(chosen, "")) for name, chosen in images}
    names = {name for name, _ in images}
    if not drawn or not all({(name, "train"), (name, "val")} <= parts for name in names):
        return ""
    return (
        f"vitft label drew {count(drawn, 'image')} at random. To validate only on them, use --set "
        f"data.split_column={CHOSEN}"
    )
