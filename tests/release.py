"""What must be true of a version before it is published: `make release-check TAG=v1.2.3`."""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

import yaml

from counterpoise import __version__

ROOT = Path(__file__).parents[1]
PLACEHOLDER = "OWNER"  # of the repository, in pyproject.toml


def version_problems() -> list[str]:
    """Where the changelog and the citation disagree with the version of the package."""
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    sections = re.findall(r"^## \[(\S+)\] - (\d{4}-\d\d-\d\d)$", changelog, flags=re.MULTILINE)
    version, date = sections[0] if sections else ("", "")
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    found = []
    if version != __version__:
        found.append(f"the first dated section of CHANGELOG.md is of {version!r}, the package is {__version__!r}")
    if (citation["version"], str(citation["date-released"])) != (__version__, date):
        found.append(f"CITATION.cff is of {citation['version']!r}, {citation['date-released']}, not of {date}")
    return found


def publishing_problems(tag: str) -> list[str]:
    """What else keeps a tag from being published."""
    urls = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["urls"]
    unset = [name for name, url in urls.items() if PLACEHOLDER in url]
    found = [] if tag == f"v{__version__}" else [f"the tag is {tag!r}, the package needs 'v{__version__}'"]
    return found + [f"[project.urls] of pyproject.toml: put the owner in place of {PLACEHOLDER} in {unset}"] * bool(
        unset
    )


if __name__ == "__main__":
    problems = version_problems() + publishing_problems(sys.argv[1] if sys.argv[1:] else "")
    sys.exit("\n".join(problems) or 0)
