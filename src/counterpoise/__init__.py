"""Debiased collaborative filtering with kernel-based causal balancing."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from counterpoise.backbones import MatrixFactorization, NeuralCF
    from counterpoise.datasets import load as load_dataset
    from counterpoise.errors import ConfigError, ConvergenceWarning, CounterpoiseError, DataError
    from counterpoise.evaluation import Evaluation, evaluate
    from counterpoise.feedback import Dataset, FeedbackLog
    from counterpoise.ingest import read_log, read_logs
    from counterpoise.methods import METHODS, make
    from counterpoise.recommender import DebiasedRecommender, load_model
    from counterpoise.simulation import World, simulate
    from counterpoise.training import History, Training
    from counterpoise.weights import Uniform

# Where each public name lives. It is imported when it is first used: torch alone takes longer to import than a model
# of a small log takes to fit.
_HOMES = {
    "backbones": ("MatrixFactorization", "NeuralCF"),
    "datasets": ("load_dataset",),
    "errors": ("ConfigError", "ConvergenceWarning", "CounterpoiseError", "DataError"),
    "evaluation": ("Evaluation", "evaluate"),
    "feedback": ("Dataset", "FeedbackLog"),
    "ingest": ("read_log", "read_logs"),
    "methods": ("METHODS", "make"),
    "recommender": ("DebiasedRecommender", "load_model"),
    "simulation": ("World", "simulate"),
    "training": ("History", "Training"),
    "weights": ("Uniform",),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}
_ALIASES = {"load_dataset": "load"}

__all__ = [
    "METHODS",
    "ConfigError",
    "ConvergenceWarning",
    "CounterpoiseError",
    "DataError",
    "Dataset",
    "DebiasedRecommender",
    "Evaluation",
    "FeedbackLog",
    "History",
    "MatrixFactorization",
    "NeuralCF",
    "Training",
    "Uniform",
    "World",
    "evaluate",
    "load_dataset",
    "load_model",
    "make",
    "read_log",
    "read_logs",
    "simulate",
]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first asked for."""
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOME_OF[name]}"), _ALIASES.get(name, name))
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """The public names."""
    return [*__all__, "__version__"]
