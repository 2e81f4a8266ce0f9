"""Mutation campaign: random single-line faults in vitft, and how many of them the tests detect.

    python -m benchmarks.faults.mutants --modules 30 --each 5              # drawn at random
    python -m benchmarks.faults.mutants --each 8 vitft/features/head.py    # in the given modules

A fault changes one expression or statement: a comparison, a number, a sign, a boolean, a call, a
branch or a return value. It is planted in a copy of the checkout, and pytest runs there in a forked
child that has torch loaded: the test file of the module and those of its package that import it,
and with `--package` then the others of the package. A fault survives if all of them pass. The
faults in `equivalent.csv` change no promised behaviour (an equal result, another speed) and are
counted apart.

Exits with 1 if fewer than 97% of the other faults are detected, or if tests fail without a fault.
"""

import argparse
import ast
import collections
import csv
import os
import random
import re
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy  # noqa: F401 - loaded once, for all children
import PIL.Image  # noqa: F401
import pytest
import torch

ROOT = Path(__file__).parents[2]
EQUIVALENT = Path(__file__).with_name("equivalent.csv")
WANTED = 0.97
"""Fraction of the faults to detect."""
COMPARISONS: dict[type[ast.cmpop], str] = {
    ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">", ast.Eq: "!=", ast.NotEq: "==",
    ast.Is: "is not", ast.IsNot: "is", ast.In: "not in", ast.NotIn: "in",
}  # fmt: skip
OPERATORS: dict[type[ast.operator], tuple[str, str]] = {
    ast.Add: ("+", "-"), ast.Sub: ("-", "+"), ast.Mult: ("*", "/"), ast.Div: ("/", "*"),
    ast.FloorDiv: ("//", "*"), ast.Mod: ("%", "*"), ast.Pow: ("**", "*"), ast.BitAnd: ("&", "|"),
    ast.BitOr: ("|", "&"),
}  # fmt: skip
IGNORED_KEYWORDS = ("strict", "linewidth", "fontsize", "markersize", "labelsize", "frameon")
"""Arguments without faults: `strict` of zip, an assertion, and the style of figures."""
IGNORED_CALLS = re.compile(r"^(log\.|print\b|console\.|warnings\.)")


@dataclass(frozen=True, slots=True)
class Fault:
    """Replacement of a span of a module's source."""

    module: str  # path relative to the checkout
    line: int
    begin: int  # offsets in the UTF-8 bytes of the file
    end: int
    text: str
    kind: str

    def planted(self, source: bytes) -> bytes:
        """Return the source with the fault."""
        return source[: self.begin] + self.text.encode() + source[self.end :]

    def change(self, source: bytes) -> tuple[str, str]:
        """Return the lines of the span before and after the fault, without indentation."""
        first = source.rfind(b"\n", 0, self.begin) + 1
        last = (source + b"\n").find(b"\n", self.end)
        after = source[first : self.begin] + self.text.encode() + source[self.end : last]
        return squeezed(source[first:last]), squeezed(after)


def squeezed(text: bytes) -> str:
    """Return text with every run of white space as one space."""
    return " ".join(text.decode().split())


class Planter(ast.NodeVisitor):
    """Collector of the faults that can be planted in a module."""

    def __init__(self, module: str, source: bytes) -> None:
        self.module, self.source = module, source
        self.starts = [0, *(match.end() for match in re.finditer(b"\n", source))]
        self.found: list[Fault] = []

    def add(self, node: ast.AST, text: str, kind: str) -> None:
        """Add a fault that replaces the source of a node."""
        begin, end = self.span(node)
        self.found.append(Fault(self.module, node.lineno, begin, end, text, kind))  # type: ignore[attr-defined]

    def span(self, node: ast.AST) -> tuple[int, int]:
        """Return the offsets of a node's source in bytes."""
        begin = self.starts[node.lineno - 1] + node.col_offset  # type: ignore[attr-defined]
        return begin, self.starts[node.end_lineno - 1] + node.end_col_offset  # type: ignore[attr-defined]

    def text(self, node: ast.AST) -> str:
        """Return the source of a node."""
        begin, end = self.span(node)
        return self.source[begin:end].decode()

    def between(self, left: ast.AST, right: ast.AST, old: str, new: str, kind: str) -> None:
        """Add a fault that replaces the operator `old` between two nodes."""
        begin, end = self.span(left)[1], self.span(right)[0]
        gap = self.source[begin:end].decode()
        if gap.count(old) == 1 and "#" not in gap:
            line = self.source.count(b"\n", 0, begin) + 1
            text = gap.replace(old, new)
            self.found.append(Fault(self.module, line, begin, end, text, kind))

    def visit(self, node: ast.AST) -> None:
        """Collect the faults of a node and of its children."""
        if isinstance(node, ast.Raise | ast.Assert | ast.JoinedStr):
            return  # texts of messages
        if isinstance(node, ast.If) and self.text(node.test) == "TYPE_CHECKING":
            return
        if isinstance(node, ast.keyword) and node.arg in IGNORED_KEYWORDS:
            return
        if isinstance(node, ast.Call) and IGNORED_CALLS.match(self.text(node.func)):
            return
        self.visit_here(node)
        if isinstance(node, ast.AnnAssign):  # not the annotation
            self.visit(node.target)
            if node.value is not None:
                self.visit(node.value)
        elif isinstance(node, ast.FunctionDef):
            for child in [*node.args.defaults, *filter(None, node.args.kw_defaults), *node.body]:
                self.visit(child)
        elif isinstance(node, ast.ClassDef):  # not the decorators
            for child in node.body:
                self.visit(child)
        elif not (isinstance(node, ast.Subscript) and is_type(node)):
            self.generic_visit(node)

    def visit_here(self, node: ast.AST) -> None:
        """Collect the faults of a node itself."""
        match node:
            case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in COMPARISONS:
                self.compare(left, op, right)
            case ast.Constant(value=bool() as value):
                self.add(node, str(not value), "boolean")
            case ast.Constant(value=int() | float() as value):
                self.add(node, repr(value + 1), "off by one")
                self.add(node, repr(value * 3 if value else -1), "constant")
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                self.add(node, self.text(operand), "sign")
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                self.add(node, self.text(operand), "boolean")
            case ast.BinOp(left=left, op=op, right=right) if type(op) in OPERATORS:
                self.between(left, right, *OPERATORS[type(op)], "operator")
            case ast.BoolOp(values=[first, second, *_], op=op):
                words = ("and", "or") if isinstance(op, ast.And) else ("or", "and")
                self.between(first, second, *words, "boolean")
            case ast.If(test=test) | ast.IfExp(test=test):
                self.add(test, f"not ({self.text(test)})", "swapped branches")
            case ast.Expr(value=ast.Call()):
                if not IGNORED_CALLS.match(self.text(node)):
                    self.add(node, "pass", "dropped call")
            case ast.Call(func=ast.Name(id="min" | "max" as name)):
                self.add(node.func, {"min": "max", "max": "min"}[name], "swapped call")
            case ast.Return(value=ast.expr() as value) if self.text(value) not in ("None", "[]"):
                self.add(node, "return None", "early return")

    def compare(self, left: ast.AST, op: ast.cmpop, right: ast.AST) -> None:
        """Add the faults of one comparison: its border, or its opposite."""
        begin, end = self.span(left)[1], self.span(right)[0]
        old = re.sub(r"[\s()]+", " ", self.source[begin:end].decode()).strip()
        self.between(left, right, old, COMPARISONS[type(op)], "comparison")


def is_type(node: ast.Subscript) -> bool:
    """Return whether a subscript is a type such as `dict[str, int]`."""
    return isinstance(node.value, ast.Name) and node.value.id in (
        "dict",
        "list",
        "tuple",
        "Literal",
    )


def faults_of(root: Path, module: str) -> list[Fault]:
    """Return all faults that can be planted in a module."""
    source = (root / module).read_bytes()
    planter = Planter(module, source)
    planter.visit(ast.parse(source))
    return planter.found


def compiles(source: bytes) -> bool:
    """Return whether a module can be compiled."""
    try:
        compile(source, "mutant", "exec")
    except SyntaxError:
        return False
    return True


def drawn(root: Path, module: str, each: int, rng: random.Random) -> list[Fault]:
    """Draw faults of a module, at most one per line, the kinds equally often where possible."""
    source, faults = (root / module).read_bytes(), faults_of(root, module)
    by_kind = collections.defaultdict(list)
    for fault in rng.sample(faults, len(faults)):
        by_kind[fault.kind].append(fault)
    chosen: dict[int, Fault] = {}
    while len(chosen) < each and any(by_kind.values()):
        for kind in rng.sample(sorted(by_kind), len(by_kind)):
            if by_kind[kind] and len(chosen) < each:
                fault = by_kind[kind].pop()
                if fault.line not in chosen and compiles(fault.planted(source)):
                    chosen[fault.line] = fault
    return [chosen[line] for line in sorted(chosen)]


# ---- tests


class Checkout:
    """Copy of the checkout in which faults are planted and tests are run."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "checkout"
        skipped = shutil.ignore_patterns(".*", "__pycache__", "runs", "*.egg-info")
        shutil.copytree(ROOT, self.root, ignore=skipped)
        self.log = folder / "pytest.log"
        self.texts = {path: path.read_text() for path in sorted(self.root.glob("tests/**/*.py"))}

    def stages(self, module: str, *, package_too: bool) -> Iterator[list[str]]:
        """Yield the test files of a module, and the others of its package."""
        package, _, stem = module.removesuffix(".py").replace("/", ".").rpartition(".")
        folder = self.root / "tests" / package.removeprefix("vitft").strip(".").replace(".", "/")
        while not folder.is_dir():  # the tests of a package may be those of the one above
            folder = folder.parent
        inside = sorted(folder.glob("**/test_*.py" if package != "vitft" else "test_*.py"))
        stems = {stem}
        if not any(path.stem == f"test_{stem}" for path in inside):  # tested through its importers
            others = (self.root / module).parent.glob("*.py")
            stems |= {p.stem for p in others if names(p.read_text(), package, stem)}
        near = [
            path
            for path in inside
            if path.stem.removeprefix("test_") in stems or names(self.texts[path], package, stem)
        ]
        near.sort(key=lambda path: path.stem != f"test_{stem}")
        rest = [path for path in inside if path not in near] if package_too or not near else []
        for paths in filter(None, (near, rest)):
            yield [str(path.relative_to(self.root)) for path in paths]

    def plant(self, module: str, content: bytes) -> None:
        """Write a module and remove its compiled form."""
        path = self.root / module
        path.write_bytes(content)
        for compiled in (path.parent / "__pycache__").glob(f"{path.stem}.*"):
            compiled.unlink()

    def test(self, files: list[str], timeout_s: float) -> str:
        """Run tests in a child; return passed, the first failed test, or `timeout`."""
        pid = os.fork()
        if not pid:
            self.run_pytest(files)
        end = time.monotonic() + timeout_s
        while time.monotonic() < end:
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                return "passed" if status == 0 else self.first_failure()
            time.sleep(0.05)
        os.killpg(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        return "timeout"

    def run_pytest(self, files: list[str]) -> None:
        """Run tests in this process and end it."""
        code = 1
        try:
            os.setpgid(0, 0)
            descriptor = os.open(self.log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            for stream in (1, 2):
                os.dup2(descriptor, stream)
            os.chdir(self.root)
            os.environ["PYTHONPATH"] = str(self.root)
            sys.path[:] = [str(self.root), *(p for p in sys.path if p not in ("", str(ROOT)))]
            temporary = f"--basetemp={self.log.parent / 'tests'}"
            code = pytest.main(["-x", "-q", "-p", "no:cacheprovider", temporary, *files])
            sys.stdout.flush()
        finally:
            os._exit(int(code))

    def first_failure(self) -> str:
        """Return the name of the first test in the log that failed."""
        found = re.search(r"^(?:FAILED|ERROR) (\S+)", self.log.read_text(errors="replace"), re.M)
        return found[1] if found else "no summary"


def names(text: str, package: str, stem: str) -> bool:
    """Return whether a file imports the module `stem` of a package."""
    return bool(re.search(rf"{re.escape(package)}(\.{stem}\b| import .*\b{stem}\b)", text))


@dataclass(slots=True)
class Result:
    """Outcome of one fault."""

    fault: Fault
    before: str
    after: str
    outcome: str = "survived"
    """killed, timeout, survived, equivalent, or unusable if a test fails without the fault."""
    by: str = ""


def campaign(
    checkout: Checkout, module: str, faults: list[Fault], *, package_too: bool
) -> Iterator[Result]:
    """Plant the faults of a module in turn and run its tests, unless they fail without a fault."""
    source = (checkout.root / module).read_bytes()
    known = equivalents()
    stages = list(checkout.stages(module, package_too=package_too))
    limits: dict[int, float] = {}
    for fault in faults:
        result = Result(fault, *fault.change(source))
        if (module, result.before, result.after) in known:
            result.outcome = "equivalent"
            yield result
            continue
        for stage, files in enumerate(stages):
            if stage not in limits:
                begun = time.monotonic()
                checkout.plant(module, source)
                if (name := checkout.test(files, 600)) != "passed":
                    yield Result(fault, result.before, result.before, "unusable", name)
                    return
                limits[stage] = 30 + 4 * (time.monotonic() - begun)
            checkout.plant(module, fault.planted(source))
            result.by = checkout.test(files, limits[stage])
            if result.by != "passed":
                result.outcome = "timeout" if result.by == "timeout" else "killed"
                break
        checkout.plant(module, source)
        yield result


def equivalents() -> set[tuple[str, str, str]]:
    """Return the module and the lines before and after each fault known not to matter."""
    with EQUIVALENT.open(newline="", encoding="utf-8") as file:
        return {(row["module"], row["before"], row["after"]) for row in csv.DictReader(file)}


def modules_of(root: Path, count: int, rng: random.Random) -> list[str]:
    """Draw modules with at least ten possible faults."""
    paths = (str(path.relative_to(root)) for path in sorted(root.glob("vitft/**/*.py")))
    usable = [path for path in paths if len(faults_of(root, path)) >= 10]
    return sorted(rng.sample(usable, min(count, len(usable))))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("module", nargs="*", help="paths of modules (default: drawn at random)")
    parser.add_argument("--modules", type=int, default=30, help="number of modules to draw")
    parser.add_argument("--each", type=int, default=5, help="faults per module")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--package", action="store_true", help="run all tests of the package")
    parser.add_argument("--list", action="store_true", help="print the drawn faults only")
    args = parser.parse_args()
    os.nice(10)
    torch.set_num_threads(1)
    counts: collections.Counter[str] = collections.Counter()
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        checkout = Checkout(Path(folder))
        for module in args.module or modules_of(
            checkout.root, args.modules, random.Random(args.seed)
        ):
            faults = drawn(checkout.root, module, args.each, random.Random(f"{args.seed} {module}"))
            if args.list:
                print("\n".join(f"{module}:{f.line} {f.kind}: {f.text}" for f in faults))
                continue
            for result in campaign(checkout, module, faults, package_too=args.package):
                counts[result.outcome] += 1
                print(f"{result.outcome:<10} {module}:{result.fault.line} {result.fault.kind}\n"
                      f"    - {result.before[:300]}\n    + {result.after[:300]}\n"
                      f"    {result.by}", flush=True)  # fmt: skip
    detected = counts["killed"] + counts["timeout"]
    matter = detected + counts["survived"]
    print(f"{detected} of {matter} faults detected ({detected / max(1, matter):.1%}), "
          f"{counts['timeout']} of them by a timeout; {counts['equivalent']} equivalent")  # fmt: skip
    return int(detected < WANTED * matter or counts["unusable"] > 0)


if __name__ == "__main__":
    sys.exit(main())
