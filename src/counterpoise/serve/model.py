"""One saved run, ready to answer: loaded whole, checked, and never changed afterwards."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from counterpoise.config import Unknown
from counterpoise.errors import ConfigError, DataError
from counterpoise.recommender import DebiasedRecommender, load_model
from counterpoise.report.context import is_uncorrected
from counterpoise.report.write import REPORT
from counterpoise.serve.lists import Id, Ids, Items, Lists
from counterpoise.storage import read_manifest

OWN = ("format", "format_version", "files", "history")  # of a manifest: how it is stored, and a row for each epoch


@dataclass(frozen=True)
class Served:
    """A run with the ids of its log, its lists, those of a plain run beside it, and the facts of its manifest."""

    folder: Path
    users: Ids
    items: Ids
    lists: Lists
    facts: dict[str, Any]
    plain: Lists | None = None
    is_plain: bool = False
    unknown: Unknown = "error"

    @classmethod
    def load(cls, folder: Path, plain: Path | None = None, unknown: Unknown = "error") -> Served:
        """Read a run, and a plain one to show beside it; an error where either cannot be served."""
        manifest, model = read_manifest(folder), load_model(folder)
        if read_manifest(folder) != manifest:
            raise DataError(f"{folder} was saved anew while it was read. Try again.")
        facts = {"run": folder.resolve().name, **{name: value for name, value in manifest.items() if name not in OWN}}
        users, items = Ids(model.user_ids_, "user"), Ids(model.item_ids_, "item")
        beside = None if plain is None else Lists.of(_plain_beside(model, plain))
        return cls(folder, users, items, Lists.of(model), _printable(facts), beside, is_uncorrected(model), unknown)

    @property
    def method(self) -> str:
        """What the method is called, where the run says it."""
        fit = self.facts.get("fit")
        return str(fit.get("method", "debiased")) if isinstance(fit, dict) else "debiased"

    def has_report(self) -> bool:
        """Whether the run's report lies in the folder; a link is not followed."""
        path = self.folder / REPORT
        return path.is_file() and not path.is_symlink()

    def report(self) -> bytes | None:
        """The run's report, if there is one."""
        try:
            return (self.folder / REPORT).read_bytes() if self.has_report() else None
        except OSError:
            return None

    def user(self, name: Id) -> int | None:
        """The code of a user; None for a stranger, who is an error unless strangers are served what is popular."""
        return self.users.code(name) if self.unknown == "popular" else self.users.require(name)

    def choice(self, candidates: Sequence[Id] | None) -> Items | None:
        """The codes of candidates, ascending and each once; None for all items."""
        return None if candidates is None else np.unique(self.items.require_all(candidates))

    def recommend(
        self,
        name: Id,
        k: int,
        filter_seen: bool = True,
        candidates: Items | None = None,
        exclude: Sequence[int] = (),
    ) -> dict[str, Any]:
        """The list of one user as JSON has it; `candidates` and `exclude` in codes."""
        user = self.user(name)
        items, scores = self.lists.recommend(user, k, filter_seen, candidates, exclude)
        own = name if user is None else self.users.plain[user]
        return {"user_id": own, "known": user is not None, "items": self._ranked(items, scores)}

    def similar(self, name: Id, k: int) -> dict[str, Any]:
        """The items most like one, as JSON has them."""
        item = self.items.require(name)
        return {"item_id": self.items.plain[item], "items": self._ranked(*self.lists.similar(item, k))}

    def _ranked(self, items: Items, scores: Any) -> list[dict[str, Any]]:
        pairs = zip(items.tolist(), scores.tolist(), strict=True)
        plain = self.items.plain
        return [
            {"item_id": plain[item], "score": score, "rank": rank} for rank, (item, score) in enumerate(pairs, start=1)
        ]


def _printable(facts: dict[str, Any]) -> dict[str, Any]:
    """Facts with a question mark for every half letter: names of folders may hold such, answers cannot."""
    whole: dict[str, Any] = json.loads(json.dumps(facts, ensure_ascii=False).encode(errors="replace"))
    return whole


def _plain_beside(model: DebiasedRecommender, folder: Path) -> DebiasedRecommender:
    """A plain run of the same log."""
    plain = load_model(folder)
    if not is_uncorrected(plain):
        raise ConfigError(
            f"`plain` must be a run of plain MF (counterpoise fit --method mf), and {folder} is debiased."
        )
    if (plain.user_ids_, plain.item_ids_) != (model.user_ids_, model.item_ids_):
        raise DataError(f"`plain` must be fitted on the same log: users and items of {folder} are others.")
    return plain
