"""Build the release and run its test suite on the oldest and the newest supported versions.

    python tests/matrix.py --oldest PYTHON --newest PYTHON [--out DIR] [--jobs N]

It needs the packages build and uv. For each of the two interpreters, an empty environment gets the
wheel with the extra `test`: with the lowest versions that pyproject.toml allows, and with the
newest ones. The suite is that of the source distribution, in which a link to the installed
package takes the place of `vitft/`, so that the tests import nothing else. A second environment has
no extras and runs `vitft demo`. The results are written to DIR/results.md, and the output of each
group of tests beside the suite. `make matrix` calls it. Last results: maintainers/release.md.
"""

import argparse
import os
import re
import shlex
import shutil
import subprocess
import sys
import tarfile
import time
import tomllib
import zipfile
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).parents[1]
SHOWN = ("torch", "torchvision", "timm", "transformers", "numpy", "pillow", "onnxruntime")
HEADING = (
    f"| | Python | {' | '.join(SHOWN)} | `vitft demo` | tests |\n"
    f"|---|---|{'---|' * len(SHOWN)}---|---|"
)
PYTEST_OPTIONS = ("-q", "-p", "no:cacheprovider")
OLD_OPTIONS = ("-W", "ignore::DeprecationWarning", "-W", "ignore::PendingDeprecationWarning")
"""Options for old versions of dependencies, which use what newer versions of others deprecate."""


def main() -> int:
    """Build the release, test each combination and write the results."""
    parser = argparse.ArgumentParser(description="Test the release on several versions.")
    parser.add_argument("--oldest", required=True, help="oldest supported Python")
    parser.add_argument("--newest", required=True, help="newest supported Python")
    parser.add_argument("--out", type=Path, default=Path("matrix"), help="folder to write")
    parser.add_argument("--only", choices=["oldest", "newest"], help="test one combination")
    parser.add_argument("--jobs", type=int, default=1, help="groups of tests at a time")
    parser.add_argument("--prefix", default="", help="command that runs each group of tests")
    parser.add_argument("groups", nargs="*", help="files and folders in tests (default: all)")
    args = parser.parse_args()
    out = args.out.resolve()
    wheel, source = build(out / "dist")
    print_contents(wheel, source)
    rows = [HEADING]
    for name in [args.only] if args.only else ["oldest", "newest"]:
        python, is_oldest = getattr(args, name), name == "oldest"
        bare = create(out / f"{name}-bare", python, wheel, "", is_oldest=is_oldest)
        demo = run_demo(bare)
        full = create(out / name, python, wheel, "[test]", is_oldest=is_oldest)
        suite = unpack(source, out / f"{name}-suite", full)
        command = [*shlex.split(args.prefix), str(full), "-m", "pytest", *PYTEST_OPTIONS]
        command += OLD_OPTIONS if is_oldest else ()
        counts = run_suite(command, suite, args.groups, args.jobs)
        rows.append(f"| {name} | {versions(full)} | {demo} | {counts} |")
        (out / "results.md").write_text("\n".join(rows) + "\n", encoding="utf-8", newline="\n")
        print(rows[-1])
    return int(any("failed" in row or "error" in row for row in rows[1:]))


def build(folder: Path) -> tuple[Path, Path]:
    """Build both distributions and return the wheel and the source distribution."""
    shutil.rmtree(folder, ignore_errors=True)
    run([sys.executable, "-m", "build", "--outdir", str(folder), str(ROOT)])
    return next(folder.glob("*.whl")), next(folder.glob("*.tar.gz"))


def print_contents(wheel: Path, source: Path) -> None:
    """Print the sizes of both distributions and, by folder, of the files in the wheel."""
    with tarfile.open(source) as archive:
        print(
            f"{source.name}: {source.stat().st_size / 1e6:.1f} MB, {len(archive.getnames())} files"
        )
    sizes: dict[str, list[int]] = {}
    with zipfile.ZipFile(wheel) as archive:
        files = archive.infolist()
    print(f"{wheel.name}: {wheel.stat().st_size / 1e6:.1f} MB, {len(files)} files")
    for file in files:
        sizes.setdefault("/".join(file.filename.split("/")[:2]), []).append(file.file_size)
    for name, parts in sorted(sizes.items()):
        print(f"  {name}: {len(parts)} files, {sum(parts) / 1e3:,.0f} kB")


def create(folder: Path, python: str, wheel: Path, extras: str, *, is_oldest: bool) -> Path:
    """Create an environment with the wheel, and return its interpreter."""
    shutil.rmtree(folder, ignore_errors=True)
    run([python, "-m", "venv", str(folder)])
    interpreter = folder / "bin" / "python"
    install = [sys.executable, "-m", "uv", "pip", "install", "--quiet"]
    install += ["--python", str(interpreter)]
    if is_oldest:
        install += ["--constraint", str(lowest_versions(folder, interpreter, extras))]
    run([*install, f"{wheel}{extras}"])
    return interpreter


def lowest_versions(folder: Path, interpreter: Path, extras: str) -> Path:
    """Write the lowest versions of the requirements as a file of constraints."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = [*project["dependencies"]]
    wanted += project["optional-dependencies"]["test"] if extras else []
    direct, lowest = folder / "direct.txt", folder / "lowest.txt"
    direct.write_text("\n".join(wanted) + "\n", encoding="utf-8")
    resolve = ["uv", "pip", "compile", "--quiet", "--resolution", "lowest-direct"]
    resolve += ["--python", str(interpreter), "--output-file", str(lowest), str(direct)]
    run([sys.executable, "-m", *resolve])
    return lowest


def run_demo(interpreter: Path) -> str:
    """Run `vitft demo` without extras in a new folder, and return what came of it."""
    home = interpreter.parents[1] / "demo"
    home.mkdir()
    done = subprocess.run(
        [str(interpreter.with_name("vitft")), "demo"],
        cwd=home,
        capture_output=True,
        text=True,
        check=False,
    )
    found = re.search(r"^pretrained .*? (\d+\.\d%)", done.stdout, re.MULTILINE)
    return found[1] if done.returncode == 0 and found else f"failed ({done.returncode})"


def unpack(source: Path, folder: Path, interpreter: Path) -> Path:
    """Unpack the source distribution with a link to the installed package in place of its own."""
    shutil.rmtree(folder, ignore_errors=True)
    with tarfile.open(source) as archive:
        archive.extractall(folder, filter="data")
    (suite,) = folder.iterdir()
    where = "import os, vitft; print(os.path.dirname(vitft.__file__))"
    shutil.rmtree(suite / "vitft")
    package = subprocess.run(
        [str(interpreter), "-c", where], cwd=folder, capture_output=True, text=True, check=True
    )
    (suite / "vitft").symlink_to(package.stdout.strip())
    return suite


def run_suite(command: Sequence[str], suite: Path, groups: Sequence[str], jobs: int) -> str:
    """Run the tests, one process for each file or folder in `tests`, and return the counts."""
    tests = suite / "tests"
    found = {path.name: sum(1 for _ in path.rglob("test_*.py")) for path in tests.iterdir()}
    names = groups or sorted(
        (name for name in found if found[name] or name.startswith("test_")),
        key=lambda name: -found[name],  # the longest first
    )
    started = time.monotonic()
    with ThreadPoolExecutor(jobs) as pool:
        counts = sum(pool.map(lambda name: run_group(command, suite, name), names), Counter[str]())
    text = ", ".join(f"{counts[kind]:,} {kind}" for kind in sorted(counts, reverse=True))
    return f"{text}, {(time.monotonic() - started) / 60:.0f} min"


def run_group(command: Sequence[str], suite: Path, name: str) -> Counter[str]:
    """Run a file or folder in `tests` and return the number of tests by result."""
    log = suite.parent / (name.replace("/", "-") + ".log")
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with log.open("w", encoding="utf-8", newline="\n") as file:
        done = subprocess.run(
            [*command, f"tests/{name}"],
            cwd=suite, env=environment, stdout=file, stderr=subprocess.STDOUT, check=False,
        )  # fmt: skip
    last = log.read_text(encoding="utf-8").rstrip().rpartition("\n")[2]
    print(f"  {name}: {last}", flush=True)
    found = re.findall(r"(\d+) (passed|failed|skipped|error|xfailed)", last)
    counts = Counter({kind: int(number) for number, kind in found})
    if done.returncode and not counts["failed"] + counts["error"]:  # e.g. pytest was killed
        counts["error"] += 1
    return counts


def versions(interpreter: Path) -> str:
    """Return the versions of Python and of the packages in `SHOWN`."""
    code = (
        "import platform, importlib.metadata as m;"
        f"print(platform.python_version(), *(m.version(n) for n in {SHOWN}), sep=' | ')"
    )
    return subprocess.run(
        [str(interpreter), "-c", code], capture_output=True, text=True, check=True
    ).stdout.strip()


def run(command: Sequence[str]) -> None:
    """Run a command, and stop if it fails."""
    subprocess.run(command, check=True)


if __name__ == "__main__":
    sys.exit(main())
