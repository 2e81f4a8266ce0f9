"""Studies, dry runs and the cache of features, command by command."""

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from tests.contract.golden.readers import flat_lines, shown
from tests.contract.golden.sequences.sessions import WEIGHTS, draw_leaves
from vitft.features import JoinedStore, Store, key_of

FINETUNE = f"finetune --weights {WEIGHTS} --device cpu --set train.precision=fp32 --out"
SETTING = re.compile(r"^(?:\w+ = .*|\[\w+\]|    .*|\]|)\n", re.MULTILINE)


def draw_data() -> None:
    """Draw pictures in folders, and write tables with groups and parts, and with two labels."""
    draw_leaves(15)
    groups, several = ["path,label,patient,split"], ["path,rust,scab"]
    for i, path in enumerate(sorted(Path("leaves").iterdir())):
        folder = Path("classes", path.name[:3])
        folder.mkdir(parents=True, exist_ok=True)
        path = path.rename(folder / path.name)
        part = "test" if i % 12 < 3 else "train"
        groups.append(f"{path},{folder.name},p{i // 3},{part}")
        several.append(f"{path},{i % 2},{i // 2 % 2}")
    Path("groups.csv").write_text("\n".join(groups))
    Path("several.csv").write_text("\n".join(several))


def all_shown(*lines: str) -> Iterator[str]:
    """Return what commands print."""
    for line in lines:
        yield shown(*shlex.split(line))


def study(out: str, options: str) -> Iterator[str]:
    """Return what a study prints and writes, without its precision, which follows the CPU."""
    (printed,) = all_shown(f"study {options} --out {out} --device cpu")
    texts = [printed, (Path(out) / "study.md").read_text()]
    texts += flat_lines(json.loads((Path(out) / "study.json").read_text()))
    yield re.sub(r"\b(bf16|fp32)\b", "...", "\n".join(texts))
    yield " ".join(sorted(path.name for path in Path(out).iterdir()))


def studies() -> Iterator[str]:
    """Studies of folders and of a table with groups, also with weights that know some images."""
    draw_data()
    list(all_shown(
        f"{FINETUNE} tuned --data groups.csv --train all --epochs 1 --cache none",
        f"{FINETUNE} solved --data groups.csv --cache none",
    ))  # fmt: skip
    yield from study("a", f"--data classes --weights {WEIGHTS} none --shots 2 5 99 --seeds 2")
    options = "--shots 2 8 --seeds 1 --no-baselines --cache ../cache"
    yield from study("b", f"--data groups.csv --weights pixels tuned solved {options}")
    yield from study("c", f"--data classes --weights tuned {options}")


def plans() -> Iterator[str]:
    """Dry runs of every kind of training; later ones without the settings of the first."""
    draw_data()
    known: set[str] = set()
    for options in (
        "", "--train blocks:1", "--train all", "--train lora",
        "--train pre_logits --pre-logits keep",
        "--train head,all --epochs 2", "--budget 1h", "--max-time 2h", "--set train.augment=crop",
        "--train blocks:1 --set train.views=3", "--set train.views=3", "--train blocks:3",
        "--train all --set train.sampling=balanced", "--data groups.csv",
        "--data several.csv --set data.label=rust,scab", "--train all --set optim.batch_size=5",
        "--weights none --image-size 16",
    ):  # fmt: skip
        data = "" if "--data" in options else "--data classes"
        line = FINETUNE.partition("--weights")[0] + f"--device cpu {data} {options}"
        weights = "" if "--weights" in options else f"--weights {WEIGHTS}"
        (text,) = all_shown(f"{line} {weights} --dry-run --set train.precision=fp32 --out run")
        yield SETTING.sub(lambda found: "" if found[0] in known else found[0], text)  # noqa: B023
        known = known or {*SETTING.findall(text)}


def cache() -> Iterator[str]:
    """Lines about the cache of runs that share features, and commands on it."""
    draw_data()
    blocks = "--data groups.csv --train blocks:1 --epochs 1 --lr 0.003 --cache ../cache"
    for line in (
        f"{FINETUNE} one --data classes --cache ../cache",
        f"{FINETUNE} two --data groups.csv --cache ../cache",
        f"{FINETUNE} three {blocks}",
        f"{FINETUNE} four {blocks} --seed 1",
        f"{FINETUNE} five {blocks} --set train.views=2",
        f"{FINETUNE} six {blocks} --set train.views=2",
    ):
        (text,) = all_shown(f"{line} -v")
        about = re.findall(
            r"^(?:\$|.*(?:cach(?:ed|ing|e:)|features |checking )|\[exit).*", text, re.M
        )
        yield "\n".join(about)
    for line in ("list", "clean --to-gb 1", "clean --to-gb -1", "clean", "list"):
        (text,) = all_shown(f"cache {line} --cache ../cache")
        yield "\n".join(sorted(text.splitlines()))  # the order follows the times of last use
    yield from known_rows()


def known_rows() -> Iterator[str]:
    """Rows that two stores and both as one contain, before and after they are written."""
    sizes = {"leading": 2, "rest": 3}
    first, second = (
        Store(Path("../rows"), {"part": name}, (size,), "float32") for name, size in sizes.items()
    )
    joined = JoinedStore(first, second)
    joined.add({key_of("both"): np.arange(5, dtype=np.float32)})
    first.add({key_of("first only"): np.array([7, 8], np.float32)})
    second.add({key_of("second only"): np.array([4, 5, 6], np.float32)})
    for when in ("added", "written"):
        for name in ("both", "first only", "second only", "none"):
            found = [
                (key_of(name) in one, one.get(key_of(name))) for one in (first, second, joined)
            ]
            yield f"{when}, {name}: {', '.join(f'{known} {row}' for known, row in found)}"
        joined.flush()
