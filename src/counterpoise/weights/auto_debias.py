"""AutoDebias: weights and imputed labels that are learned by how well the predictor then does on the probe.

(Chen, Dong, Qiu, He, Xin, Chen, Lin and Yang 2021, AutoDebias: Learning to Debias for Recommendation.) With debiasing
parameters phi, the predictor's parameters theta minimise

    L(theta; phi) = mean over O of w1 CE(r -> s) + strength x mean over D of w2 CE(m -> s) + prior
    w1 = exp((user + item + label bias) / 5)           of observed pairs
    w2 = exp((user + item + observed bias) / 5)        of all pairs
    m  = sigmoid(c[label, or missing])                 the imputed label

and phi the error on the probe S of where one step of plain gradient descent would lead:

    theta' = theta - look_ahead |O| gradient of L(theta; phi),    phi against the gradient of mean over S of CE(r -> s')

Differences from the released code: log losses of probabilities, where it has squared errors of labels -1 and 1, and
with them sigmoid(c) for tanh(c); means in place of sums, so that the strength means the same for any log; weights learn
from the first epoch, not after 20; the predictor itself takes a step of Adam, as all our models, and plain descent
serves the look-ahead alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor
from torch.nn.functional import softplus

from counterpoise.data.batches import Batch
from counterpoise.errors import ConfigError, check_number
from counterpoise.models.base import Scorer, initial_logit
from counterpoise.risks import error
from counterpoise.training.contracts import FitContext, FittedWeights, StepInputs, Weights
from counterpoise.training.optimizer import Adam, Rate, gradients_of

TEMPERATURE = 5.0  # of the weights, as published: a bias of 1 is a factor of exp(1 / 5)
LARGEST_SHIFT = 0.1  # of a parameter, in the central difference along a direction


class DebiasingParameters(NamedTuple):
    """phi: biases of the weights of observed pairs, biases of those of all pairs, and logits of imputed labels."""

    user: Tensor  # (|U|,)
    item: Tensor  # (|I|,)
    label: Tensor  # (2,) negative, positive
    pair_user: Tensor  # (|U|,)
    pair_item: Tensor  # (|I|,)
    observed: Tensor  # (2,) missing, observed
    imputed: Tensor  # (3,) negative, positive, missing

    @classmethod
    def neutral(cls, n_users: int, n_items: int, rate: float, device: torch.device) -> Self:
        """Weights of 1, and this label rate as all imputed labels."""
        sizes = (n_users, n_items, 2, n_users, n_items, 2)
        imputed = torch.full((3,), initial_logit(rate), device=device)
        tables = [torch.zeros(size, device=device) for size in sizes] + [imputed]
        return cls(*(table.requires_grad_() for table in tables))

    def detached(self) -> Self:
        """The parameters as constants."""
        return type(self)(*(values.detach() for values in self))

    def precisions(self, l2: float) -> list[float]:
        """The precisions of the priors: on the biases of users and items alone."""
        return [l2 if name.endswith(("user", "item")) else 0.0 for name in self._fields]


class ErrorOfLabel(NamedTuple):
    """The error of each pair as a function of its label t: constant - t x slope.

    CE(t -> s) is softplus(s) - t s, and its derivative along a direction is sigmoid(s) s' - t s', with s' that of s.
    """

    constant: Tensor
    slope: Tensor

    def __call__(self, label: Tensor) -> Tensor:
        return self.constant - label * self.slope


def log_loss_of(logits: Tensor) -> ErrorOfLabel:
    """CE(t -> s)."""
    return ErrorOfLabel(softplus(logits), logits)


def derivative_of(logits: Tensor, change: Tensor) -> ErrorOfLabel:
    """The derivative of CE(t -> s) along a direction in which the logits change by `change`."""
    return ErrorOfLabel(torch.sigmoid(logits) * change, change)


def by_label(values: Tensor, labels: Tensor) -> Tensor:
    """values[label], between both for a label between 0 and 1."""
    return values[0] + (values[1] - values[0]) * labels


def observed_weight(phi: DebiasingParameters, users: Tensor, items: Tensor, labels: Tensor) -> Tensor:
    """w1 = exp((user + item + label bias) / 5)."""
    biases = phi.user[users.long()] + phi.item[items.long()] + by_label(phi.label, labels)
    return (biases / TEMPERATURE).exp()


def pair_weight(phi: DebiasingParameters, users: Tensor | None, items: Tensor | None, observed: bool) -> Tensor:
    """w2 = exp((user + item + observed bias) / 5), of all pairs of D, user by user, where they are None."""
    of_users = ((phi.pair_user + phi.observed[int(observed)]) / TEMPERATURE).exp()
    of_items = (phi.pair_item / TEMPERATURE).exp()
    if users is None or items is None:
        return torch.outer(of_users, of_items).flatten()
    return of_users[users.long()] * of_items[items.long()]


def observed_loss(phi: DebiasingParameters, batch: Batch, on_rows: ErrorOfLabel) -> Tensor:
    """Mean over O of w1 CE(r -> s)."""
    return (observed_weight(phi, batch.users, batch.items, batch.labels) * on_rows(batch.labels)).mean()


def imputed_loss(
    phi: DebiasingParameters, batch: Batch, on_rows: ErrorOfLabel, on_pairs: ErrorOfLabel, density: float
) -> Tensor:
    """Mean over D of w2 CE(m -> s).

    = mean over D as if all pairs were missing + density x mean over O of (w2 CE(m -> s) as it is - as if missing), so
    that no pair of D needs to know whether it was observed.
    """
    pairs, rows = (batch.pair_users, batch.pair_items), (batch.users, batch.items)
    missing, labels = torch.sigmoid(phi.imputed[2]), torch.sigmoid(by_label(phi.imputed, batch.labels))
    of_all = pair_weight(phi, *pairs, observed=False) * on_pairs(missing)
    of_rows = pair_weight(phi, *rows, observed=True) * on_rows(labels)
    as_missing = pair_weight(phi, *rows, observed=False) * on_rows(missing)
    return of_all.mean() + density * (of_rows - as_missing).mean()


@dataclass
class AutoDebias(Weights):
    """Weights of observed pairs, and weights and labels of all pairs, learned on the probe by a look-ahead step.

    `imputed_strength`: of the imputed labels of all pairs. `look_ahead`: the rate of the plain gradient step on the sum
    of errors over the log, after which the probe judges. `meta_rate`: the learning rate of the debiasing parameters, as
    a share of the predictor's; 0 leaves all weights at 1. `l2_debiasing`: the precision of a Gaussian prior on the
    biases of users and items in the weights, where the loss is a sum over the probe: it counts by what a step of
    `look_ahead` can change. Without it Adam follows the noise of hundreds of biases on a small probe.
    """

    imputed_strength: float = 0.1
    look_ahead: float = 0.001
    meta_rate: float = 1.0
    l2_debiasing: float = 0.1

    def init(self, context: FitContext) -> FittedWeights:
        """All weights are 1, and the imputed labels the label rate of the probe."""
        for name in ("imputed_strength", "look_ahead", "meta_rate", "l2_debiasing"):
            check_number(name, getattr(self, name), at_least=0)
        context.need_probe("AutoDebias", "Without one, choose other weights, such as 'balancing'.")
        return FittedAutoDebias(self, context)


class FittedAutoDebias(FittedWeights):
    """The debiasing parameters of one fit, and the predictor that they are learned for."""

    learns_from_probe = True

    changes = True
    needs_pairs = True
    scorer: Scorer  # the predictor
    ahead: Scorer  # a copy that is moved about

    def __init__(self, part: AutoDebias, context: FitContext) -> None:
        assert context.probe is not None
        self.part, self.density, self.rows = part, context.log.density, len(context.log)
        self.whole, self.probe = context.batches().whole(), context.on(context.probe).batches().whole()
        rate = float(context.probe.labels.mean())
        self.phi = DebiasingParameters.neutral(*context.log.shape, rate, context.device)
        learning_rate = part.meta_rate * context.training.learning_rate
        self.optimizer = Adam(self.phi, learning_rate, self.phi.precisions(part.l2_debiasing / len(context.probe)))
        self.ratio = torch.ones(len(context.log), device=context.device)

    def start(self, scorer: Scorer) -> None:
        self.scorer, self.ahead = scorer, deepcopy(scorer)

    def refresh(self, epoch: int, residuals: Callable[[], Tensor]) -> bool:
        return True

    def step(self, inputs: StepInputs, imputed: Tensor, imputed_on_pairs: Tensor, rate: Rate) -> None:
        batch = inputs.batch
        self.optimizer.step(self.meta_loss(batch), rate)
        with torch.no_grad():
            self.ratio[batch.rows] = observed_weight(self.phi, batch.users, batch.items, batch.labels)

    def meta_loss(self, batch: Batch) -> Tensor:
        """A number whose gradient in phi is that of the probe's error after the look-ahead step.

        With v the gradient of the probe's error at theta', it is -look_ahead |O| <v, gradient of L(theta; phi)>: the
        derivative of L along v, and L is made of errors, each of which has its own (`derivative_of`).
        """
        rows, pairs = self._logits(self.scorer, batch)
        loss = self._loss(self.phi.detached(), batch, log_loss_of(rows), log_loss_of(pairs))
        step = self.part.look_ahead * self.rows
        along = self._probe_gradient(self._at(self._gradient(loss), -step))
        changes = self._changes(batch, along)
        on_rows, on_pairs = (
            derivative_of(s.detach(), change) for s, change in zip((rows, pairs), changes, strict=True)
        )
        return -step * self._loss(self.phi, batch, on_rows, on_pairs)

    def _gradient(self, loss: Tensor) -> list[Tensor]:
        """The gradient of a loss and of the prior in the predictor's parameters."""
        parameters = list(self.scorer.parameters())
        terms = zip(gradients_of(loss, parameters), self.scorer.precisions(), parameters, strict=True)
        return [gradient + precision / self.rows * values.detach() for gradient, precision, values in terms]

    def _loss(self, phi: DebiasingParameters, batch: Batch, on_rows: ErrorOfLabel, on_pairs: ErrorOfLabel) -> Tensor:
        pairs = imputed_loss(phi, batch, on_rows, on_pairs, self.density)
        return observed_loss(phi, batch, on_rows) + self.part.imputed_strength * pairs

    def _logits(self, scorer: Scorer, batch: Batch) -> tuple[Tensor, Tensor]:
        return scorer.rows_and_pairs(batch.users, batch.items, *batch.pairs)

    @torch.no_grad()
    def _at(self, direction: Sequence[Tensor], distance: float) -> Scorer:
        """The copy, where the predictor would be if it were moved so far in a direction."""
        moved = zip(self.ahead.parameters(), self.scorer.parameters(), direction, strict=True)
        for own, start, change in moved:
            torch.add(start, change, alpha=distance, out=own.data)
        return self.ahead

    def _probe_gradient(self, scorer: Scorer) -> Sequence[Tensor]:
        loss = error(self.probe.labels, scorer(self.probe.users, self.probe.items)).mean()
        return gradients_of(loss, list(scorer.parameters()))

    @torch.no_grad()
    def _changes(self, batch: Batch, along: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """The derivative of the logits of rows and pairs along a direction: a central difference, which is exact for
        inner products.
        """
        largest = max(float(values.abs().max()) for values in along if values.numel())
        shift = LARGEST_SHIFT / max(largest, 1e-30)
        forward, backward = (self._logits(self._at(along, sign * shift), batch) for sign in (1, -1))
        rows, pairs = ((f - b) / (2 * shift) for f, b in zip(forward, backward, strict=True))
        return rows, pairs

    def extra_loss(self, batch: Batch, logits: Tensor, pair_logits: Tensor) -> Tensor | None:
        if self.part.imputed_strength == 0:
            return None
        loss = imputed_loss(self.phi.detached(), batch, log_loss_of(logits), log_loss_of(pair_logits), self.density)
        return self.part.imputed_strength * loss

    @torch.no_grad()
    def at(self, users: Tensor | None, items: Tensor | None, labels: Tensor | None = None) -> Tensor:
        if users is None or items is None or labels is None:
            raise ConfigError(
                "the weights of AutoDebias are known only where the label is, and this method asks for them on all "
                "pairs. Choose other weights, such as weights='propensity'."
            )
        return observed_weight(self.phi, users, items, labels)

    def finalize(self) -> None:
        self.ratio = self.at(self.whole.users, self.whole.items, self.whole.labels)

    def state(self) -> list[Tensor]:
        return [*(values.data for values in self.phi), self.ratio]

    @torch.no_grad()
    def facts(self) -> dict[str, Any]:
        imputed = torch.sigmoid(self.phi.imputed).tolist()
        names = ("imputed_label_of_negative", "imputed_label_of_positive", "imputed_label_of_missing")
        return {"mean_ratio": float(self.ratio.mean())} | dict(zip(names, imputed, strict=True))
