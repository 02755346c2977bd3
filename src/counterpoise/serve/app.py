"""The endpoints: each checks its request, ranks with the run that is served now, and answers JSON."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from fastapi import FastAPI, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRouter
from pydantic import ValidationError
from pydantic_core import to_json
from starlette.exceptions import HTTPException

from counterpoise import __version__
from counterpoise.errors import CounterpoiseError, short_repr
from counterpoise.serve import schema
from counterpoise.serve.lists import UnknownId
from counterpoise.serve.model import ServedRun
from counterpoise.serve.page import REPORT_POLICY, page_headers, render_page

MAX_INLINE_ROWS = 1000  # users x k that are ranked on the event loop; more go to a thread, so that others do not wait
NO_SNIFF = {"X-Content-Type-Options": "nosniff"}  # a browser must not interpret JSON as anything else
ABOUT = "Recommendations of one saved run, in the ids of its log."
REASONS = {
    400: "The body is not JSON.",
    401: "The token is missing or wrong.",
    404: "The log does not have the id.",
    413: "The body is too large.",
    421: "The Host header names another machine.",
    422: "A value breaks its rule.",
}
RequestModel = TypeVar("RequestModel", bound=schema.BaseRequest)
router = APIRouter()


def errors(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The errors of an endpoint for the OpenAPI document."""
    return {status: {"model": schema.Failure, "description": REASONS[status]} for status in statuses}


RANKING_ERRORS = errors(401, 404, 413, 421, 422)


def make_app(run: Callable[[], ServedRun], lifespan: Any = None) -> FastAPI:
    """The application; `run` is called once for each request and returns the run to answer from.

    FastAPI's own documentation pages are off: they load scripts from other servers.
    """
    app = FastAPI(
        title="counterpoise", version=__version__, description=ABOUT, lifespan=lifespan, docs_url=None, redoc_url=None
    )
    app.state.run = run
    app.include_router(router)
    for kind in (RequestValidationError, HTTPException, CounterpoiseError, Exception):
        app.add_exception_handler(kind, _failure)
    return app


def query_parameters(model: type[schema.BaseRequest]) -> dict[str, Any]:
    """The query parameters for the OpenAPI document.

    They are parsed by `parse_query`: FastAPI's own parsing takes longer than ranking.
    """
    fields = model.model_json_schema()
    required = fields.get("required", ())
    parameters = [
        {"name": name, "in": "query", "required": name in required, "schema": field}
        for name, field in fields["properties"].items()
    ]
    return {"parameters": parameters}


def parse_query(request: Request, model: type[RequestModel]) -> RequestModel:
    """The query parameters of a request, checked."""
    try:
        return model.model_validate(dict(request.query_params))
    except ValidationError as error:
        raise RequestValidationError([{**row, "loc": ("query", *row["loc"])} for row in error.errors()]) from None


@router.get(
    "/recommend",
    response_model=schema.UserList,
    responses=RANKING_ERRORS,
    openapi_extra=query_parameters(schema.OneUser),
)
async def recommend(request: Request) -> Response:
    """The best items of one user."""
    asked = parse_query(request, schema.OneUser)
    return answer(served(request).recommend(asked.user, asked.k, asked.filter_seen))


@router.post("/recommend", response_model=schema.UserLists, responses=RANKING_ERRORS | errors(400))
async def recommend_many(request: Request, asked: schema.ManyUsers) -> Response:
    """The best items of many users, among candidates, without those to leave out."""
    if len(asked.users) * asked.k <= MAX_INLINE_ROWS:
        return _many(served(request), asked)
    return await run_in_threadpool(_many, served(request), asked)


@router.post("/recommend_for", response_model=schema.UserLists, responses=RANKING_ERRORS | errors(400))
async def recommend_for(request: Request, asked: schema.NewUsers) -> Response:
    """The best items of users whom the log does not have, from a few of their ratings."""
    return await run_in_threadpool(_for_new, served(request), asked)


@router.get(
    "/similar", response_model=schema.ItemList, responses=RANKING_ERRORS, openapi_extra=query_parameters(schema.OneItem)
)
async def similar(request: Request) -> Response:
    """The items most like one."""
    asked = parse_query(request, schema.OneItem)
    return answer(served(request).similar(asked.item, asked.k))


@router.get("/health", response_model=schema.Health, responses=errors(413, 421))
async def health() -> Response:
    """Answers while the server runs; needs no token."""
    return answer({"status": "ok"})


@router.get("/model", response_model=schema.Model, responses=errors(413, 421, 401))
async def model(request: Request) -> Response:
    """Configuration, metrics and diagnostics of the run."""
    return answer(served(request).facts)


@router.get("/", include_in_schema=False)
async def page(request: Request, user: str = "", k: str = "10") -> Response:
    """A page with a form for a user, and two lists side by side."""
    text, status = render_page(served(request), user, k)
    return Response(text, status, page_headers(), "text/html")


@router.get("/report", include_in_schema=False)
async def report(request: Request) -> Response:
    """The report of the run, if there is one; it is sandboxed, so that its script cannot reach the other pages."""
    content = await run_in_threadpool(served(request).report)
    if content is None:
        return answer({"error": "this run has no report. Write it: counterpoise report RUN"}, 404)
    return Response(content, 200, NO_SNIFF | {"Content-Security-Policy": REPORT_POLICY}, "text/html")


def served(request: Request) -> ServedRun:
    """The run to answer from."""
    run: ServedRun = request.app.state.run()
    return run


def answer(facts: Any, status: int = 200) -> Response:
    """A JSON response."""
    return Response(to_json(facts, inf_nan_mode="null"), status, NO_SNIFF, "application/json")


def _many(run: ServedRun, asked: schema.ManyUsers) -> Response:
    candidates, exclude = run.choice(asked.candidates), run.items.known(asked.exclude)
    lists = [run.recommend(user, asked.k, asked.filter_seen, candidates, exclude) for user in asked.users]
    return answer({"users": lists})


def _for_new(run: ServedRun, asked: schema.NewUsers) -> Response:
    candidates, exclude = run.choice(asked.candidates), run.items.known(asked.exclude)
    rows = [(rating.user, rating.item, rating.rating) for rating in asked.ratings]
    return answer({"users": run.recommend_for(rows, asked.k, asked.filter_seen, candidates, exclude)})


async def _failure(request: Request, error: Exception) -> Response:
    """The response to an error; details of a fault of the server stay in its log."""
    if isinstance(error, RequestValidationError):
        return answer({"error": "; ".join(map(_rule, error.errors()[:5]))}, 422)
    if isinstance(error, HTTPException):
        response = answer({"error": str(error.detail)}, error.status_code)
        response.headers.update(error.headers or {})
        return response
    if isinstance(error, CounterpoiseError):
        return answer({"error": str(error)}, 404 if isinstance(error, UnknownId) else 422)
    return answer({"error": "something went wrong in the server; its log has the details."}, 500)


def _rule(problem: dict[str, Any]) -> str:
    """The parameter, the rule it breaks and its value, of one error of pydantic."""
    if problem["type"] == "json_invalid_request":
        return f"the body is not JSON: {problem['ctx']['error']} at byte {problem['loc'][-1]}"
    place = ".".join(str(part) for part in problem["loc"][1:]) or problem["loc"][0]
    return f"`{place}`: {problem['msg'].removeprefix('Value error, ')}, got {short_repr(problem.get('input'))}"
