"""Served lists equal those of `recommend` and `similar_items`, for every model, user and filter."""

from __future__ import annotations

from pathlib import Path
from threading import Thread

import numpy as np
import polars as pl
import pytest
import torch

import counterpoise as cp
from counterpoise import DataError, Dataset, DebiasedRecommender, FeedbackLog
from counterpoise.data.ids import Vocabulary
from counterpoise.serve.lists import Ids, Lists, UnknownId, top_k
from counterpoise.serve.model import ServedRun

FAST = {"epochs": 4, "device": "cpu"}


@pytest.fixture(scope="module")
def models(dataset: Dataset) -> dict[str, DebiasedRecommender]:
    log = dataset.train
    return {
        "mf": cp.make("mf", dim=4, **FAST).fit(log),
        "no biases": cp.make("mf", dim=4, biases=False, **FAST).fit(log),
        "side features": cp.make("mf", dim=4, side_features=True, **FAST).fit(log),
        "exposure covariate": cp.make("counterpoise", **FAST).fit(log, dataset.probe),
        "network": cp.make("mf", backbone="ncf", **FAST).fit(log),
    }


NAMES = ("mf", "no biases", "side features", "exposure covariate", "network")
FILTERS = [
    {},
    {"k": 1},
    {"k": 5000},
    {"filter_seen": False},
    {"candidates": [8, 1, 30, 8, 49]},
    {"candidates": [5], "filter_seen": False, "k": 3},
]


@pytest.fixture(scope="module")
def runs(models: dict[str, DebiasedRecommender], tmp_path_factory: pytest.TempPathFactory) -> dict[str, ServedRun]:
    folder = tmp_path_factory.mktemp("runs")
    for name, model in models.items():
        model.save(folder / name)
    return {name: ServedRun.load(folder / name, unknown_users="popular") for name in models}


def answered(run: ServedRun, users: list, candidates: list | None = None, k: int = 10, **filters) -> list[tuple]:
    """(user, item, score, rank, scored_by) of each row that is served."""
    lists = [run.recommend(user, k, candidates=run.choice(candidates), **filters) for user in users]
    return [(one["user_id"], *row.values()) for one in lists for row in one["items"]]


def same(served: list[tuple], expected: pl.DataFrame) -> None:
    assert [row[:2] + row[3:] for row in served] == expected.drop("score").rows()
    assert np.allclose([row[2] for row in served], expected["score"].to_numpy(), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("filters", FILTERS, ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_served_lists_equal_recommend(name: str, filters: dict, models, runs) -> None:
    same(answered(runs[name], list(range(60)), **filters), models[name].recommend(**filters))


@pytest.mark.parametrize("name", NAMES)
def test_unknown_user_lists_equal_recommend(name: str, models, runs) -> None:
    for filters in FILTERS:
        same(answered(runs[name], [999], **filters), models[name].recommend([999], unknown_users="popular", **filters))


@pytest.mark.parametrize("name", NAMES)
def test_similar_items_equal_those_of_the_model(name: str, models, runs) -> None:
    for k in (1, 10, 5000):
        lists = [runs[name].similar(item, k) for item in range(50)]
        rows = [(one["item_id"], row["item_id"], row["score"], row["rank"]) for one in lists for row in one["items"]]
        same(rows, models[name].similar_items(k=k))


def test_excluded_items_are_replaced_by_the_next(runs) -> None:
    everything = [row["item_id"] for row in runs["mf"].recommend(3, 50)["items"]]
    left = runs["mf"].recommend(3, 5, exclude=runs["mf"].items.known([everything[0], everything[2], "none such"]))
    assert [row["item_id"] for row in left["items"]] == [item for item in everything if item not in everything[0:3:2]][
        :5
    ]


def test_top_k_equals_stable_sort_with_ties() -> None:
    rng = np.random.default_rng(0)
    for _ in range(300):
        scores = rng.choice([-np.inf, 0.0, 0.5, 1.0, 2.0], size=rng.integers(1, 12)).astype(np.float32)
        ranked = [place for place in np.argsort(-scores, kind="stable") if scores[place] > -np.inf]
        for k in (1, 3, 12, 50):
            assert top_k(scores, k).tolist() == ranked[:k]


def test_most_popular_leaves_out_seen_items(runs, dataset: Dataset) -> None:
    counts = np.bincount(dataset.train.items, minlength=50)
    assert (runs["mf"].lists.popularity == counts).all()
    seen = set(dataset.train.items[dataset.train.users == 7].tolist())
    ranked = [item for item in np.argsort(-counts, kind="stable").tolist() if item not in seen]
    assert runs["mf"].lists.most_popular(7, 5).tolist() == ranked[:5]
    assert runs["mf"].lists.most_popular(None, 50).tolist() == np.argsort(-counts, kind="stable").tolist()


def test_ids_are_compared_as_text() -> None:
    numbers, words = Ids(Vocabulary([7, -3, 2**40]), "user"), Ids(Vocabulary(["7", "007", "\u00e9"]), "item")
    assert [numbers.code(name) for name in (7, "7", "007", "-3", 2**40, " 7", "7.0")] == [0, 0, None, 1, 2, None, None]
    assert numbers.values == [7, -3, 2**40]
    assert [words.code(name) for name in (7, "007", "\u00e9", "e\u0301", "")] == [0, 1, 2, None, None]
    assert words.values == ["7", "007", "\u00e9"]
    assert Ids(Vocabulary([0.5, 2.0]), "user").values == ["0.5", "2.0"]
    with pytest.raises(UnknownId, match=r"unknown user 'x+ \.\.\. x+': this log has 3 users with ids such as 7"):
        numbers.require("x" * 10_000)


@pytest.mark.parametrize("ids", [["a", "b", "7"], [1, 2, 7], [0.5, 2.0, 7.0]], ids=["text", "integers", "floats"])
def test_id_codes_equal_those_of_the_vocabulary(ids: list) -> None:
    vocabulary = Vocabulary(ids)
    for name in ["a", "7", "007", "2", "2.0", "0.5", ""]:
        expected = int(vocabulary.encode([name])[0])
        assert Ids(vocabulary, "user").code(name) == (None if expected < 0 else expected), name


def test_one_user_and_one_item_can_be_served(tmp_path: Path) -> None:
    cp.make("mf", dim=2, **FAST).fit(FeedbackLog.from_arrays(["ann"], ["book"], [0])).save(tmp_path / "run")
    run = ServedRun.load(tmp_path / "run")
    assert run.recommend("ann", 10) == {"user_id": "ann", "known": True, "items": []}
    assert [row["item_id"] for row in run.recommend("ann", 10, filter_seen=False)["items"]] == ["book"]
    assert run.similar("book", 3)["items"] == []


def test_folder_name_with_surrogates_can_be_served(fitted: DebiasedRecommender, tmp_path: Path) -> None:
    folder = tmp_path / "caf\udce9"
    fitted.save(folder, fit={"by": "hand"})
    run = ServedRun.load(folder)
    assert run.facts["run"] == "caf?"
    assert run.method == "recommendations"


def test_damaged_model_is_an_error(models, tmp_path: Path) -> None:
    model = models["mf"]
    model.save(tmp_path / "run")
    broken = cp.load_model(tmp_path / "run")
    broken.scorer_.item_factors.weight[3, 0] = torch.nan
    with pytest.raises(DataError, match="not finite"):
        Lists.of(broken)
    broken = cp.load_model(tmp_path / "run")
    broken.seen_.items[0] = 50
    with pytest.raises(DataError, match="do not fit together"):
        Lists.of(broken)


def test_concurrent_threads_get_the_same_lists(runs) -> None:
    expected, found = answered(runs["mf"], list(range(60))), {}

    def ask(number: int) -> None:
        found[number] = [answered(runs["mf"], list(range(60))) == expected for _ in range(5)]

    threads = [Thread(target=ask, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {number: [True] * 5 for number in range(8)}
