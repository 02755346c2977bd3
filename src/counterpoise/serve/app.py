"""The endpoints: each checks its request, ranks with the run that is served now, and answers JSON."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute, APIRouter
from pydantic import ValidationError
from pydantic_core import to_json
from starlette.exceptions import HTTPException

from counterpoise import __version__
from counterpoise.errors import CounterpoiseError, short_repr
from counterpoise.serve import schema
from counterpoise.serve.lists import UnknownId
from counterpoise.serve.model import ServedRun
from counterpoise.serve.page import REPORT_POLICY, page_headers, render_page

MAX_INLINE_WORK = 1 << 22  # multiplications of a list on the event loop, 2 ms; longer ones go to a thread
FEW_USERS = 10  # in a request that need not wait for those with more
THREADS = 2  # for requests with few users, and as many for the others
MAX_LARGE = 64  # requests with more users, at work or waiting for a thread; others are answered 503
MAX_SECONDS = 10  # of work on one request
PAGE_PARAMETERS = {"user": "", "k": "10", "item": ""}  # with what they are where they are not given
NO_SNIFF = {"X-Content-Type-Options": "nosniff"}  # a browser must not interpret JSON as anything else
ABOUT = "Recommendations of one saved run, in the ids of its log."
REASONS = {
    400: "The body is not JSON, or there are two Host headers.",
    401: "The token is missing or wrong.",
    404: "The log does not have the id.",
    405: "The path has no such method.",
    408: "The request was not whole in time.",
    413: "The body is too large.",
    421: "The Host header names another machine.",
    422: "A value breaks its rule.",
    500: "Something went wrong in the server; its log has the details.",
    503: "There is too much work: ask later, or for less.",
}
ROUTING_ERRORS = {
    404: "there is no such path. /openapi.json lists all.",
    405: "this path has no such method. /openapi.json lists all.",
}
RequestModel = TypeVar("RequestModel", bound=schema.BaseRequest)
T = TypeVar("T")


def errors(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The errors of an endpoint for the OpenAPI document, with those that all have."""
    listed = sorted({400, 405, 408, 413, 421, 500, *statuses})
    return {status: {"model": schema.Failure, "description": REASONS[status]} for status in listed}


RANKING_ERRORS = errors(401, 404, 422, 503)


class Endpoint(APIRoute):
    """An endpoint without a body is called with the request; FastAPI's way to its parameters is longer than ranking."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """The function that answers a request."""
        return super().get_route_handler() if self.body_field else self.endpoint


router = APIRouter(route_class=Endpoint)


def make_app(run: Callable[[], ServedRun], lifespan: Any = None) -> FastAPI:
    """The application; `run` is called once for each request and returns the run to answer from.

    FastAPI's own documentation pages are off: they load scripts from other servers.
    """
    app = FastAPI(
        title="counterpoise", version=__version__, description=ABOUT, lifespan=lifespan, docs_url=None, redoc_url=None
    )
    app.state.run = run
    app.state.small, app.state.large = (ThreadPoolExecutor(THREADS, name) for name in ("small", "large"))
    app.state.n_large = 0
    app.router.routes.extend(router.routes)  # `include_router` would resolve them again for every request
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
    return await one_list(request, _one, parse_query(request, schema.OneUser))


@router.post("/recommend", response_model=schema.UserLists, responses=RANKING_ERRORS)
async def recommend_many(request: Request, body: schema.ManyUsers) -> Response:
    """The best items of many users, among candidates, without those to leave out."""
    return await many_lists(request, _many, body, len(body.users))


@router.post("/recommend_for", response_model=schema.UserLists, responses=RANKING_ERRORS)
async def recommend_for(request: Request, body: schema.NewUsers) -> Response:
    """The best items of users whom the log does not have, from a few of their ratings."""
    return await many_lists(request, _for_new, body, body.n_users)


@router.get(
    "/similar", response_model=schema.ItemList, responses=RANKING_ERRORS, openapi_extra=query_parameters(schema.OneItem)
)
async def similar(request: Request) -> Response:
    """The items most like one."""
    return await one_list(request, _similar, parse_query(request, schema.OneItem))


@router.get("/health", response_model=schema.Health, responses=errors())
async def health(_: Request) -> Response:
    """Answers while the server runs; needs no token."""
    return answer({"status": "ok"})


@router.get("/model", response_model=schema.Model, responses=errors(401))
async def model(request: Request) -> Response:
    """Configuration, metrics and diagnostics of the run."""
    return answer(served(request).facts)


@router.get("/", include_in_schema=False)
async def page(request: Request) -> Response:
    """A page to try the run: lists of a user, and items like one."""
    user, k, item = (request.query_params.get(name, usual) for name, usual in PAGE_PARAMETERS.items())
    text, status = await in_thread(request, render_page, served(request), user, k, item)
    return Response(text, status, page_headers(), "text/html")


@router.get("/report", include_in_schema=False)
async def report(request: Request) -> Response:
    """The report of the run, if there is one; it is sandboxed, so that its script cannot reach the other pages."""
    content = await in_thread(request, served(request).report)
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


async def one_list(request: Request, rank: Callable[..., Response], parameters: schema.BaseRequest) -> Response:
    """The answer of `rank`: at once, or where there are many items in a thread, so that others do not wait for it."""
    run = served(request)
    return (
        rank(run, parameters) if run.lists.work <= MAX_INLINE_WORK else await in_thread(request, rank, run, parameters)
    )


async def many_lists(
    request: Request, rank: Callable[..., Response], parameters: schema.BaseRequest, n_users: int
) -> Response:
    """The answer of `rank` from a thread; of those for requests with many users, where there are many."""
    if n_users <= FEW_USERS:
        return await in_thread(request, rank, served(request), parameters)
    state = request.app.state
    if state.n_large >= MAX_LARGE:
        raise HTTPException(503, "the server has too much to do. Ask again in a moment.", {"Retry-After": "1"})
    state.n_large += 1
    try:
        return await asyncio.get_running_loop().run_in_executor(state.large, rank, served(request), parameters)
    finally:
        state.n_large -= 1


async def in_thread(request: Request, function: Callable[..., T], *arguments: Any) -> T:
    """The result of a function in a thread."""
    return await asyncio.get_running_loop().run_in_executor(request.app.state.small, function, *arguments)


def _one(run: ServedRun, parameters: schema.OneUser) -> Response:
    return answer(run.recommend(parameters.user, parameters.k, parameters.filter_seen))


def _similar(run: ServedRun, parameters: schema.OneItem) -> Response:
    return answer(run.similar(parameters.item, parameters.k))


def _many(run: ServedRun, parameters: schema.ManyUsers) -> Response:
    candidates, exclude, lists = run.choice(parameters.candidates), run.items.known(parameters.exclude), []
    until = time.monotonic() + MAX_SECONDS
    for user in parameters.users:
        lists.append(run.recommend(user, parameters.k, parameters.filter_seen, candidates, exclude))
        if time.monotonic() > until:
            done, of = len(lists), len(parameters.users)
            raise HTTPException(503, f"{done} of {of} lists took {MAX_SECONDS} s. Ask for fewer users at a time.")
    return answer({"users": lists})


def _for_new(run: ServedRun, parameters: schema.NewUsers) -> Response:
    candidates, exclude = run.choice(parameters.candidates), run.items.known(parameters.exclude)
    rows = [(rating.user, rating.item, rating.rating) for rating in parameters.ratings]
    return answer({"users": run.recommend_for(rows, parameters.k, parameters.filter_seen, candidates, exclude)})


async def _failure(request: Request, error: Exception) -> Response:
    """The response to an error; details of a fault of the server stay in its log."""
    if isinstance(error, RequestValidationError):
        return answer({"error": "; ".join(map(_rule, error.errors()[:5]))}, 422)
    if isinstance(error, HTTPException):
        response = answer({"error": ROUTING_ERRORS.get(error.status_code, str(error.detail))}, error.status_code)
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
