"""The hash behind every draw that must not depend on order or memory: splitmix64."""

from __future__ import annotations

from typing import Any

import numpy as np

GOLDEN_GAMMA = 0x9E3779B97F4A7C15  # 2^64 / golden ratio, odd: the increment of splitmix64


def splitmix64(values: Any) -> Any:
    """A 64-bit hash of unsigned 64-bit integers, modulo 2^64: the finaliser of splitmix64 (Steele et al. 2014)."""
    with np.errstate(over="ignore"):
        z = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return z ^ (z >> np.uint64(31))
