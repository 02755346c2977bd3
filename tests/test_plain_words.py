"""Plain words: no dialect of our own in the pages, the help, the messages and the report."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer
from pages import PAGES, ROOT

from counterpoise.cli.main import make_app
from counterpoise.report.definitions import CLICK_GLOSSARY, GLOSSARY

DIALECT = (
    r"has no say|have a say|believed by|believes?|is told of|told of exposure|heeds?|in vain|silence|silent|"
    r"gives? up|given up|hedged?|by so many|beside it|astray|strangers?|cautious|surprise of nothing|whoever|"
    r"grades?|voices?|witness(?:es)?|at-once|doubt(?:s|ed|ing)?|poetic|weighing part|own logits|told logits|"
    r"told by|speaks? of|may cost"
)
BANNED = re.compile(rf"\b(?:{DIALECT})\b", re.IGNORECASE)
INVERTED = re.compile(r"(?:^|[.:] )Of (?!course)[a-z]+(?: [a-z]+){0,3}, ")  # "Of the test, as probe."
SOURCES = sorted((ROOT / "src").rglob("*.py"))
TEMPLATES = sorted(path for end in ("html", "js") for path in (ROOT / "src").rglob(f"*.{end}"))


def found(text: str) -> list[str]:
    """The banned words of a text, with what stands around them."""
    hits = [*BANNED.finditer(text), *INVERTED.finditer(text)]
    return [" ".join(text[max(0, hit.start() - 40) : hit.end() + 40].split()) for hit in hits]


def literals(path: Path) -> Iterator[str]:
    """The strings of a module that are no docstrings: messages, help, labels, and keys."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    docs = {id(node.body[0].value) for node in ast.walk(tree) if isinstance(node, documented) and _has_doc(node)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docs:
            yield node.value


def _has_doc(node: ast.AST) -> bool:
    return ast.get_docstring(node, clean=False) is not None  # type: ignore[arg-type]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_pages_have_no_dialect(page: Path) -> None:
    assert found(page.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT / "src")))
def test_printed_text_has_no_dialect(path: Path) -> None:
    assert [hit for text in literals(path) for hit in found(text)] == []


def test_docstrings_have_no_dialect() -> None:
    """`help()` shows them, and pages of the API."""
    hits = {}
    for path in SOURCES:
        tree = ast.parse(path.read_text(encoding="utf-8"))
        nodes = [n for n in ast.walk(tree) if isinstance(n, ast.Module | ast.ClassDef | ast.FunctionDef)]
        texts = [ast.get_docstring(node) or "" for node in nodes]
        hits[path.name] = [hit for text in texts for hit in found(text)]
    assert {name: listed for name, listed in hits.items() if listed} == {}


def test_help_pages_have_no_dialect() -> None:
    def commands(group: object) -> Iterator[object]:
        for command in group.commands.values():  # type: ignore[attr-defined]
            yield from commands(command) if hasattr(command, "commands") else [command]

    for command in commands(typer.main.get_command(make_app([]))):
        texts = [command.help, command.epilog, *(option.help for option in command.params)]  # type: ignore[attr-defined]
        assert [hit for text in texts for hit in found(text or "")] == []


def test_report_and_served_page_have_no_dialect() -> None:
    texts = [GLOSSARY, CLICK_GLOSSARY, *(path.read_text(encoding="utf-8") for path in TEMPLATES)]
    assert [hit for text in texts for hit in found(text)] == []


def test_the_list_finds_what_it_is_for() -> None:
    for sentence in (
        "Silence: a positive pair is 2.2 times as likely to be observed, believed by half.",
        "It names what it gave up: given up are two.",
        "Of the test, as probe.",
        "The probe has no say.",
    ):
        assert found(sentence), sentence
    assert found("The effective sample size of the log, weighted.") == []
