"""What the weights look like: their histogram, the effective sample, the tail, and weight against popularity."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from counterpoise.diagnostics import group_effective_sample_sizes, weight_facts
from counterpoise.reports.material import Material, WeightedRows

Floats = NDArray[np.float64]
BINS = 40
GROUPS = 10  # of rows by popularity, of equal size
HEAVIEST = 10
QUANTILES = {"least": 0, "5%": 0.05, "median": 0.5, "95%": 0.95, "most": 1}


def weights_facts(material: Material, rows: WeightedRows) -> dict[str, Any]:
    """JSON-able; `uniform` where every row counts the same, and little else then."""
    ratio = material.model.ratio_.astype(np.float64)
    own = material.model.facts_["weights"]
    told = {key: value for key, value in own.items() if isinstance(value, int | float | str) or value is None}
    found: dict[str, Any] = {"rows": len(ratio), "uniform": bool(np.ptp(ratio) == 0), "facts": told}
    if found["uniform"]:
        return found
    relative = ratio / ratio.mean()
    found |= weight_facts(ratio) | {"quantiles": _quantiles(relative), "histogram": histogram(relative)}
    if rows.ratio is None:
        return found
    users, items = (np.bincount(codes, minlength=size) for codes, size in _sides(material, rows))
    return found | {
        "per_user": _groups(rows.ratio, rows.users, material.shape[0]),
        "per_item": _groups(rows.ratio, rows.items, material.shape[1]),
        "by_popularity": weight_by_count(relative, items[rows.items]),
        "by_activity": weight_by_count(relative, users[rows.users]),
        "by_label": _by_label(relative, rows),
        "heaviest": _heaviest(material, rows, relative, users, items),
    }


def histogram(relative: Floats, bins: int = BINS) -> list[dict[str, float]]:
    """Rows in bins of equal width in the logarithm of weight / mean weight."""
    logarithms = np.log10(relative.clip(min=1e-6))
    counts, edges = np.histogram(logarithms, bins=bins)
    edges = 10**edges
    return [
        {"low": float(low), "high": float(high), "rows": int(count)}
        for low, high, count in zip(edges[:-1], edges[1:], counts, strict=True)
    ]


def weight_by_count(relative: Floats, counts: NDArray[Any], groups: int = GROUPS) -> list[dict[str, float]]:
    """Rows in groups of about equal size by the ratings of their item (or user): mean weight and its middle 80%."""
    borders = np.unique(np.quantile(counts, np.arange(1, groups) / groups))
    place = np.searchsorted(borders, counts, side="right")
    found = []
    for group in np.unique(place):
        inside = place == group
        low, high = np.quantile(relative[inside], [0.1, 0.9])
        found.append(
            {
                "ratings": float(np.median(counts[inside])),
                "from": int(counts[inside].min()),
                "to": int(counts[inside].max()),
                "rows": int(inside.sum()),
                "mean": float(relative[inside].mean()),
                "low": float(low),
                "high": float(high),
            }
        )
    return found


def _sides(material: Material, rows: WeightedRows) -> list[tuple[NDArray[Any], int]]:
    return list(zip((rows.users, rows.items), material.shape, strict=True))


def _quantiles(values: Floats) -> dict[str, float]:
    return dict(zip(QUANTILES, np.quantile(values, list(QUANTILES.values())).tolist(), strict=True))


def _groups(ratio: Floats, codes: NDArray[Any], size: int) -> dict[str, Any]:
    """Effective sample sizes of the users or items that have rows, and what share of these rows they are."""
    counts = np.bincount(codes, minlength=size)
    sizes = group_effective_sample_sizes(ratio, codes, size)[counts > 0]
    shares = sizes / counts[counts > 0]
    heights, edges = np.histogram(shares, bins=20, range=(0, 1))
    return {
        "groups": len(sizes),
        "sizes": _quantiles(sizes),
        "shares": _quantiles(shares),
        "share_histogram": [
            {"low": float(low), "high": float(high), "rows": int(count)}
            for low, high, count in zip(edges[:-1], edges[1:], heights, strict=True)
        ],
    }


def _by_label(relative: Floats, rows: WeightedRows) -> list[dict[str, Any]]:
    if rows.labels is None:
        return []
    positive = rows.labels >= 0.5
    parts = {"positive": positive, "negative": ~positive}
    return [
        {"label": name, "rows": int(which.sum()), "mean": float(relative[which].mean())}
        for name, which in parts.items()
        if which.any()
    ]


def _heaviest(
    material: Material, rows: WeightedRows, relative: Floats, users: NDArray[Any], items: NDArray[Any]
) -> list[dict[str, Any]]:
    """The rows that count most: whom the tail is made of."""
    top = np.argsort(-relative, kind="stable")[:HEAVIEST]
    user_ids = material.model.user_ids_.decode(rows.users[top])
    item_ids = material.model.item_ids_.decode(rows.items[top])
    return [
        {
            "user": str(user),
            "item": str(item),
            "label": None if rows.labels is None else float(rows.labels[row]),
            "weight": float(relative[row]),
            "user_ratings": int(users[rows.users[row]]),
            "item_ratings": int(items[rows.items[row]]),
        }
        for user, item, row in zip(user_ids, item_ids, top, strict=True)
    ]
