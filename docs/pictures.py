"""Draw the figures of the README, docs/concepts.md and docs/plots.md: `python docs/pictures.py [FOLDER]`.

Each function draws one figure and returns the numbers that the page quotes.
"""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

import numpy as np
import torch

import counterpoise as cp
from counterpoise import plots
from counterpoise.balance.covariate_balance import imbalances
from counterpoise.balance.estimators import balance_frontier
from counterpoise.bench import bias
from counterpoise.evaluation.metrics import log_losses
from counterpoise.plots.style import BLUE, COLOURS, GREY, ORANGE, panels
from counterpoise.risks import dr

WIDE = 6.4
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


def propensity(world: cp.SimulatedData, out: Path) -> Facts:
    """The propensity by preference, and the distribution of the inverse propensities."""
    log = world.dataset.train
    seen, liked = np.asarray(world.propensity).ravel(), np.asarray(world.preference).ravel()
    edges = np.linspace(0, 1, 11)
    place = np.digitize(liked, edges[1:-1])
    means = [seen[place == bin].mean() for bin in range(10)]
    weights = 1 / world.propensity[log.users, log.items]
    ratio = weights * len(log) / (log.shape[0] * log.shape[1])
    with panels(1, 2, WIDE) as (figure, (left, right)):
        left.bar((edges[:-1] + edges[1:]) / 2, means, width=0.08, color=BLUE)
        left.set(xlabel="probability that the user likes the item", ylabel="mean propensity")
        sizes = np.geomspace(ratio.min(), ratio.max(), 40)
        right.hist(ratio, sizes, color=BLUE)
        right.set_xscale("log")
        right.set(xlabel="inverse propensity / its mean over all pairs", ylabel="logged pairs")
    plots.save(figure, out / "propensity.svg")
    rate = float(log.labels.mean())

    def constant(users: np.ndarray, items: np.ndarray) -> np.ndarray:
        return np.full(np.shape(users), rate)

    size = ratio.sum() ** 2 / (ratio**2).sum()
    return {
        "most liked": means[-1],
        "least liked": means[0],
        "naive": world.selection_bias(constant),
        "weighted": world.selection_bias(constant, ratio),
        "rows": float(len(log)),
        "effective": float(size),
    }


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


def doubly_robust(world: cp.SimulatedData, out: Path) -> Facts:
    """Double robustness: bias of the DR risk with correct and wrong weights and imputations."""
    log = world.dataset.train
    users, items = (axis.ravel() for axis in np.indices(log.shape))
    prediction = np.full(users.size, float(log.labels.mean()))
    taste, seen = world.preference(users, items), world.propensity(users, items)
    errors = taste * log_losses(1.0, prediction) + (1 - taste) * log_losses(0.0, prediction)  # expected errors
    right_ratio, wrong_ratio = seen.mean() / seen, np.ones(users.size)
    wrong_errors = log_losses(np.full(users.size, log.labels.mean()), prediction)
    found, rng = {}, np.random.default_rng(0)
    draws = [rng.random(users.size) < seen for _ in range(20)]
    for name, ratio, imputed in (
        ("neither right", wrong_ratio, wrong_errors),
        ("weights right", right_ratio, wrong_errors),
        ("imputation right", wrong_ratio, errors),
        ("both right", right_ratio, errors),
    ):
        parts = [(errors[drawn], ratio[drawn], imputed[drawn]) for drawn in draws]
        estimates = [float(dr(*map(torch.from_numpy, (*part, imputed)))) for part in parts]
        found[name] = np.array(estimates) / errors.mean() - 1
    with panels(1, 1, 4.2, 1.9) as (figure, (axes,)):
        axes.boxplot(list(found.values()), orientation="horizontal", widths=0.5, medianprops={"color": BLUE})
        axes.set_yticks(range(1, 5), list(found))
        axes.axvline(0, color=GREY, linewidth=0.8)
        axes.set(xlabel="estimate / ideal - 1, twenty draws of the log", ylim=(4.6, 0.4))
    plots.save(figure, out / "doubly-robust.svg")
    return {name: float(values.mean()) for name, values in found.items()}


def kernels(out: Path) -> Facts:
    """Moment against kernel balancing: a sample that avoids the middle of the distribution."""
    rng = np.random.default_rng(0)
    population, drawn = rng.normal(size=(4000, 1)), rng.normal(size=(8000, 1))
    observed = drawn[rng.random(8000) < 0.05 + 0.9 / (1 + np.exp(4 - 6 * np.abs(drawn[:, 0] - 0.2)))]
    weights = {
        "no weights": np.full(len(observed), 1 / len(observed)),
        "means": cp.MomentBalancer(1).fit(observed, population).weights_,
        "kernels": cp.KernelBalancer(30, random_state=0).fit(observed, population).weights_,
    }
    bins = np.linspace(-3.5, 3.5, 43)
    with panels(1, 3, WIDE, 2.0) as (figure, places):
        for axes, (name, mass), colour in zip(places, weights.items(), (ORANGE, COLOURS[2], BLUE), strict=True):
            axes.hist(population[:, 0], bins, density=True, color=GREY, alpha=0.5)
            axes.hist(observed[:, 0], bins, weights=mass, density=True, histtype="step", color=colour, linewidth=1.4)
            axes.set(title=name, xlabel="x", ylim=(0, 0.75))
    plots.save(figure, out / "kernels.svg")
    truth = float((population**2).mean())
    return {name: float(mass @ observed[:, 0] ** 2) / truth - 1 for name, mass in weights.items()}


def certificate(out: Path) -> Facts:
    """The certificate: primal objective and lower bound by pass, and balance against effective sample size."""
    rng = np.random.default_rng(1)
    population, drawn = rng.normal(size=(3000, 3)), rng.normal(size=(6000, 3))
    observed = drawn[rng.random(6000) < 1 / (1 + np.exp(2 - 1.5 * drawn[:, 0]))]
    passes, upper, gaps = [], [], []
    for limit in range(2, 40):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", cp.ConvergenceWarning)
            result = cp.KernelBalancer(30, random_state=0, max_passes=limit).fit(observed, population).result_
        if not passes or result.passes > passes[-1]:
            passes, upper, gaps = [*passes, result.passes], [*upper, result.objective], [*gaps, result.gap]
        if result.status == "solved":
            break
    lower = np.array(upper) - np.array(gaps)
    fitted = cp.KernelBalancer(30, random_state=0).fit(observed, population)
    points = balance_frontier(fitted)
    with panels(1, 2, WIDE) as (figure, (left, right)):
        left.plot(passes, upper, marker="o", markersize=3, color=ORANGE, label="objective of these weights")
        left.plot(passes, lower, marker="o", markersize=3, color=BLUE, label="no weights can do better")
        left.set(xlabel="passes over the rows", ylabel="objective", ylim=(result.objective - 1, result.objective + 3))
        left.legend()
        right.plot(
            [p.rms_imbalance for p in points], [p.effective_sample_size for p in points], marker="o", markersize=3
        )
        right.axhline(points[0].rows, color=GREY, linestyle=":", linewidth=0.8)
        right.set(xlabel="imbalance left, root mean square, SD", ylabel="effective sample size", ylim=(0, None))
    plots.save(figure, out / "certificate.svg")
    return {"passes": float(result.passes), "gap": result.gap, "relaxed": float(fitted.result_.relaxed.sum())}


def gallery(world: cp.SimulatedData, balanced: cp.DebiasedRecommender, out: Path) -> Facts:
    """One figure of each kind for docs/plots.md."""
    data, rng = world.dataset, np.random.default_rng(0)
    population, drawn = rng.normal(size=(2000, 4)), rng.normal(size=(3000, 4))
    observed = drawn[rng.random(3000) < 1 / (1 + np.exp(-drawn[:, 0] - 0.5 * drawn[:, 1]))]
    balancer = cp.KernelBalancer(15, strength=0.5, random_state=0).fit(observed, population)
    models = {
        "mf": cp.make("mf", patience=15, seed=0).fit(data.train),
        "skb-ips": balanced,
        "counterpoise": cp.make("counterpoise", seed=0).fit(data.train, probe=data.probe),
    }
    names = ("naive", "ips-true", "snips-true", "snips-naive-bayes", "snips-logistic", "skb-ips-side")
    pictures = {
        "weights": plots.weight_histogram(balanced),
        "dual-values": plots.dual_values(balancer),
        "frontier": plots.balance_frontier(cp.KernelBalancer(15, random_state=0).fit(observed, population)),
        "path": plots.balance_path(balanced),
        "curves": plots.learning_curves({name: models[name] for name in ("mf", "skb-ips")}),
        "calibration": plots.calibration(models, data.test),
        "risks": plots.risk_estimates(bias.study(estimators=names, matrices=("rotate", "skew", "crs"), repeats=3)),
    }
    for name, figure in pictures.items():
        plots.save(figure, out / f"gallery-{name}.svg")
    return {"pictures": float(len(pictures))}


def draw(out: Path) -> dict[str, Facts]:
    """Draw all figures into a folder; returns the numbers of each."""
    out.mkdir(parents=True, exist_ok=True)
    world = cp.simulate(seed=0)
    balanced = cp.make("skb-ips", strength="exact", seed=0).fit(world.dataset.train, probe=world.dataset.probe)
    return {
        "overview": overview(world, balanced, out),
        "selection": selection(world, out),
        "propensity": propensity(world, out),
        "balancing": balancing(world, balanced, out),
        "doubly robust": doubly_robust(world, out),
        "kernels": kernels(out),
        "certificate": certificate(out),
        "gallery": gallery(world, balanced, out),
    }


if __name__ == "__main__":
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent / "figures"
    for name, facts in draw(folder).items():
        print(name, {key: float(f"{value:.4g}") for key, value in facts.items()})
