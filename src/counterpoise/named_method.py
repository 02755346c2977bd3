"""A named method: the formula, what it is for, what it needs, and who proposed it. `compositions` builds them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

from counterpoise.recommender import DebiasedRecommender

LOG, PROBE, LABEL = "the log alone", "a probe (or other weights)", "a probe (or a label)"
BOTH = "a probe (or other weights and a label)"


@dataclass(frozen=True)
class Method:
    """A named composition of parts, and what people want to know before they choose it."""

    name: str
    title: str
    family: str  # naive, ips, dr, imputation, likelihood
    build: Callable[[], DebiasedRecommender]
    formula: str
    about: str
    needs: str
    citation: str

    def to_dict(self) -> dict[str, Any]:
        """JSON-able, with the parts it is made of."""
        model = self.build()
        words = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "build"}
        parts = {name: type(getattr(model, name)).__name__ for name in ("weights", "imputation")}
        return words | {"risk": model.risk} | parts | {"configuration": model.to_config()}
