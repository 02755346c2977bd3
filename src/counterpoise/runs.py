"""A run: its configuration, the fit that it describes, and the evaluation of a saved run on other test ratings."""

from __future__ import annotations

import hashlib
import json
import re
import time
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast, get_args

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from counterpoise import __version__
from counterpoise.config import Duplicates, EngineName, Feedback, Holdout, Sample, UnknownInTest
from counterpoise.data.datasets import SOURCES, load_dataset
from counterpoise.data.log import Dataset, FeedbackLog, hash_logs
from counterpoise.data.protocols import find_protocol
from counterpoise.data.reading import header_of, read_item_names, read_log
from counterpoise.data.splits import drop_cold
from counterpoise.errors import (
    ConfigError,
    CounterpoiseError,
    DataError,
    StoppedError,
    check_choice,
    did_you_mean,
    short_repr,
)
from counterpoise.evaluation.baselines import baselines_for, clicks_rankings, fit_baselines, weighted_evaluations
from counterpoise.evaluation.evaluate import (
    Difference,
    Evaluation,
    binary_labels,
    difference_facts,
    evaluate,
    paired_differences,
    resampled_evaluation,
    unseen_rows,
)
from counterpoise.evaluation.full_ranking import RankingEvaluation, evaluate_ranking
from counterpoise.evaluation.weighted import weighted_differences
from counterpoise.methods import DEFAULT_METHOD, canonical_name, make
from counterpoise.recommender import UNKNOWN_ADVICE, DebiasedRecommender, load_model
from counterpoise.storage import (
    CHECKPOINT,
    MAX_TEXT_FILE,
    check_file,
    expanded,
    read_file,
    read_manifest,
    remove_folder,
)
from counterpoise.training.events import Callback
from counterpoise.training.loop import DivergenceError

if TYPE_CHECKING:
    from counterpoise.balance.covariate_balance import Imbalance
    from counterpoise.out_of_core.engines import Engine
    from counterpoise.out_of_core.log import StreamedLog
    from counterpoise.training.checkpoint import Checkpoint

MAX_BALANCE_ROWS = 2_000_000  # of a log whose covariate balance is shown after a fit: it takes a second or two
ADVICE = {kind: f'{advice} "drop" leaves their rows out.' for kind, advice in UNKNOWN_ADVICE.items()}
UNRANKED = {kind: f'Only known ones can be ranked: leave others out (unknown_{kind}s="drop").' for kind in ADVICE}
STOPPED_SUFFIX = ".stopped"  # of the folder that keeps an unfinished fit


class FitConfig(BaseModel):
    """Everything that decides the result of `counterpoise fit`."""

    model_config = ConfigDict(extra="forbid")

    data: str = Field(description="A dataset's name, a file with the biased log, or a folder with train.* and test.*.")
    path: str | None = None
    test: str | None = None
    probe: str | None = None
    users: str | None = None
    items: str | None = None
    categorical: str | None = None
    item_names: str | None = None
    item_name_col: str | None = None
    test_kind: Sample | None = None
    holdout: float | None = None
    by: Holdout | None = None
    unknown_users: UnknownInTest = "popular"
    unknown_items: UnknownInTest = "popular"
    protocol: str = "honest"
    probe_fraction: float = 0.05
    feedback: Feedback | None = None
    threshold: float | None = None
    duplicates: Duplicates = "auto"
    user_col: str = "user_id"
    item_col: str = "item_id"
    rating_col: str = "rating"
    timestamp_col: str | None = None
    propensity_col: str | None = None
    separator: str | None = None
    header: str | list[str] | None = None
    method: str | None = None  # None: the default for the kind of feedback
    seed: int = 0
    settings: dict[str, Any] = Field(default_factory=dict)
    k: int = Field(default=5, ge=1)
    memory: str = "4GB"
    engine: EngineName = "local"
    workers: int | None = None
    address: str | None = None
    cache: str | None = None

    def read_options(self) -> dict[str, Any]:
        """The options of `read_logs` that differ from the defaults."""
        names = ["feedback", "duplicates", "user_col", "item_col", "rating_col", "timestamp_col", "propensity_col"]
        names += ["separator", "header"]
        return {
            name: getattr(self, name) for name in names if getattr(self, name) != type(self).model_fields[name].default
        }


def resolve(source: Path | None, flags: dict[str, Any], settings: dict[str, Any]) -> FitConfig:
    """The configuration of a TOML file or a run folder (or None), overridden by the flags that are not None."""
    values = {} if source is None else _read(source)
    values |= {name: value for name, value in flags.items() if value is not None}
    given = values.get("settings", {})
    if not isinstance(given, dict):
        raise ConfigError(f"`settings` must be a table of names and values, got {short_repr(given)}.")
    values["settings"] = given | settings
    if {"seed", "training__seed"} & set(values["settings"]):
        raise ConfigError(
            "`seed` draws the probe too, so it is not one of the settings: use --seed, or the top level of the file."
        )
    try:
        return FitConfig(**values)
    except ValidationError as error:
        first = error.errors()[0]
        name = ".".join(map(str, first["loc"]))
        if first["type"] == "missing":
            raise ConfigError(f"`{name}` is missing. Give it as an argument or in the configuration file.") from None
        if first["type"] == "extra_forbidden":
            known, hint = ", ".join(FitConfig.model_fields), did_you_mean(name, FitConfig.model_fields)
            raise ConfigError(f"{source}: there is no setting `{name}` here.{hint} Settings: {known}.") from None
        rule = first["msg"].removeprefix("Input should be ")
        raise ConfigError(f"`{name}` must be {rule}, got {short_repr(first['input'])}.") from None


def parse_settings(words: list[str]) -> dict[str, Any]:
    """`name=value` words as settings; the value is read as TOML, or as text where that fails."""
    settings = {}
    for word in words:
        name, equals, text = word.partition("=")
        if not (name and equals):
            raise ConfigError(f"`--set` takes name=value, got {word!r}. For example --set dim=16.")
        try:
            settings[name] = tomllib.loads(f"value = {text}")["value"]
        except (tomllib.TOMLDecodeError, RecursionError):
            settings[name] = text
    return settings


def to_toml(configuration: FitConfig) -> str:
    """A configuration as the TOML that `resolve` reads; of the optional values, those that differ from the defaults."""
    fields, always = type(configuration).model_fields, ("data", "seed")
    values = {name: getattr(configuration, name) for name in fields if name != "settings"}
    written = {n: value for n, value in values.items() if n in always or value not in (None, fields[n].default)}
    lines = [f"{name} = {_toml(name, value)}" for name, value in written.items()]
    settings = [f"{_key(name)} = {_toml(name, value)}" for name, value in configuration.settings.items()]
    return "\n".join([*lines, *(["", "[settings]", *settings] if settings else [])]) + "\n"


def _key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else json.dumps(name, ensure_ascii=False)


def _toml(name: str, value: Any) -> str:
    """A value as TOML writes it."""
    if isinstance(value, bool | str):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, list | tuple):
        return f"[{', '.join(_toml(name, item) for item in value)}]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_key(key)} = {_toml(key, item)}" for key, item in value.items()) + "}"
    raise ConfigError(f"`{name}` cannot be written as TOML: {value!r}.")


def _read(source: Path) -> dict[str, Any]:
    if source.is_dir():
        values = read_manifest(source).get("fit")
        if not isinstance(values, dict):
            raise ConfigError(f"{source} was not written by `counterpoise fit`, so it holds no configuration of one.")
        return values
    try:
        return tomllib.loads(read_file(expanded(source), limit=MAX_TEXT_FILE).decode())
    except DataError as error:
        raise ConfigError(str(error)) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(f"{source} is not valid TOML: {error}.") from None


@dataclass(frozen=True)
class Fitted:
    """A fitted model with what it was fitted on and how well it does."""

    configuration: FitConfig
    dataset: Dataset
    model: DebiasedRecommender
    evaluation: Evaluation | RankingEvaluation | None  # None without a test; weighted on a biased one
    seconds: float
    baselines: dict[str, Evaluation] | dict[str, RankingEvaluation] = field(default_factory=dict)
    differences: dict[str, dict[str, Difference]] = field(default_factory=dict)  # from each baseline, paired
    baseline_models: dict[str, DebiasedRecommender] = field(default_factory=dict)
    unweighted: str | None = None  # why there are no weighted estimates on a biased test
    truth: dict[str, float] | None = None  # of simulated data, where propensities and labels are known

    def imbalances(self) -> list[Imbalance]:
        """Imbalance of the log against all pairs before and after weighting; empty for logs over `MAX_BALANCE_ROWS`.

        Only before weighting where early stopping held rows out, which have no weight.
        """
        from counterpoise.balance.covariate_balance import imbalances, log_balance

        log, ratio = self.dataset.train, self.model.ratio_
        if len(log) > MAX_BALANCE_ROWS:
            return []
        return imbalances(log_balance(log, ratio if len(ratio) == len(log) else None))

    def facts(self) -> dict[str, Any]:
        """JSON-able: what a run folder keeps beside the model."""
        return {
            "fit": self.configuration.model_dump(),
            "dataset": {"name": self.dataset.name, **self.dataset.description},
            "evaluation": None if self.evaluation is None else self.evaluation.to_dict(),
            "baselines": {name: found.to_dict() for name, found in self.baselines.items()},
            "differences": {
                name: {metric: difference_facts(metric, found) for metric, found in differences.items()}
                for name, differences in self.differences.items()
            },
            "unweighted": self.unweighted,
            "seconds": round(self.seconds, 3),
            "truth": self.truth,
        }


def prepare(configuration: FitConfig) -> tuple[FitConfig, Dataset]:
    """The data that a configuration names, and the configuration with the method for its kind of feedback."""
    if configuration.method is not None:
        canonical_name(configuration.method)  # an error now, not after the data
    dataset = load_data(configuration)
    method = configuration.method or DEFAULT_METHOD[dataset.train.feedback]
    return configuration.model_copy(update={"method": method}), with_item_names(dataset, configuration)


def fit_and_evaluate(
    configuration: FitConfig,
    callback: Callback | None = None,
    folder: Path | None = None,
    resume: bool = False,
    dataset: Dataset | None = None,
) -> Fitted:
    """Load the data, fit the method, and evaluate it where there is a test or a hold-out.

    `dataset`: what `prepare` has read, with its configuration; None to read it here.
    `folder`: where checkpoints of a long fit are written; next to it the last finite epoch is saved where training is
    stopped or diverges, and in it the run before baselines are fitted. `resume`: continue from the checkpoint there.
    """
    if dataset is None:
        configuration, dataset = prepare(configuration)
    settings = {"seed": configuration.seed, **configuration.settings}
    model = make(str(configuration.method), feedback=dataset.train.feedback, **settings)
    if dataset.test is not None:
        binary_labels(dataset.test)  # an error now, not after the fit
    started = time.perf_counter()
    checkpoint = None if folder is None else _checkpoint(configuration, model, dataset, folder, resume)
    passed = _epochs_passed(checkpoint)
    try:
        _fit(model, dataset, callback, checkpoint)
    except DivergenceError as stop:
        raise DivergenceError(f"{stop} {_save_stopped(model, configuration, folder)}") from None
    except KeyboardInterrupt:
        saved = _save_stopped(model, configuration, folder, passed)
        way = "goes on with --resume" if checkpoint is not None and checkpoint.file.exists() else "fits it anew"
        raise StoppedError(f"stopped before the end. {saved} The same command {way}.") from None
    seconds = time.perf_counter() - started
    known = configuration.data == "simulated" and model.feedback == "ratings"
    truth = _truth(configuration, model) if known else None
    fitted = Fitted(configuration, dataset, model, None, seconds, truth=truth)
    if dataset.test is None:
        return fitted
    if folder is not None:
        model.save(folder, **fitted.facts())
    try:
        return replace(fitted, **_evaluations(configuration, model, dataset))
    except KeyboardInterrupt:
        if folder is None:
            raise
        drop_stopped(configuration, folder)
        raise StoppedError(
            f"stopped while it was evaluated. The fitted run is in {folder}: `counterpoise report` evaluates it."
        ) from None


def _evaluations(configuration: FitConfig, model: DebiasedRecommender, dataset: Dataset) -> dict[str, Any]:
    """The evaluation of a fitted model beside baselines, weighted where a biased test can be; fields of `Fitted`."""
    log, k, protocol = dataset.test, configuration.k, configuration.protocol
    assert log is not None
    names = [name for name in baselines_for(dataset.train) if name != canonical_name(str(configuration.method))]
    fitted = fit_baselines(model, dataset.train, configuration.settings, names)
    models: dict[str, DebiasedRecommender] = {"": model, **fitted}
    if not dataset.ranked and (log.sample == "uniform" or find_protocol(protocol).keeps_seen):
        log, n_seen = unseen_rows(model, log, protocol)
        resampled = {name: resampled_evaluation(one, log, k, protocol) for name, one in models.items()}
        own = resampled.pop("")
        return {
            "evaluation": replace(own.evaluation, n_seen=n_seen),
            "baselines": {name: one.evaluation for name, one in resampled.items()},
            "differences": {name: paired_differences(own, one) for name, one in resampled.items()},
            "baseline_models": fitted,
        }
    try:
        found: dict[str, Any]
        found = clicks_rankings(models, log, k) if dataset.ranked else weighted_evaluations(models, dataset, k)
    except CounterpoiseError as error:  # the fitted model must not be lost with it
        evaluation = None if dataset.ranked else evaluate(model, log, k, weights=None)
        return {"evaluation": evaluation, "unweighted": str(error), "baseline_models": fitted}
    own_weighted = found.pop("")
    differences = {name: weighted_differences(own_weighted, one) for name, one in found.items()}
    return {"evaluation": own_weighted, "baselines": found, "differences": differences, "baseline_models": fitted}


def _checkpoint(
    configuration: FitConfig, model: DebiasedRecommender, dataset: Dataset, folder: Path, resume: bool
) -> Checkpoint | None:
    """The checkpoint of this fit; None where weights or the best epoch depend on more than the last epoch."""
    changing = any(getattr(part, "adaptive", False) for part in model.weights.get_params().values())
    if changing or getattr(model.training, "patience", None) is not None:
        if resume:
            raise ConfigError(
                "`resume` cannot continue this fit: with `patience`, or with weights that follow the errors (akb-*), "
                "no checkpoint is kept. Fit again without it."
            )
        return None
    from counterpoise.training.checkpoint import Checkpoint

    train, probe = dataset.train, dataset.probe
    data = hash_logs("", train, probe) if train.in_memory else cast("StreamedLog", train).shards.folder.name
    facts = [__version__, model.to_config(), data, configuration.threshold, None if probe is None else len(probe)]
    key = hashlib.sha256(json.dumps(facts, default=str).encode()).hexdigest()
    return Checkpoint(folder / CHECKPOINT, key, resume)


def _epochs_passed(checkpoint: Checkpoint | None) -> int:
    """The epochs that a resumed fit finds done; 0 where its file cannot be read, which the fit itself reports."""
    from safetensors import SafetensorError, safe_open

    if checkpoint is None or not checkpoint.resume:
        return 0
    try:
        check_file(checkpoint.file, links=False)
        with safe_open(checkpoint.file, framework="pt") as found:
            return len(found.get_tensor("losses"))
    except (SafetensorError, DataError, OSError, RuntimeError):
        return 0


def _save_stopped(model: DebiasedRecommender, configuration: FitConfig, folder: Path | None, passed: int = 0) -> str:
    """Save the model of a stopped fit beside the folder of the whole one; returns a sentence for the message.

    `passed`: epochs of the checkpoint that a resumed fit began with; they count as learned.
    """
    if folder is None or not hasattr(model, "history_"):
        return "Nothing was learned that could be kept."
    place = stopped_folder(folder)
    epoch, epochs = max(model.history_.best_epoch, passed), model.training.planned_epochs(len(model.ratio_))
    try:
        model.save(place, fit=configuration.model_dump(), stopped={"epoch": epoch, "epochs": epochs})
    except CounterpoiseError as error:
        return f"What was learned could not be kept: {error}"
    return f"What was learned up to epoch {epoch} of {epochs} is kept as a run in {place}."


def stopped_folder(folder: Path) -> Path:
    """The folder that keeps what a stopped fit learned: beside that of the whole run, which may be `.`."""
    named = folder if folder.name.strip(".") else folder.resolve()
    return named.parent / f"{named.name}{STOPPED_SUFFIX}"


def drop_stopped(configuration: FitConfig, folder: Path) -> None:
    """Remove what a stopped fit of the same configuration left: its checkpoint, and the folder beside that of a run."""
    (folder / CHECKPOINT).unlink(missing_ok=True)
    place = stopped_folder(folder)
    try:
        manifest = read_manifest(place)
    except DataError:
        return  # there is none, or it is not ours
    if "stopped" in manifest and manifest.get("fit") == configuration.model_dump():
        remove_folder(place)


def _fit(
    model: DebiasedRecommender, dataset: Dataset, callback: Callback | None, checkpoint: Checkpoint | None
) -> None:
    """Fit a model to a log in memory or in shards."""
    if dataset.train.in_memory:
        names = dataset.item_names
        model.fit(dataset.train, probe=dataset.probe, item_names=names, callback=callback, checkpoint=checkpoint)
        return
    from counterpoise.out_of_core.fitting import fit_streamed

    fit_streamed(model, cast("StreamedLog", dataset.train), dataset.probe, callback, checkpoint, dataset.item_names)


def with_item_names(dataset: Dataset, configuration: FitConfig) -> Dataset:
    """The dataset with the names of items that a configuration asks for; `description` says where they come from.

    They stand in a file of their own or, if a column is named, in that of the items' features.
    """
    column = configuration.item_name_col
    file = configuration.item_names or (configuration.items if column else None)
    if file is None:
        if column:
            raise ConfigError("`item_name_col` names a column of `item_names` or of `items`, and neither is given.")
        return dataset
    log = dataset.train
    names = read_item_names(file, configuration.item_col, column, configuration.separator)
    try:
        named = names.count(log.item_ids)
    except DataError as error:
        raise DataError(f"{file}: {error}") from None
    source = f"{named:,} of {counted(log.shape[1], 'item')} by column {names.source}"
    return replace(dataset, item_names=names.table, description=dataset.description | {"item_names": source})


def load_data(configuration: FitConfig, *, reader: Engine | None = None) -> Dataset:
    """The data that a configuration names; files of one's own may be larger than memory.

    `reader`: where the files of a streamed log are read, by default by the engine of the configuration.
    """
    names = ["path", "protocol", "seed", "probe_fraction", "threshold", "test", "probe", "users", "items"]
    names += ["test_kind", "holdout", "by", "unknown_users", "unknown_items"]
    options = {name: getattr(configuration, name) for name in names} | configuration.read_options()
    if configuration.categorical is not None:
        options["categorical"] = [name.strip() for name in configuration.categorical.split(",") if name.strip()]
    if configuration.data in SOURCES and configuration.engine == "local":
        return load_dataset(configuration.data, **options)
    from counterpoise.out_of_core.datasets import load_dataset_out_of_core
    from counterpoise.out_of_core.engines import make_engine

    engine = make_engine(configuration.engine, configuration.workers, configuration.address)
    options |= {"memory": configuration.memory, "cache": configuration.cache, "reader": reader}
    return load_dataset_out_of_core(configuration.data, engine=engine, **options)


def _truth(configuration: FitConfig, model: DebiasedRecommender) -> dict[str, float]:
    """The ideal loss of the model, and the bias of the log's mean error with equal weights and with the model's."""
    from counterpoise.data.simulation import simulate

    data = simulate(seed=configuration.seed, probe_fraction=configuration.probe_fraction)
    truth = {"ideal_loss": data.ideal_risk(model), "bias_of_the_log": data.selection_bias(model)}
    if len(model.ratio_) == len(data.dataset.train):  # with early stopping some rows have no weight
        truth["bias_of_the_weights"] = data.selection_bias(model, model.ratio_)
    return truth


@dataclass(frozen=True)
class EvaluationData:
    """The ratings that a saved run is evaluated on; what is None is as in the run.

    `test`: a file, a folder or a glob, which must fit into `memory` (a user's rows may lie anywhere, and rankings are
    per user), or the name of a dataset, whose folder is `path` and whose split `seed` draws.
    `weights`: those of `evaluate` by name, or "none"; by default balanced ones for biased ratings.
    `test_kind`: how the pairs of a file were collected; biased if neither you nor the run says so of this file.
    `unknown_users`, `unknown_items`: ids that the run does not know are an "error", left out ("drop", which leaves out
    those without training rows too), or scored as in `predict` ("popular").
    `reading`: options of `read_log` for files. Without names of columns, the run's are used where the file has them.
    """

    test: str
    test_kind: Sample | None = None
    unknown_users: UnknownInTest = "error"
    unknown_items: UnknownInTest = "error"
    weights: str | None = None
    path: str | None = None
    protocol: str | None = None
    seed: int | None = None
    threshold: float | None = None
    memory: str = "4GB"
    reading: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class RunTest:
    """The ratings that a saved run is evaluated on, with what is known about them."""

    log: FeedbackLog
    protocol: str
    n_seen: int  # rows that the model was fitted to: left out or counted by the protocol
    facts: dict[str, Any]  # JSON-able: how the pairs were collected, rows, cold users and items, rows left out

    def scores(self, model: DebiasedRecommender) -> NDArray[np.float32]:
        """The predictions of a model; ids that it does not know were allowed when the ratings were read."""
        return model.predict_log(self.log, unknown_users="popular", unknown_items="popular")


def evaluate_run(
    run: str | Path, data: EvaluationData, *, k: int = 5
) -> tuple[Evaluation | RankingEvaluation, dict[str, Any]]:
    """(the evaluation of a saved run, what is known about the ratings: see `RunTest.facts`).

    Clicks, which are positives alone, are ranked among all items.
    """
    model, fitted = load_model(run), read_manifest(run).get("fit") or {}
    test = read_test(model, fitted, data)
    facts = test.facts | {"unweighted": None, "not_used": []}
    if test.log.feedback == test.facts["trained_on"] == "clicks":
        check_known(model, test.log, "error", "error", UNRANKED)
        weights = None if data.weights == "none" else data.weights or "auto"
        ranking = evaluate_ranking(model, test.log, k, weights=weights)
        return replace(ranking, n_seen=test.n_seen), facts
    if (
        not find_protocol(test.protocol).keeps_seen
        and data.weights != "none"
        and (data.weights or test.log.sample == "biased")
    ):
        try:
            found = evaluate(model, test.log, k, weights=data.weights or "balanced")
            unused = [] if data.weights and data.weights != "balanced" else _not_used(model)
            return replace(found, n_seen=test.n_seen), facts | {"not_used": unused}
        except CounterpoiseError as error:
            if data.weights:
                raise
            facts["unweighted"] = str(error)
    found = evaluate(test.scores(model), test.log, k)
    return replace(found, protocol=test.protocol, n_seen=test.n_seen, assumption=""), facts  # the title says it


def _not_used(model: DebiasedRecommender) -> list[str]:
    """The inputs of the fit from which weights of a test could be learned, and which a run does not keep."""
    known = {"its probe's labels": len(model.probed_.items), "side features": sum(model.log_facts_["feature_columns"])}
    return [name for name, count in known.items() if count]


def read_test(model: DebiasedRecommender, fitted: Mapping[str, Any], data: EvaluationData) -> RunTest:
    """The ratings to evaluate a model on; `fitted`: the run's configuration.

    Seen pairs are left out or counted as in `evaluate`.
    """
    test = data.test
    protocol = data.protocol or fitted.get("protocol", "honest")
    threshold = model.log_facts_["threshold"] if data.threshold is None else data.threshold
    for name in ("unknown_users", "unknown_items"):
        check_choice(name, getattr(data, name), get_args(UnknownInTest))
    if test in SOURCES:
        if data.test_kind is not None:
            raise ConfigError(f"`test_kind` goes with your own files; that of {test!r} is known.")
        path, seed = data.path or fitted.get("path"), fitted.get("seed", 0) if data.seed is None else data.seed
        fraction = fitted.get("probe_fraction", FitConfig.model_fields["probe_fraction"].default)
        run_split = fitted if fitted.get("data") == test else {}
        held_out: dict[str, Any] = {name: run_split.get(name) for name in ("holdout", "by")}
        found = load_dataset(test, path, protocol, seed, probe_fraction=fraction, threshold=threshold, **held_out).test
        if found is None:
            raise DataError(f"{test!r} has no test of its own. Fit it with rows held out (`holdout`), or name a file.")
        log = found
    else:
        _check_memory(test, data.memory)
        kind = data.test_kind or (fitted.get("test_kind") if fitted.get("test") == test else None) or "biased"
        ids: dict[str, Any] = {"user_ids": model.user_ids_, "item_ids": model.item_ids_}
        ids |= {"new_ids": True, "sample": kind}
        log = read_log(test, threshold=threshold, **ids, **columns_as_fitted(fitted, test, dict(data.reading)))
    check_known(model, log, data.unknown_users, data.unknown_items)
    log, n_seen = unseen_rows(model, log, protocol, test)
    log, cold = drop_cold(log, model.cold_rows(log), data.unknown_users, data.unknown_items)
    known = {"sample": log.sample, "feedback": log.feedback, "trained_on": model.log_facts_.get("feedback", "ratings")}
    return RunTest(log, protocol, n_seen, known | {"test_rows": len(log)} | cold)


def counted(count: int, kind: str) -> str:
    """A count in words: "1 user", "2 users"."""
    return f"{count:,} {kind}{'' if count == 1 else 's'}"


def cold_sentences(facts: Mapping[str, Any]) -> list[str]:
    """Sentences on the cold users and items of a test, and on what became of their rows."""
    if not facts.get("cold_rows"):
        return []
    kinds = [(facts["cold_users"], "user"), (facts["cold_items"], "item")]
    listed = " and ".join(counted(count, kind) for count, kind in kinds if count)
    rows, dropped = facts["cold_rows"], facts["dropped_rows"]
    predicted = "predicted by what is known of the other side"
    fate = f"{dropped:,} left out, {rows - dropped:,} {predicted}" if dropped < rows else "left out"
    are = "is" if rows == 1 else "are"
    whose = f"{counted(rows, 'row')} of the test {are} of {listed} without rows in the training log"
    return [f"{whose}: {fate if dropped else predicted}."]


def check_known(
    model: DebiasedRecommender,
    log: FeedbackLog,
    unknown_users: UnknownInTest,
    unknown_items: UnknownInTest,
    advice: Mapping[str, str] = ADVICE,
) -> None:
    """Raise `DataError` for users or items of a log that a model does not know, where they are an error."""
    sides = (
        ("user", unknown_users, model.user_ids_, log.user_ids.decode(np.unique(log.users))),
        ("item", unknown_items, model.item_ids_, log.item_ids.decode(np.unique(log.items))),
    )
    for kind, rule, known, ids in sides:
        if rule == "error":
            known.require(ids, kind, advice[kind])


def _check_memory(test: str, memory: str) -> None:
    """Raise `DataError` for a test of many files that does not fit into memory."""
    from counterpoise.out_of_core.datasets import too_long

    if too_long(test, memory):
        raise DataError(f"{test}: more rows than fit into the `memory` of {memory}. Raise it, or evaluate on a sample.")


def columns_as_fitted(fitted: Mapping[str, Any], test: str, reading: dict[str, Any]) -> dict[str, Any]:
    """`reading`; where it names no column, with the columns of the run's log if the test file has them.

    The file has them if at least one of the three is there, and no fewer than of the default names. Separator and
    header are those of the run unless they are given, or the file has the columns without them.
    """
    roles, default = ("user_col", "item_col", "rating_col"), FitConfig.model_fields
    try:
        run = FitConfig(**fitted)
    except ValueError:  # a model that was not fitted by the command line
        return reading
    if any(role in reading for role in roles):
        return reading
    columns = [getattr(run, role) for role in roles]
    given = {name: reading.get(name) for name in ("separator", "header")}
    for layout in ({name: getattr(run, name) if value is None else value for name, value in given.items()}, given):
        header = header_of(test, **layout, columns=columns)
        found = sum(column in header for column in columns)
        if found and found >= sum(default[role].default in header for role in roles):
            return reading | dict(zip(roles, columns, strict=True)) | layout
    return reading
