"""Does the log, weighted, resemble all pairs? Feature by feature, on held-out functions, and what balance cost."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from counterpoise.balance_table import feature_balance
from counterpoise.diagnostics import held_out_imbalance
from counterpoise.features import side_features, standardised
from counterpoise.population import Pairs
from counterpoise.reports.material import Material, WeightedRows

Floats = NDArray[np.float64]
DIRECTIONS = 4  # of the embeddings of users, and of items
SIDES = ("user", "item")


def balance_facts(material: Material, rows: WeightedRows) -> dict[str, Any]:
    """JSON-able: the table of features, held-out functions, and the certificate of the balanced functions."""
    tables = feature_tables(material, rows)
    own = material.model.facts_["weights"]
    return {
        "weighted": rows.ratio is not None and bool(np.ptp(rows.ratio) > 0),
        "features": [balance_of(name, side, values, rows) for name, side, values in tables],
        "held_out": _held_out(tables, rows),
        "held_out_of_method": _own_held_out(own),
        "functions": _functions(own),
        "given_up": own.get("given_up"),
        "status": own.get("status"),
        "gap": own.get("gap"),
    }


def feature_tables(material: Material, rows: WeightedRows) -> list[tuple[str, int, Floats]]:
    """(name, 0 for users or 1 for items, a value for each of them): activity, side features, directions of taste."""
    found = []
    for side, (who, codes, size) in enumerate(zip(SIDES, (rows.users, rows.items), material.shape, strict=True)):
        counts = np.log1p(np.bincount(codes, minlength=size))
        found.append((("user activity", "item popularity")[side], side, counts))
        given = np.zeros((size, 0)) if material.train is None else side_features(material.train)[side]
        found += [(f"{who} feature {column + 1}", side, given[:, column]) for column in range(given.shape[1])]
        vectors = (material.plain or material.model).embeddings()[side]
        for place, values in enumerate(leading_directions(vectors, DIRECTIONS).T):
            found.append((f"{who} taste {place + 1}", side, values))
    return found


def leading_directions(table: NDArray[Any], count: int) -> Floats:
    """The coordinates (rows, count) along the directions in which a centred table varies most (its singular vectors).

    The sign of a direction is that of the largest entry, so that it does not depend on the machine.
    """
    centred = np.asarray(table, np.float64) - np.mean(table, axis=0, dtype=np.float64)
    _, sizes, directions = np.linalg.svd(centred, full_matrices=False)
    kept = directions[:count][sizes[:count] > 1e-9 * max(sizes.max(initial=0), 1e-300)]
    signs = np.sign(kept[np.arange(len(kept)), np.abs(kept).argmax(axis=1)])
    coordinates: Floats = centred @ (kept * signs[:, None]).T
    return coordinates


def balance_of(name: str, side: int, values: Floats, rows: WeightedRows) -> dict[str, Any]:
    """One feature of users or of items, before and after weighting, against all pairs.

    A function of the user alone has, over the log, the distribution over users with their rows for weights, and over
    all pairs that of all users alike; so users are all that is looked at.
    """
    codes = (rows.users, rows.items)[side]
    before = np.bincount(codes, minlength=len(values)).astype(np.float64)
    ratio = np.ones(len(codes)) if rows.ratio is None else rows.ratio
    after = np.bincount(codes, ratio, minlength=len(values)).astype(np.float64)
    found = asdict(feature_balance(name, values, before, after, values, np.ones(len(values))))
    if rows.ratio is None:
        found |= {key: None for key in found if key.endswith("_after")}
    return found | {"of": SIDES[side]}


def _held_out(tables: list[tuple[str, int, Floats]], rows: WeightedRows) -> dict[str, Any] | None:
    """Kernel functions of all these features that no method was told of, before and after weighting."""
    sides = [[values for _, of, values in tables if of == side] for side in (0, 1)]
    pairs = Pairs(*(torch.from_numpy(standardised(np.column_stack(columns))) for columns in sides))
    if pairs.n_columns == 0:
        return None
    observed = pairs.at(*(torch.from_numpy(np.asarray(codes, np.int64)) for codes in (rows.users, rows.items)))
    before = held_out_imbalance(observed, torch.ones(len(rows.users)), pairs)
    if rows.ratio is None or np.ptp(rows.ratio) == 0:
        return None if before is None else {"before": before, "after": None if rows.ratio is None else before}
    after = held_out_imbalance(observed, torch.from_numpy(rows.ratio), pairs)
    return None if before is None else {"before": before, "after": after}


def _own_held_out(own: dict[str, Any]) -> dict[str, Any] | None:
    """The same in the features in which the method balanced, where it did."""
    before, after = own.get("held_out_before"), own.get("held_out_after")
    return {"before": before, "after": after} if before and after else None


def _functions(own: dict[str, Any]) -> list[dict[str, Any]]:
    """Each balanced function of each fold: imbalance before and after, its price, and whether it was given up."""
    keys = ("before_sd", "after_sd", "price", "given_up")
    found = []
    for fold, part in enumerate(own.get("balanced", []), start=1):
        for name, *values in zip(part["names"], *(part[key] for key in keys), strict=True):
            found.append({"name": name, "fold": fold, **dict(zip(keys, values, strict=True))})
    return found
