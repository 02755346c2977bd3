"""Propensities that are learned beside the predictor, step by step, and balance what it predicts (V2, StableDR)."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn.functional import softplus

from counterpoise.data.batches import Batch
from counterpoise.errors import check_number
from counterpoise.models.base import Backbone
from counterpoise.risks import exposure_cross_entropy, negative_log_complement
from counterpoise.training.contracts import FitContext, FittedWeights, StepInputs, Weights
from counterpoise.training.optimizer import Rate
from counterpoise.weights.base import CLIP, check_clip, inverse_propensity, propensity_facts
from counterpoise.weights.propensity import exposure_model

MAX_BALANCED_PROPENSITY = 1 - 1e-3  # the largest propensity whose 1 / (1 - p) is balanced


def joint_logit(one: Tensor, other: Tensor) -> Tensor:
    """The logit of sigmoid(one) x sigmoid(other): -log(e^-one + e^-other + e^-(one + other))."""
    return -torch.logaddexp(-one, softplus(-one) - other)


def entire_space(
    on_pairs: Tensor, on_rows: Tensor, other_on_pairs: Tensor, other_on_rows: Tensor, labels: Tensor, density: float
) -> Tensor:
    """Mean over D of CE(o r -> p q) for labels r, from logits of p and q; gradients on pairs of D reach p alone.

    CE(o r -> p q) = -log(1 - p q) - o r logit(p q), so it is mean_D -log(1 - p q) - density x mean_O r logit(p q).
    """
    unobserved = negative_log_complement(on_pairs, torch.sigmoid(other_on_pairs.detach()))
    return unobserved - density * (labels * joint_logit(on_rows, other_on_rows.detach())).mean()


def balance_gap(
    on_pairs: Tensor, on_rows: Tensor, function_on_pairs: Tensor, function_on_rows: Tensor, density: float
) -> Tensor:
    """Mean over D of (o / p - (1 - o) / (1 - p)) f, from logits s of p and a function f; 0 is expected at the true p.

    = density x mean_O f / (p (1 - p)) - mean_D f / (1 - p), where 1 / (1 - p) = 1 + e^s and 1 / (p (1 - p)) =
    2 + e^s + e^-s. Its square is the BMSE of Li et al. 2023.
    """
    observed = (function_on_rows * (2 + on_rows.exp() + (-on_rows).exp())).mean()
    return density * observed - (function_on_pairs * (1 + on_pairs.exp())).mean()


def normalised_gap(weight: Tensor, function_on_rows: Tensor, function_on_pairs: Tensor) -> Tensor:
    """(sum_O w (f - mean_D f)) / (sum_O w): how far the self-normalised mean of f lies from its mean over D."""
    return (weight * (function_on_rows - function_on_pairs.mean())).sum() / weight.sum()


class _JointPropensity(FittedWeights):
    """A model of o with logits s, a step at a time; what it minimises besides the cross-entropy is its owner's affair.

    The gaps are those of clipped propensities, the ones that weigh: otherwise a single row with a huge weight, which
    the clip then takes away, closes a gap most cheaply.

    The ratios of a batch's rows are the model's after its step; at the beginning of an epoch those of all rows are. So
    what an imputation sees of a row before that step is at most an epoch old, and exact where the batch is the log.
    """

    changes = True
    needs_pairs = True
    gap_name: ClassVar[str]
    part: BalancedPropensity | StabilizedPropensity

    def __init__(self, part: BalancedPropensity | StabilizedPropensity, context: FitContext) -> None:
        check_clip(part.clip)
        self.part, self.clip, self.density, self.rows = part, part.clip, context.log.density, len(context.log)
        self.scorer = context.build(exposure_model(part.backbone, dim=0), self.density)
        self.optimizer = context.optimizer(self.scorer)
        self.whole = context.batches().whole()
        self.ratio = self.at(self.whole.users, self.whole.items)
        self._gap, self._steps, self._whole_step = torch.zeros((), device=context.device), 0, False

    def refresh(self, epoch: int, residuals: Callable[[], Tensor]) -> bool:
        if not self._whole_step:  # where the batch is the log, the ratios are the model's already
            self.finalize()
        self._gap, self._steps = torch.zeros_like(self._gap), 0
        return True

    def step(self, inputs: StepInputs, imputed: Tensor, imputed_on_pairs: Tensor, rate: Rate) -> None:
        batch = inputs.batch
        on_rows, on_pairs = self.both(batch)
        loss, gap = self.loss(inputs, on_pairs, on_rows, imputed, imputed_on_pairs)
        self.optimizer.step(loss / self.density, rate)
        self.ratio[batch.rows] = self.at(batch.users, batch.items)
        self._whole_step = len(batch.rows) == self.rows
        self._gap, self._steps = self._gap + gap.detach(), self._steps + 1

    def both(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """The model's logits on the rows of a batch and on its pairs of D."""
        return self.scorer.rows_and_pairs(batch.users, batch.items, *batch.pairs)

    def loss(
        self, inputs: StepInputs, on_pairs: Tensor, on_rows: Tensor, imputed: Tensor, imputed_on_pairs: Tensor
    ) -> tuple[Tensor, Tensor]:
        """(what the model of o minimises, by pair of D; what should become 0)."""
        raise NotImplementedError

    @torch.no_grad()
    def at(self, users: Tensor | None, items: Tensor | None, labels: Tensor | None = None) -> Tensor:
        return inverse_propensity(torch.sigmoid(self.scorer.at(users, items)), self.density, self.clip)

    def finalize(self) -> None:
        self.ratio = self.at(self.whole.users, self.whole.items)

    def state(self) -> list[Tensor]:
        return [*(parameter.data for parameter in self.scorer.parameters()), self.ratio]

    @torch.no_grad()
    def facts(self) -> dict[str, Any]:
        """The facts of the clip, and the gap that was left: its mean over the steps of the last epoch."""
        propensity = torch.sigmoid(self.scorer(self.whole.users, self.whole.items))
        left = float(self._gap) / max(1, self._steps)
        return propensity_facts(propensity, self.density, self.clip) | {self.gap_name: left}


@dataclass
class BalancedPropensity(Weights):
    """A model of o that balances the prediction, trained together with it: with `ips` IPS-V2, with `dr` DR-V2.

    The model minimises, with predictions r^ and propensities p,

        observation CE(o -> p) + labels CE(o r -> p r^) + balance (mean_D (o / p - (1 - o) / (1 - p)) r^)^2,

    each CE a mean over D (`exposure_cross_entropy`), r^ held fixed; the predictor minimises labels CE(o r -> p r^)
    besides its risk, p held fixed. (Li, Xiao, Zheng, Wu and Cui 2023, Propensity Matters.) Unlike the released
    code: no gradient of the risk reaches p, where it would push p to 1 on observed pairs; the third term does not move
    the predictor; all terms are means; `clip` (see `inverse_propensity`) is relative to the density.
    `backbone`: the model of o; None for an additive one, logit p = mean + user bias + item bias, as in the released
    code. A factorisation is fitted to the very rows that it weighs, finds them likely, and leaves few that count.
    """

    observation: float = 1.0
    labels: float = 1.0
    balance: float = 1.0
    backbone: Backbone | None = None
    clip: float = CLIP

    def init(self, context: FitContext) -> FittedWeights:
        check_number("observation", self.observation, above=0)
        check_number("labels", self.labels, at_least=0)
        check_number("balance", self.balance, at_least=0)
        return _Balanced(self, context)


class _Balanced(_JointPropensity):
    gap_name = "balance_gap"
    part: BalancedPropensity

    def __init__(self, part: BalancedPropensity, context: FitContext) -> None:
        super().__init__(part, context)
        limits = max(part.clip * self.density, 1e-6), MAX_BALANCED_PROPENSITY
        self.range = [math.log(p / (1 - p)) for p in limits]  # of logits in the balance

    def loss(
        self, inputs: StepInputs, on_pairs: Tensor, on_rows: Tensor, imputed: Tensor, imputed_on_pairs: Tensor
    ) -> tuple[Tensor, Tensor]:
        own = exposure_cross_entropy(on_pairs, on_rows, self.density)
        labels = entire_space(on_pairs, on_rows, inputs.pair_logits, inputs.logits, inputs.batch.labels, self.density)
        on_pairs, on_rows = on_pairs.clamp(*self.range), on_rows.clamp(*self.range)
        predicted = torch.sigmoid(inputs.pair_logits), torch.sigmoid(inputs.logits)
        gap = balance_gap(on_pairs, on_rows, *predicted, density=self.density)
        return self.part.observation * own + self.part.labels * labels + self.part.balance * gap.square(), gap

    def extra_loss(self, batch: Batch, logits: Tensor, pair_logits: Tensor) -> Tensor | None:
        if self.part.labels == 0:
            return None
        with torch.no_grad():
            on_rows, on_pairs = self.both(batch)
        term = entire_space(pair_logits, logits, on_pairs, on_rows, batch.labels, self.density)
        return self.part.labels * term


@dataclass
class StabilizedPropensity(Weights):
    """A model of o under which the imputed errors of the log have their mean over D: StableDR, with `snips`.

    It minimises CE(o -> p) + stability c^2, c = (sum_O (1 / p) (e^ - mean_D e^)) / (sum_O 1 / p) for imputed errors e^,
    which are held fixed. The risk is then bounded by the errors and doubly robust through c = 0. Without an imputation
    c is 0 from the start. (Li, Zheng and Wu 2023, StableDR.) The released code has one scalar to learn here; we take
    a model of o, and c normalised, so that `stability` means the same for any size of log. A strong one is met by a few
    rows of tiny propensity rather than by a better model: look at `clipped_share` and at the mean ratio.
    `backbone` as in `BalancedPropensity`.
    """

    stability: float = 1.0
    backbone: Backbone | None = None
    clip: float = CLIP

    def init(self, context: FitContext) -> FittedWeights:
        check_number("stability", self.stability, at_least=0)
        return _Stabilized(self, context)


class _Stabilized(_JointPropensity):
    gap_name = "stability_gap"
    part: StabilizedPropensity

    def loss(
        self, inputs: StepInputs, on_pairs: Tensor, on_rows: Tensor, imputed: Tensor, imputed_on_pairs: Tensor
    ) -> tuple[Tensor, Tensor]:
        weight = inverse_propensity(torch.sigmoid(on_rows), self.density, self.clip)
        gap = normalised_gap(weight, imputed, imputed_on_pairs)
        return exposure_cross_entropy(on_pairs, on_rows, self.density) + self.part.stability * gap.square(), gap
