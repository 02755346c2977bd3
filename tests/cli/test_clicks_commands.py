"""Every command on a log of clicks: full rankings in place of losses, and no word of ratings."""

from __future__ import annotations

import html
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from command_line import one_line, run

import counterpoise as cp
from counterpoise.methods import DEFAULT_METHOD
from counterpoise.serve.model import ServedRun
from counterpoise.serve.page import render_page

DROP = ("--unknown-users", "drop", "--unknown-items", "drop")
OF_RATINGS = re.compile(r"(?i)\b(ratings?|rated|MF baseline|positive labels?)\b")


def without_options(text: str) -> str:
    """A text without the announcement that there are no ratings, and without names of columns and kinds."""
    return re.sub(r"no ratings: positives alone|rating_col rating|test_feedback ratings", "", text)


def words_of_page(page: str) -> str:
    """What a reader of an HTML page sees."""
    page = re.sub(r"<(script|style).*?</\1>", "", page, flags=re.DOTALL)
    return re.sub(r"\s+", " ", html.unescape(re.sub(r"<[^>]+>", " ", page)))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Clicks, the same with a column of ones, impressions, and the relevance of uniform pairs."""
    found = tmp_path_factory.mktemp("clicks")
    data = cp.simulate(60, 40, density=0.2, selection="popularity", seed=3).dataset
    shown = data.train.to_frame()
    shown = shown.with_columns(timestamp=pl.Series(np.random.default_rng(0).permutation(len(shown))))
    clicks = shown.filter(pl.col("rating") == 1)
    clicks.select("user_id", "item_id", "timestamp").write_csv(found / "clicks.csv")
    clicks.select("user_id", "item_id", "rating").write_csv(found / "ones.csv")
    shown.select("user_id", "item_id", "rating").write_csv(found / "both.csv")
    shown.rename({"rating": "clicked"}).write_csv(found / "shown.csv")
    assert data.test is not None
    data.test.to_frame().write_csv(found / "relevance.csv")
    return found


@pytest.fixture(scope="module")
def held_out(folder: Path) -> tuple[Path, str]:
    """(a run on clicks whose latest fifth was held out, what its fit printed)."""
    out = folder / "run"
    code, printed, err = run("fit", folder / "clicks.csv", "--holdout", 0.2, "--by", "time", "--out", out)
    assert code == 0, err
    return out, printed


def test_fit_announces_clicks_and_ranks_held_out_ones(held_out: tuple[Path, str]) -> None:
    printed = held_out[1]
    text = " ".join(printed.split())
    assert re.search(r"- clicks: \d+ clicks of \d+ items by \d+ users \([\d.]+% of all pairs\)", text)
    assert "; no ratings: positives alone; --feedback changes that." in text
    assert f"({DEFAULT_METHOD['clicks']}, fitted in" in text
    assert "How held-out clicks (time) rank among all items, weighted by 1 / P(exposed)" in text
    assert re.search(r"DCG@5 +0\.\d{4} +0\.\d{4} to 0\.\d{4} +0\.\d{4}", printed)
    assert re.search(r"(Better|Worse|No clear difference).* plain WMF in .*DCG@5", text)
    assert not OF_RATINGS.search(without_options(printed)), printed


def test_a_kind_that_was_given_is_not_explained(folder: Path, tmp_path: Path) -> None:
    arguments = ("--feedback", "clicks", "--out", tmp_path / "run")
    assert "--feedback changes that" not in run("fit", folder / "ones.csv", *arguments)[1]


def test_fit_on_relevance_of_uniform_pairs_has_usual_metrics(folder: Path, tmp_path: Path) -> None:
    arguments = ("--test", folder / "relevance.csv", "--test-kind", "uniform", "--out", tmp_path / "run")
    code, printed, err = run("fit", folder / "clicks.csv", *arguments)
    assert code == 0, err
    assert "On labels of relevance of pairs drawn at random (unbiased):" in printed
    assert "Clicks do not tell how many pairs are relevant" in printed
    assert not OF_RATINGS.search(without_options(printed)), printed


def test_the_default_method_follows_the_kind(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    assert run("fit", folder / "ones.csv", "--out", out, "--quiet")[0] == 0
    facts = json.loads((out / "run.json").read_text())
    assert facts["fit"]["method"] == DEFAULT_METHOD["clicks"]
    assert facts["log"]["feedback"] == "clicks"


def test_impressions_are_announced_with_their_share_of_clicks(folder: Path, tmp_path: Path) -> None:
    arguments = (
        "--rating-col",
        "clicked",
        "--method",
        "mf",
        "--epochs",
        2,
        "--holdout",
        0.3,
        "--out",
        tmp_path / "run",
    )
    code, printed, err = run("fit", folder / "shown.csv", *arguments)
    assert code == 0, err
    assert re.search(r"impressions of \d+ items by \d+ users \(\S+ of all pairs\); \d+\.\d% of them clicked", printed)
    assert "naive: of the pairs that were shown:" in " ".join(printed.split())
    assert not OF_RATINGS.search(printed), printed


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ["ones.csv", "--method", "mf"],
            "'mf' learns from ratings or impressions, and the log has clicks, every label",
        ),
        (["both.csv", "--feedback", "clicks"], "Give a `threshold` to keep the rows at or above it"),
        (["clicks.csv", "--feedback", "ratings"], "If every row is a click, say --feedback clicks."),
        (["ones.csv", "--method", "no-such"], "`method` must be one of"),
        (["ones.csv", "--holdout", "0.2", "--by", "time"], "needs timestamps"),
    ],
)
def test_wrong_kinds_are_one_clear_line(folder: Path, tmp_path: Path, arguments: list[str], said: str) -> None:
    file, *others = arguments
    code, _, err = run("fit", folder / file, *others, "--out", tmp_path / "run")
    assert code == 2
    assert one_line(err), err
    assert said in err


def test_evaluate_ranks_other_clicks(folder: Path, held_out: tuple[Path, str]) -> None:
    code, printed, err = run("evaluate", held_out[0], folder / "clicks.csv", "--k", 7, *DROP)
    assert code == 0, err
    assert "How the clicks of the test rank among all items" in printed
    assert "DCG@7" in printed
    assert not OF_RATINGS.search(printed), printed
    facts = json.loads(run("evaluate", held_out[0], folder / "clicks.csv", "--json", *DROP)[1])
    assert facts["method"] == "popularity"
    assert 0 < facts["naive"]["dcg"] < 1
    assert facts["n_seen"] > 0


def test_evaluate_refuses_weights_that_undo_relevance(folder: Path, held_out: tuple[Path, str]) -> None:
    code, _, err = run("evaluate", held_out[0], folder / "clicks.csv", "--weights", "balanced", *DROP)
    assert code == 2
    assert "`weights` must be one of 'popularity', 'known'" in err


def test_evaluate_cannot_rank_clicks_of_unknown_users(folder: Path, held_out: tuple[Path, str], tmp_path: Path) -> None:
    (tmp_path / "new.csv").write_text("user_id,item_id\n999,1\n")
    code, _, err = run("evaluate", held_out[0], tmp_path / "new.csv", "--unknown-users", "popular")
    assert code == 2
    assert "unknown user 999" in err
    assert "leave others out (--unknown-users drop)" in err


def test_reports_of_clicks_show_full_rankings(held_out: tuple[Path, str], tmp_path: Path) -> None:
    code, printed, err = run("report", held_out[0], "--out", tmp_path / "report.html")
    assert code == 0, err
    page = words_of_page((tmp_path / "report.html").read_text())
    assert "Full rankings of held-out clicks, with 95% intervals" in page
    assert "Concentration of clicks" in page
    assert "weighted by exposure" in " ".join(printed.split())
    for text in (printed, page):
        assert not OF_RATINGS.search(without_options(text)), OF_RATINGS.search(without_options(text))


def test_comparisons_of_clicks_rank_by_all_runs(folder: Path, held_out: tuple[Path, str], tmp_path: Path) -> None:
    assert run("fit", "--config", held_out[0], "--seed", 0, "--out", tmp_path / "other", "--quiet")[0] == 0
    code, _, err = run("report", "--compare", held_out[0], tmp_path / "other", "--out", tmp_path / "both.html")
    assert code == 0, err
    facts = json.loads((tmp_path / "both.json").read_text())
    assert list(facts["ranking"]["models"]) == ["run", "other"]
    page = words_of_page((tmp_path / "both.html").read_text())
    assert not OF_RATINGS.search(without_options(page)), OF_RATINGS.search(without_options(page))


def test_recommend_leaves_out_what_was_clicked(folder: Path, held_out: tuple[Path, str]) -> None:
    code, printed, _ = run("recommend", held_out[0], "--users", "1", "--k", 5, "--json")
    assert code == 0
    clicked = pl.read_csv(folder / "clicks.csv").filter(pl.col("user_id") == 1).sort("timestamp")["item_id"].to_list()
    listed = [row["item_id"] for row in json.loads(printed)]
    assert listed
    model = cp.load_model(held_out[0])
    seen = model.seen_.items[model.seen_.starts[1] : model.seen_.starts[2]].tolist()
    assert not set(listed) & set(model.item_ids_.decode(np.array(seen, np.int32)).to_list())
    assert set(model.item_ids_.decode(np.array(seen, np.int32)).to_list()) <= set(clicked)


def test_the_served_page_says_clicks(held_out: tuple[Path, str]) -> None:
    page, status = render_page(ServedRun.load(held_out[0]), "1", "5")
    text = words_of_page(page)
    assert status == 200
    assert "Clicks in the log" in text
    assert "Most clicked, not seen yet" in text
    assert "Not corrected: popularity" in text or DEFAULT_METHOD["clicks"] != "popularity"
    assert "A score is the probability of relevance, as this method models it." in text
    assert not OF_RATINGS.search(text), text


def test_tune_judges_by_ranks_of_held_out_clicks(folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    arguments = ("--method", "popularity", "--trials", 3, "--folds", 2, "--out", tmp_path / "tune")
    code, printed, err = run("tune", folder / "clicks.csv", *arguments)
    assert code == 0, err
    assert "held-out clicks rank among all items, weighted by 1 / P(exposed)" in printed
    assert "the risk is 1 - DCG@10" in printed
    assert "3 trials: " in printed
    assert "failed. The last failure" not in printed
    assert not OF_RATINGS.search(without_options(printed)), printed
    assert run("fit", "--config", tmp_path / "tune" / "best.toml", "--out", tmp_path / "run", "--quiet")[0] == 0


def test_bench_tables_of_held_out_clicks(folder: Path, tmp_path: Path) -> None:
    arguments = ("--datasets", folder / "clicks.csv", "--holdout", 0.3, "--methods", "popularity", "--seeds", 2)
    code, printed, err = run("bench", "table", *arguments, "--out", tmp_path)
    assert code == 0, err
    assert "DCG@5 (all items)" in printed
    assert "clicks, preset default, protocol honest" in printed
    assert not OF_RATINGS.search(printed), printed


def test_bench_tables_of_a_dataset_read_as_clicks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng, coat = np.random.default_rng(0), tmp_path / "coat"
    coat.mkdir()
    for name in ("train", "test"):
        ratings = rng.integers(1, 6, (30, 20)) * (rng.random((30, 20)) < 0.4)
        np.savetxt(coat / f"{name}.ascii", ratings, fmt="%d")
    monkeypatch.setenv("COUNTERPOISE_DATA", str(tmp_path))
    common = ("bench", "table", "--datasets", "coat", "--seeds", 2, "--out", tmp_path / "results")
    code, printed, err = run(*common, "--feedback", "clicks", "--methods", "popularity")
    assert code == 0, err
    assert "NDCG@5" in printed
    assert "MAP@5: the sum over positives at ranks r <= k" in printed
    assert "tested on uniform pairs of both kinds" in printed
    assert not OF_RATINGS.search(printed), printed
    code, printed, err = run(*common, "--methods", "popularity", "--name", "ratings")  # another fit of the same names
    assert code == 0, err
    assert "coat, preset default" in printed


def test_bench_refuses_methods_of_ratings_for_clicks(folder: Path, tmp_path: Path) -> None:
    common: tuple[Any, ...] = (
        "bench",
        "table",
        "--datasets",
        folder / "clicks.csv",
        "--holdout",
        0.3,
        "--out",
        tmp_path,
    )
    code, _, err = run(*common, "--methods", "mf")
    assert code == 2
    assert "'mf' learns from ratings or impressions" in err
    code, _, err = run(*common, "--methods", "probe-learners")
    assert code == 2
    assert one_line(err)
