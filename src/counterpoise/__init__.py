"""Debiased collaborative filtering with kernel-based causal balancing."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from counterpoise import plots as plots
    from counterpoise.agreement import Agreement
    from counterpoise.backbones import MatrixFactorization
    from counterpoise.balanced_log import balance_log
    from counterpoise.balancer import KernelBalancer, MomentBalancer
    from counterpoise.balancing import Balancing
    from counterpoise.calibrated import Multiple, Targeted
    from counterpoise.datasets import load as load_dataset
    from counterpoise.engines import make_engine
    from counterpoise.errors import ConfigError, ConvergenceWarning, CounterpoiseError, DataError
    from counterpoise.evaluation import Evaluation, evaluate
    from counterpoise.exposure import Exposed
    from counterpoise.feedback import Dataset, FeedbackLog
    from counterpoise.functions import GivenFunctions, KernelFunctions, Moments
    from counterpoise.given_propensities import Given
    from counterpoise.imputation import Constant, Learned, Nothing
    from counterpoise.ingest import read_log, read_logs
    from counterpoise.joint_propensity import BalancedPropensity, StabilizedPropensity
    from counterpoise.kernels import Exponential, Gaussian
    from counterpoise.logistic import Logistic
    from counterpoise.making import make
    from counterpoise.many import fit_many
    from counterpoise.methods import METHODS
    from counterpoise.neural_cf import NeuralCF
    from counterpoise.propensity import Popularity, Propensity
    from counterpoise.recommender import DebiasedRecommender
    from counterpoise.reports.writing import report
    from counterpoise.results import BalanceResult
    from counterpoise.saved_models import load_model
    from counterpoise.sharded_functions import balance_shards
    from counterpoise.sharding import shard_log
    from counterpoise.silence import Silence
    from counterpoise.simulation import World, simulate
    from counterpoise.solver import entropy_balance, worst_case_balance
    from counterpoise.training import History, Training
    from counterpoise.tuned import Tuning
    from counterpoise.tuning import tune
    from counterpoise.two_samples import balance_samples
    from counterpoise.weights import Itself, NaiveBayes, Uniform

# Where each public name lives. It is imported when it is first used: torch alone takes longer to import than a model
# of a small log takes to fit.
_HOMES = {
    "agreement": ("Agreement",),
    "backbones": ("MatrixFactorization",),
    "balanced_log": ("balance_log",),
    "balancer": ("KernelBalancer", "MomentBalancer"),
    "balancing": ("Balancing",),
    "calibrated": ("Multiple", "Targeted"),
    "datasets": ("load_dataset",),
    "engines": ("make_engine",),
    "errors": ("ConfigError", "ConvergenceWarning", "CounterpoiseError", "DataError"),
    "evaluation": ("Evaluation", "evaluate"),
    "exposure": ("Exposed",),
    "feedback": ("Dataset", "FeedbackLog"),
    "functions": ("GivenFunctions", "KernelFunctions", "Moments"),
    "given_propensities": ("Given",),
    "imputation": ("Constant", "Learned", "Nothing"),
    "ingest": ("read_log", "read_logs"),
    "joint_propensity": ("BalancedPropensity", "StabilizedPropensity"),
    "kernels": ("Exponential", "Gaussian"),
    "logistic": ("Logistic",),
    "making": ("make",),
    "many": ("fit_many",),
    "methods": ("METHODS",),
    "neural_cf": ("NeuralCF",),
    "propensity": ("Popularity", "Propensity"),
    "recommender": ("DebiasedRecommender",),
    "saved_models": ("load_model",),
    "reports.writing": ("report",),
    "results": ("BalanceResult",),
    "sharded_functions": ("balance_shards",),
    "sharding": ("shard_log",),
    "silence": ("Silence",),
    "simulation": ("World", "simulate"),
    "solver": ("entropy_balance", "worst_case_balance"),
    "training": ("History", "Training"),
    "tuned": ("Tuning",),
    "tuning": ("tune",),
    "two_samples": ("balance_samples",),
    "weights": ("Itself", "NaiveBayes", "Uniform"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}
_ALIASES = {"load_dataset": "load"}
_ROOMS = ("plots",)  # modules that are reached as counterpoise.NAME

__all__ = [
    "METHODS",
    "Agreement",
    "BalanceResult",
    "BalancedPropensity",
    "Balancing",
    "ConfigError",
    "Constant",
    "ConvergenceWarning",
    "CounterpoiseError",
    "DataError",
    "Dataset",
    "DebiasedRecommender",
    "Evaluation",
    "Exponential",
    "Exposed",
    "FeedbackLog",
    "Gaussian",
    "Given",
    "GivenFunctions",
    "History",
    "Itself",
    "KernelBalancer",
    "KernelFunctions",
    "Learned",
    "Logistic",
    "MatrixFactorization",
    "MomentBalancer",
    "Moments",
    "Multiple",
    "NaiveBayes",
    "NeuralCF",
    "Nothing",
    "Popularity",
    "Propensity",
    "Silence",
    "StabilizedPropensity",
    "Targeted",
    "Training",
    "Tuning",
    "Uniform",
    "World",
    "balance_log",
    "balance_samples",
    "balance_shards",
    "entropy_balance",
    "evaluate",
    "fit_many",
    "load_dataset",
    "load_model",
    "make",
    "make_engine",
    "read_log",
    "read_logs",
    "report",
    "shard_log",
    "simulate",
    "tune",
    "worst_case_balance",
]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first asked for."""
    if name in _ROOMS:
        return import_module(f"{__name__}.{name}")
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOME_OF[name]}"), _ALIASES.get(name, name))
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """The public names."""
    return [*__all__, *_ROOMS, "__version__"]
