"""Settings of the images and their split: section `[data]`."""

from dataclasses import dataclass
from typing import Annotated, Literal

from vitft.config.schema import Range, check_values, require


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSpec:
    """Images, and which of them are held out for validation."""

    path: str = ""
    """Image folder: one folder per class, or train/ and val/ with one folder per class each; or
    arrays: .npz, a folder of IDX or CIFAR files, `torchvision:CIFAR10`."""
    root: str = ""
    """Folder of the datasets that torchvision reads; default: data."""
    split: Literal["random", "reference"] = "random"
    """`random` draws from all readable images; `reference` is the split of the reference script."""
    val_rate: Annotated[float, Range(gt=0, lt=1)] = 0.2
    """Fraction of each class held out for validation."""
    seed: Annotated[int, Range(ge=0)] = 0
    """Seed of the split."""
    max_pixels: Annotated[int, Range(gt=0)] = 100_000_000
    """Images with more pixels are refused before they are decoded."""
    allow_bad: bool = False
    """Continue when more than a tenth of the files are unreadable."""
    group_duplicates: bool = False
    """Also keep near-duplicates on one side of a random split; identical files always are."""
    fixes: str = ""
    """CSV of images to leave out or relabel, as `vitft check` writes it."""
    fixes_digest: str = ""
    """SHA-256 of that file, recorded by the run, which refuses a changed file on resume."""

    def __post_init__(self) -> None:
        check_values(self, "data")
        require(
            not (self.group_duplicates and self.split == "reference"),
            "data.group_duplicates=true needs data.split=random: the reference split is fixed",
            fix="leave out one of them",
        )
