"""Single-line faults that can be planted in a module.

A fault changes one expression or statement: a comparison, a number, a sign, a boolean, a call, a
branch or a return value. Texts of messages, logs and the style of figures are left as they are.
"""

import ast
import collections
import functools
import random
import re
from dataclasses import dataclass
from pathlib import Path

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


def in_function(source: bytes, fault: Fault) -> bool:
    """Return whether a fault is in the body of a function, not in what an import runs."""
    return any(begin <= fault.begin and fault.end <= end for begin, end in all_bodies(source))


@functools.lru_cache(maxsize=4)
def all_bodies(source: bytes) -> list[tuple[int, int]]:
    """Return the offsets of the statements of all functions of a module."""
    planter = Planter("", source)
    return [
        planter.span(statement)
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        for statement in node.body
    ]


def statement_lines(source: bytes, line: int) -> range:
    """Return the lines of the smallest statement around a line, without the statements inside it.

    An interpreter executes some lines of a statement only.
    """
    around = [lines for lines in all_statements(source) if line in lines]
    return min(around, key=len, default=range(line, line + 1))


@functools.lru_cache(maxsize=4)
def all_statements(source: bytes) -> list[range]:
    """Return the lines of each statement of a module, without the statements inside it."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.stmt):
            body = getattr(node, "body", None)
            end = body[0].lineno if body else (node.end_lineno or node.lineno) + 1
            found.append(range(node.lineno, max(end, node.lineno + 1)))
    return found
