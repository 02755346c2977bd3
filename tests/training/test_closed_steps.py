"""Steps in closed form are those of autograd, and are taken only where they are."""

from __future__ import annotations

from unittest import mock

import pytest
import torch
from torch import Tensor

from counterpoise import Dataset, Training
from counterpoise.balance.functions import KernelFunctions
from counterpoise.imputation.base import Constant, Imputation, Learned, NoImputation
from counterpoise.models.embedding_ops import SORTING_PAYS
from counterpoise.models.matrix_factorization import MatrixFactorization
from counterpoise.models.neural_cf import NeuralCF
from counterpoise.training import learner
from counterpoise.training.closed_steps import has_closed_form
from counterpoise.training.context import FitContext
from counterpoise.training.learner import Learner
from counterpoise.training.loop import train
from counterpoise.weights.balancing import Balancing
from counterpoise.weights.base import NaiveBayes, Weights
from counterpoise.weights.joint import StabilizedPropensity

ALGORITHM_1 = Balancing(KernelFunctions(n=3, select="adaptive"), features="activity", solver="gradient")
ROWS = 32


def init(
    dataset: Dataset, weights: Weights, risk: str, imputation: Imputation, backbone: object = None, rows: int = ROWS
) -> tuple[FitContext, Learner]:
    model, training = backbone or MatrixFactorization(dim=4), Training(epochs=2, batch_size=rows)
    generator, cpu = torch.Generator().manual_seed(0), torch.device("cpu")
    context = FitContext(dataset.train, dataset.probe, model, training, cpu, generator)  # type: ignore[arg-type]
    return context, Learner.init(context, weights, risk, imputation)


def trained(dataset: Dataset, weights: Weights, risk: str, imputation: Imputation) -> tuple[list[Tensor], Tensor]:
    """(all that is learned batch by batch with the ratio of each row, the loss of each epoch)."""
    context, parts = init(dataset, weights, risk, imputation)
    history = train(parts, context.batches(True), None, context.training)
    return [*parts.state(), parts.fitted_weights.ratio], torch.tensor(history.loss)


@pytest.mark.parametrize("weights", [ALGORITHM_1, NaiveBayes(), Balancing(KernelFunctions(n=3), features="activity")])
@pytest.mark.parametrize(("risk", "imputation"), [("ips", NoImputation()), ("dr", Learned())])
def test_closed_steps_are_those_of_autograd(
    weights: Weights, risk: str, imputation: Imputation, dataset: Dataset
) -> None:
    with mock.patch.object(learner, "closed_step", side_effect=learner.closed_step) as taken:
        found, losses = trained(dataset, weights, risk, imputation)
    assert taken.call_count == 2 * -(-len(dataset.train) // ROWS)
    with mock.patch.object(learner, "has_closed_form", return_value=False):
        expected, expected_losses = trained(dataset, weights, risk, imputation)
    assert torch.allclose(losses, expected_losses, rtol=1e-5)
    for ours, theirs in zip(found, expected, strict=True):
        assert torch.allclose(ours, theirs, atol=2e-5)


@pytest.mark.parametrize(
    ("settings", "closed"),
    [
        ({}, True),
        ({"weights": StabilizedPropensity()}, False),
        ({"risk": "snips", "imputation": NoImputation()}, False),
        ({"imputation": NoImputation()}, False),
        ({"imputation": Constant(0.5)}, False),
        ({"imputation": Learned(backbone=NeuralCF())}, False),
        ({"weights": Balancing(features="activity", solver="gradient", embedder=NeuralCF())}, False),
        ({"backbone": NeuralCF()}, False),
        ({"rows": SORTING_PAYS}, False),
    ],
)
def test_only_small_steps_of_parts_that_have_one_are_closed(settings: dict, closed: bool, dataset: Dataset) -> None:
    context, parts = init(dataset, **{"weights": ALGORITHM_1, "risk": "dr", "imputation": Learned()} | settings)
    batch = next(iter(context.batches(True).epoch()))
    assert has_closed_form(parts, batch) == closed
    before = [tensor.clone() for tensor in parts.state()]
    assert torch.isfinite(parts.step(batch, 1.0))
    assert not any(map(torch.equal, before, parts.state()))
