"""A graph whose mapped nodes have items that fail, with both values of ``map_errors``.

``fits_sieve`` and ``fits_sieve_error`` say which ends are possible; ``lost_items`` looks for items of ended nodes that
are not recorded.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from random import Random
from typing import Any, NamedTuple

from holdfast.app import Holdfast
from holdfast.core import codec
from holdfast.core.failure import Failure
from holdfast.core.retry import Retry
from holdfast.errors import NonRetryableError
from holdfast.graph.items import Failed, Ok
from holdfast.store.protocol import FactState
from holdfast.testing.simulation.code import MAY_FAIL, ExternalSystem
from holdfast.testing.simulation.database import SimulatedDatabase
from holdfast.testing.simulation.models import ANY_RUN

SIEVE = "sieve"
_STRICT = "strict"
"""The mapped node without ``map_errors="collect"``."""
_MAPPED = (_STRICT, "lenient", "brief", "children")
_MESSAGE = "as it had to be"
_UNLIMITED = Retry(limit=math.inf, delay="40 ms", backoff="constant")
_TWO_ATTEMPTS = Retry(limit=1, delay="20 ms", backoff="constant")
_USED_UP = "StepMaxAttemptsExceeded"
_OK, _FAILED, _LOST = "ok", "failed", "lost"
"""Ends of an item; lost: its workers were lost in all its attempts."""
_ITEMS = "SELECT n, ok, value FROM holdfast_fact WHERE run = ? AND state = ? AND key = ? ORDER BY n"


class _Item(NamedTuple):
    place: int
    value: int
    fails: int
    """The number of calls that raise before one returns."""
    dies: bool
    """It fails for good."""

    @property
    def listed(self) -> dict[str, Any]:
        """Its entry in the result of a node that collects errors."""
        if self.dies:
            return {"error": {"name": NonRetryableError.__name__, "message": _MESSAGE}}
        return {"value": self.value}


class _Params(NamedTuple):
    instance: str
    items: list[_Item]
    strict: bool
    """Items of the node that does not collect errors fail, too."""

    @classmethod
    def of(cls, params: list[Any]) -> _Params:
        instance, items, strict = params
        return cls(instance, [_Item(*item) for item in items], strict)

    @property
    def dying(self) -> list[int]:
        return [item.place for item in self.items if item.dies]

    @property
    def fails(self) -> bool:
        return self.strict and bool(self.dying)


def sieve_params(draw: Random, instance: str) -> list[Any]:
    """The instance, the items, and whether those of the strict node fail."""
    items = [_Item(n, draw.randrange(100), draw.choice([0, 0, 1]), draw.random() < 0.3) for n in range(3)]
    return [instance, [[*item] for item in items], draw.random() < 0.5]


def fits_sieve_error(params: list[Any], error: str) -> bool:
    """The error of the run names each failed item of the strict node, and no other."""
    given = _Params.of(params)
    named = [item.place for item in given.items if f"item {item.place}: " in error]
    return given.fails and f"node '{_STRICT}' failed" in error and named == given.dying


def fits_sieve(params: list[Any], result: Any) -> bool:
    given = _Params.of(params)
    items, values = given.items, [item.value for item in given.items]
    exact = {
        "source": [[*item] for item in items],
        _STRICT: values,
        "total": sum(values),
        "lenient": [item.listed for item in items],
        "summary": [sum(item.value for item in items if not item.dies), len(given.dying)],
    }
    return (
        not given.fails
        and result.keys() == {*exact, "brief", "children"}
        and all(result[node] == value for node, value in exact.items())
        and _all_fit(items, result["brief"], _fits_brief)
        and _all_fit(items, result["children"], _fits_child)
    )


def _all_fit(items: Sequence[_Item], got: list[Any], fits: Any) -> bool:
    return len(items) == len(got) and all(map(fits, items, got))


def _fits_brief(item: _Item, got: Any) -> bool:
    """An item with two attempts also fails if a worker is lost in both."""
    return bool(got == item.listed) or _error_name(got) == _USED_UP


def _fits_child(item: _Item, got: Any) -> bool:
    return _error_name(got) == "ChildError" if item.dies else bool(got == item.listed)


def _error_name(got: Any) -> Any:
    return got.get("error", {}).get("name")


def register_sieve(app: Holdfast, external: ExternalSystem) -> None:
    graph = app.graph(SIEVE, params=list[Any])

    async def call(node: str, item: _Item, instance: str) -> int:
        fails = 0 if node == "brief" else item.fails
        await external.work([instance, ANY_RUN, f"{node}[{item.place}]"], item.value, fails, 0, "step")
        if item.dies:
            raise NonRetryableError(_MESSAGE)
        return item.value

    @graph.node(retry=_UNLIMITED)
    async def source(params: list[Any]) -> list[Any]:
        return [*params[1]]

    @graph.node(map=source, retry=_UNLIMITED)
    async def strict(source: list[Any], params: list[Any]) -> int:
        given, item = _Params.of(params), _Item(*source)
        return await call(_STRICT, item._replace(dies=given.strict and item.dies), given.instance)

    @graph.node(map=source, map_errors="collect", retry=_UNLIMITED)
    async def lenient(source: list[Any], params: list[Any]) -> int:
        return await call("lenient", _Item(*source), params[0])

    @graph.node(map=source, map_errors="collect", retry=_TWO_ATTEMPTS)
    async def brief(source: list[Any], params: list[Any]) -> int:
        return await call("brief", _Item(*source), params[0])

    graph.node(run=MAY_FAIL, name="children", map=source, map_errors="collect", input=lambda source: source[1::2])

    @graph.node(after=[strict], retry=_UNLIMITED)
    async def total(strict: list[int]) -> int:
        return sum(strict)

    @graph.node(after=[lenient], retry=_UNLIMITED)
    async def summary(lenient: list[Ok[int] | Failed]) -> list[int]:
        values = [item.value for item in lenient if isinstance(item, Ok)]
        return [sum(values), len(lenient) - len(values)]


def lost_items(database: SimulatedDatabase) -> Iterator[str]:
    """A mapped node that has ended has one recorded item for each element of its list, failed or not as it had to."""
    for run, instance, node, params in database.rows(
        "SELECT r.id, r.instance_id, f.key, r.params FROM holdfast_fact AS f JOIN holdfast_run AS r ON r.id = f.run "
        "WHERE r.workflow = ? AND f.state = ? AND f.key IN (?, ?, ?, ?) ORDER BY r.id, f.key",
        SIEVE,
        int(FactState.RESULT),
        *_MAPPED,
    ):
        given = _Params.of(codec.plain(params))
        dying = given.dying if node != _STRICT or given.strict else []
        ended = {n: _end(ok, value) for n, ok, value in database.rows(_ITEMS, run, int(FactState.ITEM), node)}
        fit = [ended.get(n) in (_FAILED if n in dying else _OK, _LOST) for n in range(len(given.items))]
        if not all(fit):
            yield f"node {node} of {instance} (run {run}) has ended with the items {ended}, and {dying} had to fail"


def _end(ok: int, value: bytes) -> str:
    if ok:
        return _OK
    return _LOST if Failure.decode(value).name == _USED_UP else _FAILED
