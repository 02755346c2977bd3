"""Experiments: resumable, shared by processes, with the same results for any number of them."""

from __future__ import annotations

import csv
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from counterpoise import DataError, evaluate, make, simulate
from counterpoise.bench import jobs, runner
from counterpoise.bench.datasets import BENCH_DATASETS, BenchDataset, find_dataset, find_datasets
from counterpoise.bench.jobs import Job
from counterpoise.bench.methods import find_methods
from counterpoise.bench.protocol import COMPARED
from counterpoise.bench.protocol import sheets as effect_sheets
from counterpoise.bench.published import published_on
from counterpoise.bench.store import Store
from counterpoise.bench.sweep import FIGURES, points, sheets, sweep_job
from counterpoise.bench.tables import Sheet, write_sheets
from counterpoise.bench.tuning import settings_sheets, tuned_jobs, tuning_jobs
from counterpoise.cli.bench import join_lists, numbers
from counterpoise.cli.main import main
from counterpoise.data.protocols import PROTOCOLS
from counterpoise.errors import ConfigError, CounterpoiseError
from counterpoise.evaluation.evaluate import metrics_and_replicates
from counterpoise.evaluation.metrics import METRIC_NAMES
from counterpoise.tuning.study import Study

QUICK = {"epochs": 3, "dim": 2}
UNIFORM = {"test_kind": "uniform"}


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A folder with a biased log and unbiased ratings, of which the first user's are all 0."""
    folder = tmp_path_factory.mktemp("small")
    simulated = simulate(n_users=30, n_items=20, density=0.2, seed=3)
    assert simulated.dataset.test is not None
    for name, log in (("train", simulated.dataset.train), ("test", simulated.dataset.test)):
        labels = log.labels * (log.users > 0) if name == "test" else log.labels
        rows = zip(log.users, log.items, labels, strict=True)
        lines = ["user_id,item_id,rating", *(f"{user},{item},{label:g}" for user, item, label in rows)]
        (folder / f"{name}.csv").write_text("\n".join(lines) + "\n")
    return str(folder)


def jobs_of(data: str, methods: tuple[str, ...] = ("mf", "dr-v2"), seeds: int = 2) -> list[Job]:
    return [Job(data, method, seed, settings=QUICK) for seed in range(seeds) for method in methods]


def results(store: Store, made: list[Job]) -> list[dict[str, Any]]:
    """Rows without what depends on the clock."""
    rows = [store.read(job) for job in made]
    return [{name: value for name, value in (row or {}).items() if name != "seconds"} for row in rows]


def test_the_set_paper_is_the_papers_table() -> None:
    assert [method.title for method in find_methods(["paper"])] == list(published_on("paper", "coat"))
    assert {method.name for method in find_methods(["baselines", "balancing", "counterpoise"])} == {
        method.name for method in find_methods(["all"])
    }


def test_kernel_method_without_its_kernel_is_gaussian() -> None:
    found = find_methods(["akb-dr", "AKBDR-Exp", "akb-dr-gau"])
    assert [method.title for method in found] == ["AKBDR-Gau", "AKBDR-Exp"]
    assert found[1].build(4).weights.functions.kernel.to_config()["part"] == "Exponential"
    assert found[1].build(4).training.seed == 4


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("als", "must be among"),
        ("nowhere:build", "cannot be imported"),
        ("json:build", "has no 'build'"),
        ("math:pi", "'math:pi' must be a function of a seed that builds a model, got 3.14"),
    ],
)
def test_unknown_method_error_says_what_to_do(name: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        find_methods([name])


def test_a_method_of_a_plugin_is_found_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    plugins = EntryPoints([EntryPoint("own-mf", "counterpoise:make", "counterpoise.methods")])
    monkeypatch.setattr("counterpoise.bench.methods.entry_points", lambda group: plugins.select(group=group))
    (method,) = find_methods(["own-mf"])
    assert (method.group, method.build) == ("own", make)


def test_sets_without_a_method_for_the_feedback_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"`methods`: none of 'paper' learns from clicks\. Use all, or name some"):
        find_methods(["paper"], "clicks")
    with pytest.raises(ConfigError, match="`datasets` and `methods` must name at least one each"):
        jobs.plan(["coat-like"], [], 1, ["default"], ["honest"])


def test_unknown_dataset_error_lists_datasets() -> None:
    with pytest.raises(ConfigError, match="coat-like"):
        find_dataset("cot")


def test_missing_dataset_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("COUNTERPOISE_DATA", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert "Webscope" in (BENCH_DATASETS["yahoo-r3"].missing() or "")
    assert BENCH_DATASETS["coat-like"].missing() is None


@pytest.mark.cpu
def test_a_row_has_the_metrics_of_evaluate(small: str) -> None:
    job = Job(small, "mf", 1, settings=QUICK, read_options=UNIFORM)
    row, dataset = job.measure(), find_dataset(small).load("honest", 1, read_options=UNIFORM)
    model = make("mf", seed=1, **QUICK).fit(dataset.train, probe=dataset.probe)
    assert dataset.test is not None
    expected, empty = evaluate(model, dataset.test, bootstrap=0), np.bincount(dataset.test.users, dataset.test.labels)
    assert {name: row["metrics"][name] for name in METRIC_NAMES} == {n: getattr(expected, n) for n in METRIC_NAMES}
    share = float((empty[np.unique(dataset.test.users)] == 0).mean())
    assert share > 0
    assert row["metrics"]["ndcg_one"] == pytest.approx((1 - share) * expected.ndcg + share)
    assert row["metrics"]["f1_one"] == pytest.approx((1 - share) * expected.f1)
    assert json.loads(json.dumps(row)) == row
    assert len(row["replicates"]["auc"]) == 200


def test_fit_evaluate_and_bench_show_the_same_numbers(
    small: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings, run = ["--set", "epochs=5", "--set", "device=cpu"], str(tmp_path / "run")
    shown = []
    for command in (
        ["fit", small, "--method", "mf", *settings, "--out", run],
        ["evaluate", run, f"{small}/test.csv"],
        ["bench", "table", "--datasets", small, "--methods", "mf", "--seeds", "1", *settings, "--out", str(tmp_path)],
    ):
        assert main([*command, "--json"]) == 0
        shown.append(json.loads(capsys.readouterr().out))
    cells = shown[2]["sections"][0]["lines"][0]["cells"]
    assert list(cells) == ["auc", "ndcg", "f1"]
    for name, cell in cells.items():
        assert shown[0]["evaluation"][name] == pytest.approx(cell["mean"])
        assert shown[1][name] == pytest.approx(cell["mean"])


def test_resampled_users_are_those_of_evaluate(small: str) -> None:
    test = find_dataset(small).load("honest", 0).test
    assert test is not None
    scores = np.random.default_rng(0).random(len(test))
    _, resampled = metrics_and_replicates(scores, test, 5, replicates=200)
    for name, expected in evaluate(scores, test).intervals.items():
        assert tuple(np.nanquantile(resampled[name], [0.025, 0.975])) == pytest.approx(expected)
    _, perfect = metrics_and_replicates(test.labels, test, 5, replicates=200)
    assert perfect["ndcg"] == pytest.approx(np.ones(200))
    assert np.array_equal(np.isnan(perfect["auc"]), np.isnan(resampled["auc"]))


def test_results_do_not_depend_on_the_order_of_jobs(small: str, tmp_path: Path) -> None:
    jobs, first, second = jobs_of(small), Store(tmp_path / "a"), Store(tmp_path / "b")
    runner.run(jobs, first)
    runner.run(jobs[::-1], second, processes=2)
    assert results(first, jobs) == results(second, jobs)


def test_a_worker_that_stops_keeps_the_results_so_far(small: str, tmp_path: Path) -> None:
    jobs, store = [*jobs_of(small, seeds=1), Job("nowhere", "mf", 0)], Store(tmp_path)
    jobs[2].__dict__["config_hash"] = "broken"
    with pytest.raises(CounterpoiseError, match="a worker stopped before the end"):
        runner.run(jobs, store, processes=2)
    assert [store.has(job) for job in jobs] == [True, True, False]


def test_result_that_was_deleted_is_named(small: str, tmp_path: Path) -> None:
    jobs, store = jobs_of(small), Store(tmp_path)
    store.open()
    store.path(jobs[0]).write_text(json.dumps({"failed": None}))
    with pytest.raises(DataError, match=f"{jobs[1].file_name}.json was deleted in the meantime. Start the same"):
        store.read_all(jobs)


def test_failures_alone_are_made_again_and_locks_removed(small: str, tmp_path: Path) -> None:
    jobs, store = jobs_of(small), Store(tmp_path)
    store.open()
    for job, failed in zip(jobs, (None, "diverged", None), strict=False):
        store.path(job).write_text(json.dumps({"failed": failed}))
    locks = [store.path(job).with_suffix(".lock") for job in jobs]
    for lock in locks:
        lock.touch()  # as a killed process leaves it
    store.delete_failures(jobs)
    assert [store.has(job) for job in jobs] == [True, False, True, False]
    store.delete_stale_locks(jobs)
    assert [lock.exists() for lock in locks] == [False, True, False, True]  # others may be at work on the rest


def test_finished_fit_is_not_repeated(small: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs, store, seen = jobs_of(small), Store(tmp_path), []
    runner.run(jobs[:2], store)
    monkeypatch.setattr(Job, "measure", lambda job: seen.append(job) or {"failed": None})
    counts: list[tuple[int, int]] = []
    runner.run(jobs, store, progress=lambda done, total: counts.append((done, total)))
    assert seen == jobs[2:]
    assert counts[0] == (2, 4)
    assert counts[-1] == (4, 4)


def test_two_runs_on_one_folder_share_the_fits(small: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs, store, seen = jobs_of(small, seeds=4), Store(tmp_path), []

    def slow(job: Job) -> dict[str, Any]:
        seen.append((job.method, job.seed))
        time.sleep(0.05)
        return {"failed": None}

    monkeypatch.setattr(Job, "measure", slow)
    threads = [threading.Thread(target=runner.run, args=(jobs, store)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(seen) == sorted((job.method, job.seed) for job in jobs)
    assert not list(tmp_path.rglob("*.lock"))


def test_killed_table_resumes_with_the_same_result(small: str, tmp_path: Path) -> None:
    arguments = ["bench", "table", "--datasets", small, "--methods", "mf", "ips", "dr-v2", "--seeds", "3", "--quiet"]
    arguments += ["--set", "epochs=60", "--set", "dim=2", "--out"]
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    command = [sys.executable, "-m", "counterpoise.cli.main", *arguments, str(broken), "--jobs", "2"]
    process = subprocess.Popen(command, start_new_session=True)
    while not list(broken.glob("fits/*.json")):
        assert process.poll() is None
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    stored = {path: path.stat().st_mtime_ns for path in broken.glob("fits/*.json")}
    assert not (broken / "table.csv").exists()
    assert main([*arguments, str(broken)]) == 0
    assert main([*arguments, str(whole)]) == 0
    assert all(path.stat().st_mtime_ns == then for path, then in stored.items())
    tables = []
    for folder in (whole, broken):
        with (folder / "table.csv").open() as stream:
            tables.append([{k: v for k, v in row.items() if k != "seconds"} for row in csv.DictReader(stream)])
    assert tables[0] == tables[1]
    assert len(tables[0]) == 3 * 3


def test_a_damaged_result_is_named(small: str, tmp_path: Path) -> None:
    job, store = jobs_of(small)[0], Store(tmp_path)
    store.open()
    store.path(job).write_text("{")
    with pytest.raises(DataError, match=r"Delete it"):
        store.read(job)


def test_user_method_stands_in_the_table(
    small: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    own = tmp_path / "my_methods.py"
    own.write_text(
        "import numpy as np\n"
        "class Mean:\n"
        "    def fit(self, log, probe=None):\n        self.rate = log.labels.mean()\n        return self\n"
        "    def predict_log(self, log):\n        return np.full(len(log), self.rate)\n"
        "def constant(seed):\n    return Mean()\n"
        "def broken(seed):\n    raise RuntimeError('not yet')\n"
    )
    monkeypatch.chdir(tmp_path)
    arguments = ["bench", "table", "--datasets", small, "--methods", "mf", "my_methods:constant", "--seeds", "2"]
    assert main([*arguments, "--out", "results"]) == 0
    row = json.loads(next(Path("results/fits").glob("*my_methods_constant*seed0*")).read_text())
    assert row["metrics"]["auc"] == pytest.approx(0.5, abs=1e-12)
    assert "constant" in capsys.readouterr().out
    with pytest.raises(ConfigError, match="'my_methods:constant' is no recommender of counterpoise: settings do not"):
        Job(small, "my_methods:constant", 0, settings=QUICK).model()
    before = Job(small, "my_methods:constant", 0).config_hash
    own.write_text(own.read_text() + "# changed\n")
    assert Job(small, "my_methods:constant", 0).config_hash != before


def test_failed_fit_gives_its_reason_and_can_be_retried(
    small: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["bench", "table", "--datasets", small, "--methods", "mf", "--seeds", "1", "--set", "epochs=3"]
    arguments += ["--set", "learning_rate=1e30", "--out", str(tmp_path)]
    assert main(arguments) == 0
    assert "diverged" in capsys.readouterr().out
    assert ",nan," not in (tmp_path / "table.csv").read_text()
    path = next(tmp_path.glob("fits/*.json"))
    then = path.stat().st_mtime_ns
    assert main(arguments) == 0
    assert path.stat().st_mtime_ns == then
    assert main([*arguments, "--retry"]) == 0
    assert path.stat().st_mtime_ns != then


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["table", "--methods", "als"], "must be among"),
        (["table", "--datasets", "nowhere.csv"], "`datasets` must be among"),
        (["table", "--datasets", "coat-like", "--seeds", "0"], "`seeds` must be an integer >= 1"),
        (["table", "--datasets", "coat-like", "--set", "dims=3"], "`dims` is unknown"),
        (["table", "--datasets", "coat-like", "--preset", "big"], "`preset` must be one of"),
        (["table", "--datasets", "coat-like", "--metrics", "ndcg_zero"], "`metrics` must be one of"),
        (["sweep", "--parameter", "dim", "--datasets", "coat-like"], "`values` must be given"),
        (["sweep", "--parameter", "n_functions", "--values", "1,x", "--datasets", "coat-like"], "must be numbers"),
        (["sweep", "--parameter", "depth", "--values", "1", "--datasets", "coat-like"], "must be a setting of a"),
        (["protocol-effect", "--datasets", "coat-like", "--methods", "mf"], "its protocol is 'honest'"),
    ],
)
def test_mistake_is_a_one_line_error_before_any_fit(
    arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", *arguments, "--out", str(tmp_path / "results")]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert not (tmp_path / "results").exists()


def test_lists_may_be_written_with_spaces() -> None:
    words = ["bench", "table", "--methods", "mf", "ips", "--seeds", "2", "--datasets", "coat,", "coat-like", "--quiet"]
    expected = ["bench", "table", "--methods", "mf,ips", "--seeds", "2", "--datasets", "coat,coat-like", "--quiet"]
    assert join_lists(words) == expected
    assert numbers("values", "1, 0.5,30") == [1, 0.5, 30]


def test_sweep_sets_the_number_of_functions(small: str, tmp_path: Path) -> None:
    plan = [
        pair
        for seed in range(2)
        for method in ("mf", "mb-ips", "rkb-ips-gau")
        for pair in sweep_job(Job(small, method, seed, settings=QUICK), "n_functions", (1, 2))
    ]
    assert [(job.method, value) for job, value in plan[:5]] == [
        ("mf", None),
        *(("mb-ips", value) for value in (1, 2)),
        *(("rkb-ips-gau", value) for value in (1, 2)),
    ]
    assert sweep_job(Job(small, "wkb-ips-gau", 0), "n_functions", (1, 2))[0][1] is None  # it takes all at once
    assert plan[1][0].settings["order"] == 1
    assert plan[3][0].settings["n"] == 1
    store = Store(tmp_path)
    runner.run([job for job, _ in plan], store)
    found = points([value for _, value in plan], store.read_all(job for job, _ in plan), ["auc"])
    rows = {(j.method, v, j.seed): (store.read(j) or {})["metrics"]["auc"] for j, v in plan}
    level = [np.mean([auc for (_, _, seed), auc in rows.items() if seed == s]) for s in range(2)]
    for point in found:
        values = [rows[point.method, point.value, seed] for seed in range(2)]
        assert point.mean == pytest.approx(np.mean(values))
        assert point.std == pytest.approx((5 / 4) ** 0.5 * np.std(np.array(values) - level, ddof=1))  # 5 points
    assert [row["n_functions"] for row in sheets(found, "n_functions")[0].rows] == [None, 1, 2, 1, 2]


def test_sweep_writes_a_picture_and_tables(small: str, tmp_path: Path) -> None:
    arguments = ["bench", "sweep", "--parameter", "strength", "--values", "1", "5", "--datasets", small, "--quiet"]
    arguments += ["--methods", "mf", "mb-ips", "--seeds", "1", "--set", "epochs=3", "--out", str(tmp_path)]
    assert main(arguments) == 0
    assert (tmp_path / "sweep-strength.png").read_bytes().startswith(b"\x89PNG")
    assert "gamma" in (tmp_path / "sweep-strength.svg").read_text()
    assert "MBIPS" in (tmp_path / "sweep-strength.md").read_text()


def test_figures_have_defaults_in_the_units_of_the_preset(small: str, tmp_path: Path) -> None:
    settings = ["--seeds", "1", "--set", "epochs=1", "--datasets", small, "--quiet", "--out", str(tmp_path)]
    for preset, words in (("default", "SD units"), ("paper", "raw units")):
        command = ["bench", "sweep", "--parameter", "strength", "--preset", preset, "--name", preset, *settings]
        assert main([*command, "--methods", "mf", "akb-ips", "dr-jl", "akb-dr"]) == 0
        assert words in (tmp_path / f"{preset}.svg").read_text()
        rows = json.loads((tmp_path / f"{preset}.json").read_text())[0]["rows"]
        values = [row["strength"] for row in rows if row["method"] == "AKBDR-Gau" and row["metric"] == "auc"]
        assert tuple(values) == getattr(FIGURES["strength"], "values" if preset == "default" else "paper_values")


def test_figures_name_methods_of_both_families() -> None:
    for figure in FIGURES.values():
        assert {method.family for method in find_methods(figure.methods.split(","))} == {"naive", "ips", "dr"}


def test_datasets_of_the_paper_have_stand_ins(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("COUNTERPOISE_DATA", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    names = [dataset.name for dataset in find_datasets(["paper", "music-like"])]
    assert names == ["coat-like", "music-like", "product-like"]
    monkeypatch.setattr(BenchDataset, "missing", lambda self: None)
    assert [dataset.name for dataset in find_datasets(["paper"])] == ["coat", "yahoo-r3", "kuairec"]


def test_protocol_difference_is_paired_over_seeds(small: str, tmp_path: Path) -> None:
    jobs = [
        Job(small, "mf", seed, protocol=split, settings=QUICK, read_options=UNIFORM)
        for seed in range(2)
        for split in COMPARED
    ]
    store = Store(tmp_path)
    runner.run(jobs, store)
    auc = {(job.protocol, job.seed): (store.read(job) or {})["metrics"]["auc"] for job in jobs}
    row = effect_sheets(store.read_all(jobs))[0].rows[0]
    gaps = [auc["paper", seed] - auc["honest", seed] for seed in range(2)]
    assert row["difference"] == pytest.approx(np.mean(gaps))
    assert row["std"] == pytest.approx(np.std(gaps, ddof=1))


def write_coat(folder: Path) -> None:
    """Files as those of Coat: 20 x 15 ratings, 0 where there is none."""
    folder.mkdir()
    for name, seed in (("train", 1), ("test", 2)):
        rng = np.random.default_rng(seed)
        np.savetxt(folder / f"{name}.ascii", rng.integers(1, 6, (20, 15)) * (rng.random((20, 15)) < 0.5), fmt="%d")


def test_table_of_a_published_protocol_has_its_test_metrics_and_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_coat(tmp_path / "coat")
    monkeypatch.setenv("COUNTERPOISE_DATA", str(tmp_path))

    def section(protocol: str, *methods: str) -> dict[str, Any]:
        words = ["bench", "table", "--methods", *methods, "--seeds", "1", "--set", "epochs=2", "--json"]
        assert main([*words, "--protocol", protocol, "--out", str(tmp_path / "out")]) == 0
        (found,) = json.loads(capsys.readouterr().out)["sections"]
        return dict(found) | {"cells": {line["title"]: line["cells"] for line in found["lines"]}}

    cells = section("cdr", "mf", "dr-jl")["cells"]
    assert list(cells["MF"]) == ["auc", "ndcg", "recall"]
    assert cells["DR-JL"]["recall"]["published"]["mean"] == 0.636
    text = (tmp_path / "out" / "table.md").read_text()
    assert "Published: CDR: Conservative Doubly Robust Learning" in text
    assert "TDR 0.739 / 0.638 / 0.653" in text  # which is not fitted
    assert section("d-dr", "mf")["cells"]["MF"]["ndcg"]["published"]["mean"] == 0.617
    clicks = section("counter-if", "wmf", "bpr")
    assert clicks["feedback"] == "clicks"
    assert clicks["cells"]["WMF"]["map"]["published"] is None  # theirs is another model
    assert clicks["cells"]["BPR"]["map"]["published"]["mean"] == 0.290
    for name, reason in (("kdcrec", "is of yahoo-r3, got 'coat'"), ("cdrr", "Did you mean 'cdr'?")):
        assert main(["bench", "table", "--methods", "mf", "--protocol", name]) == 2
        assert reason in capsys.readouterr().err


def test_protocols_are_listed_and_shown_by_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "protocols", "--json"]) == 0
    listed, constructions = json.loads(capsys.readouterr().out)["sheets"]
    assert [row["name"] for row in listed["rows"]] == list(PROTOCOLS)
    assert [row["protocol"] for row in constructions["rows"]] == ["schnabel", "mrdr"]
    assert main(["bench", "protocols", "d-dr", "kdcrec", "--out", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert ".778/.658" in printed  # D-IPS on Coat
    assert "not known: what leaves the test" in printed
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        *("protocols-2.csv", "protocols.csv", "protocols.json", "protocols.md")
    ]
    assert main(["bench", "protocols", "d-d"]) == 2
    assert "Did you mean 'd-dr'?" in capsys.readouterr().err


def test_named_baseline_is_what_all_others_are_tested_against(
    small: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["bench", "table", "--datasets", small, "--methods", "mf", "ips", "eib", "--seeds", "5", "--test-kind"]
    words += ["uniform", "--set", "epochs=3", "--set", "dim=2", "--out", str(tmp_path), "--baseline"]
    assert main([*words, "IPS", "--json"]) == 0
    (section,) = json.loads(capsys.readouterr().out)["sections"]
    found = {line["title"]: line["cells"]["auc"]["comparison"] for line in section["lines"]}
    assert found["IPS"] is None
    assert {title: one["against"] for title, one in found.items() if one} == {"MF": "IPS", "EIB": "IPS"}
    assert main([*words, "ibs"]) == 2
    message = "`baseline` must be a method of this table, among mf, ips, eib, got 'ibs'. Did you mean 'ips'"
    assert message in capsys.readouterr().err


def test_names_stay_text_in_a_sheet(tmp_path: Path) -> None:
    sheet = Sheet("a|b", ("name", "value"), [{"name": "<b>|", "value": 0.25}, {"name": "c", "value": None}])
    paths = write_sheets([sheet, sheet], tmp_path, "facts")
    assert sorted(path.name for path in paths) == ["facts-2.csv", "facts.csv", "facts.json", "facts.md"]
    assert r"\<b\>\|" in (tmp_path / "facts.md").read_text()
    assert (tmp_path / "facts.csv").read_text() == "name,value\n<b>|,0.25\nc,\n"


def test_a_log_alone_is_compared_on_a_holdout(small: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["bench", "table", "--datasets", f"{small}/train.csv", "--methods", "popularity,mf", "--seeds", "1"]
    words += ["--set", "epochs=2", "--out", str(tmp_path / "out")]
    assert main(words) == 2
    assert (
        "has no test to compare methods on: hold rows out (`holdout`), or give it a test.csv" in capsys.readouterr().err
    )
    assert main([*words, "--holdout", "0.3", "--by", "user"]) == 0
    assert (
        f"Biased test of {small}/train.csv (honest protocol): weighted estimates over all pairs"
        in capsys.readouterr().out
    )
    job = Job(f"{small}/train.csv", "mf", 0, settings=QUICK, read_options={"holdout": 0.3, "by": "user"})
    row, data = job.measure(), job.load()
    assert row["failed"] is None
    expected = evaluate(make("mf", **QUICK).fit(data.train), data.test, weights="balanced", train=data.train)  # type: ignore[arg-type]
    assert row["metrics"]["auc"] == pytest.approx(expected.auc)
    whole = find_dataset(f"{small}/train.csv").load("honest", 0, read_options={"by": "random", "holdout": 0.3})
    assert whole.test is not None
    assert whole.test.sample == "biased"
    own = ["--datasets", small, "--methods", "mf", "--seeds", "1", "--set", "epochs=1", "--out", str(tmp_path / "own")]
    for other in (["sweep", "--parameter", "dim", "--values", "2"], ["protocol-effect"]):
        assert main(["bench", *other, *own]) == 0
        assert f"Biased test of {small} (honest protocol)" in capsys.readouterr().out
    assert main(["bench", "table", "--datasets", small, *words[4:], "--test-kind", "uniform"]) == 0
    assert "Biased test of" not in capsys.readouterr().out


def test_changed_data_change_the_config_hash(small: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(small, "d")
    before = Job("d", "mf", 0).config_hash
    text = Path("d/test.csv").read_text()
    Path("d/test.csv").write_text(text[:-2] + ("0" if text[-2] == "1" else "1") + "\n")
    jobs._fingerprint.cache_clear()
    assert Job("d", "mf", 0).config_hash != before


def test_sweep_with_only_failures_gives_the_reason(
    small: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["bench", "sweep", "--parameter", "dim", "--values", "0.5", "--datasets", small, "--methods", "mf"]
    assert main([*arguments, "--seeds", "1", "--out", str(tmp_path)]) == 2
    assert "`dim` must be an integer >= 0" in capsys.readouterr().err
    arguments.insert(6, "2")
    assert main([*arguments, "--seeds", "1", "--set", "epochs=2", "--out", str(tmp_path)]) == 0
    assert "`dim` must be an integer >= 0" in capsys.readouterr().out


def test_missing_datasets_are_an_error_and_write_no_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COUNTERPOISE_DATA", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for command in ("table", "protocol-effect"):
        assert main(["bench", command, "--datasets", "yahoo-r3", "--methods", "mf", "--out", str(tmp_path / "r")]) == 2
        assert "Webscope" in capsys.readouterr().err
    assert not list((tmp_path / "r").glob("*.md"))


def test_datasets_that_were_found_stand_beside_the_missing(
    small: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COUNTERPOISE_DATA", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    common = ["--datasets", f"yahoo-r3,{small}", "--methods", "mf", "--seeds", "1", "--out", str(tmp_path / "r")]
    common += ["--set", "epochs=2"]
    assert main(["bench", "table", *common]) == 0
    table = capsys.readouterr().out
    assert table.index("AUC") < table.index("datasets not found") < table.index("Webscope")
    assert main(["bench", "sweep", "--parameter", "dim", "--values", "1,2", *common]) == 0
    assert "yahoo-r3 is missing. " in capsys.readouterr().out


def test_missing_threshold_is_an_error_before_the_first_fit(
    small: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = tmp_path / "stars"
    shutil.copytree(small, data)
    (data / "train.csv").write_text((data / "train.csv").read_text().replace(",1\n", ",5\n"))
    assert main(["bench", "table", "--datasets", str(data), "--methods", "mf", "--out", str(tmp_path / "r")]) == 2
    assert "`threshold`" in capsys.readouterr().err
    assert not (tmp_path / "r").exists()


def test_device_is_cpu_unless_set(small: str) -> None:
    assert Job(small, "mf", 0).model().training.device == "cpu"
    assert Job(small, "mf", 0, settings={"device": "auto"}).model().training.device == "auto"


def test_the_preset_of_the_paper_has_its_settings() -> None:
    model = Job("coat-like", "AKBDR-Gau", 0, "paper").model()
    weights, training = model.weights, model.training
    assert (weights.solver, weights.units, weights.features) == ("gradient", "raw", "embeddings")
    assert (weights.functions.n, weights.strength, weights.tolerance) == (3, 0.1, 1e-4)
    assert (training.batch_size, training.pairs, training.device) == (128, 5, "cpu")
    for part in (model.backbone, weights.embedder):
        assert (part.dim, part.biases) == (4, False)
    music = Job("music-like", "AKBDR-Gau", 0, "paper").model()
    assert (music.weights.functions.n, music.weights.strength, music.weights.tolerance) == (5, 10, 0.1)
    assert (music.training.batch_size, music.training.pairs) == (2048, 4)
    assert Job("music-like", "akb-dr-exp", 0, "paper").model().weights.tolerance == 0.05
    assert Job("product-like", "skb-ips", 0, "paper").model().weights.tolerance == 1e-2
    moments, worst = (Job("coat-like", name, 0, "paper").model().weights for name in ("mb-dr", "wkb-dr"))
    assert (moments.strength, moments.tolerance, moments.functions.order) == (1.0, 1e-4, 2)
    assert worst.strength == Job("coat-like", "wkb-dr", 0).model().weights.strength


def test_settings_override_the_preset_by_any_name(small: str) -> None:
    for settings in ({"strength": 7.0}, {"weights__strength": 7.0}, {"weights": {"strength": 7.0}}):
        assert Job(small, "akb-ips", 0, "paper", settings=settings).model().weights.strength == 7.0
    other = Job(small, "akb-ips", 0, "paper", settings={"weights": "logistic", "backbone": "ncf", "epochs": 2}).model()
    assert (type(other.weights).__name__, type(other.backbone).__name__) == ("Logistic", "NeuralCF")
    assert (other.training.epochs, other.training.batch_size) == (2, 2048)


def test_every_method_can_be_fitted_under_the_preset_of_the_paper(small: str) -> None:
    for method in ("rkb-ips", "wkb-dr", "akb-dr-exp", "skb-dr", "mb-ips", "mr", "counterpoise", "sdr"):
        assert Job(small, method, 0, "paper", settings={"epochs": 1}).measure()["failed"] is None


# Tuning


@pytest.fixture
def tuned_table(small: str, tmp_path: Path) -> list[str]:
    pytest.importorskip("optuna")
    arguments = ["bench", "table", "--datasets", small, "--methods", "mf", "skb-ips", "--seeds", "2", "--tune", "3"]
    return [*arguments, "--set", "epochs=3", "--set", "dim=2", "--quiet", "--out", str(tmp_path)]


def test_tuned_table_fits_all_seeds_with_the_settings_found(small: str, tuned_table: list[str], tmp_path: Path) -> None:
    assert main(tuned_table) == 0
    searches = [json.loads(path.read_text()) for path in tmp_path.glob("fits/tuning.*.json")]
    assert [
        (row["method"], row["failed"], len(row["tried"])) for row in sorted(searches, key=lambda r: r["method"])
    ] == [
        ("mf", None, 3),
        ("skb-ips-gau", None, 3),
    ]
    for row in searches:
        best = min((trial for trial in row["tried"] if trial["state"] == "complete"), key=lambda trial: trial["risk"])
        assert row["settings"] == best["settings"]
        assert row["validation"]["probe_rows"] == 0
        assert row["validation"]["measure"] == "1 - AUC"
        fits = [json.loads(path.read_text()) for path in tmp_path.glob(f"fits/*.{row['method']}.*seed*.json")]
        assert sorted(fit["seed"] for fit in fits) == [0, 1]
        assert all(fit["settings"] == QUICK | row["settings"] for fit in fits)
    assert not any({"epochs", "dim"} & set(trial["settings"]) for row in searches for trial in row["tried"])
    for ending in ("md", "tex", "json"):
        assert "same budget of 3 trials, by the weighted AUC of" in (tmp_path / f"table.{ending}").read_text()
    assert "SKBIPS-Gau" in (tmp_path / "table-settings.md").read_text()
    facts = json.loads((tmp_path / "table-settings.json").read_text())[0]["rows"]
    assert {fact["method"] for fact in facts} == {"mf", "skb-ips-gau"}


def test_interrupted_tuning_resumes_with_the_same_settings(
    small: str, tuned_table: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(tuned_table) == 0
    expected = (tmp_path / "table-settings.md").read_text()
    kept = {path.name: path.read_bytes() for path in tmp_path.glob("fits/*")}
    assert main(tuned_table) == 0
    assert {path.name: path.read_bytes() for path in tmp_path.glob("fits/*")} == kept
    shutil.rmtree(tmp_path / "fits")
    shutil.rmtree(tmp_path / "studies")
    (job,) = tuning_jobs([Job(small, "mf", 0, settings=QUICK)], 3, tmp_path / "studies")
    finish, calls = Study.finish, []

    def stop_after_two(*arguments: Any) -> None:
        finish(*arguments)
        calls.append(arguments)
        if len(calls) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(Study, "finish", stop_after_two)
    with pytest.raises(KeyboardInterrupt):
        job.measure()
    monkeypatch.setattr(Study, "finish", finish)
    assert main(tuned_table) == 0
    assert (tmp_path / "table-settings.md").read_text() == expected


def test_killed_search_resumes_with_the_same_table(small: str, tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    words = [
        "bench",
        "table",
        "--datasets",
        small,
        "--methods",
        "mf",
        "dr-v2",
        "--seeds",
        "2",
        "--tune",
        "4",
        "--quiet",
    ]
    words += ["--set", "epochs=40", "--set", "dim=2", "--out"]
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    process = subprocess.Popen([sys.executable, "-m", "counterpoise.cli.main", *words, str(broken)])
    while not list(broken.glob("studies/*.db")):
        assert process.poll() is None
        time.sleep(0.01)
    time.sleep(0.3)
    process.kill()
    process.wait()
    assert not (broken / "table.csv").exists()
    for folder in (broken, whole):
        assert main([*words, str(folder)]) == 0
    tables = []
    for folder in (whole, broken):
        assert len(list(folder.glob("fits/tuning.*.json"))) == 2
        with (folder / "table.csv").open() as stream:
            tables.append([{k: v for k, v in row.items() if k != "seconds"} for row in csv.DictReader(stream)])
    assert tables[0] == tables[1]


def test_a_method_with_nothing_to_search_is_fitted_as_it_comes(
    small: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("optuna")
    fixed = ["--set", "epochs=2", "--set", "learning_rate=0.05", "--set", "l2_biases=2"]
    words = ["bench", "table", "--datasets", small, "--seeds", "1", "--tune", "2", *fixed, "--out", str(tmp_path)]
    assert main([*words, "--methods", "popularity", "mf"]) == 0
    assert [json.loads(path.read_text())["method"] for path in tmp_path.glob("fits/tuning.*.json")] == ["mf"]
    capsys.readouterr()
    assert main([*words, "--methods", "popularity", "--name", "alone"]) == 0
    assert "alone-settings.csv" not in capsys.readouterr().out


def test_search_never_sees_probe_labels_nor_test(small: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other unbiased ratings give the same settings, for a method that does not use a probe."""
    pytest.importorskip("optuna")
    (search,) = tuning_jobs([Job(small, "mf", 0, settings=QUICK, read_options=UNIFORM)], 3, None)
    expected = search.measure()
    original = jobs._load

    def flipped(*arguments: Any) -> Any:
        data = original(*arguments)
        assert data.test is not None
        assert data.probe is not None
        log_of = lambda log: replace(log, ratings=1 - log.labels)  # noqa: E731
        return replace(data, probe=log_of(data.probe), test=log_of(data.test))

    monkeypatch.setattr(jobs, "_load", flipped)
    assert search.measure()["best_risk"] == expected["best_risk"]


def test_tuning_leaves_the_missingness_model_and_other_models_alone(small: str, tmp_path: Path) -> None:
    (search,) = tuning_jobs([Job(small, "mnar", 0)], 3, None)
    assert search.fixed == {"imputation__strength": search.job.model().imputation.strength}
    failing = tuning_jobs([Job(small, "mf", 0, settings={"learning_rate": 1e30, "epochs": 3})], 2, None)[0].measure()
    assert "trials is complete" in failing["failed"]
    assert tuned_jobs([search.job], [failing | {"method": "mnar"}]) == [search.job]
    assert settings_sheets([failing])[0].notes[1].startswith("MF is fitted as it comes: its search failed (")


def test_a_search_that_failed_is_said_below_the_table(small: str, tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    words = ["bench", "table", "--datasets", small, "--methods", "mf", "--seeds", "1", "--tune", "1", "--quiet"]
    assert main([*words, "--set", "learning_rate=1e30", "--set", "epochs=3", "--out", str(tmp_path)]) == 0
    assert "MF is fitted as it comes: its search failed" in (tmp_path / "table.md").read_text()


def test_paper_preset_is_tuned_on_its_grid(small: str) -> None:
    first, second = tuning_jobs([Job(small, "akb-ips", 0, preset) for preset in ("default", "paper")], 2, None)
    assert (first.space, second.space) == ("default", "paper")
    assert len({first.file_name, second.file_name, replace(second, trials=3).file_name}) == 3


def test_methods_without_gamma_are_fitted_once_in_a_sweep(small: str) -> None:
    for method in ("wkb-ips-gau", "mnar", "mf"):
        assert [value for _, value in sweep_job(Job(small, method, 0), "strength", (1, 2))] == [None]
        assert [value for _, value in sweep_job(Job(small, method, 0), "tolerance", (1, 2))] == [None]
    assert [job.settings for job, _ in sweep_job(Job(small, "mb-ips", 0), "strength", (1,))] == [
        {"weights__strength": 1}
    ]


def test_table_reads_columns_as_fit_does(small: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "own"
    folder.mkdir()
    for file in Path(small).glob("*.csv"):
        text = file.read_text().replace("user_id,item_id,rating", "who,what,stars").replace(",", ";")
        (folder / file.name).write_text(text)
    words = ["bench", "table", "--methods", "mf", "--seeds", "1", "--set", "epochs=3", "--quiet"]
    columns = ["--user-col", "who", "--item-col", "what", "--rating-col", "stars", "--separator", ";"]
    for data, more in ((small, []), (str(folder), columns)):
        assert main([*words, "--datasets", data, "--out", str(tmp_path / "results"), *more]) == 0
    first, second = [json.loads(file.read_text()) for file in (tmp_path / "results" / "fits").glob("*.json")]
    assert first["metrics"] == second["metrics"]
    assert main([*words, "--datasets", "coat-like", *columns[:2], "--out", str(tmp_path / "results")]) == 2
    assert "`--user-col`: only for files of your own, and `datasets` names none." in capsys.readouterr().err
