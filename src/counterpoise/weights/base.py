"""Weights that need no model of being observed, and weights from propensities that are known before training."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from counterpoise.data.batches import Batch
from counterpoise.errors import ConfigError, check_number
from counterpoise.models.base import Backbone, Scorer
from counterpoise.training.contracts import FitContext, FittedWeights, InterceptShift, StepInputs, Weights
from counterpoise.training.optimizer import Rate

PropensityOf = Callable[[Tensor | None, Tensor | None], Tensor]  # of pairs by their codes; of all of D where None
NO_FACTS: Mapping[str, Any] = {}
CLIP = 0.05  # the smallest propensity that counts, as a share of the density: no ratio above 20. On simulated logs 0 to
# 0.2 give `ips` with Logistic an AUC of .6125 to .6143, larger clips the larger (benchmarks/constants.py --only clip)


@dataclass
class Uniform(Weights):
    """Every observed pair counts the same: what plain matrix factorisation assumes, wrongly on a biased log."""

    def init(self, context: FitContext) -> FittedWeights:
        return ConstantWeights(context, 1.0)


@dataclass
class UnitWeights(Weights):
    """Every observed pair has weight 1: with `dr` all other pairs count by their imputed error alone."""

    def init(self, context: FitContext) -> FittedWeights:
        return ConstantWeights(context, context.log.density)


class ConstantWeights(FittedWeights):
    def __init__(self, context: FitContext, ratio: float) -> None:
        self.ratio = torch.full((len(context.log),), ratio, device=context.device)
        self._n_pairs = context.log.n_pairs

    def at(self, users: Tensor | None, items: Tensor | None, labels: Tensor | None = None) -> Tensor:
        return self.ratio[:1].expand(self._n_pairs if users is None else len(users))


@dataclass
class NaiveBayes(Weights):
    """ratio = P(label) / P(label | observed), with P(label) from the probe and P(label | observed) from the log.

    Right when being observed depends on the label alone (Schnabel et al. 2016, section 5).
    `smoothing` is added to each label's count in the probe. Over the log the ratios average exactly 1.
    """

    smoothing: float = 1.0

    def init(self, context: FitContext) -> FittedWeights:
        check_number("smoothing", self.smoothing, at_least=0)
        probe = context.need_probe(
            "naive Bayes weights",
            "Or put others in their place, such as 'propensity', wherever they are set: `weights`, "
            "`imputation__weights`, or `prior`, which can be 'uniform'.",
        )
        unbiased = (float(probe.labels.sum()) + self.smoothing) / (len(probe) + 2 * self.smoothing)
        biased = float(context.log.labels.mean())
        if not 0 < biased < 1:
            raise ConfigError(
                f"naive Bayes weights need both labels in the rows trained on, whose mean label is {biased:g}. "
                "Choose other weights, such as weights='propensity', or use a larger log."
            )
        return LabelWeights(context, (1 - unbiased) / (1 - biased), unbiased / biased)


class LabelWeights(FittedWeights):
    def __init__(self, context: FitContext, negative: float, positive: float) -> None:
        self._negative, self._positive = negative, positive
        self.ratio = self.at(None, None, torch.from_numpy(context.log.labels).to(context.device))

    def at(self, users: Tensor | None, items: Tensor | None, labels: Tensor | None = None) -> Tensor:
        if labels is None:
            raise ConfigError(
                "naive Bayes weights are known only where the label is, and this method asks for them on all pairs. "
                "Choose other weights, such as weights='propensity'."
            )
        return self._negative + (self._positive - self._negative) * labels

    def facts(self) -> dict[str, Any]:
        return {"ratio_of_negative": self._negative, "ratio_of_positive": self._positive}


def check_clip(clip: float) -> None:
    """Raise `ConfigError` unless it is a share of the density."""
    check_number("clip", clip, at_least=0, at_most=1, advice="It is a share of the density; 0 switches it off.")


def inverse_propensity(propensity: Tensor, density: float, clip: float) -> Tensor:
    """ratio = density / max(propensity, clip x density): at most 1 / clip; a clip of 0 leaves all as they are."""
    return density / propensity.clamp(min=clip * density)


def propensity_facts(propensity: Tensor, density: float, clip: float) -> dict[str, Any]:
    """JSON-able: what the clip did to the rows of a log with these propensities, and their range."""
    ratio, whole = (inverse_propensity(propensity.double(), density, c) for c in (clip, 0.0))
    clipped = int((propensity < clip * density).sum())
    return {
        "clipped_rows": clipped,
        "clipped_share": clipped / len(propensity),
        "weight_removed": float(1 - ratio.sum() / whole.sum()),
        "smallest_propensity": float(propensity.min()),
        "largest_propensity": float(propensity.max()),
        "mean_ratio": float(ratio.mean()),
    }


class InversePropensity(FittedWeights):
    """Weights from propensities that are known before training: see `inverse_propensity`.

    `density`: of the log that the propensities are for, None for that of the rows trained on. `normalised`: the ratios
    are divided by their mean over the log, for propensities known up to a factor. `learned`: more of their facts.
    """

    def __init__(
        self,
        context: FitContext,
        propensity_of: PropensityOf,
        clip: float,
        density: float | None = None,
        normalised: bool = False,
        learned: Mapping[str, Any] = NO_FACTS,
    ) -> None:
        check_clip(clip)
        log, self.clip, self.learned = context.log, clip, learned
        self.density = log.density if density is None else density
        codes = [torch.from_numpy(codes).to(context.device) for codes in (log.users, log.items)]
        self.propensity_of, self.on_log = propensity_of, propensity_of(*codes)
        ratio = inverse_propensity(self.on_log, self.density, clip)
        self.scale = 1 / float(ratio.mean()) if normalised else 1.0
        self.ratio = self.scale * ratio
        self._everywhere: Tensor | None = None  # (|D|,) once it was asked for

    def at(self, users: Tensor | None, items: Tensor | None, labels: Tensor | None = None) -> Tensor:
        if users is None and self._everywhere is not None:
            return self._everywhere
        ratio = self.scale * inverse_propensity(self.propensity_of(users, items), self.density, self.clip)
        self._everywhere = ratio if users is None else self._everywhere
        return ratio

    def facts(self) -> dict[str, Any]:
        return propensity_facts(self.on_log, self.density, self.clip) | dict(self.learned)


class TransformedWeights(FittedWeights):
    """A function of other weights, pair by pair, that follows them in training. `inner`: the others."""

    def __init__(self, inner: FittedWeights) -> None:
        self.inner = inner
        self.changes, self.learns_from_probe = inner.changes, inner.learns_from_probe
        self.needs_pairs, self.needs_pair_logits = inner.needs_pairs, inner.needs_pair_logits
        self.user_vectors, self.ratio = inner.user_vectors, self.transformed(inner.ratio)

    def transformed(self, ratio: Tensor) -> Tensor:
        """The ratio of a pair from that of the weights inside."""
        raise NotImplementedError

    def start(self, scorer: Scorer) -> None:
        self.inner.start(scorer)

    def refresh(self, epoch: int, residuals: Callable[[], Tensor]) -> bool:
        changed = self.inner.refresh(epoch, residuals)
        if changed:
            self.ratio.copy_(self.transformed(self.inner.ratio))
        return changed

    def step(self, inputs: StepInputs, imputed: Tensor, imputed_on_pairs: Tensor, rate: Rate) -> None:
        self.inner.step(inputs, imputed, imputed_on_pairs, rate)
        if self.needs_pairs:
            self.ratio[inputs.batch.rows] = self.transformed(self.inner.ratio[inputs.batch.rows])

    def extra_loss(self, batch: Batch, logits: Tensor, pair_logits: Tensor) -> Tensor | None:
        return self.inner.extra_loss(batch, logits, pair_logits)

    def at(self, users: Tensor | None, items: Tensor | None, labels: Tensor | None = None) -> Tensor:
        return self.transformed(self.inner.at(users, items, labels))

    def finalize(self) -> None:
        self.inner.finalize()
        self.ratio.copy_(self.transformed(self.inner.ratio))

    def intercept_shift(self, backbone: Backbone | None = None) -> InterceptShift | None:
        return self.inner.intercept_shift(backbone)

    def state(self) -> list[Tensor]:
        return [self.ratio, *self.inner.state()] if self.changes else self.inner.state()
