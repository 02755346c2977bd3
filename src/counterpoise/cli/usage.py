"""Errors about the words of a command line: an unknown option, a wrong value, an argument too few or too many."""

from __future__ import annotations

from typing import Any

from typer.exceptions import TyperException

from counterpoise.errors import ConfigError, check_choice, did_you_mean, short_repr

KINDS = {"int_parsing": "an integer", "int_from_float": "an integer", "float_parsing": "a number"}  # errors of pydantic


def usage_message(error: TyperException) -> str:
    """What is wrong with the words, and the way out: the nearest name, the choices, or the page of --help.

    Empty where a command was called without any words: its help has been printed then.
    """
    context, parameter = getattr(error, "ctx", None), getattr(error, "param", None)
    see_help = f" See `{context.command_path} --help`." if context else ""
    if hasattr(error, "possibilities") and hasattr(error, "option_name"):  # no such option
        known = [name for each in context.command.params for name in each.opts] if context else []
        hint = did_you_mean(error.option_name, known) or see_help
        return f"there is no option {short_repr(error.option_name)}.{hint}"
    if parameter is not None and error.__cause__ is not None:
        return _value_message(parameter, error)
    message = error.format_message().strip()
    message = message[:1].lower() + message[1:].rstrip(".")
    return f"{message}{'' if message.endswith('?') else '.' + see_help}" if message else ""


def _value_message(parameter: Any, error: Any) -> str:
    """The rule that a value breaks, as the library says it of an argument."""
    fault = error.__cause__.errors()[0]
    name, value = parameter.opts[0], fault["input"]
    try:
        check_choice(name, value, parameter.type_descriptor.choices or [value])
    except ConfigError as refused:
        return str(refused)
    rule = KINDS.get(fault["type"])
    return f"`{name}` must be {rule}, got {short_repr(value)}." if rule else f"`{name}`: {fault['msg']}."
