"""Options of `vitft finetune` in suggested commands."""

import pytest

from vitft.cli.main import build_parser
from vitft.config.options import option_settings, setting_words


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("data.classes", "/a b/classes.csv", ["--classes", "/a b/classes.csv"]),
        ("weights.image_size", [120, 120], ["--image-size", "120"]),
        ("weights.image_size", [120, 96], ["--image-size", "120", "96"]),
        ("weights.mean", [0.5, 0.5, 0.5], ["--mean", "0.5", "0.5", "0.5"]),
        ("data.group_duplicates", True, ["--group-duplicates"]),
        ("data.group_duplicates", False, ["--set", "data.group_duplicates=false"]),
        ("data.group_by", "-(.*)", ["--set", "data.group_by=-(.*)"]),
        ("data.root", "photos", ["--set", "data.root=photos"]),
        ("optim.l2", 0.5, ["--set", "optim.l2=0.5"]),
        ("train.freeze", "-x", ["--set", "train.freeze=-x"]),
        ("train.seed", 1, ["--set", "train.seed=1"]),
        ("weights.mean", [], ["--set", "weights.mean=[]"]),
        ("train.tracker", ("wandb", "mlflow"), ["--set", "train.tracker=['wandb', 'mlflow']"]),
        ("train.tracker", ["wandb"], ["--tracker", "wandb"]),
        ("optim.epochs", 3, ["--epochs", "3"]),
    ],
)
def test_a_setting_with_an_option_is_written_as_that_option(
    key: str, value: object, words: list[str]
) -> None:
    assert setting_words(key, value) == words
    args = vars(build_parser().parse_args(["finetune", *words]))
    chosen = dict(option_settings(args))
    assert (key in chosen) != ("--set" in words)
