"""Draw the figures of the README and the documentation: `python docs/pictures.py [FOLDER]`.

Each function draws one figure and returns the numbers that the pages quote. Backgrounds are transparent and lines and
letters grey, so that figures can be read on light and on dark pages.
"""

from __future__ import annotations

import sys
from pathlib import Path

import matplotlib
import numpy as np

import counterpoise as cp
from counterpoise import plots
from counterpoise.balance.covariate_balance import imbalances
from counterpoise.plots.style import BLUE, GREY, ORANGE, panels

WIDE = 6.4
INK = "#7c8591"  # is read on white and on the dark page
TRANSPARENT = {f"{part}.facecolor": "none" for part in ("figure", "axes", "savefig")}
BOTH_SCHEMES = TRANSPARENT | dict.fromkeys(
    ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"), INK
)
Facts = dict[str, float]


def selection(world: cp.SimulatedData, out: Path) -> Facts:
    """Selection bias: preferences and label rates of logged pairs against all pairs."""
    log, everything = world.dataset.train, np.asarray(world.preference).ravel()
    rates = {"log": float(log.labels.mean()), "probe": float(world.dataset.probe.labels.mean())}
    rates["all pairs"] = world.labels.mean()
    with panels(1, 2, WIDE) as (figure, (left, right)):
        bins = np.linspace(0, 1, 26)
        left.hist(everything, bins, density=True, color=GREY, alpha=0.5, label="all pairs")
        logged = world.preference[log.users, log.items]
        left.hist(logged, bins, density=True, histtype="step", color=ORANGE, linewidth=1.5, label="logged pairs")
        left.set(xlabel="probability that the user likes the item", ylabel="density")
        left.legend(loc="upper left")
        right.barh(range(3), list(rates.values()), color=[ORANGE, BLUE, GREY], height=0.6)
        right.set_yticks(range(3), list(rates))
        right.set(xlabel="share of positive labels", xlim=(0, 1), ylim=(2.5, -0.5))
    plots.save(figure, out / "selection.svg")
    return rates


def overview(world: cp.SimulatedData, model: cp.DebiasedRecommender, out: Path) -> Facts:
    """The figure of the README: logged pairs, all pairs, and the log with balancing weights."""
    log, bins = world.dataset.train, np.linspace(0, 1, 26)
    logged, everything = world.preference[log.users, log.items], np.asarray(world.preference).ravel()
    rows = imbalances(model, log)
    places = range(len(rows), 0, -1)
    with panels(1, 2, WIDE) as (figure, (left, right)):
        left.hist(everything, bins, density=True, color=GREY, alpha=0.5, label="all pairs")
        left.hist(logged, bins, density=True, histtype="step", color=ORANGE, linewidth=1.4, label="the log")
        weights = {"weights": model.ratio_, "histtype": "step", "color": BLUE, "linewidth": 1.4}
        left.hist(logged, bins, density=True, label="the log, balanced", **weights)
        left.set(xlabel="probability that the user likes the item", ylabel="density", ylim=(0, 4))
        left.legend(loc="upper center")
        right.hlines(places, [row.before for row in rows], [row.after for row in rows], color=GREY, linewidth=0.6)
        right.scatter([row.before for row in rows], places, s=16, facecolors="white", edgecolors=ORANGE, zorder=2)
        right.scatter([row.after for row in rows], places, s=14, color=BLUE, zorder=3)
        right.set_yticks(places, [row.name for row in rows])
        right.set(xlabel="imbalance, in standard deviations", xlim=(0, None))
    plots.save(figure, out / "overview.svg")
    return {
        "all pairs": float(everything.mean()),
        "log": float(logged.mean()),
        "balanced": float(np.average(logged, weights=model.ratio_)),
    }


def balancing(world: cp.SimulatedData, model: cp.DebiasedRecommender, out: Path) -> Facts:
    """The love plot of balancing weights, their effective sample size and the bias that is left."""
    data = world.dataset
    plots.save(plots.love_plot(model, data.train), out / "balancing.svg")
    facts = model.facts_["weights"]
    return {
        "before": facts["held_out_before"]["rms_sd"],
        "after": facts["held_out_after"]["rms_sd"],
        "effective": facts["effective_sample_size"],
        "rows": float(len(data.train)),
        "naive": world.selection_bias(model),
        "weighted": world.selection_bias(model, model.ratio_),
    }


def gallery(world: cp.SimulatedData, balanced: cp.DebiasedRecommender, out: Path) -> Facts:
    """Two figures of docs/report.md: what more balance costs, and calibration."""
    data, rng = world.dataset, np.random.default_rng(0)
    population, drawn = rng.normal(size=(2000, 4)), rng.normal(size=(3000, 4))
    observed = drawn[rng.random(3000) < 1 / (1 + np.exp(-drawn[:, 0] - 0.5 * drawn[:, 1]))]
    models = {
        "mf": cp.make("mf", seed=0).fit(data.train),
        "skb-ips": balanced,
        "counterpoise": cp.make("counterpoise", seed=0).fit(data.train, probe=data.probe),
    }
    plots.save(
        plots.balance_frontier(cp.KernelBalancer(15, random_state=0).fit(observed, population)), out / "frontier.svg"
    )
    plots.save(plots.calibration(models, data.test), out / "calibration.svg")
    return {"rows": float(len(observed))}


def draw(out: Path) -> dict[str, Facts]:
    """Draw all figures into a folder; returns the numbers of each."""
    out.mkdir(parents=True, exist_ok=True)
    world = cp.simulate(seed=0)
    balanced = cp.make("skb-ips", strength="exact", seed=0).fit(world.dataset.train, probe=world.dataset.probe)
    with matplotlib.rc_context(BOTH_SCHEMES):
        return {
            "overview": overview(world, balanced, out),
            "selection": selection(world, out),
            "balancing": balancing(world, balanced, out),
            "gallery": gallery(world, balanced, out),
        }


if __name__ == "__main__":
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent / "figures"
    for name, facts in draw(folder).items():
        print(name, {key: float(f"{value:.4g}") for key, value in facts.items()})
