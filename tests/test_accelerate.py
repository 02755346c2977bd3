"""Steps that are replayed are the steps that would be made."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch

import counterpoise as cp
from counterpoise import Dataset
from counterpoise.accelerate import CudaGraphLearner, is_replayable, with_cuda_graphs
from counterpoise.balance.functions import KernelFunctions
from counterpoise.training.loop import Training
from counterpoise.training.optimizer import Adam, optimizers_of
from counterpoise.weights.balancing import Balancing
from counterpoise.weights.base import ConstantWeights

ON_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
RECORDED = ("mf", "ips", "eib", "dr-jl", "mnar", "counterpoise", "skb-ips", "akb-dr", "d-ips", "d-dr", "cdr")
NOT_RECORDED = {  # parts with a number that the host must know, or a regression in every step
    *("ips-v2", "dr-v2", "sdr", "multi-ips", "multi-dr", "escm2-ips", "escm2-dr"),  # joint propensities
    *("asips", "tdr", "tdr-jl", "mr"),  # tri-training, targeted and multiply robust imputations
    *("dce-dr", "dce-tdr"),  # labels that are calibrated on the host
    *("cause", "kd-bridge", "kd-refine", "autodebias"),  # what learns from the rows of a probe
}


def learner_of(model: cp.DebiasedRecommender, dataset: Dataset) -> Any:
    return model._learner(model._context(dataset.train, dataset.probe))


def test_adam_counts_steps_on_the_device_too() -> None:
    """Also with a rate, and parameters without axes."""
    start = [torch.linspace(-1, 1, 12).view(4, 3), torch.tensor(0.5), torch.linspace(0, 2, 3)]
    found = []
    for on_device in (False, True):
        own = [tensor.clone().requires_grad_() for tensor in start]
        optimizer = Adam(own, 0.05)
        optimizer.steps = torch.zeros((), dtype=torch.float64) if on_device else 0
        for rate in (1.0, 0.5, 0.25):
            loss = own[0].square().sum() + own[1].cos() + (own[2] ** 4).sum()
            optimizer.step(loss, torch.tensor(rate, dtype=torch.float64) if on_device else rate)
        assert int(optimizer.steps) == 3
        found.append(torch.cat([tensor.detach().flatten() for tensor in own]))
    assert torch.allclose(found[0], found[1], atol=1e-6)
    assert not torch.allclose(found[0], torch.cat([tensor.flatten() for tensor in start]), atol=0.01)


@pytest.mark.parametrize("method", [name for name, m in cp.METHODS.items() if m.feedback[0] == "ratings"])
def test_steps_of_replayable_parts_alone_are_recorded(
    method: str, dataset: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    learner, replayable = learner_of(cp.make(method, epochs=1), dataset), method not in NOT_RECORDED
    assert is_replayable(learner) == replayable
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert isinstance(with_cuda_graphs(learner, Training()), CudaGraphLearner) == replayable
    assert with_cuda_graphs(learner, Training(graph=False)) is learner


@pytest.mark.parametrize(
    "settings",
    [
        {"weights": Balancing(solver="gradient", features="side")},
        {"weights": cp.StabilizedPropensity()},
        {"imputation": cp.TriTraining(), "risk": "dr"},
        {"imputation": cp.Targeted(), "risk": "dr", "ensemble": cp.Ensemble()},
    ],
    ids=["weight model", "joint propensity", "tri-training", "ensemble"],
)
def test_one_part_that_is_not_replayable_is_enough(settings: dict[str, Any], dataset: Dataset) -> None:
    model = cp.DebiasedRecommender(training=Training(epochs=1, device="cpu"))
    assert is_replayable(learner_of(model, dataset))
    assert not is_replayable(learner_of(model.set_params(**settings), dataset))


@pytest.mark.parametrize(("method", "replayable"), [("popularity", True), ("wmf", False), ("expomf", False)])
def test_what_takes_no_steps_is_not_recorded(method: str, replayable: bool) -> None:
    """Items are counted in one step, whatever the device; least squares are solved on the host."""
    clicks = cp.FeedbackLog.from_arrays([0, 1, 2, 2], [0, 1, 0, 1])
    model = cp.make(method, feedback="clicks") if method == "popularity" else cp.make(method, dim=2)
    assert is_replayable(model._learner(model._context(clicks, None))) == replayable


def test_a_part_of_the_users_own_is_not_recorded(dataset: Dataset) -> None:
    class Own(ConstantWeights):
        """May do anything in a step."""

    learner = learner_of(cp.make("mf", epochs=1), dataset)
    learner.weights.__class__ = Own
    assert not is_replayable(learner)


def test_on_a_cpu_nothing_is_recorded_and_nothing_changes(dataset: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = {"epochs": 6, "dim": 4, "device": "cpu"}
    alone = cp.make("counterpoise", graph=False, **settings).fit(dataset.train, probe=dataset.probe)
    monkeypatch.setattr("counterpoise.accelerate.torch.cuda.is_available", lambda: True)
    model = cp.make("counterpoise", **settings).fit(dataset.train, probe=dataset.probe)
    assert np.array_equal(model.predict_log(dataset.test), alone.predict_log(dataset.test))


def test_every_optimiser_of_a_learner_is_found_once(dataset: Dataset) -> None:
    model = cp.make("dr-jl", ensemble=cp.Ensemble())
    found = list(optimizers_of(CudaGraphLearner(learner_of(model, dataset))))
    assert len(found) == len({id(one) for one in found}) == 3  # two predictors and the imputation


def test_weights_that_are_solved_again_keep_their_memory(dataset: Dataset) -> None:
    """A recorded step reads them there."""
    weights = Balancing(KernelFunctions(n=3, select="adaptive"), strength=0.3, features="side", refresh=1)
    learner = learner_of(cp.DebiasedRecommender(weights, training=Training(epochs=3, device="cpu")), dataset)
    place, seen = learner.weights.ratio.data_ptr(), []
    for epoch in (1, 2, 3):
        learner.start_epoch(epoch)
        learner.step(learner.log.whole(), 1.0)
        seen.append(learner.weights.ratio.clone())
        assert learner.weights.ratio.data_ptr() == place
    assert not torch.equal(seen[0], seen[2])


@pytest.mark.cpu
@pytest.mark.parametrize(("method", "epochs"), [("mf", [1, 2]), ("akb-dr", [1]), ("counterpoise", [1, 2, 7])])
def test_a_step_that_is_made_of_something_else_is_recorded_again(
    method: str, epochs: list[int], dataset: Dataset
) -> None:
    """Priors are estimated from the second of twelve epochs on, and the second predictor starts with the seventh."""
    learner, recorded, found = CudaGraphLearner(learner_of(cp.make(method, epochs=12), dataset)), object(), []
    main = getattr(learner.learner, "main", learner.learner)
    before: Any = None
    for epoch in range(1, 13):
        learner.graph = recorded
        learner.start_epoch(epoch)
        found += [epoch] * (learner.graph is None)
        now = [(one._halves.data_ptr(), *one.row_precisions) for one in optimizers_of(learner)]  # what a step reads
        assert now == before or learner.graph is None
        before = now
        learner.learner.step(main.log.whole(), 1.0)
    assert found == epochs


@ON_GPU
@pytest.mark.parametrize("method", RECORDED)
@pytest.mark.parametrize("settings", [{}, {"batch_size": 100, "pairs": 2}])
def test_replayed_steps_end_where_steps_end(method: str, settings: dict[str, int], dataset: Dataset) -> None:
    graphs = []
    own = CudaGraphLearner._record

    def record(self: CudaGraphLearner, *arguments: object) -> None:
        own(self, *arguments)  # type: ignore[arg-type]
        graphs.append(self.graph)

    given = {"epochs": 12, "dim": 4, "device": "cuda"} | settings | ({"refresh": 5} if method == "akb-dr" else {})
    eager = cp.make(method, graph=False, **given).fit(dataset.train, probe=dataset.probe)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CudaGraphLearner, "_record", record)
        model = cp.make(method, **given).fit(dataset.train, probe=dataset.probe)
    assert graphs
    assert None not in graphs
    assert np.allclose(model.predict_log(dataset.test), eager.predict_log(dataset.test), atol=1e-4)
    assert np.allclose(model.history_.loss, eager.history_.loss, rtol=1e-4)


@ON_GPU
def test_a_step_that_cannot_be_recorded_is_made(dataset: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    from counterpoise.training.learner import Learner

    original = copy.copy(Learner.step)

    def asking(self: Learner, batch: object, rate: object) -> torch.Tensor:
        loss = original(self, batch, rate)  # type: ignore[arg-type]
        loss.item()  # the host asks: not allowed in a graph
        return loss

    expected = cp.make("mf", epochs=8, device="cuda", graph=False).fit(dataset.train)
    monkeypatch.setattr(Learner, "step", asking)
    model = cp.make("mf", epochs=8, device="cuda").fit(dataset.train)
    assert np.allclose(model.predict_log(dataset.test), expected.predict_log(dataset.test), atol=1e-4)
