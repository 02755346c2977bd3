"""`counterpoise demo`: a simulated log with known preferences, three recommenders, and how far the log misleads."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from counterpoise.cli.console import print_line, progress_bar, show_frame, show_json, show_table
from counterpoise.cli.options import OutputOptions, option, with_options
from counterpoise.cli.report import report_beside

if TYPE_CHECKING:
    from counterpoise.data.simulation import SimulatedData
    from counterpoise.recommender import DebiasedRecommender
    from counterpoise.runs import FitConfig
    from counterpoise.training.events import Progress


@with_options
def demo(
    output: OutputOptions,
    out: Annotated[Path, option("Save the run in this folder.", metavar="FOLDER", panel="Output")] = Path("runs/demo"),
    seed: Annotated[int, option("Begin all random draws from this number.", metavar="NUMBER", panel="Data")] = 0,
) -> None:
    """Simulate a biased log with a known truth, fit a recommender, and see how far the log misleads.

    For example:
        counterpoise demo
        counterpoise demo --seed 1 --out runs/demo-1
    """
    from counterpoise.evaluation.metrics import EMPTY_USERS
    from counterpoise.storage import check_folder

    check_folder(out)
    with progress_bar("training", output.visible) as progress:
        result = run_demo(seed, progress)
    result.model.save(out, demo=result.to_dict(), fit=result.configuration.model_dump())
    page = report_beside(out, result.model, result.data.dataset, result.baseline, visible=output.visible)
    if output.as_json:
        show_json({"run": str(out), "report": str(page), **result.to_dict()})
    if not output.visible:
        return
    rates = result.label_rates
    print_line(f"A simulated log: {result.data.dataset.train}")
    print_line(
        f"Users rate what they like: {rates['log']:.0%} of the logged labels are positive, "
        f"but only {rates['all pairs']:.0%} of all pairs are ({rates['probe']:.0%} in a small uniform probe)."
    )
    show_table(
        ["predictor", "loss on the log", "loss on all pairs (truth)", "AUC, unbiased test", "NDCG@5, unbiased test"],
        [list(row.values()) for row in result.rows],
    )
    print_line(
        "mf learns from the log as it is. skb-ips weights the log so that it looks more like all pairs. counterpoise,\n"
        "the default, also models which pairs are observed and learns from the probe. No side features are used.\n"
        "The loss on the log (first column) does not tell which model is best (the other columns).\n"
        f"In NDCG, {EMPTY_USERS}.\n"
    )
    print_line("Recommendations of counterpoise for five users:")
    show_frame(result.model.recommend(list(range(5)), k=3))
    print_line(
        f"\nSaved in {out}; open {page} in a browser. Try next:\n"
        f"  counterpoise recommend {out} --k 10 --out recs.csv\n"
        "  counterpoise fit ratings.csv --threshold 4 --out runs/mine     (columns user_id,item_id,rating)\n"
        "  counterpoise datasets      counterpoise methods      counterpoise --help"
    )


@dataclass(frozen=True)
class Demo:
    """The results of the demonstration."""

    data: SimulatedData
    model: DebiasedRecommender  # of the default method
    baseline: DebiasedRecommender  # matrix factorisation without weights
    configuration: FitConfig  # of the model, so that the fit can be repeated
    rows: list[dict[str, Any]]  # by predictor: its losses, and its ranking on the unbiased test
    label_rates: dict[str, float]  # share of positive labels among the logged pairs, the probe, and all pairs

    def to_dict(self) -> dict[str, Any]:
        """JSON-able."""
        return {"label_rates": self.label_rates, "rows": self.rows}


def run_demo(seed: int = 0, progress: Progress | None = None) -> Demo:
    """Simulate, fit matrix factorisation, a balanced method and the default, and compare them with the truth."""
    import numpy as np

    from counterpoise.data.simulation import simulate
    from counterpoise.evaluation.evaluate import evaluate
    from counterpoise.methods import DEFAULT_METHOD, make
    from counterpoise.runs import FitConfig
    from counterpoise.training.events import by_epoch

    simulated = simulate(seed=seed)
    data = simulated.dataset
    assert data.probe is not None
    assert data.test is not None
    baseline = make("mf", seed=seed).fit(data.train)
    balanced = make("skb-ips", seed=seed).fit(data.train)
    name = DEFAULT_METHOD["ratings"]
    configuration = FitConfig(data="simulated", method=name, seed=seed, settings={"side_features": False})  # as others
    model = make(name, seed=seed, **configuration.settings)
    model.fit(data.train, probe=data.probe, callback=by_epoch(progress))
    rate = float(data.train.labels.mean())
    predictors: dict[str, Any] = {
        "the log's mean label": lambda users, items: np.full(np.shape(users), rate),
        "mf": baseline.predict,
        "skb-ips": balanced.predict,
        name: model.predict,
        "the true preference": simulated.preference,
    }
    rows = []
    for name, predictor in predictors.items():
        on_log, on_test = (evaluate(predictor, log, bootstrap=0) for log in (data.train, data.test))
        losses = {"loss_on_log": on_log.log_loss, "loss_on_all_pairs": simulated.ideal_risk(predictor)}
        rows.append({"predictor": name, **losses, "auc": on_test.auc, "ndcg": on_test.ndcg})
    rates = {"log": rate, "probe": float(data.probe.labels.mean()), "all pairs": simulated.labels.mean()}
    return Demo(simulated, model, baseline, configuration, rows, rates)
