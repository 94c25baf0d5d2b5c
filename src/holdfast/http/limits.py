"""The routes of limits: bodies, handlers and the table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, NotRequired

from fastapi import Path, Query
from pydantic import BaseModel, Field, TypeAdapter
from starlette.requests import Request
from starlette.responses import Response
from typing_extensions import TypedDict  # pydantic requires this TypedDict before Python 3.12

from holdfast.core.durations import to_ms
from holdfast.core.model import from_ms
from holdfast.core.rate import Rate
from holdfast.core.records import LimitInfo
from holdfast.http.admission import admitted
from holdfast.http.auth import Scope
from holdfast.http.backend import Backend
from holdfast.http.queries import check_query
from holdfast.http.response_bodies import optional_date
from holdfast.http.responses import reply
from holdfast.http.spec import Spec
from holdfast.http.start_options import Duration
from holdfast.http.strict import strict
from holdfast.http.wire import Count, Date
from holdfast.http.wire_requests import Reason

_MAX_COUNT = 1_000_000_000

LimitName = Annotated[str, Path(description="The name of a limit.")]
Positive = Annotated[int, Field(ge=1, le=_MAX_COUNT)]


@strict
class RateFields(TypedDict):
    count: Positive
    per: Duration
    burst: NotRequired[Positive | None]


@strict
class LimitChangesRequest(TypedDict):
    """Values that are absent stay as they are; null removes a maximum."""

    concurrency: NotRequired[Annotated[int, Field(ge=0, le=_MAX_COUNT)] | None]
    rate: NotRequired[RateFields | None]
    fair: NotRequired[bool]
    weights: NotRequired[dict[str, Annotated[float, Field(gt=0, lt=_MAX_COUNT, strict=False)]]]
    reason: NotRequired[Reason]


class RateBody(TypedDict):
    count: Count
    perMs: Count
    burst: Count
    used: Count
    """Starts that count against ``burst`` now; of a limit with keys, those of the key with the most."""


class LimitBody(TypedDict):
    name: str
    concurrency: Count | None
    rate: RateBody | None
    fair: bool
    weights: dict[str, float]
    used: Count
    waiting: Count
    oldestWaiting: Date | None
    """The time since when the one that has waited the longest waits."""
    keys: Count
    changed: bool


class LimitsBody(TypedDict):
    limits: list[LimitBody]


class LimitKeyBody(TypedDict):
    key: str
    used: Count
    waiting: Count
    oldestWaiting: Date | None


class LimitKeysBody(TypedDict):
    keys: list[LimitKeyBody]
    """Those with the most waiting attempts, nodes and runs first."""
    total: Count
    """Number of keys in use."""


class LimitKeysParams(BaseModel):
    """The query of the keys of a limit: their maximum number."""

    count: Annotated[int, Field(ge=1, le=100)] = 20


class LimitRoutes:
    """Shows and changes limits."""

    def __init__(self, backend: Backend) -> None:
        self._client = backend.client

    async def list_limits(self) -> Response:
        """The limits with their use, by name."""
        body: LimitsBody = {"limits": [_limit(limit) for limit in await self._client().flow.limits()]}
        return reply(body)

    async def keys(self, request: Request, limit: LimitName, query: Annotated[LimitKeysParams, Query()]) -> Response:
        """The use of a limit by key."""
        check_query(request, query)
        found = await self._client().flow.limit_keys(limit, query.count)
        body: LimitKeysBody = {"keys": [_key(*one) for one in found.keys], "total": found.total}
        return reply(body)

    async def change(self, request: Request, limit: LimitName) -> Response:
        """Change values of a limit, for all workers."""
        body: LimitChangesRequest = admitted(request).body
        changes: dict[str, Any] = dict(body)
        rate = body.get("rate")
        if rate is not None:
            changes["rate"] = Rate(rate["count"], rate["per"], rate.get("burst"))
        return reply(_limit(await self._client().flow.set_limit(limit, **changes)))


_CHANGES = TypeAdapter(LimitChangesRequest)


def limit_routes(backend: Backend) -> Sequence[Spec]:
    routes = LimitRoutes(backend)
    errors = (400, 404, 408, 413, 415)
    return [
        Spec("GET", "/_limits", "listLimits", Scope.READ, routes.list_limits, LimitsBody),
        Spec("GET", "/_limits/{limit}/keys", "listLimitKeys", Scope.READ, routes.keys, LimitKeysBody, (400, 404)),
        Spec("PUT", "/_limits/{limit}", "changeLimit", Scope.OPERATE, routes.change, LimitBody, errors, _CHANGES),
    ]


def _key(key: str, used: int, waiting: int, oldest_waiting: int | None) -> LimitKeyBody:
    oldest = None if oldest_waiting is None else from_ms(oldest_waiting)
    return {"key": key, "used": used, "waiting": waiting, "oldestWaiting": optional_date(oldest)}


def _limit(limit: LimitInfo) -> LimitBody:
    rate = limit.rate
    shown: RateBody | None = None
    if rate is not None:
        shown = {
            "count": rate.count,
            "perMs": to_ms(rate.per, "per"),
            "burst": rate.burst or rate.count,
            "used": limit.rate_used,
        }
    return {
        "name": limit.name,
        "concurrency": limit.concurrency,
        "rate": shown,
        "fair": limit.fair,
        "weights": dict(limit.weights),
        "used": limit.used,
        "waiting": limit.waiting,
        "oldestWaiting": optional_date(limit.oldest_waiting),
        "keys": limit.keys,
        "changed": limit.changed,
    }
