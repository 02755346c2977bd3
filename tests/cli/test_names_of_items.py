"""Names of items from the files of a fit to lists, the report, the served page and the API."""

from __future__ import annotations

import json
import unicodedata
from pathlib import Path

import polars as pl
import pytest
from command_line import one_line, run

NAME = '<script>alert("it\'s")</script>'


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("named")
    rows = [(u, 10 * i, 1 + (u * i) % 5) for u in range(30) for i in range(20) if (u + i) % 3]
    pl.DataFrame(rows, ["who", "what", "rating"], orient="row").write_csv(folder / "log.csv")
    names = {"what": [10 * i for i in range(19)], "title": [f"{NAME} {i}" for i in range(19)], "year": [1990] * 19}
    pl.DataFrame(names).write_csv(folder / "movies.csv")
    return folder


def fit(files: Path, *words: object, out: str = "run") -> tuple[int, str, str]:
    columns = ("--user-col", "who", "--item-col", "what", "--threshold", 3, "--method", "mf", "--epochs", 3)
    return run("fit", files / "log.csv", *columns, "--out", files / out, *words)


@pytest.fixture(scope="module")
def fitted(files: Path) -> Path:
    code, out, _ = fit(files, "--item-names", files / "movies.csv", "--report")
    assert code == 0
    assert f"Names: 19 of 20 items by column 'title' of {files / 'movies.csv'}." in " ".join(out.split())
    return files / "run"


def test_recommend_prints_and_writes_names(fitted: Path) -> None:
    code, out, _ = run("recommend", fitted, "--users", "1", "--k", "20", "--json")
    assert code == 0
    names = {row["item_id"]: row["item_name"] for row in json.loads(out)}
    assert names.items() <= ({10 * i: f"{NAME} {i}" for i in range(19)} | {190: "190"}).items()
    assert run("recommend", fitted, "--out", fitted.parent / "lists.csv", "--quiet")[0] == 0
    assert pl.read_csv(fitted.parent / "lists.csv").columns[:5] == ["user_id", "item_id", "item_name", "score", "rank"]


def test_names_do_not_steer_the_terminal(files: Path) -> None:
    """Colours, titles of the window, links, C1 controls, overwriting, and text that runs from right to left."""
    odd = [
        "\x1b[31mred",
        "\x1b]0;title\x07",
        "\x1b]8;;http://evil\x1b\\link",
        "\x9b31m",
        "over\rwritten",
        "\u202etxt",
        "a\x08b",
    ]
    names = pl.DataFrame({"what": [10 * i for i in range(20)], "title": [f"{odd[i % 7]} {i}" for i in range(20)]})
    names.write_parquet(files / "odd.parquet")
    code, said, _ = fit(files, "--item-names", files / "odd.parquet", out="odd")
    _, listed, _ = run("recommend", files / "odd", "--k", 20)
    assert code == 0
    assert "\\x1b[31mred 0" in listed
    assert "\\u202etxt 5" in listed
    assert set(map(unicodedata.category, (said + listed).replace("\n", ""))).isdisjoint({"Cc", "Cf"})
    _, listed, err = run("recommend", files / "odd\x1b[31m")
    assert err.startswith(f"error: {files}/odd\\x1b[31m is not a saved run")


def test_the_report_shows_names_as_text(fitted: Path) -> None:
    page = (fitted / "report.html").read_text(encoding="utf-8")
    assert "&lt;script&gt;alert(&#34;it&#39;s&#34;)" in page
    assert "<script>alert" not in page
    facts = json.loads((fitted / "report.json").read_text(encoding="utf-8"))
    listed = [entry for user in facts["lists"]["users"] for entry in user["run"]]
    assert {entry["name"] for entry in listed} <= {*(f"{NAME} {i}" for i in range(19)), "190"}


def test_the_server_answers_with_names(fitted: Path) -> None:
    testing = pytest.importorskip("starlette.testclient", reason="serving is not installed")
    from counterpoise.serve.app import make_app
    from counterpoise.serve.model import ServedRun

    served = ServedRun.load(fitted)
    with testing.TestClient(make_app(lambda: served)) as client:
        entries = client.get("/recommend", params={"user": "1", "k": 20}).json()["items"]
        assert all(entry["item_name"] in (f"{NAME} {entry['item_id'] // 10}", "190") for entry in entries)
        similar = client.get("/similar", params={"item": "30", "k": 2}).json()
        assert similar["item_name"] == f"{NAME} 3"
        assert {"item_id", "item_name", "score", "rank"} == set(similar["items"][0])
        page = client.get("/", params={"user": "1"}).text
        assert "&lt;script&gt;alert" in page
        assert "<script" not in page
        schemas = client.get("/openapi.json").json()["components"]["schemas"]
        assert "item_name" not in schemas["Ranked"]["required"]


def test_a_column_of_the_table_of_items_has_the_names(files: Path) -> None:
    rows = {"what": [10 * i for i in range(20)], "label": [f"item {i}" for i in range(20)], "kind": ["a", "b"] * 10}
    pl.DataFrame(rows).write_csv(files / "items.csv")
    code, _, _ = fit(files, "--items", files / "items.csv", "--item-name-col", "label", "--quiet", out="by-label")
    assert code == 0
    _, out, _ = run("recommend", files / "by-label", "--users", "1", "--k", "1", "--json")
    (row,) = json.loads(out)
    assert row["item_name"] == f"item {row['item_id'] // 10}"


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--item-names", "movies.csv", "--item-name-col", "titel"], "Did you mean 'title'?"),
        (["--item-name-col", "title"], "`--item-name-col` names a column of `--item-names`"),
        (["--item-names", "none.csv"], "none.csv: there is no such file"),
        (["--item-names", "others.csv"], "others.csv: no item of the log has a name"),
    ],
)
def test_wrong_names_are_one_line(
    files: Path, words: list[str], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(files)
    pl.DataFrame({"what": ["x"], "title": ["y"]}).write_csv("others.csv")
    code, _, err = fit(files, *words, out="wrong")
    assert code == 2
    assert one_line(err)
    assert expected in err
    assert not (files / "wrong").exists()


def test_further_files_have_the_columns_of_the_log(fitted: Path, tmp_path: Path) -> None:
    """Ratings of new users, pairs to leave out and pairs to predict, by the names of the log or the usual ones."""
    lists = []
    for number, (text, words) in enumerate(
        (
            ("what,rating\n10,5\n20,1\n", ()),
            ("item_id,rating\n10,5\n20,1\n", ()),
            ("10,5\n20,1\n", ("--header", "item_id,rating")),
            ("item_id,rating\n10,5\n20,1\n", ("--header", "item_id,rating")),
        )
    ):
        file = tmp_path / f"new-{number}.csv"
        file.write_text(text)
        code, out, _ = run("recommend", fitted, "--ratings", file, *words, "--k", "3", "--json")
        assert code == 0
        lists.append(json.loads(out))
    assert all(found == lists[0] for found in lists)
    best = json.loads(run("recommend", fitted, "--users", "1", "--k", "1", "--json")[1])[0]["item_id"]
    (tmp_path / "pairs.csv").write_text(f"who,what\n1,{best}\n")
    code, out, _ = run("recommend", fitted, "--users", "1", "--exclude-pairs", tmp_path / "pairs.csv", "--json")
    assert code == 0
    assert best not in {row["item_id"] for row in json.loads(out)}
    assert run("predict", fitted, tmp_path / "pairs.csv", "--out", tmp_path / "scores.csv")[0] == 0
    assert pl.read_csv(tmp_path / "scores.csv")["item_id"].to_list() == [best]
