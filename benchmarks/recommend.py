"""How long do top-10 lists of 15,400 users x 1,000 items take? One thread, against a loop over users.

Limit: 1 s.
"""

from __future__ import annotations

import time

import numpy as np
import torch

import counterpoise as cp

USERS, ITEMS, K = 15_400, 1_000, 10
LOOPED = 500  # users for the slow way, whose time is scaled up


def loop(model: cp.DebiasedRecommender, log: cp.FeedbackLog) -> list[list[int]]:
    """The way scripts do it: one user after the other."""
    items, lists = np.arange(ITEMS), []
    for user in range(LOOPED):
        scores = model.predict(np.full(ITEMS, user), items)
        scores[log.items[log.users == user]] = -np.inf
        lists.append(np.argsort(-scores, kind="stable")[:K].tolist())
    return lists


def main() -> None:
    """Print the times and their ratio."""
    torch.set_num_threads(1)
    log = cp.simulate(USERS, ITEMS, 0.0202).dataset.train
    model = cp.make("mf", epochs=5).fit(log)
    model.recommend([0], k=K)
    started = time.perf_counter()
    table = model.recommend(k=K)
    ours = time.perf_counter() - started
    started = time.perf_counter()
    lists = loop(model, log)
    theirs = (time.perf_counter() - started) * USERS / LOOPED
    same = np.mean(table["item_id"].to_numpy().reshape(USERS, K)[:LOOPED] == np.array(lists))
    print(f"top {K} of {USERS:,} users x {ITEMS:,} items, one thread: {ours:.3f} s (limit 1 s)")
    print(f"loop over users: about {theirs:.0f} s, {theirs / ours:.0f} x; {same:.2%} of the entries are equal")


if __name__ == "__main__":
    main()
