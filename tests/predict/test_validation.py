"""Validation predictions of a run."""

from vitft.predict.validation import ValidationPrediction, least_confident, mistakes


def prediction(path: str, label: str, probability: float, predicted: str) -> ValidationPrediction:
    return ValidationPrediction(
        path=path,
        sha256="0" * 64,
        label=label,
        predicted=predicted,
        probability=probability,
        label_probability=probability if label == predicted else 0.1,
    )


def test_the_most_confident_mistakes_come_first() -> None:
    rows = [
        prediction("a", "cat", 0.6, "dog"),
        prediction("c", "cat", 0.9, "dog"),
        prediction("b", "dog", 0.9, "cat"),
        prediction("d", "cat", 0.99, "cat"),
    ]

    assert [found.path for found in mistakes(rows)] == ["b", "c", "a"]


def test_the_least_confident_correct_predictions_are_a_few_of_each_class() -> None:
    rows = [
        *(prediction(f"cat {i}", "cat", 0.5 + i / 100, "cat") for i in range(5)),
        *(prediction(f"dog {i}", "dog", 0.515 + i / 100, "dog") for i in range(5)),
        prediction("wrong", "dog", 0.4, "cat"),
    ]

    found = least_confident(rows, per_class=2, most=9)

    assert [p.path for p in found] == ["cat 0", "cat 1", "dog 0", "dog 1"]
    assert least_confident(rows, per_class=2, most=3) == found[:3]
