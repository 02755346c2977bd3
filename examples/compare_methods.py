"""Which method is best on a log whose truth is known? Ranking, calibration and the bias of the weights, side by side.

python examples/compare_methods.py [METHOD ...]
"""

from __future__ import annotations

import sys

import counterpoise as cp

DEFAULT = ("mf", "ips", "dr-jl", "skb-ips", "skb-dr", "counterpoise")


def main(methods: list[str]) -> None:
    """One line a method, for one simulated world. `counterpoise bench table` does this with seeds and tests."""
    world = cp.simulate(n_users=150, n_items=120, density=0.08, seed=0)
    data = world.dataset
    print(f"{'method':<13} {'AUC':>6} {'NDCG@5':>7} {'log loss':>9} {'bias of the weights':>20} {'effective rows':>15}")
    for name in methods:
        model = cp.make(name, seed=0).fit(data.train, probe=data.probe)
        found = cp.evaluate(model, data.test, bootstrap=0)
        bias = world.selection_bias(model, model.ratio_)  # of the mean error; 0 is right
        rows = model.facts_["weights"]["effective_sample_size"]
        print(f"{name:<13} {found.auc:6.3f} {found.ndcg:7.3f} {found.log_loss:9.3f} {bias:20.1%} {rows:15,.0f}")


if __name__ == "__main__":
    main(sys.argv[1:] or list(DEFAULT))
