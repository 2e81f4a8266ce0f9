"""Training views: which views of an image the trained part reads, and caching their features."""

from collections.abc import Sequence

from vitft.config.sections import OptimSpec, TrainSpec
from vitft.data.folder import File
from vitft.data.split import Manifest, Row
from vitft.data.transforms import CropTransform, EvalTransform, View, crop_views, eval_view
from vitft.features.cut import Cut
from vitft.features.extract import Extractor, vanished_error
from vitft.system import console
from vitft.system.errors import ImageError


def caches_views(cut: Cut, train: TrainSpec) -> bool:
    """Return whether training inputs are cached.

    Pooled features always are; tokens only if every epoch reads the same view.
    """
    return cut.pooled or (cut.prefix is not None and train.augment == "none")


def training_crop(transform: EvalTransform, train: TrainSpec) -> CropTransform:
    """Return the random resized crop of training."""
    return CropTransform(
        image_size=transform.image_size,
        scale=(train.crop_scale, 1.0),
        interpolation=transform.interpolation,
        rand=train.augment == "rand",
    )


def training_views(transform: EvalTransform, train: TrainSpec, optim: OptimSpec) -> list[View]:
    """Return the views that are cached of each training image.

    Without augmentation these are the plain view and `train.views` crops; otherwise one crop for
    each epoch.
    """
    crop = training_crop(transform, train)
    if train.augment != "none":
        return crop_views(transform, crop, optim.epochs, train.seed)
    return [eval_view(transform), *crop_views(transform, crop, train.views, train.seed)]


def compute_views(
    extractor: Extractor, manifest: Manifest, rows: Sequence[Row], views: Sequence[View], what: str
) -> None:
    """Fill the feature cache with some views of some images.

    Args:
        extractor: Runs the frozen prefix.
        manifest: Locates the images.
        rows: The images.
        views: Their views.
        what: Label of the progress bar.

    Raises:
        DataError: A file was deleted or replaced since the run began.
    """
    files = [File(row.path, row.label) for row in rows]
    with console.Progress(what, len(files) * len(views)) as progress:
        for view in views:
            try:
                extractor.compute(str(manifest.root), files, view, progress=progress.advance)
            except ImageError as error:
                raise vanished_error(error) from error
