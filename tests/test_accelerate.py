"""Steps that are replayed are the steps that would be made."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch

import counterpoise as cp
from counterpoise import Dataset
from counterpoise.accelerate import CudaGraphLearner, optimizers, with_cuda_graphs
from counterpoise.balance.functions import KernelFunctions
from counterpoise.training.ensemble import init
from counterpoise.training.loop import Training
from counterpoise.training.optimizer import Adam
from counterpoise.weights.balancing import Balancing

ON_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
RECORDED = ("mf", "ips", "eib", "dr-jl", "mnar", "counterpoise", "skb-ips", "akb-dr")


def test_adam_counts_on_the_device_as_it_does_on_the_host() -> None:
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


@pytest.mark.parametrize(("method", "still"), [(name, True) for name in RECORDED] + [("ips-v2", False), ("mr", False)])
def test_only_steps_that_are_the_same_for_every_batch_are_recorded(
    method: str, still: bool, dataset: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = cp.make(method, epochs=1)
    learner = init(model.context(dataset.train, dataset.probe), model.weights, model.risk, model.imputation, False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert isinstance(with_cuda_graphs(learner, Training()), CudaGraphLearner) == still
    assert with_cuda_graphs(learner, Training(graph=False)) is learner


def test_on_a_cpu_nothing_is_recorded_and_nothing_changes(dataset: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = {"epochs": 6, "dim": 4, "device": "cpu"}
    alone = cp.make("counterpoise", graph=False, **settings).fit(dataset.train, probe=dataset.probe)
    monkeypatch.setattr("counterpoise.accelerate.torch.cuda.is_available", lambda: True)
    model = cp.make("counterpoise", **settings).fit(dataset.train, probe=dataset.probe)
    assert np.array_equal(model.predict_log(dataset.test), alone.predict_log(dataset.test))


def test_every_optimiser_of_a_learner_is_found_once(dataset: Dataset) -> None:
    model = cp.make("dr-jl", ensemble=cp.Ensemble())
    learner = init(model.context(dataset.train, dataset.probe), model.weights, model.risk, model.imputation, True)
    found = list(optimizers(CudaGraphLearner(learner)))
    assert len(found) == len({id(one) for one in found}) == 3  # two predictors and the imputation


@pytest.mark.parametrize("moving", [False, True])
def test_weights_that_are_solved_again_stay_where_a_recorded_step_reads_them(moving: bool, dataset: Dataset) -> None:
    features = "embeddings" if moving else "side"
    weights = Balancing(KernelFunctions(n=3, select="adaptive"), features=features, refresh=1, moving=moving)  # type: ignore[arg-type]
    model = cp.DebiasedRecommender(weights, training=Training(epochs=3, device="cpu"))
    learner = init(model.context(dataset.train, dataset.probe), weights, "ips", model.imputation, False)
    place, seen = learner.weights.ratio.data_ptr(), []
    for epoch in (1, 2, 3):
        learner.start_epoch(epoch)
        learner.step(learner.log.whole(), 1.0)
        seen.append(learner.weights.ratio.clone())
        assert learner.weights.ratio.data_ptr() == place
    assert not torch.equal(seen[0], seen[2])


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

    plain = copy.copy(Learner.step)

    def asking(self: Learner, batch: object, rate: object) -> torch.Tensor:
        loss = plain(self, batch, rate)  # type: ignore[arg-type]
        loss.item()  # the host asks: not allowed in a graph
        return loss

    expected = cp.make("mf", epochs=8, device="cuda", graph=False).fit(dataset.train)
    monkeypatch.setattr(Learner, "step", asking)
    model = cp.make("mf", epochs=8, device="cuda").fit(dataset.train)
    assert np.allclose(model.predict_log(dataset.test), expected.predict_log(dataset.test), atol=1e-4)
