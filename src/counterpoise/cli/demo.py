"""The demonstration: a simulated log with a known truth, recommenders trained on it, and how far the log misleads."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from counterpoise.data.simulation import SimulatedData, simulate
from counterpoise.evaluation.evaluate import evaluate
from counterpoise.methods import make
from counterpoise.recommender import DebiasedRecommender
from counterpoise.runs import FitConfig
from counterpoise.training.loop import Progress


@dataclass(frozen=True)
class Row:
    """One predictor: its loss as the log shows it and as it is, and its ranking on the unbiased test."""

    predictor: str
    loss_on_log: float
    loss_on_all_pairs: float
    auc: float
    ndcg: float


@dataclass(frozen=True)
class Demo:
    """What the demonstration found."""

    world: SimulatedData
    model: DebiasedRecommender  # of the default method
    plain: DebiasedRecommender  # matrix factorisation without weights
    configuration: FitConfig  # of the model, for those who repeat it
    rows: list[Row]
    label_rates: dict[str, float]  # positive labels among the logged pairs, the probe, and all pairs

    def to_dict(self) -> dict[str, Any]:
        """JSON-able."""
        return {"label_rates": self.label_rates, "rows": [asdict(row) for row in self.rows]}


def run_demo(seed: int = 0, progress: Progress | None = None) -> Demo:
    """Simulate, fit plain matrix factorisation, a balanced method and the default, and compare with the truth."""
    world = simulate(seed=seed)
    data = world.dataset
    plain = make("mf", seed=seed).fit(data.train)
    balanced = make("skb-ips", seed=seed, prior="naive-bayes").fit(data.train, probe=data.probe)
    configuration = FitConfig(data="simulated", seed=seed, settings={"side_features": False})  # as the others
    model = make(configuration.method, seed=seed, **configuration.settings)
    model.fit(data.train, probe=data.probe, progress=progress)
    rate = float(data.train.labels.mean())
    predictors: dict[str, Any] = {
        "the log's mean label": lambda users, items: np.full(np.shape(users), rate),
        "mf": plain.predict,
        "skb-ips": balanced.predict,
        configuration.method: model.predict,
        "the true preference": world.preference,
    }
    rates = {"log": data.train, "probe": data.probe}
    return Demo(
        world=world,
        model=model,
        plain=plain,
        configuration=configuration,
        rows=[_row(name, predictor, world) for name, predictor in predictors.items()],
        label_rates={name: float(log.labels.mean()) for name, log in rates.items() if log is not None}
        | {"all pairs": world.labels.mean()},
    )


def _row(name: str, predictor: Any, world: SimulatedData) -> Row:
    on_log = evaluate(predictor, world.dataset.train, bootstrap=0)
    assert world.dataset.test is not None
    on_test = evaluate(predictor, world.dataset.test, bootstrap=0)
    return Row(name, on_log.log_loss, world.ideal_risk(predictor), on_test.auc, on_test.ndcg)
