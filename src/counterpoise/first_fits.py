"""Features learned on the way: what a first, small model says of users and items."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import replace
from math import ceil

from torch import Tensor
from torch.nn.functional import softplus

from counterpoise.backbones import Backbone, Scorer
from counterpoise.features import Source
from counterpoise.problems import Problem, fit_alone, mean_error
from counterpoise.training import Batch

Tables = dict[str, tuple[Tensor, Tensor]]  # source -> (users, items)
STEPS = 60  # of a first fit: features need no last digit
EPOCHS = 5  # at least


def first_fits(problem: Problem, sources: Sequence[Source], embedder: Backbone) -> Tables:
    """Tables for "embeddings" (a model of the labels) and "exposure" (of what was observed), as far as asked for."""
    epochs = max(EPOCHS, ceil(STEPS / len(problem.batches())))
    training = replace(problem.training, epochs=min(epochs, problem.training.epochs))
    brief, tables = replace(problem, training=training), {}
    if "embeddings" in sources:
        tables["embeddings"] = fit_alone(brief, deepcopy(embedder), mean_error).features()
    if "exposure" in sources:
        density = problem.log.density

        def loss(scorer: Scorer, batch: Batch) -> Tensor:
            return observation_loss(scorer, batch, density)

        tables["exposure"] = fit_alone(brief, deepcopy(embedder), loss, True, density).features()
    return tables


def observation_loss(scorer: Scorer, batch: Batch, density: float) -> Tensor:
    """Cross-entropy of being observed, over D, for each observed pair: mean_D softplus(s) / density - mean_O s."""
    logits, pair_logits = scorer(batch.users, batch.items), scorer.at(batch.pair_users, batch.pair_items)
    loss: Tensor = softplus(pair_logits).mean() / density - logits.mean()
    return loss
