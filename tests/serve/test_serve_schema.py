"""The OpenAPI document is true: every answer, to valid and invalid requests, is one that it states."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings

import counterpoise as cp

pytest.importorskip("fastapi", reason="serving is not installed: pip install -e '.[serve]'")
schemathesis = pytest.importorskip("schemathesis", reason="schemathesis is not installed: pip install -e '.[dev]'")

from counterpoise.serve.app import make_app  # noqa: E402
from counterpoise.serve.guard import Guard  # noqa: E402
from counterpoise.serve.model import ServedRun  # noqa: E402

pytestmark = pytest.mark.xdist_group("schema")  # they share one server
TOKEN = {"Authorization": "Bearer a-token-of-enough-letters"}
OPERATIONS = [
    *(("/recommend", "GET"), ("/recommend", "POST"), ("/recommend_for", "POST")),
    *(("/similar", "GET"), ("/health", "GET"), ("/model", "GET")),
]
RIGHT = schemathesis.GenerationMode.POSITIVE
EXAMPLES = 25  # of each kind, for each operation
TOO_LARGE = "413"  # an answer to a request of any kind: what is generated may be longer than a server reads


@pytest.fixture(scope="module")
def api(dataset: cp.Dataset, tmp_path_factory: pytest.TempPathFactory):
    """A run of a log with a threshold, with which every number is a rating."""
    folder: Path = tmp_path_factory.mktemp("api") / "run"
    cp.make("mf", dim=4, epochs=20, device="cpu").fit(replace(dataset.train, threshold=0.5)).save(folder)
    run = ServedRun.load(folder, unknown_users="popular")
    app = Guard(make_app(lambda: run), TOKEN["Authorization"].removeprefix("Bearer "))
    found = schemathesis.openapi.from_asgi("/openapi.json", app, headers=TOKEN)
    checks = found.config.checks
    for check in (checks.negative_data_rejection, checks.positive_data_acceptance):
        check.expected_statuses = [*check.expected_statuses, TOO_LARGE]
    return found


def test_all_operations_are_covered(api) -> None:
    assert sorted((found.ok().path, found.ok().method.upper()) for found in api.get_all_operations()) == sorted(
        OPERATIONS
    )


@pytest.mark.parametrize(
    ("path", "method", "mode"),
    [
        (*operation, mode)
        for operation in OPERATIONS
        for mode in schemathesis.GenerationMode
        if mode is RIGHT
        or operation[0] in ("/recommend", "/recommend_for", "/similar")  # the others have nothing to get wrong
    ],
)
def test_answers_conform_to_the_openapi_document(api, path: str, method: str, mode) -> None:
    @settings(max_examples=EXAMPLES, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
    @given(case=api[path][method].as_strategy(generation_mode=mode))
    def check(case) -> None:
        assert case.call_and_validate(headers=TOKEN).status_code < 500

    check()
