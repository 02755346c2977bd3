"""Wrong words on the command line: one line that names what is wrong and the way out."""

from __future__ import annotations

import pytest
from command_line import one_line, run

MISSPELT = {
    "fit x.csv --treshold 4": "there is no option '--treshold'. Did you mean '--threshold'?",
    "bench table --metods mf": "there is no option '--metods'. Did you mean '--methods'?",
    "--versoin": "there is no option '--versoin'. Did you mean '--version'?",
    "fti x.csv": "no such command 'fti'. Did you mean 'fit'?",
    "bench tabel": "no such command 'tabel'. Did you mean 'table'?",
    "fit x.csv --by tme": "`--by` must be one of 'random', 'user', 'time', 'leave-last', got 'tme'. "
    "Did you mean 'time'?",
}
WITHOUT_NEAREST = {
    "fit x.csv --qqq": "there is no option '--qqq'. See `counterpoise fit --help`.",
    "fit x.csv -z": "there is no option '-z'. See `counterpoise fit --help`.",
    "qqq": "no such command 'qqq'. See `counterpoise --help`.",
    "bench qqq": "no such command 'qqq'. See `counterpoise bench --help`.",
}
NUMBERS = {
    "fit x.csv --seed 1.5": "`--seed` must be an integer, got '1.5'.",
    "fit x.csv --threshold four": "`--threshold` must be a number, got 'four'.",
    "fit x.csv --k=": "`--k` must be an integer, got ''.",
}
NUMBER_OF_WORDS = {
    "recommend": "missing argument 'RUN'. See `counterpoise recommend --help`.",
    "export run": "missing option '--out'. See `counterpoise export --help`.",
    "fit x.csv y.csv": "got unexpected extra argument(s) (y.csv). See `counterpoise fit --help`.",
    "fit x.csv --threshold": "option '--threshold' requires an argument.",
    "fit x.csv --report=3": "option '--report' does not take a value.",
}


@pytest.mark.parametrize(
    ("words", "message"), [*MISSPELT.items(), *WITHOUT_NEAREST.items(), *NUMBERS.items(), *NUMBER_OF_WORDS.items()]
)
def test_wrong_words_are_one_line_with_advice(words: str, message: str) -> None:
    assert run(*words.split()) == (2, "", f"error: {message}\n")


def test_long_wrong_words_are_shortened() -> None:
    for words in (("fit", "x.csv", "--" + "x" * 9000), ("fit", "x.csv", "--by", "x" * 9000), ("x" * 9000,)):
        code, _, err = run(*words)
        assert code == 2
        assert one_line(err)


@pytest.mark.parametrize("words", [(), ("bench",)])
def test_no_words_print_the_commands(words: tuple[str, ...]) -> None:
    code, out, err = run(*words)
    assert (code, err) == (2, "")
    assert "Usage: counterpoise" in out
