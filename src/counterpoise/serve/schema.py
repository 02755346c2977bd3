"""Requests and answers as the OpenAPI document states them, and the limits of a request."""

from __future__ import annotations

from functools import cached_property
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StrictBool, StrictInt, model_validator

MAX_K = 1000  # items in a list
MAX_USERS = 1000  # in one request
MAX_ROWS = 100_000  # users x k of one request
MAX_ITEMS = 10_000  # candidates, excluded items, or ratings, of one request
MAX_BODY_BYTES = 1 << 20  # 1 MiB


def _whole(value: Any) -> Any:
    """The float 7.0 as the integer 7, as in JSON Schema."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _integer_or_text(value: Any) -> Any:
    value = _whole(value)
    if type(value) not in (int, str):
        raise ValueError("an id must be an integer or text")
    if isinstance(value, str) and not value.isascii():
        value.encode()  # raises for a lone surrogate, which no answer could contain
    return value


Id = Annotated[int | str, BeforeValidator(_integer_or_text)]
LENGTH = Field(ge=1, le=MAX_K, description="Items in a list.")
CANDIDATES = Field(min_length=1, max_length=MAX_ITEMS, description="Item ids to choose from; null for all.")
EXCLUDE = Field(max_length=MAX_ITEMS, description="Item ids to leave out; unknown ids are ignored.")


class BaseRequest(BaseModel):
    """A request: a misspelt name is an error, it is not ignored."""

    model_config = ConfigDict(extra="forbid")


class OneUser(BaseRequest):
    """The list of one user."""

    user: str = Field(description="A user's id; the text 7 is the integer 7.")
    k: Annotated[int, LENGTH] = 10
    filter_seen: bool = Field(True, description="Leave out what the user rated in the log.")


class OneItem(BaseRequest):
    """The items most like one."""

    item: str = Field(description="An item's id; the text 7 is the integer 7.")
    k: Annotated[int, LENGTH] = 10


class ManyUsers(BaseRequest):
    """The lists of many users."""

    users: list[Id] = Field(min_length=1, max_length=MAX_USERS, description="Users' ids.")
    k: Annotated[StrictInt, LENGTH, BeforeValidator(_whole)] = 10
    filter_seen: StrictBool = Field(True, description="Leave out what each user rated in the log.")
    candidates: Annotated[list[Id] | None, CANDIDATES] = None
    exclude: Annotated[list[Id], EXCLUDE] = []

    @model_validator(mode="after")
    def _limit_rows(self) -> Self:
        if len(self.users) * self.k > MAX_ROWS:
            raise ValueError(f"users x k must be at most {MAX_ROWS:,}, got {len(self.users)} x {self.k}")
        return self


NAME = Field(description="The item's name; only there if the run has names.")


class Rating(BaseRequest):
    """A rating of a new user."""

    user: Id = Field("new", description="The user's id in the answer; needed only for several users.")
    item: Id = Field(description="An item's id.")
    rating: float = Field(allow_inf_nan=False, description="A rating on the scale of the log; 1 for a click.")


class NewUsers(BaseRequest):
    """The lists of users whom the log does not have, from a few of their ratings."""

    ratings: list[Rating] = Field(min_length=1, max_length=MAX_ITEMS, description="Of one user or of several.")
    k: Annotated[StrictInt, LENGTH, BeforeValidator(_whole)] = 10
    filter_seen: StrictBool = Field(True, description="Leave out the items of these ratings.")
    candidates: Annotated[list[Id] | None, CANDIDATES] = None
    exclude: Annotated[list[Id], EXCLUDE] = []

    @model_validator(mode="after")
    def _limit_rows(self) -> Self:
        if self.n_users > MAX_USERS or self.n_users * self.k > MAX_ROWS:
            limits = f"users must be at most {MAX_USERS:,}, and users x k at most {MAX_ROWS:,}"
            raise ValueError(f"{limits}, got {self.n_users} x {self.k}")
        return self

    @cached_property
    def n_users(self) -> int:
        """The number of users."""
        return len({str(rating.user) for rating in self.ratings})


class Ranked(BaseModel):
    """An item of a list."""

    item_id: Id
    item_name: Annotated[str | None, NAME] = None
    score: float = Field(
        description="Probability of a positive rating, of clicks of relevance; between items the cosine of vectors."
    )
    rank: int = Field(ge=1)


class Scored(Ranked):
    """An item of a user's list."""

    scored_by: Literal["model", "features", "fold-in", "popularity"] = Field(
        description="What the score rests on: ratings of the user and the item in the log (model), side features where "
        "there are none, the ratings of the request (fold-in), or the items' rates of positive labels."
    )


class UserList(BaseModel):
    """The list of one user."""

    user_id: Id
    known: bool = Field(description="Whether the log has the user; others get popular items, or are an error.")
    items: list[Scored]


class UserLists(BaseModel):
    """The lists of many users, in the order of the request."""

    users: list[UserList]


class ItemList(BaseModel):
    """The items most like one."""

    item_id: Id
    item_name: Annotated[str | None, NAME] = None
    items: list[Ranked]


class Health(BaseModel):
    """The server answers."""

    status: str


class Model(BaseModel):
    """The facts of run.json: configuration, log, diagnostics of the parts, and an evaluation where there is one."""

    model_config = ConfigDict(extra="allow")

    run: str
    version: str
    configuration: dict[str, Any]
    log: dict[str, Any]
    parts: dict[str, Any]


class Failure(BaseModel):
    """What went wrong, and what to do."""

    error: str
