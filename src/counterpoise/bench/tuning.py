"""Tuning of every method of an experiment with the same number of trials, inside the training log.

A method is tuned once for each dataset, preset and protocol, on the training log of seed 0; all seeds are fitted with
what was found. A trial is judged by the weighted AUC of held-out rows of the log alone: the probe of one seed stands in
the test of the others, so none of its rows is held out. Methods that need its label rate have that. Judged by the log
loss, searches choose settings that rank worse: without a probe nothing tells held-out rows their level
(`benchmarks/validation.py --search`).
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from counterpoise.bench.jobs import Job, describe_error
from counterpoise.bench.store import hash_facts
from counterpoise.bench.tables import Sheet
from counterpoise.config import Measure, Space
from counterpoise.imputation.mnar import MNARLikelihood
from counterpoise.methods import configure
from counterpoise.recommender import DebiasedRecommender
from counterpoise.tuning.search_space import Dimension, search_space
from counterpoise.tuning.tune import tune

FOLDS = 5
MEASURE: Measure = "1 - AUC"
MAX_ROWS_FOR_ALL_FOLDS = 100_000  # of a log; in larger ones, one fold of the five is held out
COLUMNS = ("method", "trials", "failed trials", "default risk", "best risk", "gain", "std. error", "settings")
NOTE = (
    "Risk: 1 - AUC of held-out rows of the training log of seed 0, weighted to resemble all pairs; no row of the probe "
    "is held out, and the test is not read. The best trial is taken, also where its gain is within noise. The first "
    "trial of every method is the preset itself."
)
NOTE_OF_CLICKS = (
    "Risk: 1 - DCG@10 of held-out clicks of the training log of seed 0, ranked among all items and weighted by 1 / "
    "P(exposed); the test is not read. The best trial is taken, also where its gain is within noise. The first trial "
    "of every method is the preset itself."
)


@dataclass(frozen=True)
class TuningJob:
    """The search for one method: its result is the settings of its best trial."""

    job: Job  # what is fitted, with the seed of the search
    trials: int
    studies: Path | None = None  # folder where an interrupted search is resumed from; None: in memory

    @property
    def space(self) -> Space:
        """The search space: the paper's grids under its preset."""
        return "paper" if self.job.preset == "paper" else "default"

    @cached_property
    def fixed(self) -> dict[str, Any]:
        """Settings that are not searched: the user's, and the strength of a missingness model.

        Held-out rows of the log were observed: they cannot tell how much more likely it is to observe positive pairs.
        """
        imputation = getattr(self.job.model(), "imputation", None)
        own = {"imputation__strength": imputation.strength} if isinstance(imputation, MNARLikelihood) else {}
        return own | dict(self.job.settings)

    def build(self, method: str, **settings: Any) -> DebiasedRecommender:
        """A fresh model with these settings in addition to those of the preset."""
        model: DebiasedRecommender = replace(self.job, settings={}).model()
        return configure(model, **settings)

    @cached_property
    def dimensions(self) -> list[Dimension]:
        """The dimensions of the search; none where all settings of the method are fixed."""
        return search_space(self.job.method, self.fixed, 1, self.space, build=self.build)

    @cached_property
    def config_hash(self) -> str:
        """A short hash of everything that decides the result."""
        facts = {"trials": self.trials, "space": repr(self.dimensions), "folds": FOLDS, "fixed": repr(self.fixed)}
        return hash_facts(self.job.configuration() | facts | {"measure": MEASURE})

    @property
    def file_name(self) -> str:
        """The name of its result in a store."""
        words = (Path(self.job.dataset).name, self.job.method, self.job.preset, self.job.protocol, self.config_hash)
        return ".".join(re.sub(r"[^\w-]+", "_", word) for word in ("tuning", *words))

    def measure(self) -> dict[str, Any]:
        """Search: the best settings with all trials. If the search fails, `failed` is the reason."""
        job, storage = self.job, None
        row: dict[str, Any] = {"dataset": job.dataset, "method": job.method, "title": job.bench_method.title}
        row |= {"preset": job.preset, "protocol": job.protocol, "seed": job.seed, "trials": self.trials}
        if self.studies is not None:
            self.studies.mkdir(parents=True, exist_ok=True)
            storage = f"sqlite:///{(self.studies / f'{self.file_name}.db').as_posix()}"
        started = time.perf_counter()
        try:
            data = job.load()
            found = tune(
                data.train,
                job.method,
                self.trials,
                probe=data.probe,
                settings=self.fixed,
                space=self.space,
                folds=FOLDS,
                eval_folds=None if len(data.train) <= MAX_ROWS_FOR_ALL_FOLDS else 1,
                seed=job.seed,
                storage=storage,
                exclusive=True,
                build=self.build,
                hold_out_probe=False,
                measure=MEASURE,
            )
        except Exception as error:
            return row | {"failed": describe_error(error), "settings": {}}
        facts = found.to_dict()
        kept = ("default_risk", "best_risk", "gain", "noise", "significant", "validation")
        row |= {"failed": None, "settings": found.best.settings, "seconds": round(time.perf_counter() - started, 3)}
        return row | {name: facts[name] for name in kept} | {"tried": facts["trials"]}


def tuning_jobs(jobs: Sequence[Job], trials: int, studies: Path | None) -> list[TuningJob]:
    """One search for each method, dataset, preset and protocol.

    None for a user's model of another kind, and where nothing is left to search: both are fitted as they come.
    """
    first = [job for job in jobs if job.seed == 0 and isinstance(job.model(), DebiasedRecommender)]
    return [search for search in (TuningJob(job, trials, studies) for job in first) if search.dimensions]


def tuned_jobs(jobs: Sequence[Job], rows: Sequence[Mapping[str, Any]]) -> list[Job]:
    """Jobs with the settings that were found for them; unchanged where none were."""
    found = {(row["dataset"], row["method"], row["preset"], row["protocol"]): row["settings"] for row in rows}
    keys = [(job.dataset, job.method, job.preset, job.protocol) for job in jobs]
    return [replace(job, settings={**job.settings, **found.get(key, {})}) for job, key in zip(jobs, keys, strict=True)]


def table_note(trials: int, file: str, jobs: Sequence[Job]) -> str:
    """The note on tuning below a table of tuned methods."""
    judges = {"DCG@10 of held-out clicks" if job.kind == "clicks" else "AUC of held-out rows" for job in jobs}
    return (
        f"Tuned: every method with the same budget of {trials} trials, by the weighted {' or '.join(sorted(judges))} "
        "of the training log of seed 0 (no row of the probe is held out, and the test is not read), then fitted with "
        f"all seeds. What was found is in {file}."
    )


def failed_searches(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """A line for every search that failed."""
    reasons = {row["title"]: str(row["failed"]).rstrip(".") for row in rows if row["failed"]}
    return [f"{title} is fitted as it comes: its search failed ({reason})." for title, reason in reasons.items()]


def settings_sheets(rows: Sequence[Mapping[str, Any]]) -> list[Sheet]:
    """Sheets of the settings found for each method, by dataset, preset and protocol; tidy in CSV and JSON."""
    sheets = []
    for where in dict.fromkeys((row["dataset"], row["preset"], row["protocol"]) for row in rows):
        here = [row for row in rows if (row["dataset"], row["preset"], row["protocol"]) == where]
        title = f"Settings found on {where[0]}, preset {where[1]}, protocol {where[2]}"
        done = [row for row in here if not row["failed"]]
        facts = [fact for row in done for fact in _facts(row)]
        note = NOTE if any(row["validation"]["measure"] == MEASURE for row in done) else NOTE_OF_CLICKS
        sheets.append(Sheet(title, COLUMNS, [_line(row) for row in done], (note, *failed_searches(here)), facts))
    return sheets


def _line(row: Mapping[str, Any]) -> dict[str, Any]:
    default, gain = row["default_risk"], row["gain"]
    chosen = ", ".join(f"{name} {value}" for name, value in row["settings"].items())
    return {
        "method": row["title"],
        "trials": row["trials"],
        "failed trials": sum(trial["state"] == "failed" for trial in row["tried"]),
        "default risk": None if default is None else f"{default['value']:.4f}",
        "best risk": f"{row['best_risk']['value']:.4f}",
        "gain": None if gain is None else f"{gain['value']:.4f}",
        "std. error": None if gain is None else f"{gain['standard_error']:.4f}",
        "settings": chosen or "the preset's",
    }


def _facts(row: Mapping[str, Any]) -> list[dict[str, Any]]:
    """One fact for each setting, and one for a method that keeps the preset's."""
    names = ("dataset", "preset", "protocol", "method", "trials", "seconds")
    facts = {name: row[name] for name in names}
    facts |= {name: None if row[name] is None else row[name]["value"] for name in ("default_risk", "best_risk", "gain")}
    return [facts | {"setting": name, "value": value} for name, value in (row["settings"] or {None: None}).items()]
