"""What `benchmarks.faults.fuzz` attacks: how an input is made, read, and judged.

A target returns a short name of the outcome. `Wrong` is raised for an answer that must not be given.
"""

import contextlib
import hashlib
import io
import json
import os
import random
import shutil
import signal
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from PIL import Image
from safetensors.torch import save

from benchmarks.faults.mutate import ODD_TEXTS, mutate_bytes, mutate_json
from tests.conftest import draw_folder
from tests.models.pretrained.test_flavours import google_arrays, random_weights
from tests.support.hostile_files import CARD, Arrays, small_weights, write_checkpoint
from tests.support.hostile_run import bomb, empty, folder, objects, pipe, shapes, sparse
from vitft.cli.main import main
from vitft.data.images import decode
from vitft.data.transforms import EvalTransform
from vitft.models.card import Card
from vitft.models.checkpoint import build_model, load_checkpoint, save_checkpoint
from vitft.models.pretrained.weights import open_pretrained
from vitft.models.vit import VisionTransformer
from vitft.models.vit_config import ViTConfig, vit_shapes
from vitft.predict.engine import NumpyEngine
from vitft.predict.torch_engine import Predictor
from vitft.system.errors import UsageError, VitftError
from vitft.training.loop import RunningMetrics

MAX_PIXELS = 4_000_000


class Wrong(Exception):
    """An answer that must not be given, e.g. part of a picture for the whole."""


class Target(Protocol):
    """A kind of input."""

    def draw(self, rng: random.Random) -> Any:
        """Return a new input."""

    def vary(self, seed: Any, rng: random.Random) -> Any:
        """Return a variant of an input that reached new code."""

    def run(self, made: Any) -> str:
        """Read an input; return the kind of outcome."""


class Images:
    """Mutated image files of six formats through the decoder, the fast decoder and the transform."""

    options: tuple[tuple[str, dict[str, Any]], ...] = (
        ("JPEG", {}), ("JPEG", {"progressive": True}), ("PNG", {}), ("WEBP", {}), ("WEBP", {"lossless": True}),
        ("BMP", {}), ("GIF", {}), ("TIFF", {}), ("TIFF", {"compression": "tiff_lzw"}), ("TIFF", {"compression": "jpeg"}),
    )  # fmt: skip

    def __init__(self, _: Path) -> None:
        noise = np.random.default_rng(0).integers(0, 256, (40, 56, 3), np.uint8)
        grey, self.seeds = Image.fromarray(noise).convert("L"), []
        for kind, options in self.options:
            for image in (Image.fromarray(noise), grey):
                buffer = io.BytesIO()
                image.save(buffer, kind, **options)
                self.seeds.append(buffer.getvalue())
        self.whole = {data: np.asarray(decode(data, "x").image) for data in self.seeds}
        self.transform = EvalTransform(image_size=(32, 32))

    def draw(self, rng: random.Random) -> tuple[bytes, bytes]:
        seed = rng.choice(self.seeds)
        if rng.random() < 0.15:  # cut, at any length
            return seed[: rng.randrange(len(seed))], seed
        return mutate_bytes(seed, rng, 400), b""

    def vary(self, seed: tuple[bytes, bytes], rng: random.Random) -> tuple[bytes, bytes]:
        return mutate_bytes(seed[0], rng, 400), b""

    def run(self, made: tuple[bytes, bytes]) -> str:
        data, whole = made
        with contextlib.suppress(VitftError):
            self.transform.fast_view(data, max_pixels=MAX_PIXELS)
        try:
            image = decode(data, "x.jpg", max_pixels=MAX_PIXELS).image
        except VitftError as error:
            return f"refused: {type(error).__name__}"
        pixels = np.asarray(image)
        if (
            image.mode != "RGB"
            or pixels.ndim != 3
            or not 0 < image.width * image.height <= MAX_PIXELS
        ):
            raise Wrong(f"{image.mode} {image.size}")
        if whole and not np.array_equal(pixels, self.whole[whole]):
            raise Wrong(f"a picture cut to {len(data)} of {len(whole)} bytes was accepted")
        if self.transform.pixels(image).shape != (32, 32, 3):
            raise Wrong("the view has another size")
        return "accepted"


class Weights:
    """Mutated weight files of three formats, some with odd tensors, some with an odd config.json."""

    config = ViTConfig(
        image_size=(8, 8),
        patch_size=(4, 4),
        width=64,
        depth=1,
        heads=1,
        num_classes=3,
        mlp_ratio=1.0,
    )

    def __init__(self, home: Path) -> None:
        self.home, self.state = home, random_weights(self.config)
        pickled, archived = io.BytesIO(), io.BytesIO()
        torch.save(self.state, pickled)
        np.savez(archived, **google_arrays(self.config, self.state))
        self.seeds = {
            ".safetensors": save(self.state, metadata={"format": "pt"}),
            ".pth": pickled.getvalue(),
            ".npz": archived.getvalue(),
        }
        self.sidecar = {
            "num_attention_heads": 1,
            "image_size": 8,
            "hidden_act": "gelu",
            "id2label": {"0": "a", "1": "b", "2": "c"},
            "layer_norm_eps": 1e-6,
        }

    def draw(self, rng: random.Random) -> tuple[str, bytes, str]:
        suffix = rng.choice((*self.seeds, ".safetensors", ".safetensors"))
        side = mutate_json(self.sidecar, rng) if rng.random() < 0.3 else ""
        if suffix != ".npz" and rng.random() < 0.4:
            return suffix, self.odd_tensors(suffix, rng), side
        content = self.seeds[suffix]
        header = 8 + int.from_bytes(content[:8], "little") if suffix == ".safetensors" else 4000
        return suffix, mutate_bytes(content, rng, header), side

    def vary(self, seed: tuple[str, bytes, str], rng: random.Random) -> tuple[str, bytes, str]:
        return seed[0], mutate_bytes(seed[1], rng, 4000), seed[2]

    def odd_tensors(self, suffix: str, rng: random.Random) -> bytes:
        """Return a whole file of tensors with other names, shapes, types or values."""
        state = dict(self.state)
        for _ in range(rng.randint(1, 3)):
            name = rng.choice(list(state))
            tensor = state.pop(name)
            changes: tuple[Callable[[], Any], ...] = (
                lambda t=tensor: t.to(
                    rng.choice(
                        (
                            torch.float16,
                            torch.bfloat16,
                            torch.float64,
                            torch.int32,
                            torch.bool,
                            torch.float8_e4m3fn,
                        )
                    )
                ),
                lambda: torch.zeros(
                    rng.choice(((), (0,), (1,), (3,), (2, 2), (1, 5, 64), (1, 1, 1, 1, 1)))
                ),
                lambda t=tensor: t * rng.choice((0.0, 1e30, float("nan"), float("inf"))),
                lambda t=tensor: t.unsqueeze(0),
                lambda t=tensor: torch.cat([t, t]),
            )
            action = rng.randrange(len(changes) + 2)
            if action < len(changes):
                state[name] = changes[action]()
            elif action == len(changes):
                state[
                    rng.choice(
                        (
                            name + "x",
                            "module." + name,
                            "head_dist.weight",
                            "reg_token",
                            "dist_token",
                            "register_tokens",
                            "mask",
                        )
                    )
                ] = tensor
        if suffix == ".pth":
            if rng.random() < 0.3:
                odd = rng.choice(
                    (
                        torch.zeros(1).expand(10**6, 10**6),
                        torch.zeros(3, device="meta"),
                        torch.ones(3).to_sparse(),
                        5,
                        "x",
                        {"a": state},
                        [state],
                    )
                )
                state[rng.choice(("head.weight", "pos_embed", "model", "x"))] = odd
            buffer = io.BytesIO()
            torch.save({"model": state} if rng.random() < 0.2 else state, buffer)
            return buffer.getvalue()
        return save({name: tensor.contiguous().clone() for name, tensor in state.items()})

    def run(self, made: tuple[str, bytes, str]) -> str:
        suffix, data, side = made
        path, sidecar = self.home / f"mutant{suffix}", self.home / "config.json"
        path.write_bytes(data)
        sidecar.unlink(missing_ok=True)
        if side:
            sidecar.write_bytes(side.encode("utf-8", "surrogatepass"))
        try:
            found = open_pretrained(path, allow_pickle=True)
        except VitftError as error:
            return f"refused: {type(error).__name__}"
        wanted = {name: facts.shape for name, facts in vit_shapes(found.architecture).items()}
        if {name: tuple(tensor.shape) for name, tensor in found.tensors.items()} != wanted:
            raise Wrong("accepted tensors are not those of the architecture")
        if not all(bool(torch.isfinite(tensor).all()) for tensor in found.tensors.values()):
            raise Wrong("accepted tensors are not finite")
        if data != self.seeds[suffix]:
            with contextlib.suppress(VitftError):
                open_pretrained(
                    path, allow_pickle=True, sha256=hashlib.sha256(self.seeds[suffix]).hexdigest()
                )
                raise Wrong("another file was accepted although its digest is known")
        return "accepted"


class Cards:
    """Checkpoints with a valid digest and a mutated card or tensors, opened by both engines."""

    def __init__(self, home: Path) -> None:
        self.path, buffer = home / "model.safetensors", io.BytesIO()
        Image.fromarray(np.random.default_rng(0).integers(0, 256, (40, 56, 3), np.uint8)).save(
            buffer, "PNG"
        )
        self.picture = buffer.getvalue()

    def draw(self, rng: random.Random) -> tuple[str, Arrays]:
        if rng.random() < 0.35:  # another valid architecture
            with contextlib.suppress(UsageError):
                config = self.random_config(rng)
                text = json.dumps(
                    {
                        **CARD,
                        "architecture": asdict(config),
                        "transform": {**CARD["transform"], "image_size": config.image_size},
                    }
                )
                return (
                    text if rng.random() < 0.5 else mutate_json(json.loads(text), rng)
                ), small_weights(config)
        weights = small_weights()
        if rng.random() < 0.4:
            self.change(weights, rng)
        return (mutate_json(CARD, rng) if rng.random() < 0.8 else json.dumps(CARD)), weights

    def vary(self, seed: tuple[str, Arrays], rng: random.Random) -> tuple[str, Arrays]:
        try:
            return mutate_json(json.loads(seed[0]), rng), seed[1]
        except (ValueError, RecursionError):
            return self.draw(rng)

    def random_config(self, rng: random.Random) -> ViTConfig:
        """Return a small architecture with other options."""
        return ViTConfig(
            image_size=(rng.choice((8, 16, 24)), rng.choice((8, 16))), patch_size=(rng.choice((4, 8)), 8), width=rng.choice((8, 12)),
            depth=rng.randint(1, 3), heads=rng.choice((1, 2, 4)), mlp_ratio=rng.choice((0.5, 1.0, 2.5)), qkv_bias=rng.random() < 0.5,
            num_classes=3, pre_logits=rng.random() < 0.3, pool=rng.choice(("cls", "mean")), norm=rng.choice(("pre", "post")),
            norm_eps=rng.choice((1e-6, 0.5)), layer_scale=rng.choice((0.0, 0.1)), registers=rng.choice((0, 2)),
            prefix_positions=rng.random() < 0.5, distilled=rng.random() < 0.3, convs=rng.choice(((), (), (4,))), read_blocks=rng.choice((1, 1, 2)),
        )  # fmt: skip

    def change(self, weights: Arrays, rng: random.Random) -> None:
        """Change some tensors in place."""
        name = rng.choice(list(weights))
        array = weights.pop(name)
        action = rng.randrange(8)
        if action < 4:
            weights[name] = (
                array.astype(np.float16),
                array.astype(np.float64),
                array[None],
                array * np.float32(rng.choice((0, 1e20, 1e38))),
            )[action]
        elif action == 4:
            weights[name] = np.full_like(array, rng.choice((np.nan, np.inf)))
        elif action == 5:
            weights[name + rng.choice(("x", ".y", "\n"))] = array

    def run(self, made: tuple[str, Arrays]) -> str:
        text, weights = made
        with contextlib.suppress(UnicodeEncodeError):
            write_checkpoint(self.path, text, weights)
        answers: list[Any] = []
        for open_engine in (self.open_numpy, self.open_torch):
            try:
                answers.append(self.answer(open_engine()))
            except VitftError as error:
                answers.append(error.problem)
        quick, slow = answers
        if quick is None:  # left to torch
            return "refused" if isinstance(slow, str) else "accepted by torch alone"
        if isinstance(quick, str) or isinstance(slow, str):
            if quick != slow and not ("not finite" in str(quick) and "not finite" in str(slow)):
                raise Wrong(f"NumPy: {quick} / torch: {slow}")
            return "refused"
        if not np.allclose(quick, slow, atol=1e-3):
            raise Wrong(f"NumPy: {quick} / torch: {slow}")
        return "accepted by both"

    def open_numpy(self) -> Any:
        return NumpyEngine.open(self.path)

    def open_torch(self) -> Any:
        state, card = load_checkpoint(self.path)
        return Predictor(build_model(state, card.architecture), card, device="cpu")

    def answer(self, engine: Any) -> Any:
        """Return the probabilities for a picture, or None without an engine."""
        if engine is None:
            return None
        from vitft.predict.postprocess import Postprocess

        scores = engine.scores(engine.view(self.picture, "x.png")[None])
        (found,) = Postprocess(outputs=engine.outputs, top_k=10**6)(["x"], scores)
        named = dict(zip(found.classes, found.probabilities, strict=True))
        return [named[name] for name in engine.outputs.classes]


def small_runs(home: Path) -> None:
    """Write images, weights, a finished run `run` and a stopped run `half` to a folder."""
    config = ViTConfig(
        image_size=(16, 16), patch_size=(8, 8), width=16, depth=1, heads=2, num_classes=0
    )
    card = Card(architecture=config, transform=EvalTransform(image_size=(16, 16)))
    torch.manual_seed(0)
    save_checkpoint(home / "w.safetensors", VisionTransformer(config).state_dict(), card)
    draw_folder(home / "data", per_class=36)
    draw_folder(home / "fresh", per_class=1)
    given = [
        "finetune",
        "--data",
        f"{home}/data",
        "--weights",
        f"{home}/w.safetensors",
        "--cache",
        "none",
    ]
    add = RunningMetrics.add

    def stopped(self: RunningMetrics, step: Any) -> None:
        add(self, step)
        if self.steps == 24:
            os.kill(os.getpid(), signal.SIGTERM)

    with contextlib.redirect_stderr(io.StringIO()), contextlib.redirect_stdout(io.StringIO()):
        assert main([*given, "--out", f"{home}/run"]) == 0
        RunningMetrics.add = stopped  # type: ignore[method-assign]
        try:
            assert (
                main(
                    [
                        *given,
                        "--train",
                        "all",
                        "--epochs",
                        "4",
                        "--batch-size",
                        "8",
                        "--out",
                        f"{home}/half",
                    ]
                )
                == 143
            )
        finally:
            RunningMetrics.add = add  # type: ignore[method-assign]


def told(arguments: list[str]) -> tuple[int, str, str]:
    """Run a command in this process; return its exit code, output and error output."""
    out, err = io.StringIO(), io.StringIO()
    out.reconfigure = err.reconfigure = lambda **_: None  # type: ignore[attr-defined]
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = main(arguments)
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 0
    return code, out.getvalue(), err.getvalue()


class Runs:
    """Copies of a run directory with one or two edited files, read by every command."""

    commands = (
        "predict {0}/fresh/red/000.png {0}/fresh/blue/000.png --run {1} --format csv",
        "predict {0}/fresh/red/000.png --run {1} --precision 0.5 --format json",
        "evaluate --data {0}/fresh --run {1} --format json", "explain {0}/fresh/red/000.png --run {1} --out {1}-explained",
        "export --safetensors --run {1} --out {1}-exported", "report --run {1}", "report --run {1}",
        "compare {1} {0}/run --out {1}-compared.html", "check {0}/fresh --run {1} --cache none --out {1}-fixes", "finetune --resume {1}",
    )  # fmt: skip
    specials: tuple[Callable[[Path], object], ...] = (pipe, folder, empty, sparse)
    archives: tuple[Callable[[Path], object], ...] = (objects, shapes, bomb)

    def __init__(self, home: Path) -> None:
        self.home = home
        small_runs(home)
        self.normal = {
            c: told(self.words(c, home / "run"))[1]
            for c in self.commands
            if c.startswith("predict")
        }

    def words(self, command: str, run: Path) -> list[str]:
        return command.format(self.home, run).split()

    def draw(self, rng: random.Random) -> tuple[str, int]:
        return rng.choice(self.commands), rng.getrandbits(60)

    def vary(self, seed: tuple[str, int], rng: random.Random) -> tuple[str, int]:
        return rng.choice((seed[0], rng.choice(self.commands))), rng.getrandbits(60)

    def edit(self, run: Path, rng: random.Random) -> str:
        """Edit one or two files; return their names."""
        files = sorted(
            p
            for p in run.rglob("*")
            if p.is_file() and p.name not in ("report.html", ".lock") and "thumbs" not in p.parts
        )
        chosen = rng.sample(files, rng.choice((1, 1, 2)))
        for path in chosen:
            action = rng.random()
            if action < 0.08:
                rng.choice(self.specials)(path)
            elif path.suffix == ".npz" and action < 0.15:
                rng.choice(self.archives[: 3 if rng.random() < 0.02 else 2])(path)
            elif path.suffix == ".json" and action < 0.85:
                path.write_bytes(
                    mutate_json(json.loads(path.read_text()), rng).encode("utf-8", "surrogatepass")
                )
            elif path.suffix == ".jsonl" and action < 0.85:
                lines = path.read_text().splitlines()
                lines[rng.randrange(len(lines))] = mutate_json(json.loads(lines[0]), rng)
                path.write_bytes(("\n".join(lines) + "\n").encode("utf-8", "surrogatepass"))
            elif action > 0.98:
                path.write_text(rng.choice(ODD_TEXTS))
            else:
                path.write_bytes(mutate_bytes(path.read_bytes(), rng, 3000))
        return " ".join(path.name for path in chosen)

    def run(self, made: tuple[str, int]) -> str:
        command, number = made
        for leftover in self.home.glob("copy*"):
            shutil.rmtree(leftover) if leftover.is_dir() else leftover.unlink()
        run = Path(
            shutil.copytree(
                self.home / ("half" if "resume" in command else "run"), self.home / "copy"
            )
        )
        edited = self.edit(run, random.Random(number))
        code, out, err = told(self.words(command, run))
        judge(code, err, {0, 2, 3, 4, 5, 7}, f"{command} with {edited}")  # 4: other weights named
        if (
            code == 0
            and command in self.normal
            and "precision" not in command
            and answers_of(out) != answers_of(self.normal[command])
        ):
            raise Wrong(f"{command} with {edited}: {out[:300]}")
        return f"exit code {code}"


def answers_of(table: str) -> list[list[str]]:
    """Return path, class and probability of each row of a CSV table."""
    return [row.split(",")[:3] for row in table.splitlines()]


def judge(code: int, err: str, allowed: set[int], what: str) -> None:
    """Check the exit code and the error output of a command."""
    if "Traceback" in err or code == 1:
        raise RuntimeError(f"{what}: {err[-1500:]}")
    errors = [line for line in err.splitlines() if line.startswith("vitft: error")]
    if code not in allowed or len(errors) > 1 or (code not in (0, 3) and not errors):
        raise Wrong(f"{what}: exit code {code}: {err[-500:]}")


class CommandLines:
    """Wrong command lines: options from the parsers with values that no option accepts."""

    values = (
        "",
        "-1",
        "0",
        "nan",
        "inf",
        "1e400",
        "x",
        "\x00",
        "\udcff",
        "../..",
        "/dev/null",
        "-",
        "--",
        "1,2",
        "[1]",
        "a=b",
        "99999999999999999999",
    )

    def __init__(self, home: Path) -> None:
        from vitft.cli.guide import COMMAND_GROUPS
        from vitft.cli.main import build_parser

        self.home = home
        self.options = {
            name: sorted(
                {
                    f
                    for a in build_parser(name).commands[name]._actions
                    for f in a.option_strings
                    if f.startswith("--")
                }
                - {"--help"}
            )
            for group in COMMAND_GROUPS.values()
            for name in group
            if name != "demo"
        }

    def draw(self, rng: random.Random) -> list[str]:
        name = rng.choice(list(self.options))
        words = [name]
        for _ in range(rng.randint(0, 3)):
            option = (
                rng.choice((*self.options[name], "--lr", "--nonsense", "-x"))
                if self.options[name]
                else "--nonsense"
            )
            words += [option, rng.choice(self.values)][: rng.choice((1, 2, 2, 2))]
        if rng.random() < 0.6:
            words.insert(
                rng.randint(1, len(words)),
                rng.choice((f"{self.home}/missing", "/dev/null", "x" * 5000, "a\x00b", "\udcff")),
            )
        return words if rng.random() < 0.95 else words[1:]

    def vary(self, _: list[str], rng: random.Random) -> list[str]:
        return self.draw(rng)

    def run(self, made: list[str]) -> str:
        before = Path.cwd()
        os.chdir(self.home)
        try:
            code, _, err = told(made)
        finally:
            os.chdir(before)
        judge(code, err, {0, 2, 3, 4, 5, 6, 8, 130}, " ".join(made)[:300])
        return f"exit code {code}"


TARGETS: dict[str, type[Any]] = {
    "images": Images, "weights": Weights, "cards": Cards, "runs": Runs, "lines": CommandLines,
}  # fmt: skip
