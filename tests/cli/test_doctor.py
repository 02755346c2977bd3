"""`counterpoise doctor`: what it prints, and that it notices what is missing or wrong."""

from __future__ import annotations

import json
import os
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest
import torch
from command_line import run

from counterpoise.cli import doctor


def test_a_whole_installation_is_healthy() -> None:
    code, text, err = run("doctor", "--json")
    found = json.loads(text)
    assert (code, err) == (0, "")
    assert found["healthy"]
    assert [check["error"] for check in found["checks"]] == [None, None]
    assert sum(check["seconds"] for check in found["checks"]) < 20
    assert found["packages"]["torch"]["works"]
    assert found["devices"]["cores"] >= 1


def test_text_says_what_to_do_about_a_missing_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    known = doctor.version

    def without(name: str) -> str:
        if name == "optuna":
            raise PackageNotFoundError(name)
        return known(name)

    monkeypatch.setattr(doctor, "version", without)
    code, text, _ = run("doctor")
    assert code == 0
    assert "tune    missing optuna" in text
    assert '- counterpoise tune needs optuna: pip install "counterpoise[tune]"' in text


def test_an_old_package_that_all_commands_need_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    known = doctor.version
    monkeypatch.setattr(doctor, "version", lambda name: "0.1" if name == "numpy" else known(name))
    code, text, _ = run("doctor")
    assert code == 1
    assert "- numpy is missing or too old: pip install --upgrade counterpoise" in text


def test_a_wrong_answer_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "MAX_ERROR", -1.0)
    monkeypatch.setattr(doctor, "MIN_POSITIVE_SCORE", 2.0)
    code, text, _ = run("doctor")
    assert code == 1
    assert "Checked balancing weights: FAILED: ArithmeticError: the weights are [" in text
    assert "FAILED: ArithmeticError: an item that all like scores 0." in text


def test_more_threads_than_cores_are_advised_against(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0}, raising=False)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 4)
    assert "torch uses 4 threads on 1 cores: set OMP_NUM_THREADS=1." in run("doctor")[1]


def test_a_data_folder_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("COUNTERPOISE_DATA", str(tmp_path / "gone"))
    assert f"COUNTERPOISE_DATA names {tmp_path / 'gone'}, which is no folder" in run("doctor")[1]


@pytest.mark.parametrize(("text", "numbers"), [("2.13.0+cpu", (2, 13, 0)), ("3", (3,)), ("1.26.4rc1", (1, 26, 4))])
def test_versions_are_compared_by_their_numbers(text: str, numbers: tuple[int, ...]) -> None:
    assert doctor._numbers(text) == numbers
