"""Imports go one way: each module may import those named above it, and nothing below."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import counterpoise

PACKAGE = Path(counterpoise.__file__).parent
ORDER = [
    *("errors", "words", "command_words", "console", "options", "parts", "threads", "unpacked", "folder_locks"),
    *("vocabulary", "columns", "pairs", "feedback", "fingerprints", "tables"),
    *("log_files", "ingest", "side_tables", "shards", "sharding"),
    *("ray_engine", "engines", "streamed_log", "protocols", "simulation", "sources", "datasets"),
    *("rows", "arguments", "lapack", "quadratic_program", "penalties", "tilting", "sharded_tilting"),
    *("newton", "results", "solver"),
    *("kernels", "population", "selection", "fitted_functions", "witness", "functions"),
    *("sharded_functions", "features"),
    *("balance_table", "bounds", "predictor_bounds", "diagnostics", "two_samples", "balancer"),
    *("imbalances", "frontier", "text_plots"),
    *("risks", "gathering", "scorers", "fresh_tables", "neural_cf", "backbones", "last_good", "ranks", "adam"),
    *("training", "graphs", "permutations", "streamed_batches"),
    *("problems", "stacks", "weights", "given_propensities", "propensity", "logistic", "joint_propensity"),
    *("exposure", "first_fits", "weight_model", "balancing"),
    *("imputation", "silence", "calibrated", "grades", "closed_steps", "learner", "hedging", "agreement", "choices"),
    *("ranking", "fit_rules", "saved_parts", "persistence", "checkpoints", "recommender", "saved_models", "board"),
    *("shared_training", "ray_training", "streamed_fit"),
    *("citations", "compositions", "named_method", "baseline_methods", "methods", "making", "many", "explain"),
    *("metrics", "calibration", "evaluation", "validation", "search_space", "study", "tuned", "tuning"),
    *("config", "fitting"),
    *("demo", "balanced_log", "balance_command", "tune_command"),
    *("bench.published", "bench.entries", "bench.grounds", "bench.jobs", "bench.store", "bench.runner"),
    *("bench.statistics", "bench.records", "bench.runs", "bench.summary"),
    *("bench.wording", "bench.grids", "bench.latex", "bench.layouts", "bench.sheets"),
    *("bench.sweep", "bench.protocol", "bench.kept_rows"),
    *("bench.prediction_matrices", "bench.known_selection", "bench.risk_estimators", "bench.bias", "bench.bias_tables"),
    *("bench.planning", "bench.showing", "bench.bias_command"),
    *("reports.definitions", "reports.material", "reports.log_facts", "reports.balance_facts", "reports.weight_facts"),
    *("reports.model_facts", "reports.list_facts", "reports.summary", "reports.facts", "reports.comparison"),
    *("reports.svg", "reports.charts", "reports.blocks", "reports.log_section", "reports.balance_section"),
    *("reports.weights_section", "reports.model_section", "reports.lists_section", "reports.configuration_section"),
    *("reports.page", "reports.comparison_page", "reports.writing", "report_command", "fit_command"),
    *("serving.ids", "serving.lists", "serving.served", "serving.schema", "serving.guard", "serving.heads"),
    *("serving.looking", "serving.endpoints", "serving.server", "serve_command"),
    *("drawing", "balance_plots", "model_plots", "study_plots", "plots", "bench.figures"),
    *("bench.commands", "cli", "__main__"),
]


def imported(module: Path) -> set[str]:
    """The modules of this package that a module imports, wherever in its text."""
    found = set()
    for node in ast.walk(ast.parse(module.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module == "counterpoise":
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("counterpoise."):
            name = str(node.module).removeprefix("counterpoise.")
            found |= {name, *(f"{name}.{alias.name}" for alias in node.names)}
    return found & set(modules())


@cache
def modules() -> dict[str, Path]:
    """Every module of this package by its dotted name, those of its subpackages included."""
    files = {path.relative_to(PACKAGE).with_suffix(""): path for path in PACKAGE.rglob("*.py")}
    return {".".join(name.parts): path for name, path in files.items() if name.name != "__init__"}


def test_every_module_has_its_place_in_the_order() -> None:
    assert set(modules()) == set(ORDER)


def test_the_design_lists_the_modules_in_their_order() -> None:
    text = (Path(__file__).parents[1] / "docs" / "design.md").read_text(encoding="utf-8")
    rooms = text.split("## The rooms")[1].split("```")[1].strip("\n").splitlines()
    assert [name for line in rooms for name in re.split(r"\s{3,}", line.rstrip())[0].split()] == ORDER


def test_imports_go_one_way() -> None:
    for module in ORDER:
        above = set(ORDER[: ORDER.index(module)])
        assert imported(modules()[module]) <= above, module


def test_the_package_and_its_help_import_nothing_heavy() -> None:
    program = (
        "import sys, counterpoise, counterpoise.cli;"
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
