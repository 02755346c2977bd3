"""The registry of named methods."""

from __future__ import annotations

import inspect

import pytest

from counterpoise import METHODS, DebiasedRecommender, make, methods


@pytest.mark.parametrize("name", METHODS)
def test_a_method_is_the_function_of_its_name(name: str) -> None:
    build = getattr(methods, name.replace("-", "_"))
    assert inspect.isfunction(build)
    assert METHODS[name].build is build
    assert METHODS[name].name == name
    assert METHODS[name].about == " ".join(build.__doc__.split())


@pytest.mark.parametrize("name", METHODS)
def test_a_method_builds_a_recommender_whose_settings_are_sound(name: str) -> None:
    model = METHODS[name].build()
    assert isinstance(model, DebiasedRecommender)
    model.check_settings()
    assert model == make(name)
    assert METHODS[name].to_dict()["configuration"] == model.to_config()


@pytest.mark.parametrize("setting", ["ensemble", "ordinal"])
def test_optional_parts_are_switched_off_by_name(setting: str) -> None:
    model = make("counterpoise")
    assert getattr(model, setting) is not None
    for off in ("none", None):
        assert getattr(make("counterpoise", **{setting: off}), setting) is None
