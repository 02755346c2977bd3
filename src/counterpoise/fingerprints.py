"""A short hash of data, so that results of one log are not taken for those of another."""

from __future__ import annotations

import hashlib

import numpy as np

from counterpoise.feedback import FeedbackLog


def hash_logs(salt: str, *logs: FeedbackLog | None) -> str:
    """Of everything in the logs that a fit or an evaluation may look at; `salt` is hashed too."""
    digest = hashlib.sha256(salt.encode())
    for log in logs:
        digest.update(repr(log and log.shape).encode())
        names = ("users", "items", "labels", "user_features", "item_features", "propensities")
        for column in () if log is None else (getattr(log, name) for name in names):
            digest.update(b"-" if column is None else np.ascontiguousarray(column).tobytes())
    return digest.hexdigest()[:16]
