"""Matrix factorisation with biases and side features."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from counterpoise.data.batches import Blocks
from counterpoise.data.log import FeedbackLog
from counterpoise.errors import ConfigError, check_flag, check_number
from counterpoise.models.base import (
    Backbone,
    Scorer,
    draw_normal,
    estimated_precision,
    initial_logit,
    longer_table,
    zero_table,
)
from counterpoise.models.embedding_ops import (
    MIN_PAIRS_TO_SORT,
    MIN_ROWS_TO_SORT,
    GridPositions,
    RepeatedInputCache,
    biased_products,
    block_products,
    inner_products,
    rows_and_grid,
)

NOISE_PRECISION = 4.0  # the prior's precision that keeps factors from learning noise at USUAL_ROWS; the default of l2
FIRST_BIAS_PRECISION = 2.0  # of `l2_biases="auto"`, until there is an estimate
USUAL_ROWS = 24  # rows for each user and item at which `l2` means what it says: those of Coat, where it was chosen
MAX_GRID_RATIO = 32  # pairs of D for each pair asked for up to which one matrix product is faster than gathering; of
# large tables none is: pairs are sorted there


@dataclass
class MatrixFactorization(Backbone):
    """logit = mean + user bias + item bias + <user factors, item factors> [+ x_u' W y_i with side features].

    `l2`, `l2_biases`, `l2_features` are precisions of Gaussian priors: the loss gains half of each times the squared
    parameters over the number of observed rows, so that they mean the same for a log of any size. `l2`, that of the
    factors, is raised where it is below the noise that they would otherwise learn (`noise_growth`). `l2_biases="auto"`
    estimates one for users and one for items from the log (empirical Bayes, see `estimated_precision`) where the risk
    is a likelihood; it is 2 where errors are imputed, and in first models. `l2_features` is
    that of x_u' W y_i as a whole: each weight has it times their number, so that more columns are no wider prior.
    Where items alone have features, y_i, x_u' W y_i has no part of the user, and the item's factors gain M y_i (and so
    for users alone). The prior of that part is the one of factors: each entry of M has `l2` times the number of items.
    `side_features`: "auto" uses those of the log if it has any. `dim` 0 leaves the factors out: an additive model.
    (Koren, Bell and Volinsky 2009, Matrix Factorization Techniques for Recommender Systems.)
    """

    dim: int = 32
    biases: bool = True
    side_features: bool | str = False
    l2: float = 4.0
    l2_biases: float | str = "auto"
    l2_features: float = 6.0

    def build(self, log: FeedbackLog, generator: torch.Generator, rate: float | None = None) -> Scorer:
        check_number("dim", self.dim, at_least=0, integer=True)
        check_flag("biases", self.biases)
        if self.dim == 0 and not self.biases and not self.side_features:
            raise ConfigError("`dim` must be at least 1 without biases and side features, got 0.")
        if self.side_features != "auto":
            check_flag("side_features", self.side_features, advice='Or "auto": where the log has any.')
        check_number("l2", self.l2, at_least=0)
        check_number("l2_features", self.l2_features, at_least=0)
        if self.l2_biases != "auto":
            check_number("l2_biases", self.l2_biases, at_least=0, advice='Or "auto": estimated from the log.')
        scorer = self.empty(*log.shape, n_columns=log.feature_columns)
        scorer.noise_growth = noise_growth(len(log), *log.shape)
        draw_normal(scorer.user_factors.weight, generator)
        draw_normal(scorer.item_factors.weight, generator)
        if self.biases:
            scorer.mean.data.fill_(initial_logit(float(log.labels.mean()) if rate is None else rate))
        if scorer.uses_side_features:
            _check_features(log)
            for side, table in (("user", log.user_features), ("item", log.item_features)):
                values = torch.zeros(getattr(scorer, f"n_{side}s"), 0) if table is None else torch.from_numpy(table)
                scale = feature_scale(values)
                setattr(scorer, f"{side}_feature_scale", scale)
                setattr(scorer, f"{side}_features", scaled_features(values, scale))
        return scorer

    def empty(self, n_users: int, n_items: int, n_columns: tuple[int, int]) -> _Factors:
        return _Factors(self, n_users, n_items, n_columns)


def noise_growth(rows: int, n_users: int, n_items: int) -> float:
    """(sqrt(rows / |U|) + sqrt(rows / |I|)) / (2 sqrt(24)), at least 1: 1 at 24 rows for each user and each item.

    The slopes of rows in their logits, noise of deviation s at places in a |U| x |I| matrix, have a largest singular
    value of about s (sqrt(rows / |U|) + sqrt(rows / |I|)). Factors whose prior has a smaller precision learn them.
    """
    return max(1.0, (math.sqrt(rows / n_users) + math.sqrt(rows / n_items)) / (2 * math.sqrt(USUAL_ROWS)))


class _Factors(Scorer):
    noise_growth = 1.0  # factor of the precision of the factors
    mapped_side: str | None = None  # whose features have a part in its factors
    user_features: Tensor
    item_features: Tensor
    user_feature_scale: Tensor
    item_feature_scale: Tensor

    def __init__(self, part: MatrixFactorization, n_users: int, n_items: int, n_columns: tuple[int, int]) -> None:
        super().__init__()
        self.part, self.n_users, self.n_items, self.cache = part, n_users, n_items, RepeatedInputCache()
        self.user_factors = zero_table(n_users, part.dim)
        self.item_factors = zero_table(n_items, part.dim)
        self.bias_precisions: dict[str, Tensor] = {}
        if part.biases:
            self.mean = nn.Parameter(torch.zeros(()))
            self.user_bias = zero_table(n_users, 1)
            self.item_bias = zero_table(n_items, 1)
            if part.l2_biases == "auto":
                names = ("user_bias.weight", "item_bias.weight")
                self.bias_precisions = {n: torch.tensor(FIRST_BIAS_PRECISION, dtype=torch.float64) for n in names}
        self.uses_side_features = any(n_columns) if part.side_features == "auto" else bool(part.side_features)
        if self.uses_side_features:
            shape = n_columns[0] + 1, n_columns[1] + 1  # a column of ones beside the features
            self.register_buffer("user_features", torch.zeros(n_users, shape[0]))
            self.register_buffer("item_features", torch.zeros(n_items, shape[1]))
            self.register_buffer("user_feature_scale", torch.zeros(2, n_columns[0]))  # mean and deviation in the log
            self.register_buffer("item_feature_scale", torch.zeros(2, n_columns[1]))
            self.feature_weights = nn.Parameter(torch.zeros(shape))
            if part.dim and min(n_columns) == 0 < max(n_columns):
                self.mapped_side = "user" if n_columns[0] else "item"
                self.feature_factors = nn.Parameter(torch.zeros(max(n_columns), part.dim))

    def vectors(self) -> tuple[Tensor, Tensor]:
        """Two tables whose inner products are the logits, biases included: (|U|, d) and (|I|, d)."""
        user_bias = self.user_bias.weight if self.part.biases else None
        item_bias = self.item_bias.weight if self.part.biases else None
        user_features, item_features = self._features()
        users = self._columns("user", self.user_factors.weight, user_features, user_bias)
        return users, self._columns("item", self.item_factors.weight, item_features, item_bias)

    def _features(self) -> tuple[Tensor | None, Tensor | None]:
        return (self.user_features, self.item_features) if self.uses_side_features else (None, None)

    def _columns(self, side: str, factors: Tensor, features: Tensor | None, bias: Tensor | None) -> Tensor:
        """The rows of one of these tables: factors, features, then biases beside columns of ones.

        For x_u' W y_i the narrower of x_u and y_i stands in its table as it is; as its first feature is 1, the bias of
        the other side needs no column of its own.
        """
        parts, plain = [self._with_mapped(side, factors, features)], self._plain_side()
        if bias is not None and side == "user":
            bias = bias + self.mean
        if features is not None and side == plain:
            parts.append(features)
        elif features is not None:
            weights = self.feature_weights if side == "user" else self.feature_weights.T
            parts.append(_with_bias(features @ weights, bias))
        if bias is not None:
            own, ones = ("user", "item") if plain is None else (plain,), torch.ones_like(bias)
            parts += [bias if side == owner else ones for owner in own]
        return torch.cat(parts, dim=1)

    def _with_mapped(self, side: str, factors: Tensor, features: Tensor | None) -> Tensor:
        """Factors with what features say of them: where the other side has no features, x_u' W y_i is linear alone."""
        if features is None or side != self.mapped_side:
            return factors
        return torch.addmm(factors, features[:, 1:], self.feature_factors)

    def _plain_side(self) -> str | None:
        """The side whose features stand in its table as they are."""
        if not self.uses_side_features:
            return None
        return "user" if self.feature_weights.shape[0] < self.feature_weights.shape[1] else "item"

    def row_columns(self, side: str) -> dict[str, slice]:
        dim, plain = self.part.dim, self._plain_side()
        found = {f"{side}_factors.weight": slice(0, dim)} if dim else {}
        if self.part.biases:
            if plain is None:
                place = dim + (side == "item")
            else:
                place = dim + (min(self.feature_weights.shape) if side == plain else 0)
            found[f"{side}_bias.weight"] = slice(place, place + 1)
        return found

    def unrated_vectors(self, side: str, count: int, features: Tensor | None = None) -> Tensor:
        zeros = self.user_factors.weight.new_zeros
        scaled = self._scaled_features(side, count, features) if self.uses_side_features else None
        return self._columns(side, zeros(count, self.part.dim), scaled, zeros(count, 1) if self.part.biases else None)

    def _scaled_features(self, side: str, count: int, features: Tensor | None) -> Tensor:
        """Features as those of the log are: each column standardised by it, behind a column of ones."""
        scale: Tensor = getattr(self, f"{side}_feature_scale")
        return scaled_features(scale[:1].expand(count, -1) if features is None else features.to(scale), scale)

    def append_rows(self, side: str, count: int, features: Tensor | None = None) -> None:
        if self.uses_side_features:
            now: Tensor = getattr(self, f"{side}_features")
            setattr(self, f"{side}_features", torch.cat([now, self._scaled_features(side, count, features)]))
        for name in (f"{side}_factors", *([f"{side}_bias"] if self.part.biases else [])):
            setattr(self, name, longer_table(getattr(self, name), count))
        self.n_users, self.n_items = len(self.user_factors.weight), len(self.item_factors.weight)

    def feature_columns(self, side: str) -> int:
        return self.feature_weights.shape[side == "item"] - 1 if self.uses_side_features else 0

    def forward(self, users: Tensor, items: Tensor) -> Tensor:
        few = users.device.type == "cpu" and len(users) < MIN_PAIRS_TO_SORT
        if few and self.part.biases and not self.uses_side_features and not self._by_grid(len(users)):
            biases = self.user_bias.weight, self.item_bias.weight
            return biased_products((self.mean, *self.embeddings(), *biases), users, items)
        return self._products(self.vectors(), users, items)

    def _by_grid(self, pairs: int) -> bool:
        """Whether the logits of all of D are computed for so many pairs."""
        large = self.n_users + self.n_items >= MIN_ROWS_TO_SORT
        return self.n_users * self.n_items <= (1 if large else MAX_GRID_RATIO) * pairs

    def _products(self, tables: tuple[Tensor, Tensor], users: Tensor, items: Tensor) -> Tensor:
        if not self._by_grid(len(users)):
            return inner_products(*tables, users, items)
        positions = self._positions(users, items)
        if positions is not None:
            return rows_and_grid(*tables, positions)[0]
        return (tables[0] @ tables[1].T).flatten().gather(0, self.position(users, items))

    def rows_and_pairs(
        self,
        users: Tensor,
        items: Tensor,
        pair_users: Tensor | None,
        pair_items: Tensor | None,
        blocks: Blocks | None = None,
    ) -> tuple[Tensor, Tensor]:
        if blocks is not None:
            tables = self.vectors()
            return self._products(tables, users, items), block_products(*tables, *blocks)
        positions = self._positions(users, items) if pair_users is None else None
        if positions is None:
            return super().rows_and_pairs(users, items, pair_users, pair_items)
        return rows_and_grid(*self.vectors(), positions)

    def _positions(self, users: Tensor, items: Tensor) -> GridPositions | None:
        """The positions of these pairs in D, on a CPU, if the last call had the same pairs; else None."""
        table = self.user_factors.weight
        if not torch.is_grad_enabled() or users.device.type != "cpu" or table.dtype != torch.float32:
            return None
        compute = partial(GridPositions.of, self.n_users, self.n_items)
        positions: GridPositions | None = self.cache.get(compute, users, items)
        return positions

    def shift(self, logit: float) -> bool:
        if self.part.biases:
            self.mean.data += logit
        return self.part.biases

    def centre_biases(self, precisions: Mapping[str, Tensor]) -> None:
        for name, precision in precisions.items() if self.part.biases else ():
            biases = self.get_parameter(name).data[:, 0]
            common = (precision @ biases) / precision.sum()
            biases -= common * (precision > 0)
            self.mean.data += common

    def precision(self, name: str) -> float:
        if name == "mean":
            return 0.0
        part = self.part
        if name == "feature_factors":
            rows = self.n_users if self.mapped_side == "user" else self.n_items
            return rows * self.precision("user_factors.weight")
        if name == "feature_weights":
            return part.l2_features * math.prod(self.feature_weights.shape)
        if "bias" in name:
            return FIRST_BIAS_PRECISION if isinstance(part.l2_biases, str) else part.l2_biases
        return max(part.l2, self.noise_growth * min(part.l2, NOISE_PRECISION))

    @property
    def estimates(self) -> dict[str, Tensor]:
        return self.bias_precisions

    def estimate_precisions(self, users: Tensor, items: Tensor) -> None:
        for name, information in (("user_bias.weight", users), ("item_bias.weight", items)):
            if (now := self.bias_precisions.get(name)) is not None:
                values = self.get_parameter(name).detach()[:, 0]
                now.copy_(estimated_precision(values, information, now, FIRST_BIAS_PRECISION))

    def embeddings(self) -> tuple[Tensor, Tensor]:
        users, items = self._features()
        own = self._with_mapped("user", self.user_factors.weight, users)
        return own, self._with_mapped("item", self.item_factors.weight, items)

    def factors(self) -> tuple[Tensor, Tensor] | None:
        return self.embeddings() if self.part.dim else None

    def features(self) -> tuple[Tensor, Tensor]:
        users, items = self.embeddings()
        if not self.part.biases:
            return users, items
        return torch.cat([self.user_bias.weight, users], 1), torch.cat([self.item_bias.weight, items], 1)

    def grid(self, users: Tensor | None = None) -> Tensor:
        user_table, item_table = self.vectors()
        return (user_table if users is None else user_table[users]) @ item_table.T


def _with_bias(table: Tensor, bias: Tensor | None) -> Tensor:
    """The table with the bias, if there is one, added to its first column."""
    return table if bias is None else table + pad(bias, (0, table.shape[1] - 1))


def _check_features(log: FeedbackLog) -> None:
    if log.user_features is None and log.item_features is None:
        raise ConfigError(
            "`side_features` needs a log with user_features or item_features, and this log has neither. Read it "
            "with `users` or `items`, files of ids and features (--users, --items)."
        )


def feature_scale(values: Tensor) -> Tensor:
    """The mean and the standard deviation of each column, 1 where it is constant. (2, columns)"""
    spread = values.std(dim=0, correction=0) if values.numel() else values.new_ones(values.shape[1])
    return torch.stack([values.mean(dim=0), torch.where(spread > 0, spread, 1.0)])


def scaled_features(values: Tensor, scale: Tensor) -> Tensor:
    """Columns standardised by `feature_scale`, behind a column of ones: x_u' W y_i then holds linear terms."""
    return torch.cat([values.new_ones(len(values), 1), (values - scale[0]) / scale[1]], dim=1)
