"""Many fits to one log at once: seeds, or points of a search, as one program of batched tensors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from threading import Event
from typing import Any

import torch
from torch import Tensor

from counterpoise.accelerate import recorded
from counterpoise.data.log import FeedbackLog
from counterpoise.errors import ConfigError
from counterpoise.methods import configure, make
from counterpoise.recommender import DebiasedRecommender
from counterpoise.threads import at_once, keep_freed_memory, one_thread
from counterpoise.training.ensemble import AnyLearner, hedged
from counterpoise.training.learner import Learner, finish
from counterpoise.training.loop import THREADS_PAY, DivergenceError, History, Progress, train
from counterpoise.training.optimizer import Adam
from counterpoise.training.ordinal import Grading
from counterpoise.training.stacks import NotAlikeError, Stack, hand_back
from counterpoise.weights.base import Current, Weighing

AT_ONCE = 1 << 25  # logits of a step that are held in memory at a time; more fits than that are taken in turn


def fit_many(
    model: DebiasedRecommender | str,
    log: FeedbackLog,
    probe: FeedbackLog | Sequence[FeedbackLog | None] | None = None,
    *,
    seeds: Sequence[int] | None = None,
    configs: Sequence[Mapping[str, Any]] | None = None,
    progress: Progress | None = None,
) -> list[DebiasedRecommender]:
    """A fitted model for each of `seeds`, or for each of `configs`: settings as in `make`, of this model or method.

    Each is what it would be if it was fitted alone, up to rounding. `probe`: one for all, or one for each. Where the
    parts of a method allow it, fits are stacked and trained as one; others are fitted one after the other.
    """
    if (seeds is None) == (configs is None):
        raise ConfigError("either `seeds` or `configs` must be given to fit_many, and not both.")
    for name, given in (("seeds", seeds), ("configs", configs)):
        if given is not None and (isinstance(given, str | Mapping) or not isinstance(given, Iterable)):
            raise ConfigError(f"`{name}` must be a list, one entry for each fit, got {given!r}.")
    base = make(model) if isinstance(model, str) else model
    points = [{"seed": seed} for seed in seeds] if seeds is not None else list(configs or ())
    models = [configure(deepcopy(base), **point) for point in points]
    probes = [probe] * len(models) if probe is None or isinstance(probe, FeedbackLog) else list(probe)
    if len(probes) != len(models):
        raise ConfigError(f"`probe` must be one for all or one for each of {len(models)} fits, got {len(probes)}.")
    return fit_side_by_side(models, log, probes, progress)


def fit_side_by_side(
    models: Sequence[DebiasedRecommender],
    log: FeedbackLog,
    probes: Sequence[FeedbackLog | None],
    progress: Progress | None = None,
) -> list[DebiasedRecommender]:
    """Fit models to one log, each with its own probe, in stacks as large as memory allows; one by one if need be."""
    for model, probe in zip(models, probes, strict=True):
        model.check(log, probe)
    size = max(1, AT_ONCE // max((_logits_a_step(model, log) for model in models), default=1))
    for start in range(0, len(models), size):
        some, with_probes = models[start : start + size], probes[start : start + size]
        try:
            _fit_stacks(some, log, with_probes, progress)
        except (NotAlikeError, DivergenceError):  # one that diverges is found, and named, when it is fitted alone
            for model, probe in zip(some, with_probes, strict=True):
                model.fit(log, probe, progress=progress)
    return list(models)


def _logits_a_step(model: DebiasedRecommender, log: FeedbackLog) -> int:
    rows, pairs = model.training.rows_a_step(len(log)), model.training.pairs_a_row(log)
    return log.n_pairs if pairs is None else rows * (1 + pairs)


def _fit_stacks(
    models: Sequence[DebiasedRecommender],
    log: FeedbackLog,
    probes: Sequence[FeedbackLog | None],
    progress: Progress | None,
) -> None:
    """As one stack, or on a CPU as one for each thread, of two fits at least. Progress is that of a longest fit."""
    on_cpu = models[0].training.resolve_device().type == "cpu"
    count = min(torch.get_num_threads(), len(models) // 2) if on_cpu else 1
    if count < 2:
        _fit_stack(models, log, probes, progress)
        return
    parts = [slice(number, None, count) for number in range(count)]
    parts.sort(key=lambda part: -max(model.training.epochs for model in models[part]))
    keep_freed_memory()

    def fit(part: slice, over: Event) -> None:
        shown = progress if part is parts[0] else None
        _fit_stack(models[part], log, probes[part], _unless(over, shown))

    at_once(fit, parts)


def _unless(over: Event, progress: Progress | None) -> Progress:
    """Progress that ends a fit as soon as another has failed."""

    def told(epoch: int, epochs: int, loss: float) -> None:
        if over.is_set():
            raise NotAlikeError
        if progress is not None:
            progress(epoch, epochs, loss)

    return told


def _fit_stack(
    models: Sequence[DebiasedRecommender],
    log: FeedbackLog,
    probes: Sequence[FeedbackLog | None],
    progress: Progress | None,
) -> None:
    """One training loop for all, then each model takes its own."""
    if len(models) < 2 or len({_frame(model) for model in models}) > 1 or models[0].training.patience is not None:
        raise NotAlikeError
    stack = Stack([model.problem(log, probe) for model, probe in zip(models, probes, strict=True)])
    rows = _logits_a_step(models[0], log) * len(models)
    with one_thread(rows < THREADS_PAY):
        learner, members = _begin(stack, models)
        trained, batches = recorded(learner, models[0].training), stack.batches(learner.uses_pairs)
        history = train(trained, batches, None, stack.training, progress)
        hand_back(learner.scorer.state_dict().values(), [member.scorer.state_dict().values() for member in members])
        hand_back(learner.imputing.state(), [member.imputing.state() for member in members])
        hand_back(_cuts(learner), [_cuts(member) for member in members])
        for number, (model, member, problem) in enumerate(zip(models, members, stack.members, strict=True)):
            facts = finish(member, problem.batches(member.uses_pairs).final())
            model.keep(member, _own_history(history, number, model, len(models)), facts, log, probes[number])


def _cuts(learner: AnyLearner) -> list[Tensor]:
    return [] if learner.grading is None else [learner.grading.cuts.log_gaps.data]


def _frame(model: DebiasedRecommender) -> tuple[Any, ...]:
    """What must be the same for all: what decides the shape of a step."""
    training = model.training
    parts = type(model.weights), type(model.imputation)
    same = training.batch_size, training.pairs, training.device, training.patience
    return *parts, model.risk, model.hedge, model.grades, *same


def _begin(stack: Stack, models: Sequence[DebiasedRecommender]) -> tuple[AnyLearner, list[AnyLearner]]:
    """(the learner of the stack, those of its members), in the order in which one alone would draw its numbers."""
    problems, risk = stack.members, models[0].risk
    scorer, scorers = stack.build_each([problem.backbone for problem in problems])
    weighings = [model.weights.begin(problem) for model, problem in zip(models, problems, strict=True)]
    triples = zip(models, problems, weighings, strict=True)
    imputings = [model.imputation.begin(problem, weighing) for model, problem, weighing in triples]
    grading = Grading.begin(problems[0]) if models[0].grades else None
    gradings = [grading and grading.again() for _ in models]
    together = grading and grading.side_by_side(len(models))
    optimizer = Adam.of(scorer, stack.training.learning_rate, len(stack.log), together)
    stacked = Learner(
        scorer,
        _SideBySide(weighings, [model.training.epochs for model in models]),
        imputings[0].stack(imputings, problems[0].device),
        risk,
        optimizer,
        stack.batches(),
        together,
    )
    parts = zip(scorers, weighings, imputings, problems, gradings, strict=True)
    members = [Learner(s, w, i, risk, optimizer, problem.batches(), g) for s, w, i, problem, g in parts]
    probes, hedge = [problem.probe for problem in problems], models[0].hedge
    return hedged(stacked, None, hedge), [hedged(one, probe, hedge) for one, probe in zip(members, probes, strict=True)]


class _SideBySide(Weighing):
    """Weights that never change, or that each member solves for itself at the beginning of an epoch."""

    def __init__(self, members: Sequence[Weighing], epochs: Sequence[int]) -> None:
        if not all(map(_is_still, members)):
            raise NotAlikeError
        self.members, self.epochs = members, epochs
        self._gather()

    @property
    def still(self) -> bool:
        return all(member.still for member in self.members)

    def _gather(self) -> None:
        ratios = [member.ratio for member in self.members]
        same = all(torch.equal(ratio, ratios[0]) for ratio in ratios)
        self.ratio = ratios[0] if same else torch.stack(ratios)

    def refresh(self, epoch: int, current: Current) -> None:
        if self.still:
            return
        for number, member in enumerate(self.members):
            if epoch <= self.epochs[number]:  # a shorter fit stands still at its end, and so do its weights
                member.refresh(epoch, _of_member(current, number))
        self._gather()


def _is_still(weighing: Weighing) -> bool:
    """Whether nothing happens to the weights within an epoch."""
    kind = type(weighing)
    return kind.step is Weighing.step and kind.extra_loss is Weighing.extra_loss and not kind.needs_pairs


def _of_member(current: Current, number: int) -> Current:
    def features() -> tuple[Tensor, Tensor]:
        users, items = current.features()
        return users[number], items[number]

    return Current(lambda: current.residuals()[number], features)


def _own_history(history: History, number: int, model: DebiasedRecommender, members: int) -> History:
    """What one member of a stack went through; its share of the time."""
    epochs = model.training.epochs
    losses = [losses[number] for losses in history.loss[:epochs]]
    return History(loss=losses, seconds=history.seconds / members, best_epoch=epochs)
