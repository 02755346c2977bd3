"""Pair features: standardised per column, gathered by code."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from counterpoise.balance.features import observed_pairs, pair_features, popularity, standardised
from counterpoise.balance.functions import KernelFunctions
from counterpoise.data.log import FeedbackLog
from counterpoise.errors import ConfigError, DataError


def log(**options):
    return FeedbackLog.from_arrays(["a", "a", "b", "c"], ["x", "y", "x", "x"], [1, 2, 3, 4], **options)


def test_columns_are_standardised_and_constant_ones_left_out():
    table = standardised(np.c_[np.arange(5.0), np.ones(5), np.arange(5.0) * 1e6 + 1e9])
    assert table.shape == (5, 2)
    assert np.allclose(table.mean(0), 0)
    assert np.allclose(table.std(0), 1)


def test_activity_is_the_log_of_rating_counts():
    pairs = pair_features(log(), ["activity"])
    assert np.allclose(pairs.users[:, 0], standardised(np.log1p([[2], [1], [1]]))[:, 0])
    assert np.allclose(pairs.items[:, 0], standardised(np.log1p([[3], [1]]))[:, 0])


def test_popularity_is_the_activity_of_items_alone():
    users, items = popularity(log())
    assert users.shape == (3, 0)
    assert np.allclose(items, np.log1p([[3], [1]]))


def test_sources_are_concatenated_and_gathered_by_code():
    data = log(user_features=[[0, 1], [1, 1], [2, 1]], item_features=[[5], [7]])
    embeddings = torch.randn(3, 4), torch.randn(2, 4)
    pairs = pair_features(data, ["side", "activity", "embeddings"], embeddings)
    assert pairs.users.shape == (3, 1 + 1 + 4)
    assert pairs.items.shape == (2, 1 + 1 + 4)
    observed = observed_pairs(data, pairs)
    expected = torch.cat([pairs.users[data.users[2]], pairs.items[data.items[2]]])
    assert torch.equal(observed.features(slice(None))[2], expected)
    assert observed.n_rows == 4


def test_errors_name_missing_or_misshapen_sources():
    with pytest.raises(ConfigError, match="`sources` must be one of 'side'"):
        pair_features(log(), ["magic"])
    with pytest.raises(DataError, match="`embeddings` must be given"):
        pair_features(log(), ["embeddings"])
    with pytest.raises(DataError, match="must have 3 user and 2 item rows"):
        pair_features(log(), ["embeddings"], (np.ones((2, 2)), np.ones((2, 2))))
    with pytest.raises(DataError, match="no feature varies in side"):
        pair_features(log(), ["side"])
    with pytest.raises(DataError, match="finite"):
        standardised([[np.nan], [1.0]])


def test_pairs_without_user_features_can_be_balanced():
    """On some logs every user rates equally often, so that only items have features."""
    users, items = np.repeat(np.arange(20), 5), np.random.default_rng(0).integers(0, 8, 100)
    data = FeedbackLog.from_arrays(users, items, np.ones(100), duplicates="last")
    pairs = pair_features(data, ["embeddings"], (np.ones((20, 2)), np.random.default_rng(1).normal(size=(8, 2))))
    assert pairs.users.shape == (20, 0)
    fitted = KernelFunctions(n=3, candidates=20).fit(pairs)
    assert fitted.balance(observed_pairs(data, pairs), 1e-3).weights.sum() == pytest.approx(1)


def test_embeddings_of_a_fitted_recommender_are_features(dataset, fitted):
    users, items = fitted.embeddings()
    pairs = pair_features(dataset.train, ("embeddings",), (users, items))
    assert pairs.users.shape == (60, 4)
    assert pairs.items.shape == (50, 4)
    assert np.allclose(pairs.users.numpy(), (users - users.mean(0)) / users.std(0), atol=1e-5)
