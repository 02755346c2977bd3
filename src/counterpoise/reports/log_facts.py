"""How biased is the log? Popularity and activity, and its label rate against uniform samples."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from counterpoise.calibration import wilson_interval
from counterpoise.feedback import FeedbackLog
from counterpoise.reports.material import Material, WeightedRows, seen_pairs

Floats = NDArray[np.float64]
CURVE_POINTS = 50


def log_facts(material: Material, rows: WeightedRows) -> dict[str, Any]:
    """JSON-able: size, concentration of users and items, label rates of the log, weighted, of probe and test."""
    users, items = seen_pairs(material.model.seen_)
    n_users, n_items = material.shape
    return {
        "name": None if material.dataset is None else material.dataset.name,
        "rows": len(users),
        "users": n_users,
        "items": n_items,
        "density": len(users) / (n_users * n_items),
        "activity": concentration(np.bincount(users, minlength=n_users)),
        "popularity": concentration(np.bincount(items, minlength=n_items)),
        "label_rates": _label_rates(material, rows),
    }


def concentration(counts: ArrayLike) -> dict[str, Any]:
    """How unequally ratings are spread over users or items: quantiles, top tenth, Gini, and the curve of shares."""
    values = np.asarray(counts)
    return {
        "least": int(values.min()),
        "median": float(np.median(values)),
        "mean": float(values.mean()),
        "most": int(values.max()),
        "without": int((values == 0).sum()),
        "top_tenth_share": share_of_top(values, 0.1),
        "gini": gini(values),
        "curve": [[share, share_of_top(values, share)] for share in np.linspace(0, 1, CURVE_POINTS + 1).tolist()],
    }


def gini(counts: ArrayLike) -> float:
    """sum_i (2 i - n - 1) x_(i) / (n sum_i x_i), x ascending: 0 where all are equal, near 1 where one has all."""
    values = np.sort(np.asarray(counts, dtype=np.float64))
    places = 2 * np.arange(1, len(values) + 1) - len(values) - 1
    return float(places @ values / (len(values) * values.sum()))


def share_of_top(counts: ArrayLike, share: float) -> float:
    """The share of all ratings that the largest counts hold, `share` of them; the last of these counts in part."""
    values = np.sort(np.asarray(counts, dtype=np.float64))[::-1]
    held = np.concatenate([[0.0], np.cumsum(values)])
    return float(np.interp(share * len(values), np.arange(len(held)), held) / held[-1])


def _label_rates(material: Material, rows: WeightedRows) -> list[dict[str, Any]]:
    """A rate for each sample that there is; uniform samples have an interval."""
    facts = material.model.log_facts_
    rates = [{"sample": "log", "rate": facts["mean_label"], "rows": facts["rows"], "interval": None}]
    if rows.ratio is not None and rows.labels is not None and np.ptp(rows.ratio) > 0:
        rate = float(rows.ratio @ rows.labels / rows.ratio.sum())
        rates.append({"sample": "log, weighted", "rate": rate, "rows": len(rows.ratio), "interval": None})
    probe = None if material.dataset is None else material.dataset.probe
    samples = {"probe": probe, "test": material.test}
    return rates + [_uniform_rate(name, log) for name, log in samples.items() if log is not None and len(log)]


def _uniform_rate(name: str, log: FeedbackLog) -> dict[str, Any]:
    rate = float(log.labels.mean())
    return {"sample": name, "rate": rate, "rows": len(log), "interval": wilson_interval(rate, len(log))}
