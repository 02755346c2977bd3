"""A random order of rows that takes no memory: the place of each is computed when it is asked for."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

ROUNDS = 6
Integers = NDArray[np.uint64]


def permuted(positions: NDArray[np.int64], size: int, key: int) -> NDArray[np.int64]:
    """What stands at these positions in a pseudo-random permutation of 0 .. size - 1; every `key` gives another.

    A Feistel network permutes the next power of 4 (Luby and Rackoff 1988); what falls outside is sent on until it falls
    inside, which is a permutation again.
    """
    half = np.uint64(max(1, (max(size - 1, 1).bit_length() + 1) // 2))
    values = _network(positions.astype(np.uint64), half, key)
    outside = np.flatnonzero(values >= size)
    while len(outside):
        values[outside] = _network(values[outside], half, key)
        outside = outside[values[outside] >= size]
    return values.astype(np.int64)


def _network(values: Integers, half: np.uint64, key: int) -> Integers:
    """(left, right) -> (right, left xor hash(right)), several times, on numbers of 2 x `half` bits."""
    mask = (np.uint64(1) << half) - np.uint64(1)
    left, right = values >> half, values & mask
    for number in range(ROUNDS):
        left, right = right, left ^ (_mixed(right, key + number * 0x9E3779B97F4A7C15) & mask)
    return (left << half) | right


def _mixed(values: Integers, key: int) -> Integers:
    """A hash of 64 bits (the finaliser of splitmix64: Steele, Lea and Flood 2014)."""
    mixed = values + np.uint64(key % 2**64)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))
