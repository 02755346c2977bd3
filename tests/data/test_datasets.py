"""Datasets by name and from files: found, read, split, and described."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest

from counterpoise.data.datasets import SOURCES, YAHOO_FILES, available, load_dataset, search_folders
from counterpoise.data.ids import Vocabulary
from counterpoise.data.log import Dataset
from counterpoise.errors import ConfigError, DataError

COAT = next((folder for folder in search_folders("coat") if SOURCES["coat"].find(folder)), None)
needs_coat = pytest.mark.skipif(
    COAT is None, reason="Coat's files are not there: set COUNTERPOISE_DATA to get this test"
)
HEADER = "user_id,item_id,rating\n"


@pytest.fixture(autouse=True)
def _no_data_of_this_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("COUNTERPOISE_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def write(folder: Path, **files: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name.replace("__", ".")).write_text(content)
    return folder


def pairs(dataset: Dataset) -> dict[str, set[tuple[object, object]]]:
    logs = {"train": dataset.train, "probe": dataset.probe, "test": dataset.test}
    return {part: {row[:2] for row in log.to_frame().rows()} for part, log in logs.items() if log is not None}


# ---- coat


@needs_coat
def test_coat_has_the_published_numbers() -> None:
    data = load_dataset("coat", COAT, "paper", probe_fraction=0)
    assert data.train.shape == (290, 300)
    assert (len(data.train), len(data.test)) == (6960, 4640)
    assert np.bincount(data.train.users).tolist() == [24] * 290
    assert data.train.labels.mean() == pytest.approx(0.5204, abs=5e-5)
    assert data.test.labels.mean() == pytest.approx(0.4013, abs=5e-5)
    assert data.train.user_features.shape == (290, 14)
    assert data.train.item_features.shape == (300, 33)
    assert data.train.threshold == data.test.threshold == 3
    assert data.probe is None


@needs_coat
def test_honest_protocol_removes_366_pairs_of_coat() -> None:
    whole = load_dataset("coat", COAT, probe_fraction=0)
    assert whole.description["rows_in_train"] == whole.description["removed_as_in_train"] == 366
    assert len(whole.test) == 4640 - 366
    data = load_dataset("coat", COAT)
    assert len(data.probe) == data.description["removed_as_probe"] == 232
    assert not np.isin(data.test.pairs, data.probe.pairs).any()
    assert not np.isin(data.test.pairs, data.train.pairs).any()
    assert len(data.test) == data.description["test_rows"] == 4640 - 232 - data.description["removed_as_in_train"]


@needs_coat
def test_seed_draws_the_probe() -> None:
    first, again, other = (load_dataset("coat", COAT, seed=seed).probe.pairs.tolist() for seed in (0, 0, 1))
    assert first == again != other


def tiny_coat(folder: Path) -> Path:
    train, test = np.array([[1, 0, 5], [0, 3, 0]]), np.array([[0, 4, 5], [2, 0, 1]])
    write(folder / "user_item_features")
    for name, matrix in (("train", train), ("test", test), ("user_item_features/item_features", np.eye(3))):
        np.savetxt(folder / f"{name}.ascii", matrix, fmt="%d")
    return folder


def test_coat_is_read_from_matrices_where_0_is_not_rated(tmp_path: Path) -> None:
    data = load_dataset("coat", tiny_coat(tmp_path), probe_fraction=0)
    assert pairs(data) == {"train": {(0, 0), (0, 2), (1, 1)}, "test": {(0, 1), (1, 0), (1, 2)}}
    assert data.train.labels.tolist() == [0, 1, 1]
    assert data.train.item_features.tolist() == data.test.item_features.tolist() == np.eye(3).tolist()
    assert data.train.user_features is None
    assert load_dataset("coat", tmp_path, threshold=5).train.labels.tolist() == [0, 1, 0]


def test_features_of_coat_are_called_as_in_their_file(tmp_path: Path) -> None:
    names = tiny_coat(tmp_path) / "user_item_features" / "item_features_map.txt"
    assert load_dataset("coat", tmp_path).train.item_feature_names == ["feature 1", "feature 2", "feature 3"]
    names.write_text("color:red\ncolor:blue\ngender:women", encoding="utf-8")
    data = load_dataset("coat", tmp_path, probe_fraction=0)
    assert data.train.item_feature_names == data.test.item_feature_names == ["color:red", "color:blue", "gender:women"]
    assert data.train.item_features.tolist() == np.eye(3).tolist()


@pytest.mark.parametrize(("matrix", "names"), [(np.eye(3), "a\nb"), (np.eye(3), "a\nb\na"), (np.eye(2), "a\nb")])
def test_features_of_coat_that_do_not_fit_are_named(tmp_path: Path, matrix: np.ndarray, names: str) -> None:
    folder = tiny_coat(tmp_path) / "user_item_features"
    np.savetxt(folder / "item_features.ascii", matrix, fmt="%d")
    (folder / "item_features_map.txt").write_text(names, encoding="utf-8")
    with pytest.raises(DataError, match="must have a row for each of 3 items and a column for each line of item_feat"):
        load_dataset("coat", tmp_path)


@pytest.mark.parametrize("content", ["1 2\n3\n", "a b\n", "\xff\xfe"])
def test_unreadable_matrix_is_named(tmp_path: Path, content: str) -> None:
    (tiny_coat(tmp_path) / "test.ascii").write_text(content, encoding="latin-1")
    with pytest.raises(DataError, match=r"test\.ascii: cannot be read as a table of numbers \(.*\)\.$"):
        load_dataset("coat", tmp_path)


# ---- yahoo


def tiny_yahoo(folder: Path) -> Path:
    train, test = YAHOO_FILES
    folder.mkdir(parents=True, exist_ok=True)
    (folder / train).write_text("1\t14\t5\n1\t35\t1\n15400\t1000\t3\n")
    (folder / test).write_text("1\t14\t2\n2\t1\t3\n5400\t49\t4\n")
    return folder


def test_yahoo_has_no_header_and_all_its_users_and_songs(tmp_path: Path) -> None:
    data = load_dataset("yahoo-r3", tiny_yahoo(tmp_path), probe_fraction=0)
    assert data.train.shape == (15_400, 1_000)
    assert pairs(data) == {"train": {(1, 14), (1, 35), (15400, 1000)}, "test": {(2, 1), (5400, 49)}}
    assert data.train.labels.tolist() == [1, 0, 1]
    assert data.description["removed_as_in_train"] == 1


def test_wrong_row_of_yahoo_is_named(tmp_path: Path) -> None:
    (tiny_yahoo(tmp_path) / YAHOO_FILES[0]).write_text("1\t14\t5\n1\t35\tx\n")
    with pytest.raises(DataError, match=r"train\.txt: column 'rating', row 2: expected a finite number, got 'x'"):
        load_dataset("yahoo-r3", tmp_path)
    (tmp_path / YAHOO_FILES[0]).write_text("15401\t14\t5\n")
    with pytest.raises(DataError, match=r"train\.txt: unknown user 15401: this log has 15400 users"):
        load_dataset("yahoo-r3", tmp_path)


def test_missing_yahoo_says_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COUNTERPOISE_DATA", str(tmp_path / "data"))
    with pytest.raises(DataError) as caught:
        load_dataset("yahoo-r3")
    message = str(caught.value)
    assert str(tmp_path / "data" / "yahoo-r3") in message
    assert str(tmp_path / "cache" / "counterpoise" / "yahoo-r3") in message
    assert all(word in message for word in ("Webscope", "sign its agreement", "never downloaded", YAHOO_FILES[0]))
    assert "\n" not in message


# ---- kuairec


@pytest.mark.parametrize("header", ["", "user,item,watch_ratio\n"])
def test_kuairec_split_files_are_read_with_and_without_header(tmp_path: Path, header: str) -> None:
    write(tmp_path, user__txt=header + "0,5,2.5\n3,6,0.5\n", random__txt=header + "0,7,2.0\n3,5,1.9\n3,6,9\n")
    data = load_dataset("kuairec", tmp_path, probe_fraction=0)
    assert pairs(data) == {"train": {(0, 5), (3, 6)}, "test": {(0, 7), (3, 5)}}
    assert data.train.user_ids == Vocabulary([0, 3])
    assert data.train.item_ids == Vocabulary([5, 6, 7])
    assert data.test.labels.tolist() == [1, 0]


def kuairec_matrix(pairs: list[tuple[int, int, float]]) -> str:
    rows = [f"{user},{video},100,50,2020-07-05 00:08:23.438,20200705,1593878903.438,{w}" for user, video, w in pairs]
    names = "user_id,video_id,play_duration,video_duration,time,date,timestamp,watch_ratio"
    return "\n".join([names, *rows, ""])


def test_kuairec_trains_on_the_big_and_tests_on_the_small_matrix(tmp_path: Path) -> None:
    big = kuairec_matrix([(7, 70, 1.0), (7, 70, 3.5), (1, 20, 0.1)])
    write(tmp_path / "data", big_matrix__csv=big, small_matrix__csv=kuairec_matrix([(1, 10, 2.5), (1, 20, 9.0)]))
    data = load_dataset("kuairec", tmp_path, probe_fraction=0)
    assert pairs(data) == {"train": {(7, 70), (1, 20)}, "test": {(1, 10)}}
    assert data.train.ratings.tolist() == [2.25, 0.1]  # the mean of a pair that was watched twice


def test_kuairec_small_matrix_alone_gives_a_semisynthetic_log(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    watched = [(user, video, float(rng.exponential(1.5))) for user in range(100) for video in range(200)]
    write(tmp_path, small_matrix__csv=kuairec_matrix(watched))
    data = load_dataset("kuairec", tmp_path, "paper", seed=3)
    assert data.train.shape == (100, 200)
    assert data.train.density == pytest.approx(0.05, abs=4 * np.sqrt(0.05 * 0.95 / 20_000))
    assert np.bincount(data.test.users).tolist() == [83] * 100
    assert data.description["note"].startswith("semi-synthetic: the log was drawn with P = sigmoid(")
    truth = np.mean([w >= 2 for _, _, w in watched])
    assert data.test.labels.mean() == pytest.approx(truth, abs=0.015)
    assert data.train.labels.mean() > truth + 0.1  # what is watched long is logged more
    again = load_dataset("kuairec", tmp_path, "paper", seed=3)
    assert again.train.pairs.tolist() == data.train.pairs.tolist()


# ---- movielens

LOG_100K = [(1, 10, 4, 881250949), (1, 20, 2, 891717742), (2, 10, 5, 878887116), (2, 30, 1, 880606923)]


def tiny_100k(folder: Path) -> Path:
    write(folder, u__data="".join("\t".join(map(str, row)) + "\n" for row in LOG_100K))
    write(folder, u__user="1|24|M|technician|85711\n2|53|F|other|94043\n")
    genres = {10: (3, 5), 20: (0,), 30: (18,)}
    titles = {10: "Toy Story (1995)", 20: "unknown", 30: "Misérables, Les (1995)"}
    lines = [
        "|".join(
            [str(item), titles[item], "01-Jan-1995", "", "", *("1" if k in genres[item] else "0" for k in range(19))]
        )
        for item in genres
    ]
    (folder / "u.item").write_text("\n".join(lines) + "\n", encoding="latin-1")
    return folder


def test_movielens_100k_is_read_with_titles_and_genres(tmp_path: Path) -> None:
    data = load_dataset("movielens", tiny_100k(tmp_path))
    assert data.train.to_frame().rows() == [(user, item, rating, time) for user, item, rating, time in LOG_100K]
    assert data.train.labels.tolist() == [1, 0, 1, 0]
    assert data.item_names.rows() == [(10, "Toy Story (1995)"), (20, "unknown"), (30, "Misérables, Les (1995)")]
    assert data.item_names.columns == ["item_id", "name"]
    genres = data.train.item_feature_names
    assert len(genres) == 4  # of 19; the others have no movie
    assert data.train.item_features.sum(axis=1).tolist() == [2, 1, 1]
    assert (data.train.user_feature_names, data.train.user_features.tolist()) == (["age"], [[24], [53]])
    assert (data.test, data.train.sample) == (None, "biased")


def test_movielens_1m_is_read_with_two_colons(tmp_path: Path) -> None:
    write(tmp_path, ratings__dat="".join("::".join(map(str, row)) + "\n" for row in LOG_100K))
    write(tmp_path, users__dat="1::F::1::10::48067\n2::M::56::16::70072-1234\n")
    movies = '10::Toy "Story": A (1995)::Animation|Comedy\n20::Café::Drama\n30::C::War\n'
    (tmp_path / "movies.dat").write_text(movies, encoding="latin-1")
    data = load_dataset("movielens", tmp_path)
    assert data.train.to_frame().rows() == LOG_100K
    assert data.item_names["name"].to_list() == ['Toy "Story": A (1995)', "Café", "C"]
    assert data.train.user_feature_names == ["age"]  # occupations are codes, each of one user


def test_movielens_csv_is_read_and_held_out_by_time(tmp_path: Path) -> None:
    folder = tmp_path / "ml-20m"
    rows = "".join(",".join(map(str, row)) + "\n" for row in LOG_100K)
    write(folder, ratings__csv="userId,movieId,rating,timestamp\n" + rows.replace(",4,", ",4.5,"))
    write(folder, movies__csv='movieId,title,genres\n10,"Story, A",A|B\n20,B,A\n30,C,(no genres listed)\n')
    data = load_dataset("movielens", folder, holdout=0.25, by="time")
    assert pairs(data) == {"train": {(1, 10), (2, 10), (2, 30)}, "test": {(1, 20)}}
    assert data.test.sample == "biased"
    assert data.train.ratings.max() == 5
    assert data.item_names["name"].to_list() == ["Story, A", "B", "C"]


def test_folder_of_a_known_dataset_suggests_its_name(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"ends in .* If the folder holds 'movielens', give that name, and the folder"):
        load_dataset(tiny_100k(tmp_path / "films"))


def test_movielens_is_found_under_the_name_of_its_release(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COUNTERPOISE_DATA", str(tmp_path))
    tiny_100k(tmp_path / "ml-100k")
    assert len(load_dataset("movielens").train) == 4
    with pytest.raises(ConfigError, match="`test_kind` goes with your own files; how the ratings of 'movielens'"):
        load_dataset("movielens", test_kind="uniform")


# ---- kuairand


def kuairand_log(rows: list[tuple[int, int, int, int]]) -> str:
    names = "user_id,video_id,date,hourmin,time_ms,is_click,is_like,play_time_ms,is_rand,tab"
    lines = [f"{user},{video},20220421,400,{time},{click},0,100,0,1" for user, video, time, click in rows]
    return "\n".join([names, *lines, ""])


def test_kuairand_trains_on_standard_and_tests_on_random_rows(tmp_path: Path) -> None:
    folder = tmp_path / "KuaiRand-Pure" / "data"
    early, late = kuairand_log([(0, 7, 10, 0), (1, 8, 11, 1)]), kuairand_log([(0, 7, 20, 1), (1, 9, 21, 0)])
    random = kuairand_log([(0, 8, 22, 1), (0, 9, 23, 0), (1, 7, 24, 0)])
    write(folder, log_standard_4_08_to_4_21_pure__csv=early, log_standard_4_22_to_5_08_pure__csv=late)
    write(folder, log_random_4_22_to_5_08_pure__csv=random)
    users = "user_id,user_active_degree,is_live_streamer,register_days,onehot_feat3,onehot_feat12\n"
    write(folder, user_features_pure__csv=users + "0,full_active,0,100,1153,\n1,UNKNOWN,1,300,3,1\n")
    items = "video_id,author_id,upload_dt,video_duration,tag\n"
    write(folder, video_features_basic_pure__csv=items + '7,5,2020-07-08,17200.0,"1,2"\n8,6,2020-07-08,,3\n9,6,,1,3\n')
    data = load_dataset("kuairand", folder.parent, probe_fraction=0)
    assert pairs(data) == {"train": {(0, 7), (1, 8), (1, 9)}, "test": {(0, 8), (0, 9), (1, 7)}}
    assert data.train.to_frame().sort("timestamp")["rating"].to_list() == [1, 1, 0]  # the last of (0, 7)
    assert (data.train.sample, data.test.sample) == ("biased", "uniform")
    assert data.train.user_feature_names[:2] == ["is_live_streamer", "register_days"]
    assert data.train.user_features[:, :2].tolist() == [[0, 100], [1, 300]]
    assert "tag=3" in data.train.item_feature_names


# ---- open bandit


def bandit_log(rows: list[tuple[str, int, int, int, float]]) -> str:
    names = ",timestamp,item_id,position,click,propensity_score," + ",".join(f"user_feature_{k}" for k in range(4))
    lines = [
        f"{number},2019-11-24 00:00:0{number}.5+00:00,{item},{position},{click},{chance},{user},b,c,d,0.0"
        for number, (user, item, position, click, chance) in enumerate(rows)
    ]
    return "\n".join([names + ",user-item_affinity_0", *lines, ""])


BTS = [("x", 0, 1, 0, 0.5), ("x", 0, 2, 1, 0.25), ("x", 1, 3, 0, 0.1), ("y", 2, 1, 1, 0.75)]
UNIFORM = [("x", 2, 1, 1, 1 / 3), ("y", 0, 2, 0, 1 / 3)]


def test_open_bandit_has_known_propensities_and_a_uniform_test(tmp_path: Path) -> None:
    for policy, rows in (("bts", BTS), ("random", UNIFORM)):
        context = ",item_id,item_feature_0,item_feature_1\n0,0,-1.0,h\n1,1,0.0,h\n2,2,1.0,g\n"
        write(tmp_path / policy / "men", men__csv=bandit_log(rows), item_context__csv=context)
    data = load_dataset("open-bandit-men", tmp_path, probe_fraction=0)
    assert pairs(data) == {"train": {(1, 0), (1, 1), (2, 2)}, "test": {(1, 2), (2, 0)}}
    log = data.train.to_frame().sort("timestamp")
    assert log["rating"].to_list() == [1, 0, 1]  # the last row of each pair
    expected = [1 - (1 - 0.375) ** 3, 1 - (1 - 0.1) ** 3, 0.75]
    assert log["propensity"].to_list() == pytest.approx(expected)
    assert data.test.sample == "uniform"


def test_one_policy_of_open_bandit_is_a_log_without_test(tmp_path: Path) -> None:
    write(tmp_path / "random" / "all", all__csv=bandit_log(UNIFORM))
    data = load_dataset("open-bandit", tmp_path)
    assert (data.train.sample, data.test) == ("uniform", None)
    assert load_dataset("open-bandit", tmp_path, holdout=0.5).test.sample == "uniform"
    write(tmp_path / "bts" / "all", all__csv=bandit_log(BTS))
    with pytest.raises(ConfigError, match="'open-bandit' has a uniform test"):
        load_dataset("open-bandit", tmp_path, holdout=0.5)


# ---- where they are


def test_path_comes_before_environment_before_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "cache/counterpoise/kuairec", user__txt="1,1,1\n", random__txt="1,2,1\n")
    assert load_dataset("kuairec").train.item_ids == Vocabulary([1, 2])
    monkeypatch.setenv("COUNTERPOISE_DATA", str(tmp_path / "data"))
    assert load_dataset("kuairec").train.item_ids == Vocabulary([1, 2])
    write(tmp_path / "data/kuairec", user__txt="1,3,1\n", random__txt="1,4,1\n")
    assert load_dataset("kuairec").train.item_ids == Vocabulary([3, 4])
    folder = write(tmp_path / "mine", user__txt="1,5,1\n", random__txt="1,6,1\n")
    assert load_dataset("kuairec", folder).train.item_ids == Vocabulary([5, 6])
    with pytest.raises(DataError, match=r"'kuairec' .* was not found in .*nowhere\. Download it from"):
        load_dataset("kuairec", tmp_path / "nowhere")


def test_cache_is_in_the_home_folder_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert search_folders("coat") == [Path.home() / ".cache" / "counterpoise" / "coat"]


def test_available_lists_licence_origin_and_readiness(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COUNTERPOISE_DATA", str(tmp_path))
    tiny_coat(tmp_path / "coat")
    rows = {row["name"]: row for row in available()}
    assert list(rows) == list(SOURCES)
    assert all(row["licence"] and row["size"] and row["obtain"] and row["title"] for row in rows.values())
    assert [name for name, row in rows.items() if row["ready"]] == ["coat", "simulated"]
    assert rows["coat"]["folder"] == str(tmp_path / "coat")


def test_unknown_dataset_suggests_the_nearest_name() -> None:
    with pytest.raises(
        ConfigError,
        match=r"unknown dataset 'coats'\. Did you mean 'coat'\? Use one of 'coat', .* or a path to your own",
    ):
        load_dataset("coats")


# ---- simulated


def test_simulated_data_comes_from_the_simulation() -> None:
    from counterpoise.data.simulation import simulate

    data = load_dataset("simulated", seed=4, n_users=30, n_items=20)
    same = simulate(30, 20, seed=4).dataset
    assert (data.train.pairs.tolist(), data.test.pairs.tolist()) == (
        same.train.pairs.tolist(),
        same.test.pairs.tolist(),
    )


# ---- files


def test_single_file_is_a_log_without_probe_and_test(tmp_path: Path) -> None:
    file = write(tmp_path, mine__csv=HEADER + "1,10,4\n2,10,1\n") / "mine.csv"
    data = load_dataset(file, threshold=3)
    assert (data.name, data.probe, data.test) == ("mine", None, None)
    assert data.train.labels.tolist() == [1, 0]
    assert data.description["train_rows"] == 2


def test_probe_is_drawn_from_the_test_unless_given(tmp_path: Path) -> None:
    test = HEADER + "".join(f"{user},{item},3\n" for user in range(10) for item in range(4))
    write(tmp_path, a__csv=HEADER + "1,1,4\n2,2,1\n", b__csv=test, c__csv=HEADER + "1,2,5\n77,3,1\n")
    files = [str(tmp_path / name) for name in ("a.csv", "b.csv", "c.csv")]
    drawn = load_dataset(files[0], test=files[1], test_kind="uniform")
    assert (len(drawn.probe), len(drawn.test)) == (2, 40 - 2 - drawn.description["removed_as_in_train"])
    given = load_dataset(files[0], test=files[1], probe=files[2])
    assert pairs(given)["probe"] == {(1, 2), (77, 3)}
    assert len(given.test) == 40 - 2 - 1
    assert {(1, 1), (2, 2), (1, 2)} & pairs(given)["test"] == set()
    assert len(load_dataset(files[0], test=files[1], probe=files[2], protocol="paper").test) == 40
    only = load_dataset(files[0], probe=files[2])
    assert (len(only.probe), only.test) == (2, None)


def test_a_test_file_is_biased_unless_said_to_be_uniform(tmp_path: Path) -> None:
    test = HEADER + "".join(f"{user},{item},3\n" for user in range(10) for item in range(4))
    folder = write(tmp_path / "mine", train__csv=HEADER + "1,1,4\n2,2,1\n", test__csv=test)
    for kind, sample, probe_rows in ((None, "biased", 0), ("biased", "biased", 0), ("uniform", "uniform", 2)):
        data = load_dataset(folder, test_kind=kind)
        assert data.test.sample == data.description["test_sample"] == sample
        assert data.description["probe_rows"] == probe_rows
    write(folder, probe__csv=HEADER + "1,2,5\n")
    assert load_dataset(folder).probe.sample == "uniform"


def test_rows_of_a_log_alone_are_held_out(tmp_path: Path) -> None:
    rows = "".join(f"{user},{item},{item % 5 + 1},{5 * user + item}\n" for user in range(10) for item in range(5))
    file = write(tmp_path, a__csv="user_id,item_id,rating,time\n" + rows) / "a.csv"
    data = load_dataset(file, holdout=0.3, by="time", timestamp_col="time", threshold=3)
    assert (len(data.train), len(data.test), data.probe) == (35, 15, None)
    assert (data.description["by"], data.description["test_sample"]) == ("time", "biased")
    assert data.description["cold_users"] == 3  # the users 7, 8 and 9
    assert set(data.test.user_ids.decode(data.test.users)) == {7, 8, 9}
    assert len(load_dataset(file, by="user").test) == 10
    dropped = {"unknown_users": "drop", "timestamp_col": "time", "by": "time"}
    with pytest.raises(DataError, match="all 15 rows of the test are of users or items without rows in the training"):
        load_dataset(file, holdout=0.3, **dropped)
    with pytest.raises(DataError, match=r'by="time" needs timestamps, and the log has none\. Read them with'):
        load_dataset(file, by="time")


def test_rows_of_new_users_and_items_are_counted_or_dropped(tmp_path: Path) -> None:
    write(tmp_path, train__csv=HEADER + "1,1,4\n2,2,1\n", test__csv=HEADER + "1,2,5\n3,1,1\n3,2,1\n1,9,1\n")
    counts = ("cold_users", "cold_items", "cold_rows", "dropped_rows", "test_rows")
    expected = {
        (): (1, 1, 3, 0, 4),
        ("users",): (1, 1, 3, 2, 2),
        ("items",): (1, 1, 3, 1, 3),
        ("users", "items"): (1, 1, 3, 3, 1),
    }
    for sides, numbers in expected.items():
        data = load_dataset(tmp_path, **dict.fromkeys((f"unknown_{side}" for side in sides), "drop"))
        assert tuple(data.description[name] for name in counts) == numbers
        assert len(data.test) == numbers[-1]
    with pytest.raises(DataError, match=r'2 of 4 rows .* 1 users without rows .* is 3\. Use unknown_users="drop"'):
        load_dataset(tmp_path, unknown_users="error")
    with pytest.raises(DataError, match=r'1 of 4 rows .* 1 items without rows .* is 9\. Use unknown_items="drop"'):
        load_dataset(tmp_path, unknown_items="error")


def test_folder_is_read_by_the_names_of_its_files(tmp_path: Path) -> None:
    folder = write(tmp_path / "mine", train__tsv=HEADER.replace(",", "\t") + "1\t10\t4\n", train__md="# not a log")
    pl.DataFrame({"user_id": [1, 2], "item_id": [20, 20], "rating": [1, 2]}).write_parquet(folder / "test.parquet")
    data = load_dataset(folder, probe_fraction=0.5, test_kind="uniform")
    assert (data.name, len(data.train), len(data.probe), len(data.test)) == ("mine", 1, 1, 1)
    write(folder, train__csv=HEADER + "1,10,4\n")
    with pytest.raises(DataError, match=r"mine: several files are called train: train\.csv, train\.tsv"):
        load_dataset(folder)


def test_empty_folder_and_missing_file_are_errors(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"there is no file in this folder that ends in \.csv"):
        load_dataset(tmp_path)
    with pytest.raises(DataError, match=r"nowhere\.csv: there is no such file"):
        load_dataset(tmp_path / "nowhere.csv")


def test_reading_options_are_passed_on(tmp_path: Path) -> None:
    file = write(tmp_path, a__csv="who;what;stars\n1;10;4\n1;10;2\n") / "a.csv"
    names = {"user_col": "who", "item_col": "what", "rating_col": "stars"}
    assert load_dataset(file, separator=";", duplicates="mean", **names).train.ratings.tolist() == [3]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"name": "coat", "protocol": "kind"}, "`protocol` must be one of 'honest', 'paper'"),
        ({"name": "coat", "probe_fraction": 2}, "`probe_fraction` must be a number >= 0 and <= 1"),
        ({"name": "coat", "seed": -1}, "`seed` must be an integer >= 0"),
        ({"name": "coat", "test": "a.csv"}, "`items` go with your own files"),
        ({"name": "coat", "user_col": "u"}, "'coat' does not take `user_col`"),
        ({"name": "simulated", "threshold": 3}, "'simulated' takes no `path` and no `threshold`"),
        ({"name": "coat", "holdout": 0.2}, "go with your own files; 'coat' has a uniform test"),
        ({"name": "coat", "test_kind": "unifrom"}, "Did you mean 'uniform'?"),
        ({"name": "coat", "by": "times"}, "Did you mean 'time'?"),
        ({"name": "coat", "unknown_items": "skip"}, "`unknown_items` must be one of 'error', 'drop', 'popular'"),
        ({"name": "coatt", "path": "b"}, "'coatt' is a path itself. Did you mean 'coat'?"),
        ({"name": "a.csv", "path": "b"}, "`path` goes with one of the names 'coat'"),
    ],
)
def test_conflicting_arguments_are_refused(arguments: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        load_dataset(**arguments)  # type: ignore[arg-type]


def test_holdout_and_test_are_two_ways(tmp_path: Path) -> None:
    folder = write(tmp_path / "mine", train__csv=HEADER + "1,10,4\n2,10,1\n", test__csv=HEADER + "2,10,4\n")
    with pytest.raises(ConfigError, match="`holdout` and `test` are two ways to evaluate: give one of them"):
        load_dataset(folder, holdout=0.5)
    for options in ({}, {"holdout": 0.5}):
        with pytest.raises(ConfigError, match="`test_kind` says how a test file was collected, and there is none"):
            load_dataset(folder / "train.csv", test_kind="uniform", **options)


def test_protocol_that_leaves_no_test_is_an_error(tmp_path: Path) -> None:
    write(tmp_path, train__csv=HEADER + "1,10,4\n", test__csv=HEADER + "1,10,4\n")
    with pytest.raises(DataError, match="leaves no test: of 1 test ratings 0 are in the probe and 1 in the train"):
        load_dataset(tmp_path)


def test_loading_does_not_change_the_folder(tmp_path: Path) -> None:
    folder = write(tmp_path / "mine", train__csv=HEADER + "1,10,x\n")
    with pytest.raises(DataError, match=r"train\.csv: column 'rating', row 2"):
        load_dataset(folder)
    assert [file.name for file in tmp_path.rglob("*")] == ["mine", "train.csv"]
