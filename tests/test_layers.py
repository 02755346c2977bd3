"""Imports go one way: a package may import those above it, and nothing below."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import counterpoise

PACKAGE = Path(counterpoise.__file__).parent


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
    assert set(counterpoise.__all__) == set(counterpoise._HOME_OF)
