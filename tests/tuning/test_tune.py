"""The search of settings: its space, its results, and that the test set does not influence it."""

from __future__ import annotations

import csv
import json
import math
import re
import sys
import tomllib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import counterpoise as cp
from counterpoise.cli.main import main
from counterpoise.evaluation.estimates import Errors, Estimate, Validation, debiased_risk
from counterpoise.methods import METHODS, configure, make
from counterpoise.runs import FitConfig, resolve, to_toml
from counterpoise.training.loop import DivergenceError, Training
from counterpoise.tuning.result import Trial, Tuning
from counterpoise.tuning.search_space import DEFAULT_SPACE, PAPER_SPACE, Dimension, parse, parse_words, search_space
from counterpoise.tuning.tune import is_behind

optuna = pytest.importorskip("optuna")
QUICK: dict[str, Any] = {"settings": {"epochs": 4, "dim": 2}, "folds": 2}


def outcome(found: Tuning) -> list[Any]:
    """The result without times and trial numbers."""
    return [(trial.state, trial.risk, trial.settings) for trial in found.trials] + [found.gain, found.settings]


@pytest.fixture(scope="module")
def dataset() -> cp.Dataset:
    return cp.simulate(n_users=30, n_items=25, density=0.3, test_rows_a_user=10, probe_fraction=0.3).dataset


@pytest.fixture(scope="module")
def found(dataset: cp.Dataset) -> Tuning:
    return cp.tune(dataset, "mf", 6, **QUICK)


# The search


def test_defaults_come_first_and_best_is_never_worse(found: Tuning) -> None:
    assert [trial.default for trial in found.trials] == [True] + [False] * 5
    assert found.trials[0].settings == {}
    assert found.default_risk is not None
    assert found.gain is not None
    assert found.best_risk.value == found.best.risk == min(t.risk for t in found.trials if t.state == "complete")
    assert found.gain.value == pytest.approx(found.default_risk.value - found.best_risk.value)
    assert found.gain.value >= 0
    assert found.settings == {"epochs": 4, "dim": 2, **found.best.settings}
    assert found.make().get_params()["training__epochs"] == 4


def test_trial_risk_is_validation_risk_of_its_settings(found: Tuning, dataset: cp.Dataset) -> None:
    risk = Validation.of(dataset, folds=2).risk(lambda: make("mf", **found.settings))
    assert risk.value == pytest.approx(found.best_risk.value, rel=1e-6)


def test_same_seed_same_search(found: Tuning, dataset: cp.Dataset) -> None:
    assert outcome(cp.tune(dataset, "mf", 6, **QUICK)) == outcome(found)


def test_test_set_does_not_influence_search(found: Tuning, dataset: cp.Dataset) -> None:
    assert dataset.test is not None
    garbage = replace(dataset.test, ratings=np.random.default_rng(0).normal(size=len(dataset.test)))
    assert outcome(cp.tune(replace(dataset, test=garbage), "mf", 6, **QUICK)) == outcome(found)
    assert outcome(cp.tune(dataset.train, "mf", 6, probe=dataset.probe, **QUICK)) == outcome(found)


def stop_after(count: int) -> Callable[[tuple[Trial, ...]], None]:
    def callback(trials: tuple[Trial, ...]) -> None:
        if len(trials) == count:
            raise KeyboardInterrupt

    return callback


def stop_in_the_middle(done: int, planned: int, risk: float) -> None:
    if done > 0.6 * planned:
        raise KeyboardInterrupt


def test_resumed_search_equals_uninterrupted_search(found: Tuning, dataset: cp.Dataset, tmp_path: Path) -> None:
    place = {"storage": f"sqlite:///{tmp_path}/study.db", "exclusive": True}
    with pytest.raises(KeyboardInterrupt):
        cp.tune(dataset, "mf", 6, callback=stop_after(2), **QUICK, **place)
    with pytest.raises(KeyboardInterrupt):
        cp.tune(dataset, "mf", 6, progress=stop_in_the_middle, **QUICK, **place)
    study = optuna.load_study(study_name="counterpoise-mf", storage=place["storage"])
    study.ask()  # as a killed process leaves it: running forever
    assert outcome(cp.tune(dataset, "mf", 6, **QUICK, **place)) == outcome(found)
    assert len(cp.tune(dataset, "mf", 3, **QUICK, **place).trials) == 6  # finished trials stay


def test_study_of_another_problem_is_refused(dataset: cp.Dataset, tmp_path: Path) -> None:
    place = {"storage": f"sqlite:///{tmp_path}/study.db", "exclusive": True}
    cp.tune(dataset, "mf", 1, **QUICK, **place)
    with pytest.raises(cp.ConfigError, match="differs in data, settings"):
        cp.tune(dataset.train, "mf", 1, settings={"epochs": 3}, folds=2, **place)


def test_study_without_finished_trials_is_replaced(dataset: cp.Dataset, tmp_path: Path) -> None:
    place = {"storage": f"sqlite:///{tmp_path}/study.db", "exclusive": True}
    with pytest.raises(cp.ConfigError, match="`probe` must be given"):
        cp.tune(dataset.train, "ips", 1, name="one", **QUICK, **place)
    assert len(cp.tune(dataset, "ips", 1, name="one", **QUICK, **place).trials) == 1


def test_parallel_trials_have_the_risk_of_single_fits(dataset: cp.Dataset) -> None:
    found = cp.tune(dataset, "mf", 7, parallel_trials=3, **QUICK)
    assert [trial.default for trial in found.trials] == [True] + [False] * 6
    assert len({str(trial.settings) for trial in found.trials}) == 7
    alone = Validation.of(dataset, folds=2).risk(lambda: make("mf", **found.settings))
    assert alone.value == pytest.approx(found.best_risk.value, rel=1e-5)
    assert outcome(cp.tune(dataset, "mf", 7, parallel_trials=3, **QUICK)) == outcome(found)


def test_resumed_parallel_search_equals_uninterrupted_search(dataset: cp.Dataset, tmp_path: Path) -> None:
    storage = f"sqlite:///{tmp_path / 'study.db'}"

    def stop(done: tuple[Trial, ...]) -> None:
        if len(done) == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cp.tune(dataset, "mf", 7, parallel_trials=3, storage=storage, exclusive=True, callback=stop, **QUICK)
    broken = cp.tune(dataset, "mf", 7, parallel_trials=3, storage=storage, exclusive=True, **QUICK)
    assert outcome(broken) == outcome(cp.tune(dataset, "mf", 7, parallel_trials=3, **QUICK))


@pytest.mark.parametrize("parallel_trials", [1, 4])
def test_repeated_settings_are_not_fitted_again(parallel_trials: int, dataset: cp.Dataset) -> None:
    made: list[Any] = []
    seen: list[int] = []

    def counted(method: str, **settings: Any) -> cp.DebiasedRecommender:
        if "seed" in settings:  # to be fitted
            made.append(settings.get("l2"))
        return make(method, **settings)

    search = {"space": "own", "search": {"l2": [4.0, 5.0]}}  # 4 is the default
    found = cp.tune(
        dataset,
        "mf",
        9,
        parallel_trials=parallel_trials,
        progress=lambda done, *_: seen.append(done),
        build=counted,
        **search,
        **QUICK,
    )
    assert seen[-1] == 9 * 2 * 100
    assert len(found.trials) == 9
    first = {trial.settings.get("l2", 4.0): trial for trial in reversed(found.trials)}
    assert set(first) == {4.0, 5.0}
    for trial in found.trials:
        earlier = first[trial.settings.get("l2", 4.0)]
        assert (trial.state, trial.risk) == (earlier.state, earlier.risk)
        assert trial is earlier or trial.seconds == 0
    fits = [sum(value in asked for value in made) for asked in ((None, 4.0), (5.0,))]
    assert fits[0] == 2  # one a fold
    assert 1 <= fits[1] <= 2  # it may be pruned after the first


def test_diverging_trial_does_not_fail_parallel_trials(dataset: cp.Dataset) -> None:
    tried = cp.tune(dataset, "mf", 5, parallel_trials=4, search={"learning_rate": [0.05, 1e30]}, space="own", **QUICK)
    failed = {trial.settings.get("learning_rate"): trial.state == "failed" for trial in tried.trials[1:]}
    assert failed == {0.05: False, 1e30: True}


def test_parallel_map_over_folds_changes_no_result(dataset: cp.Dataset) -> None:
    search: dict[str, Any] = {"space": "own", "search": {"learning_rate": [0.05, 3.0, 1e30]}, **QUICK}
    spread = cp.tune(
        dataset, "mf", 4, parallel_map=lambda function, calls: (function(*call) for call in calls), **search
    )
    assert outcome(spread) == outcome(cp.tune(dataset, "mf", 4, **search))
    assert len({trial.state for trial in spread.trials}) > 1


def test_diverging_fit_is_a_failed_trial(dataset: cp.Dataset) -> None:
    tried = cp.tune(dataset, "mf", 3, space="own", search={"learning_rate": "1e18:1e20:log"}, **QUICK)
    assert [trial.state for trial in tried.trials] == ["complete", "failed", "failed"]
    assert "diverged" in str(tried.trials[1].reason)
    assert tried.best.default
    assert "No trial is better than the defaults." in tried.summary()


def test_any_exception_of_proposed_settings_is_a_failed_trial(
    dataset: cp.Dataset,
) -> None:
    def breaking(method: str, **settings: Any) -> cp.DebiasedRecommender:
        if {"seed", "l2"} <= set(settings):
            raise ZeroDivisionError("by chance")
        return make(method, **settings)

    tried = cp.tune(dataset, "mf", 3, space="own", search={"l2": [5.0, 6.0]}, build=breaking, **QUICK)
    assert [trial.state for trial in tried.trials] == ["complete", "failed", "failed"]
    assert "The last failure: ZeroDivisionError: by chance" in tried.summary()


def test_defaults_that_fail_leave_no_gain(dataset: cp.Dataset) -> None:
    def breaking(method: str, **settings: Any) -> cp.DebiasedRecommender:
        if "seed" in settings and "l2" not in settings:
            raise DivergenceError("by chance")
        return make(method, **settings)

    tried = cp.tune(dataset, "mf", 3, space="own", search={"l2": [5.0, 6.0]}, build=breaking, **QUICK)
    assert [trial.state for trial in tried.trials] == ["failed", "complete", "complete"]
    assert (tried.default_risk, tried.gain) == (None, None)
    assert tried.best_risk.value == min(trial.risk for trial in tried.trials if trial.risk is not None)
    assert "The defaults failed, so there is no gain to report." in tried.summary()


def test_trial_far_behind_best_is_pruned(dataset: cp.Dataset) -> None:
    tried = cp.tune(dataset, "mf", 3, space="own", search={"learning_rate": [3.0, 5.0]}, **QUICK)
    assert [trial.state for trial in tried.trials] == ["complete", "pruned", "pruned"]
    assert all(trial.risk is not None for trial in tried.trials)


def test_behind_means_two_standard_errors_of_paired_difference() -> None:
    rng = np.random.default_rng(0)
    base = Errors(rng.exponential(size=40), np.ones(40), np.empty(0), np.arange(40))
    worse = base._replace(on_log=base.on_log + 0.1 + 0.2 * rng.normal(size=40))
    difference = debiased_risk(worse.minus(base))
    assert is_behind(worse, base) == (difference.value > 2 * difference.standard_error)
    assert is_behind(base._replace(on_log=base.on_log + 1e-6), base)  # each row a little worse
    assert not is_behind(base, base)


def test_more_trials_need_a_larger_gain_to_be_significant() -> None:
    def tuning(trials: int, gain: float) -> Tuning:
        tried = tuple(
            Trial(n, "complete", 0.6 - (gain if n == 1 else 0), {"l2": n}, 0.1, n == 0, None) for n in range(trials)
        )
        return Tuning("mf", 0, {}, tried, Estimate(0.6, 0.1), Estimate(0.6 - gain, 0.1), Estimate(gain, 0.01), {})

    assert tuning(2, 0.02).noise == pytest.approx(0.0196, rel=1e-3)
    assert tuning(21, 0.02).noise == pytest.approx(0.0302, rel=1e-2)
    assert tuning(2, 0.02).significant
    assert not tuning(21, 0.02).significant
    assert "within noise" in tuning(21, 0.02).summary()
    assert "more than noise" in tuning(21, 0.04).summary()
    twice = replace(tuning(2, 0.02), trials=tuning(2, 0.02).trials * 3)  # the same settings, proposed again
    assert twice.noise == tuning(2, 0.02).noise
    without = replace(tuning(2, 0.02), default_risk=None, gain=None)
    assert math.isnan(without.noise)
    assert without.summary().endswith("The defaults failed, so there is no gain to report.")


def test_optuna_verbosity_is_restored(dataset: cp.Dataset) -> None:
    before = optuna.logging.get_verbosity()
    cp.tune(dataset, "mf", 1, **QUICK)
    assert optuna.logging.get_verbosity() == before


def test_progress_increases_to_the_end(dataset: cp.Dataset) -> None:
    seen: list[tuple[int, int, float]] = []
    tried = cp.tune(
        dataset, "mf", 2, progress=lambda *step: seen.append(step), space="own", search={"l2": [5.0, 6.0]}, **QUICK
    )
    assert [step[0] for step in seen] == sorted(step[0] for step in seen)
    assert seen[-1][:2] == (400, 400)
    assert {step[2] for step in seen[-8:]} == {tried.trials[0].risk}  # while the second is tried


# The search space


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("space", ["default", "paper"])
def test_every_method_accepts_its_search_space(method: str, space: str) -> None:
    dimensions = search_space(method, {}, 1000, space)
    names = [dimension.name for dimension in dimensions]
    assert len(names) == len(set(names)) >= 2
    optuna = pytest.importorskip("optuna")
    drawn = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0)).ask()
    assert all(dimension.contains(dimension.suggest(drawn)) for dimension in dimensions)
    for end in (0, -1):
        settings: dict[str, Any] = {}
        for dimension in dimensions:
            settings |= dimension.settings((dimension.choices or (dimension.low, dimension.high))[end])
        model = make(method, **settings)
        model.training.check()
        assert ("learning_rate" in settings) == (model.closed_form is None)
        assert model.training.learning_rate == settings.get("learning_rate", Training().learning_rate)


@pytest.mark.parametrize("space", [DEFAULT_SPACE, PAPER_SPACE])
def test_every_setting_of_a_space_exists(space: dict[str, Any]) -> None:
    settings = {full.replace("backbone__backbone__", "backbone__") for m in METHODS for full in make(m).get_params()}
    assert set(space) <= settings


def test_default_space_contains_defaults() -> None:
    for dimension in search_space("mf", {}, 1000):
        (full,) = dimension.full_names(make("mf"))
        assert dimension.contains(make("mf").get_params()[full])


def test_paper_weight_decay_is_l2_over_rows(dataset: cp.Dataset) -> None:
    rows, decay = len(dataset.train), 1e-3
    (dimension,) = [each for each in search_space("mf", {}, rows, "paper") if each.name == "weight_decay"]
    settings = dimension.settings(decay)
    scorer = cp.MatrixFactorization(dim=3, **settings).build(dataset.train, torch.Generator().manual_seed(0))
    factors = scorer.user_factors.weight
    (gradient,) = torch.autograd.grad(scorer.penalty() / rows, factors)
    torch.testing.assert_close(gradient, decay * factors.detach(), rtol=1e-3, atol=0)


def test_paper_grid_of_a_kernel_method() -> None:
    choices = {each.name: each.choices for each in search_space("akb-dr", {}, 1000, "paper")}
    assert choices["learning_rate"] == (0.01, 0.03, 0.05, 0.1)
    assert choices["bandwidth"] == ("median", 0.5, 1.0, 5.0)
    assert choices["units"] == ("raw",)
    assert choices["strength"] == (1.0, 2.0, 5.0, 10.0, 20.0, 50.0)
    assert choices["tolerance"][:3] == (1e-6, 5e-6, 1e-5)
    assert choices["tolerance"][-2:] == (0.5, 1.0)


def test_worst_case_strength_is_searched_on_its_own_scale() -> None:
    found = {each.name: each for each in search_space("wkb-dr", {}, 1000, "paper")}
    assert (found["strength"].low, found["strength"].high, found["strength"].log) == (1.0, 1e5, True)
    for space in ("default", "paper"):
        assert not {"n", "tolerance"} & {each.name for each in search_space("wkb-dr", {}, 1000, space)}


def test_the_share_to_keep_is_searched_where_it_counts() -> None:
    for settings, searched in (({}, True), ({"strength": 1.0}, False), ({"solver": "gradient"}, False)):
        assert ("kept" in {each.name for each in search_space("skb-ips", settings, 1000, "default")}) is searched


@pytest.mark.parametrize("space", ["default", "paper"])
@pytest.mark.parametrize(
    ("method", "names"),
    [
        ("mf", {"learning_rate"}),
        ("ips-v2", {"balance"}),
        ("sdr", {"clip", "stability"}),
        ("dr-mse", {"mix"}),
        ("asips", {"threshold"}),
        ("skb-dr", {"tolerance", "bandwidth"}),
        ("mb-ips", {"tolerance"}),
        ("d-ips", {"cap", "transform"}),
        ("dce-tdr", {"experts", "imputation__base__experts"}),
        ("escm2-dr", {"observation", "labels"}),
        ("cdr", {"max_variation"}),
        ("cause", {"l2_distance"}),
        ("kd-bridge", {"strength"}),
        ("autodebias", {"imputed_strength", "look_ahead", "meta_rate"}),
    ],
)
def test_spaces_have_what_is_peculiar_to_a_method(method: str, names: set[str], space: str) -> None:
    found = {setting for each in search_space(method, {}, 1000, space) for setting in (each.sets or (each.name,))}
    assert names | {"l2", "l2_biases"} <= found
    assert ("mix" in found) is (method == "dr-mse")


@pytest.mark.parametrize("space", ["default", "paper"])
def test_losses_that_a_method_is_without_stay_off(space: str) -> None:
    """`multi-dr` with a loss on labels would be `escm2-dr`, and with a balance `dr-v2`."""
    off = {"dr-v2": set(), "escm2-dr": {"balance"}, "multi-dr": {"balance", "labels"}}
    for method, names in off.items():
        found = {each.name for each in search_space(method, {}, 1000, space)}
        assert found & {"balance", "labels"} == {"balance", "labels"} - names


def test_probe_that_is_not_held_out_does_not_change_the_risk(dataset: cp.Dataset) -> None:
    validation = Validation.of(dataset, folds=2, hold_out_probe=False)
    assert validation.facts()["probe_rows"] == 0
    assert all(len(fold.probe) == len(dataset.probe) for fold in validation.folds)  # type: ignore[arg-type]
    found = cp.tune(dataset, "mf", 2, **QUICK, hold_out_probe=False)
    alone = cp.tune(dataset.train, "mf", 2, **QUICK)
    assert found.best_risk == alone.best_risk


def test_trials_are_judged_by_the_measure_that_is_asked_for(dataset: cp.Dataset) -> None:
    found = cp.tune(dataset.train, "mf", 2, **QUICK, measure="1 - AUC")
    assert found.validation["measure"] == "1 - AUC"
    validation = Validation.of(dataset.train, folds=found.validation["folds"], measure="1 - AUC")
    assert found.best_risk == pytest.approx(validation.risk(found.make), abs=1e-9)


def test_search_starts_from_the_model_of_another_builder(dataset: cp.Dataset) -> None:
    def small(method: str, **settings: Any) -> cp.DebiasedRecommender:
        return configure(make(method, dim=3, l2=7.0), **settings)

    found = cp.tune(dataset, "mf", 1, settings={"epochs": 4}, folds=2, build=small)
    expected = cp.tune(dataset, "mf", 1, settings={"epochs": 4, "dim": 3, "l2": 7.0}, folds=2)
    assert found.best_risk == expected.best_risk


def test_fixed_settings_are_left_out_and_own_come_first() -> None:
    dimensions = search_space("mf", {"dim": 8}, 1000, own={"backbone__l2": "1:2"})
    names = [dimension.name for dimension in dimensions]
    assert names[0] == "backbone__l2"
    assert not {"dim", "l2"} & set(names)
    assert [each.name for each in search_space("mf", {}, 1000, "own", {"l2": "1:2"})] == ["l2"]


@pytest.mark.parametrize(
    ("text", "dimension"),
    [
        ("1:64:log", Dimension("x", low=1, high=64, log=True, integer=True)),
        ("0.5:2", Dimension("x", low=0.5, high=2)),
        ("8,16", Dimension("x", choices=(8, 16))),
        ("gaussian, exponential", Dimension("x", choices=("gaussian", "exponential"))),
        ([True, False], Dimension("x", choices=(True, False))),
    ],
)
def test_parse_ranges_and_choices(text: Any, dimension: Dimension) -> None:
    assert parse("x", text) == dimension


@pytest.mark.parametrize(
    ("search", "message"),
    [
        ({"l2": "5:1"}, "low < high"),
        ({"l2": "0:1:log"}, "0 < low < high"),
        ({"l2": "1:x"}, "name=low:high"),
        ({"l2": "1:2:linear"}, "name=low:high"),
        ({"l2": "1:2:log:3"}, "name=low:high"),
        ({"l2": "1:inf"}, "finite"),
        ({"dim": "4"}, "at least two choices"),
        ({"dim": [4, (5, 6)]}, "numbers and words"),
        ({"l3": "1:2"}, "`l3` is unknown"),
        ({"seed": "1:2"}, "not searched"),
        ({"epochs": "1:2"}, "both fixed"),
        ({"backbone": "mf,tree"}, "`backbone` must be"),
    ],
)
def test_bad_search_is_an_error_with_its_reason(search: dict[str, Any], message: str) -> None:
    with pytest.raises(cp.ConfigError, match=message):
        search_space("mf", {"epochs": 3}, 1000, "own", search)


def test_missing_value_and_empty_space_are_errors(dataset: cp.Dataset) -> None:
    with pytest.raises(cp.ConfigError, match="--search l2=1:64:log"):
        parse_words(["l2"])
    with pytest.raises(cp.ConfigError, match="nothing to search"):
        cp.tune(dataset, "mf", space="own")
    with pytest.raises(cp.ConfigError, match="`space` must be one of"):
        search_space("mf", {}, 1000, "wide")


# The command


@pytest.fixture
def files(dataset: cp.Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    columns = {"user_id": "who", "item_id": "what", "rating": "liked"}
    for name, log in {"log": dataset.train, "probe": dataset.probe, "test": dataset.test}.items():
        assert log is not None
        log.to_frame().rename(columns).write_csv(f"{name}.csv")
    return tmp_path


READING = ["--user-col", "who", "--item-col", "what", "--rating-col", "liked", "--threshold", "1", "--folds", "2"]
SHORT = ["--set", "epochs=3", "--set", "dim=2"]
TUNE = ["tune", "log.csv", "--method", "mf", "--probe", "probe.csv", "--test", "test.csv", *READING, *SHORT]


def test_best_configuration_can_be_fitted(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*TUNE, "--trials", "3", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    written = tomllib.loads((files / facts["best"]).read_text())
    assert written["settings"] == facts["settings"]
    assert {key: written[key] for key in ("data", "probe", "test", "user_col", "threshold")} == {
        "data": "log.csv",
        "probe": "probe.csv",
        "test": "test.csv",
        "user_col": "who",
        "threshold": 1,
    }
    table = list(csv.DictReader((files / "runs/tune-log-mf/trials.csv").open()))
    assert [row["number"] for row in table] == ["0", "1", "2"]
    assert float(table[0]["risk"]) == facts["default_risk"]["value"]
    assert main(["fit", "--config", facts["best"], "--json"]) == 0
    fitted = json.loads(capsys.readouterr().out)
    assert fitted["fit"]["settings"] == facts["settings"]
    assert fitted["evaluation"] is not None


def test_command_prints_outcome_and_next_step(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*TUNE, "--trials", "1"]) == 0
    text = capsys.readouterr().out
    assert "the test was not looked at" in text
    assert "default risk" in text
    assert "counterpoise fit --config runs/tune-log-mf/best.toml" in text


def test_garbage_test_set_changes_no_output_file(files: Path) -> None:
    assert main([*TUNE, "--trials", "3", "--out", "a", "--quiet"]) == 0
    lines = (files / "test.csv").read_text().splitlines()
    (files / "test.csv").write_text("\n".join([lines[0], *(line.rpartition(",")[0] + ",-77" for line in lines[1:])]))
    assert main([*TUNE, "--trials", "3", "--out", "b", "--quiet"]) == 0
    assert (files / "a/best.toml").read_text() == (files / "b/best.toml").read_text()
    first, second = (
        [{**row, "seconds": ""} for row in csv.DictReader((files / place / "trials.csv").open())] for place in "ab"
    )
    assert first == second


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["tune", "log.csv"], "there is no column 'user_id'"),
        ([*TUNE, "--search", "l2=3:1"], "low < high"),
        ([*TUNE, "--storage", "nonsense://here"], "`storage` 'nonsense://here' cannot be used"),
    ],
)
def test_bad_input_is_one_line(
    files: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_missing_optuna_is_one_line_with_install_command(
    files: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    assert main(TUNE) == 2
    assert 'pip install "counterpoise[tune]"' in capsys.readouterr().err
    assert not (files / "runs").exists()


def test_toml_configuration_round_trips(tmp_path: Path) -> None:
    settings = {"l2": 1e-3, "features": ["side", "activity"], "biases": True, "a b": 'say "so"', "kernel": {"n": 3}}
    configuration = FitConfig(data="a\\b.csv", threshold=4, probe="p.csv", separator="\t", seed=3, settings=settings)
    (tmp_path / "c.toml").write_text(to_toml(configuration))
    assert resolve(tmp_path / "c.toml", {}, {}) == configuration
    with pytest.raises(cp.ConfigError, match="cannot be written as TOML"):
        to_toml(FitConfig(data="x", settings={"patience": None}))


def test_python_of_the_page_runs(capsys: pytest.CaptureFixture[str]) -> None:
    page = (Path(__file__).parents[2] / "docs" / "tuning.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)
    exec(block, {})
    assert "3 trials" in capsys.readouterr().out


@pytest.mark.parametrize("space", ["default", "paper"])
def test_wrapped_backbone_is_searched_too(space: str) -> None:
    inside, alone = (search_space(method, {}, 1000, space) for method in ("counterpoise", "mf"))
    assert {dimension.name for dimension in alone} <= {dimension.name for dimension in inside}
