"""What can stand in a row of a table: our methods under the paper's names, and methods of your own."""

from __future__ import annotations

import hashlib
import inspect
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache, partial
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Literal

from counterpoise.bench.published import places
from counterpoise.errors import ConfigError
from counterpoise.methods import BALANCING, BASELINES, KERNEL_RULES, METHODS, canonical_name, make

PLUGINS = "counterpoise.methods"  # the group of entry points under which other packages offer theirs
KERNELS = {"exp": "Exp", "gau": "Gau"}
TITLES = {"sdr": "SDR"}  # where the paper's table has another name than the method's own paper
LITERATURE = ("mnar", *(method.name for method in BASELINES))  # what others proposed


@dataclass(frozen=True)
class BenchMethod:
    """A row: how it is called here and in the paper, and how a fresh model is built for a seed.

    A model has `fit(log, probe)` and `predict_log(log)`; ours are `DebiasedRecommender`s.
    """

    name: str
    title: str
    group: Literal["baseline", "ours", "own"]  # of others; the paper's and ours; yours
    family: str  # naive, ips, dr, imputation; or own
    build: Callable[[int], Any]

    def source(self) -> str | None:
        """A hash of the file that a method of one's own stands in: a change of it makes its results stale."""
        if self.group != "own":
            return None
        module = inspect.getmodule(getattr(self.build, "func", self.build))  # of a partial, the function
        file = getattr(module, "__file__", None)
        return None if file is None else hashlib.sha256(Path(file).read_bytes()).hexdigest()[:12]


def entries(words: Iterable[str]) -> list[BenchMethod]:
    """The rows that words stand for, each once: names, `module:function`, or "all", "paper", "baselines", "balancing".

    A kernel method without its kernel is the Gaussian one.
    """
    found: dict[str, BenchMethod] = {}
    for word in words:
        for entry in _sets().get(word.lower()) or [_entry(word)]:
            found.setdefault(entry.name, entry)
    return list(found.values())


@lru_cache(maxsize=1)
def _sets() -> dict[str, list[BenchMethod]]:
    everything = [entry for name in METHODS for entry in _ours(name)]
    everything.sort(key=lambda entry: entry.family not in ("naive", "ips"))  # the paper's order: IPS first, then DR
    return {
        "all": everything,
        "paper": [entry for entry in everything if entry.title in places()],
        "baselines": [entry for entry in everything if entry.group == "baseline"],
        "balancing": [entry for method in BALANCING for entry in _ours(method.name)],
    }


def _ours(name: str) -> list[BenchMethod]:
    """The rows of a method by our name: one, or one for each kernel."""
    method = METHODS[name]
    group: Literal["baseline", "ours"] = "baseline" if name in LITERATURE else "ours"
    title = TITLES.get(name, method.title)
    if name.partition("-")[0] not in KERNEL_RULES:
        return [BenchMethod(name, title, group, method.family, partial(_make, name))]
    return [
        BenchMethod(f"{name}-{kernel}", f"{title}-{ending}", group, method.family, partial(_make, f"{name}-{kernel}"))
        for kernel, ending in KERNELS.items()
    ]


def _make(name: str, seed: int) -> Any:
    return make(name, seed=seed)


def _entry(word: str) -> BenchMethod:
    if ":" in word:
        return _own(word, _imported(word))
    plugins = entry_points(group=PLUGINS)
    if word in plugins.names:
        return _own(word, plugins[word].load())
    try:
        rows = _ours(canonical_name(word))
    except ConfigError:
        known = ", ".join(["all", "paper", "baselines", "balancing", *METHODS, *sorted(plugins.names)])
        raise ConfigError(
            f"`methods` must be among {known}, or module:function for one of your own, got {word!r}."
        ) from None
    return next((row for row in rows if row.name.endswith("-exp") == word.lower().endswith("-exp")), rows[0])


def _own(name: str, build: Any) -> BenchMethod:
    if not callable(build):
        raise ConfigError(f"{name!r} must be a function of a seed that builds a model, got {build!r}.")
    return BenchMethod(name, name.rpartition(":")[2], "own", "own", build)


def _imported(word: str) -> Any:
    """`module:function`, looked for in the current folder too."""
    module, _, function = word.partition(":")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        found = import_module(module)
    except Exception as error:  # whatever its own code raises
        reason = f"{type(error).__name__}: {error}"
        raise ConfigError(f"{word!r} cannot be imported ({reason}). Is {module}.py in this folder?") from None
    if not hasattr(found, function):
        raise ConfigError(f"{word!r}: the module {module!r} has no {function!r}.")
    return getattr(found, function)
