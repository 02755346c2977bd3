"""One step of joint learning: imputation, then weights, then the predictor, each moved by its own loss alone."""

from __future__ import annotations

import warnings
from collections.abc import Container, Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import torch
from torch import Tensor

from counterpoise import risks
from counterpoise.balance.diagnostics import weight_facts
from counterpoise.data.batches import Batch, Batches
from counterpoise.errors import ConfigError, ConvergenceWarning
from counterpoise.models.base import Scorer
from counterpoise.risks import ErrorOf
from counterpoise.training.contracts import (
    FitContext,
    FittedImputation,
    FittedWeights,
    Imputation,
    LogErrors,
    StepInputs,
    Weights,
)
from counterpoise.training.loop import DivergenceError
from counterpoise.training.optimizer import Adam, Rate

if TYPE_CHECKING:
    from counterpoise.training.ordinal import FittedOrdinal, OrdinalLoss
    from counterpoise.training.probe import FittedProbe, ProbeLabels


BLOCK_ROWS = 1 << 18  # rows whose information is computed at a time: 1 MB of each number of a row
NO_PROBE = (
    "`probe` must be given for the risk 'probe', with a ProbeLabels part as `probe_labels`: it is the mean error on a "
    "small uniformly collected sample."
)


class Logits(NamedTuple):
    """The predictor's logits on the rows of a batch and on its pairs of D; and those of its base scorer."""

    rows: Tensor
    pairs: Tensor  # empty where neither risk nor weights look at pairs
    base_rows: Tensor
    base_pairs: Tensor  # empty where no part looks at pairs


@dataclass(eq=False)
class Learner:
    """The predictor in training: a scorer on a risk made of weights and imputation, plus its prior."""

    scorer: Scorer
    weights: FittedWeights
    imputation: FittedImputation
    risk_name: str
    optimizer: Adam
    log: Batches  # the whole log as one batch, for the residuals of all rows
    unit: float = 1.0  # see `FitContext.unit`
    error_of: ErrorOf = risks.error
    ordinal: FittedOrdinal | None = None
    probe: FittedProbe | None = None
    prior_epochs: Container[int] = ()  # before which the prior is estimated
    follows: bool = False  # whether it takes precisions over that another learner estimates meanwhile
    prior_scaled_at: int = 0  # the epoch, counted from 1
    centres: bool = False  # whether biases are centred at the start of an epoch, where steps are few
    rated: dict[str, Tensor] | None = None  # 1 for users and items with rows
    row_scales: tuple[Tensor, dict[str, Tensor]] | None = None  # ratios, and the factors of the prior that they make
    shifted: float = 0.0  # what was added to all logits after training

    @classmethod
    def init(
        cls,
        context: FitContext,
        weights: Weights,
        risk: str,
        imputation: Imputation,
        ordinal: OrdinalLoss | None = None,
        probe_labels: ProbeLabels | None = None,
    ) -> Self:
        """A learner whose parts have learned what is learned before the first step, with fresh models for the rest."""
        scorer = context.build(context.backbone)  # first, so that all methods start from the same draw
        fitted_weights = weights.init(context)
        fitted_imputation = imputation.init(context, fitted_weights)
        fitted_weights.start(scorer)
        fitted_imputation.start(scorer)
        fitted_ordinal = None if ordinal is None else ordinal.init(context)
        probe = None if probe_labels is None else probe_labels.init(context, fitted_ordinal)
        if probe is None and risk == "probe":
            raise ConfigError(NO_PROBE)
        if probe is not None and (fitted_imputation.offset or risk in risks.NEED_IMPUTATION):
            probe = probe.fixed(fitted_imputation.offset)  # 0 where errors are imputed: those have no shift
        return cls.of(context, scorer, fitted_weights, fitted_imputation, risk, fitted_ordinal, probe)

    @classmethod
    def of(
        cls,
        context: FitContext,
        scorer: Scorer,
        weights: FittedWeights,
        imputation: FittedImputation,
        risk: str,
        ordinal: FittedOrdinal | None,
        probe: FittedProbe | None,
    ) -> Self:
        """A learner of given parts, with a fresh optimiser."""
        optimizer = context.optimizer(*(model for model in (scorer, ordinal, probe) if model is not None))
        labels_alone = risk not in risks.LOOK_AT_PAIRS and not imputation.needs_pairs  # a likelihood of labels
        rows = len(context.log)
        epochs = prior_epochs(context.training.planned_epochs(rows)) if labels_alone else ()
        parts = scorer, weights, imputation, risk, optimizer, context.batches(), context.unit, context.error
        return cls(*parts, ordinal, probe, epochs, centres=context.training.counts_steps(rows))

    def rebuilt(self, context: FitContext, probe: FittedProbe | None) -> Learner:
        """A learner of the same parts with other labels of a probe, or none, and a fresh optimiser."""
        parts = self.scorer, self.weights, self.imputation, self.risk_name, self.ordinal
        return Learner.of(context, *parts, probe)

    @property
    def uses_pairs(self) -> bool:
        """Whether a step looks at pairs of D."""
        return self.scores_pairs or self.weights.needs_pairs or self.imputation.needs_pairs

    def batches(self, context: FitContext) -> Batches:
        """The batches of the log, with the pairs of D that it looks at."""
        return context.batches(self.uses_pairs, own_users=self.risk_name == "pairwise")

    @property
    def scores_pairs(self) -> bool:
        """Whether the risk or the weights look at the predictor's logits there."""
        weights = self.weights
        return self.risk_name in risks.LOOK_AT_PAIRS or (weights.needs_pairs and weights.needs_pair_logits)

    @property
    def offset(self) -> Tensor | float:
        """Labels of the log against those of all pairs, in log odds: P(label | observed) = sigmoid(logit + offset)."""
        return self.imputation.offset if self.probe is None else self.probe.shift

    def start_epoch(self, epoch: int) -> None:
        """Let weights and imputation look at the whole log."""
        if self.centres:
            self._centre_biases()
        changed = self.weights.refresh(epoch, self._residuals)
        if self.probe is not None and (epoch == 1 or self.weights.changes):
            self.probe.scale(self.weights.ratio)
        if changed or not self.prior_scaled_at or epoch in self.prior_epochs:
            self.scale_prior(estimate=epoch in self.prior_epochs)
            self.prior_scaled_at = epoch
        self.imputation.refresh(self._on_log)

    def scale_prior(self, estimate: bool = False) -> None:
        """Multiply the prior precision of each user and item by min(1, sum w^2 / sum w) over its rows.

        A mean of rows with weights w, of labels of variance v, is best shrunken by a precision of v sum w^2 / sum w:
        where weights are small, the prior would otherwise outgrow the rows. It is not raised where they are large:
        these are users and items of which little was seen. `prior_scale` of the imputation multiplies all of it.
        `estimate`: take precisions that the scorer can estimate from what it has learned so far
        (`Scorer.estimated_precisions`).
        """
        ratio, prior_scale = self.weights.ratio.double() / self.unit, self.imputation.prior_scale
        ratio = torch.ones_like(ratio) if self.risk_name == "exposed" else ratio  # where every click counts as one
        if self.risk_name == "snips":  # where weights count by their share of the sum
            ratio = ratio / ratio.mean()
        sizes = {"user": self.scorer.n_users, "item": self.scorer.n_items}
        if estimate:
            self._estimate_precisions(ratio, sizes)
        found = self.scorer.estimates.items()
        factors = {name: value / self.scorer.precision(name) for name, value in found if self.scorer.precision(name)}
        given = (
            not self.prior_epochs and not self.follows and all(bool((value == 1).all()) for value in factors.values())
        )
        fixed = prior_scale == 1 and given and not self.weights.changes and not self.optimizer.row_precisions
        if fixed and bool((ratio - 1).abs().max() < 1e-6):
            return
        if self.row_scales is None or not torch.equal(self.row_scales[0], self.weights.ratio):
            self.row_scales = self.weights.ratio.clone(), _row_scales(ratio, self.log, sizes)
        row_scales = self.row_scales[1]
        scales = {} if self.probe is None else self._scale_of_shift(prior_scale)
        for place, (name, parameter) in enumerate(self.scorer.named_parameters()):
            scale = row_scales.get(self.scorer.side(name) or "")
            if not parameter.ndim:
                continue
            if scale is None or len(scale) != len(parameter):
                scale = ratio.new_ones(len(parameter))
            scale = scale * factors[name].to(scale) if name in factors else scale
            scale = prior_scale * scale
            if place in self.optimizer.row_precisions or bool((scale != 1).any()):
                scales[place] = scale
        self.optimizer.scale_precisions(scales)

    @torch.no_grad()
    def _centre_biases(self) -> None:
        """`Scorer.centre_biases` by the prior precisions of users and items with rows."""
        if self.rated is None:
            zeros = self.weights.ratio.new_zeros
            self.rated = {"user": zeros(self.scorer.n_users), "item": zeros(self.scorer.n_items)}
            for codes in self.log.codes():
                for known, of_rows in zip(self.rated.values(), codes, strict=True):
                    known.index_fill_(0, of_rows.long(), 1.0)
        found = {}
        for place, (name, parameter) in enumerate(self.scorer.named_parameters()):
            side, own = self.scorer.side(name), self.optimizer.row_precisions.get(place)
            if side is not None and name.endswith(f"{side}_bias.weight"):
                precision = torch.ones(len(parameter)).to(parameter) if own is None else own[:, 0]
                found[f"{side}_bias.weight"] = precision * self.rated[side].to(parameter)
        self.scorer.base().centre_biases(found)

    def _scale_of_shift(self, prior_scale: float) -> dict[int, Tensor]:
        """The factor of the precision of the probe's shift, by its place, which is the last; {} where it is fixed."""
        assert self.probe is not None
        place = len(self.optimizer.parameters) - 1
        return {place: prior_scale * self.probe.precision} if self.probe.shift.requires_grad else {}

    @torch.no_grad()
    def _estimate_precisions(self, ratio: Tensor, sizes: dict[str, int]) -> None:
        """Let the scorer estimate its prior, and the probe that of its shift, from the information of all rows."""
        information, start = {side: ratio.new_zeros(size) for side, size in sizes.items()}, 0

        def add(users: Tensor, items: Tensor, of_rows: Tensor) -> None:
            for total, codes in zip(information.values(), (users, items), strict=True):
                total.index_add_(0, codes.long(), of_rows.double())

        for users, items in _blocks(self.log.codes()) if self.risk_name != "probe" else ():
            rows = slice(start, start + len(users))
            levels = None if self.ordinal is None else self.ordinal.levels[rows]
            of_rows = _information(self.scorer(users, items) + self.offset, self.ordinal, levels)
            add(users, items, ratio[rows] * of_rows.double())
            start += len(users)
        if self.probe is not None:
            users, items = self.probe.users, self.probe.items
            of_rows = _information(self.scorer(users, items), self.ordinal, self.probe.levels)
            of_rows = of_rows * (float(self.probe.share) * len(ratio) / len(users))
            add(users, items, of_rows)
            self.probe.estimate_precision(of_rows.sum())
        self.scorer.estimate_precisions(information["user"].cpu(), information["item"].cpu())

    def step(self, batch: Batch, rate: Rate) -> Tensor:
        """One step of every part; the loss of the predictor before its own."""
        logits = self._logits(batch)
        errors = self._errors(batch, logits.rows)
        inputs = StepInputs(batch, logits.rows.detach(), logits.pairs.detach(), errors.detach())
        ratio = self.weights.ratio.index_select(0, batch.rows)
        self.imputation.step(inputs, ratio, rate)
        imputed, imputed_on_pairs = self._imputed(batch, logits, errors)
        if type(self.weights).step is not FittedWeights.step:
            self.weights.step(inputs, imputed.detach(), imputed_on_pairs.detach(), rate)
            ratio = self.weights.ratio.index_select(0, batch.rows)
        extras = (
            self.weights.extra_loss(batch, logits.rows, logits.pairs),
            self.imputation.extra_loss(batch, logits.base_rows, logits.base_pairs),
            self._ordinal_loss(batch, logits, ratio),
        )
        risk = self._risk(batch, logits, errors, self.weights.ratio, ratio, imputed, imputed_on_pairs)
        loss = sum((extra for extra in extras if extra is not None), risk)
        if self.probe is not None:
            loss = loss + self.probe.share * self.probe.mean_error(self.scorer, self.ordinal)
        penalty = self.optimizer.penalty()
        self.optimizer.step(loss, rate)
        return loss.detach() + penalty

    def risk(self, batch: Batch) -> Tensor:
        """The risk on rows that were held out.

        Their weights are scaled to mean 1: weights that are learned in training may drift in scale, and the risk with
        them. A risk that looks at no labels is judged by the weighted error.
        """
        logits = self._logits(batch)
        errors = self._errors(batch, logits.rows)
        ratio = self.weights.at(batch.users, batch.items, batch.labels)
        if self.unit == 1:  # of clicks the scale of weights is that of relevance
            ratio = ratio / ratio.mean()
        if self.risk_name == "direct":
            return risks.snips(errors, ratio)
        return self._risk(batch, logits, errors, ratio, ratio[batch.rows], *self._imputed(batch, logits, errors))

    def state(self) -> list[Tensor]:
        """The tensors that are learned batch by batch."""
        own = [parameter.data for parameter in self.optimizer.parameters]
        precisions = list(self.scorer.estimates.values()) if self.prior_epochs or self.follows else []
        precisions += [] if self.probe is None or not self.probe.shift.requires_grad else [self.probe.precision]
        return own + precisions + self.weights.state() + self.imputation.state()

    @torch.no_grad()
    def facts(self, log: Iterable[Batch]) -> dict[str, Any]:
        """JSON-able: what is known of the parts after training, and risk and mean error on the log, given in blocks."""
        self.weights.finalize()
        facts: dict[str, Any] = {
            "weights": self.weights.facts() | weight_facts(self.weights.ratio.cpu().numpy()),
            "imputation": self.imputation.facts(),
        }
        if self.ordinal is not None:
            facts["ordinal"] = self.ordinal.facts()
        rows, risk, error = 0, 0.0, 0.0
        for block in log:
            logits = self._logits(block)
            errors = self._errors(block, logits.rows)
            imputed, size = self._imputed(block, logits, errors), len(block.rows)
            ratio = self.weights.ratio, self.weights.ratio[block.rows]
            risk += size * float(self._risk(block, logits, errors, *ratio, *imputed))
            rows, error = rows + size, error + size * float(errors.mean())
        if self.probe is not None:
            facts["probe"] = self.probe.facts() | ({"alone": True} if self.risk_name == "probe" else {})
        if self.risk_name == "probe" and self.probe is not None:
            risk = rows * float(self.probe.mean_error(self.scorer, self.ordinal))
        return facts | {"risk": risk / rows, "error_on_log": error / rows}

    def finish(self) -> dict[str, Any]:
        """After training, once: move the intercept to where the weights put it; what there is to know about it."""
        if self.imputation.offset != 0 or self.probe is not None:  # a missingness model or the probe have moved it
            return {}
        try:
            found = self.weights.intercept_shift(self.imputation.backbone)
        except DivergenceError as error:
            warnings.warn(
                f"predictions keep the mean of the training, as exactly balanced weights were not found: {error}",
                ConvergenceWarning,
                stacklevel=2,
            )
            return {}
        if found is None or not self.scorer.shift(found.shift):
            return {}
        self.shifted = found.shift
        return {"intercept_shift": asdict(found)}

    def user_squares(self) -> dict[str, Any] | None:
        """The numbers of a user's row with a closed form, for `rows.UserSquares`; None for others."""
        return None

    def _logits(self, batch: Batch) -> Logits:
        base = self.scorer.base()
        if not (self.scores_pairs or self.imputation.needs_pairs):
            logits = self.scorer(batch.users, batch.items)
            return Logits(logits, logits[:0], logits, logits[:0])
        base_rows, base_pairs = base.rows_and_pairs(batch.users, batch.items, *batch.pairs)
        if base is self.scorer:
            return Logits(base_rows, base_pairs, base_rows, base_pairs)
        rows = base_rows + self.scorer.exposure_logits(batch.users, batch.items)
        on_pairs = rows[:0]
        if self.scores_pairs:
            on_pairs = base_pairs + self.scorer.exposure_logits(batch.pair_users, batch.pair_items)
        return Logits(rows, on_pairs, base_rows, base_pairs)

    def _errors(self, batch: Batch, logits: Tensor) -> Tensor:
        """The errors of the rows, whose labels are those given that they were observed."""
        return self.error_of(self.imputation.targets(batch), logits + self.offset)

    def _imputed(self, batch: Batch, logits: Logits, errors: Tensor) -> tuple[Tensor, Tensor]:
        """The imputed errors of the rows, and of the pairs of D where they are scored."""
        scored = batch if self.scores_pairs else batch.without_pairs()
        return self.imputation.errors(scored, logits.rows, logits.pairs, errors)

    def _risk(
        self,
        batch: Batch,
        logits: Logits,
        errors: Tensor,
        of_log: Tensor,
        ratio: Tensor,
        imputed: Tensor,
        imputed_on_pairs: Tensor,
    ) -> Tensor:
        """The risk on a batch, whose rows have these ratios; `of_log`: those of all rows of the log."""
        if self.risk_name == "dr":
            return risks.dr(errors, ratio, imputed, imputed_on_pairs, self.imputation.correction) / self.unit
        if self.risk_name == "exposed":
            exposure = self.unit / self.weights.at(batch.pair_users, batch.pair_items)
            return risks.exposed(errors, imputed, imputed_on_pairs, exposure, self.unit) / self.unit
        if self.risk_name == "direct":
            return risks.direct(imputed_on_pairs)
        if self.risk_name == "pairwise":
            assert batch.pair_rows is not None
            on_pairs = torch.where(batch.pair_rows >= 0, of_log[batch.pair_rows], 0.0) / self.unit
            return risks.pairwise(logits.rows, logits.pairs, ratio / self.unit, on_pairs, self.imputation.floor)
        if self.risk_name == "probe":
            return 0.0 * errors.sum()
        return self._weighted_mean(batch, errors, ratio)

    def _weighted_mean(self, batch: Batch, errors: Tensor, ratio: Tensor) -> Tensor:
        return risks.snips(errors, ratio, batch.sum(ratio)) if self.risk_name == "snips" else risks.ips(errors, ratio)

    def _ordinal_loss(self, batch: Batch, logits: Logits, ratio: Tensor) -> Tensor | None:
        if self.ordinal is None or self.risk_name == "probe":
            return None
        return self._weighted_mean(batch, self.ordinal.losses(batch, logits.rows + self.offset), ratio)

    @torch.no_grad()
    def _on_log(self) -> LogErrors:
        """The logits and the errors of every row of the log."""
        batch = self.log.whole().without_pairs()
        logits = self.scorer(batch.users, batch.items)
        return LogErrors(batch, logits, self._errors(batch, logits))

    @torch.no_grad()
    def _residuals(self) -> Tensor:
        """Error minus imputed error of every row of the log."""
        batch, logits, errors = self._on_log()
        return errors - self.imputation.errors(batch, logits, logits[:0], errors)[0]


def _information(logits: Tensor, ordinal: FittedOrdinal | None, levels: Tensor | None) -> Tensor:
    """The curvature of each row's loss in its logit: p (1 - p), and that of its level."""
    p = torch.sigmoid(logits)
    return p * (1 - p) if ordinal is None or levels is None else ordinal.information(levels, logits)


def prior_epochs(epochs: int) -> range:
    """Before which epochs a prior is estimated: ten of them, from a seventh to three quarters of a fit.

    Earlier there is little to estimate from; later there would be no time left to settle. Of 10 to 29 epochs, which are
    those of a large log, every second.
    """
    return range(1 + epochs // 7, 1 + 3 * epochs // 4, max(1, min(2, epochs // 10), epochs // 15))


def _blocks(codes: Iterable[tuple[Tensor, Tensor]]) -> Iterator[tuple[Tensor, Tensor]]:
    """Codes in blocks that lie in cache on a CPU."""
    for users, items in codes:
        size = BLOCK_ROWS if users.device.type == "cpu" else max(1, len(users))
        yield from zip(torch.split(users, size), torch.split(items, size), strict=True)


def _row_scales(ratio: Tensor, log: Batches, sizes: dict[str, int]) -> dict[str, Tensor]:
    """min(1, sum w^2 / sum w) over the rows of each user and of each item; 1 for one without rows. (size,)

    Sums in float64: in what order a GPU adds changes no digit of a prior in float32.
    """
    sums, start = {side: ratio.new_zeros(2, size) for side, size in sizes.items()}, 0
    for block in _blocks(log.codes()):
        part = ratio[start : start + len(block[0])]
        for total, codes in zip(sums.values(), block, strict=True):
            total.index_add_(1, codes.long(), torch.stack([part, part.square()]))
        start += len(part)
    return {side: share_of_prior(both) for side, both in sums.items()}


def share_of_prior(sums: Tensor) -> Tensor:
    """min(1, sum w^2 / sum w) of each user or item, from its sums of w and w^2 (2, size); 1 for one without rows."""
    first, second = sums
    return torch.where(first > 0, second / first.clamp(min=1e-12), 1.0).clamp(max=1.0)
