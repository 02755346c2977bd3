"""Every command with right and with wrong input."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

import counterpoise as cp
from counterpoise import Dataset
from counterpoise.cli.demo import run_demo
from counterpoise.cli.main import main
from counterpoise.cli.options import with_option_names
from counterpoise.config import Configurable
from counterpoise.data.datasets import SOURCES
from counterpoise.methods import FAMILIES, configure, short_names
from counterpoise.runs import columns_as_fitted


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory, dataset: Dataset) -> Path:
    """The simulated dataset as three files, with text ids as a shop would have."""
    folder = tmp_path_factory.mktemp("files")
    for name, log in (("train", dataset.train), ("probe", dataset.probe), ("test", dataset.test)):
        frame = log.to_frame().with_columns(
            user_id="u" + pl.col("user_id").cast(pl.String), item_id="i" + pl.col("item_id").cast(pl.String)
        )
        frame.write_csv(folder / f"{name}.csv")
    return folder


@pytest.fixture(scope="module")
def run(files: Path) -> Path:
    arguments = [
        "fit",
        str(files / "train.csv"),
        "--test",
        str(files / "test.csv"),
        "--test-kind",
        "uniform",
        "--probe",
        str(files / "probe.csv"),
    ]
    given = ["--epochs", "20", "--device", "cpu"]
    assert main([*arguments, "--out", str(files / "run"), *given, "--quiet"]) == 0
    return files / "run"


def printed_json(capsys: pytest.CaptureFixture[str]) -> object:
    return json.loads(capsys.readouterr().out)


def test_help_names_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    text = capsys.readouterr().out
    assert all(word in text for word in ("demo", "fit", "evaluate", "predict", "recommend", "datasets", "methods"))
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.strip() == cp.__version__


def test_package_runs_as_a_module() -> None:
    result = subprocess.run([sys.executable, "-m", "counterpoise", "fti"], capture_output=True, text=True)
    assert result.returncode == 2
    assert "no such command" in result.stderr
    assert "Traceback" not in result.stderr


def test_demo_compares_with_the_truth_and_saves_a_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = run_demo()
    monkeypatch.setattr("counterpoise.cli.demo.run_demo", lambda seed, progress: found)  # once for both
    assert main(["demo", "--out", str(tmp_path / "demo")]) == 0
    text = capsys.readouterr().out
    assert "loss on all pairs (truth)" in text
    assert "Recommendations of counterpoise for five users" in text
    assert "Try next" in text
    assert len(cp.load_model(tmp_path / "demo").recommend([0], k=3)) == 3
    assert main(["demo", "--out", str(tmp_path / "demo"), "--json"]) == 0
    rows = {row["predictor"]: row for row in printed_json(capsys)["rows"]}
    truth, naive = rows["the true preference"], rows["mf"]
    assert truth["loss_on_all_pairs"] < naive["loss_on_all_pairs"]
    assert naive["loss_on_log"] < naive["loss_on_all_pairs"] - 0.1  # the log flatters the model
    ours = rows["counterpoise"]
    assert ours["loss_on_all_pairs"] < naive["loss_on_all_pairs"] - 0.05
    assert naive["auc"] + 0.05 < ours["auc"] < truth["auc"]


def test_fit_evaluates_and_keeps_its_configuration(run: Path, files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    manifest = json.loads((run / "run.json").read_text())
    assert manifest["fit"]["settings"] == {"epochs": 20, "device": "cpu"}
    assert manifest["configuration"]["training"]["epochs"] == 20
    assert manifest["evaluation"]["n_rows"] == manifest["dataset"]["test_rows"]
    assert main(["evaluate", str(run), str(files / "test.csv"), "--json"]) == 0
    again = printed_json(capsys)
    assert again["n_seen"] == 0
    assert {name: again[name] for name in manifest["evaluation"]} == manifest["evaluation"]


def test_evaluate_leaves_out_what_the_model_has_seen(
    files: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = str(tmp_path / "run")
    unbiased = pl.concat([pl.read_csv(files / "test.csv"), pl.read_csv(files / "train.csv").head(30)])
    unbiased.write_csv(tmp_path / "unbiased.csv")
    arguments = ["fit", str(files / "train.csv"), "--test", str(tmp_path / "unbiased.csv"), "--test-kind", "uniform"]
    assert main([*arguments, "--epochs", "3", "--device", "cpu", "--out", run, "--quiet"]) == 0
    manifest = json.loads((tmp_path / "run" / "run.json").read_text())
    assert main(["evaluate", run, str(tmp_path / "unbiased.csv"), "--json"]) == 0
    honest = printed_json(capsys)
    assert honest["n_rows"] == manifest["evaluation"]["n_rows"] == len(unbiased) - honest["n_seen"]
    assert honest["auc"] == manifest["evaluation"]["auc"]
    assert main(["evaluate", run, str(tmp_path / "unbiased.csv"), "--protocol", "paper", "--json"]) == 0
    assert printed_json(capsys)["n_rows"] == len(unbiased)
    assert main(["evaluate", run, str(files / "train.csv")]) == 2
    assert "pairs were seen in training" in capsys.readouterr().err


def test_evaluate_takes_the_split_of_the_run(
    tmp_path: Path, coat_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = str(tmp_path / "run")
    assert (
        main(["fit", "coat", "--path", str(coat_folder), "--seed", "3", "--epochs", "2", "--out", run, "--json"]) == 0
    )
    fitted = printed_json(capsys)
    assert main(["evaluate", run, "coat", "--json"]) == 0
    again = printed_json(capsys)
    assert (again["auc"], again["n_rows"]) == (fitted["evaluation"]["auc"], fitted["evaluation"]["n_rows"])


def test_one_text_id_leaves_integer_ids_known(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "log.csv").write_text(
        "user_id,item_id,rating\n" + "".join(f"{n % 5},{n % 7},{n % 2}\n" for n in range(35))
    )
    run = str(tmp_path / "run")
    assert main(["fit", str(tmp_path / "log.csv"), "--epochs", "3", "--out", run, "--quiet"]) == 0
    scores = {}
    for name, rows in {"plain": "1,2\n", "mixed": "1,2\nnew,2\n"}.items():
        (tmp_path / f"{name}.csv").write_text("user_id,item_id\n" + rows)
        out = str(tmp_path / f"{name}.parquet")
        arguments = [
            "predict",
            run,
            str(tmp_path / f"{name}.csv"),
            "--out",
            out,
            "--unknown-users",
            "popular",
            "--quiet",
        ]
        assert main(arguments) == 0
        scores[name] = pl.read_parquet(out)["score"][0]
    assert scores["plain"] == scores["mixed"]
    assert main(["predict", run, str(tmp_path / "mixed.csv"), "--out", str(tmp_path / "x.csv")]) == 2
    error = capsys.readouterr().err
    assert "unknown user 'new':" in error
    assert "Use --unknown-users popular to score new users by the items alone." in error
    assert (
        main(["recommend", run, "--users", "1, new", "--unknown-users", "popular", "--k", "1", "--keep-seen", "--json"])
        == 0
    )
    assert printed_json(capsys)[0]["score"] == pytest.approx(cp.load_model(run).recommend([1], 1, False)["score"][0])


def test_errors_name_options_instead_of_python_arguments(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    twice = tmp_path / "twice.csv"
    twice.write_text("user_id,item_id,rating\n1,1,0\n1,2,1\n1,1,1\n")
    assert main(["fit", str(twice), "--out", str(tmp_path / "run")]) == 2
    assert "Choose --duplicates last or --duplicates mean to keep one row a pair." in capsys.readouterr().err
    options = {"user_col": "--user-col", "unknown_users": "--unknown-users", "settings": "--set"}
    for text, expected in {
        "`user_col` must be one": "`--user-col` must be one",
        "`user_ids` must be one": "`user_ids` must be one",
        "Name it with `user_col` (--user-col).": "Name it with `--user-col`.",
        'Use unknown_users="popular".': "Use --unknown-users popular.",
        "such as weights='propensity', or strength=0.": "such as --set weights=propensity, or --set strength=0.",
        "For example --set dim=16.": "For example --set dim=16.",
    }.items():
        assert with_option_names(text, options) == expected
    assert with_option_names("Use strength=0.", {}) == "Use strength=0."


def test_ids_with_commas_are_read_from_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    frame = pl.DataFrame({"user_id": ["Poe, E.", " a"] * 3, "item_id": ["1,5", "1,5", "x", "x", "y", "y"]})
    frame.with_columns(rating=pl.Series([0, 1, 1, 0, 1, 1])).write_csv(tmp_path / "log.csv")
    run, asked = str(tmp_path / "run"), tmp_path / "ids.txt"
    assert main(["fit", str(tmp_path / "log.csv"), "--method", "mf", "--epochs", "2", "--out", run, "--quiet"]) == 0
    asked.write_bytes("\ufeff a\r\nPoe, E.\r\n\r\n".encode())
    (tmp_path / "items.txt").write_text("1,5\n")
    among = ["--candidates-file", str(tmp_path / "items.txt"), "--keep-seen", "--json"]
    assert main(["recommend", run, "--users-file", str(asked), *among]) == 0
    assert [(row["user_id"], row["item_id"]) for row in printed_json(capsys)] == [(" a", "1,5"), ("Poe, E.", "1,5")]
    assert main(["recommend", run, "--users-file", str(asked), "--users", "Poe"]) == 2
    assert "`--users` and `--users-file` name the same: give one of them." in capsys.readouterr().err
    asked.write_text("\n \n")
    assert main(["recommend", run, "--users-file", str(asked)]) == 2
    assert "holds no ids: `--users-file` takes one per line." in capsys.readouterr().err
    asked.write_bytes(b"\xff\xfe")
    assert main(["recommend", run, "--users-file", str(asked)]) == 2
    assert "cannot be read: it is not UTF-8 text." in capsys.readouterr().err
    assert main(["recommend", run, "--users-file", str(tmp_path / "none")]) == 2
    assert "none: there is no such file." in capsys.readouterr().err


def test_nested_tables_of_a_configuration_are_settings(
    files: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "fit.toml"
    config.write_text(
        f'data = "{files / "train.csv"}"\n[settings.training]\nepochs = 2\n[settings.backbone]\ndim = 3\n'
    )
    assert main(["fit", "--config", str(config), "--out", str(tmp_path / "run"), "--json"]) == 0
    facts = printed_json(capsys)["configuration"]
    assert (facts["training"]["epochs"], facts["backbone"]["backbone"]["dim"]) == (2, 3)


def test_fit_prints_its_metrics_and_the_next_step(
    files: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["fit", str(files), "--out", str(tmp_path / "run"), "--epochs", "3"]) == 0
    text = capsys.readouterr().out
    assert "NDCG@5" in text
    assert f"counterpoise recommend {tmp_path / 'run'}" in text
    assert re.search(r"^metric +\S+ +95% interval +(naive +)?popularity +mf +against mf$", text, re.MULTILINE)
    assert re.search(r"^log loss .*\), (better|worse|not clear)$", text, re.MULTILINE)
    assert re.search(r"How good it is\n(Better|Worse|No clear difference).* than plain MF in", text)
    assert main(["fit", str(files / "train.csv"), "--out", str(tmp_path / "run"), "--epochs", "3"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "there is no test, so nothing tells whether this is better than a plain model" in text
    assert "Hold rows of the log out with --holdout 0.2" in text


def test_options_override_the_configuration_file(
    files: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "fit.toml"
    config.write_text(f'data = "{files / "train.csv"}"\nseed = 7\nk = 3\n[settings]\ndim = 5\nepochs = 4\n')
    arguments = ["fit", "--config", str(config), "--out", str(tmp_path / "run"), "--json"]
    assert main([*arguments, "--seed", "8", "--epochs", "2", "--set", "l2=1.5"]) == 0
    facts = printed_json(capsys)
    assert facts["fit"]["seed"] == 8
    assert facts["fit"]["k"] == 3
    assert facts["fit"]["settings"] == {"dim": 5, "epochs": 2, "l2": 1.5}
    assert facts["configuration"]["training"]["seed"] == 8
    assert facts["configuration"]["backbone"]["backbone"]["dim"] == 5


def test_a_run_can_be_repeated_from_its_own_configuration(run: Path, tmp_path: Path) -> None:
    assert main(["fit", "--config", str(run), "--out", str(tmp_path / "again"), "--quiet"]) == 0
    first, again = (json.loads((folder / "run.json").read_text()) for folder in (run, tmp_path / "again"))
    assert first["files"] == again["files"]
    assert first["evaluation"] == again["evaluation"]


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_recommendations_are_written_in_original_ids(ending: str, run: Path, tmp_path: Path) -> None:
    out = tmp_path / f"recs.{ending}"
    assert main(["recommend", str(run), "--k", "4", "--out", str(out), "--quiet"]) == 0
    frame = pl.read_csv(out) if ending == "csv" else pl.read_parquet(out)
    assert frame.columns == ["user_id", "item_id", "score", "rank", "scored_by"]
    assert len(frame) == 60 * 4
    assert frame["user_id"].str.starts_with("u").all()
    assert frame["item_id"].str.starts_with("i").all()


def test_recommendations_for_named_users_are_printed(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["recommend", str(run), "--users", "u3,u5", "--k", "2", "--json"]) == 0
    assert [row["user_id"] for row in printed_json(capsys)] == ["u3", "u3", "u5", "u5"]
    assert main(["recommend", str(run), "--users", "nobody", "--k", "2", "--unknown-users", "popular"]) == 0
    assert "nobody" in capsys.readouterr().out
    assert main(["recommend", str(run), "--users", "u3", "--candidates", "i1,i2", "--keep-seen", "--json"]) == 0
    assert {row["item_id"] for row in printed_json(capsys)} == {"i1", "i2"}


def test_new_users_get_lists_from_a_file_of_ratings(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = tmp_path / "given.csv"
    given.write_text("who,item_id,rating\na,i3,1\na,i5,0\nb,i3,0\n")
    arguments = ["recommend", str(run), "--ratings", str(given), "--user-col", "who", "--k", "3", "--json"]
    assert main(arguments) == 0
    rows = printed_json(capsys)
    expected = cp.load_model(run).recommend_for(pl.read_csv(given).rename({"who": "user_id"}), 3)
    assert [(row["user_id"], row["item_id"]) for row in rows] == expected.select("user_id", "item_id").rows()
    assert {row["scored_by"] for row in rows} == {"fold-in"}
    given.write_text("item_id,rating\ni3,1\n")
    assert (
        main(["recommend", str(run), "--ratings", str(given), "--k", "1", "--exclude", rows[0]["item_id"], "--json"])
        == 0
    )
    one = printed_json(capsys)
    assert one[0]["user_id"] == "new"
    assert one[0]["item_id"] != rows[0]["item_id"]
    assert main(["recommend", str(run), "--ratings", str(given), "--users", "u3"]) == 2
    assert "give --users (users of the log) or --ratings" in capsys.readouterr().err


def test_items_and_pairs_are_left_out(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["recommend", str(run), "--users", "u3,u5", "--k", "5", "--json"]
    assert main(asked) == 0
    first = printed_json(capsys)
    (tmp_path / "pairs.csv").write_text(f"user_id,item_id\nu3,{first[0]['item_id']}\n")
    (tmp_path / "items.txt").write_text(f"{first[0]['item_id']}\nnone such\n")
    best = first[0]["item_id"]
    for option, file, users in (
        ("--exclude-pairs", "pairs.csv", {"u3"}),
        ("--exclude-file", "items.txt", {"u3", "u5"}),
    ):
        assert main([*asked, option, str(tmp_path / file)]) == 0
        rows = printed_json(capsys)
        assert not any(row["item_id"] == best and row["user_id"] in users for row in rows)
        kept = [
            row["item_id"] for row in first if row["user_id"] == "u5" and (users == {"u3"} or row["item_id"] != best)
        ]
        assert [row["item_id"] for row in rows if row["user_id"] == "u5"][: len(kept)] == kept
    both = ["--exclude", best, "--exclude-pairs", str(tmp_path / "pairs.csv")]
    assert main([*asked, *both]) == 2
    assert "give --exclude or --exclude-pairs, not both" in capsys.readouterr().err


def test_vectors_are_exported(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", str(run), "--out", str(tmp_path / "vectors")]) == 0
    assert f"written to {tmp_path / 'vectors'}" in capsys.readouterr().out
    users, items = (pl.read_parquet(tmp_path / "vectors" / f"{side}.parquet") for side in ("users", "items"))
    logit = float(users["vector"].to_numpy()[4] @ items["vector"].to_numpy()[2])
    model = cp.load_model(run)
    assert model.predict([users["id"][4]], [items["id"][2]])[0] == pytest.approx(1 / (1 + np.exp(-logit)), abs=1e-5)


def test_predictions_are_written_beside_their_pairs(run: Path, files: Path, tmp_path: Path) -> None:
    out = tmp_path / "scores.csv"
    assert main(["predict", str(run), str(files / "test.csv"), "--out", str(out), "--quiet"]) == 0
    frame, model = pl.read_csv(out), cp.load_model(run)
    assert frame.columns == ["user_id", "item_id", "score"]
    assert frame["user_id"].equals(pl.read_csv(files / "test.csv")["user_id"])
    assert frame["score"].to_list() == pytest.approx(
        model.predict(frame["user_id"], frame["item_id"]).tolist(), abs=1e-6
    )


def test_unknown_users_of_a_test_are_an_error_or_get_rates(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    test = tmp_path / "test.csv"
    test.write_text("user_id,item_id,rating\nu1,i1,1\nu1,i2,0\nnewcomer,i1,1\nnewcomer,i3,0\n")
    assert main(["evaluate", str(run), str(test)]) == 2
    error = capsys.readouterr().err
    assert "unknown user 'newcomer'" in error
    assert "Use --unknown-users popular" in error
    assert (
        main(
            ["evaluate", str(run), str(test), "--unknown-users", "popular", "--json", "--out", str(tmp_path / "e.json")]
        )
        == 0
    )
    assert printed_json(capsys)["n_users"] == 2
    assert json.loads((tmp_path / "e.json").read_text())["n_rows"] == 4


def test_a_test_file_is_biased_unless_said_to_be_uniform(
    files: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, test = tmp_path / "run", str(files / "test.csv")
    fit = ["fit", str(files / "train.csv"), "--test", test, "--method", "mf", "--epochs", "2", "--out", str(out)]
    assert main(fit) == 0
    text = capsys.readouterr().out
    assert "On biased ratings, weighted to estimate metrics over all pairs; naive: of the pairs" in text
    assert "add --test-kind uniform" in " ".join(text.split())
    assert "taken as probe" not in text
    assert main(["evaluate", str(out), test, "--test-kind", "uniform"]) == 0
    assert capsys.readouterr().out.startswith("On ratings of pairs drawn at random (unbiased):")
    assert main([*fit, "--test-kind", "uniform"]) == 0
    text = capsys.readouterr().out
    assert "On ratings of pairs drawn at random (unbiased):" in text
    assert "taken as probe" in text
    assert "add --test-kind" not in text
    assert main(["evaluate", str(out), test]) == 0  # the run knows that this file is uniform
    assert capsys.readouterr().out.startswith("On ratings of pairs drawn at random (unbiased)")
    assert main(["evaluate", str(out), "simulated", "--test-kind", "uniform"]) == 2
    assert "goes with your own files; that of 'simulated' is known" in capsys.readouterr().err


@pytest.mark.parametrize("by", ["random", "user", "time", "leave-last"])
def test_a_log_alone_is_judged_by_a_holdout(
    by: str, files: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log, out = tmp_path / "log.csv", str(tmp_path / "run")
    rows = pl.read_csv(files / "train.csv")
    rows.with_columns(when=pl.Series(range(len(rows)))).write_csv(log)
    fit = ["fit", str(log), "--method", "mf", "--epochs", "2", "--out", out, "--by", by, "--timestamp-col", "when"]
    assert main(fit) == 0
    text = capsys.readouterr().out
    assert f"On a hold-out of the log ({by}), weighted to estimate metrics over all pairs; naive: of the pairs" in text
    assert re.search(r"^metric +mf +95% interval +naive +popularity +against popularity$", text, re.MULTILINE)
    assert re.search(r"- Test: \d+ ratings\.", text)
    assert main([*fit, "--holdout", "0.4", "--json"]) == 0
    facts = printed_json(capsys)["dataset"]
    assert facts["test_sample"] == "biased"
    assert facts["train_rows"] + facts["given_rows"] == len(rows)
    if by in ("random", "time"):
        assert facts["test_rows"] == round(0.4 * len(rows))
    assert main(["report", out, "--baseline", "none"]) == 0
    assert "biased ratings of" in capsys.readouterr().out
    assert f"a hold-out of log ({by})" in (tmp_path / "run" / "report.html").read_text()


def test_the_training_log_is_no_test(run: Path, files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["evaluate", str(run), str(files / "train.csv")]) == 2
    error = capsys.readouterr().err
    assert "pairs were seen in training or in the probe, so they are no test. Hold rows out before the fit" in error
    assert main(["fit", str(files / "train.csv"), "--test", str(files / "train.csv"), "--out", str(run) + "-2"]) == 2
    assert "hold rows of the log out (`holdout`)" in capsys.readouterr().err


def test_unknown_items_of_a_test_are_an_error_dropped_or_scored(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    test = tmp_path / "test.csv"
    test.write_text("user_id,item_id,rating\nu1,i1,1\nu1,new,0\nu2,i1,1\nu2,i3,0\nsomebody,i3,1\n")
    assert main(["evaluate", str(run), str(test), "--unknown-users", "drop"]) == 2
    error = capsys.readouterr().err
    assert "unknown item 'new'" in error
    assert 'Use --unknown-items popular to score new items by the user alone. "drop" leaves their rows out.' in error
    cold = {"cold_users": 1, "cold_items": 1, "cold_rows": 2}
    for rule, dropped in (("popular", 1), ("drop", 2)):
        options = ["--unknown-users", "drop", "--unknown-items", rule]
        assert main(["evaluate", str(run), str(test), *options, "--json"]) == 0
        facts = printed_json(capsys)
        assert facts == facts | cold | {"dropped_rows": dropped, "test_rows": 5 - facts["n_seen"] - dropped}
        assert main(["evaluate", str(run), str(test), *options]) == 0
        fate = {1: "1 left out, 1 predicted by what is known of the other side.", 2: "left out."}[dropped]
        text = " ".join(capsys.readouterr().out.split())
        assert f"of 1 user and 1 item without rows in the training log: {fate}" in text
    pairs = tmp_path / "pairs.csv"
    assert main(["predict", str(run), str(test), "--out", str(pairs), "--unknown-users", "popular"]) == 2
    assert "Use --unknown-items popular" in capsys.readouterr().err
    both = ["--unknown-users", "popular", "--unknown-items", "popular"]
    assert main(["predict", str(run), str(test), "--out", str(pairs), *both]) == 0
    assert len(pl.read_csv(pairs)) == 5


def test_evaluate_weights_biased_ratings_as_asked(
    run: Path, files: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    test = tmp_path / "test.csv"
    rows = pl.read_csv(files / "test.csv")
    rows.with_columns(chance=pl.Series([0.1, 0.4] * (len(rows) // 2) + [0.2] * (len(rows) % 2))).write_csv(test)
    command = ["evaluate", str(run), str(test), "--json"]
    found = {}
    for words in ([], ["--weights", "none"], ["--weights", "popularity"], ["--weights", "known"]):
        assert main([*command, *words, *(["--propensity-col", "chance"] if "known" in words else [])]) == 0
        found[words[-1] if words else "balanced"] = printed_json(capsys)
    assert {name: facts.get("method") for name, facts in found.items()} == {
        "balanced": "balanced",
        "none": None,
        "popularity": "popularity",
        "known": "known",
    }
    assert found["balanced"]["naive"]["auc"] == pytest.approx(found["none"]["auc"])
    probed = str(tmp_path / "probed")
    rows[::2].write_csv(tmp_path / "probe.csv")
    fit = ["fit", str(files / "train.csv"), "--probe", str(tmp_path / "probe.csv"), "--method", "mf", "--epochs", "2"]
    assert main([*fit, "--out", probed, "--quiet"]) == 0
    assert main(["evaluate", probed, str(files / "test.csv")]) == 0
    assert "A run keeps its pairs, not its probe's labels: the weights are learned without" in capsys.readouterr().out
    assert main([*command, "--weights", "know"]) == 2
    assert "Did you mean 'known'?" in capsys.readouterr().err
    assert main([*command, "--weights", "known"]) == 2
    assert "--propensity-col" in capsys.readouterr().err


def test_one_class_of_labels_is_evaluated_without_weights(
    files: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    test = tmp_path / "test.csv"
    pl.read_csv(files / "test.csv").filter(pl.col("rating") == 1).write_csv(test)
    fit = ["fit", str(files / "train.csv"), "--test", str(test), "--method", "mf", "--epochs", "2"]
    assert main([*fit, "--out", str(tmp_path / "run")]) == 0
    text = capsys.readouterr().out
    assert "these are metrics of the pairs that users chose, not of all pairs:" in text
    assert "No weighted estimates: weighted estimates need labels of both kinds" in " ".join(text.split())
    assert main(["evaluate", str(tmp_path / "run"), str(test)]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "No weighted estimates: the hold-out must have rows of both labels" in text
    assert main(["evaluate", str(tmp_path / "run"), str(test), "--weights", "logistic"]) == 2
    assert "rows of both labels" in capsys.readouterr().err


def test_fit_can_refuse_or_drop_cold_users(files: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    test = tmp_path / "test.csv"
    test.write_text((files / "test.csv").read_text() + "newcomer,i1,1\nnewcomer,i3,0\n")
    fit = ["fit", str(files / "train.csv"), "--test", str(test), "--method", "mf", "--epochs", "2"]
    fit += ["--out", str(tmp_path / "run"), "--unknown-items", "drop"]
    assert main([*fit, "--unknown-users", "error"]) == 2
    assert "of 1 users without rows in the training log, the first is 'newcomer'. Use" in capsys.readouterr().err
    assert main([*fit, "--unknown-users", "drop"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "of users or items without rows in the log" in text
    assert "23 ratings of the test are of 1 user and 1 item without rows in the log." in text


def test_datasets_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["datasets"]) == 0
    text = capsys.readouterr().out
    assert all(word in text for word in ("coat", "yahoo-r3", "kuairec", "simulated", "licence"))
    assert main(["datasets", "--json"]) == 0
    assert [row["name"] for row in printed_json(capsys)] == list(SOURCES)


def test_methods_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["methods"]) == 0
    text = capsys.readouterr().out
    lines, rows = text.splitlines(), {}
    for family in FAMILIES:
        start = lines.index(family.capitalize()) + 1
        own = lines[start : lines.index("", start)]
        rows |= {line.split()[0]: line for line in own}
        assert [line.split()[0] for line in own] == [m.name for m in cp.METHODS.values() if m.family == family]
    assert set(cp.METHODS) == set(rows)
    assert all(
        word in rows["dr-jl"] for word in ("2019", "probe or weights", "weights or learned imputation are right")
    )
    assert max(map(len, lines)) <= 80
    assert (Path(__file__).parents[2] / lines[-1].rpartition(";")[2].split()[0]).is_file()
    assert main(["methods", "--json"]) == 0
    facts = {row["name"]: row for row in printed_json(capsys)}
    assert set(facts) == set(cp.METHODS)
    assert facts["ips"]["year"] == 2016
    assert facts["ips"]["citation"].startswith("Schnabel, Swaminathan, Singh, Chandak and Joachims 2016, Recom")


@pytest.mark.parametrize("name", cp.METHODS)
def test_method_is_explained_with_formula_and_settings(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["methods", name]) == 0
    text = capsys.readouterr().out
    assert all(words in text for words in ("risk", "--set", "needs", "learning_rate"))
    assert " ".join(cp.METHODS[name].about.split()) in " ".join(text.split())
    assert main(["methods", name, "--json"]) == 0
    settings, model = printed_json(capsys)["settings"], cp.make(name)
    assert all(setting in text for setting in settings)
    for setting, full in short_names(model).items():  # every name listed is one that --set takes, for that setting
        value = model.get_params()[full]
        if not isinstance(value, Configurable | tuple):
            assert settings[setting] == value
            configure(model, **{setting: value})
    assert model.to_config() == cp.make(name).to_config()


def test_methods_explains_names_of_the_paper(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["methods", "AKBDR-Exp"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("AKBDR-Exp: akb-dr (AKBDR)")
    assert "exponential" in text
    assert main(["methods", "AKBDR-Exp", "--json"]) == 0
    facts = printed_json(capsys)
    assert (facts["name"], facts["settings"]["kernel"]) == ("akb-dr", "exponential")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["mf"], "Every row of the log counts the same"),
        (["ips"], "Relative weight of a positive row"),
        (["ips", "--set", "weights=logistic"], "of the weight"),
        (["asips"], "of all pairs; the third learns these"),
        (["tdr"], "Pairs without a rating count with the label "),
        (["mr"], "clipped"),
        (["sdr"], "stability gap"),
        (["dr-v2"], "balance gap"),
        (["SKBDR-Exp", "--set", "n=10", "--set", "strength=5"], "SD after (root mean square)"),
        (["wkb-ips", "--set", "features=activity"], "0 of 200 functions keep some imbalance (relaxed)"),
        (["akb-dr", "--set", "solver=gradient", "--set", "kernel=exponential"], "Algorithm 1"),
    ],
)
def test_fit_prints_diagnostics_of_its_parts(
    arguments: list[str], words: str, files: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["fit", str(files), "--out", str(tmp_path / "run"), "--epochs", "2", "--method", *arguments]
    assert main(command) == 0
    assert words in " ".join(capsys.readouterr().out.split())
    assert main([*command, "--json"]) == 0
    parts = printed_json(capsys)["parts"]
    assert parts["weights"]["effective_sample_size"] > 0
    assert parts == cp.load_model(tmp_path / "run").facts_


def test_propensities_of_a_file_are_weights(files: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    frame = pl.read_csv(files / "train.csv")
    frame.with_columns(chance=0.1 + 0.4 * pl.col("rating")).write_csv(tmp_path / "log.csv")
    command = ["fit", str(tmp_path / "log.csv"), "--test", str(files / "test.csv"), "--epochs", "2"]
    command += ["--method", "ips", "--set", "weights=known", "--out", str(tmp_path / "run")]
    assert main(command) == 2
    assert "no column of propensities" in capsys.readouterr().err
    assert main([*command, "--propensity-col", "chance"]) == 0
    assert "Propensities from 0.1 to 0.5" in capsys.readouterr().out
    assert main(["fit", "--config", str(tmp_path / "run"), "--out", str(tmp_path / "again"), "--quiet"]) == 0


@pytest.fixture(scope="module")
def samples(files: Path) -> tuple[str, str]:
    """A sample selected by its first feature, and the population it came from."""
    rng = np.random.default_rng(0)
    population, drawn = rng.normal(size=(400, 2)), rng.normal(size=(600, 2))
    observed = drawn[rng.random(600) < 1 / (1 + np.exp(-1.5 * drawn[:, 0]))]
    pl.DataFrame(population, schema=["age", "income"]).write_csv(files / "population.csv")
    pl.DataFrame(observed, schema=["age", "income"]).write_parquet(files / "observed.parquet")
    return str(files / "observed.parquet"), str(files / "population.csv")


def test_balance_writes_weights_and_prints_diagnostics(
    samples: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "weights.parquet"
    assert main(["balance", *samples, "--out", str(out), "--n-functions", "10"]) == 0
    text = capsys.readouterr().out
    assert all(words in text for words in ("design effect", "before", "No function was relaxed", "SMD after"))
    frame, population = pl.read_parquet(out), pl.read_csv(samples[1])
    assert frame.columns == ["age", "income", "weight"]
    assert frame["weight"].sum() == pytest.approx(1)
    weighted, before = (frame["age"] * frame["weight"]).sum(), frame["age"].mean()
    assert abs(weighted - population["age"].mean()) < 0.2 * abs(before - population["age"].mean())
    assert main(["balance", *samples, "--out", str(out), "--moments", "1", "--tolerance", "0", "--json"]) == 0
    facts = printed_json(capsys)
    assert facts["solver"]["status"] == "solved"
    assert max(abs(row["smd_after"]) for row in facts["diagnosis"]["table"]) < 1e-6


def test_balance_reads_files_without_header(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, rows in (("observed", "1;2.5\n2;3.5\n4;1.5\n"), ("population", "1;2\n2;3\n3;1\n")):
        (tmp_path / f"{name}.data").write_text(rows)
    command = ["balance", *(str(tmp_path / f"{name}.data") for name in ("observed", "population"))]
    command += ["--moments", "1", "--out", str(tmp_path / "out.csv")]
    assert main(command) == 2
    assert "looks like data, not like the names of columns: '1', '2.5'. Name its 2" in capsys.readouterr().err
    assert main([*command, "--header", "age,income", "--separator", "semicolon", "--quiet"]) == 0
    assert pl.read_csv(tmp_path / "out.csv").columns == ["age", "income", "weight"]


def test_balance_takes_raw_units(samples: tuple[str, str], tmp_path: Path) -> None:
    weights = {}
    for units in ("sd", "raw"):
        out = tmp_path / f"{units}.csv"
        functions = ["--select", "random", "--n-functions", "4", "--strength", "1", "--units", units]
        assert main(["balance", *samples, "--out", str(out), *functions, "--quiet"]) == 0
        weights[units] = pl.read_csv(out)["weight"].to_numpy()
    first, second = pl.read_parquet(samples[0]), pl.read_csv(samples[1])
    report = cp.balance_samples(first, second, cp.KernelFunctions(n=4, select="random"), strength=1.0, units="raw")
    assert np.allclose(weights["raw"], report.weights)
    assert not np.allclose(weights["raw"], weights["sd"], rtol=0.01)


def test_balance_keeps_columns_and_row_order(tmp_path: Path) -> None:
    """Text as it stands, but numbers as numbers; ids with zeros in front stay text, and an index without a name too."""
    text = ',id,age,group,income,paid,note\n0,007,1,3,2,0.5,"a, b"\n1,008,3,4,1.5,,\n2,009,2,5,2.5,1e3,c\n'
    (tmp_path / "o.csv").write_text(text)
    (tmp_path / "p.csv").write_text("income,age\n1.8,2\n2,2.5\n2.1,1.5\n")
    command = ["balance", str(tmp_path / "o.csv"), str(tmp_path / "p.csv"), "--features", "income,age"]
    assert main([*command, "--moments", "1", "--quiet", "--out", str(tmp_path / "w.parquet")]) == 0
    frame = pl.read_parquet(tmp_path / "w.parquet")
    assert frame.columns == ["", "id", "age", "group", "income", "paid", "note", "weight"]
    assert frame["id"].to_list() == ["007", "008", "009"]
    assert frame["age"].to_list() == [1, 3, 2]
    assert frame["group"].to_list() == [3, 4, 5]
    assert frame["paid"].to_list() == [0.5, None, 1000]
    assert frame["note"].to_list() == ["a, b", None, "c"]
    assert (frame["weight"] * frame["age"]).sum() == pytest.approx(2, abs=0.01)


def test_balance_takes_text_and_gaps_and_says_what_is_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    jobs = ["cook", "smith", "", "cook", "cook", "smith"]
    rows = [f"{n},{20 + n % 7 if n % 5 else ''},{jobs[n % 6]},{n % 3}\n" for n in range(60)]
    (tmp_path / "o.csv").write_text("id,age,job,y\n" + "".join(rows))
    (tmp_path / "p.csv").write_text("id,age,job\n" + "".join(row.rsplit(",", 1)[0] + "\n" for row in rows[::2]))
    files = [str(tmp_path / name) for name in ("o.csv", "p.csv", "w.csv")]
    command = ["balance", *files[:2], "--moments", "1", "--out", files[2]]
    assert main(command) == 0
    shown = capsys.readouterr().out
    assert "Not balanced: id (an id), y (not in the population)." in shown
    assert all(name in shown for name in ("age (missing)", "job=smith", "job (missing)"))
    (tmp_path / "p.csv").write_text("age,job\n20,cook\ninf,smith\n")
    assert main(command) == 2
    assert "p.csv: column 'age', row 3: expected a finite number, got " in capsys.readouterr().err


def test_fit_on_simulated_data_shows_the_truth(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["fit", "simulated", "--method", "ips", "--epochs", "2", "--set", "dim=2", "--out", str(tmp_path / "run")]
    assert main([*command, "--report"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    facts = json.loads((tmp_path / "run" / "report.json").read_text())["model"]["truth"]
    log, weighted = (f"{facts[name]:+.1%}" for name in ("bias_of_the_log", "bias_of_the_weights"))
    assert f"Truth: ideal loss {facts['ideal_loss']:.3f}. Bias of the log's mean error {log}, of the weig" in shown
    assert f"of the weighted mean error {weighted} (relative to the expected error)." in shown
    assert "bias of the weighted log" in (tmp_path / "run" / "report.html").read_text()
    assert main([*command, "--set", "patience=2"]) == 0
    assert "of the weighted mean error" not in capsys.readouterr().out  # rows that were held out have no weight


def test_balance_compares_treated_and_controls_of_one_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rng = np.random.default_rng(0)
    a = rng.normal(size=300)
    treated = rng.random(300) < 1 / (1 + np.exp(-a))
    table = pl.DataFrame({"a": a, "t": treated.astype(int), "w": rng.uniform(1, 2, 300), "y": rng.random(300)})
    table.write_csv(tmp_path / "t.csv")
    command = ["balance", str(tmp_path / "t.csv"), "--treatment", "t", "--target", "att", "--features", "a"]
    command += ["--moments", "1", "--tolerance", "0", "--strength", "1e6", "--out", str(tmp_path / "out.csv")]
    assert main([*command, "--sample-weights", "w"]) == 0
    assert "Treated and controls against the treated, in SD" in capsys.readouterr().out
    found = pl.read_csv(tmp_path / "out.csv")
    assert found.columns == [*table.columns, "weight"]
    means = [float((part["a"] * part["weight"]).sum()) for _, part in found.group_by("t")]
    sampled = found.filter(pl.col("t") == 1)
    assert means == pytest.approx([float(np.average(sampled["a"], weights=sampled["w"]))] * 2, abs=1e-6)
    assert main([*command, "--json"]) == 0
    assert set(printed_json(capsys)["solver"]) == {"controls"}
    moments = pl.read_csv(tmp_path / "out.csv")
    assert main([word for word in command if word not in ("--moments", "1")]) == 0
    kernels = pl.read_csv(tmp_path / "out.csv")
    assert float(kernels.filter(pl.col("t") == 0)["weight"].sum()) == pytest.approx(1)
    assert not np.allclose(kernels["weight"], moments["weight"])
    command.insert(2, str(tmp_path / "t.csv"))
    assert main(command) == 2
    assert "--treatment compares rows of one file: leave out POPULATION" in capsys.readouterr().err


def test_balance_keeps_lists_and_dates_of_a_parquet_file(tmp_path: Path) -> None:
    columns = {"tags": [["a"], [], ["b", "c"]], "age": [1, 3, 2], "day": [date(2024, 1, day) for day in (1, 2, 3)]}
    pl.DataFrame(columns).write_parquet(tmp_path / "o.parquet")
    (tmp_path / "p.csv").write_text("age\n2\n2.5\n")
    command = ["balance", str(tmp_path / "o.parquet"), str(tmp_path / "p.csv"), "--features", "age", "--moments", "1"]
    assert main([*command, "--quiet", "--out", str(tmp_path / "w.parquet")]) == 0
    assert pl.read_parquet(tmp_path / "w.parquet").drop("weight").to_dict(as_series=False) == columns


@pytest.mark.parametrize("values", [[[1], [2], [3]], [timedelta(1), timedelta(2), timedelta(3)], [b"a", b"b", b"c"]])
def test_balance_names_column_of_two_types(values: list[Any], tmp_path: Path, capsys: Any) -> None:
    pl.DataFrame({"age": [1, 3, 2], "odd": values}).write_parquet(tmp_path / "o.parquet")
    (tmp_path / "p.csv").write_text("age,odd\n2,1\n2.5,2\n")
    command = ["balance", str(tmp_path / "o.parquet"), str(tmp_path / "p.csv"), "--out", str(tmp_path / "w.parquet")]
    assert main(command) == 2
    assert "error: column 'odd': is " in capsys.readouterr().err


def test_smd_of_constant_feature_is_dash_and_null(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "o.csv").write_text("age,dose\n1,2\n3,4\n2,2.5\n")
    (tmp_path / "p.csv").write_text("age,dose\n1,0.1\n3,0.1\n2,0.1\n3,0.1\n")
    command = ["balance", str(tmp_path / "o.csv"), str(tmp_path / "p.csv"), "--out", str(tmp_path / "w.csv")]
    assert main([*command, "--moments", "1"]) == 0
    assert " - " in next(line for line in capsys.readouterr().out.splitlines() if "dose" in line)
    assert main([*command, "--moments", "1", "--json"]) == 0
    text = capsys.readouterr().out
    assert json.loads(text)["diagnosis"]["table"][1]["smd_after"] is None
    assert "NaN" not in text
    assert "Infinity" not in text


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["balance", "{files}/observed.parquet", "{files}/none.csv", "--out", "w.csv"], "there is no such file"),
        (["balance", "{files}/observed.parquet", "{files}/train.csv", "--out", "w.csv"], "Not balanced: age (not in"),
        (
            ["balance", "{files}/observed.parquet", "{files}/population.csv", "--features", "agee", "--out", "w.csv"],
            "`features` names 'agee'; the columns are 'age', 'income'. Did you mean 'age'?",
        ),
        (
            ["balance", "{files}/observed.parquet", "--treatment", "aged", "--features", "age", "--out", "w.csv"],
            "there is no column 'aged'",
        ),
        (
            ["balance", "{files}/observed.parquet", "--treatment", "age", "--out", "w.csv"],
            "An outcome must not be among them",
        ),
        (["balance", "{files}/observed.parquet", "{files}/population.csv", "--out", "w.doc"], "must end in"),
        (
            ["balance", "{files}/observed.parquet", "{files}/population.csv", "--out", "w.csv", "--tolerance", "-1"],
            "`tolerance` must be a number >= 0, got -1.0",
        ),
        (
            ["balance", "{files}/observed.parquet", "{files}/population.csv", "--out", "w.csv", "--n-functions", "0"],
            "`--n-functions` must be an integer >= 1, got 0",
        ),
        (["balance", "{files}/heavy.csv", "{files}/heavy.csv", "--out", "w.csv"], "the column 'weight' has the name"),
        (
            ["balance", "{files}/heavy.csv", "{files}/heavy.csv", "--features", "age", "--out", "w.csv"],
            "heavy.csv: the column 'weight' has the name of the result. Rename it.",
        ),
        (["fit"], "`data` is missing"),
        (["fit", "nowhere.csv"], "nowhere.csv"),
        (["fit", "coatt"], "Did you mean 'coat'?"),
        (["fit", "{files}/train.csv", "--method", "magic"], "`method` must be one of"),
        (["fit", "{files}/train.csv", "--method", "akb-drr"], "Did you mean 'akb-dr'?"),
        (["fit", "{files}/train.csv", "--set", "dimm=3"], "Did you mean 'dim'?"),
        (["fit", "{files}/train.csv", "--set", "dim"], "`--set` takes name=value"),
        (["fit", "{files}/train.csv", "--set", "depth=3"], "setting `depth` is unknown"),
        (["fit", "{files}/train.csv", "--set", "dim=-1"], "`dim` must be an integer >= 0, got -1"),
        (["fit", "{files}/train.csv", "--set", "seed=3"], "use --seed"),
        (["fit", "{files}/train.csv", "--set", "biases=no"], "`biases` must be true or false, got 'no'"),
        (["fit", "{files}/train.csv", "--set", "training=3"], "`training` must be a Training part"),
        (["fit", "{files}/train.csv", "--set", "dim=1000000000000"], "memory"),
        (["fit", "{files}/train.csv", "--k", "0"], "`k` must be greater than or equal to 1, got 0"),
        (["fit", "{files}/train.csv", "--config", "{files}/settings.toml"], "`settings` must be a table"),
        (["fit", "{files}/train.csv", "--epochs", "0"], "`epochs` must be an integer >= 1, got 0"),
        (["fit", "{files}/train.csv", "--device", "cuda:99"], "`device`"),
        (["fit", "{files}/train.csv", "--batch-size", "some"], "`--batch-size` must be an integer >= 1, got 'some'"),
        (["fit", "{files}/train.csv", "--rating-col", "stars"], "'stars'"),
        (["fit", "{files}/train.csv", "--config", "{files}/none.toml"], "there is no such file"),
        (["fit", "--config", "{files}/train.csv"], "is not valid TOML"),
        (["fit", "--config", "{files}"], "is not a saved run"),
        (["fit", "{files}/train.csv", "--out", "{files}/test.csv"], "cannot be written"),
        (["fit", "{files}/ratings.csv"], "Give the log a `threshold`"),
        (["evaluate", "{files}", "{files}/test.csv"], "is not a saved run"),
        (["evaluate", "{run}", "{files}/none.csv"], "none.csv"),
        (["predict", "{run}", "{files}/test.csv", "--out", "{files}/out.xlsx"], "must end in"),
        (["recommend", "{run}", "--users", "newcomer"], "unknown user 'newcomer'"),
        (["recommend", "{run}", "--k", "0"], "`k` must be an integer >= 1, got 0"),
        (["recommend", "{run}", "--out", "{files}/test.csv/recs.csv"], "cannot be written"),
        (["methods", "magic"], "`method` must be one of"),
        (["fit", "{files}/train.csv", "--method", "ips"], "Or put others in their place, such as 'propensity'"),
        (["fit", "{files}/train.csv", "--method", "eib"], "Or give the `label`"),
        (["fit", "{files}/train.csv", "--propensity-col", "chance"], "'chance'"),
        (["fit", "coat", "--propensity-col", "chance"], "does not take `--propensity-col`"),
        (["fit", "{files}/train.csv", "--header", "a,a"], "`header` must be different names of columns"),
        (["fit", "{files}/train.csv", "--separator", "tabb"], "Did you mean 'tab'?"),
        (["fit", "{files}/raw.txt"], "for example user_id,item_id,rating,column_4."),
        (["fit", "{files}/raw.txt", "--rating-col", "ratting", "--header", "user_id,item_id,rating,x"], "an 'rating'?"),
        (
            ["predict", "{run}", "{files}/train.csv", "--user-col", "user", "--out", "out.csv"],
            "Did you mean 'user_id'?",
        ),
        (["demo", "--seed", "-1"], "`seed`"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(
    arguments: list[str], words: str, files: Path, run: Path, samples: object, tmp_path: Path,
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    (files / "heavy.csv").write_text("age,weight\n1,2\n3,4\n")
    (files / "settings.toml").write_text("settings = 3\n")
    (files / "raw.txt").write_text("a,x,5,0.5\nb,y,1,0.2\n")
    (files / "ratings.csv").write_text("user_id,item_id,rating\na,x,5\nb,y,1\n")
    before = sorted(files.rglob("*"))
    assert main([word.format(files=files, run=run) for word in arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert captured.err.startswith("error: ")
    assert words in captured.err
    assert list(tmp_path.iterdir()) == []
    assert sorted(files.rglob("*")) == before


@pytest.mark.parametrize(
    "arguments", [["fly"], ["fit", "x", "--k", "five"], ["fit", "--protocol", "secret"], ["predict"]]
)
def test_usage_error_is_exit_code_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    assert "Traceback" not in capsys.readouterr().err


def test_ctrl_c_prints_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted(*arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("counterpoise.cli.demo.run_demo", interrupted)
    assert main(["demo"]) == 130
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize("separator", [",", ";"])
def test_test_file_is_read_by_columns_of_the_run(
    separator: str, dataset: Dataset, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert dataset.test is not None
    log, names = dataset.train.to_frame(), {"user_id": "who", "item_id": "what", "rating": "stars"}
    known = [pl.col(name).is_in(log[name].implode()) for name in ("user_id", "item_id")]
    for name, rows in (("log", log), ("test", dataset.test.to_frame().filter(*known))):
        rows.rename(names).write_csv(tmp_path / f"{name}.csv", separator=separator)
        rows.write_csv(tmp_path / f"plain-{name}.csv")
    columns = ["--user-col", "who", "--item-col", "what", "--rating-col", "stars", "--separator", separator]
    run, found = str(tmp_path / "run"), []
    assert main(["fit", str(tmp_path / "log.csv"), *columns, "--epochs", "2", "--out", run, "--quiet"]) == 0
    for file, given in (("test", columns), ("test", []), ("plain-test", [])):
        assert main(["evaluate", run, str(tmp_path / f"{file}.csv"), *given, "--json"]) == 0
        found.append({**json.loads(capsys.readouterr().out), "test": None})
    assert found[0] == found[1] == found[2]
    assert main(["report", run, "--test", str(tmp_path / "test.csv"), "--out", str(tmp_path / "page.html")]) == 0
    (tmp_path / "short.csv").write_text(f"who{separator}what\n0{separator}1\n")
    for words, message in (
        (["test.csv", "--user-col", "nobody", "--separator", separator], "there is no column 'nobody'"),
        (["short.csv"], "there is no column 'stars'"),
        (
            ["test.csv", "--separator", "abc"],
            "must be one or two characters or one of tab, comma, semicolon, pipe, space, got 'abc'",
        ),
    ):
        assert main(["evaluate", run, str(tmp_path / words[0]), *words[1:]]) == 2
        assert message in capsys.readouterr().err


def test_raw_log_is_fitted_in_one_command(
    dataset: Dataset, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    frame = dataset.train.to_frame().select("user_id", "item_id", rating=pl.col("rating") * 4 + 1)
    frame = frame.with_columns(timestamp=pl.int_range(len(frame)) + 881250949)
    frame.write_csv("u.data", separator="\t", include_header=False)
    frame.select("rating", "item_id", "user_id").write_csv("swapped.csv", include_header=False)
    fit = ["--threshold", "4", "--method", "popularity", "--holdout", "0.2", "--out", "run"]
    assert main(["fit", "u.data", *fit, "--by", "time"]) == 0
    printed = capsys.readouterr()
    said = "u.data: fields separated by tabs, no header; read as user_id, item_id, rating, timestamp\n"
    assert printed.err == said
    assert re.search(r"- u: \d+ ratings of \d+ items by \d+ users", printed.out)
    assert main(["evaluate", "run", "u.data", "--json", "--protocol", "paper"]) == 0
    first = capsys.readouterr()
    assert first.err == said
    assert main(["fit", "u.data", *fit, "--quiet"]) == 0
    assert capsys.readouterr() == ("", "")
    header = ["--header", "rating,item_id,user_id"]
    assert main(["fit", "swapped.csv", *fit, *header, "--by", "random", "--quiet"]) == 0
    assert main(["fit", "--config", "run", "--out", "again", "--quiet"]) == 0  # the header is kept with the run
    assert main(["evaluate", "run", "swapped.csv", "--json", "--protocol", "paper"]) == 0
    assert main(["predict", "run", "swapped.csv", *header, "--out", "scores.csv", "--quiet"]) == 0
    second = capsys.readouterr()
    assert second.err == ""
    rows = [json.loads(text)["test_rows"] for text in (first.out, second.out)]
    assert rows == [len(frame)] * 2
    assert pl.read_csv("scores.csv")["user_id"].n_unique() == frame["user_id"].n_unique()


@pytest.mark.parametrize("damage", [{"user_col": ["a"]}, {"separator": {}}, {"separator": 3}, {"unknown": 1}])
def test_run_without_known_columns_uses_default_columns(
    damage: dict[str, Any], dataset: Dataset, tmp_path: Path
) -> None:
    dataset.train.to_frame().write_csv(tmp_path / "log.csv")
    reading = columns_as_fitted({"data": "log.csv", **damage}, str(tmp_path / "log.csv"), {})
    assert reading == columns_as_fitted({}, str(tmp_path / "log.csv"), {}) == {}
