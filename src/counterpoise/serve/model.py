"""One saved run, loaded and checked; it is never changed afterwards."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from counterpoise.config import Unknown
from counterpoise.errors import DataError
from counterpoise.recommender import DebiasedRecommender, load_model
from counterpoise.report.context import load_baseline
from counterpoise.report.write import REPORT
from counterpoise.serve.lists import Id, Ids, Items, Lists
from counterpoise.storage import is_regular, read_file, read_manifest

STORAGE_FIELDS = ("format", "format_version", "files", "history", "row_losses")  # of run.json, left out of /model


@dataclass(frozen=True)
class ServedRun:
    """A run with the ids of its log, its lists, those of a baseline run, and the facts of its manifest."""

    folder: Path
    users: Ids
    items: Ids
    lists: Lists
    model: DebiasedRecommender
    facts: dict[str, Any]
    baseline: Lists | None = None
    is_corrected: bool = True  # whether the fit did anything about selection
    unknown_users: Unknown = "error"
    names: list[str] | None = None  # of the items, in the order of their codes

    @classmethod
    def load(cls, folder: Path, baseline: Path | None = None, unknown_users: Unknown = "error") -> ServedRun:
        """Load a run, and a baseline run to show with it; an error where either cannot be served."""
        manifest, model = read_manifest(folder), load_model(folder)
        if read_manifest(folder) != manifest:
            raise DataError(f"{folder} was saved again while it was read. Try again.")
        facts = {name: value for name, value in manifest.items() if name not in STORAGE_FIELDS}
        facts = _printable({"run": folder.resolve().name} | facts)
        users, items = Ids(model.user_ids_, "user"), Ids(model.item_ids_, "item")
        beside = None if baseline is None else Lists.of(load_baseline(model, baseline))
        names = None if model.item_names_ is None else model.item_names_.of(model.item_ids_.column).to_list()
        ids = users, items
        return cls(folder, *ids, Lists.of(model), model, facts, beside, model.is_corrected, unknown_users, names)

    @property
    def method(self) -> str:
        """The name of the method, "recommendations" where the run does not have it."""
        return str((self.facts.get("fit") or {}).get("method", "recommendations"))

    @property
    def feedback(self) -> str:
        """The kind of feedback of its log: ratings, clicks or impressions."""
        log = self.facts.get("log")
        return str(log.get("feedback", "ratings")) if isinstance(log, dict) else "ratings"

    @cached_property
    def example(self) -> int:
        """The first user with as many rows in the log as the median user."""
        counts = np.diff(self.lists.seen_starts)
        return int(np.argmax(counts == np.sort(counts[counts > 0])[np.count_nonzero(counts) // 2]))

    def has_report(self) -> bool:
        """Whether the run's report lies in the folder; a link is not followed."""
        return is_regular(self.folder / REPORT, links=False)

    def report(self) -> bytes | None:
        """The run's report, if there is one."""
        try:
            return read_file(self.folder / REPORT, links=False)
        except DataError:
            return None

    def user(self, name: Id) -> int | None:
        """The code of a user; an unknown one is None with unknown_users="popular", else an error."""
        return self.users.code(name) if self.unknown_users == "popular" else self.users.require(name)

    def choice(self, candidates: Sequence[Id] | None) -> Items | None:
        """The codes of candidates, ascending and each once; None for all items."""
        return None if candidates is None else np.unique([self.items.require(name) for name in candidates])

    def recommend(
        self, name: Id, k: int, filter_seen: bool = True, candidates: Items | None = None, exclude: Sequence[int] = ()
    ) -> dict[str, Any]:
        """JSON-able: the list of one user; `candidates` and `exclude` are codes."""
        user = self.user(name)
        items, scores = self.lists.recommend(user, k, filter_seen, candidates, exclude)
        own = name if user is None else self.users.values[user]
        ranked = self._ranked(items, scores)
        for row, word in zip(ranked, self.lists.scored_by(user, items), strict=True):
            row["scored_by"] = word
        return {"user_id": own, "known": user is not None, "items": ranked}

    def recommend_for(
        self,
        ratings: Sequence[tuple[Id, Id, float]],
        k: int,
        filter_seen: bool = True,
        candidates: Items | None = None,
        exclude: Sequence[int] = (),
    ) -> list[dict[str, Any]]:
        """JSON-able: the lists of new users from (user, item, rating), in the order of their first ratings."""
        names = {str(user): user for user, _, _ in reversed(ratings)}
        codes = [self.items.require(item) for _, item, _ in ratings]
        decode = self.items.vocabulary.decode
        frame = pl.DataFrame(
            {
                "user_id": [str(user) for user, _, _ in ratings],
                "item_id": decode(codes),
                "rating": [float(rating) for _, _, rating in ratings],
            }
        )
        among = None if candidates is None else decode(candidates)
        found = self.model.recommend_for(frame, k, filter_seen, among, exclude=decode(list(exclude)))
        ids = np.array(self.items.vocabulary.encode(found["item_id"]))
        lists: dict[str, dict[str, Any]] = {
            user: {"user_id": names[user], "known": False, "items": []} for user in dict.fromkeys(frame["user_id"])
        }
        columns = (found[name].to_list() for name in ("user_id", "score", "rank", "scored_by"))
        for item, (user, score, rank, word) in zip(ids.tolist(), zip(*columns, strict=True), strict=True):
            row = self.named(item) | {"score": score, "rank": rank, "scored_by": word}
            lists[user]["items"].append(row)
        return list(lists.values())

    def similar(self, name: Id, k: int) -> dict[str, Any]:
        """JSON-able: the items most like one."""
        item = self.items.require(name)
        return self.named(item) | {"items": self._ranked(*self.lists.similar(item, k))}

    def named(self, item: int) -> dict[str, Any]:
        """The id of an item and, where the run has names, its name."""
        found: dict[str, Any] = {"item_id": self.items.values[item]}
        return found if self.names is None else found | {"item_name": self.names[item]}

    def _ranked(self, items: Items, scores: Any) -> list[dict[str, Any]]:
        ranked = enumerate(zip(items.tolist(), scores.tolist(), strict=True), start=1)
        return [self.named(item) | {"score": score, "rank": rank} for rank, (item, score) in ranked]


def _printable(facts: dict[str, Any]) -> dict[str, Any]:
    """Facts with a question mark for every lone surrogate: folder names may contain them, JSON answers cannot."""
    whole: dict[str, Any] = json.loads(json.dumps(facts, ensure_ascii=False).encode(errors="replace"))
    return whole
