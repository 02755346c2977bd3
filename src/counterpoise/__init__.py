"""Debiased collaborative filtering with kernel-based causal balancing."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.2.0"

if TYPE_CHECKING:
    from counterpoise import plots as plots
    from counterpoise.balance.estimators import (
        KernelBalancer as KernelBalancer,
        MomentBalancer as MomentBalancer,
        TreatmentBalancer as TreatmentBalancer,
        balance_samples as balance_samples,
    )
    from counterpoise.balance.functions import (
        CustomFunctions as CustomFunctions,
        KernelFunctions as KernelFunctions,
        Moments as Moments,
    )
    from counterpoise.balance.kernels import Exponential as Exponential, Gaussian as Gaussian
    from counterpoise.balance.solver import (
        BalanceResult as BalanceResult,
        entropy_balance as entropy_balance,
        worst_case_balance as worst_case_balance,
    )
    from counterpoise.data.datasets import load_dataset as load_dataset
    from counterpoise.data.log import Dataset as Dataset, FeedbackLog as FeedbackLog
    from counterpoise.data.reading import read_log as read_log, read_logs as read_logs
    from counterpoise.data.side_tables import TableEncoder as TableEncoder
    from counterpoise.data.simulation import SimulatedData as SimulatedData, simulate as simulate
    from counterpoise.data.splits import HoldoutSplit as HoldoutSplit, split as split
    from counterpoise.errors import (
        ConfigError as ConfigError,
        ConvergenceWarning as ConvergenceWarning,
        CounterpoiseError as CounterpoiseError,
        DataError as DataError,
        ReadingWarning as ReadingWarning,
    )
    from counterpoise.evaluation.comparison import Comparison as Comparison, compare as compare
    from counterpoise.evaluation.evaluate import Evaluation as Evaluation, evaluate as evaluate
    from counterpoise.evaluation.full_ranking import (
        RankingEvaluation as RankingEvaluation,
        evaluate_lists as evaluate_lists,
        evaluate_ranking as evaluate_ranking,
    )
    from counterpoise.evaluation.holdout_weights import HoldoutWeights as HoldoutWeights, weigh_holdout as weigh_holdout
    from counterpoise.evaluation.weighted import WeightedEvaluation as WeightedEvaluation
    from counterpoise.imputation.base import (
        ClippedPairs as ClippedPairs,
        Constant as Constant,
        Learned as Learned,
        NoImputation as NoImputation,
    )
    from counterpoise.imputation.calibrated import CalibratedLabels as CalibratedLabels
    from counterpoise.imputation.causal_embeddings import CausalEmbeddings as CausalEmbeddings
    from counterpoise.imputation.clicks import ClickModel as ClickModel
    from counterpoise.imputation.distillation import (
        BridgeDistillation as BridgeDistillation,
        RefineDistillation as RefineDistillation,
    )
    from counterpoise.imputation.filtered import Filtered as Filtered
    from counterpoise.imputation.mnar import MNARLikelihood as MNARLikelihood
    from counterpoise.imputation.multiply_robust import MultiplyRobust as MultiplyRobust
    from counterpoise.imputation.outcome import OutcomeModel as OutcomeModel
    from counterpoise.imputation.targeted import Targeted as Targeted
    from counterpoise.imputation.tri_training import TriTraining as TriTraining
    from counterpoise.methods import METHODS as METHODS, make as make
    from counterpoise.models.exposure import ExposureCovariate as ExposureCovariate
    from counterpoise.models.item_popularity import ItemPopularity as ItemPopularity
    from counterpoise.models.matrix_factorization import MatrixFactorization as MatrixFactorization
    from counterpoise.models.neural_cf import NeuralCF as NeuralCF
    from counterpoise.out_of_core.balancing import balance_log as balance_log, balance_shards as balance_shards
    from counterpoise.out_of_core.encoding import shard_log as shard_log
    from counterpoise.out_of_core.engines import make_engine as make_engine
    from counterpoise.parallel import fit_many as fit_many
    from counterpoise.recommender import DebiasedRecommender as DebiasedRecommender, load_model as load_model
    from counterpoise.report.write import write_report as write_report
    from counterpoise.training.closed_form import (
        ClosedForm as ClosedForm,
        ExposureEM as ExposureEM,
        LeastSquares as LeastSquares,
    )
    from counterpoise.training.ensemble import Ensemble as Ensemble
    from counterpoise.training.events import FitEvent as FitEvent
    from counterpoise.training.loop import History as History, Training as Training
    from counterpoise.training.ordinal import OrdinalLoss as OrdinalLoss
    from counterpoise.training.probe import ProbeLabels as ProbeLabels
    from counterpoise.tuning.result import Tuning as Tuning
    from counterpoise.tuning.tune import tune as tune
    from counterpoise.weights.auto_debias import AutoDebias as AutoDebias
    from counterpoise.weights.balancing import Balancing as Balancing
    from counterpoise.weights.base import NaiveBayes as NaiveBayes, Uniform as Uniform, UnitWeights as UnitWeights
    from counterpoise.weights.calibration import Calibrated as Calibrated
    from counterpoise.weights.capping import Capped as Capped
    from counterpoise.weights.exposure import RelativeExposure as RelativeExposure
    from counterpoise.weights.joint import (
        BalancedPropensity as BalancedPropensity,
        StabilizedPropensity as StabilizedPropensity,
    )
    from counterpoise.weights.propensity import (
        KnownPropensity as KnownPropensity,
        Logistic as Logistic,
        Popularity as Popularity,
        Propensity as Propensity,
    )

# Where each public name lives. It is imported when it is first used: torch alone takes longer to import than a model
# of a small log takes to fit.
_HOMES = {
    "balance.estimators": ("KernelBalancer", "MomentBalancer", "TreatmentBalancer", "balance_samples"),
    "balance.functions": ("CustomFunctions", "KernelFunctions", "Moments"),
    "balance.kernels": ("Exponential", "Gaussian"),
    "balance.solver": ("BalanceResult", "entropy_balance", "worst_case_balance"),
    "data.datasets": ("load_dataset",),
    "data.log": ("Dataset", "FeedbackLog"),
    "data.reading": ("read_log", "read_logs"),
    "data.side_tables": ("TableEncoder",),
    "data.simulation": ("SimulatedData", "simulate"),
    "data.splits": ("HoldoutSplit", "split"),
    "errors": ("ConfigError", "ConvergenceWarning", "CounterpoiseError", "DataError", "ReadingWarning"),
    "evaluation.comparison": ("Comparison", "compare"),
    "evaluation.evaluate": ("Evaluation", "evaluate"),
    "evaluation.full_ranking": ("RankingEvaluation", "evaluate_lists", "evaluate_ranking"),
    "evaluation.holdout_weights": ("HoldoutWeights", "weigh_holdout"),
    "evaluation.weighted": ("WeightedEvaluation",),
    "imputation.base": ("ClippedPairs", "Constant", "Learned", "NoImputation"),
    "imputation.calibrated": ("CalibratedLabels",),
    "imputation.causal_embeddings": ("CausalEmbeddings",),
    "imputation.clicks": ("ClickModel",),
    "imputation.distillation": ("BridgeDistillation", "RefineDistillation"),
    "imputation.filtered": ("Filtered",),
    "imputation.multiply_robust": ("MultiplyRobust",),
    "imputation.targeted": ("Targeted",),
    "imputation.mnar": ("MNARLikelihood",),
    "imputation.outcome": ("OutcomeModel",),
    "imputation.tri_training": ("TriTraining",),
    "methods": ("METHODS", "make"),
    "models.exposure": ("ExposureCovariate",),
    "models.item_popularity": ("ItemPopularity",),
    "models.matrix_factorization": ("MatrixFactorization",),
    "models.neural_cf": ("NeuralCF",),
    "out_of_core.balancing": ("balance_log", "balance_shards"),
    "out_of_core.engines": ("make_engine",),
    "out_of_core.encoding": ("shard_log",),
    "parallel": ("fit_many",),
    "recommender": ("DebiasedRecommender", "load_model"),
    "report.write": ("write_report",),
    "training.closed_form": ("ClosedForm", "ExposureEM", "LeastSquares"),
    "training.ensemble": ("Ensemble",),
    "training.events": ("FitEvent",),
    "training.ordinal": ("OrdinalLoss",),
    "training.probe": ("ProbeLabels",),
    "training.loop": ("History", "Training"),
    "tuning.result": ("Tuning",),
    "tuning.tune": ("tune",),
    "weights.auto_debias": ("AutoDebias",),
    "weights.balancing": ("Balancing",),
    "weights.base": ("UnitWeights", "NaiveBayes", "Uniform"),
    "weights.calibration": ("Calibrated",),
    "weights.capping": ("Capped",),
    "weights.exposure": ("RelativeExposure",),
    "weights.joint": ("BalancedPropensity", "StabilizedPropensity"),
    "weights.propensity": ("KnownPropensity", "Logistic", "Popularity", "Propensity"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}
_PACKAGES = ("plots",)  # reached as counterpoise.NAME

__all__ = sorted(_HOME_OF)


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used."""
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
