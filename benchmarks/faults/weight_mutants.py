"""Damaged weight files: how many end in an error message, a traceback or a hang, or are accepted.

    python -m benchmarks.faults.weight_mutants             # 10,000 .safetensors, 1,000 .pth, 1,000 .npz
    python -m benchmarks.faults.weight_mutants --count 500     # a twentieth of that

Each mutant is a small valid file with bytes flipped, cut, doubled, overwritten or swapped, mostly in its
header. It is opened as `load_pretrained` does, in this process, first without a digest and then with the
digest of the valid file. Exits with 1 after a traceback, a hang of more than 2 s, or a mutant that is
accepted although its digest is known. The control reads without a digest: it must accept some.
"""

import argparse
import collections
import hashlib
import io
import random
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save
from torch import Tensor

from benchmarks.faults.mutate import mutate_bytes
from tests.contract.built.weights import random_weights
from tests.models.pretrained.test_flavours import google_arrays
from vitft.models.pretrained.weights import open_pretrained
from vitft.models.vit_config import ViTConfig
from vitft.system.errors import VitftError

CONFIG = ViTConfig(
    image_size=(8, 8), patch_size=(4, 4), width=64, depth=1, heads=1, num_classes=3, mlp_ratio=1.0
)
SEED = 20261121


def good_files() -> dict[str, bytes]:
    """Return a valid file of each suffix, with the same weights."""
    state = random_weights(CONFIG)
    pickled, archived = io.BytesIO(), io.BytesIO()
    torch.save(state, pickled)
    np.savez(archived, **google_arrays(CONFIG, state))
    return {
        ".safetensors": save(state, metadata={"format": "pt"}),
        ".pth": pickled.getvalue(),
        ".npz": archived.getvalue(),
    }


def outcome(path: Path, sha256: str | None) -> tuple[str, float, str]:
    """Open a file; return accepted, refused or traceback, the seconds, and the message."""
    begun = time.perf_counter()
    try:
        source = open_pretrained(path, allow_pickle=True, sha256=sha256)
        kind, message = "accepted", check_shapes(source.tensors)
    except VitftError as error:
        kind, message = "refused", error.problem
    except MemoryError as error:
        kind, message = "traceback", f"MemoryError {error}"
    except Exception as error:
        kind, message = "traceback", f"{type(error).__name__}: {error}"
    return kind, time.perf_counter() - begun, message


def check_shapes(tensors: object) -> str:
    """Assert that accepted content maps names to tensors, as `open_pretrained` states."""
    assert isinstance(tensors, dict)
    assert all(isinstance(tensor, Tensor) for tensor in tensors.values())
    return ""


def campaign(suffix: str, content: bytes, count: int, folder: Path) -> collections.Counter[str]:
    """Open `count` mutants of one valid file and count the outcomes."""
    rng = random.Random(f"{SEED}{suffix}")
    digest = hashlib.sha256(content).hexdigest()
    header = 8 + int.from_bytes(content[:8], "little") if suffix == ".safetensors" else 4000
    counts: collections.Counter[str] = collections.Counter()
    path = folder / f"mutant{suffix}"
    for _ in range(count):
        mutant = mutate_bytes(content, rng, header)
        if mutant == content:
            counts["unchanged"] += 1
            continue
        path.write_bytes(mutant)
        kind, seconds, message = outcome(path, None)
        counts[kind] += 1
        counts["hangs"] += seconds > 2
        counts["slowest ms"] = max(counts["slowest ms"], round(1000 * seconds))
        if kind == "traceback":
            print(f"{suffix}: {message[:200]}")
            Path(tempfile.gettempdir(), f"mutant-{counts[kind]}{suffix}").write_bytes(mutant)
        counts[f"with digest: {outcome(path, digest)[0]}"] += 1
    return counts


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=10_000, help="mutants of .safetensors")
    count = parser.parse_args().count
    torch.set_num_threads(1)
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        for suffix, content in good_files().items():
            path = Path(folder) / f"good{suffix}"
            path.write_bytes(content)
            assert outcome(path, None)[0] == "accepted", outcome(path, None)
            begun = time.perf_counter()
            number = count if suffix == ".safetensors" else count // 10
            counts = campaign(suffix, content, number, Path(folder))
            shown = ", ".join(f"{key} {value}" for key, value in sorted(counts.items()))
            print(f"{suffix:<13}{number} mutants of {len(content)} bytes in "
                  f"{time.perf_counter() - begun:.0f} s: {shown}", flush=True)  # fmt: skip
            failed += counts["traceback"] + counts["hangs"] + counts["with digest: accepted"]
            failed += counts["accepted"] == 0  # the control
    print("no violations" if not failed else f"violations: {failed}")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
