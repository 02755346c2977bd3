"""From facts to one self-contained HTML page: Jinja2 with autoescape, styles and script inside."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping, Sequence
from hashlib import sha256
from importlib.resources import files
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from counterpoise.reports.balance_section import balance_section
from counterpoise.reports.blocks import Section, slug
from counterpoise.reports.configuration_section import configuration_section
from counterpoise.reports.lists_section import lists_section
from counterpoise.reports.log_section import log_section
from counterpoise.reports.model_section import model_section
from counterpoise.reports.summary import OWN
from counterpoise.reports.weights_section import weights_section

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
        loader=PackageLoader("counterpoise.reports"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals["slug"] = slug
    folder = files("counterpoise.reports") / "templates"
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
