"""`vitft weights`: list, show, inspect and fetch."""

import argparse
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from tests.models.pretrained.test_flavours import CONFIG, google_arrays, random_weights
from vitft.cli.main import main
from vitft.cli.parser import Parser
from vitft.cli.weights import add_weights
from vitft.system import console
from vitft.system.errors import UsageError, WeightsError
from vitft.system.text import duration


def run(*words: str) -> int:
    """Run one command line with the parser of the command."""
    parser = Parser(prog="vitft")
    add_weights(parser)
    args: argparse.Namespace = parser.parse_args(words)
    code: int = args.command(args)
    return code


@pytest.fixture
def printed(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Any:
    """What the last commands wrote to stdout; the console is made anew to see the capture."""
    console.stdout.cache_clear()
    console.stderr.cache_clear()
    yield lambda: capsys.readouterr().out
    console.stdout.cache_clear()
    console.stderr.cache_clear()


@pytest.mark.parametrize(
    ("filters", "shown", "hidden"),
    [
        pytest.param(["--all"], "vit_huge_patch14_224.mae", "no such", id="everything"),
        pytest.param(["--size", "tiny"], "vit_tiny_r_s16_p8_224", "vit_small", id="size"),
        pytest.param(["--licence", "commercial"], "deit_tiny", ".mae", id="no -nc"),
        pytest.param(["--licence", "open"], "deit_tiny", ".mae", id="open"),
        pytest.param(["--licence", "CC-BY-NC-4.0"], "(non-commercial)", "augreg", id="marked"),
        pytest.param(["--licence", "CC-BY-NC-4.0"], ".mae", "augreg", id="one licence"),
        pytest.param(["--data", "lvd"], "reg4_dinov2", "augreg", id="data"),
    ],
)
def test_the_list_shows_entries_that_match_all_filters(
    filters: list[str], shown: str, hidden: str, printed: Any
) -> None:
    run("list", *filters)

    table = printed()
    assert shown in table
    assert hidden not in table


def test_filters_without_a_match_are_an_error() -> None:
    with pytest.raises(UsageError, match=r"no weights match all filters"):
        run("list", "--size", "tiny", "--data", "lvd")


def test_an_entry_is_shown_with_its_licence_and_origin(printed: Any) -> None:
    run("show", "vit_small_patch14_reg4_dinov2.lvd142m")

    text = printed()
    assert "registers=4" in text
    assert "lvd-142m without labels" in text
    assert "apache-2.0" in text


def test_an_entry_shows_the_gated_repository_of_its_publisher(printed: Any) -> None:
    run("show", "vit_small_patch16_dinov3.lvd1689m")

    text = printed()
    assert "source:     timm/vit_small_patch16_dinov3.lvd1689m/model.safetensors" in text
    assert "gated:      facebook/dinov3-vits16-pretrain-lvd1689m has the same weights" in text


def test_the_list_says_that_no_file_is_gated(
    printed: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    run("list", "--size", "tiny")

    assert "none of these files is gated" in capsys.readouterr().err


def test_a_file_is_inspected_for_a_task(tmp_path: Path, printed: Any) -> None:
    file = tmp_path / "vit.safetensors"
    save_file(random_weights(replace(CONFIG, pre_logits=True)), file)

    run("inspect", str(file), "--classes", "5", "--image-size", "48", "64")

    facts = [line.split() for line in printed().splitlines()]
    lines = [" ".join(words) for words in facts]
    assert "format: timm" in lines
    assert "head: 7 classes" in lines
    assert "pre_logits: yes" in lines
    assert "would be kept: 30 tensors" in lines
    assert "would be new: head.weight (5, 192), head.bias (5,)" in lines
    assert "would be resized: pos_embed 4x4 -> 6x8, bicubic" in lines
    dropped = next(line for line in lines if line.startswith("would be dropped:"))
    assert "pre_logits.fc.weight (192, 192)" in dropped


def test_inspecting_without_a_task_reports_no_adaptation(tmp_path: Path, printed: Any) -> None:
    import numpy as np

    state = random_weights(CONFIG)
    state["head.weight"] = torch.zeros(7, 192)
    np.savez(tmp_path / "vit.npz", **google_arrays(CONFIG, state))

    run("inspect", str(tmp_path / "vit.npz"))

    text = printed()
    assert "Google (JAX)" in text
    assert "all zeros (untrained)" in text
    assert "would be" not in text


@pytest.mark.parametrize(
    ("words", "error", "message"),
    [
        pytest.param(["missing.safetensors"], WeightsError, "weights not found", id="no file"),
        pytest.param(["a.pth"], WeightsError, "is a Python pickle", id="pickle"),
        pytest.param(["a.pth", "--image-size", "0"], UsageError, "--image-size 0", id="no size"),
        pytest.param(["a.pth", "--classes", "-1"], UsageError, "--classes -1", id="classes"),
        pytest.param(
            ["vit.safetensors", "--image-size", "50"],
            UsageError,
            r"height \(50 pixels\)",
            id="odd size",
        ),
    ],
)
def test_files_that_cannot_be_inspected_are_refused(
    words: list[str],
    error: type[Exception],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.pth").touch()
    save_file(random_weights(CONFIG), "vit.safetensors")

    with pytest.raises(error, match=message):
        run("inspect", *words)


def test_bundled_weights_need_no_download(
    printed: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from vitft.models.pretrained import locate

    monkeypatch.setattr(locate, "resource", lambda _: tmp_path)
    (tmp_path / "demo.safetensors").write_bytes(b"all there is")

    run("fetch", "demo")

    assert f"file:       {tmp_path / 'demo.safetensors'}" in printed()


def test_fetching_a_local_file_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "a.safetensors").touch()

    with pytest.raises(UsageError, match=r"is a local file"):
        run("fetch", str(tmp_path / "a.safetensors"))


def test_recommended_weights_are_listed_with_their_cost(
    printed: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from vitft.models.pretrained import recommended

    monkeypatch.setattr(recommended, "machine_speed", lambda: 1e12)

    assert run("list") == 0

    head, *rows = printed().splitlines()
    assert head.startswith("recommended weights  ")
    assert head.endswith("1,000 images")
    assert len(rows) == len([*recommended.recommendations()])
    assert all(row.endswith("1 s") for row in rows)  # never 0 s


def test_costs_are_of_a_pass_over_a_thousand_images(
    printed: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from vitft.models.pretrained import recommended

    first, second, *_ = recommended.recommendations()
    monkeypatch.setattr(recommended, "machine_speed", lambda: first.gmacs / 0.6 * 25)

    run("list")

    _, row, other, *_ = printed().splitlines()
    assert row.split() == [
        *(first.name, first.tier, first.entry.licence, f"{first.megabytes:,}", "40", "s"),
    ]
    assert other.endswith(f"  {duration(40 * second.gmacs / first.gmacs)}")


@pytest.mark.parametrize(("has_gpu", "machine"), [(True, "a GPU"), (False, "this CPU")])
def test_the_machine_of_the_estimates_is_named(
    printed: Any,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    has_gpu: bool,
    machine: str,
) -> None:
    from vitft.models.pretrained import recommended

    monkeypatch.setattr(recommended, "machine_speed", lambda: 100.0)
    monkeypatch.setattr("vitft.cli.weights.has_gpu", lambda: has_gpu)

    run("list")

    notes = capsys.readouterr().err
    assert f"times are estimates for one pass over 1,000 images on {machine}" in notes
    assert "`vitft weights list --all` lists the whole catalogue" in notes


def test_every_action_ends_with_success(tmp_path: Path, printed: Any) -> None:
    file = tmp_path / "vit.safetensors"
    save_file(random_weights(CONFIG), file)

    assert run("list", "--size", "tiny") == 0
    sizes = [row.split()[-1] for row in printed().splitlines()[1:]]
    assert {"224x224", "384x384"} <= {*sizes}
    assert run("show", "vit_small_patch14_reg4_dinov2.lvd142m") == 0
    printed()
    assert run("show", str(file)) == 0
    shown = printed()
    assert run("inspect", str(file)) == 0
    assert printed() == shown


@pytest.mark.parametrize(
    ("sides", "grid"),
    [(["48"], "4x4 -> 6x6"), (["48", "64"], "4x4 -> 6x8"), (["48", "64", "64"], None)],
)
def test_an_image_size_has_one_or_two_sides(
    tmp_path: Path, printed: Any, sides: list[str], grid: str | None
) -> None:
    file = tmp_path / "vit.safetensors"
    save_file(random_weights(CONFIG), file)

    if grid is None:
        with pytest.raises(UsageError, match="invalid --image-size 48 64 64"):
            run("inspect", str(file), "--image-size", *sides)
    else:
        assert run("inspect", str(file), "--image-size", *sides, "--classes", "0") == 0
        assert f"pos_embed {grid}" in printed()


def test_the_licence_of_fetched_weights_is_noted_before_the_download(
    printed: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    noted: list[str] = []

    def fetch(entry: Any, *, allow_pickle: bool) -> Any:
        noted.append(capsys.readouterr().err)
        return SimpleNamespace(path="x/model.safetensors", revision="abc", sha256="0f")

    monkeypatch.setattr("vitft.models.pretrained.fetch.fetch", fetch)
    console.show_log()

    assert run("fetch", "vit_small_patch14_reg4_dinov2.lvd142m") == 0

    assert "licence: apache-2.0" in noted[0]
    assert printed().splitlines() == [
        "file:       x/model.safetensors",
        "commit:     abc",
        "sha256:     0f (verified)",
    ]


SAVED_AGAIN = "save or download the file again; it is probably "
ANOTHER_MODEL = "use timm:NAME=FILE with timm's name"


@pytest.mark.parametrize(
    ("removed", "added", "problem", "fix"),
    [
        (
            "blocks.1.mlp|norm1",
            {},
            "missing: blocks.0.norm1.weight, blocks.0.norm1.bias, blocks.1.norm1.weight, "
            "blocks.1.norm1.bias, blocks.1.mlp.fc1.weight and 3 more",
            f"{SAVED_AGAIN}incomplete or edited",
        ),
        (
            "",
            {f"extra.{i}": (2,) for i in range(7)},
            "unknown tensors: extra.0, extra.1, extra.2, extra.3, extra.4 and 2 more",
            "use timm:NAME=FILE",
        ),
        (
            "",
            {"blocks.0.attn.qkv.weight": (80, 192)},
            "wrong shape: blocks.0.attn.qkv.weight (80, 192) instead of (576, 192)",
            f"{SAVED_AGAIN}a mixture of two models",
        ),
        (
            "",
            {"norm.bias": (31,)},
            "wrong shape: norm.bias (31,) instead of (192,)",
            f"{SAVED_AGAIN}a mixture of two models",
        ),
        (
            "",
            {"pos_embed": (1, 18, 192)},
            "17 position embeddings do not form a square grid of patches",
            "put a config.json that states the image size next to the weight file",
        ),
        (
            "pos_embed",
            {},
            "the model seems to have rotary position embeddings",
            "put timm's config.json next to the file",
        ),
        (
            "patch_embed",
            {},
            "patch_embed.proj.weight is missing from the weights",
            "use the weights of a plain Vision Transformer",
        ),
        (".", {"conv1.weight": (8, 3, 7, 7)}, "no plain Vision Transformer", ANOTHER_MODEL),
        (".", {}, "the file contains no tensors", ANOTHER_MODEL),
    ],
)
def test_tensors_that_do_not_fit_a_model_end_the_command_with_their_names_and_a_cause(
    tmp_path: Path,
    image_folder: Path,
    capsys: pytest.CaptureFixture[str],
    removed: str,
    added: dict[str, tuple[int, ...]],
    problem: str,
    fix: str,
) -> None:
    path, out = tmp_path / "a.safetensors", tmp_path / "run"
    whole = random_weights(CONFIG)
    kept = {k: v for k, v in whole.items() if not removed or not re.search(removed, k)}
    save_file(kept | {name: torch.zeros(shape) for name, shape in added.items()}, path)
    words = ["--data", str(image_folder), "--weights", str(path), "--out", str(out)]

    code = main(["finetune", *words])

    *_, error, remedy = capsys.readouterr().err.splitlines()
    assert code == 4
    assert error.startswith(f"vitft: error: {path}: ")
    assert problem in error
    assert remedy.startswith(f"  fix: {fix}")
    assert not out.exists()
