"""Every image looked at once, and what the user is told about them before anything trains."""

import logging
import math
import shutil
from dataclasses import replace

from vitft.config.run import Config
from vitft.data.duplicates import group_names, near_pairs
from vitft.data.folder import Checked, File, Folder, check_images
from vitft.data.split import Manifest, leaks
from vitft.data.transforms import EvalTransform
from vitft.features.extract import Extractor, plain
from vitft.features.fingerprints import cores, sketched, table_of
from vitft.system import console
from vitft.system.errors import ResourceError

log = logging.getLogger(__name__)


def look_at(
    folder: Folder, extractor: Extractor | None, transform: EvalTransform, config: Config
) -> Checked:
    """Open every image once, compute its features where there is a frozen part, say what is odd."""
    allow_bad = config.data.allow_bad
    label = "checking images" if extractor is None else "images to features"
    with console.Progress(label, len(folder.files)) as progress:
        if extractor is None:
            checked = check_images(
                folder,
                max_pixels=config.data.max_pixels,
                allow_bad=allow_bad,
                progress=lambda done, _: progress.advance(done - progress.done),
            )
        else:
            checked = extractor.examine(
                folder, plain(transform), allow_bad=allow_bad, progress=progress.advance
            )
    if extractor is not None:
        found = len(checked.good) - extractor.computed
        if found:
            log.info(f"{found} of {len(checked.good)} images were in the cache")
    say_oddities(checked)
    return checked


def check_room(extractor: Extractor, transform: EvalTransform, images: int) -> None:
    """Say how much disk the tokens of the images take, and refuse what does not fit.

    One feature per image is small; the tokens in front of a block are as much as a photo each.
    What lies in the cache of these weights already is not counted again.

    Raises:
        ResourceError: The disk has less room.
    """
    shape = extractor.prefix.shape
    if len(shape) == 1:
        return
    store = extractor.store(plain(transform))
    each, here = math.prod(shape) * store.dtype.itemsize, min(images, len(store.places))
    sizes = " x ".join([f"{images:,} images", f"{shape[0]:,} tokens", f"{shape[1]:,} numbers"])
    words = f"{sizes} x {store.dtype.itemsize} bytes = {in_words(images * each)}"
    found = f", {here:,} of them there already" if here else ""
    place = console.visible(str(extractor.folder))
    log.info(f"the frozen blocks' tokens are kept: {words}, in {place}{found}")
    free = shutil.disk_usage(extractor.folder).free
    if (images - here) * each > free:
        raise ResourceError(
            f"the frozen blocks' tokens take {words}, and {extractor.folder} has "
            f"{in_words(free)} free",
            fix="name a place with more room by --cache DIR, or keep less: --freeze head keeps "
            "one feature per image, --freeze none nothing",
        )


def in_words(size: int) -> str:
    """Bytes as people say them, such as `1.5 GB`."""
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.0f} MB"


def find_copies(checked: Checked, config: Config) -> dict[str, str]:
    """Names of groups of near copies by digest, if copies are to stay on one side; else nothing."""
    if not config.data.group_duplicates:
        return {}
    files = tuple(File(file.path, file.label, file.part) for file in checked.good)
    with console.Progress("looking for copies", len(files)) as progress:
        seen = sketched(
            replace(checked.folder, files=files, bad=()),
            cache=config.train.cache,
            max_pixels=config.data.max_pixels,
            workers=cores(),
            progress=progress.advance,
        )
    digests = list(seen.sketches)
    groups = group_names(digests, near_pairs(table_of(seen.sketches, digests)))
    log.info(f"{len(groups)} pictures are near copies of others and stay on the side of those")
    return groups


def say_split(manifest: Manifest) -> None:
    """Chart the images per class and warn of identical files where there should be none."""
    counts = {name: [0, 0] for name in manifest.classes}
    for row in manifest.rows:
        counts[manifest.classes[row.label]][row.split == "val"] += 1
    title = f"{len(manifest.rows)} images of {len(manifest.classes)} classes"
    console.chart(title, counts, ("training", "validation"))
    found = leaks(manifest)
    kinds = {"in training and in validation": found.across, "under two labels": found.labels}
    for kind, groups in kinds.items():
        if groups:
            example = " and ".join(console.visible(path) for path in groups[0][:2])
            log.warning(f"identical files {kind}: {len(groups)} groups, e.g. {example}")


def say_oddities(checked: Checked) -> None:
    """Name the files that are left out and count what was converted."""
    for text in checked.folder.notes:
        log.info(text)
    for path, reason in checked.bad[:10]:
        log.warning(f"left out: {path}: {reason}")
    if len(checked.bad) > 10:
        log.warning(f"left out: {len(checked.bad) - 10} more unreadable files")
    for kind, count in sorted(checked.odd.items()):
        log.info(f"{kind}: {count} images")
