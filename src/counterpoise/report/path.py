"""The path of strengths of `Balancing(strength="auto")`, as facts and in a sentence."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

MIN_USED = 0.5  # of the loss of sample that the rule allows: with less of it, something else ended the path


def path_of(weights: Mapping[str, Any]) -> dict[str, Any] | None:
    """JSON-able, from the facts of fitted weights: the chosen point, and those of every fold; None without a path.

    `kept` is a mean over folds, imbalances are the largest of any fold. `left`: None where the share to keep ended the
    path, else why nothing more was balanced.
    """
    if "path" not in weights:
        return None
    path, balanced = weights["path"], weights["balanced"]
    after = [max(map(abs, fold["after_sd"])) for fold in balanced]
    kept = [point["kept"] for points in path["points"] for point in points if point["chosen"]]
    mean, left = sum(kept) / len(kept), None
    if 1 / mean - 1 < MIN_USED * (1 / path["kept"] - 1):
        chance = weights.get("worst_case_bias") is not None  # a worst-case problem has no tolerance
        left = "that of a random sample" if chance else f"the tolerance of {path['tolerance']:.2g} SD"
    return {
        "strength": path["strength"],
        "tolerance": path["tolerance"],
        "kept_at_least": path["kept"],
        "kept": mean,
        "left": left,
        "imbalance_before": max(abs(size) for fold in balanced for size in fold["before_sd"]),
        "imbalance": max(after),
        "folds": path["points"],
    }


def path_sentence(path: Mapping[str, Any]) -> str:
    """The chosen strength, why it was chosen, and what it changed; from `path_of`."""
    rule = f"the largest strength that keeps {path['kept_at_least']:.1%}"
    if path["left"]:
        rule = f"{path['kept_at_least']:.1%} would do, but what is left is within {path['left']}"
    return (
        f"Balancing keeps {path['kept']:.1%} of the effective sample at strength {path['strength']:.3g} ({rule}). "
        f"Largest imbalance: {path['imbalance_before']:.2f} SD before, {path['imbalance']:.2f} SD after."
    )
