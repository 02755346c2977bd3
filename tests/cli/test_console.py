"""What commands print besides their results: progress, and warnings."""

from __future__ import annotations

import io
import sys
import warnings

import pytest

from counterpoise.cli.console import progress_bar, reading_notes, working
from counterpoise.errors import ReadingWarning


class Terminal(io.StringIO):
    """Text that is written to a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("counting", "shown"), [(False, "loss 0.2500"), (True, "3/4")])
def test_progress_is_shown_in_a_terminal_alone(counting: bool, shown: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    for terminal, visible in ((Terminal(), True), (Terminal(), False), (io.StringIO(), True)):
        expected = visible and terminal.isatty()
        monkeypatch.setattr(sys, "stderr", terminal)
        with working("reading", visible):
            pass
        with progress_bar("fitting", visible, counting) as update:
            assert (update is not None) == expected
            if update is not None:
                update(3, 4) if counting else update(3, 4, 0.25)
        assert all((words in terminal.getvalue()) == expected for words in ("reading", "fitting", shown))


def test_notes_on_reading_are_lines_and_other_warnings_as_always(capsys: pytest.CaptureFixture[str]) -> None:
    with warnings.catch_warnings(record=True) as others:
        warnings.simplefilter("always")
        with reading_notes(True):
            for category in (ReadingWarning, ReadingWarning, UserWarning):
                warnings.warn(f"a {category.__name__}", category, stacklevel=1)
    assert [str(other.message) for other in others] == ["a UserWarning"]
    assert capsys.readouterr().err == "a ReadingWarning\n"
