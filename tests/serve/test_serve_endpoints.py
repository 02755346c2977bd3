"""The answers of each endpoint, the requests it refuses, and the token."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from conftest import IMAGE_ID, SCRIPT_ID

import counterpoise as cp
from counterpoise import Dataset, DebiasedRecommender

pytest.importorskip("fastapi", reason="serving is not installed: pip install -e '.[serve]'")
testing = pytest.importorskip("starlette.testclient", reason="httpx is not installed: pip install -e '.[dev]'")

from counterpoise.serve.app import make_app  # noqa: E402
from counterpoise.serve.guard import Guard  # noqa: E402
from counterpoise.serve.model import ServedRun  # noqa: E402
from counterpoise.serve.schema import MAX_BODY_BYTES, MAX_ITEMS, MAX_K, MAX_USERS  # noqa: E402

TOKEN = "a-token-of-enough-letters"
LOCAL = "http://127.0.0.1:8000"


def client(run: ServedRun, token: str | None = None, base_url: str = LOCAL, **options):
    return testing.TestClient(Guard(make_app(lambda: run), token), base_url=base_url, **options)


@pytest.fixture(scope="module")
def run(fitted: DebiasedRecommender, tmp_path_factory: pytest.TempPathFactory) -> ServedRun:
    folder = tmp_path_factory.mktemp("served") / "numbers"
    fitted.save(folder, evaluation={"auc": 0.75}, fit={"method": "mf"})
    return ServedRun.load(folder)


@pytest.fixture(scope="module")
def ask(run: ServedRun) -> Iterator:
    with client(run) as opened:
        yield opened


def refused(response, status: int, *words: str) -> None:
    """Assert one error message in JSON with these words, and no details of the program."""
    assert response.status_code == status, response.text
    assert list(response.json()) == ["error"]
    for word in words:
        assert word in response.json()["error"]
    assert "Traceback" not in response.text
    assert ".py" not in response.text


def test_recommend_answers_in_ids_of_the_log(ask, fitted: DebiasedRecommender) -> None:
    answer = ask.get("/recommend", params={"user": "3", "k": 4})
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "application/json"
    facts, expected = answer.json(), fitted.recommend([3], k=4)
    assert (facts["user_id"], facts["known"]) == (3, True)
    assert [row["item_id"] for row in facts["items"]] == expected["item_id"].to_list()
    assert [row["score"] for row in facts["items"]] == pytest.approx(expected["score"].to_list())
    assert [row["rank"] for row in facts["items"]] == [1, 2, 3, 4]
    assert [row["scored_by"] for row in facts["items"]] == ["model"] * 4
    assert len(ask.get("/recommend?user=3").json()["items"]) == 10
    everything = ask.get("/recommend", params={"user": "3", "k": MAX_K, "filter_seen": "false"}).json()["items"]
    assert len(everything) == 50


def test_recommend_many_respects_candidates_and_exclude(ask, fitted: DebiasedRecommender) -> None:
    asked = {"users": [3.0, "4"], "k": 2.0, "candidates": [8, "1", 30, 40], "exclude": [40, 9999], "filter_seen": False}
    answer = ask.post("/recommend", json=asked)
    assert answer.status_code == 200
    expected = fitted.recommend([3, 4], k=2, candidates=[8, 1, 30], filter_seen=False)
    found = [(one["user_id"], row["item_id"]) for one in answer.json()["users"] for row in one["items"]]
    assert found == list(zip(expected["user_id"], expected["item_id"], strict=True))
    many = ask.post("/recommend", json={"users": list(range(60)), "k": 50}).json()["users"]
    assert [row["item_id"] for one in many for row in one["items"]] == fitted.recommend(k=50)["item_id"].to_list()


def test_new_users_get_lists_from_their_ratings(ask, fitted: DebiasedRecommender) -> None:
    given = {3: 1.0, 7: 0.0, 11: 1.0}
    rows = [{"item": str(item), "rating": rating} for item, rating in given.items()]
    asked = {"ratings": rows, "k": 4, "exclude": [20, 999]}
    answer = ask.post("/recommend_for", json=asked)
    assert answer.status_code == 200
    (found,) = answer.json()["users"]
    expected = fitted.recommend_for(given, 4, exclude=[20])
    assert (found["user_id"], found["known"]) == ("new", False)
    assert [row["item_id"] for row in found["items"]] == expected["item_id"].to_list()
    assert [row["score"] for row in found["items"]] == pytest.approx(expected["score"].to_list())
    assert {row["scored_by"] for row in found["items"]} == {"fold-in"}
    many = [row | {"user": user} for user in (9, "b", "a") for row in rows]
    answer = ask.post("/recommend_for", json={"ratings": many, "k": 2, "candidates": [3, 4], "filter_seen": False})
    assert [one["user_id"] for one in answer.json()["users"]] == [9, "b", "a"]
    assert all({row["item_id"] for row in one["items"]} == {3, 4} for one in answer.json()["users"])


def test_wrong_ratings_of_new_users_are_refused(ask) -> None:
    one = {"item": 3, "rating": 1}
    for body, status, words in (
        ({"ratings": []}, 422, "`ratings`"),
        ({"ratings": [{"item": 3}]}, 422, "`ratings.0.rating`"),
        ({"ratings": [{"item": 999, "rating": 1}]}, 404, "unknown item 999"),
        ({"ratings": [{"item": 3, "rating": 5}]}, 422, "ratings must lie in [0, 1]"),
        ({"ratings": [{"item": 3, "rating": "good"}]}, 422, "`ratings.0.rating`"),
        ({"ratings": [one], "items": [3]}, 422, "`items`"),
        ({"ratings": [one] * (MAX_ITEMS + 1)}, 422, "`ratings`"),
        ({"ratings": [one | {"user": n} for n in range(MAX_USERS + 1)]}, 422, f"users must be at most {MAX_USERS:,}"),
    ):
        refused(ask.post("/recommend_for", json=body), status, words)


def test_a_run_that_cannot_fold_in_says_so(dataset: Dataset, tmp_path: Path) -> None:
    cp.make("mf", backbone="ncf", epochs=1, device="cpu").fit(dataset.train).save(tmp_path / "run")
    with client(ServedRun.load(tmp_path / "run")) as ask:
        answer = ask.post("/recommend_for", json={"ratings": [{"item": 3, "rating": 1}]})
        refused(answer, 422, "`recommend_for` needs a backbone whose log odds are inner products")


def test_similar_answers_nearest_items(ask, fitted: DebiasedRecommender) -> None:
    facts = ask.get("/similar", params={"item": "5", "k": 3}).json()
    assert facts["item_id"] == 5
    assert [row["item_id"] for row in facts["items"]] == fitted.similar_items([5], k=3)["similar_id"].to_list()


def test_model_answers_configuration_metrics_and_diagnostics(ask, fitted: DebiasedRecommender) -> None:
    facts = ask.get("/model").json()
    assert facts["run"] == "numbers"
    assert facts["configuration"] == fitted.to_config()
    assert facts["evaluation"] == {"auc": 0.75}
    assert facts["parts"]["weights"]["effective_sample_size"] > 0
    assert "files" not in facts
    assert ask.get("/health").json() == {"status": "ok"}


def test_text_ids_stay_text(hostile_run: Path) -> None:
    with client(ServedRun.load(hostile_run)) as ask:
        facts = ask.get("/recommend", params={"user": f"{SCRIPT_ID}7", "k": 3}).json()
        assert facts["user_id"] == f"{SCRIPT_ID}7"
        assert all(row["item_id"].startswith(IMAGE_ID) for row in facts["items"])
        refused(ask.get("/recommend?user=7"), 404, "unknown user '7'", "60 users")


def test_unknown_users_are_an_error_or_get_popular_items(ask, run: ServedRun, fitted) -> None:
    refused(ask.get("/recommend?user=999"), 404, "unknown user '999'", "60 users with ids such as 0")
    refused(ask.post("/recommend", json={"users": [1, 999]}), 404, "unknown user 999")
    with client(ServedRun.load(run.folder, unknown_users="popular")) as open_to_all:
        facts = open_to_all.get("/recommend?user=new&k=4").json()
        assert (facts["user_id"], facts["known"]) == ("new", False)
        expected = fitted.recommend(["new"], k=4, unknown_users="popular")["item_id"].to_list()
        assert [row["item_id"] for row in facts["items"]] == expected
        page = open_to_all.get("/", params={"user": "new", "k": 4}).text
        assert "This user is unknown: the items with the best rates of positive labels." in page
        mixed = open_to_all.post("/recommend", json={"users": [1, 10**30, "caf\u00e9"], "k": 2}).json()["users"]
        assert [(one["user_id"], one["known"]) for one in mixed] == [(1, True), (10**30, False), ("caf\u00e9", False)]


def test_unknown_items_are_an_error(ask) -> None:
    refused(ask.get("/similar?item=x"), 404, "unknown item 'x'")
    refused(ask.post("/recommend", json={"users": [1], "candidates": [2, "x"]}), 404, "unknown item 'x'")


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("/recommend", ("`user`", "required")),
        ("/recommend?user=1&k=0", ("`k`", "greater than or equal to 1", "'0'")),
        ("/recommend?user=1&k=1001", ("`k`", "less than or equal to 1000", "'1001'")),
        ("/recommend?user=1&k=ten", ("`k`", "integer", "'ten'")),
        ("/recommend?user=1&key=3", ("`key`", "not permitted")),
        ("/recommend?user=1&filter_seen=perhaps", ("`filter_seen`", "boolean")),
        ("/similar?item=1&k=-1", ("`k`", "'-1'")),
        ("/similar", ("`item`",)),
    ],
)
def test_invalid_query_names_the_rule(ask, path: str, words: tuple[str, ...]) -> None:
    refused(ask.get(path), 422, *words)


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({}, ("`users`", "required")),
        ({"users": []}, ("`users`", "at least 1 item")),
        ({"users": list(range(MAX_USERS + 1))}, ("`users`", "at most 1000 items")),
        ({"users": list(range(1000)), "k": 101}, ("users x k must be at most 100,000, got 1000 x 101",)),
        ({"users": [1], "k": MAX_K + 1}, ("`k`", "less than or equal to 1000")),
        ({"users": [1], "k": "3"}, ("`k`", "integer")),
        ({"users": [1], "candidates": []}, ("`candidates`", "at least 1 item")),
        ({"users": [1], "candidates": [0] * 10_001}, ("`candidates`", "at most 10000")),
        ({"users": [1.5, True, None, [1], {}]}, ("`users.0`: an id must be an integer or text, got 1.5",)),
        ({"users": 1}, ("`users`", "list")),
        ({"users": [1], "user": 1}, ("`user`", "not permitted")),
        ([1], ("`body`",)),
    ],
    ids=lambda value: str(value)[:40],
)
def test_invalid_body_names_the_rule(ask, asked, words: tuple[str, ...]) -> None:
    refused(ask.post("/recommend", json=asked), 422, *words)


@pytest.mark.parametrize(
    "body",
    [
        b'{"users": [1',
        b'{"users": ["\\ud800"]}',
        b'{"users": ["\\u0000"], "exclude": ["\\udfff"]}',
        b'{"users": [' + b"9" * 6000 + b"]}",
        b"[" * 100_000,
        b"\xff\xfe",
        b"",
        b'{"users": [1], "k": NaN}',
        b'{"users": [1], "k": 1e400}',
    ],
    ids=lambda value: str(value)[:40],
)
def test_malformed_body_is_refused(ask, body: bytes) -> None:
    answer = ask.post("/recommend", content=body, headers={"content-type": "application/json"})
    refused(answer, answer.status_code)
    assert answer.status_code in (400, 422)


def test_large_body_is_refused_with_or_without_length(ask) -> None:
    refused(ask.post("/recommend", content=b" " * (MAX_BODY_BYTES + 1)), 413, "at most 1,048,576 bytes")
    pieces = (b" " * 100_000 for _ in range(12))
    refused(ask.post("/recommend", content=pieces), 413, "at most 1,048,576 bytes")
    headers = {"content-type": "application/json"}
    just = b'{"users": [1], "k": 1}'.ljust(MAX_BODY_BYTES)
    assert ask.post("/recommend", content=just, headers=headers).status_code == 200
    assert ask.post("/recommend", content=iter([just[:9], just[9:]]), headers=headers).status_code == 200


def test_other_paths_and_methods_are_refused_in_json(ask) -> None:
    refused(ask.get("/nothing"), 404, "/openapi.json lists all")
    refused(ask.get("/docs"), 404)
    refused(ask.get("/redoc"), 404)
    refused(ask.delete("/recommend"), 405, "/openapi.json lists all")
    refused(ask.get("/report"), 404, "counterpoise report RUN")


def test_server_error_hides_program_details(run: ServedRun) -> None:
    def broken() -> ServedRun:
        raise ZeroDivisionError("secret.py")

    app = Guard(make_app(broken))
    with testing.TestClient(app, base_url=LOCAL, raise_server_exceptions=False) as ask:
        refused(ask.get("/recommend?user=1"), 500, "something went wrong")


def test_only_the_token_is_accepted(run: ServedRun) -> None:
    with client(run, TOKEN, base_url="http://example.org") as ask:
        for header in (
            "",
            TOKEN,
            f"Bearer {TOKEN}x",
            f"Bearer {TOKEN[:-1]}",
            "Bearer",
            "Bearer \xff",
            f"Digest {TOKEN}",
        ):
            answer = ask.get("/recommend?user=1", headers={"authorization": header.encode("latin-1")})
            refused(answer, 401, "Authorization: Bearer")
            assert "bearer" in answer.headers["www-authenticate"].lower()
        for path in ("/", "/report", "/model", "/similar?item=1", "/openapi.json", "/nothing"):
            refused(ask.get(path), 401)
        assert ask.get("/health").status_code == 200
        for scheme in ("Bearer", "bearer"):
            assert ask.get("/recommend?user=1", headers={"authorization": f"{scheme} {TOKEN}"}).status_code == 200


def test_token_is_accepted_as_basic_password(run: ServedRun) -> None:
    with client(run, TOKEN) as ask:
        assert ask.get("/", auth=("anyone", TOKEN)).status_code == 200
        refused(ask.get("/", auth=(TOKEN, "anyone")), 401)
        for word in (b"!!!", base64.b64encode(TOKEN.encode())):
            refused(ask.get("/", headers={"authorization": b"Basic " + word}), 401)


def test_foreign_host_header_is_refused_without_token(run: ServedRun) -> None:
    for name in ("http://example.org", "http://127.0.0.1.example.org:8000", "http://10.0.0.1"):
        with client(run, base_url=name) as ask:
            refused(ask.get("/recommend?user=1"), 421, "use 127.0.0.1")
    with client(run) as ask:
        for name in ("localhost:8000", "[::1]:8000", "127.0.0.1"):
            assert ask.get("/recommend?user=1", headers={"host": name}).status_code == 200


def test_two_host_headers_are_refused(ask, run: ServedRun) -> None:
    for names in (("127.0.0.1", "127.0.0.1"), ("example.org", "127.0.0.1"), ("127.0.0.1", "example.org")):
        refused(ask.get("/health", headers=[("host", name) for name in names]), 400, "one Host header")
    with client(run, TOKEN) as guarded:
        refused(guarded.get("/health", headers=[("host", "a"), ("host", "b")]), 400, "one Host header")


def test_openapi_document_states_parameters_and_limits(ask) -> None:
    document = ask.get("/openapi.json").json()
    assert set(document["paths"]) == {"/recommend", "/recommend_for", "/similar", "/health", "/model"}
    one = document["paths"]["/recommend"]["get"]
    k = next(parameter for parameter in one["parameters"] if parameter["name"] == "k")
    assert (k["schema"]["minimum"], k["schema"]["maximum"], k["schema"]["default"]) == (1, MAX_K, 10)
    assert [parameter["name"] for parameter in one["parameters"] if parameter["required"]] == ["user"]
    assert {"200", "401", "404", "422", "503"} <= set(one["responses"])
    for operation in (operation for path in document["paths"].values() for operation in path.values()):
        assert {"400", "405", "408", "413", "421", "500"} <= set(operation["responses"])
    many = document["components"]["schemas"]["ManyUsers"]["properties"]
    assert (many["users"]["maxItems"], many["k"]["maximum"], many["k"]["minimum"]) == (MAX_USERS, MAX_K, 1)


def test_concurrent_clients_get_the_same_answers(ask) -> None:
    expected = [ask.get(f"/recommend?user={user}").text for user in range(20)]
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda user: ask.get(f"/recommend?user={user % 20}").text, range(160)))
    assert found == expected * 8


def test_page_escapes_ids_and_users(hostile_run: Path) -> None:
    with client(ServedRun.load(hostile_run)) as ask:
        for user in (f"{SCRIPT_ID}7", '"><script>alert(1)</script>', "\u0000'\"<&>"):
            text = ask.get("/", params={"user": user}).text
            assert "<script" not in text
            assert "<img" not in text
        assert ask.get("/", params={"user": "nobody"}).status_code == 404


def test_run_without_a_report_says_how_to_write_one(ask) -> None:
    refused(ask.get("/report"), 404, "this run has no report. Write it: counterpoise report RUN")


def test_page_names_wrong_k(ask) -> None:
    for k in ("0", "1001", "ten", "\u0663", "9" * 5000, "-1", ""):
        answer = ask.get("/", params={"user": "3", "k": k})
        assert answer.status_code == 422
        assert "`k` must be an integer from 1 to 1000" in answer.text


def test_page_policy_forbids_scripts_and_loading(ask) -> None:
    policy = ask.get("/?user=3").headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; img-src data:; style-src 'sha256-")
    assert "script-src" not in policy
    assert "frame-ancestors 'none'" in policy


def test_page_shows_an_example_user(ask, run: ServedRun, dataset: Dataset) -> None:
    counts = sorted(count for count in dataset.train.to_frame().group_by("user_id").len()["len"] if count)
    example = run.users.values[run.example]
    assert len(run.lists.seen(run.example)) == counts[len(counts) // 2]
    text = ask.get("/").text
    assert f"<h1>Recommendations for {example}</h1>" in text
    assert "This is an example" in text
    assert f"{counts[len(counts) // 2]} ratings of this user in the log" in text
    assert "This is an example" not in ask.get("/", params={"user": example}).text


def test_page_lists_similar_items(ask, run: ServedRun) -> None:
    user_page = ask.get("/?user=3&k=4").text
    first = run.recommend("3", 1)["items"][0]["item_id"]
    assert f'href="/?item={first}&amp;user=3&amp;k=4"' in user_page
    answer = ask.get(f"/?item={first}&user=3&k=4")
    assert answer.status_code == 200
    assert f"<h1>Items like {first}</h1>" in answer.text
    assert 'href="/?user=3&amp;k=4"' in answer.text
    places = [answer.text.index(f">{row['item_id']}</a>") for row in run.similar(first, 4)["items"]]
    assert places == sorted(places)
    assert ask.get("/?item=nothing").status_code == 404
    assert "unknown item &#39;nothing&#39;" in ask.get("/?item=nothing").text


def test_page_shows_the_baseline_run(run: ServedRun, dataset: Dataset, tmp_path: Path) -> None:
    cp.make("ips", epochs=4).fit(dataset.train, dataset.probe).save(tmp_path / "debiased", fit={"method": "ips"})
    with client(ServedRun.load(tmp_path / "debiased", run.folder)) as ask:
        text = ask.get("/?user=3&k=5").text
        assert "Debiased: ips" in text
        assert "takes the log as it is" in text
        assert text.count('<tr><th scope="row">') == 10
    with client(ServedRun.load(tmp_path / "debiased")) as ask:
        assert "Most rated, not seen yet" in ask.get("/?user=3").text
    with pytest.raises(cp.ConfigError, match="must be a run without correction"):
        ServedRun.load(run.folder, tmp_path / "debiased")


def test_baseline_of_another_log_is_an_error(run: ServedRun, hostile_run: Path) -> None:
    with pytest.raises(cp.DataError, match="must be fitted on the same log"):
        ServedRun.load(hostile_run, run.folder)


def test_report_that_is_a_link_is_not_served(fitted: DebiasedRecommender, tmp_path: Path) -> None:
    fitted.save(tmp_path / "run")
    (tmp_path / "secret.html").write_text("secret")
    (tmp_path / "run" / "report.html").symlink_to(tmp_path / "secret.html")
    with client(ServedRun.load(tmp_path / "run")) as ask:
        refused(ask.get("/report"), 404)
        assert "/report" not in ask.get("/").text
