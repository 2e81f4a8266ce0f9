"""Number of images per predicted class and per note, as lines for the end of a prediction job."""

from collections import Counter
from collections.abc import Iterator

from vitft.predict.prediction import NOT_SURE, OUT_OF_DISTRIBUTION, Prediction
from vitft.system.console import visible

_MARKS = (NOT_SURE, OUT_OF_DISTRIBUTION, "blank")
"""Notes that are counted, as far as the first colon."""
_UNREADABLE = "unreadable"
_MOST_COUNTED = 6
"""Maximum number of classes with their counts, if there are at least two more."""


class Tally:
    """Counter of classes and notes; an image may have several notes or, if multi-label, labels."""

    def __init__(self) -> None:
        self.answers: Counter[str] = Counter()
        self.marks: Counter[str] = Counter()

    def add(self, prediction: Prediction) -> None:
        """Count a prediction."""
        if prediction.error:
            self.marks[_UNREADABLE] += 1
            return
        answers = prediction.classes[:1] if prediction.labels is None else prediction.labels
        self.answers.update(answers or ["no label"])
        self.marks.update(note.partition(":")[0] for note in prediction.notes)

    def lines(self, beginning: str = "", *, has_threshold: bool = False) -> Iterator[str]:
        """Yield a line with the most frequent classes, and one with the notes, if there are any.

        Args:
            beginning: Text after the first word that says which rows are counted.
            has_threshold: Whether predictions may be marked `not sure`; if so, it is stated even
                if none is.
        """
        if self.answers:
            frequent = sorted(self.answers.items(), key=lambda item: (-item[1], item[0]))
            shown = frequent if len(frequent) <= _MOST_COUNTED + 1 else frequent[:_MOST_COUNTED]
            classes = ", ".join(f"{visible(name)}: {number:,}" for name, number in shown)
            if more := len(frequent) - len(shown):
                classes += f" and {more:,} more"
            if foreign := self.marks[OUT_OF_DISTRIBUTION]:
                classes += f", including {foreign:,} {OUT_OF_DISTRIBUTION}"
            yield f"predicted{beginning}: {classes}"
        always = {NOT_SURE} if has_threshold else set()
        found = [n for n in (*_MARKS, _UNREADABLE) if self.marks[n] or n in always]
        if marked := ", ".join(f"{self.marks[name]:,} {name}" for name in found):
            yield f"marked{beginning}: {marked}"
