"""The methods of an experiment: ours and the literature's under the paper's names, and methods of your own."""

from __future__ import annotations

import hashlib
import inspect
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Literal

from counterpoise.bench.published import places
from counterpoise.config import Feedback
from counterpoise.errors import ConfigError, did_you_mean
from counterpoise.methods import (
    BALANCING,
    FROM_PROBE,
    KERNEL_RULES,
    LIKELIHOOD,
    METHODS,
    NO_CORRECTION,
    PAPER,
    Method,
    canonical_name,
    make,
)

PLUGINS = "counterpoise.methods"  # the group of entry points under which other packages offer methods
KERNELS = {"exp": "Exp", "gau": "Gau"}  # the ending of our names and of the paper's
OTHER_FAMILIES = {NO_CORRECTION: "naive", FROM_PROBE: "probe", LIKELIHOOD: "likelihood"}
IN_BLOCK_OF_IPS = ("asips",)  # of the paper's table, though it imputes labels
TITLES = {"sdr": "SDR"}  # where the paper's table has another name than the method's own paper


@dataclass(frozen=True)
class BenchMethod:
    """A row of a table: its name here and in the paper, and how a fresh model is built for a seed.

    A model has `fit(log, probe)` and `predict_log(log)`; ours are `DebiasedRecommender`s.
    """

    name: str
    title: str
    group: Literal["baseline", "ours", "own"]  # the literature's; the paper's and ours; the user's
    family: str  # naive, ips, dr, probe, likelihood: see `estimator`; or own
    build: Callable[..., Any]  # of a seed and, for a method of ours, `feedback`
    feedback: tuple[Feedback, ...] = ()  # the kinds of log that it learns from; empty for the user's own

    def source(self) -> str | None:
        """A hash of the file that defines a user's method: its results are stale once the file changes."""
        if self.group != "own":
            return None
        module = inspect.getmodule(getattr(self.build, "func", self.build))  # for a partial, its function
        file = getattr(module, "__file__", None)
        return None if file is None else hashlib.sha256(Path(file).read_bytes()).hexdigest()[:12]


def find_methods(names: Iterable[str], feedback: Feedback = "ratings") -> list[BenchMethod]:
    """The methods by name, each once: our names, the paper's, `module:function`, or a set of `_method_sets`.

    Of a set, those that learn from this kind of feedback. A kernel method without its kernel is the Gaussian one.
    """
    found: dict[str, BenchMethod] = {}
    for name in names:
        whole_set = _method_sets().get(name.lower(), [])
        in_set = [method for method in whole_set if feedback in method.feedback]
        if whole_set and not in_set:
            raise ConfigError(f"`methods`: none of {name!r} learns from {feedback}. Use all, or name some.")
        for method in in_set or [_find_method(name)]:
            ours = replace(method, build=partial(method.build, feedback=feedback)) if method.feedback else method
            found.setdefault(method.name, ours)
    return list(found.values())


@lru_cache(maxsize=1)
def _method_sets() -> dict[str, list[BenchMethod]]:
    everything = [method for name in METHODS for method in _with_kernels(name)]
    everything.sort(key=lambda method: method.family not in ("naive", "ips"))  # the paper's order: IPS first, then DR
    return {
        "all": everything,
        "paper": [method for method in everything if method.title in places()],
        "baselines": [method for method in everything if method.group == "baseline"],
        "balancing": [method for balancing in BALANCING for method in _with_kernels(balancing.name)],
    }


def _with_kernels(name: str) -> list[BenchMethod]:
    """A method by our name: one row, or one for each kernel."""
    method = METHODS[name]
    group: Literal["baseline", "ours"] = "ours" if PAPER in method.citation else "baseline"
    title = TITLES.get(name, method.title)
    names = {name: title}
    if name.partition("-")[0] in KERNEL_RULES:
        names = {f"{name}-{kernel}": f"{title}-{ending}" for kernel, ending in KERNELS.items()}
    own = group, estimator(method)
    return [BenchMethod(name, title, *own, partial(_make, name), method.feedback) for name, title in names.items()]


def estimator(method: Method) -> str:
    """The block of a method in a table: "ips" without imputed errors, "dr" with them; or by its family."""
    if method.family in OTHER_FAMILIES:
        return OTHER_FAMILIES[method.family]
    imputes = method.build().imputation.imputes_errors and method.name not in IN_BLOCK_OF_IPS
    return "dr" if imputes else "ips"


def _make(name: str, seed: int, feedback: Feedback) -> Any:
    return make(name, feedback=feedback, seed=seed)


def _find_method(name: str) -> BenchMethod:
    if ":" in name:
        return _user_method(name, _import(name))
    plugins = entry_points(group=PLUGINS)
    if name in plugins.names:
        return _user_method(name, plugins[name].load())
    try:
        found = _with_kernels(canonical_name(name))
    except ConfigError:
        names = [*_method_sets(), *METHODS, *sorted(plugins.names)]
        raise ConfigError(
            f"`methods` must be among {', '.join(names)}, or module:function for one of your own, got {name!r}."
            + did_you_mean(name, names)
        ) from None
    return next((method for method in found if method.name.endswith("-exp") == name.lower().endswith("-exp")), found[0])


def _user_method(name: str, build: Any) -> BenchMethod:
    if not callable(build):
        raise ConfigError(f"{name!r} must be a function of a seed that builds a model, got {build!r}.")
    return BenchMethod(name, name.rpartition(":")[2], "own", "own", build)


def _import(name: str) -> Any:
    """The function of `module:function`; modules are looked for in the current folder too."""
    module, _, function = name.partition(":")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        found = import_module(module)
    except Exception as error:  # anything that the user's code raises
        reason = f"{type(error).__name__}: {error}"
        raise ConfigError(f"{name!r} cannot be imported ({reason}). Is {module}.py in this folder?") from None
    if not hasattr(found, function):
        raise ConfigError(f"{name!r}: the module {module!r} has no {function!r}.")
    return getattr(found, function)
