"""The package's facts agree with each other, and the workflows do what can be done here."""

from __future__ import annotations

import re
import tomllib
from typing import Any

import pytest
import yaml
from release import PLACEHOLDER, ROOT, publishing_problems, version_problems

from counterpoise import __version__

PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
TARGETS = re.findall(r"^([\w-]+):(?!=)", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.MULTILINE)
FORGE = ROOT / ".github"
PINNED = re.compile(r"uses: [\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+$")
WORKFLOWS = sorted(FORGE.glob("workflows/*.yml"))
if not WORKFLOWS:
    pytest.skip("the source archive has no workflows", allow_module_level=True)


def steps(workflow: Any) -> list[dict[str, Any]]:
    """The steps of all jobs; one for each value where a command names the matrix."""
    found = []
    for job in workflow["jobs"].values():
        values = job.get("strategy", {}).get("matrix", {}).get("target", [""])
        for step in job["steps"]:
            run = step.get("run", "")
            found += [step | {"run": run.replace("${{ matrix.target }}", value)} for value in values]
    return found


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_only_calls_make_gh_and_pinned_actions(path: Any) -> None:
    text = path.read_text(encoding="utf-8")
    found = steps(yaml.safe_load(text))
    commands = [step["run"].split() for step in found if step["run"]]
    assert commands
    for words in commands:
        assert words[:3] == ["gh", "release", "create"] or (words[0] == "make" and words[1] in TARGETS), words
        assert not any("${{" in word for word in words), words  # a tag could hold a command; $GITHUB_REF_NAME is text
    uses = [line.strip().removeprefix("- ") for line in text.splitlines() if "uses:" in line]
    assert uses
    for line in uses:
        assert PINNED.fullmatch(line), line


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_may_only_read_unless_a_job_says_so(path: Any) -> None:
    workflow = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert workflow["permissions"] == {"contents": "read"}
    writing = {name for name, job in workflow["jobs"].items() if "write" in job.get("permissions", {}).values()}
    assert writing <= {"build", "publish", "attach"}


def test_the_stated_pythons_and_systems_are_those_of_the_workflow() -> None:
    matrix = yaml.safe_load((FORGE / "workflows" / "checks.yml").read_text("utf-8"))["jobs"]["tests"]["strategy"][
        "matrix"
    ]
    stated = re.findall(r":: (3\.\d+)", "\n".join(PROJECT["classifiers"]))
    assert matrix["python"] == stated
    assert PROJECT["requires-python"] == f">={stated[0]}"
    assert len(matrix["os"]) == sum("Operating System" in line for line in PROJECT["classifiers"])


def test_the_other_files_of_the_forge_are_yaml() -> None:
    files = [path for path in FORGE.rglob("*.yml") if path not in WORKFLOWS]
    assert len(files) >= 4
    for path in [*files, ROOT / ".pre-commit-config.yaml"]:
        assert isinstance(yaml.safe_load(path.read_text(encoding="utf-8")), dict), path


def test_version_changelog_and_citation_agree() -> None:
    assert version_problems() == []


def test_a_release_needs_its_tag_and_an_owner() -> None:
    found = publishing_problems("v0.0.1")
    assert f"'v{__version__}'" in found[0]
    owned = not any(PLACEHOLDER in url for url in PROJECT["urls"].values())
    assert len(publishing_problems(f"v{__version__}")) == 1 - owned


def test_only_the_urls_of_the_project_name_the_owner() -> None:
    named = [
        path.name for path in ROOT.glob("*") if path.is_file() and PLACEHOLDER in path.read_text("utf-8", "ignore")
    ]
    assert named in ([], ["pyproject.toml"])


def test_the_lock_has_hashes_for_every_stated_package_and_names_no_host() -> None:
    lock = (ROOT / "requirements.lock").read_text(encoding="utf-8")
    assert "://" not in lock
    entries = re.split(r"^(?=[\w.-]+==)", lock, flags=re.MULTILINE)[1:]
    assert all(re.fullmatch(r"\S+( ; .+?)?( \\\n    --hash=sha256:[0-9a-f]{64})+\n", entry) for entry in entries)
    wanted = [
        *PROJECT["dependencies"],
        *(text for texts in PROJECT["optional-dependencies"].values() for text in texts),
    ]
    names = {re.split(r"[^\w.-]", text)[0].lower() for text in wanted}
    assert names - {"counterpoise"} <= {entry.split("==")[0] for entry in entries}
