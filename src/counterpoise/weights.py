"""How much each observed pair counts: the ratio = weight x density of each row, 1 on average."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from counterpoise.adam import Rate
from counterpoise.arguments import as_float64
from counterpoise.errors import ConfigError, DataError, check_number
from counterpoise.feedback import FeedbackLog
from counterpoise.parts import Part
from counterpoise.problems import Problem
from counterpoise.training import Batch


class View(NamedTuple):
    """What a part may look at in a step: all of it detached, so that no part moves another."""

    batch: Batch
    logits: Tensor  # (rows,) of the predictor on the batch's rows
    pair_logits: Tensor  # (pairs,) and on its pairs of D; empty where no part asks for pairs
    errors: Tensor  # (rows,)


class Current(NamedTuple):
    """What the weights may ask of the predictor at the beginning of an epoch, detached."""

    residuals: Callable[[], Tensor]  # error minus imputed error of every row of the log
    features: Callable[[], tuple[Tensor, Tensor]]  # what it has learned of users and of items


class Weighing:
    """Weights during one fit. Those that never change set `ratio` and answer `at`; the others learn on the way."""

    needs_pairs: ClassVar[bool] = False  # whether `step` looks at pairs of D
    needs_pair_logits: ClassVar[bool] = True  # and at what is predicted there
    ratio: Tensor  # (rows,) of the log that is trained on, on the device of the fit

    @property
    def still(self) -> bool:
        """Whether nothing happens to the weights in training."""
        return self._idle("refresh", "step", "extra_loss")

    def _idle(self, *names: str) -> bool:
        return all(getattr(type(self), name) is getattr(Weighing, name) for name in names)

    def refresh(self, epoch: int, current: Current) -> None:
        """At the beginning of an epoch, counted from 1, look at the whole log."""

    def step(self, view: View, imputed: Tensor, imputed_on_pairs: Tensor, rate: Rate) -> None:
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
class Weights(Part):
    """The configuration of a `Weighing`."""

    def begin(self, problem: Problem) -> Weighing:
        """Learn what can be learned before training, and be ready for the rest."""
        raise NotImplementedError


@dataclass
class Uniform(Weights):
    """Every observed pair counts the same: what plain matrix factorisation assumes, wrongly on a biased log."""

    def begin(self, problem: Problem) -> Weighing:
        """Ratio 1."""
        return _Same(problem, 1.0)


@dataclass
class Itself(Weights):
    """Every observed pair stands for itself alone, weight 1: with `dr`, imputation is left to speak for all others."""

    def begin(self, problem: Problem) -> Weighing:
        """Ratio = density."""
        return _Same(problem, problem.log.density)


class _Same(Weighing):
    def __init__(self, problem: Problem, ratio: float) -> None:
        self.ratio = torch.full((len(problem.log),), ratio, device=problem.device)
        self._shape = problem.log.shape

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

    def begin(self, problem: Problem) -> Weighing:
        """Two values, one for each label; in between for labels in between."""
        check_number("smoothing", self.smoothing, at_least=0)
        probe = problem.need_probe(
            "naive Bayes weights",
            "Or put others in their place, such as 'propensity', wherever they are set: `weights`, "
            "`imputation__weights`, or `prior`, which can be 'uniform'.",
        )
        unbiased = (float(probe.labels.sum()) + self.smoothing) / (len(probe) + 2 * self.smoothing)
        biased = float(problem.log.labels.mean())
        if not 0 < biased < 1:
            raise ConfigError(
                f"naive Bayes weights need both labels in the rows trained on, whose mean label is {biased:g}. "
                "Put others in their place, such as 'propensity', or a larger log."
            )
        return _ByLabel(problem, (1 - unbiased) / (1 - biased), unbiased / biased)


class _ByLabel(Weighing):
    def __init__(self, problem: Problem, negative: float, positive: float) -> None:
        self._negative, self._positive = negative, positive
        self.ratio = self.at(None, None, torch.from_numpy(problem.log.labels).to(problem.device))

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


class Estimated(Weighing):
    """Weights from propensities that are known before training: see `inverse_propensity`.

    `density`: of the log that the propensities speak of, None for that of the rows trained on. `normalised`: the ratios
    are divided by their mean over the log, for propensities known up to a factor.
    """

    def __init__(
        self,
        problem: Problem,
        propensity_of: PropensityOf,
        clip: float,
        density: float | None = None,
        normalised: bool = False,
    ) -> None:
        check_number("clip", clip, at_least=0, at_most=1, advice="It is a share of the density; 0 switches it off.")
        log, self.clip = problem.log, clip
        self.density = log.density if density is None else density
        codes = [torch.from_numpy(codes).to(problem.device) for codes in (log.users, log.items)]
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


@dataclass(eq=False)
class Given(Weights):
    """Propensities that the caller knows: ratio = density / propensity.

    `propensity`: a |U| x |I| matrix or a function of (users, items), both by codes, such as `World.propensity`; an
    array with one value for each row of the log; or None for the log's own column `propensities`. `clip`: see
    `inverse_propensity`. A saved configuration keeps neither array nor function: to fit again, pass it again.
    """

    propensity: Any = None
    clip: float = CLIP

    def begin(self, problem: Problem) -> Weighing:
        """Nothing to learn."""
        training = problem.training
        kept = 1.0 if training.patience is None else 1 - training.validation  # propensities are those of the whole log
        return Estimated(problem, _given(self.propensity, problem), self.clip, problem.log.density / kept)

    def to_config(self) -> dict[str, Any]:
        """The configuration, with null for an array or a function."""
        return {"part": "Given", "propensity": None, "clip": self.clip}

    def __eq__(self, other: object) -> bool:
        """The same clip, and the same function or arrays of equal values."""
        if not isinstance(other, Given) or self.clip != other.clip:
            return False
        functions = callable(self.propensity), callable(other.propensity)
        if any(functions):
            return all(functions) and bool(self.propensity == other.propensity)
        return np.array_equal(self.propensity, other.propensity)


def _given(propensity: Any, problem: Problem) -> PropensityOf:
    """A function of codes from whatever the caller gave."""
    log, device = problem.log, problem.device
    if propensity is None:
        return _from_rows(log, device)
    if callable(propensity):
        return _from_function(propensity, log.shape, device)
    values = as_float64(propensity, "propensity")
    if values.shape == log.shape:
        return _from_matrix(values, device)
    if values.shape == (len(log),):
        _check_propensities(values, lambda row: f"row {row}")
        return _from_rows(replace(log, propensities=values, source=None), device)
    advice = ""
    if values.ndim == 1 and problem.training.patience is not None:
        advice = " With patience some rows are held out and an array cannot follow: give the log its `propensities`."
    raise DataError(
        f"`propensity` must have the shape {log.shape} of all pairs or ({len(log)},) of the rows that are trained on, "
        f"got {values.shape}.{advice}"
    )


def _from_matrix(values: NDArray[np.float64], device: torch.device) -> PropensityOf:
    _check_propensities(values, lambda place: "user code {}, item code {}".format(*divmod(place, values.shape[1])))
    table = torch.from_numpy(values).to(device, torch.float32)
    return lambda users, items: table.flatten() if users is None or items is None else table[users.long(), items.long()]


def _from_function(function: Callable[..., Any], shape: tuple[int, int], device: torch.device) -> PropensityOf:
    def propensity_of(users: Tensor | None, items: Tensor | None) -> Tensor:
        if users is None or items is None:
            users, items = torch.arange(shape[0]).repeat_interleave(shape[1]), torch.arange(shape[1]).repeat(shape[0])
        codes = users.cpu().numpy(), items.cpu().numpy()
        values = as_float64(function(*codes), "propensity")
        if values.shape != (len(users),):
            raise DataError(
                f"`propensity` must give one value for each of the {len(users)} pairs asked for, got {values.shape}."
            )
        _check_propensities(values, lambda place: f"user code {codes[0][place]}, item code {codes[1][place]}")
        return torch.from_numpy(values).to(device, torch.float32)

    return propensity_of


def _from_rows(log: FeedbackLog, device: torch.device) -> PropensityOf:
    """Propensities known on rows alone: those of the log, and of the log that it was taken from."""
    known = log.known_propensities
    if known is None:
        raise ConfigError(
            "`propensity` must be given: this log has no column of propensities. Pass a matrix, a function or an array "
            "(a saved model keeps none of these), or build the log with `propensities` (`propensity_col`)."
        )

    def propensity_of(users: Tensor | None, items: Tensor | None) -> Tensor:
        pairs = None if users is None or items is None else users.long() * log.shape[1] + items
        values = np.full(1, np.nan) if pairs is None else known.at(pairs.cpu().numpy())
        if np.isnan(values).any():
            raise ConfigError(
                "these propensities are known for the rows of the log alone, and this method asks for those of other "
                "pairs. Give `propensity` as a |U| x |I| matrix or a function of (users, items)."
            )
        return torch.from_numpy(values).to(device, torch.float32)

    return propensity_of


def _check_propensities(values: NDArray[np.float64], place_of: Callable[[int], str]) -> None:
    wrong = ~((values > 0) & (values <= 1))  # nan is wrong too
    if wrong.any():
        place = int(wrong.argmax())
        raise DataError(
            f"`propensity` must lie in (0, 1], got {values.flat[place]:g} for {place_of(place)}. "
            "A pair that can never be observed has no weight: leave its user or item out."
        )
