"""Bins of predictions, against loops."""

from __future__ import annotations

import numpy as np
import pytest

from counterpoise.errors import DataError
from counterpoise.evaluation.calibration import calibration_bins, calibration_error, wilson_interval


def test_bins_have_equal_size_and_hold_means() -> None:
    rng = np.random.default_rng(0)
    scores, labels = rng.random(103), rng.integers(0, 2, 103)
    found = calibration_bins(scores, labels, bins=5)
    rows = sorted(zip(scores, labels, strict=True))
    start = 0
    for one in found:
        part = rows[start : start + one.rows]
        assert abs(one.rows - 103 / 5) <= 1
        assert one.predicted == pytest.approx(sum(score for score, _ in part) / len(part))
        assert one.observed == pytest.approx(sum(label for _, label in part) / len(part))
        assert one.low <= one.observed <= one.high
        start += one.rows
    assert start == 103


def test_equal_predictions_stay_in_one_bin() -> None:
    scores = [0.2] * 5 + [0.7] * 3 + [0.9]
    labels = [0, 1, 0, 0, 0, 1, 1, 0, 1]
    found = calibration_bins(scores, labels, bins=9)
    assert [(one.rows, one.predicted) for one in found] == [(5, 0.2), (3, pytest.approx(0.7)), (1, 0.9)]
    backwards = calibration_bins(scores[::-1], labels[::-1], bins=9)
    assert [one.rows for one in backwards] == [one.rows for one in found]


def test_calibration_error_is_the_weighted_mean_distance() -> None:
    scores, labels = np.repeat([0.25, 0.5], 4), np.array([1, 0, 0, 0, 1, 1, 0, 0])
    assert calibration_error(calibration_bins(scores, labels)) == 0
    found = calibration_bins([0.1, 0.1, 0.8], [1, 0, 0])
    assert calibration_error(found) == pytest.approx((2 * abs(0.5 - 0.1) + abs(0 - 0.8)) / 3)


def test_wilson_interval_inverts_the_score_test() -> None:
    for rate, rows in ((0.3, 20), (0.0, 7), (1.0, 5)):
        low, high = wilson_interval(rate, rows)
        for edge in (low, high):
            if 0 < edge < 1:
                assert abs(rate - edge) / (edge * (1 - edge) / rows) ** 0.5 == pytest.approx(1.96)


def test_scores_that_are_not_probabilities_are_refused() -> None:
    for scores, labels in (([0.5, 1.5], [0, 1]), ([0.5], [0, 1]), ([], []), ([0.5, np.nan], [0, 1])):
        with pytest.raises(DataError, match="`scores` and `labels`"):
            calibration_bins(scores, labels)
