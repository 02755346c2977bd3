"""Errors of the library in the words of the command line: what Python calls `user_col` is `--user-col` there."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

NAME, VALUE = r"`([a-z][a-z_0-9]*)`", r"""(?<!--set )\b([a-z][a-z_0-9]*)=(?:"([^"]+)"|'([^']+)'|(-?\d[\w.]*))"""


def spelling(group: Any, arguments: Sequence[str]) -> dict[str, str]:
    """{what Python calls it: the option} of the command that these arguments call."""
    command = group
    for word in arguments:
        if word not in getattr(command, "commands", {}):
            break
        command = command.commands[word]
    return {option.name: option.opts[0] for option in command.params if option.param_type_name == "option"}


def in_options(text: str, options: Mapping[str, str]) -> str:
    """`user_col` as `--user-col`, duplicates="last" as --duplicates last; other settings by --set.

    A name of one word, `threshold`, is left: the option is spelled as it.
    """

    def name(found: re.Match[str]) -> str:
        return f"`{options[found[1]]}`" if "_" in found[1] and found[1] in options else found[0]

    def value(found: re.Match[str]) -> str:
        chosen = found[2] or found[3] or found[4]
        if found[1] in options:
            return f"{options[found[1]]} {chosen}"
        return f"--set {found[1]}={chosen}" if options.get("settings") == "--set" else found[0]

    told = re.sub(VALUE, value, re.sub(NAME, name, text))
    return re.sub(r"`(--[a-z-]+)` \(\1\)", r"`\1`", told)  # some messages name the option themselves
