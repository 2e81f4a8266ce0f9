"""Print the size of the package, tests and pages: `python maintainers/size.py` (extra `docs`)."""

import ast
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from html import unescape
from pathlib import Path

from markdown import markdown  # type: ignore[import-untyped]

ROOT = Path(__file__).parents[1]
COLUMNS = ("code", "docstring", "comment", "blank", "import", "lines", "modules", "names", "public",
           "records", "isinstance")  # fmt: skip
RECORDS = r"\b(dataclass|NamedTuple|TypedDict|\w*Enum)\b"
IMPORT = ast.Import | ast.ImportFrom
FUNCTION = ast.FunctionDef | ast.AsyncFunctionDef


def modules(folder: str, pattern: str = "*.py") -> Iterator[tuple[Path, str, ast.Module]]:
    """Yield the path, text and syntax tree of each file below a folder."""
    for path in sorted((ROOT / folder).rglob(pattern)):
        yield path.relative_to(ROOT / folder), (text := path.read_text()), ast.parse(text)


def lines_by_kind(text: str, tree: ast.Module) -> Counter[str]:
    """Return the number of lines of each kind; texts below constants are docstrings, too."""
    lines = [line.strip() for line in text.splitlines()]
    kinds = ["comment" if s[:1] == "#" else "code" if s else "blank" for s in lines]
    for node in ast.walk(tree):
        is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if isinstance(node, ast.stmt) and (is_text or isinstance(node, IMPORT)):
            for number in range(node.lineno - 1, node.end_lineno or node.lineno):
                kinds[number] = "docstring" if is_text else "import"
    return Counter(kinds)


def main() -> None:
    """Print one line for each package, then the tests and the pages."""
    found: dict[str, Counter[str]] = defaultdict(Counter)
    walked = (node for _, _, tree in modules("vitft/models") for node in ast.walk(tree))
    models = {node.name for node in walked if isinstance(node, ast.ClassDef)}
    for path, text, tree in modules("vitft"):
        counts = found[path.parts[0] if len(path.parts) > 1 else "."]
        counts += lines_by_kind(text, tree) + Counter(lines=len(text.splitlines()), modules=1)
        targets = [t for n in tree.body for t in getattr(n, "targets", [getattr(n, "target", n)])]
        names = [getattr(target, "name", getattr(target, "id", "_")) for target in targets]
        counts["names"] += sum(not name.startswith("_") for name in names)
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                bases = ", ".join(map(ast.unparse, [*node.decorator_list, *node.bases]))
                counts["records"] += bool(re.search(RECORDS, bases))
            elif isinstance(node, ast.Call) and ast.unparse(node.func) == "isinstance":
                asked = models & {*re.findall(r"\w+", ast.unparse(node.args[1]))}
                counts["isinstance"] += bool(asked) and path.parts[0] != "models"
    for path, _, tree in modules("vitft", "__init__.pyi"):
        found[path.parts[0] if len(path.parts) > 1 else "."]["public"] += len(tree.body) - 1
    found["all"] = sum(found.values(), Counter())
    print(f"{'':12}" + "".join(f"{name:>11}" for name in COLUMNS))
    for package, counts in sorted(found.items(), key=lambda one: one[1]["lines"]):
        print(f"{package:12}" + "".join(f"{counts[name]:11,}" for name in COLUMNS))

    total, imported = Counter[str](), set[str]()
    for _, text, tree in modules("tests"):
        total["lines of tests"] += text.count("\n")
        total["of them replacing"] += len(re.findall(".*(?:setattr|SimpleNamespace)", text))
        for node in ast.walk(tree):
            total["functions"] += isinstance(node, FUNCTION) and node.name.startswith("test_")
            if isinstance(node, IMPORT):
                home = f"{node.module}." if isinstance(node, ast.ImportFrom) else ""
                imported |= {home + alias.name for alias in node.names}
    total["names of vitft imported"] = sum(name.startswith("vitft.") for name in imported)
    for page in (ROOT / "README.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").rglob("*.md")):
        html = markdown(page.read_text(encoding="utf-8"), extensions=["tables", "fenced_code"])
        shown = re.sub(r"<[^>]+>", " ", re.sub(r"</?(code|em|strong|a)\b[^>]*>", "", html))
        total["words of pages"] += len(re.findall(r"\S*\w\S*", unescape(shown)))
    print(", ".join(f"{number:,} {what}" for what, number in total.items()))


main()
