"""Features learned on the way: what a first, small model says of users and items."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy

from torch import Tensor

from counterpoise.features import Source
from counterpoise.problems import Problem, fit_alone, mean_error
from counterpoise.propensity import fit_observation
from counterpoise.scorers import Backbone

Tables = dict[str, tuple[Tensor, Tensor]]  # source -> (users, items)


def first_fits(problem: Problem, sources: Sequence[Source], embedder: Backbone) -> Tables:
    """Tables for "embeddings" (a model of the labels) and "exposure" (of what was observed), as far as asked for."""
    tables = {}
    if "embeddings" in sources:
        tables["embeddings"] = fit_alone(problem.brief(), deepcopy(embedder), mean_error).features()
    if "exposure" in sources:
        tables["exposure"] = fit_observation(problem, deepcopy(embedder)).features()
    return tables
