"""How much each observed pair counts: the ratio = weight x density of each row, 1 on average."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from counterpoise.config import Configurable
from counterpoise.errors import ConfigError, check_number
from counterpoise.training.context import FitContext
from counterpoise.training.loop import Batch
from counterpoise.training.optimizer import Rate


class StepInputs(NamedTuple):
    """What a part may look at in a step: all of it detached, so that no part moves another."""

    batch: Batch
    logits: Tensor  # (rows,) of the predictor on the batch's rows
    pair_logits: Tensor  # (pairs,) and on its pairs of D; empty where no part asks for pairs
    errors: Tensor  # (rows,)


class EpochInputs(NamedTuple):
    """What the weights may ask of the predictor at the beginning of an epoch, detached."""

    residuals: Callable[[], Tensor]  # error minus imputed error of every row of the log
    features: Callable[[], tuple[Tensor, Tensor]]  # what it has learned of users and of items


class FittedWeights:
    """Weights during one fit. Those that never change set `ratio` and answer `at`; the others learn on the way."""

    needs_pairs: ClassVar[bool] = False  # whether `step` looks at pairs of D
    needs_pair_logits: ClassVar[bool] = True  # and at what is predicted there
    ratio: Tensor  # (rows,) of the log that is trained on, on the device of the fit

    @property
    def still(self) -> bool:
        """Whether nothing happens to the weights in training."""
        return self._idle("refresh", "step", "extra_loss")

    @property
    def steady(self) -> bool:
        """Whether no step touches the weights, and what refreshes them writes into the same tensor (`graphs`)."""
        return self.still

    def _idle(self, *names: str) -> bool:
        return all(getattr(type(self), name) is getattr(FittedWeights, name) for name in names)

    def refresh(self, epoch: int, current: EpochInputs) -> None:
        """At the beginning of an epoch, counted from 1, look at the whole log."""

    def step(self, view: StepInputs, imputed: Tensor, imputed_on_pairs: Tensor, rate: Rate) -> None:
        """Learn from a batch, at `rate` times the learning rate; imputed errors of its rows and of its pairs of D."""

    def has_closed_form(self, codes: Tensor) -> bool:
        """Whether `step` does without autograd for so many pairs, and there is no `extra_loss`."""
        return self._idle("step", "extra_loss")

    def extra_loss(self, batch: Batch, logits: Tensor, pair_logits: Tensor) -> Tensor | None:
        """What the predictor minimises besides the risk, if anything; gradients reach the predictor alone."""
        return None

    def at(self, users: Tensor | None, items: Tensor | None, labels: Tensor | None = None) -> Tensor:
        """The ratio of any pairs, all of D where they are None; `labels` where they are known."""
        raise NotImplementedError

    def settle(self) -> None:
        """After training: the ratio of all rows, where it was learned batch by batch."""

    def state(self) -> list[Tensor]:
        """The tensors that change in training, to keep a copy of the best epoch."""
        return []

    def facts(self) -> dict[str, Any]:
        """JSON-able: what there is to know about these weights besides their values."""
        return {}


@dataclass
class Weights(Configurable):
    """The configuration of a `FittedWeights`."""

    def init(self, context: FitContext) -> FittedWeights:
        """Learn what can be learned before training, and be ready for the rest."""
        raise NotImplementedError


@dataclass
class Uniform(Weights):
    """Every observed pair counts the same: what plain matrix factorisation assumes, wrongly on a biased log."""

    def init(self, context: FitContext) -> FittedWeights:
        """Ratio 1."""
        return _ConstantWeights(context, 1.0)


@dataclass
class UnitWeights(Weights):
    """Every observed pair stands for itself alone, weight 1: with `dr`, imputation is left to speak for all others."""

    def init(self, context: FitContext) -> FittedWeights:
        """Ratio = density."""
        return _ConstantWeights(context, context.log.density)


class _ConstantWeights(FittedWeights):
    def __init__(self, context: FitContext, ratio: float) -> None:
        self.ratio = torch.full((len(context.log),), ratio, device=context.device)
        self._shape = context.log.shape

    def at(self, users: Tensor | None, items: Tensor | None, labels: Tensor | None = None) -> Tensor:
        size = self._shape[0] * self._shape[1] if users is None else len(users)
        return self.ratio[:1].expand(size)


@dataclass
class NaiveBayes(Weights):
    """ratio = P(label) / P(label | observed), with P(label) from the probe and P(label | observed) from the log.

    Label-shift weights: right when being observed depends on the label alone (Schnabel et al. 2016, section 5).
    `smoothing` is added to each label's count in the probe. Over the log the ratios average exactly 1.
    """

    smoothing: float = 1.0

    def init(self, context: FitContext) -> FittedWeights:
        """Two values, one for each label; in between for labels in between."""
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
                "Put others in their place, such as 'propensity', or a larger log."
            )
        return _LabelWeights(context, (1 - unbiased) / (1 - biased), unbiased / biased)


class _LabelWeights(FittedWeights):
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


PropensityOf = Callable[[Tensor | None, Tensor | None], Tensor]  # of pairs by their codes; of all of D where None
CLIP = 0.05  # the smallest propensity that counts, as a share of the density: no ratio above 20


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

    `density`: of the log that the propensities speak of, None for that of the rows trained on. `normalised`: the ratios
    are divided by their mean over the log, for propensities known up to a factor.
    """

    def __init__(
        self,
        context: FitContext,
        propensity_of: PropensityOf,
        clip: float,
        density: float | None = None,
        normalised: bool = False,
    ) -> None:
        check_number("clip", clip, at_least=0, at_most=1, advice="It is a share of the density; 0 switches it off.")
        log, self.clip = context.log, clip
        self.density = log.density if density is None else density
        codes = [torch.from_numpy(codes).to(context.device) for codes in (log.users, log.items)]
        self.propensity_of, self.on_log = propensity_of, propensity_of(*codes)
        ratio = inverse_propensity(self.on_log, self.density, clip)
        self.scale = 1 / float(ratio.mean()) if normalised else 1.0
        self.ratio = self.scale * ratio
        self._everywhere: Tensor | None = None  # (|D|,) once it was asked for

    def at(self, users: Tensor | None, items: Tensor | None, labels: Tensor | None = None) -> Tensor:
        """The ratio of any pairs; labels make no difference."""
        if users is None and self._everywhere is not None:
            return self._everywhere
        ratio = self.scale * inverse_propensity(self.propensity_of(users, items), self.density, self.clip)
        self._everywhere = ratio if users is None else self._everywhere
        return ratio

    def facts(self) -> dict[str, Any]:
        """What the clip did, and the range of the propensities."""
        return propensity_facts(self.on_log, self.density, self.clip)
