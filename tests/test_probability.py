"""Log odds, and estimates shrunken by their standard error."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import expit, logit

from counterpoise.probability import log_odds, shrink_by_error

ESTIMATES = st.floats(-50, 50)
VARIANCES = st.floats(1e-6, 100)


def test_log_odds_are_those_of_scipy() -> None:
    probabilities = np.linspace(0.001, 0.999, 57)
    np.testing.assert_allclose(log_odds(probabilities), logit(probabilities), rtol=1e-12, atol=1e-15)
    assert log_odds(0.75) == pytest.approx(math.log(3))


@given(st.floats(-20, 20))
def test_log_odds_are_the_inverse_of_the_sigmoid(value: float) -> None:
    assert float(log_odds(expit(value))) == pytest.approx(value, abs=1e-6)


@given(ESTIMATES, VARIANCES)
def test_an_estimate_is_shrunken_by_its_formula(estimate: float, variance: float) -> None:
    """estimate x [1 - 2 variance / estimate^2]+, which is never further from 0 nor on the other side."""
    found = shrink_by_error(estimate, variance)
    expected = (estimate**2 - 2 * variance) / estimate if estimate**2 > 2 * variance else 0.0
    assert found == pytest.approx(expected, rel=1e-6, abs=1e-9)
    assert abs(found) <= abs(estimate)
    assert found * estimate >= 0
    assert shrink_by_error(-estimate, variance) == -found


def test_an_estimate_of_zero_or_of_chance_is_zero() -> None:
    assert shrink_by_error(0.0, 0.0) == 0.0
    assert shrink_by_error(0.3, 0.05) == 0.0
    assert shrink_by_error(0.3, 0.0) == 0.3
