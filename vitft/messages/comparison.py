"""Sentences about compared runs, which are named by letters, A first."""

from collections.abc import Iterator, Mapping, Sequence
from string import ascii_uppercase

from vitft.messages.results import EXACT_LABELS, INTERVAL, chance_clause, estimate_text
from vitft.metrics.intervals import Interval
from vitft.metrics.results import Results
from vitft.system.text import count, listing, p_equation, percent, points

OWN_LABELS = (
    "Runs with different fixes are each scored with their own labels, so their accuracies in the "
    "table cannot be compared."
)
# titles and labels of charts
ON_SHARED = "accuracy on the shared images"
EACH_RUN = "Accuracy of each run with its 95% interval"
BY_EPOCH = "Validation accuracy by epoch"
BY_IMAGES = "Cross-validated accuracy by training images"
BY_PENALTY = "Cross-validated accuracy by L2 penalty"
ON_TEST = "accuracy on test images"


def figure_of_runs(images: int) -> str:
    """Return the line below the title of a figure of compared runs."""
    return f"accuracy on {count(images, 'shared validation image')}, with 95% intervals"


def accuracy_on_corrected_labels(run: str, fixed: str, command: str) -> str:
    """Return the command for the accuracy of a run on the labels that another run has fixed."""
    return (
        f"For the accuracy of {run} on the corrected labels of the validation images of {fixed}: "
        f"{command}"
    )


def more_accurate(letters: Sequence[str], difference: float, p: float, images: int) -> str:
    """Return whether the second of two runs is more accurate, by `difference`, or the first."""
    worse, better = letters if difference >= 0 else reversed(letters)
    by = f"by {points(abs(difference)).lstrip('+')} ({p_equation(p)})"
    if p < 0.05:
        return f"{better} is more accurate than {worse} on these images, {by}"
    if difference == 0:
        same = f"{worse} and {better} classify the same number correctly"
        return f"No difference on these {count(images, 'image')}: {same}"
    return f"No significant difference on these images: {better} is ahead of {worse} {by}"


def too_few(units: str, letters: Sequence[str]) -> str:
    """Return a clause that so few images or groups cannot decide between two runs."""
    verb = "is" if units.startswith("1 ") else "are"
    either = " or ".join(letters)
    return f"{units} {verb} too few to tell whether {either} is more accurate"


def accuracy_columns(*, same_images: bool, cross_validated: bool) -> tuple[str, ...]:
    """Return the headings of a table of accuracies."""
    shared = () if same_images else ("accuracy on shared images",)
    more = ("cross-validated", INTERVAL) * cross_validated
    return ("run", "accuracy", INTERVAL, *shared, *more)


def pair_columns(letters: Sequence[str]) -> tuple[str, ...]:
    """Return the headings of a table of differences between the runs, two of them or more."""
    first, second = reversed(letters) if len(letters) == 2 else ("first", "second")
    counts = f"only {first} correct", f"only {second} correct"
    return ("pair", "difference", INTERVAL, *counts, "p")


def effect(
    cause: str,
    verdict: str,
    letters: Sequence[str],
    measured: tuple[float, Interval, float],
    *,
    images: str,
    others: Sequence[str] = (),
) -> str:
    """Return whether e.g. `the 20 training images that B adds to those of A` have helped.

    `measured` is the accuracy of the second run minus that of the first, its interval and p-value.
    The verdict is `mixed` if the runs differ in `others`, too.
    """
    difference, (low, high), p = measured
    bounds = f"{points(low).split()[0]} to {points(high)}, {p_equation(p)}"
    found = f"{letters[1]} - {letters[0]} = {points(difference)} on {images} (95% CI {bounds})"
    claim = {
        "mixed": f"The effect of {cause} cannot be separated from that of {listing(others)}",
        "no clear effect": f"No clear effect of {cause}",
    }.get(verdict, f"{cause[0].upper()}{cause[1:]} {verdict}")
    return f"{claim}: {found}"


def fixes_of(fixed: str, other: str, relabelled: int, left_out: int) -> str:
    """Return e.g. `the fixes of B (2 distinct images with other labels, 1 left out)`.

    `other` is the letter of the other run if it applied fixes, too, or else an empty string.
    """
    numbers = [(relabelled, "with other labels"), (left_out, "left out")]
    (first, what), *more = [(number, text) for number, text in numbers if number]
    changes = [f"{count(first, 'distinct image')} {what}", *(f"{n:,} {text}" for n, text in more)]
    instead = f" instead of the fixes of {other}" if other else ""
    return f"the fixes of {fixed}{instead} ({', '.join(changes)})"


def smallest_difference(needed: int, images: int) -> str:
    """Return which differences so few images cannot show; `needed` of them would have to differ."""
    smallest = points(needed / images).lstrip("+")
    return (
        f"With {count(images, 'shared image')}, a difference of less than {smallest} cannot be "
        "significant."
    )


def excluded_images(different: int) -> str:
    """Return how many images with different labels are excluded."""
    verb = "has" if different == 1 else "have"
    images = count(different, "validation image")
    return f"Excluded: {images} that {verb} different labels in the runs."


def split_difference(sizes: Sequence[int], shared: int, *, relabelled: bool) -> str:
    """Return a note that only the shared validation images are compared."""
    same = ", with the same label," * relabelled
    return (
        f"The splits differ: the runs have {listing((f'{n:,}' for n in sizes), most=len(sizes))} "
        f"distinct validation images, and only the {count(shared, 'image')} that all of them "
        f"share{same} {'is' if shared == 1 else 'are'} compared."
    )


def data_difference(letter: str, changed: int, left_out: int, added: int) -> str:
    """Return the number of distinct images in which a run's data differ from A's, or ""."""
    numbers = ((changed, "relabelled"), (left_out, "left out"), (added, "added"))
    texts = [f"{number:,} {what}" for number, what in numbers if number]
    return f"Distinct images of {letter} compared with A: {listing(texts)}." if texts else ""


def cross_validated_difference(images: int, accuracies: Sequence[float], p: float) -> str:
    """Return the accuracies of the heads of two runs in cross-validation on the same images."""
    first, second = map(percent, accuracies)
    return (
        f"In cross-validation on {count(images, 'image')} of both runs, A classifies {first} "
        f"correctly and B {second} ({p_equation(p)})."
    )


def result_notes(
    runs: Sequence[Results], *, head_only: Sequence[bool], compared: bool, fitted: bool
) -> list[str]:
    """Return sentences about the numbers of each run that a comparison must not hide.

    `head_only` states for each run whether only its head was cross-validated before further
    training, and `fitted` whether the thresholds of labels were fitted to the compared images.
    """
    labelled = list(zip(ascii_uppercase, runs, strict=False))
    notes = list[str]()
    if letters := [letter for (letter, _), only in zip(labelled, head_only, strict=True) if only]:
        notes.append(
            f"No cross-validated accuracy for {listing(letters)}: only the head was "
            "cross-validated, before further layers were trained."
        )
    for letter, run in labelled:
        if test := run.estimate("test"):
            text = estimate_text(test).removesuffix(", evaluated once")
            notes.append(f"The test images of {letter} are not compared: {text}.")
    if any(run.exact for run in runs):
        notes.append(EXACT_LABELS)
        exact = [(letter, run.exact) for letter, run in labelled if run.exact]
        each = listing(f"{letter} has {percent(one.value)}" for letter, one in exact)
        if fitted:
            notes.append(
                "The thresholds of the labels were fitted to these images, so the accuracies are "
                f"slightly optimistic. Without each image in the fit, {each}."
            )
    if compared and (letters := [a for a, run in labelled if run.selected_on_validation]):
        notes.append(
            f"The best epoch of {listing(letters)} was selected on these images, which is a slight "
            "advantage."
        )
    return notes + [
        f"{letter} is at chance level: it {clause}."
        for letter, run in labelled
        if (clause := chance_clause(run))
    ]


# sentences about the accuracies of a study --------------------------------------------------------

HEAD_NOTE = (
    "every head uses the last block only. The head of vitft finetune may use several blocks and be "
    "more accurate, especially on images unlike photos"
)
"""What a user must know before comparing the accuracies with those of runs."""


def study_heading(seeds: int, images: str, majority: float, *, has_tests: bool) -> str:
    """Return a description of the accuracies, the test images and the baseline `majority`."""
    origin = "the folder's validation or test set" if has_tests else "all other images"
    return (
        f"accuracy in % by number of training images per class, {_mean_of(seeds)}, with 95% "
        f"intervals. {images} ({origin}), baseline (largest class): {percent(majority)}"
    )


def figure_heading(seeds: int, test_images: int) -> str:
    """Return the line below the title of the figure."""
    images = count(test_images, "test image")
    return f"{_mean_of(seeds)}, bands: 95% intervals, {images}"


def _mean_of(seeds: int) -> str:
    return "1 seed" if seeds == 1 else f"mean of {seeds} seeds"


def known_images_note(name: str, trained: int, images: int) -> str:
    """Return the note on a source whose backbone was trained on some of the images."""
    return (
        f"{name} was trained on {trained:,} of these {count(images, 'image')}, so its accuracies "
        "here say nothing about new images"
    )


def lead_sentences(
    first: str, leads: Mapping[str, Sequence[tuple[float, Interval]]], shots: Sequence[int]
) -> Iterator[str]:
    """Yield lines that compare the first source with every other one."""
    per_class = count(shots[-1], "image per class", "images per class")
    for name, differences in leads.items():
        mean, (low, high) = differences[-1]
        yield (
            f"{first} compared with {name} at {per_class}: {100 * mean:+.1f} points "
            f"(95% CI {100 * low:+.1f} to {100 * high:+.1f})"
        )
        pairs = list(zip(shots, differences, strict=True))
        behind = [str(s) for s, (_, (_, top)) in pairs if top < 0]
        unclear = [str(s) for s, (_, (bottom, top)) in pairs if bottom <= 0 <= top]
        if behind:
            yield f"  images per class at which {name} is significantly better: {', '.join(behind)}"
        if unclear:
            yield f"  images per class without a significant difference: {', '.join(unclear)}"
