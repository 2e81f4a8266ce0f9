"""`vitft check`: one look at a folder, and everything that may be wrong with it.

Without weights no feature is computed and torch is never imported: files, copies, leaks and
balance need only the pictures. With weights every label is judged as well.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from vitft.check.audit import Item, Shares, audit_of, proposals
from vitft.config.run import Config, config_from_table, read_toml
from vitft.data.duplicates import group_names, near_pairs
from vitft.data.fingerprint import faults_of
from vitft.data.fixes import Fix
from vitft.data.folder import CheckedFile, File, Folder, scan
from vitft.data.split import Manifest
from vitft.features.fingerprints import Sketched, cores, sketched, table_of
from vitft.metrics.results import AuditResults, Mislabel
from vitft.system import console
from vitft.system.errors import DataError, RunError
from vitft.system.rundir import RunDir


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a check came to."""

    audit: AuditResults
    fixes: Sequence[Fix]
    judged: bool
    """Whether labels were judged, which needs weights."""


def check_folder(root: Path, config: Config, *, split: Mapping[str, str] | None = None) -> Outcome:
    """Look at everything in a folder.

    Args:
        root: The data folder.
        config: Its weights (none: labels are not judged), cache, device and limits are used.
        split: The part of each path in a run; default: as the folder itself has it.

    Raises:
        DataError: The folder does not hold classes of images, or not those of the run.
        WeightsError: The weights cannot be found or read.
    """
    folder = scan(root)
    if split is not None and not any(file.path in split for file in folder.files):
        raise DataError(
            f"no image of {root} is in the split of the run",
            fix="give the folder that the run was trained on",
        )
    with console.Progress("checking images", len(folder.files)) as progress:
        seen = sketched(
            folder,
            cache=config.train.cache,
            max_pixels=config.data.max_pixels,
            workers=cores(),
            progress=progress.advance,
        )
    good = seen.checked.good
    digests = list(dict.fromkeys(file.sha256 for file in good))
    groups = group_names(digests, near_pairs(table_of(seen.sketches, digests)))
    items = [
        Item(
            path=file.path,
            label=folder.classes[file.label],
            split=file.part if split is None else split.get(file.path, ""),
            sha256=file.sha256,
        )
        for file in good
    ]
    shares: Mapping[str, Shares] = {}
    judged: list[Mislabel] = []
    if config.weights.name and good:
        shares, judged = judge(folder, good, groups, config)
    audit = audit_of(
        items, bad=seen.checked.bad, odd=oddities(seen), groups=groups, mislabels=judged
    )
    return Outcome(
        audit=audit, fixes=proposals(audit, shares), judged=bool(config.weights.name and good)
    )


def oddities(seen: Sketched) -> list[tuple[str, str]]:
    """Paths and remarks: how a file was read, and what it shows."""
    return [
        (file.path, remark)
        for file in seen.checked.good
        for remark in (
            *file.odd, *faults_of(seen.sketches[file.sha256], file.width, file.height),
        )
    ]  # fmt: skip


def judge(
    folder: Folder, good: Sequence[CheckedFile], groups: Mapping[str, str], config: Config
) -> tuple[dict[str, Shares], list[Mislabel]]:
    """How likely each class is for each path, and the labels that are probably wrong.

    A picture under two labels teaches nothing, and is no mislabel either: it is told as a copy.
    """
    import torch

    from vitft.features.cut import cut_model
    from vitft.features.extract import make_extractor, plain
    from vitft.features.label_errors import out_of_fold, posteriors, suspects_in
    from vitft.models.freeze import freeze_model
    from vitft.models.initial import load_weights
    from vitft.system.device import pick_device, pick_precision

    pictures = {file.sha256: file for file in reversed(good)}  # each once: the first of its files
    once = [file for file in good if pictures[file.sha256] is file]
    model, report = load_weights(config, folder)
    freeze_model(model, "head")
    device = pick_device(config.train.device)
    cut = cut_model(model.to(device), "head")
    precision = pick_precision(config.train.precision, device)
    extractor = make_extractor(cut, config, report.transform, precision)
    assert extractor is not None
    view = plain(report.transform)
    files = tuple(File(file.path, file.label) for file in once)
    with console.Progress("images to features", len(files)) as progress:
        extractor.examine(
            replace(folder, files=files, bad=()), view, allow_bad=True, progress=progress.advance
        )
    x = extractor.rows([file.sha256 for file in once], view)
    y = torch.tensor([file.label for file in once])
    labels: dict[str, set[int]] = {}
    for file in good:
        labels.setdefault(file.sha256, set()).add(file.label)
    counted = torch.tensor([float(len(labels[file.sha256]) == 1) for file in once])
    numbers: dict[str, int] = {}
    alike = torch.tensor(
        [numbers.setdefault(groups.get(f.sha256, f.sha256), len(numbers)) for f in once]
    )
    logits = out_of_fold(
        x, y, alike, classes=len(folder.classes), seed=config.train.seed, counted=counted
    )
    likely = posteriors(logits, x, y, alike)
    rows = {file.sha256: row for row, file in enumerate(once)}
    table = likely.tolist()
    shares: dict[str, Shares] = {
        file.path: dict(zip(folder.classes, table[rows[file.sha256]], strict=True)) for file in good
    }
    paths: dict[str, list[str]] = {}
    for file in good:
        paths.setdefault(file.sha256, []).append(file.path)
    return shares, [
        {
            "path": path,
            "label": folder.classes[once[suspect.row].label],
            "suggested": folder.classes[suspect.suggested],
            "given_probability": suspect.given_probability,
            "suggested_probability": suspect.suggested_probability,
        }
        for suspect in suspects_in(likely, y)
        if counted[suspect.row]
        for path in paths[once[suspect.row].sha256]
    ]


def config_of(run: str) -> tuple[Config, dict[str, str]]:
    """The settings of a run and the part of each of its images.

    Raises:
        RunError: The folder is no run.
    """
    path = Path(run).expanduser()
    if not (path / "config.toml").is_file() or not RunDir(path).split.is_file():
        raise RunError(
            f"{path} is no run folder: it holds no config.toml and split.csv",
            fix="give the folder that `vitft finetune` wrote, e.g. --run runs/latest",
        )
    manifest = Manifest.read(RunDir(path).split, path)
    return config_from_table(read_toml(path / "config.toml")), {
        r.path: r.split for r in manifest.rows
    }
