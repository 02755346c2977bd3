"""From facts to one self-contained HTML page: Jinja2 with autoescape, styles and script inside."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping, Sequence
from hashlib import sha256
from importlib.resources import files
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from counterpoise.report.sections import (
    Section,
    balance_section,
    configuration_section,
    lists_section,
    log_section,
    model_section,
    slug,
    weights_section,
)
from counterpoise.report.summary import OWN

SECTIONS = (log_section, balance_section, weights_section, model_section, lists_section, configuration_section)


def report_page(facts: Mapping[str, Any]) -> str:
    """The report of one run."""
    log = facts["log"]["name"] or "a log"
    name = facts["method"]["name"]
    title = f"{'A method ' if name == OWN else ''}{name} on {log}"
    return page(title, f"Report of the run {facts['run']}", facts, [section(facts) for section in SECTIONS])


def page(title: str, subtitle: str, facts: Mapping[str, Any], sections: Sequence[Section]) -> str:
    """A page with a headline, a summary and sections; all of it stands in the facts."""
    environment = Environment(
        loader=PackageLoader("counterpoise.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals["slug"] = slug
    folder = files("counterpoise.report") / "templates"
    style, script = ((folder / name).read_text(encoding="utf-8") for name in ("style.css", "script.js"))
    ours = Markup(style), Markup(script)  # files of this package  # nosec B704
    return environment.get_template("page.html").render(
        title=title,
        subtitle=subtitle,
        facts=facts,
        sections=sections,
        style=ours[0],
        script=ours[1],
        policy=f"default-src 'none'; img-src data:; style-src {source(style)}; script-src {source(script)}",
    )


def source(text: str) -> str:
    """The name of a text in a content security policy: a browser runs no script that is not ours, and loads nothing."""
    return f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'"
