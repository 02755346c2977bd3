"""The words for built-in parts, for the command line and for settings written in a file."""

from __future__ import annotations

from counterpoise.agreement import Agreement
from counterpoise.balancing import Balancing
from counterpoise.calibrated import Multiple, Targeted
from counterpoise.given_propensities import Given
from counterpoise.imputation import Constant, Imputation, Learned, Nothing
from counterpoise.joint_propensity import BalancedPropensity, StabilizedPropensity
from counterpoise.logistic import Logistic
from counterpoise.propensity import Popularity, Propensity
from counterpoise.silence import Silence
from counterpoise.weights import Itself, NaiveBayes, Uniform, Weights

WEIGHTS: dict[str, type[Weights]] = {
    "uniform": Uniform,
    "itself": Itself,
    "naive-bayes": NaiveBayes,
    "logistic": Logistic,
    "propensity": Propensity,
    "popularity": Popularity,
    "given": Given,
    "balanced-propensity": BalancedPropensity,
    "stabilized-propensity": StabilizedPropensity,
    "balancing": Balancing,
}

IMPUTATIONS: dict[str, type[Imputation]] = {
    "nothing": Nothing,
    "constant": Constant,
    "learned": Learned,
    "targeted": Targeted,
    "multiple": Multiple,
    "agreement": Agreement,
    "silence": Silence,
}
