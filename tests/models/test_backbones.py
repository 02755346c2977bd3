"""Backbones against their formulas, written as loops."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from graded_world import graded

from counterpoise import ConfigError, Dataset, FeedbackLog, MatrixFactorization, NeuralCF, evaluate, make
from counterpoise.models.base import Backbone, Scorer, factor_facts
from counterpoise.models.matrix_factorization import MAX_GRID_RATIO, noise_growth
from counterpoise.training.optimizer import gradients_of


def built(backbone: Backbone, dataset: Dataset) -> Scorer:
    """A scorer with every parameter away from zero."""
    generator = torch.Generator().manual_seed(0)
    scorer = backbone.build(dataset.train, generator)
    for parameter in scorer.parameters():
        parameter.data.normal_(0, 0.5, generator=generator)
    return scorer.requires_grad_(False)


def test_matrix_factorization_is_mean_plus_biases_plus_inner_product(dataset: Dataset) -> None:
    scorer = built(MatrixFactorization(dim=3), dataset)
    user, item = 4, 7
    expected = scorer.mean + scorer.user_bias.weight[user, 0] + scorer.item_bias.weight[item, 0]
    for factor in range(3):
        expected = expected + scorer.user_factors.weight[user, factor] * scorer.item_factors.weight[item, factor]
    assert torch.allclose(scorer(torch.tensor([user]), torch.tensor([item])), expected)


def test_without_biases_it_is_the_inner_product_alone(dataset: Dataset) -> None:
    scorer = built(MatrixFactorization(dim=3, biases=False), dataset)
    assert {name for name, _ in scorer.named_parameters()} == {"user_factors.weight", "item_factors.weight"}
    expected = scorer.user_factors.weight[4] @ scorer.item_factors.weight[7]
    assert torch.allclose(scorer(torch.tensor([4]), torch.tensor([7])), expected)


def test_without_dimensions_it_is_additive(dataset: Dataset) -> None:
    scorer = built(MatrixFactorization(dim=0), dataset)
    expected = scorer.mean + scorer.user_bias.weight + scorer.item_bias.weight.T
    assert torch.allclose(scorer.grid(), expected)
    users, items = torch.tensor([4, 4, 9]), torch.tensor([7, 0, 7])
    assert torch.allclose(scorer(users, items), expected[users, items])
    model = make("mf", dim=0, epochs=30).fit(dataset.train)
    logits = model.scorer_.grid()
    assert torch.allclose(
        logits[1:] - logits[:1], (logits[1:, :1] - logits[:1, :1]).expand(-1, logits.shape[1]), atol=1e-5
    )
    with pytest.raises(ConfigError, match="`dim` must be at least 1 for similar items, got 0"):
        model.similar_items([0])


def test_side_features_enter_as_a_bilinear_form_of_standardised_columns(dataset: Dataset) -> None:
    log = dataset.train
    scorer = built(MatrixFactorization(dim=2, biases=False, side_features=True), dataset)
    assert log.user_features is not None
    assert log.item_features is not None
    rows = []
    for table, code in ((log.user_features, 4), (log.item_features, 7)):
        rows.append(np.r_[1.0, (table[code] - table.mean(axis=0)) / table.std(axis=0)])
    expected = rows[0] @ scorer.feature_weights.numpy() @ rows[1]
    expected += float(scorer.user_factors.weight[4] @ scorer.item_factors.weight[7])
    assert float(scorer(torch.tensor([4]), torch.tensor([7]))) == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("columns", [(1, 3), (3, 1), (2, 2)])
@pytest.mark.parametrize("biases", [True, False])
def test_either_side_may_have_more_features(columns: tuple[int, int], biases: bool, dataset: Dataset) -> None:
    rng, shape = np.random.default_rng(0), dataset.train.shape
    users, items = (rng.normal(size=(n, c)).astype(np.float32) for n, c in zip(shape, columns, strict=True))
    log = dataclasses.replace(dataset.train, user_features=users, item_features=items)
    scorer = built(
        MatrixFactorization(dim=2, biases=biases, side_features=True), dataclasses.replace(dataset, train=log)
    )
    expected = scorer.user_factors.weight @ scorer.item_factors.weight.T
    expected = expected + scorer.user_features @ scorer.feature_weights @ scorer.item_features.T
    if biases:
        expected = expected + scorer.mean + scorer.user_bias.weight + scorer.item_bias.weight.T
    assert torch.allclose(scorer.grid(), expected, atol=1e-5)


def test_side_features_that_are_not_there_are_an_error(dataset: Dataset) -> None:
    log = dataset.train.take(slice(None))
    object.__setattr__(log, "user_features", None)
    object.__setattr__(log, "item_features", None)
    with pytest.raises(ConfigError, match="this log has neither"):
        MatrixFactorization(side_features=True).build(log, torch.Generator())


def test_auto_side_features_are_used_where_there_are_any(dataset: Dataset) -> None:
    log = dataset.train
    bare = FeedbackLog.from_arrays(log.users, log.items, log.labels, user_ids=log.user_ids, item_ids=log.item_ids)
    asked = MatrixFactorization(side_features="auto")
    assert hasattr(asked.build(log, torch.Generator()), "feature_weights")
    assert not hasattr(asked.build(bare, torch.Generator()), "feature_weights")
    with pytest.raises(ConfigError, match=r'`side_features` must be true or false.*"auto"'):
        MatrixFactorization(side_features="always").build(log, torch.Generator())


def test_matrix_factorization_penalty_is_half_the_weighted_squares(dataset: Dataset) -> None:
    scorer = built(MatrixFactorization(dim=3, l2=2.0, l2_biases=5.0, l2_features=7.0, side_features=True), dataset)
    count = scorer.feature_weights.numel()
    precision = {"user_factors": 2, "item_factors": 2, "user_bias": 5, "item_bias": 5, "mean": 0}
    precision |= {"feature_weights": 7 * count}
    expected = sum(
        precision[name.split(".")[0]] * float(parameter.square().sum()) / 2
        for name, parameter in scorer.named_parameters()
    )
    assert float(scorer.penalty()) == pytest.approx(expected, rel=1e-5)


def test_neural_cf_is_a_product_beside_a_network(dataset: Dataset) -> None:
    scorer = built(NeuralCF(dim=2, hidden=(3,)), dataset)
    user, item = scorer.user_table.weight[4].numpy(), scorer.item_table.weight[7].numpy()
    layer, output = scorer.network[0], scorer.output
    hidden = np.maximum(0, layer.weight.numpy() @ np.r_[user[2:], item[2:]] + layer.bias.numpy())
    expected = output.weight.numpy()[0] @ np.r_[user[:2] * item[:2], hidden] + output.bias.numpy()[0]
    assert float(scorer(torch.tensor([4]), torch.tensor([7]))) == pytest.approx(expected, abs=1e-5)


def test_the_penalty_of_neural_cf_spares_the_offsets(dataset: Dataset) -> None:
    scorer = built(NeuralCF(dim=2, hidden=(3,), l2=2.0, l2_network=3.0), dataset)
    tables = scorer.user_table.weight.square().sum() + scorer.item_table.weight.square().sum()
    weights = scorer.network[0].weight.square().sum() + scorer.output.weight.square().sum()
    assert torch.allclose(scorer.penalty(), (2 * tables + 3 * weights) / 2)


@pytest.mark.parametrize("backbone", [MatrixFactorization(dim=3), NeuralCF(dim=2), MatrixFactorization(2, False, True)])
def test_the_grid_holds_the_logits_of_all_items(backbone: Backbone, dataset: Dataset) -> None:
    scorer = built(backbone, dataset)
    users = torch.tensor([3, 0, 3])
    grid = scorer.grid(users)
    assert grid.shape == (3, dataset.train.shape[1])
    for row, user in enumerate(users):
        for item in (0, 11, 49):
            assert torch.allclose(grid[row, item], scorer(user[None], torch.tensor([item])), atol=1e-5)


@pytest.mark.parametrize("backbone", [MatrixFactorization(), NeuralCF()])
def test_building_draws_from_the_given_generator_alone(backbone: Backbone, dataset: Dataset) -> None:
    before = torch.random.get_rng_state()
    first = backbone.build(dataset.train, torch.Generator().manual_seed(1)).state_dict()
    second = backbone.build(dataset.train, torch.Generator().manual_seed(1)).state_dict()
    other = backbone.build(dataset.train, torch.Generator().manual_seed(2)).state_dict()
    assert torch.equal(torch.random.get_rng_state(), before)
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert any(not torch.equal(first[name], other[name]) for name in first)


@pytest.mark.parametrize(
    "backbone",
    [
        MatrixFactorization(dim=-1),
        MatrixFactorization(0, biases=False),
        MatrixFactorization(l2=-1),
        NeuralCF(hidden=(0,)),
        NeuralCF(dim=1.5),
    ],
)
def test_settings_out_of_range_are_refused(backbone: Backbone, dataset: Dataset) -> None:
    with pytest.raises(ConfigError, match="must be"):
        backbone.build(dataset.train, torch.Generator())


@pytest.mark.parametrize("backbone", [MatrixFactorization(dim=3), NeuralCF(dim=2, hidden=(4,))])
def test_the_logits_of_many_pairs_are_those_of_each_alone(dataset: Dataset, backbone: Backbone) -> None:
    scorer, log = built(backbone, dataset), dataset.train
    users, items = torch.from_numpy(log.users), torch.from_numpy(log.items)
    assert log.n_pairs <= MAX_GRID_RATIO * len(log)
    alone = torch.cat([scorer(users[row : row + 1], items[row : row + 1]) for row in range(0, len(log), 7)])
    assert torch.allclose(scorer(users, items)[::7], alone, atol=1e-5)
    assert torch.allclose(scorer.grid()[users.long(), items.long()][::7], alone, atol=1e-5)
    for pairs in ((None, None), (users[:5], items[:5])):
        on_rows, on_pairs = scorer.rows_and_pairs(users, items, *pairs)
        assert torch.allclose(on_rows[::7], alone, atol=1e-5)
        assert torch.allclose(on_pairs, scorer.at(*pairs), atol=1e-5)


def test_the_logits_of_blocks_are_those_of_their_pairs(dataset: Dataset) -> None:
    scorer, log = built(MatrixFactorization(dim=3), dataset), dataset.train
    users, items = torch.from_numpy(log.users), torch.from_numpy(log.items)
    blocks = torch.randperm(60).view(5, 12), torch.randperm(50).view(5, 10)
    pairs = blocks[0].repeat_interleave(10, 1).flatten(), blocks[1].repeat(1, 12).flatten()
    on_rows, on_pairs = scorer.rows_and_pairs(users, items, *pairs, blocks)
    assert torch.allclose(on_rows, scorer(users, items), atol=1e-5)
    assert torch.allclose(on_pairs, scorer(*pairs), atol=1e-5)


class Incomplete(Scorer):
    """Has a parameter that no logit depends on, and no `precision`."""

    def __init__(self) -> None:
        super().__init__()
        self.n_users, self.n_items = 60, 50
        self.mean, self.unused = torch.nn.Parameter(torch.zeros(())), torch.nn.Parameter(torch.ones(2))

    def forward(self, users: torch.Tensor, items: torch.Tensor) -> torch.Tensor:
        return self.mean.expand(len(users))


def test_an_unused_parameter_has_gradient_zero() -> None:
    scorer = Incomplete()
    logits = scorer(torch.zeros(3, dtype=torch.long), torch.zeros(3, dtype=torch.long))
    gradients = gradients_of(logits.sum(), list(scorer.parameters()))
    assert [float(gradient.sum()) for gradient in gradients] == [3.0, 0.0]


def test_a_scorer_without_precision_is_an_error() -> None:
    with pytest.raises(ConfigError, match=r"Incomplete must have a method `precision\(name\)`"):
        Incomplete().precisions()


def test_the_noise_of_factors_grows_as_its_largest_singular_value() -> None:
    rng, found = np.random.default_rng(0), []
    for n_users, n_items, density in ((600, 400, 0.3), (900, 300, 0.4), (500, 500, 0.6)):
        seen = rng.random((n_users, n_items)) < density
        noise = np.where(seen, rng.choice([-0.5, 0.5], seen.shape), 0.0)
        found.append(np.linalg.norm(noise, 2) / noise_growth(int(seen.sum()), n_users, n_items))
    np.testing.assert_allclose(found, np.sqrt(24), rtol=0.1)  # 0.5 x 2 sqrt(24)
    assert noise_growth(24 * 290, 290, 290) == 1
    assert noise_growth(500, 100, 100) == 1


def test_the_spread_of_factors_is_that_of_all_inner_products(dataset: Dataset) -> None:
    for backbone in (MatrixFactorization(dim=3), MatrixFactorization(2, side_features=True)):
        scorer = built(backbone, dataset)
        scorer.user_factors.weight.add_(0.7)  # means that are not 0
        expected = (scorer.user_factors.weight.double() @ scorer.item_factors.weight.double().T).std(correction=0)
        facts = factor_facts(scorer)
        assert facts["spread"] == pytest.approx(float(expected), rel=1e-10)
        assert facts["features"] == (backbone.dim == 2)
    scorer.item_factors.weight.zero_()
    assert factor_facts(scorer)["spread"] == 0
    for backbone in (MatrixFactorization(dim=0), NeuralCF(dim=2)):
        assert factor_facts(built(backbone, dataset)) == {}


def test_the_factors_of_a_fit_are_those_of_its_predictions(dataset: Dataset) -> None:
    """Two predictors with an exposure covariate: without biases and exposure their mean is the factor part."""
    model = make("counterpoise", side_features=False, epochs=20, dim=4, l2=0.5).fit(dataset.train, probe=dataset.probe)
    grid = model.scorer_.grid().double()
    scorer = model.scorer_
    grid = (grid - scorer.intercept.double()) / scorer.slope.double()
    for member, weight in zip(scorer.members, scorer.weights.double(), strict=True):
        inner = member.inner
        rest = inner.mean + inner.user_bias.weight + inner.item_bias.weight.T
        rest = rest + member.exposure_logits(None, None).reshape(grid.shape)
        grid = grid - weight * rest.double()
    spread = float(scorer.slope) * float(grid.std(correction=0))
    assert spread > 0.05
    assert model.facts_["factors"] == {"spread": pytest.approx(spread, rel=1e-4), "features": True}


def test_more_rows_are_not_worse() -> None:
    """Labels of main effects alone: factors have nothing to learn, and their prior keeps them from it."""
    losses = []
    for density in (0.1, 0.4, 0.8):
        data = graded(n_users=200, n_items=150, density=density)
        losses.append(evaluate(make("mf").fit(data.train), data.test, bootstrap=0).log_loss)
    assert losses == sorted(losses, reverse=True)


@pytest.mark.cpu
def test_popularity_is_the_shrunken_rate_of_each_item(dataset: Dataset) -> None:
    log, model = dataset.train, make("popularity", epochs=400, l2_biases=3.0).fit(dataset.train)
    scores = model.predict(np.zeros(log.shape[1]), np.arange(log.shape[1]))
    mean, bias = model.scorer_.mean.item(), model.scorer_.item_bias.weight[:, 0].numpy()
    sums = np.bincount(log.items, log.labels - scores[log.items], log.shape[1])  # the slope of the log likelihood
    np.testing.assert_allclose(sums, 3.0 * bias, atol=0.05)
    np.testing.assert_allclose(scores, 1 / (1 + np.exp(-mean - bias)), rtol=1e-5)
    assert model.recommend([0], 3, filter_seen=False)["item_id"].to_list() == list(np.argsort(-scores)[:3])


def test_weights_make_popularity_that_over_all_pairs(dataset: Dataset) -> None:
    log_rate, weighted = (make("popularity", **kind).fit(dataset.train) for kind in ({}, {"weights": "balancing"}))
    assert log_rate.ratio_.std() == 0 < weighted.ratio_.std()
    assert not np.array_equal(log_rate.predict_log(dataset.test), weighted.predict_log(dataset.test))
