"""The number of threads changes the time, not the results."""

from __future__ import annotations

import multiprocessing
from typing import Any

import numpy as np
import pytest
import torch
from threadpoolctl import threadpool_info, threadpool_limits

from counterpoise import ConfigError, DebiasedRecommender, make, simulate
from counterpoise.balance import selection
from counterpoise.balance.box_qp import solve_positive
from counterpoise.training.events import by_epoch


@pytest.mark.parametrize("method", ["mf", "counterpoise", "skb-dr"])
def test_results_do_not_depend_on_threads_beyond_rounding(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("counterpoise.recommender.MIN_ROWS_FOR_THREADS", 0)  # else a log as small as this gets one
    data = simulate(n_users=300, n_items=250, density=0.5, seed=0).dataset  # enough rows for work to be shared
    before, found = torch.get_num_threads(), []
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            with threadpool_limits(threads):
                model = make(method, epochs=8, dim=8).fit(data.train, data.probe)
            assert torch.get_num_threads() == threads
            found.append((model.predict_log(data.train), model.ratio_))
    finally:
        torch.set_num_threads(before)
    assert np.abs(found[0][0] - found[1][0]).max() < 1e-4
    assert np.allclose(found[0][1], found[1][1], rtol=1e-3)


def test_small_fit_uses_one_thread_and_restores_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    before, seen = torch.get_num_threads(), []
    try:
        torch.set_num_threads(2)
        log = simulate(n_users=20, n_items=20, density=0.3, seed=0).dataset.train
        make("mf", epochs=2).fit(log, callback=by_epoch(lambda *_: seen.append(torch.get_num_threads())))
        assert seen == [1, 1]
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_regression_on_candidates_uses_one_blas_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    def threads() -> list[int]:
        return [library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"]

    seen: list[int] = []
    monkeypatch.setattr(selection, "solve_positive", lambda *given: seen.extend(threads()) or solve_positive(*given))
    with threadpool_limits(2, "blas"):
        before = threads()  # a library may not have two
        found = selection.solve(2 * torch.eye(3).double(), torch.ones(3).double())
        assert threads() == before
    assert set(seen) == {1}
    assert found.tolist() == pytest.approx([0.5, 0.5, 0.5])


def predict_apart(model: DebiasedRecommender, answer: Any) -> None:
    try:
        answer.send(model.predict([1], [1]).tolist())
    except ConfigError as error:
        answer.send(str(error))


@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="no process is forked here")
def test_model_in_a_forked_process_says_what_to_do(fitted: DebiasedRecommender) -> None:
    """It waited for ever for threads that a fork does not copy, as in the workers of a DataLoader."""
    for method, answers in (("fork", str), ("spawn", list)):
        context = multiprocessing.get_context(method)
        answer, sender = context.Pipe(duplex=False)
        process = context.Process(target=predict_apart, args=(fitted, sender), daemon=True)
        process.start()
        assert answer.poll(120), method
        found = answer.recv()
        assert isinstance(found, answers)
        assert method == "spawn" or 'multiprocessing_context="spawn"' in found
        process.join()
