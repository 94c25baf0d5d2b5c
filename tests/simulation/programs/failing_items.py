"""A graph whose mapped nodes have failing items, with both values of ``map_errors``.

``fits_failing_items`` and ``fits_failing_items_error`` decide whether a result or an error is possible. ``lost_items``
finds items of ended nodes that are not recorded.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from random import Random
from typing import Any, NamedTuple

from holdfast.app import Holdfast
from holdfast.core import codec
from holdfast.core.failure import Failure
from holdfast.errors import NonRetryableError
from holdfast.graph.items import Failed, Ok
from holdfast.kernel.step_info import step_info
from holdfast.store.protocol import FactState
from holdfast.testing.simulation.database import SimulatedDatabase
from simulation.programs.external_system import ANY_RUN, ExternalSystem
from simulation.programs.names import GRAPH_WITH_FAILING_ITEMS, MAY_FAIL
from simulation.programs.retries import TWO_ATTEMPTS, UNLIMITED

_STRICT = "strict"
"""The mapped node without ``map_errors="collect"``."""
_MAPPED = (_STRICT, "lenient", "brief", "children")
_MESSAGE = "as it had to be"
_ATTEMPTS_EXCEEDED = "StepMaxAttemptsExceeded"
_OK, _FAILED, _LOST = "ok", "failed", "lost"
"""Ends of an item. LOST: each of its attempts ended with the loss of its worker."""
_ITEMS = "SELECT n, ok, value FROM holdfast_fact WHERE run = ? AND state = ? AND key = ? ORDER BY n"


class _Item(NamedTuple):
    position: int
    value: int
    fails: int
    """The number of calls that raise before one returns."""
    fails_permanently: bool

    @property
    def collected(self) -> dict[str, Any]:
        """The entry of the item in the result of a node that collects errors."""
        if self.fails_permanently:
            return {"error": {"name": NonRetryableError.__name__, "message": _MESSAGE}}
        return {"value": self.value}


class _Params(NamedTuple):
    instance: str
    items: list[_Item]
    strict: bool
    """True if items of the strict node fail, too."""

    @classmethod
    def of(cls, params: list[Any]) -> _Params:
        instance, items, strict = params
        return cls(instance, [_Item(*item) for item in items], strict)

    @property
    def failing(self) -> list[int]:
        return [item.position for item in self.items if item.fails_permanently]

    @property
    def fails(self) -> bool:
        return self.strict and bool(self.failing)


def draw_items(draw: Random) -> list[Any]:
    """The items, and True if items of the strict node fail."""
    items = [_Item(n, draw.randrange(100), draw.choice([0, 0, 1]), draw.random() < 0.3) for n in range(3)]
    return [[[*item] for item in items], draw.random() < 0.5]


def fits_failing_items_error(params: list[Any], error: str) -> bool:
    """Return True if the error of the run names each failed item of the strict node, and no other item."""
    given = _Params.of(params)
    named = [item.position for item in given.items if f"item {item.position}: " in error]
    return given.fails and f"node '{_STRICT}' failed" in error and named == given.failing


def fails_with_items(params: list[Any]) -> bool:
    """Return True if the run fails, because items of the strict node do."""
    return _Params.of(params).fails


def fits_failing_items(params: list[Any], result: Any) -> bool:
    given = _Params.of(params)
    items, values = given.items, [item.value for item in given.items]
    exact = {
        "source": [[*item] for item in items],
        _STRICT: values,
        "total": sum(values),
        "lenient": [item.collected for item in items],
        "summary": [sum(item.value for item in items if not item.fails_permanently), len(given.failing)],
    }
    return (
        not given.fails
        and isinstance(result, dict)
        and result.keys() == {*exact, "brief", "children"}
        and all(result[node] == value for node, value in exact.items())
        and _all_fit(items, result["brief"], _fits_brief)
        and _all_fit(items, result["children"], _fits_child)
    )


def _all_fit(items: Sequence[_Item], got: list[Any], fits: Any) -> bool:
    return len(items) == len(got) and all(map(fits, items, got))


def _fits_brief(item: _Item, got: Any) -> bool:
    """Return True if an item with two attempts may end so. It also fails if its worker is lost in both attempts."""
    return bool(got == item.collected) or _error_name(got) == _ATTEMPTS_EXCEEDED


def _fits_child(item: _Item, got: Any) -> bool:
    return _error_name(got) == "ChildError" if item.fails_permanently else bool(got == item.collected)


def _error_name(got: Any) -> Any:
    return got.get("error", {}).get("name")


def register_graph_with_failing_items(app: Holdfast, external: ExternalSystem) -> None:
    graph = app.graph(GRAPH_WITH_FAILING_ITEMS, params=list[Any])

    async def call(node: str, item: _Item, instance: str) -> int:
        external.reached(step_info().instance_id, "map", "failing_items")
        fails = 0 if node == "brief" else item.fails
        await external.work([instance, ANY_RUN, f"{node}[{item.position}]"], item.value, fails, 0, "step")
        if item.fails_permanently:
            raise NonRetryableError(_MESSAGE)
        return item.value

    @graph.node(retry=UNLIMITED)
    async def source(params: list[Any]) -> list[Any]:
        return [*params[1]]

    @graph.node(map=source, retry=UNLIMITED)
    async def strict(source: list[Any], params: list[Any]) -> int:
        given, item = _Params.of(params), _Item(*source)
        return await call(
            _STRICT, item._replace(fails_permanently=given.strict and item.fails_permanently), given.instance
        )

    @graph.node(map=source, map_errors="collect", retry=UNLIMITED)
    async def lenient(source: list[Any], params: list[Any]) -> int:
        return await call("lenient", _Item(*source), params[0])

    @graph.node(map=source, map_errors="collect", retry=TWO_ATTEMPTS)
    async def brief(source: list[Any], params: list[Any]) -> int:
        return await call("brief", _Item(*source), params[0])

    graph.node(run=MAY_FAIL, name="children", map=source, map_errors="collect", input=lambda source: source[1::2])

    @graph.node(after=[strict], retry=UNLIMITED)
    async def total(strict: list[int]) -> int:
        return sum(strict)

    @graph.node(after=[lenient], retry=UNLIMITED)
    async def summary(lenient: list[Ok[int] | Failed]) -> list[int]:
        values = [item.value for item in lenient if isinstance(item, Ok)]
        return [sum(values), len(lenient) - len(values)]


def lost_items(database: SimulatedDatabase) -> Iterator[str]:
    """Check that an ended mapped node has a recorded item for each element of its list, with the expected end."""
    for run, instance, node, params in database.rows(
        "SELECT r.id, r.instance_id, f.key, r.params FROM holdfast_fact AS f JOIN holdfast_run AS r ON r.id = f.run "
        "WHERE r.workflow = ? AND f.state = ? AND f.key IN (?, ?, ?, ?) ORDER BY r.id, f.key",
        GRAPH_WITH_FAILING_ITEMS,
        int(FactState.RESULT),
        *_MAPPED,
    ):
        given = _Params.of(codec.plain(params))
        failing = given.failing if node != _STRICT or given.strict else []
        ended = {n: _end(ok, value) for n, ok, value in database.rows(_ITEMS, run, int(FactState.ITEM), node)}
        fit = [ended.get(n) in (_FAILED if n in failing else _OK, _LOST) for n in range(len(given.items))]
        if not all(fit):
            yield f"node {node} of {instance} (run {run}) has ended with the items {ended}, and {failing} had to fail"


def _end(ok: int, value: bytes) -> str:
    if ok:
        return _OK
    return _LOST if Failure.decode(value).name == _ATTEMPTS_EXCEEDED else _FAILED
