"""Top lists, seen items and the scores of unknown users."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from counterpoise import Dataset, FeedbackLog, ranking
from counterpoise.ranking import Seen, nearest, shrunken_label_rates, top_items


@settings(deadline=None)
@given(arrays(np.float32, (4, 9), elements=st.sampled_from([-np.inf, -1.0, 0.0, 0.5, 2.0])), st.integers(1, 12))
def test_top_items_is_a_truncated_stable_sort(scores: np.ndarray, k: int) -> None:
    values, columns = top_items(torch.from_numpy(scores.copy()), k)
    expected = np.argsort(-scores, axis=1, kind="stable")[:, :k]
    assert np.array_equal(columns.numpy(), expected)
    assert np.array_equal(values.numpy(), np.take_along_axis(scores, expected, axis=1))


def test_nearest_items_have_the_largest_inner_products() -> None:
    table = np.random.default_rng(0).normal(size=(9, 3))
    for codes, k, block in (([4, 0, 8], 3, 1), (range(9), 20, 27)):
        products, others = nearest(torch.from_numpy(table), torch.tensor(list(codes)), k, block)
        for row, code in enumerate(codes):
            of_all = table @ table[code]
            expected = [other for other in np.argsort(-of_all) if other != code][:k]
            assert others[row].tolist() == expected
            np.testing.assert_allclose(products[row], of_all[expected])


def test_seen_items_are_hidden_and_no_others(dataset: Dataset) -> None:
    log = dataset.train
    users = torch.tensor([5, -1, 0, 5])
    scores = torch.zeros(4, log.shape[1])
    Seen.of(log).hide(scores, users)
    for row, user in enumerate(users.tolist()):
        rated = set(log.items[log.users == user].tolist())
        assert set(torch.nonzero(scores[row] == -torch.inf).flatten().tolist()) == rated
        assert (scores[row] == 0).sum() == log.shape[1] - len(rated)


@pytest.mark.parametrize("block", [1, 7, 2**20])
def test_seen_pairs_are_found_whatever_the_block(dataset: Dataset, block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranking, "BLOCK_ROWS", block)
    log = dataset.train.take(slice(0, 200))
    users, items = (codes.ravel() - 1 for codes in np.indices((20, log.shape[1] + 3)))  # -1 and past the last: unknown
    rated = set(zip(log.users.tolist(), log.items.tolist(), strict=True))
    expected = [pair in rated for pair in zip(users.tolist(), items.tolist(), strict=True)]
    known = (users >= 0) & (items >= 0)
    assert (Seen.of(log).contains(users, items) & known).tolist() == expected
    assert not Seen.of(log.take([])).contains(users, items).any()
    assert Seen.of(log).contains(users[:0], items[:0]).tolist() == []


def test_label_rates_are_shrunk_to_the_mean() -> None:
    log = FeedbackLog.from_arrays([0, 1, 2, 0], [0, 0, 0, 1], [1, 1, 0, 1])
    rates = shrunken_label_rates(log).tolist()  # two ratings an item on average, three of four labels are positive
    assert np.allclose(rates, [(2 + 2 * 0.75) / (3 + 2), (1 + 2 * 0.75) / (1 + 2)])
