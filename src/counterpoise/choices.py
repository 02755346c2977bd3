"""The words for built-in weights, for the command line and for settings written in a file."""

from __future__ import annotations

from typing import Any

from counterpoise.errors import ConfigError
from counterpoise.joint_propensity import BalancedPropensity, StabilizedPropensity
from counterpoise.propensity import Logistic, Popularity, Propensity
from counterpoise.weights import Given, Itself, NaiveBayes, Uniform, Weights

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
}


def as_weights(choice: Any) -> Weights:
    """Weights from their word or as they are."""
    if isinstance(choice, Weights):
        return choice
    if isinstance(choice, str) and choice in WEIGHTS:
        return WEIGHTS[choice]()
    raise ConfigError(f"`weights` must be a Weights part or one of {', '.join(map(repr, WEIGHTS))}, got {choice!r}.")
