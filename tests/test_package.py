"""The package as a whole: import layers, start-up, names, budgets, and files that describe it."""

import ast
import importlib
import re
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.support.children import ended, python

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
SOURCES = sorted((ROOT / "vitft").rglob("*.py"))
REMAINDER = {
    name: {*found}
    for name, found in tomllib.loads((ROOT / "tests" / "remainder.toml").read_text()).items()
}
"""Exceptions to the rules below, from before the rules; the lists may only shrink."""


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def where(path: Path) -> str:
    return str(path.relative_to(ROOT / "vitft"))


# imports and start-up ----------------------------------------------------------------------------


def test_packages_import_only_from_lower_layers() -> None:
    done = ended([str(Path(sys.executable).with_name("lint-imports")), "--no-cache"], cwd=ROOT)

    assert done.returncode == 0, done.stdout[-3000:]


LIGHT = (
    "vitft", "vitft.check.folder", "vitft.cli.main", "vitft.config.run", "vitft.data.scan",
    "vitft.data.split", "vitft.data.sources", "vitft.data.transforms", "vitft.export.plan",
    "vitft.features.ood", "vitft.models.numpy_vit", "vitft.predict.engine", "vitft.predict.jobs",
    "vitft.predict.output", "vitft.predict.validation", "vitft.serve.label.pool",
    "vitft.study.plan", "vitft.system.console", "vitft.system.rundir", "vitft.training.checks",
)  # fmt: skip


def test_modules_that_check_arguments_start_without_torch() -> None:
    done = python(
        "import importlib, sys\n"
        "for name in sys.argv[1:]:\n"
        "    importlib.import_module(name)\n"
        "    assert not {'torch', 'timm'} & {*sys.modules}, name",
        *LIGHT,
    )

    assert done.returncode == 0, done.stderr


def test_a_run_without_sharding_does_not_import_dtensor() -> None:
    done = python(
        "import sys, vitft.training.run; print('torch.distributed.tensor' in sys.modules)"
    )

    assert done.stdout == "False\n", done.stderr


def module_name(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


MODULES = {module_name(path): path for path in SOURCES}


@cache
def is_public(package: str, name: str) -> bool:
    """Return whether a package declares a name in its __init__.pyi."""
    stub = MODULES[package].with_suffix(".pyi") if package in MODULES else ROOT / "no"
    return stub.exists() and any(
        isinstance(node, ast.ImportFrom) and node.names[0].name == name
        for node in ast.parse(stub.read_text()).body
    )


COMES_WITH = {
    "PIL": "pillow",
    "lazy_loader": "lazy-loader",
    "pillow_heif": "pillow-heif",
    "tomli_w": "tomli-w",
    "markupsafe": "jinja2",
    "mlflow": "mlflow-skinny",
    "h11": "uvicorn",
    "python_multipart": "python-multipart",
    "yaml": "pyyaml",
}
"""Distributions of modules that have another name, or that come with another package."""


def test_every_imported_package_is_a_dependency() -> None:
    extras = PROJECT["optional-dependencies"]
    lines = [*PROJECT["dependencies"], *(line for e in extras if e != "test" for line in extras[e])]
    installed = {re.split(r"[<>=]", line)[0] for line in lines}

    nodes = [node for path in SOURCES for node in ast.walk(tree_of(path))]
    modules = {str(node.module) for node in nodes if isinstance(node, ast.ImportFrom)}
    modules |= {a.name for node in nodes if isinstance(node, ast.Import) for a in node.names}
    names = {m.partition(".")[0] for m in modules} - {*sys.stdlib_module_names, "vitft"}

    assert {COMES_WITH.get(name, name) for name in names} <= installed


# names, budgets and habits -----------------------------------------------------------------------


def internal_imports() -> Iterator[str]:
    """Yield `test file: module.name` of each import of something that is not public."""
    for path in sorted((ROOT / "tests").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                found = [alias.name for alias in node.names if alias.name.startswith("vitft.")]
            elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("vitft"):
                home = str(node.module)
                found = [f"{home}.{a.name}" for a in node.names if not is_public(home, a.name)]
            else:
                continue
            for name in found:
                if not name.startswith("vitft.cli.main."):
                    yield f"{path.relative_to(ROOT)}: {name}"


def test_tests_import_public_names_only() -> None:
    assert {*internal_imports()} == REMAINDER["internal_imports"], (
        "a public name stands in the __init__.pyi of its package"
    )


def definitions(tree: ast.Module) -> Iterator[str]:
    """Yield the names of functions and constants; those of classes show in schemas and texts."""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name
        elif isinstance(node, ast.Assign):
            yield from (target.id for target in node.targets if isinstance(target, ast.Name))
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield node.target.id


WORD = re.compile(r"\w+")


def test_names_that_only_their_own_module_uses_are_private() -> None:
    others = [
        path
        for folder in ("vitft", "tests", "benchmarks", "docs", "weights")
        for path in (ROOT / folder).rglob("*")
        if path.suffix in (".py", ".pyi", ".j2")
    ]
    files = Counter(
        word
        for path in [*others, *ROOT.glob("*.md")]
        for word in {*WORD.findall(path.read_text(encoding="utf-8"))}
    )

    alone = [
        f"{where(path)}: {name}"
        for path in SOURCES
        if "reference" not in path.parts  # a program that people get
        for name in definitions(tree_of(path))
        if files[name] == 1 and not name.startswith(("_", "add_"))
    ]

    assert not alone, "begin these names with _"


def test_only_the_command_line_prints() -> None:
    printing = {
        where(path)
        for path in SOURCES
        for name, _ in calls(tree_of(path))
        if name in ("print", "sys.stdout.write", "sys.stderr.write")
    }

    assert {p for p in printing if not p.startswith("cli/")} <= {
        *("system/console.py", "export/reference/preprocess.py")  # the latter is itself a program
    }


def calls(tree: ast.AST) -> list[tuple[str, ast.Call]]:
    return [(ast.unparse(n.func), n) for n in ast.walk(tree) if isinstance(n, ast.Call)]


def test_nothing_in_the_package_can_run_foreign_code() -> None:
    for path in SOURCES:
        for name, call in calls(tree_of(path)):
            keywords = {k.arg: ast.unparse(k.value) for k in call.keywords}
            place = f"{where(path)}:{call.lineno}"
            if name == "torch.load":
                assert keywords.get("weights_only") == "True", place
            if name == "Image.open":
                assert "formats" in keywords, place
            if name == "np.load":
                assert keywords.get("allow_pickle", "False") == "False", place
            assert name not in ("eval", "exec", "pickle.load", "pickle.loads"), place
            assert keywords.get("shell") != "True", place


# what describes the package ----------------------------------------------------------------------


def test_the_architecture_page_names_every_package() -> None:
    page = (ROOT / "ARCHITECTURE.md").read_text()
    packages = {p.name for p in (ROOT / "vitft").iterdir() if (p / "__init__.py").exists()}

    assert len(packages) <= 16
    assert not [name for name in packages if f"`{name}/`" not in page]


PAGES = ["ARCHITECTURE.md", "README.md", "CONTRIBUTING.md", *(
    str(path.relative_to(ROOT))
    for folder in ("benchmarks", "docs", "maintainers")
    for path in sorted((ROOT / folder).rglob("*.md"))
)]  # fmt: skip


@pytest.mark.parametrize("page", PAGES)
def test_files_that_a_page_names_exist(page: str) -> None:
    text = (ROOT / page).read_text()
    paths = re.findall(
        r"`((?:vitft|docs|weights|recipes|benchmarks|maintainers|tests)/[\w./-]*)`", text
    )
    links = re.findall(r"\]\(([\w./-]+)(?:#[\w-]+)?\)", text)
    modules = re.findall(r"python -m (benchmarks[\w.]*\w)", text)

    assert not [path for path in paths if not (ROOT / path).exists()]
    assert not [link for link in links if not ((ROOT / page).parent / link).exists()]
    assert not [m for m in modules if not (ROOT / f"{m.replace('.', '/')}.py").exists()]


def test_names_behind_a_path_on_the_architecture_page_exist() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text()

    for path, names in re.findall(r"`(vitft/[\w/]+\.py)` \(((?:`\w+`(?:, )?)+)\)", text):
        code = (ROOT / path).read_text()
        for name in re.findall(r"`(\w+)`", names):
            assert re.search(rf"\b{name}\b", code), f"{path} has no {name}"


def test_benchmarks_import_names_that_exist() -> None:
    missing = []
    for path in sorted((ROOT / "benchmarks").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("vitft"):
                module: Any = importlib.import_module(str(node.module))
                for alias in node.names:
                    is_module = f"{node.module}.{alias.name}" in MODULES
                    if not hasattr(module, alias.name) and not is_module:
                        missing.append(f"{path.name}: {node.module}.{alias.name}")

    assert not missing


def test_the_changelog_begins_with_the_version_of_the_package_and_is_short() -> None:
    lines = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8").splitlines()
    newest = next(line for line in lines if line.startswith("## "))

    assert re.fullmatch(
        rf"## {re.escape(PROJECT['version'])} - (unreleased|\d{{4}}-\d\d-\d\d)", newest
    )
    headings = [i for i, line in enumerate(lines) if line.startswith("## ")] + [len(lines)]
    assert headings[1] <= 60


def test_every_dependency_has_one_lower_bound() -> None:
    extras = PROJECT["optional-dependencies"].values()
    bounds: dict[str, set[str]] = {}
    for line in [*PROJECT["dependencies"], *(line for extra in extras for line in extra)]:
        name, _, version = line.partition(">=")
        bounds.setdefault(name, set()).add(version)

    assert len(bounds) > 30
    assert {name: found for name, found in bounds.items() if len(found) > 1 or "" in found} == {}


def test_the_commands_of_the_page_have_the_version_of_the_package() -> None:
    page = (ROOT / "maintainers" / "release.md").read_text(encoding="utf-8")

    assert {*re.findall(r"^    .*\bv?(?:itft-)?(\d+\.\d+\.\d+)\b", page, re.M)} == {
        PROJECT["version"]
    }
