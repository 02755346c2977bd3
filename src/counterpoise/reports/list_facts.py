"""What people would be shown: lists before debiasing (plain MF) and after, for some users and on the whole."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from counterpoise.recommender import DebiasedRecommender
from counterpoise.reports.material import Material, seen_pairs

EXAMPLES = 6  # users
SAMPLE = 2000  # users whose lists are counted on the whole
Codes = NDArray[np.int64]


def list_facts(material: Material) -> dict[str, Any]:
    """JSON-able: lists of some users, from the least to the most active, and figures over a sample of users."""
    users, items = seen_pairs(material.model.seen_)
    activity = np.bincount(users, minlength=material.shape[0])
    popularity = np.bincount(items, minlength=material.shape[1])
    chosen = spread_out(activity, EXAMPLES)
    models = {"after": material.model} | ({"before": material.plain} if material.plain is not None else {})
    sample = np.unique(np.linspace(0, len(activity) - 1, min(SAMPLE, len(activity))).astype(np.int64))
    lists = {name: _lists(model, sample, material.k) for name, model in models.items()}
    return {
        "k": material.k,
        "users": [_example(material, models, int(user), activity, popularity) for user in chosen],
        "sampled_users": len(sample),
        "overlap": overlap(lists["before"], lists["after"]) if "before" in lists else None,
        **{name: _figures(found, popularity) for name, found in lists.items()},
    }


def spread_out(activity: NDArray[Any], count: int) -> Codes:
    """Users from the least to the most active, at equal steps of rank; only users with ratings."""
    order = np.argsort(activity, kind="stable")
    order = order[activity[order] > 0]
    places = np.linspace(0, len(order) - 1, min(count, len(order))).round().astype(np.int64)
    return order[np.unique(places)]


def overlap(before: list[list[int]], after: list[list[int]]) -> float:
    """The mean over users of the share of the list after that stood in the list before; nan without lists."""
    if not after:
        return math.nan
    return float(np.mean([len(set(b) & set(a)) / max(1, len(a)) for b, a in zip(before, after, strict=True)]))


def _lists(model: DebiasedRecommender, users: Codes, k: int) -> list[list[int]]:
    """The item codes of each user's list; none of users who have seen everything."""
    frame = model.recommend(model.user_ids_.decode(users), k=k)
    codes = model.item_ids_.encode(frame["item_id"])
    starts = np.flatnonzero(frame["rank"].to_numpy() == 1)
    return [part.tolist() for part in np.split(codes, starts)[1:]]


def _figures(lists: list[list[int]], popularity: NDArray[Any]) -> dict[str, float]:
    """Different items shown, and the mean share of all items with fewer ratings than a shown one; nan without lists."""
    shown = np.concatenate([np.empty(0, np.int64), *(np.asarray(part, np.int64) for part in lists)])
    if not len(shown):
        return {"items_shown": 0, "popularity_rank": math.nan, "top_tenth": math.nan}
    below = np.searchsorted(np.sort(popularity), popularity, side="left") / len(popularity)
    top = np.argsort(-popularity, kind="stable")[: max(1, len(popularity) // 10)]
    return {
        "items_shown": len(np.unique(shown)),
        "popularity_rank": float(below[shown].mean()),
        "top_tenth": float(np.isin(shown, top).mean()),
    }


def _example(
    material: Material,
    models: dict[str, DebiasedRecommender],
    user: int,
    activity: NDArray[Any],
    popularity: NDArray[Any],
) -> dict[str, Any]:
    name = material.model.user_ids_.decode([user])
    found: dict[str, Any] = {"user": str(name[0]), "ratings": int(activity[user])}
    for which, model in models.items():
        frame = model.recommend(name, k=material.k)
        codes = model.item_ids_.encode(frame["item_id"])
        entries = zip(frame["item_id"], frame["score"], popularity[codes], strict=True)
        found[which] = [{"item": str(i), "score": float(s), "ratings": int(n)} for i, s, n in entries]
    known = {entry["item"] for entry in found.get("before", [])}
    for entry in found["after"]:
        entry["new"] = bool(known) and entry["item"] not in known
    return found
