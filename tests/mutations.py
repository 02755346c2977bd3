"""How valid files become bad ones: bytes, values of a table of JSON or TOML, and columns of odd types."""

from __future__ import annotations

import json
import random
from copy import deepcopy
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

import polars as pl

TOKENS = [
    *(
        b"",
        b"\0",
        b'"',
        b'""',
        b",",
        b"\t",
        b"\n",
        b"\r\n",
        b"\n\n",
        b";",
        b"'",
        b"\\",
        b"#",
        b"\xff\xfe",
        b"\xef\xbb\xbf",
    ),
    *(b"nan", b"inf", b"-inf", b"NaN", b"null", b"None", b"true", b"-0", b"1e309", b"-1e308", b"1e-320", b"0x10"),
    *(b"9223372036854775808", b"-9223372036854775809", b"99999999999999999999999999", b"007", b"1_000", b" 1 "),
    *(
        b"../../etc/passwd",
        b"/etc/passwd",
        b"~root",
        b"file:///etc/passwd",
        b"http://localhost",
        b"*",
        b"[",
        b"{",
        b"]",
    ),
    *(b"user_id", b"item_id", b"rating", b"\xc3\xa9", b"e\xcc\x81", b"\xe2\x80\xae", b"\xf0\x9f\x92\xa5", b"A" * 5000),
    *(b"2020-01-01", b"9999-12-31T23:59:59", b"[" * 2000, b'{"a":' * 2000, b"a." * 2000, b"PAR1", b"\x28\xb5\x2f\xfd"),
]
VALUES: list[Any] = [
    *(
        None,
        True,
        False,
        0,
        1,
        -1,
        2**31,
        2**63,
        -(2**63) - 1,
        10**400,
        0.5,
        -1.5,
        1e308,
        1e-320,
        float("nan"),
        float("inf"),
    ),
    *(
        "",
        "x",
        "mf",
        "nan",
        "1",
        "../x",
        "/etc/passwd",
        "\0",
        "\ud800",
        "é",
        "x" * 3000,
        [],
        {},
        [[]],
        {"a": {}},
        [1, 2, 3],
    ),
    *(
        {"part": "Training"},
        {"part": "os.system"},
        {"part": "NoImputation"},
        ["x"] * 50,
        {"part": "DebiasedRecommender"},
    ),
]


def mutate_bytes(content: bytes, rng: random.Random) -> bytes:
    """One to four random changes."""
    found = bytearray(content)
    for _ in range(rng.choice((1, 1, 2, 4))):
        place, length = rng.randrange(len(found) + 1), min(rng.choice((1, 2, 8, 64, 512)), len(found))
        kind = rng.randrange(8)
        if kind == 0 and place < len(found):
            found[place] ^= 1 << rng.randrange(8)
        elif kind == 1:
            found[place : place + length] = rng.randbytes(length)
        elif kind == 2:
            del found[place : place + length]
        elif kind == 3:
            found[place:place] = found[place : place + length]
        elif kind == 4:
            found[place:place] = rng.choice(TOKENS)
        elif kind == 5:
            token = rng.choice(TOKENS)
            found[place : place + len(token)] = token
        elif kind == 6:
            del found[place:]
        else:
            other = rng.randrange(len(found) + 1)
            found[place : place + length] = found[other : other + length]
    return bytes(found)


def mutate_text(content: bytes, rng: random.Random, separator: bytes = b",") -> bytes:
    """One to three fields of a table replaced by others."""
    lines = content.split(b"\n")
    for _ in range(rng.choice((1, 1, 3))):
        row = rng.randrange(len(lines))
        fields = lines[row].split(separator)
        fields[rng.randrange(len(fields))] = rng.choice(TOKENS)
        lines[row] = separator.join(fields)
    return b"\n".join(lines)


def mutate_tree(tree: Any, rng: random.Random) -> Any:
    """One to three values of nested tables and lists replaced, removed or added."""
    found = deepcopy(tree)
    for _ in range(rng.choice((1, 1, 1, 3))):
        places = list(_places(found))
        holder, key = rng.choice(places) if places else (None, None)
        kind = rng.randrange(6)
        if holder is None:
            return rng.choice(VALUES)
        if kind == 0:
            del holder[key]
        elif kind == 1 and isinstance(holder, dict):
            holder[rng.choice(("", "x", "part", "files", "\0", "k" * 300))] = deepcopy(rng.choice(VALUES))
        else:
            holder[key] = deepcopy(rng.choice(VALUES))
    return found


def _places(tree: Any) -> Any:
    """(holder, key) of every value below a tree."""
    pairs = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, value in list(pairs):
        yield tree, key
        yield from _places(value)


def json_bytes(tree: Any) -> bytes:
    return json.dumps(tree).encode()


def toml_bytes(tree: Any) -> bytes:
    """A table as TOML, its values inline."""
    if not isinstance(tree, dict):
        return str(tree).encode("utf-8", "replace")
    lines = [f"{_toml_key(key)} = {_toml(value)}" for key, value in tree.items()]
    return "\n".join(lines).encode("utf-8", "replace")


def _toml_key(key: Any) -> str:
    return json.dumps(str(key))


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_toml_key(key)} = {_toml(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, list):
        return f"[{', '.join(map(_toml, value))}]"
    return "nan" if value is None else json.dumps(value).replace("NaN", "nan").replace("Infinity", "inf")


COLUMNS: list[Any] = [
    lambda n: list(range(n)),
    lambda n: [f"x{k % 3}" for k in range(n)],
    lambda n: [None] * n,
    lambda n: [k / 3 for k in range(n)],
    lambda n: [float("nan")] * n,
    lambda n: [float("inf"), *[1e308] * (n - 1)],
    lambda n: [k % 2 == 0 for k in range(n)],
    lambda n: [[k] for k in range(n)],
    lambda n: [{"a": k} for k in range(n)],
    lambda n: [bytes([k % 256]) for k in range(n)],
    lambda n: [date(2020, 1, 1) + timedelta(k) for k in range(n)],
    lambda n: [datetime(2020, 1, 1) + timedelta(k) for k in range(n)],
    lambda n: [time(k % 24) for k in range(n)],
    lambda n: [timedelta(k) for k in range(n)],
    lambda n: [Decimal(k) / 7 for k in range(n)],
    lambda n: pl.Series([f"c{k % 2}" for k in range(n)], dtype=pl.Categorical),
    lambda n: pl.Series([2**64 - 1 - k for k in range(n)], dtype=pl.UInt64),
    lambda n: pl.Series([2**31 - 1 - k for k in range(n)], dtype=pl.Int32).cast(pl.Date),
    lambda n: pl.Series([2**62 + k for k in range(n)], dtype=pl.Int64).cast(pl.Datetime("ms")),
    lambda n: pl.Series([k % 2 for k in range(n)], dtype=pl.Int8),
]


def odd_frame(rng: random.Random) -> pl.DataFrame:
    """Columns of a log, some of odd types."""
    rows = rng.choice((0, 1, 2, 7))
    names = ["user_id", "item_id", "rating", "time"]
    made = {name: pl.Series(name, rng.choice(COLUMNS)(rows) if rows else [], strict=False) for name in names}
    frame = pl.DataFrame(made)
    if rows > 1 and rng.random() < 0.3:
        frame = frame.with_columns(
            pl.when(pl.int_range(rows) == 1).then(None).otherwise(pl.col(rng.choice(names))).name.keep()
        )
    return frame.drop(rng.choice(names)) if rng.random() < 0.1 else frame
