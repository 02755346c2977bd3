"""How good is the model? Learning curve, metrics with intervals, against plain MF, calibration, what silence said."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from counterpoise.calibration import calibration_bins, calibration_error
from counterpoise.evaluation import NAMES, Difference, binary_labels, paired_differences, resampled_evaluation
from counterpoise.recommender import DebiasedRecommender
from counterpoise.reports.material import Material

CURVE_POINTS = 150
LOWER_IS_BETTER = ("mse", "mae", "log_loss")
VOICES = ("user", "item", "pair")


def model_facts(material: Material) -> dict[str, Any]:
    """JSON-able."""
    model = material.model
    return {
        "learning": learning_curve(model.history_.to_dict()),
        "plain_learning": None if material.plain is None else learning_curve(material.plain.history_.to_dict()),
        "risk": model.facts_["risk"],
        "error_on_log": model.facts_["error_on_log"],
        "imputation": _plain_numbers(model.facts_["imputation"]),
        "voices": _voices(model),
        "grades": model.facts_.get("grades"),
        "in_vain": model.facts_.get("in_vain", {}),
        "truth": material.manifest.get("truth"),
        "demo": material.manifest.get("demo"),
        **_on_test(material),
    }


def learning_curve(history: Mapping[str, Any]) -> dict[str, Any]:
    """Loss and held-out risk by epoch, at most `CURVE_POINTS` of them, the last one included."""
    epochs = len(history["loss"])
    shown = np.unique(np.linspace(0, epochs - 1, min(epochs, CURVE_POINTS)).round().astype(int))
    held_out = history["held_out_risk"]
    return {
        "epochs": epochs,
        "best_epoch": history["best_epoch"],
        "seconds": history["seconds"],
        "loss": [[int(epoch) + 1, history["loss"][epoch]] for epoch in shown],
        "held_out_risk": [[int(epoch) + 1, held_out[epoch]] for epoch in shown] if held_out else [],
    }


def _on_test(material: Material) -> dict[str, Any]:
    """Metrics of the model and of plain MF on the test, their paired differences, and calibration."""
    log = material.test
    if log is None:
        return {"evaluation": material.manifest.get("evaluation"), "metrics": [], "test": None, "calibration": {}}
    models = {"run": material.model} | ({"plain": material.plain} if material.plain is not None else {})
    asked = {name: model.predict_log(log, unknown=material.unknown) for name, model in models.items()}
    scores = {name: values.astype(np.float64) for name, values in asked.items()}
    k, rule = material.k, material.empty_users
    found = {name: resampled_evaluation(values, log, k, rule) for name, values in scores.items()}
    differences = paired_differences(found["run"], found["plain"]) if "plain" in found else {}
    evaluations = {name: resampled.evaluation.to_dict() for name, resampled in found.items()}
    labels = binary_labels(log)
    return {
        "test": {"name": material.test_name, "rows": len(log), "users": evaluations["run"]["n_users"]},
        "evaluation": evaluations["run"],
        "metrics": [metric_row(name, evaluations, differences.get(name)) for name in NAMES],
        "calibration": {name: calibration(labels, values) for name, values in scores.items()},
    }


def metric_row(name: str, evaluations: Mapping[str, Any], difference: Difference | None) -> dict[str, Any]:
    """One metric of the run and of plain MF with intervals, and what the difference says."""
    first = evaluations["run"]
    row = {"metric": name, "name": NAMES[name].format(k=first["k"]), "lower_is_better": name in LOWER_IS_BETTER}
    for key, facts in evaluations.items():
        row[key] = {"value": facts[name], "interval": facts["intervals"].get(name)}
    if difference is not None:
        row |= {"difference": difference._asdict(), "verdict": verdict(name, difference)}
    return row


def verdict(name: str, difference: Difference) -> str:
    """better, worse, or not clear: by whether the interval of the difference leaves out 0."""
    if math.isnan(difference.low) or difference.low <= 0 <= difference.high:
        return "not clear"
    better = (difference.value > 0) != (name in LOWER_IS_BETTER)
    return "better" if better else "worse"


def calibration(labels: ArrayLike, probabilities: ArrayLike) -> dict[str, Any]:
    """JSON-able: bins of rows by prediction, what was predicted against what came, and the calibration error."""
    bins = calibration_bins(probabilities, labels)
    return {"bins": [one.to_dict() for one in bins], "error": calibration_error(bins)}


def _voices(model: DebiasedRecommender) -> dict[str, float] | None:
    """What exposure says in the prediction, in log odds for a standard deviation, where the model is told of it."""
    values = getattr(model.scorer_, "voices", None)
    return None if values is None else dict(zip(VOICES, values.cpu().tolist(), strict=True))


def _plain_numbers(facts: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in facts.items() if isinstance(value, int | float | str)}
