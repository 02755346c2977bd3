"""The number of threads changes the time, not the results."""

from __future__ import annotations

from threading import Event, current_thread

import numpy as np
import pytest
import torch
from threadpoolctl import threadpool_info, threadpool_limits

from counterpoise import make, simulate
from counterpoise.balance import selection
from counterpoise.balance.box_qp import solve_positive
from counterpoise.threads import at_once


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


def test_a_small_fit_uses_one_thread_and_gives_the_others_back(monkeypatch: pytest.MonkeyPatch) -> None:
    before, seen = torch.get_num_threads(), []
    try:
        torch.set_num_threads(2)
        log = simulate(n_users=20, n_items=20, density=0.3, seed=0).dataset.train
        make("mf", epochs=2).fit(log, progress=lambda *_: seen.append(torch.get_num_threads()))
        assert seen == [1, 1]
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_a_regression_on_candidates_uses_one_thread_of_linear_algebra(monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_parts_are_worked_on_at_once_with_one_thread_of_torch_each() -> None:
    before, seen = torch.get_num_threads(), {}

    def work(part: str, over: Event) -> None:
        seen[part] = current_thread(), torch.get_num_threads(), over.is_set()

    try:
        torch.set_num_threads(2)
        at_once(work, ["a", "b", "c"])
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    assert {value[1:] for value in seen.values()} == {(1, False)}
    assert seen["a"][0] is current_thread()
    assert current_thread() not in (seen["b"][0], seen["c"][0])


@pytest.mark.parametrize("failing", [0, 1])
@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_what_fails_stops_the_others(failing: int, error: type[BaseException]) -> None:
    ended: list[int] = []

    def work(part: int, over: Event) -> None:
        if part == failing:
            raise error
        assert over.wait(10)
        ended.append(part)

    with pytest.raises(error):
        at_once(work, [0, 1])
    assert ended == [1 - failing]
