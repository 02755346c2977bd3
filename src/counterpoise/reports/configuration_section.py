"""The section on configuration: what decides the fit, and what it ran on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from counterpoise.reports.blocks import Column, Figure, Section, Table, Text

Facts = Mapping[str, Any]


def configuration_section(facts: Facts) -> Section:
    """What decides the fit, and what it ran on."""
    found, method = facts["configuration"], facts["method"]
    about = {
        "method": method["name"],
        "about": method["about"],
        "formula": method["formula"],
        "citation": method["citation"],
        "seed": str(found["seed"]),
        "seconds of the fit": f"{found['fit_seconds']:.1f}",
        "fitted with counterpoise": found["fit_version"],
    }
    if found["plain_seconds"] is not None:
        about["plain MF"] = f"{found['plain_epochs']} epochs in {found['plain_seconds']:.1f} s"
    pairs = [Column("what"), Column("value")]
    blocks: list[Text | Table | Figure] = [
        Table("The fit", pairs, [[k, v] for k, v in about.items() if v], sortable=False)
    ]
    folded = {"Asked for": "fit", "Settings of every part": "settings", "The data": "dataset"}
    blocks += [Table(words, pairs, _shown(found[key]), True) for words, key in folded.items() if found[key]]
    blocks.append(Table("Versions that made this report", pairs, _shown(found["versions"]), sortable=False))
    return Section("configuration", "Configuration", blocks)


def _shown(values: Facts) -> list[list[Any]]:
    return [[name, "not set" if value is None else str(value)] for name, value in values.items()]
