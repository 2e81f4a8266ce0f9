"""A tree of classes: if the species is unsure, the answer may still be `canidae`.

The probability of a node is the sum of the calibrated probabilities of the classes below it. Level
1 has the nodes without a parent, and the last level all classes. At each level, a class that is
not so deep is a node of its own, so each class is below exactly one node, and an image is below the
most probable one. This module does not import torch.

Notation: n images, C classes, K nodes of a level.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np

from vitft.data.table import TableReader
from vitft.metrics.calibration import Ints
from vitft.metrics.intervals import Flags, Floats
from vitft.system.suggest import misspelt_name

_FIX = "write one line per class or parent, with the columns class and parent, e.g. wolf,canidae"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassTree:
    """Classes and their ancestors, with the thresholds of the levels, if any."""

    nodes: Sequence[Sequence[str]]  # names of the nodes of each level (K,)
    above: Sequence[Ints]  # for each level, the node that each class is below (C,)
    thresholds: Sequence[float] = ()  # smallest probability of an answer at each level

    @classmethod
    def read(cls, path: Path, classes: Sequence[str]) -> Self:
        """Read a table with the columns class and parent; an empty parent ends the tree.

        A class without a line has no parent. A DataError says that the table is invalid.
        """
        reader = TableReader(path, missing="check the path", fix=_FIX)
        parents, lines, known = dict[str, str](), dict[str, int](), {*classes}
        for row in reader.records("class", "parent"):
            name, parent = (reader.checked(row[key], key).strip() for key in ("class", "parent"))
            if name in parents:
                raise reader.error(f"{name} is also in line {lines[name]}", column="class")
            if parent in known:
                problem = f"{parent} is a class of the model, so it cannot be a parent"
                raise reader.error(problem, column="parent")
            parents[name], lines[name] = parent, reader.line
        paths = list[list[str]]()  # of each class, from the top down to the class
        for name in classes:
            paths.append([name])
            while parent := parents.get(paths[-1][0], ""):
                if parent in paths[-1]:
                    raise reader.error(f"{parent} is above itself", line=lines[parent])
                paths[-1].insert(0, parent)
        known = known.union(*paths)
        for name, line in lines.items():
            if name not in known:
                meant = misspelt_name(name, classes)
                problem = f"{name} is not a class of the model, and no class is below it"
                fix = f"write {meant}" if meant else "remove the line, or correct the name"
                raise reader.error(problem, line=line, column="class", fix=fix)
        found = [
            np.unique([names[min(level, len(names) - 1)] for names in paths], return_inverse=True)
            for level in range(max(map(len, paths)) - 1)
        ]
        if not found:
            raise reader.error("no class has a parent")
        return cls(
            nodes=[*(names.tolist() for names, _ in found), classes],
            above=[*(own for _, own in found), np.arange(len(classes))],
        )

    def best(self, probabilities: Floats, level: int) -> tuple[Floats, Ints]:
        """Return the probability and number of the most probable node, from those of classes.

        Args:
            probabilities: Of each class (n, C).
            level: From 1, the top, to the number of levels.
        """
        above = self.above[level - 1]
        order = np.argsort(above, kind="stable")  # classes of a node are neighbours
        starts = np.searchsorted(above[order], np.arange(len(self.nodes[level - 1])))
        sums = np.add.reduceat(probabilities[:, order], starts, axis=1)  # (n, K)
        best = sums.argmax(axis=1)
        return np.take_along_axis(sums, best[:, None], axis=1)[:, 0], best

    def answers(self, probabilities: Floats) -> tuple[Ints, Ints, Floats]:
        """Return the level, node and probability of the answer for each image (n,).

        This is the most probable node of the lowest level where it reaches the threshold. A class
        is an answer only at the last level. The level is 0 if there is no answer.
        """
        levels, nodes, sums = (np.zeros(len(probabilities), kind) for kind in (int, int, float))
        for level, threshold in enumerate(self.thresholds, start=1):
            probability, best = self.best(probabilities, level)
            is_sure = (probability >= threshold) & self.has_answer(best, level)
            levels[is_sure], nodes[is_sure] = level, best[is_sure]
            sums[is_sure] = probability[is_sure]
        return levels, nodes, sums

    def has_answer(self, nodes: Ints, level: int) -> Flags:
        """Return whether each node (n,) of a level may be an answer at this level."""
        if level == len(self.nodes):
            return np.ones(len(nodes), bool)
        return ~np.isin(self.nodes[level - 1], self.nodes[-1])[nodes]
