"""Log output about a data folder: unreadable files, remarks, images per class, copies."""

import logging
from collections.abc import Mapping, Sequence

from vitft.data.inspection import InspectedFolder
from vitft.data.split import Manifest, leaks
from vitft.system.console import visible

log = logging.getLogger(__name__)


def log_inspection(inspected: InspectedFolder) -> None:
    """Log the notes on a folder, its unreadable files and how many images have a remark."""
    for text in inspected.folder.notes:
        log.info(text)
    for path, reason in inspected.bad[:10]:
        log.warning(f"left out: {path}: {reason}")
    if len(inspected.bad) > 10:
        log.warning(f"left out: {len(inspected.bad) - 10} more unreadable files")
    for kind, count in sorted(inspected.odd.items()):
        log.info(f"{kind}: {count} image{'s' if count != 1 else ''}")


def log_split(manifest: Manifest) -> None:
    """Chart the images per class and warn of identical files that should not be there."""
    counts = {name: [0, 0] for name in manifest.classes}
    for row in manifest.rows:
        counts[manifest.classes[row.label]][row.split == "val"] += 1
    title = f"{len(manifest.rows)} images of {len(manifest.classes)} classes"
    log_bars(title, counts, ("training", "validation"))
    found = leaks(manifest)
    kinds = {"in training and in validation": found.across, "under two labels": found.labels}
    for kind, groups in kinds.items():
        if groups:
            example = " and ".join(groups[0][:2])
            number = f"{len(groups)} group{'s' if len(groups) != 1 else ''}"
            log.warning(f"identical files {kind}: {number}, e.g. {example}")


def log_bars(title: str, counts: Mapping[str, Sequence[int]], parts: Sequence[str]) -> None:
    """Log a bar chart of images per class, with one shade per part."""
    shades = ("█", "░", "▒")
    widest = max((len(visible(name)) for name in counts), default=0)
    largest = max((sum(numbers) for numbers in counts.values()), default=1)
    legend = ", ".join(f"{shade} {part}" for shade, part in zip(shades, parts, strict=False))
    log.info(f"{title} ({legend})")
    for name, numbers in counts.items():
        bar = "".join(
            shade * round(40 * number / max(1, largest))
            for shade, number in zip(shades, numbers, strict=False)
        )
        detail = " + ".join(map(str, numbers))
        log.info(f"  {visible(name):<{widest}}  {bar} {detail}")
