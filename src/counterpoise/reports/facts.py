"""All facts of a report, gathered into one JSON-able dictionary: what is not in it is not shown."""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from counterpoise import __version__
from counterpoise.making import canonical_name
from counterpoise.methods import METHODS
from counterpoise.recommender import DebiasedRecommender
from counterpoise.reports.balance_facts import balance_facts
from counterpoise.reports.definitions import DEFINITIONS
from counterpoise.reports.list_facts import list_facts
from counterpoise.reports.log_facts import log_facts
from counterpoise.reports.material import Material
from counterpoise.reports.model_facts import model_facts
from counterpoise.reports.summary import OWN, headline, summary
from counterpoise.reports.weight_facts import weights_facts

PACKAGES = ("numpy", "scipy", "torch", "polars")


def gather(material: Material) -> dict[str, Any]:
    """Everything that the report of one run shows."""
    rows = material.weighted_rows()
    gathered: dict[str, Any] = {
        "format": "counterpoise-report",
        "version": __version__,
        "run": material.name,
        "notes": list(material.notes),
        "stopped": material.stopped,
        "method": _method(material),
        "log": log_facts(material, rows),
        "balance": balance_facts(material, rows),
        "weights": weights_facts(material, rows),
        "model": model_facts(material),
        "lists": list_facts(material),
        "configuration": configuration_facts(material),
    }
    facts = plain_json(gathered)
    return facts | {"headline": headline(facts), "summary": summary(facts), "definitions": DEFINITIONS}


def plain_json(facts: Mapping[str, Any]) -> dict[str, Any]:
    """As a reader of the JSON file gets it: None for nan, lists for tuples."""
    return dict(json.loads(json.dumps(facts), parse_constant=lambda word: None))


def configuration_facts(material: Material) -> dict[str, Any]:
    """What decides the fit, and what it ran on."""
    manifest, model = material.manifest, material.model
    return {
        "fit": dict(material.configuration),
        "settings": flat(model.configuration_),
        "seed": model.training.seed,
        "fit_version": manifest.get("version", __version__),
        "fit_seconds": manifest.get("seconds", model.history_.seconds),
        "plain_seconds": None if material.plain is None else material.plain.history_.seconds,
        "plain_epochs": None if material.plain is None else len(material.plain.history_.loss),
        "dataset": manifest.get("dataset") or (material.dataset.description if material.dataset else {}),
        "versions": versions(),
    }


def versions() -> dict[str, str]:
    """Of what makes the report."""
    found = {"counterpoise": __version__, "python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "unknown"
    return found


def flat(configuration: Any, name: str = "") -> dict[str, Any]:
    """Nested settings by dotted names."""
    if not isinstance(configuration, dict):
        return {name: configuration}
    found: dict[str, Any] = {}
    for key, value in configuration.items():
        found |= flat(value, f"{name}.{key}" if name else key)
    return found


def method_name(model: DebiasedRecommender) -> str:
    """The method whose parts and words a model has, whatever its numbers are; `OWN` where none of ours has them."""
    words = _words(model.configuration_)
    names = [name for name, method in METHODS.items() if _words(method.build().to_config()) == words]
    return names[0] if len(names) == 1 else OWN


def _words(configuration: dict[str, Any]) -> dict[str, str]:
    parts = {name: value for name, value in configuration.items() if name != "training"}
    return {name: value for name, value in flat(parts).items() if isinstance(value, str)}


def _method(material: Material) -> dict[str, Any]:
    """The method by its name, as far as the run knows it."""
    model = material.model
    asked = material.configuration.get("method")
    name = method_name(model) if asked is None else canonical_name(asked)
    known = METHODS.get(name)
    keys = ("title", "about", "formula", "citation")
    words = {key: "" if known is None else getattr(known, key) for key in keys}
    parts = {"weights": type(model.weights).__name__, "imputation": type(model.imputation).__name__, "risk": model.risk}
    return {"name": name} | words | parts
