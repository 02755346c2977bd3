"""Do the tests notice a wrong sign? One mistake at a time is put into a module, and its tests are run: `make mutation`.

    python tests/mutation.py [MODULE ...] [--sample 200] [--seed 0] [--jobs 1]

Mistakes: another comparison, sum, product or power, `and` for `or`, a sign or a `not` left out, another number, a
statement left out (checks of arguments among them). A mistake that no test notices is printed with its line; some
change nothing that matters (a tolerance, a block size), so they are for people to judge. Tests run in forks of one
process that has the libraries loaded, so this needs Linux or macOS.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import importlib
import importlib.abc
import importlib.util
import math
import os
import random
import resource
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "counterpoise"
TESTS = {  # of a module, the fastest first
    "risks": ["test_risks.py"],
    "balance/box_qp": ["balance/test_inner_problems.py", "balance/test_solver.py"],
    "balance/newton": ["balance/test_solver.py"],
    "balance/solver": ["balance/test_solver.py", "balance/test_covariate_balance.py"],
    "balance/penalties": [
        "balance/test_inner_problems.py",
        "balance/test_solver.py",
        "balance/test_covariate_balance.py",
        "balance/test_path.py",
    ],
    "balance/exponential_family": [
        "balance/test_exponential_family.py",
        "balance/test_solver.py",
        "balance/test_estimators.py",
    ],
    "balance/path": ["balance/test_path.py"],
    "balance/selection": ["balance/test_functions.py", "balance/test_greedy_worst_case.py"],
    "balance/functions": ["balance/test_functions.py", "balance/test_greedy_worst_case.py"],
    "balance/kernels": ["balance/test_kernels.py", "balance/test_functions.py"],
    "balance/features": ["balance/test_features.py"],
    "balance/population": [
        "balance/test_exponential_family.py",
        "balance/test_estimators.py",
        "balance/test_solver.py",
        "balance/test_functions.py",
    ],
    "balance/estimators": ["balance/test_estimators.py", "balance/test_tables_and_treatments.py"],
    "balance/covariate_balance": ["balance/test_covariate_balance.py", "balance/test_estimators.py"],
    "balance/diagnostics": ["balance/test_diagnostics.py", "balance/test_estimators.py"],
    "balance/theory": ["balance/test_theory.py"],
}
OTHER: dict[type, type] = {
    **{ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq},
    **{ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In, ast.And: ast.Or, ast.Or: ast.And},
    **{ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.Pow: ast.Mult},
}
SKIPPED = ("annotation", "returns", "decorator_list", "type_params", "exc")  # fields: types, and the text of errors
LOADED = ("cvxpy", "hypothesis", "numpy", "pandas", "polars", "pytest", "scipy.stats", "sklearn.linear_model", "torch")
MIN_SECONDS, TIMES = 10.0, 6.0  # of the processor: a mistake that makes the tests take more was noticed


def replacements(child: ast.AST) -> Iterator[ast.AST]:
    """What may stand in place of an expression or a statement by mistake."""
    if type(child) in OTHER:
        yield OTHER[type(child)]()
    if isinstance(child, ast.UnaryOp) and isinstance(child.op, ast.USub | ast.Not):
        yield child.operand
    if isinstance(child, ast.Constant) and type(child.value) in (int, float, bool):
        yield ast.Constant(not child.value if isinstance(child.value, bool) else child.value * 2 or 1)
    if isinstance(child, ast.Expr) and isinstance(child.value, ast.Call):
        yield ast.Pass()


def places(node: ast.AST, line: int = 0) -> Iterator[tuple[int, ast.AST, str, Any, Any]]:
    """(line, node, field, what is there, what to put there) for every mistake, in the order of the text."""
    line = getattr(node, "lineno", line)
    for field, value in ast.iter_fields(node):
        children = value if isinstance(value, list) else [value]
        if field in SKIPPED or isinstance(value, ast.JoinedStr):
            continue
        for index, child in enumerate(children):
            if isinstance(child, ast.AST):
                for new in replacements(child):
                    put = [*children[:index], new, *children[index + 1 :]] if isinstance(value, list) else new
                    yield getattr(child, "lineno", line), node, field, value, put
                yield from places(child, line)


def mistakes(module: str) -> list[tuple[int, str, str]]:
    """(line, what it says then, the source of the whole module) for every mistake."""
    tree = ast.parse((SOURCE / f"{module}.py").read_text(encoding="utf-8"))
    before, found = ast.unparse(tree).splitlines(), []
    for line, node, field, kept, put in list(places(tree)):
        setattr(node, field, put)
        text = ast.unparse(ast.fix_missing_locations(tree))
        setattr(node, field, kept)
        changed = next((new for new, old in zip(text.splitlines(), before, strict=False) if new != old), "")
        found.append((line, changed.strip(), text))
    return found


class Instead(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports one module from other source."""

    def __init__(self, name: str, source: str) -> None:
        self.name, self.source = name, source

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        return importlib.util.spec_from_loader(name, self) if name == self.name else None

    def exec_module(self, module: ModuleType) -> None:
        exec(compile(self.source, self.name, "exec"), module.__dict__)


def is_noticed(module: str, source: str, seconds: float) -> bool:
    """Whether the tests of a module fail with this source, or take more seconds of the processor."""
    child = os.fork()
    if child == 0:
        code = 1
        with contextlib.suppress(BaseException):
            resource.setrlimit(resource.RLIMIT_CPU, (math.ceil(seconds), math.ceil(seconds)))
            nothing = os.open(os.devnull, os.O_RDWR)
            os.dup2(nothing, 1)
            os.dup2(nothing, 2)
            os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # a second of imports
            import pytest

            sys.meta_path.insert(0, Instead(f"counterpoise.{module.replace('/', '.')}", source))
            tests = [str(ROOT / "tests" / name) for name in TESTS[module]]
            code = int(pytest.main(["-x", "-q", "-p", "no:cacheprovider", "-m", "not slow", *tests]))
        os._exit(code)
    return os.waitpid(child, 0)[1] != 0


def used() -> float:
    """Seconds of the processor that finished children took."""
    found = resource.getrusage(resource.RUSAGE_CHILDREN)
    return found.ru_utime + found.ru_stime


def main() -> None:
    """Print the mistakes that no test noticed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("modules", nargs="*", default=list(TESTS))
    parser.add_argument("--sample", type=int, help="so many mistakes of each module, drawn at random")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1)
    options = parser.parse_args()
    for name in LOADED:
        importlib.import_module(name)
    for module in options.modules:
        before = used()
        if is_noticed(module, (SOURCE / f"{module}.py").read_text(encoding="utf-8"), 600):
            sys.exit(f"{module}: its tests fail without a mistake")
        limit = max(MIN_SECONDS, TIMES * (used() - before))
        chosen = mistakes(module)
        if options.sample is not None:
            chosen = sorted(random.Random(options.seed).sample(chosen, min(options.sample, len(chosen))))
        missed = 0
        with ThreadPoolExecutor(options.jobs) as pool:
            for one, noticed in zip(chosen, pool.map(lambda m: is_noticed(module, m[2], limit), chosen), strict=True):  # noqa: B023
                missed += not noticed
                if not noticed:
                    print(f"{module}, line {one[0]}: {one[1]}", flush=True)
        print(f"{module}: {len(chosen) - missed} of {len(chosen)} mistakes were noticed", flush=True)


if __name__ == "__main__":
    main()
