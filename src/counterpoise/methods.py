"""The named methods: each builds fresh parts at each call, with its citation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from counterpoise.backbones import as_backbone
from counterpoise.errors import ConfigError, check_choice
from counterpoise.recommender import DebiasedRecommender
from counterpoise.weights import Uniform


@dataclass(frozen=True)
class Method:
    """A named composition of parts, and what people want to know before they choose it."""

    name: str
    title: str
    family: str
    build: Callable[[], DebiasedRecommender]
    formula: str
    about: str
    needs: str
    citation: str

    def to_dict(self) -> dict[str, Any]:
        """JSON-able, with the parts it is made of."""
        model = self.build()
        words = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "build"}
        return words | {"weights": repr(model.weights), "risk": model.risk, "configuration": model.to_config()}


def mf() -> DebiasedRecommender:
    """Plain matrix factorisation: every observed pair counts the same."""
    return DebiasedRecommender(weights=Uniform(), risk="ips")


METHODS: dict[str, Method] = {
    method.name: method
    for method in (
        Method(
            name="mf",
            title="MF",
            family="naive",
            build=mf,
            formula="risk = mean over the log of error",
            about="Trains on the observed pairs as if they had been drawn at random. The baseline that every debiased "
            "method has to beat, and right when ratings really are missing at random.",
            needs="nothing but the log",
            citation="Koren, Bell and Volinsky 2009, Matrix Factorization Techniques for Recommender Systems",
        ),
    )
}


def make(name: str, **settings: Any) -> DebiasedRecommender:
    """A fresh recommender by the name of its method; `settings` as in `configure`."""
    check_choice("name", name, METHODS)
    return configure(METHODS[name].build(), **settings)


def configure(model: DebiasedRecommender, **settings: Any) -> DebiasedRecommender:
    """Change settings of a model or of its parts in place.

    A setting of a part may be given by its own name (`dim=16`, `seed=1`) where only one part has it, else with the
    part (`training__seed=1`). `backbone` takes a part or a word ("mf", "ncf").
    """
    flat = _flat(settings)
    if "backbone" in flat:
        model.set_params(backbone=as_backbone(flat.pop("backbone")))
    names = list(model.get_params())
    for setting, value in flat.items():
        matches = [name for name in names if setting in (name, name.rpartition("__")[2])]
        if len(matches) != 1:
            known = sorted({name.rpartition("__")[2] for name in names})
            problem = f"is ambiguous: {', '.join(matches)}" if matches else f"is unknown. Settings: {', '.join(known)}"
            raise ConfigError(f"setting `{setting}` {problem}.")
        model.set_params(**{matches[0]: tuple(value) if isinstance(value, list) else value})
    return model


def _flat(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings with those of nested tables as `part__setting`."""
    flat: dict[str, Any] = {}
    for name, value in settings.items():
        nested = _flat(value) if isinstance(value, Mapping) else None
        flat |= {name: value} if nested is None else {f"{name}__{inner}": v for inner, v in nested.items()}
    return flat
