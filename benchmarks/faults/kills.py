"""Runs that are killed at random moments and resumed, against one that was not disturbed.

    python -m benchmarks.faults.kills --kills 200

Each run is a process that is sent SIGKILL after a random time and started again with resume, until
it ends (with --signals: see `signals`). Weights, log and figures must then equal those
of the undisturbed run to the last bit. Two controls do what many loops do, and the same harness has to
catch them: one resumes with the weights but without the state of the optimiser, the other writes its
state over the last one in place.
"""

import argparse
import importlib
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Mapping
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save as to_safetensors
from torch import Tensor

from tests.conftest import draw_folder
from vitft.config.run import config_from_table, read_toml
from vitft.data.transforms import EvalTransform
from vitft.models.checkpoint import Card, digest_of, load_checkpoint, save_checkpoint
from vitft.models.vit import VisionTransformer
from vitft.models.vit_config import ViTConfig
from vitft.system.errors import VitftError
from vitft.training import stages
from vitft.training.loop import Training
from vitft.training.run import finetune
from vitft.training.state import State, metadata_of

LATE = (
    "torch._dynamo",
    "timm.data",
    "rich.console",
    "rich.progress",
    "rich.table",
    "vitft.report.html",
)
"""What a run imports only when it is needed; torch's optimisers bring the first."""
FORGOTTEN, IN_PLACE = "optimiser forgotten", "state written in place"
WHOLE_RESTORE = Training.restore
SETTINGS: dict[str, dict[str, Any]] = {
    "train": {"freeze": "none", "drop_path": 0.1, "cutmix": 1.0},
    "optim": {"epochs": 12, "batch_size": 8, "ema": 0.9, "lr": 1e-2},
}


def prepare(home: Path, *, per_class: int = 20, width: int = 96, depth: int = 4) -> None:
    """A folder of images and a small backbone, and the imports that every child would repeat."""
    for name in LATE:
        importlib.import_module(name)
    draw_folder(home / "data", per_class=per_class)
    torch.manual_seed(0)
    config = ViTConfig(
        image_size=(16, 16), patch_size=(4, 4), width=width, depth=depth, heads=4, num_classes=0
    )
    card = Card(architecture=config, transform=EvalTransform(image_size=(16, 16)))
    save_checkpoint(home / "w.safetensors", VisionTransformer(config).state_dict(), card)


def forgetful(training: Training, tensors: dict[str, Any], facts: dict[str, Any]) -> None:
    """What many loops do: go on with the weights, and with an optimiser that knows nothing."""
    kept = {name: value for name, value in tensors.items() if not name.startswith("optimizer/")}
    WHOLE_RESTORE(training, kept, facts)


def in_place(
    folder: Path, _stage: int, _step: int, state: State, best: Mapping[str, Tensor] | None
) -> None:
    """What many loops do: one file, written over."""
    folder.mkdir(exist_ok=True)
    facts = dict(state.facts)
    wanted = [("state-0-00000000.safetensors", state.tensors)]
    if best is not None:
        facts["best_file"] = "best-0-00000000.safetensors"
        wanted.insert(0, (facts["best_file"], best))
    for name, tensors in wanted:
        plain = {key: value.detach().contiguous() for key, value in tensors.items()}
        text = json.dumps({} if name.startswith("best") else facts)
        (folder / name).write_bytes(to_safetensors(plain, metadata=metadata_of(text, plain)))


def has_begun(out: Path) -> bool:
    """Whether a run was killed so late that there is something to resume."""
    return (out / "split.csv").exists() and (out / "class_indices.json").exists()


def child(home: Path, out: Path, *, begun: bool, control: str = "") -> None:
    """Begin or resume a run, in a process of its own; never returns."""
    code = 1
    try:
        torch.set_num_threads(1)
        os.environ["HOME"] = str(home)
        stages.SAVE_S, stages.SAVE_SHARE = 0.0, 1e9  # a state after every step
        if control == FORGOTTEN:
            Training.restore = forgetful  # type: ignore[method-assign]
        elif control == IN_PLACE:
            stages.save_state = in_place  # type: ignore[assignment]
        with (home / "said.txt").open("a") as said, redirect_stdout(said), redirect_stderr(said):
            if begun:
                config = config_from_table(read_toml(out / "config.toml"))
            else:  # killed before there was anything to resume
                if os.environ.get("RANK", "0") == "0":
                    shutil.rmtree(out, ignore_errors=True)
                table = {
                    "data": {"path": str(home / "data")},
                    "weights": {"name": str(home / "w.safetensors")},
                }
                config = config_from_table({**table, **SETTINGS})
            code = finetune(config, out=out, resume=begun).exit_code
    except VitftError as error:
        code = error.exit_code
        with (home / "said.txt").open("a") as said:
            said.write(f"{error}\n")
    except KeyboardInterrupt as stop:
        code = getattr(stop, "exit_code", 130)
    except Exception:
        with (home / "said.txt").open("a") as said:
            traceback.print_exc(file=said)
    finally:
        os._exit(code)


def start(home: Path, out: Path, control: str = "") -> int:
    """A child process; torch is loaded already."""
    pid = os.fork()
    if pid == 0:
        child(home, out, begun=has_begun(out), control=control)
    return pid


def outcome(run: Path) -> tuple[str, str, str]:
    """What must be equal: weights with their card, log, figures."""
    figures = json.loads((run / "eval.json").read_text())
    figures.pop("seconds")
    state, card = load_checkpoint(run / "model.safetensors")
    return digest_of(str(card), state), (run / "metrics.jsonl").read_text(), json.dumps(figures)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--control-kills", type=int, default=60, help="of each control")
    parser.add_argument(
        "--signals", action="store_true", help="SIGTERM and SIGINT instead of SIGKILL"
    )
    args = parser.parse_args()
    if args.signals:
        from benchmarks.faults.signals import campaign as send_signals

        send_signals(args.kills)
        return
    home = Path(tempfile.mkdtemp(prefix="vitft-kills-"))
    os.environ["HOME"] = str(home)
    prepare(home)
    begun = time.monotonic()
    os.waitpid(start(home, home / "whole"), 0)
    whole = time.monotonic() - begun
    wanted = outcome(home / "whole")
    print(f"undisturbed: {whole:.1f} s")
    for control in ("", FORGOTTEN, IN_PLACE):
        count = args.control_kills if control else args.kills
        print_row(control, *campaign(home, count, whole, wanted, control))
    shutil.rmtree(home)


def campaign(
    home: Path, kills: int, whole: float, wanted: Any, control: str
) -> tuple[int, int, int, int, dict[int, int]]:
    """Kill until there were so many; runs, kills, lost runs, different runs, exit codes."""
    rng = random.Random(0)
    runs = done = lost = different = 0
    codes: dict[int, int] = {}
    while done < kills or runs < min(20, kills):
        runs += 1
        out = home / f"run-{control.replace(' ', '-')}-{runs}"
        while True:
            pid = start(home, out, control)
            deadline = time.monotonic() + rng.uniform(0.0, whole * 0.5)
            ended = 0
            while not ended and time.monotonic() < deadline:
                ended, status = os.waitpid(pid, os.WNOHANG)
                time.sleep(0.001)
            if not ended:
                os.kill(pid, signal.SIGKILL)
                _, status = os.waitpid(pid, 0)
                done += 1
            code = os.waitstatus_to_exitcode(status)
            codes[code] = codes.get(code, 0) + 1
            if code == 0:
                different += outcome(out) != wanted
                break
            if code != -9:
                lost += 1
                break
        shutil.rmtree(out, ignore_errors=True)
    return runs, done, lost, different, codes


def print_row(control: str, runs: int, kills: int, lost: int, different: int, codes: Any) -> None:
    """One campaign in one line."""
    name = f"control ({control})" if control else "vitft"
    told = ", ".join(f"{code}: {n}" for code, n in sorted(codes.items()))
    print(
        f"{name}: {kills} kills, {runs} runs, {lost} lost, {different} different; exit codes {told}"
    )
    sys.stdout.flush()


if __name__ == "__main__":
    main()
