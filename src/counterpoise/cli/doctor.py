"""`counterpoise doctor`: whether this installation works, what it can use, and what to do about what is missing."""

from __future__ import annotations

import os
import platform
import re
import textwrap
import time
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import Any

import typer

from counterpoise import __version__
from counterpoise.cli.options import OutputOptions, with_options

EXTRAS = {  # of users: those of developers are not asked for
    "tune": "counterpoise tune",
    "plots": "plots of Python, bench sweep",
    "serve": "counterpoise serve",
    "ray": "--engine ray",
}
REQUIREMENT = re.compile(r"([\w.-]+)(?:\[.*?\])?\s*(?:\(?>=\s*([\d.]+))?")
MAX_ERROR = 1e-6  # of balanced weights whose exact values are known
MIN_POSITIVE_SCORE = 0.5  # of items that everybody likes; the others must score less


@with_options
def doctor(output: OutputOptions) -> None:
    """Check this installation: versions, devices, data folders, and two small computations with known answers.

    The exit code is 1 where something that every command needs is missing or wrong.

    For example:
        counterpoise doctor
        counterpoise doctor --json
    """
    found = facts()
    output.show(found, text(found))
    if not found["healthy"]:
        raise typer.Exit(1)


def facts() -> dict[str, Any]:
    """JSON-able: everything that is printed, and `advice`: what to do about what is missing."""
    packages, extras = _packages()
    found: dict[str, Any] = {
        "counterpoise": __version__,
        "python": platform.python_version(),
        "system": platform.platform(),
        "packages": packages,
        "extras": extras,
    }
    broken = [name for name, package in packages.items() if not package["works"]]
    advice = [f"{name} is missing or too old: pip install --upgrade counterpoise" for name in broken]
    checks: list[dict[str, Any]] = []
    if not broken:
        found |= {"devices": _devices(), "data": _data()}
        checks = [_checked(name, check) for name, check in CHECKS.items()]
        advice += [f"The check {check['name']!r} failed: {check['error']}" for check in checks if check["error"]]
        advice += found["devices"].pop("advice") + found["data"].pop("advice")
    for name, extra in extras.items():
        if extra["missing"]:
            use = f"{extra['for']} needs {', '.join(extra['missing'])}"
            advice.append(f'{use}: pip install "counterpoise[{name}]"')
    healthy = not broken and not any(check["error"] for check in checks)
    return found | {"checks": checks, "healthy": healthy, "advice": advice}


def _packages() -> tuple[dict[str, dict[str, Any]], dict[str, dict[str, Any]]]:
    """(the packages that every command needs, those of each extra), as this package's metadata name them."""
    try:
        named = requires("counterpoise") or []
    except PackageNotFoundError:  # a source tree on the path, not installed
        named = []
    packages: dict[str, dict[str, Any]] = {}
    extras: dict[str, dict[str, Any]] = {name: {"for": use, "missing": []} for name, use in EXTRAS.items()}
    for line in named:
        requirement, _, marker = line.partition(";")
        found = REQUIREMENT.match(requirement)
        if found is None:
            continue
        package = _package(found[1], found[2])
        extra = re.search(r"extra\s*==\s*['\"](\w+)['\"]", marker)
        if extra is None:
            packages[found[1]] = package
        elif extra[1] in extras and not package["works"]:
            extras[extra[1]]["missing"].append(found[1])
    return packages, extras


def _package(name: str, least: str | None) -> dict[str, Any]:
    """The installed version of a package, None without one, and whether it is new enough."""
    try:
        own = version(name)
    except PackageNotFoundError:
        return {"version": None, "needed": least, "works": False}
    return {"version": own, "needed": least, "works": least is None or _numbers(own) >= _numbers(least)}


def _numbers(text: str) -> tuple[int, ...]:
    """2.13.0+cpu as (2, 13, 0)."""
    return tuple(int(part) for part in re.findall(r"\d+", text.partition("+")[0])[:3])


def _devices() -> dict[str, Any]:
    """Processors, threads, and GPUs that torch can use."""
    import torch

    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    threads = torch.get_num_threads()
    gpus = [torch.cuda.get_device_name(place) for place in range(torch.cuda.device_count())]
    advice = []
    if threads > cores:
        advice.append(f"torch uses {threads} threads on {cores} cores: set OMP_NUM_THREADS={cores}.")
    return {"cores": cores, "threads": threads, "gpus": gpus, "advice": advice}


def _data() -> dict[str, Any]:
    """The folder of COUNTERPOISE_DATA, and where each known dataset was found."""
    from counterpoise.data.datasets import available

    place = os.environ.get("COUNTERPOISE_DATA") or None
    found = {row["name"]: row["folder"] for row in available() if row["folder"]}
    missing = [row["name"] for row in available() if not row["ready"]]
    advice = []
    if place is not None and not Path(place).expanduser().is_dir():
        advice.append(f"COUNTERPOISE_DATA names {place}, which is no folder: correct it, or unset it.")
    elif missing:
        advice.append("Datasets that were not found are optional; counterpoise datasets says where to get them.")
    return {"COUNTERPOISE_DATA": place, "found": found, "not found": missing, "advice": advice}


def _checked(name: str, check: Callable[[], str]) -> dict[str, Any]:
    """A check's answer or its error, and its time."""
    started, answer, error = time.perf_counter(), None, None
    try:
        answer = check()
    except Exception as problem:  # whatever is broken in an installation
        error = " ".join(f"{type(problem).__name__}: {problem}".split())
    return {"name": name, "answer": answer, "error": error, "seconds": round(time.perf_counter() - started, 2)}


def check_balance() -> str:
    """Entropy balancing of a binary feature, 1 in 4 observed and 2 in 4 in the population.

    Exact weights are 1/2 on the one row with the feature, 1/6 on each of the three without.
    """
    import numpy as np

    from counterpoise.balance.estimators import MomentBalancer

    observed, population = np.array([[1.0], [0.0], [0.0], [0.0]]), np.array([[1.0], [1.0], [0.0], [0.0]])
    weights = MomentBalancer(1, tolerance=0.0).fit(observed, population=population).weights_
    error = float(np.abs(weights - np.array([3, 1, 1, 1]) / 6).max())
    if error > MAX_ERROR:
        raise ArithmeticError(f"the weights are {weights.tolist()}, and must be 1/2, 1/6, 1/6, 1/6")
    return f"exact to {error:.0e}"


def check_fit() -> str:
    """Matrix factorisation of 30 users who all like the even items and none of the odd ones; half of the pairs rated.

    Every even item must score above every odd one, for pairs without a rating too.
    """
    import numpy as np

    from counterpoise.data.log import FeedbackLog
    from counterpoise.methods import make

    users, items = (side.ravel() for side in np.meshgrid(np.arange(30), np.arange(20), indexing="ij"))
    rated = (users + items // 2) % 2 == 0
    log = FeedbackLog.from_arrays(users[rated], items[rated], (items[rated] + 1) % 2)
    model = make("mf", epochs=60, device="cpu", seed=0).fit(log)
    scores = np.asarray(model.predict(users, items))
    worst, best = float(scores[items % 2 == 0].min()), float(scores[items % 2 == 1].max())
    if not (worst > best and worst > MIN_POSITIVE_SCORE):
        raise ArithmeticError(f"an item that all like scores {worst:.3f}, one that none likes {best:.3f}")
    return f"liked items score at least {worst:.2f}, others at most {best:.2f}"


CHECKS = {"balancing weights": check_balance, "a small fit": check_fit}


def text(found: dict[str, Any]) -> str:
    """The facts for people."""
    lines = [f"counterpoise {found['counterpoise']}, Python {found['python']}, {found['system']}", ""]
    listed = [f"{name} {package['version'] or 'MISSING'}" for name, package in found["packages"].items()]
    lines += _listed("Packages", ", ".join(listed) or "not installed by pip, so their versions are not known")
    for name, extra in found["extras"].items():
        state = "ready" if not extra["missing"] else f"missing {', '.join(extra['missing'])}"
        lines.append(f"  {name:<7} {state:<28} for {extra['for']}")
    if "devices" in found:
        devices, data = found["devices"], found["data"]
        gpus = ", ".join(devices["gpus"]) or "none that torch can use"
        lines += ["", f"Devices: {devices['cores']} cores, {devices['threads']} threads of torch; GPU: {gpus}"]
        lines.append(f"COUNTERPOISE_DATA: {data['COUNTERPOISE_DATA'] or 'not set'}")
        lines += [f"  {name:<12} {folder}" for name, folder in data["found"].items()]
        lines += _listed("  not found", ", ".join(data["not found"])) if data["not found"] else []
    lines.append("")
    for check in found["checks"]:
        state = f"FAILED: {check['error']}" if check["error"] else f"right ({check['answer']})"
        lines.append(f"Checked {check['name']}: {state}, {check['seconds']:.1f} s")
    lines += ["", "All is well." if found["healthy"] else "Something that every command needs is wrong."]
    return "\n".join([*lines, *(f"- {line}" for line in found["advice"])])


def _listed(title: str, words: str) -> list[str]:
    """A title and its words, wrapped."""
    return textwrap.wrap(f"{title}: {words}", 110, subsequent_indent="  ", break_on_hyphens=False)
