"""Debiased collaborative filtering with kernel-based causal balancing."""

__version__ = "0.1.0"
