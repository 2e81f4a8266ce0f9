"""Choice of the validation images: by content, at random, or as in the reference script.

With `content`, the images of each class are ordered by a hash of their bytes and the seed, and the
first ones are held out. An image therefore stays on the same side of the split when files are
renamed. When files are added or removed, only a few images next to the boundary change sides. With
`random`, positions in the sorted list of files are drawn with a private random generator, as in the
reference script.

Source: WZMIAOMIAO/deep-learning-for-image-processing,
pytorch_classification/vision_transformer/utils.py, `read_split_data` since commit 9508fd2.
"""

import hashlib
import random
from collections import Counter
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace

from vitft.config.sections import DataSpec
from vitft.data.duplicates import group_names
from vitft.data.folder import File
from vitft.data.inspection import InspectedFile
from vitft.data.parts import Part
from vitft.system.text import count


def draw(
    counts: Sequence[int], val_rate: float, seed: int, *, at_least: int = 0
) -> list[list[int]]:
    """Draw the validation images, and return their indices in each class's sorted list of files.

    Args:
        counts: Number of files of each class.
        val_rate: Fraction of each class to draw; the number of images is rounded down.
        seed: Seed of the random generator.
        at_least: Minimum number of images to draw from each class, but at most n - 1 for a class of
            n images.
    """
    stream = random.Random(seed)
    return [
        stream.sample(range(n), max(int(n * val_rate), min(at_least, max(0, n - 1))))
        for n in counts
    ]


def draw_paths(
    files: Sequence[File] | Sequence[InspectedFile], spec: DataSpec, *, at_least: int
) -> set[str]:
    """Draw individual files of each class for validation (see `draw`), and return their paths."""
    by_class: dict[int, list[str]] = {}
    for file in files:
        by_class.setdefault(file.label, []).append(file.path)
    paths = [by_class[label] for label in sorted(by_class)]
    drawn = draw(list(map(len, paths)), spec.val_rate, spec.seed, at_least=at_least)
    return {own[i] for own, picks in zip(paths, drawn, strict=True) for i in picks}


def joined_groups(
    files: Sequence[InspectedFile], duplicates: Mapping[str, str]
) -> Mapping[str, str]:
    """Map digests to groups that must not be divided: the user's groups and duplicates.

    Groups that share an image are joined. `duplicates` maps digests to groups of near-duplicates
    and is returned unchanged if the user has not defined groups. The result may omit digests
    without a group.
    """
    if not any(file.group for file in files):
        return duplicates
    digests = list(dict.fromkeys(file.sha256 for file in files))
    place = {digest: i for i, digest in enumerate(digests)}
    first: dict[tuple[str, str], int] = {}
    keys = [(("user", file.group), file.sha256) for file in files if file.group]
    keys += [(("copies", name), digest) for digest, name in duplicates.items() if digest in place]
    pairs = [(first.setdefault(key, place[digest]), place[digest]) for key, digest in keys]
    return group_names(digests, pairs)


def joined_note(
    files: Sequence[InspectedFile], groups: Mapping[str, str], duplicates: Mapping[str, str]
) -> str:
    """Return a note if copies in several groups of the user join them, otherwise "".

    Images whose part is given are not counted, because they are not drawn.

    `groups` is the result of `joined_groups` for the same `files` and `duplicates`.
    """
    drawn = [file for file in files if file.group and not file.part]
    own = {file.group for file in drawn}
    left = {groups.get(file.sha256, file.sha256) for file in drawn}
    if len(left) >= len(own):
        return ""
    copies = "identical images or near-duplicates" if duplicates else "identical images"
    return (
        f"{copies} in different groups merge the {count(len(own), 'group')} into {len(left):,}, "
        "because no image may be in both training and validation: vitft check lists the copies; "
        "drop them to keep the groups apart"
    )


def ordered_groups(
    files: Sequence[InspectedFile], groups: Mapping[str, str], spec: DataSpec
) -> list[list[InspectedFile]]:
    """Return the files of each group; identical files are always in one group.

    If `spec.split` is `content`, groups are ordered by a hash of the seed and one name per group:
    the name of the user's group or, outside the user's groups, the smallest digest. The size of a
    group therefore does not affect its position. Otherwise, groups are in the order of the files.
    """
    members: dict[str, list[InspectedFile]] = {}
    for file in files:
        members.setdefault(groups.get(file.sha256, file.sha256), []).append(file)
    if spec.split != "content":
        return list(members.values())

    def place(group: Sequence[InspectedFile]) -> bytes:
        names = {_hash_of(f"group {f.group}").hex() if f.group else f.sha256 for f in group}
        return _hash_of(f"{spec.seed} {min(names)}")

    return sorted(members.values(), key=place)


def _hash_of(text: str) -> bytes:
    """Return the SHA-256 digest of `text`."""
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).digest()


def draw_groups(members: Sequence[Sequence[InspectedFile]], spec: DataSpec) -> set[str]:
    """Draw whole groups for validation, and return the paths of their images.

    The groups are considered in the given order, which is shuffled with the seed if `spec.split` is
    `random`. A group is drawn if this brings the numbers of validation images closer to their
    targets, summed over the classes. The target of a class is `spec.val_rate` of its images,
    rounded down, but at least one, or none if all its images are in one group. Groups already
    assigned to `val` are always drawn, and groups assigned to `train` are never drawn.
    """
    counts, alone = Counter(file.label for group in members for file in group), _undivided(members)
    lacking = {n: max(1, int(i * spec.val_rate)) * (n not in alone) for n, i in counts.items()}
    order = list(members)
    if spec.split == "random":
        random.Random(spec.seed).shuffle(order)
    order.sort(key=lambda group: group[0].part != "val")
    drawn: set[str] = set()
    for group in order:
        own = Counter(file.label for file in group)
        change = sum(abs(lacking[label] - n) - abs(lacking[label]) for label, n in own.items())
        is_free = group[0].part != "train" and not alone & own.keys()
        if group[0].part == "val" or (change < 0 and is_free):
            drawn.update(file.path for file in group)
            for label, n in own.items():
                lacking[label] -= n
    return drawn


def _undivided(members: Sequence[Sequence[InspectedFile]]) -> Set[int]:
    """Return the classes whose images are all in one group, which is never drawn."""
    found = Counter(label for group in members for label in {file.label for file in group})
    return {label for label, groups in found.items() if groups == 1}


def keep_groups_together(members: Sequence[Sequence[InspectedFile]], drawn: Set[str]) -> set[str]:
    """Move each group to the side of its first image, and return the validation paths.

    A group is thus assigned to validation with the same probability as a single image, except that
    a group with all images of a class is used for training. If all images of a class are then on
    one side, the first suitable group with an image of that class is moved to the other side. A
    group is suitable if the side that it leaves keeps at least one image of each class in the
    group, and if the group is not already assigned to `val`.
    """
    alone = _undivided(members)
    side = [  # True: validation
        group[0].path in drawn
        and (group[0].part == "val" or not any(file.label in alone for file in group))
        for group in members
    ]
    sided = list(zip(members, side, strict=True))
    have = Counter((file.label, is_val) for group, is_val in sided for file in group)
    labels = {file.label for group in members for file in group}
    for label, wanted in sorted((label, wanted) for label in labels for wanted in (True, False)):
        for i, group in enumerate(members) if not have[label, wanted] else ():
            counts = Counter(file.label for file in group)
            spared = all(have[other, not wanted] > n for other, n in counts.items())
            is_free = side[i] != wanted and group[0].part != "val"
            if label in counts and is_free and spared:
                side[i] = wanted
                have.update({(other, wanted): n for other, n in counts.items()})
                have.subtract({(other, not wanted): n for other, n in counts.items()})
                break
    return {f.path for group, is_val in zip(members, side, strict=True) if is_val for f in group}


@dataclass(frozen=True, slots=True, kw_only=True)
class FormerSplit:
    """Subsets to which an earlier run assigned its images and groups (see `training.like`)."""

    parts: Mapping[str, Part]
    """Mapping from digests to `train`, `val` or `test`. Near-duplicates of held-out images are
    mapped to the same subset as those images."""
    groups: Mapping[str, Part]
    """Mapping from the names of the user's groups to `train`, `val` or `test`."""

    def part_of(self, group: Sequence[InspectedFile]) -> Part:
        """Return the subset of a group, or an empty string if all its images are new.

        A group that contains a held-out image is held out.
        """
        found = {self.parts.get(file.sha256, "") for file in group}
        found |= {self.groups.get(file.group, "") for file in group if file.group}
        order: tuple[Part, ...] = ("test", "val", "train")
        return next((part for part in order if part in found), "")

    def assign(
        self, files: Sequence[InspectedFile], groups: Mapping[str, str], *, divided: bool
    ) -> list[InspectedFile]:
        """Return the files, assigned to the same subsets as in the earlier run.

        Test images remain test images. If the data is already `divided` into subsets, only training
        images that the earlier run held out are reassigned.
        """
        members: dict[str, list[InspectedFile]] = {}
        for file in files:
            if file.part != "test":
                members.setdefault(groups.get(file.sha256, file.sha256), []).append(file)
        parts = {f.path: self.part_of(group) for group in members.values() for f in group}
        assigned = []
        for file in files:
            part = parts.get(file.path, "")
            moves = part in ("val", "test") and file.part == "train" if divided else part
            assigned.append(replace(file, part=part) if moves else file)
        return assigned
