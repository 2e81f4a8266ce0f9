"""The sections of a page that show images: mistakes, confusions and findings of the audit.

The thumbnails were saved at the end of the run. They are embedded until the page reaches its size
limit.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from vitft.metrics.results import CopyGroup, FileRemark
from vitft.predict.validation import ValidationPrediction, least_confident, mistakes
from vitft.report.palette import NUM_SHADES
from vitft.report.run_files import Run
from vitft.system.text import percent, whole_percent

MAX_MATRIX_CLASSES = 20
"""With more classes, the most confused pairs are shown instead of the confusion matrix."""
MAX_PAIRS = 30
MAX_WITH_ATTENTION = 24
"""Mistakes shown with their attention map."""
MAX_MISTAKES = 300
MAX_FINDINGS = 40
"""Findings of each kind."""
MAX_COPIES = 6
"""Members shown of a group of copies."""
THUMBNAIL_BUDGET = 2_000_000
"""Characters of embedded thumbnails; a page stays below 3 MB."""
LABEL_STAGES = frozenset({"head", "pre_logits"})
"""Values of `train.freeze` with which a run checks its labels."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictionCard:
    """A validation image with its prediction."""

    path: str
    label: str
    predicted: str
    confidence: str
    cell: str
    """Cell of the confusion matrix: row-column."""
    is_correct: bool
    thumb: str
    """A data URI, or empty."""
    attention: str
    """A data URI, or empty."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FindingCard:
    """An image that the audit mentions."""

    path: str
    label: str
    thumb: str
    split: str = ""
    suggested: str = ""
    given: str = ""
    """Probability of the label."""
    other: str = ""
    """Probability of the suggested class."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MistakesSection:
    """The section "Worst mistakes"."""

    total: int
    worst: list[PredictionCard]
    others: list[PredictionCard]
    more: int
    """Mistakes that are not shown."""
    attention: bool
    """Whether there are attention maps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MatrixCell:
    """A cell of the confusion matrix."""

    count: int
    cell: str
    shade: str
    """CSS class; empty for a count of 0."""
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfusedPair:
    """A class, the class that was predicted instead, and how often."""

    label: str
    predicted: str
    count: int
    fraction: str
    cell: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfusionSection:
    """The section "Confusion of classes"."""

    classes: list[str]
    matrix: list[tuple[str, list[MatrixCell]]]
    """Rows of the matrix; empty with many classes."""
    pairs: list[ConfusedPair]
    more: int
    """Pairs that are not shown."""
    least_confident: list[PredictionCard]
    """Correct predictions with the lowest confidence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyGroupView:
    """A group of identical or nearly identical images."""

    kind: str
    problems: list[str]
    members: list[FindingCard]
    more: int
    """Members that are not shown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditSection:
    """The section "Possible problems of the data"."""

    mislabels: list[FindingCard]
    mislabel_count: int
    duplicates: list[CopyGroupView]
    duplicate_count: int
    files: list[tuple[str, int, list[FileRemark]]]
    """Title, number of files, and the first files of each kind that has any."""
    labels_checked: bool
    clean: bool
    """Whether nothing was found."""


class Thumbnails:
    """Provides thumbnails until the page has reached its size limit."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.budget = THUMBNAIL_BUDGET
        self.class_index = {name: i for i, name in enumerate(run.classes)}

    def get(self, sha256: str, *, attention: bool = False) -> str:
        """Return a thumbnail as a data URI; empty if there is none or the limit is reached."""
        uri = self.run.thumbnail(sha256, attention=attention) if self.budget > 0 else ""
        self.budget -= len(uri)
        return uri

    def of_path(self, path: str) -> str:
        """Return the thumbnail of an image of the split."""
        row = self.run.by_path.get(path)
        return self.get(row.sha256 if row else "")

    def card(self, prediction: ValidationPrediction, *, attention: bool = False) -> PredictionCard:
        """Return a card for a validation image."""
        row, column = self.class_index[prediction.label], self.class_index[prediction.predicted]
        return PredictionCard(
            path=prediction.path,
            label=prediction.label,
            predicted=prediction.predicted,
            confidence=whole_percent(prediction.probability),
            cell=f"{row}-{column}",
            is_correct=prediction.is_correct,
            thumb=self.get(prediction.sha256),
            attention=self.get(prediction.sha256, attention=True) if attention else "",
        )


def mistakes_section(run: Run, thumbnails: Thumbnails) -> MistakesSection | None:
    """Return the mistakes by falling confidence, the first ones with attention maps."""
    if not run.predictions:
        return None
    wrong = mistakes(run.predictions)
    worst = [thumbnails.card(one, attention=True) for one in wrong[:MAX_WITH_ATTENTION]]
    return MistakesSection(
        total=len(wrong),
        worst=worst,
        others=[thumbnails.card(one) for one in wrong[MAX_WITH_ATTENTION:MAX_MISTAKES]],
        more=max(0, len(wrong) - MAX_MISTAKES),
        attention=any(card.attention for card in worst),
    )


def confusion_section(run: Run, thumbnails: Thumbnails) -> ConfusionSection | None:
    """Return the confusion matrix for few classes, or the most confused pairs for many."""
    counts = confusion_counts(run)
    if not counts:
        return None
    totals = Counter[int]()
    for (i, _), n in counts.items():
        totals[i] += n
    pairs = sorted(((n, i, j) for (i, j), n in counts.items() if i != j), key=lambda p: (-p[0], *p))
    has_matrix = len(run.classes) <= MAX_MATRIX_CLASSES
    least = least_confident(run.predictions, per_class=3, most=60) if has_matrix else []
    return ConfusionSection(
        classes=list(run.classes) if has_matrix else [],
        matrix=matrix_rows(run.classes, counts, totals) if has_matrix else [],
        pairs=[
            ConfusedPair(
                label=run.classes[i],
                predicted=run.classes[j],
                count=n,
                fraction=percent(n / totals[i], 0),
                cell=f"{i}-{j}",
            )
            for n, i, j in pairs[:MAX_PAIRS]
        ],
        more=max(0, len(pairs) - MAX_PAIRS),
        least_confident=[thumbnails.card(one) for one in least],
    )


def confusion_counts(run: Run) -> Mapping[tuple[int, int], int]:
    """Return the number of images by true and predicted class, without zeros."""
    index = {name: i for i, name in enumerate(run.classes)}
    if run.predictions:
        return Counter((index[one.label], index[one.predicted]) for one in run.predictions)
    table = (run.results.get("confusion") if run.results else None) or []
    if len(table) != len(run.classes):
        return {}
    return {(i, j): n for i, row in enumerate(table) for j, n in enumerate(row) if n}


def matrix_rows(
    classes: Sequence[str], counts: Mapping[tuple[int, int], int], totals: Mapping[int, int]
) -> list[tuple[str, list[MatrixCell]]]:
    """Return the rows of the confusion matrix, with cells shaded by their fraction of the row."""
    rows = []
    for i, label in enumerate(classes):
        cells = []
        for j, predicted in enumerate(classes):
            n, total = counts.get((i, j), 0), totals.get(i, 0)
            shade = min(NUM_SHADES - 1, int(n / total * NUM_SHADES)) if total else 0
            result = "classified correctly" if i == j else f"classified as {predicted}"
            cells.append(
                MatrixCell(
                    count=n,
                    cell=f"{i}-{j}",
                    shade=f"{'right' if i == j else 'wrong'}-{shade}" if n else "",
                    text=f"{n} of {total} images of {label} {result}",
                )
            )
        rows.append((label, cells))
    return rows


def audit_section(run: Run, thumbnails: Thumbnails) -> AuditSection | None:
    """Return the findings of the audit: doubtful labels, copies, and unusual or broken files."""
    audit = run.audit
    if not audit:
        return None
    mislabels, duplicates = audit.get("mislabels", []), audit.get("duplicates", [])
    files = (
        ("Unreadable files, not used", audit.get("bad", [])),
        ("Unusual files", audit.get("odd", [])),
    )
    freeze = str(run.setting("train", "freeze") or "")
    return AuditSection(
        mislabels=[
            FindingCard(
                path=item["path"],
                label=item["label"],
                suggested=item["suggested"],
                given=whole_percent(item.get("given_probability")),
                other=whole_percent(item.get("suggested_probability")),
                thumb=thumbnails.of_path(item["path"]),
            )
            for item in mislabels[:MAX_FINDINGS]
        ],
        mislabel_count=len(mislabels),
        duplicates=[copy_group(group, thumbnails) for group in duplicates[:MAX_FINDINGS]],
        duplicate_count=len(duplicates),
        files=[(title, len(every), every[:MAX_FINDINGS]) for title, every in files if every],
        labels_checked=set(freeze.split(",")) <= LABEL_STAGES,
        clean=not (mislabels or duplicates or audit.get("bad") or audit.get("odd")),
    )


def copy_group(group: CopyGroup, thumbnails: Thumbnails) -> CopyGroupView:
    """Return a group of copies with its first members."""
    problems = []
    if group.get("across_split"):
        problems.append("in training and validation")
    if group.get("labels_differ"):
        problems.append("with different labels")
    parts = {"train": "training", "val": "validation"}
    return CopyGroupView(
        kind="identical files" if group.get("kind") == "exact" else "nearly identical images",
        problems=problems,
        members=[
            FindingCard(
                path=member["path"],
                label=member["label"],
                split=parts.get(member.get("split", ""), ""),
                thumb=thumbnails.of_path(member["path"]),
            )
            for member in group["members"][:MAX_COPIES]
        ],
        more=max(0, len(group["members"]) - MAX_COPIES),
    )
