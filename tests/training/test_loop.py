"""The loop, its batches, its optimiser and its early stopping."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from counterpoise import (
    ConfigError,
    Dataset,
    DebiasedRecommender,
    ExposureCovariate,
    FeedbackLog,
    Training,
    make,
    simulate,
)
from counterpoise.config import Configurable
from counterpoise.data.batches import Batches
from counterpoise.models.base import factor_facts
from counterpoise.risks import error, ips
from counterpoise.training.contracts import MIN_PRETRAINING_EPOCHS, PRETRAINING_STEPS, FitContext
from counterpoise.training.events import FitEvent
from counterpoise.training.learner import Learner
from counterpoise.training.loop import MAX_FULL_BATCH, MIN_EPOCHS, NOISY_RATE, DivergenceError
from counterpoise.training.optimizer import Adam

CPU = torch.device("cpu")


def test_adam_is_torch_adam() -> None:
    torch_weights = torch.nn.Parameter(torch.linspace(-1, 1, 12).view(3, 4))
    our_weights = torch_weights.detach().clone().requires_grad_()
    theirs, ours = torch.optim.Adam([torch_weights], lr=0.03), Adam([our_weights], 0.03)
    for step in range(50):
        theirs.zero_grad()
        ((torch_weights - step / 50) ** 4).sum().backward()
        theirs.step()
        ours.step(((our_weights - step / 50) ** 4).sum())
    assert torch.allclose(our_weights, torch_weights, atol=1e-6)


def test_precisions_in_adam_are_a_penalty_in_the_loss() -> None:
    start = [torch.linspace(-1, 1, 12).view(3, 4), torch.ones(()), torch.linspace(0, 2, 6).view(2, 3)]
    precisions, slopes = [0.5, 0.0, 2.0], [torch.randn_like(table) for table in start]

    def loss(tables: list[Tensor]) -> Tensor:
        return sum(((slope * table).sum() for slope, table in zip(slopes, tables, strict=True)), torch.zeros(()))

    def penalty(tables: list[Tensor]) -> Tensor:
        halves = zip(precisions, tables, strict=True)
        return sum((precision / 2 * table.square().sum() for precision, table in halves), torch.zeros(()))

    ours, theirs = ([table.clone().requires_grad_() for table in start] for _ in range(2))
    own, plain = Adam(ours, 0.03, precisions), Adam(theirs, 0.03)
    for _ in range(30):
        assert float(own.penalty()) == pytest.approx(float(penalty(ours).detach()), rel=1e-5)
        own.step(loss(ours), 0.5)
        plain.step(loss(theirs) + penalty(theirs), 0.5)
    for ended, expected in zip(ours, theirs, strict=True):
        assert torch.allclose(ended, expected, atol=1e-6)


def test_adam_moves_its_own_parameters_alone() -> None:
    own, other = torch.ones(2, requires_grad=True), torch.ones(2, requires_grad=True)
    Adam([own], 0.1).step((own * other).sum())
    assert not torch.equal(own, torch.ones(2))
    assert torch.equal(other, torch.ones(2))
    assert other.grad is None


def test_an_epoch_holds_every_row_once(dataset: Dataset) -> None:
    log = dataset.train
    batches = Batches(log, 32, CPU, torch.Generator().manual_seed(0))
    seen = list(batches.epoch())
    assert len(seen) == len(batches) == -(-len(log) // 32)
    rows = torch.cat([batch.rows for batch in seen])
    assert torch.equal(rows.sort().values, torch.arange(len(log)))
    assert not torch.equal(rows, torch.arange(len(log)))
    for batch in seen:
        assert np.array_equal(batch.users.numpy(), log.users[batch.rows.numpy()])
        assert np.array_equal(batch.items.numpy(), log.items[batch.rows.numpy()])
        assert np.array_equal(batch.labels.numpy(), log.labels[batch.rows.numpy()])


def test_uniform_pairs_are_uniform_over_all_pairs(dataset: Dataset) -> None:
    log = dataset.train
    users, items = log.shape
    batches = Batches(log, len(log), CPU, torch.Generator().manual_seed(0), pairs_per_row=500)
    (batch,) = batches.epoch()
    drawn = len(log) * 500
    counts = np.bincount(batch.pair_users.numpy() * items + batch.pair_items.numpy(), minlength=log.n_pairs)
    assert len(batch.pair_users) == len(batch.pair_items) == drawn
    chi_square = ((counts - drawn / log.n_pairs) ** 2 / (drawn / log.n_pairs)).sum()
    degrees = users * items - 1
    assert abs(chi_square - degrees) < 5 * np.sqrt(2 * degrees)


def large_batches(dataset: Dataset, monkeypatch: pytest.MonkeyPatch, pairs: int) -> Batches:
    monkeypatch.setattr("counterpoise.data.batches.MIN_FIXED_ROWS", 10)
    return Batches(dataset.train, 100, CPU, torch.Generator().manual_seed(0), pairs_per_row=pairs)


def test_large_batches_are_drawn_once_and_sorted_by_user(dataset: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    batches, log = large_batches(dataset, monkeypatch, 0), dataset.train
    first, second = list(batches.epoch()), list(batches.epoch())
    assert torch.equal(torch.cat([batch.rows for batch in first]).sort().values, torch.arange(len(log)))
    assert {id(batch.users) for batch in first} == {id(batch.users) for batch in second}
    assert [id(batch.users) for batch in first] != [id(batch.users) for batch in second]
    for batch in first:
        assert bool((batch.users.diff() >= 0).all())
        assert len(batch.rows) < len(log)
        assert np.array_equal(batch.users.numpy(), log.users[batch.rows.numpy()])
        assert np.array_equal(batch.items.numpy(), log.items[batch.rows.numpy()])
        assert np.array_equal(batch.labels.numpy(), log.labels[batch.rows.numpy()])


def test_blocks_of_pairs_are_uniform_over_all_pairs(dataset: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    batches, (users, items) = large_batches(dataset, monkeypatch, 3), dataset.train.shape
    counts, drawn, batches_seen = np.zeros(users * items), 0, 0
    for _ in range(400):
        for batch in batches.epoch():
            codes = (batch.pair_users.long() * items + batch.pair_items).numpy()
            assert len(np.unique(codes)) == len(codes)
            of_users, of_items = batch.block_users, batch.block_items
            expected = [[(u, i) for u in us for i in js] for us, js in zip(of_users, of_items, strict=True)]
            assert codes.tolist() == [int(u) * items + int(i) for block in expected for u, i in block]
            assert abs(len(codes) - 3 * len(batch.rows)) < 0.2 * 3 * len(batch.rows)
            counts[codes] += 1
            drawn, batches_seen = drawn + len(codes), batches_seen + 1
        if batches_seen > 600:
            break
    share = drawn / batches_seen / len(counts)
    error = np.sqrt(batches_seen * share * (1 - share))
    assert abs(counts - batches_seen * share).max() < 5 * error


def test_no_uniform_pairs_are_drawn_by_default(dataset: Dataset) -> None:
    (batch,) = Batches(dataset.train, len(dataset.train), CPU, torch.Generator()).epoch()
    assert len(batch.pair_users) == len(batch.pair_items) == 0


def test_ips_is_the_weighted_mean_error() -> None:
    labels, logits, ratio = torch.tensor([1.0, 0.0]), torch.tensor([0.3, -2.0]), torch.tensor([0.5, 1.5])
    probability = 1 / (1 + np.exp([-0.3, 2.0]))
    expected = (-0.5 * np.log(probability[0]) - 1.5 * np.log(1 - probability[1])) / 2
    assert float(ips(error(labels, logits), ratio)) == pytest.approx(expected, rel=1e-6)


def test_the_error_stays_finite_for_extreme_logits() -> None:
    assert torch.isfinite(error(torch.tensor([0.0, 1.0]), torch.tensor([1e4, -1e4]))).all()


def test_more_epochs_lower_the_loss(dataset: Dataset) -> None:
    loss = make("mf", epochs=40).fit(dataset.train).history_.loss
    assert len(loss) == 40
    assert loss[-1] < loss[0]


def test_minibatches_reach_the_optimum_of_the_full_batch(dataset: Dataset) -> None:
    full = make("mf", dim=4, batch_size="full", epochs=400).fit(dataset.train)
    small = make("mf", dim=4, batch_size=64, epochs=150, learning_rate=0.02).fit(dataset.train)
    assert np.abs(full.predict_log(dataset.train) - small.predict_log(dataset.train)).mean() < 0.02


def test_early_stopping_restores_the_best_epoch(dataset: Dataset) -> None:
    settings = {"dim": 16, "l2": 0.0, "l2_biases": 0.0, "learning_rate": 0.1, "validation": 0.3}
    model = make("mf", epochs=60, patience=5, **settings).fit(dataset.train)
    history = model.history_
    assert len(history.loss) == len(history.held_out_risk) == history.best_epoch + 5
    assert history.held_out_risk[history.best_epoch - 1] == min(history.held_out_risk)
    rows = np.random.default_rng(0).choice(len(dataset.train), round(0.3 * len(dataset.train)), replace=False)
    held_out = dataset.train.take(np.sort(rows))
    predicted = model.predict_log(held_out).astype(float)
    risk = -np.where(held_out.labels > 0, np.log(predicted), np.log(1 - predicted)).mean()
    assert risk == pytest.approx(min(history.held_out_risk), rel=1e-5)


def test_a_diverging_fit_names_the_settings_to_change(dataset: Dataset) -> None:
    with pytest.raises(DivergenceError, match=r"diverged in epoch \d+.*Lower `learning_rate`"):
        make("mf", learning_rate=1e20, l2=1e20).fit(dataset.train)


def test_a_callback_must_be_a_function(dataset: Dataset) -> None:
    with pytest.raises(ConfigError, match="`callback` must be a function of one event, got 3"):
        make("mf").fit(dataset.train, callback=3)


def test_a_callback_hears_settings_epochs_and_facts(dataset: Dataset) -> None:
    events: list[FitEvent] = []
    model = make("mf", epochs=3, dim=5, patience=2).fit(dataset.train, callback=events.append)
    assert [(event.name, event.epoch, event.epochs) for event in events] == [
        ("start", 0, 3), ("epoch", 1, 3), ("epoch", 2, 3), ("epoch", 3, 3), ("end", 3, 3)
    ]  # fmt: skip
    given, last = events[0].parameters, events[-1].metrics
    assert (given["backbone__dim"], given["risk"], given["rows"], given["users"]) == (5, "ips", 601, 60)
    assert not any(isinstance(value, Configurable) for value in given.values())
    assert [event.metrics["loss"] for event in events[1:4]] == model.history_.loss
    assert [event.metrics["held_out_risk"] for event in events[1:4]] == model.history_.held_out_risk
    assert last["weights.effective_sample_size"] == model.facts_["weights"]["effective_sample_size"]
    assert last["risk"] == model.facts_["risk"]
    assert all(isinstance(value, float) for event in events for value in event.metrics.values())


def test_a_small_log_is_trained_for_all_epochs() -> None:
    training = Training()
    assert training.planned_epochs(MAX_FULL_BATCH) == training.epochs
    assert Training(batch_size=128, epochs=40).planned_epochs(7000) == 40
    assert [training.rate(step, 10, 7000) for step in (0, 5, 10)] == pytest.approx([1, 0.5, 0])


def test_a_large_log_is_trained_for_so_many_steps() -> None:
    rows = 10**6
    assert Training().planned_epochs(rows) == 20
    assert Training(steps=None).planned_epochs(rows) == 150
    assert Training(epochs=12).planned_epochs(rows) == 12
    assert Training(batch_size="full").planned_epochs(rows) == 150
    assert Training().planned_epochs(10**8) == MIN_EPOCHS


def test_the_rate_on_a_large_log_is_held_and_then_falls_to_zero() -> None:
    rates = [Training().rate(step, 100, 10**6) for step in range(101)]
    assert rates[0] == rates[70] == NOISY_RATE > rates[85] > rates[100] == pytest.approx(0)
    assert Training().rate(0, 400, 10**7) == NOISY_RATE / 2  # so that four times the steps have the same noise


def test_first_models_of_the_folds_of_a_large_log_have_as_many_steps_as_those_of_the_log(
    dataset: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = make("mf", dim=2)

    def steps_of(context: FitContext) -> list[int]:
        short = context.short()
        return [len(short.batches()), short.training.planned_epochs(len(short.log))]

    context = FitContext(dataset.train, None, model.backbone, model.training, CPU, torch.Generator().manual_seed(0))
    assert [steps_of(fold) for _, fold in context.k_fold(2)] == [[1, PRETRAINING_STEPS]] * 2 == [steps_of(context)] * 2
    monkeypatch.setattr("counterpoise.training.loop.MAX_FULL_BATCH", len(dataset.train) - 1)  # its folds are small
    assert [steps_of(fold) for _, fold in context.k_fold(2)] == [[5, MIN_PRETRAINING_EPOCHS]] * 2
    assert steps_of(context) == [5, MIN_PRETRAINING_EPOCHS]


def test_a_large_log_has_the_epochs_that_are_planned(dataset: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("counterpoise.training.loop.MAX_FULL_BATCH", 10)
    events: list[FitEvent] = []
    model = make("mf", dim=2, batch_size=-(-len(dataset.train) // 3), steps=48)
    model.fit(dataset.train, callback=events.append)
    epochs = [(event.epoch, event.epochs) for event in events if event.name == "epoch"]
    assert epochs == [(epoch, 16) for epoch in range(1, 17)]
    assert model.history_.best_epoch == 16


def test_centred_biases_change_no_logit_of_rated_pairs(dataset: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("counterpoise.training.loop.MAX_FULL_BATCH", 10)
    log = dataset.train.take(np.flatnonzero(dataset.train.items != 3))
    model = make("mf", dim=2, batch_size=-(-len(log) // 3))
    context = FitContext(log, None, model.backbone, model.training, CPU, torch.Generator().manual_seed(0))
    learner = Learner.init(context, model.weights, model.risk, model.imputation)
    scorer, names = learner.scorer, [name for name, _ in learner.scorer.named_parameters()]
    place = names.index("user_bias.weight")
    scorer.user_bias.weight.data.normal_(1.0)
    scorer.item_bias.weight.data.normal_(-2.0)
    learner.optimizer.scale_precisions({place: torch.linspace(0.5, 1, log.shape[0])})
    users, items = torch.from_numpy(log.users), torch.from_numpy(log.items)
    unrated, before = scorer.item_bias.weight[3].clone(), scorer(users, items)
    penalty = learner.optimizer.penalty()
    learner.prior_scaled_at = 1
    learner.start_epoch(12)  # in which no prior is estimated
    assert torch.allclose(scorer(users, items), before, atol=1e-5)
    assert torch.equal(scorer.item_bias.weight[3], unrated)
    assert learner.optimizer.penalty() < penalty
    precision = learner.optimizer.row_precisions[place]
    assert float((precision * scorer.user_bias.weight).detach().sum() / precision.sum()) == pytest.approx(0, abs=1e-6)


def test_the_automatic_batch_is_full_for_small_logs() -> None:
    assert Training().rows_per_step(1000) == 1000
    assert Training().rows_per_step(10**6) == 200_000  # five batches, so that steps do not grow with the log
    assert Training().rows_per_step(10**8) == 1 << 19
    assert Training(batch_size="full").rows_per_step(10**6) == 10**6
    assert Training(batch_size=64).rows_per_step(10) == 10


@pytest.mark.parametrize(
    "settings",
    [
        {"epochs": 0}, {"epochs": 2.5}, {"steps": 0}, {"batch_size": 0}, {"batch_size": "half"}, {"learning_rate": 0},
        {"learning_rate": float("nan")}, {"patience": 0}, {"patience": 2, "validation": 0.9}, {"seed": -1},
        {"device": "quantum"}, {"risk": "best"},
    ],
)  # fmt: skip
def test_settings_that_break_their_rule_are_named(settings: dict[str, object], dataset: Dataset) -> None:
    name = list(settings)[-1]
    with pytest.raises(ConfigError, match=f"`{name}`"):
        make("mf", **settings).fit(dataset.train)


@pytest.mark.skipif(torch.cuda.is_available(), reason="a CUDA device is there, so asking for it is no error")
def test_a_missing_device_is_an_error_with_a_way_out(dataset: Dataset) -> None:
    with pytest.raises(ConfigError, match="Use device='cpu'"):
        DebiasedRecommender(training=Training(device="cuda")).fit(dataset.train)


def test_adam_steps_the_moments_that_it_shows() -> None:
    parameters = [torch.ones(2, requires_grad=True), torch.ones(3, requires_grad=True)]
    optimizer = Adam(parameters, 0.1, [0.0, 1.0])
    optimizer.first = [moment.clone() for moment in optimizer.first]  # as when a worker moves them to its device
    optimizer.step(sum(parameter.sum() for parameter in parameters))
    assert all(bool((moment != 0).all()) for moment in optimizer.first)


# ---- the prior of each row of a table --------------------------------------------------------------------------------


def test_row_precisions_in_adam_are_an_explicit_penalty_in_torch_adam() -> None:
    generator = torch.Generator().manual_seed(0)
    start = [torch.randn(3, 4, generator=generator), torch.ones(()), torch.randn(2, 3, generator=generator)]
    slopes = [torch.randn(table.shape, generator=generator) for table in start]
    precisions = [0.5, 0.3, 2.0]
    scales = {0: torch.tensor([0.1, 1.0, 0.0]), 2: torch.tensor([0.7, 0.2])}

    def loss(tables: list[Tensor]) -> Tensor:
        return sum(((slope * table).sum() for slope, table in zip(slopes, tables, strict=True)), torch.zeros(()))

    def penalty(tables: list[Tensor]) -> Tensor:
        total = precisions[1] / 2 * tables[1] ** 2
        for place, scale in scales.items():
            for row, share in enumerate(scale.tolist()):
                total = total + share * precisions[place] / 2 * tables[place][row].square().sum()
        return total

    ours, theirs = ([table.clone().requires_grad_() for table in start] for _ in range(2))
    own, plain = Adam(ours, 0.03, precisions), torch.optim.Adam(theirs, lr=0.03)
    own.scale_precisions(scales)
    for step in range(40):
        if step == 20:  # later scales take the place of those before
            memory = own.row_precisions[0].data_ptr()
            scales[0] = torch.tensor([0.9, 0.0, 0.4])
            own.scale_precisions({0: scales[0]})
            assert own.row_precisions[0].data_ptr() == memory
        assert float(own.penalty()) == pytest.approx(float(penalty(ours).detach()), rel=1e-5)
        own.step(loss(ours))
        plain.zero_grad()
        (loss(theirs) + penalty(theirs)).backward()
        plain.step()
    for ended, expected in zip(ours, theirs, strict=True):
        assert torch.allclose(ended, expected, atol=1e-5)


def learner_of(model: DebiasedRecommender, log: FeedbackLog) -> Learner:
    context = FitContext(log, None, model.backbone, model.training, CPU, torch.Generator().manual_seed(0))
    return Learner.init(context, model.weights, model.risk, model.imputation)


@pytest.mark.parametrize("backbone", ["mf", "ncf", "exposure"])
def test_the_prior_of_a_user_counts_by_its_weights(backbone: str, dataset: Dataset) -> None:
    log = dataset.train
    part = ExposureCovariate() if backbone == "exposure" else backbone
    learner = learner_of(make("mf", backbone=part, epochs=2), log)
    precisions = learner.optimizer.precisions
    ratio = torch.rand(len(log), generator=torch.Generator().manual_seed(0)) * 2
    ratio[torch.from_numpy(log.users == 3)] = 5.0
    ratio[torch.from_numpy(log.items == 4)] = 0.1
    learner.weights.ratio = ratio
    learner.scale_prior()
    tables = 0
    for place, (name, parameter) in enumerate(learner.scorer.named_parameters()):
        codes = log.users if "user_" in name else log.items if "item_" in name else None
        if codes is None or not name.endswith(".weight"):
            assert place not in learner.optimizer.row_precisions
            continue
        tables += 1
        for code in range(len(parameter)):
            own = [float(w) for w, c in zip(ratio, codes, strict=True) if c == code]
            share = min(1.0, sum(w * w for w in own) / sum(own)) if own else 1.0
            found = float(learner.optimizer.row_precisions[place][code])
            assert found == pytest.approx(precisions[place] * share, rel=1e-5), name
    assert tables >= 2


def test_equal_weights_leave_the_prior_as_it_is(dataset: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = {"epochs": 5, "l2_biases": 2.0, "device": "cpu"}
    with_scaling = make("mf", **settings).fit(dataset.train).predict_log(dataset.test)
    monkeypatch.setattr(Learner, "scale_prior", lambda learner, estimate=False: None)
    assert np.array_equal(make("mf", **settings).fit(dataset.train).predict_log(dataset.test), with_scaling)


def test_weights_that_become_equal_take_the_scale_of_the_prior_back(dataset: Dataset) -> None:
    learner = learner_of(make("mf"), dataset.train)
    learner.weights.ratio = torch.full((len(dataset.train),), 0.5)
    learner.scale_prior()
    learner.weights.ratio = torch.ones(len(dataset.train))
    learner.scale_prior()
    for place, precision in learner.optimizer.row_precisions.items():
        expected = torch.full_like(precision, learner.optimizer.precisions[place])
        assert torch.allclose(precision, expected)
    assert learner.optimizer.row_precisions


def test_the_scale_of_snips_weights_does_not_count_in_the_prior(dataset: Dataset) -> None:
    model, found = make("mf", risk="snips"), []
    ratio = torch.rand(len(dataset.train), generator=torch.Generator().manual_seed(0))
    for scale in (1.0, 50.0):
        learner = learner_of(model, dataset.train)
        learner.weights.ratio = scale * ratio
        learner.scale_prior()
        found.append(learner.optimizer.row_precisions)
    for place in found[0]:
        assert torch.allclose(found[0][place], found[1][place])


def test_eib_learns_factors() -> None:
    """Its rows count by the density alone: with a prior that counts in full nothing was learned."""
    log = simulate(300, 200, density=0.1, selection="popularity", seed=0).dataset.train
    model = make("eib", label=0.4).fit(log)
    assert factor_facts(model.scorer_)["spread"] > 0.01
