"""Log messages about a split: a chart of the images per class, and warnings about leaks."""

import logging

from rich.cells import cell_len

from vitft.data.image_table import Images
from vitft.data.split import leaks, trained_only_note
from vitft.system.console import visible
from vitft.system.text import count, labelled, listing, shortened

log = logging.getLogger(__name__)

MOST_CLASSES, FEWEST_CLASSES = 20, 5
"""Maximum number of classes for a chart of all classes, and number of classes shown otherwise."""
_UNEVEN = 3  # ratio of the largest to the smallest class from which their sizes are shown
_MAX_CLASS_NAME = 28  # maximum number of characters of a class name in the chart


def log_split(manifest: Images) -> None:
    """Log the number of images of each part, and warn about the groups found by `leaks`.

    With -v, chart the images per class (only the smallest classes if there are many).
    """
    counts = {name: [0, 0] for name in manifest.outputs}
    for row in (*manifest.train, *manifest.val):
        for name in manifest.names(row):
            counts[name][row.split == "val"] += 1
    parts = [f"{len(manifest.train):,} for training", f"{len(manifest.val):,} for validation"]
    if manifest.test:
        parts.append(f"{len(manifest.test):,} for the final test")
    sizes = sorted(map(sum, counts.values()))
    range_ = f", {sizes[0]:,} to {sizes[-1]:,} images a class"
    range_ *= sizes[-1] >= _UNEVEN * sizes[0]
    log.info(labelled("Split", f"{listing(parts)}{range_}"))
    shown = list(counts)
    if len(shown) > MOST_CLASSES:
        shown = sorted(sorted(shown, key=lambda name: sum(counts[name]))[:FEWEST_CLASSES])
        log.debug(f"the {len(shown)} of {len(counts):,} classes with the fewest images:")
    largest = max(sum(counts[name]) for name in shown)
    names = {name: shortened(visible(name), _MAX_CLASS_NAME) for name in shown}
    widest = max(map(cell_len, names.values()))
    for name in shown:
        train, val = counts[name]
        bar = "█" * round(30 * train / largest) + "░" * round(30 * val / largest)
        padded = names[name] + " " * (widest - cell_len(names[name]))
        log.debug(f"  {padded}  {bar} {train:,} + {val:,}")
    have = {(name, "val"): val for name, (_, val) in counts.items()}
    if note := trained_only_note(have, manifest.outputs):
        log.warning(note)
    across = "in both training and validation"
    if manifest.test:
        across = "in more than one of training, validation and test"
    kinds = zip((across, "with different labels (one counts)"), leaks(manifest), strict=True)
    for kind, groups in kinds:
        if groups:
            example = " and ".join(groups[0][:2])
            log.warning(f"identical files {kind}: {count(len(groups), 'group')}, e.g. {example}")
