"""Simulated data against its own formulas."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import expit

from counterpoise import ConfigError, DataError, DebiasedRecommender, SimulatedData, simulate
from counterpoise.data.hashing import GOLDEN_GAMMA, splitmix64


def test_splitmix64_gives_the_published_sequence() -> None:
    state = (1234567 + GOLDEN_GAMMA * np.arange(1, 4, dtype=object)) % 2**64  # seed 1234567, Vigna's reference code
    published = [6457827717110365317, 3203168211198807973, 9817491932198370423]
    assert splitmix64(state.astype(np.uint64)).tolist() == published


def test_truth_follows_the_formulas(world: SimulatedData) -> None:
    users, items = world.user_features, world.item_features
    user, item = 7, 11
    liking = users[user] @ items[item] / np.sqrt(3) + 0.8 * items[item, 2] + 0.4 * users[user, 2]
    wave = 0.8 * np.sin(2 * users[user, 0]) * np.cos(2 * items[item, 0])
    assert world.preference[user, item] == pytest.approx(expit(1.2 * liking - 0.5 + wave))
    bend = np.abs(users[:, [1]]) * np.tanh(2 * items[:, 1]) + 0.7 * np.sin(2 * users[:, [0]])
    selection = 1.2 * (users @ items.T / np.sqrt(3) + 0.8 * items[:, 2] + 0.4 * users[:, [2]]) + bend
    logits = np.log(np.asarray(world.propensity)) - np.log1p(-np.asarray(world.propensity))
    assert np.allclose(logits - selection, (logits - selection)[0, 0])


def test_pair_table_in_part_equals_the_whole(world: SimulatedData) -> None:
    for table in (world.propensity, world.preference, world.labels):
        whole = np.asarray(table)
        assert whole.shape == table.shape == world.dataset.train.shape
        users, items = np.array([3, 59, 3]), np.array([0, 49, 20])
        assert np.allclose(table(users, items), whole[users, items])
        assert table.mean() == pytest.approx(whole.mean())
        for part in ((slice(None), 3), (5, slice(2, 9)), (slice(None), slice(None)), 7, ([1, 2], slice(None))):
            assert np.allclose(table[part], whole[part])


def test_log_has_the_simulated_labels(world: SimulatedData) -> None:
    for log in (world.dataset.train, world.dataset.probe, world.dataset.test):
        assert log is not None
        assert np.array_equal(log.labels, world.labels[log.users, log.items])


def test_labels_and_observations_follow_their_probabilities() -> None:
    world = simulate(n_users=300, n_items=200, density=0.1, seed=3)
    observed = np.zeros(world.labels.shape)
    observed[world.dataset.train.users, world.dataset.train.items] = 1
    for truth, outcome in ((world.preference, np.asarray(world.labels)), (world.propensity, observed)):
        chance = np.asarray(truth)
        for part in (chance < np.median(chance), chance >= np.median(chance)):
            error = np.sqrt((chance * (1 - chance))[part].sum())
            assert abs((outcome - chance)[part].sum()) < 4 * error
    labels = np.asarray(world.labels)
    independent = ((observed - np.asarray(world.propensity)) * (labels - np.asarray(world.preference))).mean()
    assert abs(independent) < 4 * 0.3 * 0.5 / np.sqrt(labels.size)


def test_density_is_the_mean_propensity() -> None:
    assert simulate(n_users=80, n_items=70, density=0.13).propensity.mean() == pytest.approx(0.13, abs=1e-6)
    assert simulate(n_users=1500, n_items=1000, density=0.02).propensity.mean() == pytest.approx(0.02, rel=0.02)


def test_strong_selection_can_be_simulated() -> None:
    world = simulate(n_users=40, n_items=30, density=0.1, strength=100)
    assert world.propensity.mean() == pytest.approx(0.1, abs=1e-6)


def test_zero_strength_is_missing_at_random() -> None:
    assert np.ptp(np.asarray(simulate(n_users=30, n_items=20, density=0.3, strength=0).propensity)) < 1e-12


def _logit_less_its_mean(world: SimulatedData) -> np.ndarray:
    chance = np.asarray(world.propensity)
    logits = np.log(chance) - np.log1p(-chance)
    return logits - logits.mean()


def test_selection_by_features_ignores_preference() -> None:
    world = simulate(n_users=30, n_items=20, density=0.3, selection="features")
    users, items = world.user_features, world.item_features
    expected = np.abs(users[:, [1]]) * np.tanh(2 * items[:, 1]) + 0.7 * np.sin(2 * users[:, [0]])
    assert np.allclose(_logit_less_its_mean(world), expected - expected.mean())


def test_selection_by_popularity_is_additive_in_user_and_item() -> None:
    world = simulate(n_users=400, n_items=300, density=0.3, selection="popularity")
    logits = _logit_less_its_mean(world)
    users, items = logits.mean(1), logits.mean(0)
    assert np.allclose(logits, users[:, None] + items)
    assert users.std() == pytest.approx(0.5, rel=0.15)
    assert items.std() == pytest.approx(1, rel=0.15)
    for column in world.item_features.T:
        assert abs(np.corrcoef(items, column)[0, 1]) < 4 / np.sqrt(300)


def test_selection_by_preference_is_by_the_label_alone() -> None:
    world = simulate(n_users=30, n_items=20, density=0.3, selection="preference", strength=1.5)
    labels = np.asarray(world.labels)
    assert np.allclose(_logit_less_its_mean(world), 1.5 * (labels - labels.mean()))


def test_both_is_popularity_and_preference() -> None:
    parts = [
        _logit_less_its_mean(simulate(n_users=30, n_items=20, density=0.3, selection=kind))
        for kind in ("popularity", "preference", "both")
    ]
    assert np.allclose(parts[0] + parts[1], parts[2])


def test_selection_changes_neither_preference_nor_labels() -> None:
    other = simulate(n_users=60, n_items=50, density=0.2, selection="popularity")
    same = simulate(n_users=60, n_items=50, density=0.2)
    assert np.array_equal(np.asarray(other.labels), np.asarray(same.labels))
    assert np.array_equal(np.asarray(other.preference), np.asarray(same.preference))


def test_unknown_selection_is_named() -> None:
    with pytest.raises(ConfigError, match="`selection` must be one of"):
        simulate(selection="taste")


def test_selection_makes_logged_labels_more_positive(world: SimulatedData) -> None:
    assert world.dataset.train.labels.mean() > world.labels.mean() + 0.1
    assert world.dataset.test is not None
    assert abs(world.dataset.test.labels.mean() - world.labels.mean()) < 0.1


def test_ideal_risk_is_the_mean_log_loss_over_all_pairs(world: SimulatedData) -> None:
    scores = np.random.default_rng(0).uniform(0.1, 0.9, world.labels.shape)
    labels = np.asarray(world.labels)
    expected = -(labels * np.log(scores) + (1 - labels) * np.log(1 - scores)).mean()
    assert world.ideal_risk(scores) == pytest.approx(expected)
    assert world.ideal_risk(lambda users, items: scores[users, items]) == pytest.approx(expected)
    assert world.ideal_risk(world.preference) < world.ideal_risk(np.full(labels.shape, labels.mean()))
    assert world.ideal_risk(scores.tolist()) == pytest.approx(expected)
    with pytest.raises(DataError, match=r"must have the shape \(60, 50\)"):
        world.ideal_risk(scores[0])
    for wrong in (np.full(labels.shape, 3.0), np.full(labels.shape, np.nan)):
        with pytest.raises(DataError, match=r"must be probabilities in \[0, 1\]"):
            world.ideal_risk(wrong)


def test_ideal_risk_of_a_model_is_that_of_its_predictions(world: SimulatedData, fitted: DebiasedRecommender) -> None:
    grid = np.array([fitted.predict(np.full(50, user), np.arange(50)) for user in range(60)])
    assert world.ideal_risk(fitted) == pytest.approx(world.ideal_risk(grid), rel=1e-6)


def test_seed_decides_everything() -> None:
    first, second, other = (simulate(n_users=30, n_items=20, density=0.3, seed=seed) for seed in (1, 1, 2))
    assert first.dataset.train.to_frame().equals(second.dataset.train.to_frame())
    assert first.dataset.test.to_frame().equals(second.dataset.test.to_frame())
    assert not first.dataset.train.to_frame().equals(other.dataset.train.to_frame())


def test_probe_test_and_log_share_no_pair(world: SimulatedData) -> None:
    data = world.dataset
    assert not np.isin(data.test.pairs, data.train.pairs).any()
    assert not np.isin(data.test.pairs, data.probe.pairs).any()


def test_blocks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = simulate(n_users=30, n_items=20, density=0.3)
    monkeypatch.setattr("counterpoise.data.simulation.BLOCK_PAIRS", 40 * 20)
    again = simulate(n_users=30, n_items=20, density=0.3)
    monkeypatch.setattr("counterpoise.data.simulation.BLOCK_PAIRS", 45)
    assert np.allclose(np.asarray(again.labels), np.asarray(whole.labels))
    assert again.ideal_risk(again.preference) == pytest.approx(whole.ideal_risk(whole.preference))


@pytest.mark.parametrize(
    "settings",
    [{"n_users": 0}, {"n_items": 1.5}, {"density": 0}, {"density": 1}, {"strength": -1}, {"n_features": 2}],
)
def test_settings_out_of_range_are_named(settings: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=f"`{next(iter(settings))}` must be"):
        simulate(**settings)
