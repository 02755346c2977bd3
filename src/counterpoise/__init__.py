"""Debiased collaborative filtering with kernel-based causal balancing."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.2.0"

if TYPE_CHECKING:
    from counterpoise import plots as plots
    from counterpoise.balance.estimators import (
        KernelBalancer,
        MomentBalancer,
        TreatmentBalancer,
        balance_samples,
    )
    from counterpoise.balance.functions import CustomFunctions, KernelFunctions, Moments
    from counterpoise.balance.kernels import Exponential, Gaussian
    from counterpoise.balance.solver import BalanceResult, entropy_balance, worst_case_balance
    from counterpoise.data.datasets import load_dataset
    from counterpoise.data.log import Dataset, FeedbackLog
    from counterpoise.data.reading import read_log, read_logs
    from counterpoise.data.side_tables import TableEncoder
    from counterpoise.data.simulation import SimulatedData, simulate
    from counterpoise.data.splits import HoldoutSplit, split
    from counterpoise.errors import ConfigError, ConvergenceWarning, CounterpoiseError, DataError, ReadingWarning
    from counterpoise.evaluation.comparison import Comparison, compare
    from counterpoise.evaluation.evaluate import Evaluation, evaluate
    from counterpoise.evaluation.full_ranking import RankingEvaluation, evaluate_lists, evaluate_ranking
    from counterpoise.evaluation.holdout_weights import HoldoutWeights, weigh_holdout
    from counterpoise.evaluation.weighted import WeightedEvaluation
    from counterpoise.imputation.base import Constant, Learned, NoImputation
    from counterpoise.imputation.calibrated import CalibratedLabels
    from counterpoise.imputation.causal_embeddings import CausalEmbeddings
    from counterpoise.imputation.distillation import BridgeDistillation, RefineDistillation
    from counterpoise.imputation.filtered import Filtered
    from counterpoise.imputation.mnar import MNARLikelihood
    from counterpoise.imputation.multiply_robust import MultiplyRobust
    from counterpoise.imputation.outcome import OutcomeModel
    from counterpoise.imputation.targeted import Targeted
    from counterpoise.imputation.tri_training import TriTraining
    from counterpoise.methods import METHODS, make
    from counterpoise.models.exposure import ExposureCovariate
    from counterpoise.models.item_popularity import ItemPopularity
    from counterpoise.models.matrix_factorization import MatrixFactorization
    from counterpoise.models.neural_cf import NeuralCF
    from counterpoise.out_of_core.balancing import balance_log, balance_shards
    from counterpoise.out_of_core.encoding import shard_log
    from counterpoise.out_of_core.engines import make_engine
    from counterpoise.parallel import fit_many
    from counterpoise.recommender import DebiasedRecommender, load_model
    from counterpoise.report.write import write_report
    from counterpoise.training.ensemble import Ensemble
    from counterpoise.training.loop import History, Training
    from counterpoise.training.ordinal import OrdinalLoss
    from counterpoise.training.probe import ProbeLabels
    from counterpoise.tuning.result import Tuning
    from counterpoise.tuning.tune import tune
    from counterpoise.weights.auto_debias import AutoDebias
    from counterpoise.weights.balancing import Balancing
    from counterpoise.weights.base import NaiveBayes, Uniform, UnitWeights
    from counterpoise.weights.calibration import Calibrated
    from counterpoise.weights.capping import Capped
    from counterpoise.weights.joint import BalancedPropensity, StabilizedPropensity
    from counterpoise.weights.propensity import KnownPropensity, Logistic, Popularity, Propensity

# Where each public name lives. It is imported when it is first used: torch alone takes longer to import than a model
# of a small log takes to fit.
_HOMES = {
    "balance.estimators": (
        "KernelBalancer",
        "MomentBalancer",
        "TreatmentBalancer",
        "balance_samples",
    ),
    "balance.functions": (
        "CustomFunctions",
        "KernelFunctions",
        "Moments",
    ),
    "balance.kernels": (
        "Exponential",
        "Gaussian",
    ),
    "balance.solver": (
        "BalanceResult",
        "entropy_balance",
        "worst_case_balance",
    ),
    "data.datasets": ("load_dataset",),
    "data.log": (
        "Dataset",
        "FeedbackLog",
    ),
    "data.reading": (
        "read_log",
        "read_logs",
    ),
    "data.side_tables": ("TableEncoder",),
    "data.simulation": (
        "SimulatedData",
        "simulate",
    ),
    "data.splits": (
        "HoldoutSplit",
        "split",
    ),
    "errors": (
        "ConfigError",
        "ConvergenceWarning",
        "CounterpoiseError",
        "DataError",
        "ReadingWarning",
    ),
    "evaluation.comparison": (
        "Comparison",
        "compare",
    ),
    "evaluation.evaluate": (
        "Evaluation",
        "evaluate",
    ),
    "evaluation.full_ranking": (
        "RankingEvaluation",
        "evaluate_lists",
        "evaluate_ranking",
    ),
    "evaluation.holdout_weights": (
        "HoldoutWeights",
        "weigh_holdout",
    ),
    "evaluation.weighted": ("WeightedEvaluation",),
    "imputation.base": (
        "ClippedPairs",
        "Constant",
        "Learned",
        "NoImputation",
    ),
    "imputation.calibrated": ("CalibratedLabels",),
    "imputation.causal_embeddings": ("CausalEmbeddings",),
    "imputation.clicks": ("ClickModel",),
    "imputation.distillation": (
        "BridgeDistillation",
        "RefineDistillation",
    ),
    "imputation.filtered": ("Filtered",),
    "imputation.multiply_robust": ("MultiplyRobust",),
    "imputation.targeted": ("Targeted",),
    "imputation.mnar": ("MNARLikelihood",),
    "imputation.outcome": ("OutcomeModel",),
    "imputation.tri_training": ("TriTraining",),
    "methods": (
        "METHODS",
        "make",
    ),
    "models.exposure": ("ExposureCovariate",),
    "models.item_popularity": ("ItemPopularity",),
    "models.matrix_factorization": ("MatrixFactorization",),
    "models.neural_cf": ("NeuralCF",),
    "out_of_core.balancing": (
        "balance_log",
        "balance_shards",
    ),
    "out_of_core.engines": ("make_engine",),
    "out_of_core.encoding": ("shard_log",),
    "parallel": ("fit_many",),
    "recommender": (
        "DebiasedRecommender",
        "load_model",
    ),
    "report.write": ("write_report",),
    "training.closed_form": (
        "ClosedForm",
        "ExposureEM",
        "LeastSquares",
    ),
    "training.ensemble": ("Ensemble",),
    "training.ordinal": ("OrdinalLoss",),
    "training.probe": ("ProbeLabels",),
    "training.loop": (
        "History",
        "Training",
    ),
    "tuning.result": ("Tuning",),
    "tuning.tune": ("tune",),
    "weights.auto_debias": ("AutoDebias",),
    "weights.balancing": ("Balancing",),
    "weights.base": (
        "UnitWeights",
        "NaiveBayes",
        "Uniform",
    ),
    "weights.calibration": ("Calibrated",),
    "weights.capping": ("Capped",),
    "weights.exposure": ("RelativeExposure",),
    "weights.joint": (
        "BalancedPropensity",
        "StabilizedPropensity",
    ),
    "weights.propensity": (
        "KnownPropensity",
        "Logistic",
        "Popularity",
        "Propensity",
    ),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}
_PACKAGES = ("plots",)  # reached as counterpoise.NAME

__all__ = [
    "METHODS",
    "AutoDebias",
    "BalanceResult",
    "BalancedPropensity",
    "Balancing",
    "BridgeDistillation",
    "Calibrated",
    "CalibratedLabels",
    "Capped",
    "CausalEmbeddings",
    "ClickModel",
    "ClippedPairs",
    "ClosedForm",
    "Comparison",
    "ConfigError",
    "Constant",
    "ConvergenceWarning",
    "CounterpoiseError",
    "CustomFunctions",
    "DataError",
    "Dataset",
    "DebiasedRecommender",
    "Ensemble",
    "Evaluation",
    "Exponential",
    "ExposureCovariate",
    "ExposureEM",
    "FeedbackLog",
    "Filtered",
    "Gaussian",
    "History",
    "HoldoutSplit",
    "HoldoutWeights",
    "ItemPopularity",
    "KernelBalancer",
    "KernelFunctions",
    "KnownPropensity",
    "Learned",
    "LeastSquares",
    "Logistic",
    "MNARLikelihood",
    "MatrixFactorization",
    "MomentBalancer",
    "Moments",
    "MultiplyRobust",
    "NaiveBayes",
    "NeuralCF",
    "NoImputation",
    "OrdinalLoss",
    "OutcomeModel",
    "Popularity",
    "ProbeLabels",
    "Propensity",
    "RankingEvaluation",
    "ReadingWarning",
    "RefineDistillation",
    "RelativeExposure",
    "SimulatedData",
    "StabilizedPropensity",
    "TableEncoder",
    "Targeted",
    "Training",
    "TreatmentBalancer",
    "TriTraining",
    "Tuning",
    "Uniform",
    "UnitWeights",
    "WeightedEvaluation",
    "balance_log",
    "balance_samples",
    "balance_shards",
    "compare",
    "entropy_balance",
    "evaluate",
    "evaluate_lists",
    "evaluate_ranking",
    "fit_many",
    "load_dataset",
    "load_model",
    "make",
    "make_engine",
    "read_log",
    "read_logs",
    "shard_log",
    "simulate",
    "split",
    "tune",
    "weigh_holdout",
    "worst_case_balance",
    "write_report",
]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first asked for."""
    if name in _PACKAGES:
        return import_module(f"{__name__}.{name}")
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOME_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """The public names."""
    return [*__all__, *_PACKAGES, "__version__"]
