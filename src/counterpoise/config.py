"""The configuration of one fit: from a TOML file, a saved run, and flags, in that order of precedence."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from counterpoise.errors import ConfigError, shown
from counterpoise.persistence import read_manifest
from counterpoise.words import Duplicates, EmptyUsers, EngineName, Protocol


class FitConfig(BaseModel):
    """Everything that decides what `counterpoise fit` does."""

    model_config = ConfigDict(extra="forbid")

    data: str = Field(description="A dataset's name, a file with the biased log, or a folder with train.* and test.*.")
    path: str | None = None
    test: str | None = None
    probe: str | None = None
    users: str | None = None
    items: str | None = None
    protocol: Protocol = "honest"
    probe_fraction: float = 0.05
    threshold: float | None = None
    duplicates: Duplicates = "error"
    user_col: str = "user_id"
    item_col: str = "item_id"
    rating_col: str = "rating"
    timestamp_col: str | None = None
    propensity_col: str | None = None
    separator: str | None = None
    method: str = "counterpoise"
    seed: int = 0
    settings: dict[str, Any] = Field(default_factory=dict)
    k: int = Field(default=5, ge=1)
    empty_users: EmptyUsers = "skip"
    memory: str = "4GB"
    engine: EngineName = "local"
    workers: int | None = None
    address: str | None = None
    cache: str | None = None

    def read_options(self) -> dict[str, Any]:
        """How to read files of one's own, as far as it differs from the defaults."""
        names = ("duplicates", "user_col", "item_col", "rating_col", "timestamp_col", "propensity_col", "separator")
        return {
            name: getattr(self, name) for name in names if getattr(self, name) != type(self).model_fields[name].default
        }


def resolve(source: Path | None, flags: dict[str, Any], settings: dict[str, Any]) -> FitConfig:
    """The configuration from a TOML file or run folder (or None), overridden by the flags that are not None."""
    values = {} if source is None else _read(source)
    values |= {name: value for name, value in flags.items() if value is not None}
    given = values.get("settings", {})
    if not isinstance(given, dict):
        raise ConfigError(f"`settings` must be a table of names and values, got {shown(given)}.")
    values["settings"] = given | settings
    if {"seed", "training__seed"} & set(values["settings"]):
        raise ConfigError("`seed` draws the probe too, so it stands beside the settings: use --seed, or the top level.")
    try:
        return FitConfig(**values)
    except ValidationError as error:
        first = error.errors()[0]
        name = ".".join(map(str, first["loc"]))
        if first["type"] == "missing":
            raise ConfigError(f"`{name}` is missing. Give it as an argument or in the configuration file.") from None
        if first["type"] == "extra_forbidden":
            known = ", ".join(FitConfig.model_fields)
            raise ConfigError(f"{source}: there is no setting `{name}` here. Settings: {known}.") from None
        rule = first["msg"].removeprefix("Input should be ")
        raise ConfigError(f"`{name}` must be {rule}, got {shown(first['input'])}.") from None


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
    """A configuration as the TOML that `resolve` reads: what it is of, what differs from the defaults, the settings."""
    fields, named = type(configuration).model_fields, ("data", "method", "seed")
    values = {name: getattr(configuration, name) for name in fields if name != "settings"}
    told = {n: value for n, value in values.items() if n in named or value not in (None, fields[n].default)}
    lines = [f"{name} = {_toml(name, value)}" for name, value in told.items()]
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
        return tomllib.loads(source.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{source} cannot be read: {error.strerror}.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(f"{source} is not valid TOML: {error}.") from None
