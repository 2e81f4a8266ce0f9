"""The images of a run after the split, and what the trained part reads of them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from vitft.data.split import Manifest, Row
from vitft.data.transforms import EvalTransform, View, eval_view
from vitft.features.cut import Cut
from vitft.features.extract import Extractor
from vitft.features.label_errors import number_groups
from vitft.training.distributed import ProcessGroup
from vitft.training.pixels import ImageTable


@dataclass(frozen=True, slots=True, kw_only=True)
class Dataset:
    """Training and validation images of a run; the same in all its stages."""

    manifest: Manifest
    transform: EvalTransform
    max_pixels: int
    """Larger images are errors."""
    device: torch.device
    group: ProcessGroup = field(default_factory=ProcessGroup)
    """The processes that share each batch."""
    duplicates: Mapping[str, str] = field(default_factory=dict)
    """Name of the group of near copies by digest; images without near copies are missing."""

    @property
    def distinct(self) -> list[Row]:
        """One row for each distinct file content."""
        return list({row.sha256: row for row in self.manifest.rows}.values())

    def labels(self, rows: Sequence[Row]) -> Tensor:
        """Return class indices (n,) on the device."""
        return torch.tensor([row.label for row in rows], dtype=torch.long, device=self.device)

    def group_ids(self, rows: Sequence[Row]) -> Tensor:
        """Return a number for each row (n,) that copies of one picture share."""
        return number_groups(self.duplicates.get(row.sha256, row.sha256) for row in rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class StageInputs:
    """What one stage reads: cached outputs of the frozen prefix, images in memory, or files."""

    data: Dataset
    cut: Cut
    """The model, cut at the freeze boundary of the stage."""
    extractor: Extractor | None
    """Runs the frozen prefix; None if nothing is frozen."""
    images: ImageTable | None = None
    """The decoded images, if they are small enough to be kept in memory."""

    def features(self, rows: Sequence[Row], view: View | None = None) -> Tensor:
        """Return the cached outputs of the prefix, float32 on the CPU: (n, D) or (n, N, D).

        Args:
            rows: The images.
            view: A training view; default: the evaluation view.
        """
        assert self.extractor is not None
        return self.extractor.rows(
            [row.sha256 for row in rows], view or eval_view(self.data.transform)
        )
