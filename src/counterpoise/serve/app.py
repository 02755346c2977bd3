"""The endpoints: each reads its request, asks the run that is served now, and answers JSON."""

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
from counterpoise.errors import CounterpoiseError
from counterpoise.serve import schema
from counterpoise.serve.lists import UnknownId
from counterpoise.serve.model import Served
from counterpoise.serve.page import REPORT_POLICY, page_headers, show_page

FEW = 1000  # rows that are answered at once; more are made beside, so that others need not wait
AS_IT_IS = {"X-Content-Type-Options": "nosniff"}  # a browser takes JSON for nothing else
SHOWN = 80  # letters of a wrong value in a message
TITLE, ABOUT = "counterpoise", "Recommendations of one saved run, in the ids of its log."
WHY_NOT: dict[int | str, dict[str, Any]] = {
    status: {"model": schema.Failure, "description": words}
    for status, words in {
        401: "No token, or another.",
        404: "An id that the log does not have.",
        413: "The body is too large.",
        421: "Called under a foreign name.",
        422: "A value breaks its rule.",
    }.items()
}
BAD_BODY: dict[int | str, dict[str, Any]] = {400: {"model": schema.Failure, "description": "The body is not JSON."}}
ALWAYS: dict[int | str, dict[str, Any]] = {status: WHY_NOT[status] for status in (413, 421)}
Model = TypeVar("Model", bound=schema.Asked)
router = APIRouter()


def make_app(run: Callable[[], Served], lifespan: Any = None) -> FastAPI:
    """The application; `run` gives the run to answer from, asked once for each request.

    There are no pages of FastAPI's own: they would load their scripts from elsewhere.
    """
    app = FastAPI(title=TITLE, version=__version__, description=ABOUT, lifespan=lifespan, docs_url=None, redoc_url=None)
    app.state.run = run
    app.include_router(router)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _refused)
    app.add_exception_handler(CounterpoiseError, _not_possible)
    app.add_exception_handler(Exception, _broken)
    return app


def described(model: type[schema.Asked]) -> dict[str, Any]:
    """The parameters of a query for the OpenAPI document.

    They are read by `query`: FastAPI's own reading takes longer than making the list.
    """
    fields = model.model_json_schema()
    names = {name: name in fields.get("required", ()) for name in fields["properties"]}
    return {
        "parameters": [
            {"name": name, "in": "query", "required": required, "schema": fields["properties"][name]}
            for name, required in names.items()
        ]
    }


def query(request: Request, model: type[Model]) -> Model:
    """The parameters of a query, checked."""
    try:
        return model.model_validate(dict(request.query_params))
    except ValidationError as error:
        raise RequestValidationError([{**row, "loc": ("query", *row["loc"])} for row in error.errors()]) from None


@router.get("/recommend", response_model=schema.UserList, responses=WHY_NOT, openapi_extra=described(schema.OneUser))
async def recommend(request: Request) -> Response:
    """The best items of one user."""
    asked = query(request, schema.OneUser)
    return answer(served(request).recommend(asked.user, asked.k, asked.filter_seen))


@router.post("/recommend", response_model=schema.UserLists, responses=WHY_NOT | BAD_BODY)
async def recommend_many(request: Request, asked: schema.ManyUsers) -> Response:
    """The best items of many users, among candidates, without those to leave out."""
    if len(asked.users) * asked.k <= FEW:
        return _many(served(request), asked)
    return await run_in_threadpool(_many, served(request), asked)


@router.get("/similar", response_model=schema.ItemList, responses=WHY_NOT, openapi_extra=described(schema.OneItem))
async def similar(request: Request) -> Response:
    """The items most like one."""
    asked = query(request, schema.OneItem)
    return answer(served(request).similar(asked.item, asked.k))


@router.get("/health", response_model=schema.Health, responses=ALWAYS)
async def health() -> Response:
    """Whether the server answers; needs no token."""
    return answer({"status": "ok"})


@router.get("/model", response_model=schema.Model, responses=ALWAYS | {401: WHY_NOT[401]})
async def model(request: Request) -> Response:
    """Configuration, metrics and diagnostics of the run."""
    return answer(served(request).facts)


@router.get("/", include_in_schema=False)
async def look(request: Request, user: str = "", k: str = "10") -> Response:
    """A page: type a user, see the lists side by side."""
    text, status = show_page(served(request), user, k)
    return Response(text, status, page_headers(), "text/html")


@router.get("/report", include_in_schema=False)
async def report(request: Request) -> Response:
    """The run's report, if it was written; it runs apart from this server's other pages."""
    content = await run_in_threadpool(served(request).report)
    if content is None:
        return answer({"error": "this run has no report. Write it: counterpoise report RUN"}, 404)
    return Response(content, 200, AS_IT_IS | {"Content-Security-Policy": REPORT_POLICY}, "text/html")


def served(request: Request) -> Served:
    """The run to answer from."""
    run: Served = request.app.state.run()
    return run


def answer(facts: Any, status: int = 200) -> Response:
    """Facts as JSON."""
    return Response(to_json(facts, inf_nan_mode="null"), status, AS_IT_IS, "application/json")


def _many(run: Served, asked: schema.ManyUsers) -> Response:
    candidates, exclude = run.choice(asked.candidates), run.items.known(asked.exclude)
    lists = [run.recommend(user, asked.k, asked.filter_seen, candidates, exclude) for user in asked.users]
    return answer({"users": lists})


async def _invalid(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    return answer({"error": "; ".join(map(_rule, error.errors()[:5]))}, 422)


def _rule(problem: dict[str, Any]) -> str:
    """The name, the rule and the value that came, of one problem that pydantic found."""
    if problem["type"] == "json_invalid":
        return f"the body is not JSON: {problem['ctx']['error']} at byte {problem['loc'][-1]}"
    place = ".".join(str(part) for part in problem["loc"][1:]) or problem["loc"][0]
    value = repr(problem.get("input"))
    shown = value if len(value) <= SHOWN else value[:SHOWN] + "..."
    return f"`{place}`: {problem['msg'].removeprefix('Value error, ')}, got {shown}"


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    response = answer({"error": str(error.detail)}, error.status_code)
    response.headers.update(error.headers or {})
    return response


async def _not_possible(request: Request, error: Exception) -> Response:
    return answer({"error": str(error)}, 404 if isinstance(error, UnknownId) else 422)


async def _broken(request: Request, error: Exception) -> Response:
    return answer({"error": "something went wrong in the server; its log says what."}, 500)
