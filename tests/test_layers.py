"""Imports go one way: a package may import those before it in the order, and nothing after it."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import counterpoise

PACKAGE = Path(counterpoise.__file__).parent
ORDER = [
    *("errors", "threads", "probability", "config", "storage", "data", "balance", "risks", "models", "training"),
    *("weights", "imputation", "ranking", "accelerate", "recommender", "methods", "parallel", "evaluation"),
    *("out_of_core", "tuning", "runs", "report", "bench", "plots", "serve", "cli", "__main__"),
]


def imported(module: Path) -> set[str]:
    """The packages and modules of ours that a module imports, wherever in its text."""
    nodes = [node for node in ast.walk(ast.parse(module.read_text("utf-8"))) if isinstance(node, ast.ImportFrom)]
    names = {str(node.module).split(".")[1] for node in nodes if str(node.module).startswith("counterpoise.")}
    names |= {alias.name for node in nodes if node.module == "counterpoise" for alias in node.names}
    return names & set(ORDER)


def test_imports_follow_the_order_of_packages() -> None:
    packages = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    assert packages | {path.stem for path in PACKAGE.glob("*.py")} == {*ORDER, "__init__"}
    for name in ORDER:
        files = [PACKAGE / f"{name}.py", *(PACKAGE / name).rglob("*.py")]
        for file in filter(Path.exists, files):
            allowed = {*ORDER[: ORDER.index(name) + 1]}
            assert imported(file) <= allowed, f"{file.relative_to(PACKAGE)} imports {imported(file) - allowed}"


def test_at_most_14_modules_and_14_packages_at_the_top() -> None:
    assert len(list(PACKAGE.glob("*.py"))) <= 14
    assert len(list(PACKAGE.glob("*/__init__.py"))) <= 14


def test_the_package_and_its_help_import_nothing_heavy() -> None:
    program = (
        "import sys, counterpoise, counterpoise.cli.main;"
        "heavy = {'torch', 'sklearn', 'scipy', 'polars', 'pandas', 'numpy', 'fastapi', 'uvicorn'};"
        "print(sorted(heavy & set(sys.modules)))"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


def test_only_the_console_prints() -> None:
    for path in PACKAGE.rglob("*.py"):
        calls = [node for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(node, ast.Call)]
        printing = [node for node in calls if isinstance(node.func, ast.Name) and node.func.id == "print"]
        assert path.stem == "console" or not printing, path.stem


def test_every_public_name_can_be_imported() -> None:
    for name in counterpoise.__all__:
        assert getattr(counterpoise, name) is not None


def test_type_checkers_know_every_public_name() -> None:
    tree = ast.parse((PACKAGE / "__init__.py").read_text(encoding="utf-8"))
    modules = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.level == 0]
    homes = {
        alias.asname: module.module.removeprefix("counterpoise.")
        for module in modules
        for alias in module.names
        if str(module.module).startswith("counterpoise.")
    }
    assert homes == counterpoise._HOME_OF
