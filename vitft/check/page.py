"""HTML page of `vitft check`: the findings with pictures, and controls for choosing fixes."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from vitft.check.folder import CheckResult
from vitft.data.images import jpeg_uri, open_image, thumbnail_jpeg
from vitft.report.decisions import (
    DOWNLOADED,
    MAX_FINDINGS,
    MAX_MEMBERS,
    OTHER_PATH,
    make_decisions,
    shown_groups,
)
from vitft.report.html import render
from vitft.report.run_files import folder_uri
from vitft.system.cores import usable_cores
from vitft.system.errors import ImageError
from vitft.system.files import write_atomically, writing
from vitft.system.text import count, listing

_MAX_THUMBNAILS = 200  # maximum number of images on the page, to limit its size to about 3 MB


def write_check_page(
    result: CheckResult, out: Path, *, name: str, command: str, max_pixels: int, note: str = ""
) -> Path | None:
    """Write a page of the findings about a dataset; return its path, or None if there are none.

    `command` is the training command, to which the path of the saved table is appended. `note` is a
    remark on the findings, as a sentence without a full stop.
    """
    folder, audit = result.folder, result.audit
    shown = [item["path"] for item in audit["mislabels"][:MAX_FINDINGS]]
    for group in shown_groups(audit["duplicates"]):
        shown += [member["path"] for member in group["members"][:MAX_MEMBERS]]
    shown += [item["path"] for item in audit["odd"][:MAX_FINDINGS]]
    paths = list(dict.fromkeys(shown))[:_MAX_THUMBNAILS]

    def thumbnail(path: str) -> str:
        source = f"{folder.root}/{path}"
        try:
            image = open_image(source, max_pixels=max_pixels, grey_range=result.grey_range)
        except ImageError:  # it can no longer be read
            return ""
        return jpeg_uri(thumbnail_jpeg(image))

    with ThreadPoolExecutor(usable_cores()) as pool:
        thumbnails = dict(zip(paths, pool.map(thumbnail, paths), strict=True))
    empty = listing(folder.empty)
    refused = f"Remove the empty class folders ({empty}), or add --classes. " if empty else ""
    decisions = make_decisions(
        audit,
        result.proposed,
        former=result.former,
        classes=folder.classes,
        labels={file.path: folder.classes[file.label] for file in folder.rows},
        thumbnail=lambda path: thumbnails.get(path, ""),
        several=bool(folder.labels),
        steps=[(f"{refused}Train with the table. {OTHER_PATH}", f"{command} --fixes {DOWNLOADED}")],
    )
    if decisions is None:
        return None
    view = {
        "title": f"{name}: images and labels checked",
        "name": name,
        "root": folder_uri(Path(folder.root).absolute()),
        "audit": audit,
        "counts": result.counts,
        "has_counts": result.counts != count(audit["images"], "readable image"),
        "decisions": decisions,
        "labels_checked": result.labels_checked,
        "num_classes": len(folder.labels or {file.label for file in folder.rows}),
        "several": bool(folder.labels),
        "note": note,
    }
    with writing(out):
        out.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(out, render("check.html.j2", view))
    return out
