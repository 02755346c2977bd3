"""Shared fixtures: one small simulated world, fitted once."""

from __future__ import annotations

import os

# Before numpy is imported. Arrays are small here, and on a busy machine a second thread of its linear algebra waits for
# longer than it computes: fits of balanced methods took up to nine times the processor time.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import torch
from hypothesis import settings

from counterpoise import Dataset, DebiasedRecommender, SimulatedData, make, simulate
from counterpoise.cli.main import main

settings.register_profile("counterpoise", deadline=None)  # a busy machine is no failure
settings.load_profile("counterpoise")
torch.set_num_threads(1)  # on arrays as small as these a second thread waits; tests of threads set their own number

collect_ignore = [] if os.name == "posix" else ["test_faults.py", "test_fuzz.py"]  # limits and signals of POSIX

BROWSERS = ("chromium", "chromium-browser", "google-chrome")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """The Chromium of this machine, or a skip that says why."""
    reason = "playwright is not installed: pip install -e '.[dev]'"
    playwright = pytest.importorskip("playwright.sync_api", reason=reason)
    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    if found is None:
        pytest.skip(f"there is no browser: none of {', '.join(BROWSERS)} was found")
    with playwright.sync_playwright() as started:
        opened = started.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.fixture
def screenshots(tmp_path: Path) -> Callable[[Any, str], Path]:
    """A function that saves a picture of a page as NAME.png; `make test-all` keeps them in artifacts/screenshots."""
    folder = Path(os.environ.get("COUNTERPOISE_SCREENSHOTS") or tmp_path)

    def save(page: Any, name: str) -> Path:
        page.screenshot(path=folder / f"{name}.png", full_page=True)
        return folder / f"{name}.png"

    return save


@pytest.fixture(autouse=True)
def _without_gpu(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A test marked `cpu` compares tensors with arrays, or a fit with what is loaded, to the last digit."""
    if request.node.get_closest_marker("cpu"):
        monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)


@pytest.fixture(scope="session")
def world() -> SimulatedData:
    return simulate(n_users=60, n_items=50, density=0.2, seed=0)


@pytest.fixture(scope="session")
def dataset(world: SimulatedData) -> Dataset:
    return world.dataset


@pytest.fixture(scope="session")
def fitted(dataset: Dataset) -> DebiasedRecommender:
    return make("mf", dim=4, epochs=20, device="cpu").fit(dataset.train)  # where a saved model is loaded


@pytest.fixture(scope="session")
def coat_folder() -> Path:
    folder = Path(os.environ.get("COUNTERPOISE_DATA", "")) / "coat"
    if not (folder / "train.ascii").is_file():
        pytest.skip("the Coat files are not there: set COUNTERPOISE_DATA to the folder above `coat`")
    return folder


SCRIPT_ID, IMAGE_ID = "<script>window.hacked=1</script>", '"><img src=x onerror="window.hacked=1">'


@pytest.fixture(scope="session")
def hostile_folder(tmp_path_factory: pytest.TempPathFactory, dataset: Dataset) -> Path:
    """train, probe and test as files, whose users and items have ids that would like to run."""
    folder = tmp_path_factory.mktemp("hostile")
    for name, log in (("train", dataset.train), ("probe", dataset.probe), ("test", dataset.test)):
        frame = log.to_frame().with_columns(
            user_id=SCRIPT_ID + pl.col("user_id").cast(pl.String), item_id=IMAGE_ID + pl.col("item_id").cast(pl.String)
        )
        frame.write_csv(folder / f"{name}.csv")
    return folder


@pytest.fixture(scope="session")
def hostile_run(hostile_folder: Path) -> Path:
    """A run of balanced weights on these files, with its report."""
    run = hostile_folder / "run"
    fit = ["fit", str(hostile_folder / "train.csv"), "--method", "skb-ips", "--epochs", "20", "--out", str(run)]
    tested = [
        "--test",
        str(hostile_folder / "test.csv"),
        "--test-kind",
        "uniform",
        "--probe",
        str(hostile_folder / "probe.csv"),
    ]
    assert main([*fit, *tested, "--report", "--quiet"]) == 0
    return run
