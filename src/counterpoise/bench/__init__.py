"""Experiments: the paper's table and figures, honest and resumable."""
