"""The Python API."""

import inspect
import pickle  # noqa: TID251 - as a program with several processes
import re
import runpy
import sys
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch
from PIL import Image

import vitft
from tests.conftest import draw_folder, tiny_home
from tests.support.children import ended, python
from vitft import Trained
from vitft.config import SETTINGS, read_toml
from vitft.data import EvalTransform, draw_demo, open_image
from vitft.predict import choose_threshold
from vitft.system import DataError, ImageError, RunError, UsageError

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    home = tiny_home(tmp_path_factory.mktemp("api"), per_class=10)
    result = vitft.finetune(
        data=home / "data", weights=home / "w.safetensors", out=home / "run", seed=1, cache="none"
    )
    assert result.figures["top1"] == 1.0
    return vitft.load(result.run, device="cpu")


def test_features_are_the_input_of_the_head(trained: Trained, image_folder: Path) -> None:
    files = sorted(image_folder.rglob("*.png"))

    features = trained.features(files)

    size = trained.engine.feature_size
    assert size in (32, 96)  # the class token of the last block, or that and two of the one before
    assert features.shape == (30, size)
    assert features.dtype == np.float32
    assert trained.features([]).shape == (0, size)
    assert trained.features(files[3])[0] == pytest.approx(features[3], abs=1e-5)


def test_many_images_get_the_answers_of_each_alone_also_if_prepared_before(
    trained: Trained, image_folder: Path
) -> None:
    files = sorted(image_folder.rglob("*.png"))
    picture = Image.open(files[12])
    images: list[Any] = [*files, picture, picture, b"no image", np.asarray(picture), *files[:9]]

    many = trained.predict(iter(images))
    prepared = trained.predict(pickle.loads(pickle.dumps(trained.prepare(images))))
    alone = [trained.predict(image)[0] for image in images]

    assert many[32].error
    assert trained.predict(trained.prepare(files[0])[0])[0].answer == alone[0].answer
    with pytest.raises(UsageError, match="image 0 was prepared by another model"):
        trained.predict(trained.prepare(picture)[0]._replace(transform=EvalTransform()))
    for found in (many, prepared):
        assert [one.path for one in found[:34]] == [*map(str, files), "30", "31", "32", "33"]
        assert [(one.classes, one.error) for one in found] == [(o.classes, o.error) for o in alone]
        for one, other in zip(found, alone, strict=True):
            assert one.probabilities == pytest.approx(other.probabilities, abs=1e-5)


def test_a_precision_chooses_the_threshold(trained: Trained, image_folder: Path) -> None:
    files = sorted(image_folder.rglob("*.png"))
    chosen = choose_threshold(trained.folder, 0.9).value

    found = trained.predict(files, precision=0.9)

    assert chosen > 0
    assert [a.notes for a in found] == [a.notes for a in trained.predict(files, threshold=chosen)]
    with pytest.raises(UsageError, match="threshold and precision cannot be used together"):
        trained.predict(files, threshold=0.5, precision=0.9)
    with pytest.raises(UsageError, match="invalid precision"):
        trained.predict(files, precision=1.5)
    with pytest.raises(UsageError, match=r"threshold=0\.8") as error:
        trained.predict(files, precision=1.0)
    assert "--" not in error.value.fix


def test_prediction_sets_of_a_coverage(trained: Trained, image_folder: Path) -> None:
    files = sorted(image_folder.rglob("*.png"))

    found = trained.predict(files, coverage=0.9, precision=0.8, confidence=0.9)

    assert all(one.prediction_set[0] == one.classes[0] for one in found)
    assert all(one.prediction_set == () for one in trained.predict(files))
    with pytest.raises(UsageError, match="99% needs at least 99 held-out images") as error:
        trained.predict(files, coverage=0.99)
    assert error.value.fix == "use coverage=0.95"
    with pytest.raises(UsageError, match=r'invalid coverage="0\.9"'):
        trained.predict(files, coverage="0.9")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="confidence has no effect without precision"):
        trained.predict(files, confidence=0.9)


def test_the_methods_of_the_command_are_those_of_explain(
    trained: Trained, image_folder: Path
) -> None:
    path = image_folder / "red" / "000.png"

    rollout = trained.explain(path, method="rollout", fusion="max", size=100, legend=True)
    head = trained.explain(path, method="attention", block=0, head=1)

    assert (rollout.method, rollout.about, rollout.probability) == ("rollout", "", None)
    assert rollout.width == 112
    assert rollout.height > 112  # with a colour bar
    assert head.size == (16, 16)
    assert head.heat.shape == (4, 4)
    assert head.heat.tolist() != trained.explain(path, method="attention").heat.tolist()
    assert rollout.map_name == "rollout, max of heads"
    assert "Rollout, max of heads. Brighter parts receive more" in rollout._repr_html_()
    assert repr(rollout).startswith("Explanation(rollout, max of heads, size=")
    assert repr(head).startswith("Explanation(attention of the class token, block 0, head 1, size=")
    assert trained.draw_patches(path).width > 1200


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"method": "rollot"}, "use rollout"),
        ({"method": "rollout", "about": "red"}, '^about has no effect with method="rollout"'),
        ({"block": 1}, '^block has no effect .*\n.* or use method="attention"$'),
        ({"method": "attention", "block": 99}, "no block 99\n  fix: use a block from 0 to 1$"),
        ({"method": "attention", "head": 0, "fusion": "max"}, "^fusion combines .* but head "),
        ({"method": "attention", "layer": 1}, "unknown option 'layer'"),
        ({"method": "attention", "heads": 1}, "unknown option 'heads'\n  fix: use head$"),
        ({"size": 0}, "invalid size=0"),
    ],
)
def test_wrong_options_of_explain_are_refused(
    trained: Trained, image_folder: Path, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        trained.explain(image_folder / "red" / "000.png", **options)


@pytest.mark.parametrize(
    ("image", "reason"),
    [
        pytest.param(torch.full((3, 8, 8), 1.5), "values from 1.5 to 1.5", id="above 1"),
        pytest.param(torch.linspace(-2, 2, 192).reshape(3, 8, 8), "from -2 to 2", id="normalised"),
        pytest.param(torch.full((3, 8, 8), torch.nan), "from nan to nan", id="not a number"),
        pytest.param(torch.zeros(3, 8, 8, dtype=torch.int64), "type int64", id="integers"),
        pytest.param(torch.zeros(5, 8, 8, dtype=torch.uint8), "shape (5, 8, 8)", id="5 channels"),
        pytest.param(torch.zeros(3, 0, 8), "shape (0, 8, 3)", id="empty"),
        pytest.param(np.zeros((8, 8, 3), np.float32), "pass uint8", id="an array of floats"),
        pytest.param(np.zeros((8, 8, 4), np.uint8), "pass uint8", id="an array, four channels"),
        pytest.param(np.zeros((0, 8, 3), np.uint8), "pass uint8", id="an array of nothing"),
        pytest.param(b"<html>", "looks like HTML", id="a page"),
        pytest.param("gone.jpg", "not found", id="a path"),
    ],
)
def test_what_is_not_an_image_gets_an_error_in_its_place(
    trained: Trained, image_folder: Path, image: Any, reason: str
) -> None:
    good = image_folder / "red" / "000.png"

    answers = trained.predict([good, image, np.asarray(open_image(good))])

    assert [a.path for a in answers] == [str(good), image if isinstance(image, str) else "1", "2"]
    assert [a.classes for a in answers] == [("red",), (), ("red",)]
    assert reason in answers[1].error
    with pytest.raises(ImageError, match=re.escape(reason)):
        trained.features([image])


def test_errors_are_raised_before_anything_is_written(
    image_folder: Path, tiny_weights: Path, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=r"unknown setting optim\.epoch\n.*optim\.epochs"):
        vitft.finetune(
            data=image_folder, weights=tiny_weights, out=tmp_path / "r", settings={"optim.epoch": 3}
        )
    with pytest.raises(DataError, match="not found"):
        vitft.finetune(data=tmp_path / "none", weights=tiny_weights, out=tmp_path / "r")
    assert not (tmp_path / "r").exists()


def test_the_signature_has_the_options_of_the_command() -> None:
    parameters = inspect.signature(vitft.finetune).parameters
    options = {option.keyword: option for option in SETTINGS.values() if option.help}

    assert {*parameters} == {*options, "out", "recipe", "seed", "settings"}
    for name, parameter in parameters.items():
        assert parameter.kind is parameter.KEYWORD_ONLY
        choices = [get_args(kind) for kind in get_args(parameter.annotation)]
        if name in options and options[name].choices:
            assert options[name].choices in choices, name
        assert f"{name}: " in str(vitft.finetune.__doc__)


@pytest.mark.parametrize(
    ("given", "fix"),
    [(("photos",), "use data='photos'"), (("a", "demo"), "use data='a', weights='demo'")],
)
def test_arguments_without_a_name_are_answered_with_their_names(
    given: tuple[str, ...], fix: str
) -> None:
    with pytest.raises(UsageError, match="the arguments of finetune are named") as caught:
        vitft.finetune(*given)  # type: ignore[call-arg]

    assert caught.value.fix == fix


def test_only_public_names_are_listed() -> None:
    assert dir(vitft) == sorted(vitft.__all__)
    assert all(getattr(vitft, name) for name in vitft.__all__)


STATE = """
import io, os, random, signal, sys
import numpy as np, torch, vitft

def state():
    return {
        "signal handlers": [signal.getsignal(n) for n in sorted(signal.valid_signals())],
        "threads": (torch.get_num_threads(), torch.get_num_interop_threads()),
        "random": random.getstate(),
        "numpy": [str(part) for part in np.random.get_state()],
        "torch": torch.get_rng_state().tolist(),
        "environment": {k: v for k, v in os.environ.items() if "INDUCTOR" not in k},  # by torch
        "directory": os.getcwd(),
        "settings": (
            torch.are_deterministic_algorithms_enabled(), torch.get_float32_matmul_precision(),
            torch.get_default_dtype(), torch.is_grad_enabled(),
            torch.backends.cudnn.benchmark, torch.backends.cuda.matmul.allow_tf32,
        ),
        "hooks": (sys.excepthook, sys.stdout, sys.stderr, sys.getrecursionlimit()),
    }

torch.set_num_threads(3)
before = state()
data, weights, layers = sys.argv[1:]
result = vitft.finetune(
    data=data, weights=weights, out="run", train=layers, epochs=1 if layers != "head" else None
)
model = vitft.load(result.run)
model.predict(data + "/red/000.png")
model.predict([data + "/red/000.png"] * 40)
model.features(data + "/red/000.png")
after = state()
for name in before:
    if before[name] != after[name]:
        sys.exit(f"{name} changed")
"""


@pytest.mark.parametrize("layers", ["head", "head,all"])
def test_the_library_is_silent_and_restores_the_state_of_the_process(
    layers: str, image_folder: Path, tiny_weights: Path, tmp_path: Path
) -> None:
    done = ended(
        [sys.executable, "-W", "error", "-c", STATE, str(image_folder), str(tiny_weights), layers],
        cwd=tmp_path,
    )

    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_importing_the_package_does_not_wait_for_torch() -> None:
    heavy = "{'torch', 'numpy'} & {*sys.modules}"

    assert python(f"import vitft, sys; dir(vitft); sys.exit(bool({heavy}))").returncode == 0


def test_the_example_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["flowers.py", str(tmp_path / "out")])
    from vitft.data import demo

    drawn = demo.draw_demo
    monkeypatch.setattr(demo, "draw_demo", lambda root: drawn(root, per_class=12))

    runpy.run_path(str(ROOT / "examples" / "flowers.py"), run_name="__main__")

    out = capsys.readouterr().out
    assert "accuracy" in out
    assert "features (" in out
    assert (tmp_path / "out" / "explained.png").exists()


@pytest.mark.parametrize(
    ("picture", "top_k", "message"),
    [
        pytest.param(None, 1, "image 0 has unsupported type NoneType", id="nothing"),
        pytest.param(3, 1, "image 0 has unsupported type int", id="a number"),
        pytest.param({"a": 1}, 1, "image 0 has unsupported type dict", id="a dictionary"),
        pytest.param(np.zeros((8, 8, 3), np.uint8), 0, "invalid top_k=0", id="no classes"),
        pytest.param(np.zeros((8, 8, 3), np.uint8), 1.5, r"invalid top_k=1\.5", id="a fraction"),
        pytest.param(np.zeros((8, 8, 3), np.uint8), "2", "invalid top_k='2'", id="text"),
    ],
)
def test_a_wrong_argument_of_predict_is_a_usage_error(
    trained: Trained, picture: Any, top_k: int, message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        trained.predict([picture], top_k=top_k)
    if top_k == 1:
        with pytest.raises(UsageError, match=message):
            trained.explain(picture)


def test_the_weights_of_a_recipe_need_not_be_repeated(
    trained: Trained, tmp_path: Path, tiny_weights: Path
) -> None:
    recipe = tmp_path / "small.toml"
    recipe.write_text(f"[weights]\nname = {str(tiny_weights)!r}\n")
    data = draw_folder(tmp_path / "photos", per_class=6)

    result = vitft.finetune(data=data, recipe=recipe, out=tmp_path / "run", cache="none")

    assert read_toml(result.run / "config.toml")["weights"]["name"] == str(tiny_weights)


def test_without_weights_the_demo_chooses_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    draw_demo(tmp_path / "demo_flowers", per_class=6)

    result = vitft.finetune(data="demo", cache="none")

    assert read_toml(result.run / "config.toml")["weights"]["name"] == "demo"


TWICE = "is set both by an argument and by `settings`"
ONE = 'pass one path or name, e.g. data="photos"'
REMOVE = "remove one of them"
NAMES = ", ".join(name for name in inspect.signature(vitft.finetune).parameters if name != "freeze")


@pytest.mark.parametrize(
    ("arguments", "problem", "fix"),
    [
        ({"epoch": 5}, "unknown argument epoch", "use epochs"),
        ({"frezee": "head"}, "unknown argument frezee", "use train"),
        ({"learning_rate": 0.1}, "unknown argument learning_rate", "use lr"),
        ({"val_split": 0.2}, "unknown argument val_split", 'use settings={"data.val_rate": ...}'),
        ({"ema": 0.9}, "unknown argument ema", 'use settings={"optim.ema": ...}'),
        ({"zzzz": 1}, "unknown argument zzzz", f"use one of {NAMES}"),
        ({"data": [1, 2]}, "invalid data: expected a string or a path, got list", ONE),
        ({"out": 5}, "invalid out: expected a string or a path, got int", ONE),
        (
            {"settings": ["optim.ema=0.9"]},
            "invalid settings: expected a mapping, got list",
            'pass settings by name, e.g. settings={"optim.ema": 0.9}',
        ),
        ({"epochs": 2, "settings": {"optim.epochs": 7}}, f"optim.epochs {TWICE}", REMOVE),
        ({"train": "all", "settings": {"train.layers": "head"}}, f"train.layers {TWICE}", REMOVE),
        ({"freeze": "none", "settings": {"train.layers": "head"}}, f"train.layers {TWICE}", REMOVE),
        ({"weights": "none", "train": "head"}, "", 'use train="all" with weights="none"'),
        ({"keep_adapter": True}, "", 'use train="lora", or remove keep_adapter'),
        ({"train": "lora,all"}, "", 'use lora as the last stage, e.g. train="head,lora"'),
        ({"settings": {"train.flip": 0.5}}, "", "remove it, or add views=3"),
        ({"weights": ""}, "weights is empty", "use a value, or leave it out"),
    ],
)
def test_a_wrong_argument_is_an_error_whose_fix_names_arguments(
    arguments: dict[str, Any], problem: str, fix: str
) -> None:
    with pytest.raises(UsageError) as caught:
        vitft.finetune(**{"data": "d", **arguments})

    assert problem in (caught.value.problem, "")
    assert caught.value.fix == fix


@pytest.mark.parametrize(
    ("name", "reason"),
    [("photos", "a folder: pass its files"), ("photos/*.png", "a pattern: pass its files")],
)
def test_a_folder_or_a_pattern_is_answered_with_how_to_list_its_files(
    trained: Trained, tmp_path: Path, name: str, reason: str
) -> None:
    (tmp_path / "photos").mkdir()
    path = tmp_path / name

    (answer,) = trained.predict(path)

    assert reason in answer.error
    with pytest.raises(ImageError, match=reason):
        trained.explain(path)


def test_errors_name_the_arguments_of_python(
    trained: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "leaves").symlink_to(trained.folder)
    photos = draw_folder(tmp_path / "photos", per_class=4)

    with pytest.raises(RunError, match=r'did you mean run="runs/leaves"\?'):
        vitft.load("runs/leavs")
    with pytest.raises(RunError, match=r"choose a new or empty folder with out$"):
        vitft.finetune(data=photos, weights="demo", out=photos.parent / "runs")
    with pytest.raises(UsageError, match=r'use device="auto"') as caught:
        vitft.finetune(data=photos, weights="demo", device="gpu", cache="none")
    assert "--" not in str(caught.value)
    with pytest.raises(DataError, match="x--out/y"):
        vitft.finetune(data="nowhere/x--out/y", weights="demo")


def test_threshold_zero_stands_for_no_threshold(trained: Trained, image_folder: Path) -> None:
    path = image_folder / "red" / "000.png"

    (plain,), (zero,) = trained.predict(path), trained.predict(path, threshold=0.0)

    assert plain.notes == zero.notes == ()
    assert (len(plain.classes), plain.probabilities) == (1, zero.probabilities)
    assert plain.view is not None  # shown in a notebook
    with pytest.raises(UsageError, match="invalid threshold=-1"):
        trained.predict(path, threshold=-1.0)


def test_an_explanation_is_of_the_most_probable_class_by_default(
    trained: Trained, image_folder: Path
) -> None:
    path = image_folder / "red" / "000.png"
    (answer,) = trained.predict(path, top_k=np.int64(3))  # type: ignore[arg-type]

    seen, other = trained.explain(path), trained.explain(path, about="blue")

    assert (seen.method, seen.about) == ("relevance", answer.classes[0])
    assert np.asarray(seen).tobytes() != np.asarray(other).tobytes()
    assert seen.probability == pytest.approx(answer.probabilities[0], abs=1e-5)
    assert other.about == "blue"
    assert other.probability == pytest.approx(
        answer.probabilities[answer.classes.index("blue")], abs=1e-5
    )
    assert trained.explain(path, size=64).height == 64
    with pytest.raises(UsageError, match="no class 'yellow'"):
        trained.explain(path, about="yellow")
