"""The house itself: floors, budgets, what starts without torch, what the README shows."""

import ast
import re
import runpy
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from vitft.config.run import config_from_table, read_recipe, read_toml
from vitft.system.resources import resource

ROOT = Path(__file__).parents[1]
SOURCES = sorted((ROOT / "vitft").rglob("*.py"))


def python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )


def test_imports_point_down() -> None:
    done = subprocess.run(
        [str(Path(sys.executable).with_name("lint-imports")), "--no-cache"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )

    assert done.returncode == 0, done.stdout[-3000:]


@pytest.mark.parametrize(
    "module",
    [
        "vitft",
        "vitft.cli.main",
        "vitft.config.run",
        "vitft.data.folder",
        "vitft.data.split",
        "vitft.data.sources",
        "vitft.data.transforms",
        "vitft.export.plan",
        "vitft.features.ood",
        "vitft.models.numpy_vit",
        "vitft.predict.engine",
        "vitft.predict.numpy_engine",
        "vitft.predict.output",
        "vitft.predict.threshold",
        "vitft.predict.validation",
        "vitft.report.run_page",
        "vitft.study.splits",
        "vitft.study.plan",
        "vitft.system.console",
        "vitft.system.rundir",
        "vitft.training.checks",
    ],
)
def test_what_is_checked_first_starts_without_torch(module: str) -> None:
    done = python(
        f"import {module}, sys; sys.exit('torch' in sys.modules or 'timm' in sys.modules)"
    )

    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("arguments", [["--help"], ["finetune", "--help"], ["predict", "--help"]])
def test_help_needs_neither_torch_nor_rich(arguments: list[str]) -> None:
    done = python(
        "import sys\nfrom vitft.cli.main import main\n"
        f"try:\n    main({arguments!r})\nexcept SystemExit as end:\n    assert end.code == 0\n"
        "assert not {'torch', 'rich', 'PIL', 'numpy'} & set(sys.modules), 'heavy import'"
    )

    assert done.returncode == 0, done.stderr
    assert "usage: vitft" in done.stdout


def calls(tree: ast.AST) -> list[tuple[str, ast.Call]]:
    return [(ast.unparse(n.func), n) for n in ast.walk(tree) if isinstance(n, ast.Call)]


def test_nothing_in_the_package_can_run_foreign_code() -> None:
    for path in SOURCES:
        for name, call in calls(ast.parse(path.read_text())):
            keywords = {k.arg: ast.unparse(k.value) for k in call.keywords}
            where = f"{path.name}:{call.lineno}"
            if name == "torch.load":
                assert keywords.get("weights_only") == "True", where
            if name == "Image.open":
                assert "formats" in keywords, where
            if name == "np.load":
                assert keywords.get("allow_pickle", "False") == "False", where
            assert name not in ("eval", "exec", "pickle.load", "pickle.loads"), where
            assert keywords.get("shell") != "True", where


def test_rooms_stay_readable_in_one_sitting() -> None:
    long = {p.name: n for p in SOURCES if (n := len(p.read_text().splitlines())) > 420}

    assert not long, f"rooms over 420 lines: {long}; find the second room in them"


def test_only_the_console_prints() -> None:
    printing = {
        p.name for p in SOURCES for name, _ in calls(ast.parse(p.read_text())) if name == "print"
    }

    assert printing <= {"console.py", "output.py"}


COMES_WITH = {
    "PIL": "pillow",
    "tomli_w": "tomli-w",
    "markupsafe": "jinja2",
    "mlflow": "mlflow-skinny",
    "starlette": "fastapi",
    "pydantic": "fastapi",
    "h11": "uvicorn",
}
"""What is imported under another name than it is installed by, or with something else."""


def test_whoever_installs_the_package_has_what_it_imports() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    told = [*project["dependencies"], *(line for e in extras if e != "test" for line in extras[e])]
    installed = {re.split(r"[<>=]", line)[0] for line in told}

    imported = {
        name.partition(".")[0]
        for path in SOURCES
        for node in ast.walk(ast.parse(path.read_text()))
        for name in (
            [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else [node.module or ""]
            if isinstance(node, ast.ImportFrom)
            else []
        )
    } - {*sys.stdlib_module_names, "vitft"}

    assert {COMES_WITH.get(name, name) for name in imported} <= installed


def test_a_training_that_is_not_split_does_not_pay_for_what_splits() -> None:
    done = python(
        "import sys, vitft.training.run; print('torch.distributed.tensor' in sys.modules)"
    )

    assert done.stdout == "False\n", done.stderr


def test_the_page_of_settings_is_what_the_code_says() -> None:
    page = runpy.run_path(str(ROOT / "docs" / "settings.py"))["page"]

    assert page() == (ROOT / "docs" / "settings.md").read_text()  # else: make docs


RECIPES = sorted(resource("recipes").glob("*.toml"))


@pytest.mark.parametrize("path", RECIPES, ids=lambda p: p.stem)
def test_every_recipe_parses_and_states_its_claim(path: Path) -> None:
    table = read_toml(path)

    assert set(table["recipe"]) == {"what", "for_whom", "command", "expected", "time"}
    assert f"--recipe {path.stem}" in table["recipe"]["command"]
    assert "to be measured" not in str(table["recipe"]).lower()
    config_from_table(read_recipe(path.stem))


def test_the_architecture_page_names_every_package() -> None:
    page = (ROOT / "ARCHITECTURE.md").read_text()
    packages = {p.name for p in (ROOT / "vitft").iterdir() if (p / "__init__.py").exists()}

    assert len(packages) <= 15
    assert not [name for name in packages if f"`{name}/`" not in page]
