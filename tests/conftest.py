"""Shared fixtures: one small simulated world, fitted once."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from hypothesis import settings

from counterpoise import Dataset, DebiasedRecommender, World, make, simulate

settings.register_profile("counterpoise", deadline=None)  # a busy machine is no failure
settings.load_profile("counterpoise")
torch.set_num_threads(1)  # on arrays as small as these a second thread waits; tests of threads set their own number


@pytest.fixture(scope="session")
def world() -> World:
    return simulate(n_users=60, n_items=50, density=0.2, seed=0)


@pytest.fixture(scope="session")
def dataset(world: World) -> Dataset:
    return world.dataset


@pytest.fixture(scope="session")
def fitted(dataset: Dataset) -> DebiasedRecommender:
    return make("mf", dim=4, epochs=20).fit(dataset.train)


@pytest.fixture(scope="session")
def coat_folder() -> Path:
    folder = Path(os.environ.get("COUNTERPOISE_DATA", "")) / "coat"
    if not (folder / "train.ascii").is_file():
        pytest.skip("the Coat files are not there: set COUNTERPOISE_DATA to the folder above `coat`")
    return folder
