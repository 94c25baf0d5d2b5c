"""Memo and search attributes of runs, and lists of runs by filters.

Terms are stored per instance, because only the current run of an instance is searched for. The terms equal to a value
are ordered by instance, as a list is. Several equality conditions and the status are therefore intersected like a merge
join: each skips to the instance that the others have reached. The terms of a range are ordered by value, so the
instances of a range are sorted if there is no equality condition. The instances whose ids have a prefix are a range.

A range of times is used in the same way while it holds at most ``_MANY`` runs. A longer one is not selective: reading
it for each page would cost more than testing the runs in the order of the page.
"""

from __future__ import annotations

import json
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from math import inf
from typing import NamedTuple

from holdfast.core.filters import TimeRange
from holdfast.core.model import DEFAULT_QUEUE, TERMINAL
from holdfast.store.protocol import Attributes, Condition, CurrentRuns, Term
from holdfast.store.sqlite.rows import Text, encode_text
from holdfast.store.sqlite.sql import statements
from holdfast.store.sqlite.tx import Row, Tx

_SQL = statements("search")
_Value = Text | int | float
_Next = Callable[[int], int | None]
"""Returns the next matching instance after the given one, in the order of the page."""
_ABOVE_ALL_TEXTS = b"\xff"
_ABOVE_ID_CHARACTERS = "~"
_MAX_INTEGER = 2**63 - 1
_MANY = 20_000
"""Maximum number of runs in a range of times that is read for each page."""


class _Range(NamedTuple):
    key: Text
    low: _Value
    high: _Value
    excluded_bound: _Value | None
    """The bound, if the range does not include it."""


def set_attributes(tx: Tx, run: int, attributes: Attributes) -> None:
    tx.connection.execute(_SQL["set_attributes"], (run, attributes.memo, attributes.search, tx.now))
    if attributes.search is not None:
        delete_terms(tx, run)
        insert_terms(tx, run, attributes.terms)


def insert_terms(tx: Tx, run: int, terms: Sequence[Term]) -> None:
    tx.connection.executemany(
        _SQL["insert_term"], [(run, encode_text(term.key), _stored(term.value)) for term in terms]
    )


def delete_terms(tx: Tx, run: int) -> None:
    tx.connection.execute(_SQL["delete_terms"], (run,))


def page(tx: Tx, workflow: str, query: CurrentRuns) -> Iterable[Row]:
    """Rows of one workflow's matching current runs, in the order of the page."""
    edge = 0 if query.ascending else _MAX_INTEGER
    start = edge if query.before is None else query.before
    steps = _selective_steps(tx, workflow, query)
    if not steps:
        return _walk(tx, workflow, query, start)
    if query.status is not None:
        steps.append(_next_in_run(tx, "status", workflow, query.status, ascending=query.ascending))
    return _matching(tx, workflow, query, _intersect(steps, start, 1 if query.ascending else -1))


def _walk(tx: Tx, workflow: str, query: CurrentRuns, start: int) -> Iterable[Row]:
    """Test the runs in the order of the page. Used without a condition that few runs meet."""
    name = "list" if query.status is None else "list_status"
    extra = () if query.status is None else (query.status,)
    residual = (query.queue, *query.created, *query.ended)
    sql = _SQL[f"{name}_ascending" if query.ascending else name]
    return tx.connection.execute(sql, (workflow, start, query.limit, *residual, *extra))


def _matching(tx: Tx, workflow: str, query: CurrentRuns, candidates: Iterable[int]) -> Iterator[Row]:
    ranges = [_range(condition) for condition in query.search if condition.op != "="]
    error = None if query.error is None else encode_text(query.error)
    residual = (query.status, query.id_prefix, error, query.version, query.queue, *query.created, *query.ended)
    for instance in candidates:
        if all(_has_value_in(tx, instance, one) for one in ranges):
            row = tx.connection.execute(_SQL["record"], (workflow, instance, *residual)).fetchone()
            if row is not None:
                yield row


def _selective_steps(tx: Tx, workflow: str, query: CurrentRuns) -> list[_Next]:
    """A step for each condition of equality; without one, a step for the first range that is selective."""
    equal = [condition for condition in query.search if condition.op == "="]
    steps = [_next_equal(tx, workflow, condition, ascending=query.ascending) for condition in equal]
    values = {"error": query.error, "version": query.version, "queue": _selective_queue(query.queue)}
    for column, value in values.items():
        if value is not None:
            steps.append(_next_in_run(tx, column, workflow, value, ascending=query.ascending))
    if not steps:
        instances = _instances_of_range(tx, workflow, query)
        steps += [] if instances is None else [_next_of(instances, ascending=query.ascending)]
    return steps


def _selective_queue(queue: str | None) -> str | None:
    """The queue, unless it is the default queue, which has no index because most runs are in it."""
    return None if queue == DEFAULT_QUEUE else queue


def _instances_of_range(tx: Tx, workflow: str, query: CurrentRuns) -> list[int] | None:
    """The instances of one range of the query, ascending; None if there is no selective range."""
    if query.id_prefix is not None:
        return _with_prefix(tx, workflow, query.id_prefix)
    if query.search:
        return _between(tx, workflow, _range(query.search[0]))
    found = None
    if query.ended.bounded:
        found = _ended_between(tx, workflow, query)
    if found is None and query.created.bounded:
        found = _selective(tx, "created_between", (workflow, *_bounds(query.created)))
    return found


def _ended_between(tx: Tx, workflow: str, query: CurrentRuns) -> list[int] | None:
    found: list[int] = []
    for status in sorted(TERMINAL if query.status is None else {query.status}):
        ended = _selective(tx, "ended_between", (workflow, *_bounds(query.ended)), status)
        if ended is None:
            return None
        found += ended
    return sorted({*found})


def _selective(tx: Tx, name: str, bounds: Row, *more: str) -> list[int] | None:
    found = json.loads(tx.connection.execute(_SQL[name], (*bounds, _MANY, *more)).get)
    return None if len(found) > _MANY else sorted(found)


def _bounds(range: TimeRange) -> tuple[int, int]:
    return range.low or 0, _MAX_INTEGER if range.high is None else range.high


def _intersect(steps: Sequence[_Next], start: int, direction: int) -> Iterator[int]:
    while (candidate := _next_common(steps, start, direction)) is not None:
        yield candidate
        start = candidate


def _next_common(steps: Sequence[_Next], start: int, direction: int) -> int | None:
    """The next instance that all steps match. Each step continues at the farthest instance that a step has found."""
    candidate = start + direction
    while True:
        for step in steps:
            found = step(candidate - direction)
            if found is None:
                return None
            if found != candidate:
                candidate = found
                break
        else:
            return candidate


def _next_equal(tx: Tx, workflow: str, condition: Condition, *, ascending: bool) -> _Next:
    key = (workflow, encode_text(condition.key), _stored(condition.value))
    return _step(tx, "next_equal_ascending" if ascending else "next_equal", key)


def _next_in_run(tx: Tx, column: str, workflow: str, value: str, *, ascending: bool) -> _Next:
    """A step over the runs with this value in an indexed column."""
    name = f"next_{column}_ascending" if ascending else f"next_{column}"
    return _step(tx, name, (workflow, encode_text(value)))


def _step(tx: Tx, name: str, key: Row) -> _Next:
    def step(start: int) -> int | None:
        found: int | None = tx.connection.execute(_SQL[name], (*key, start)).get
        return found

    return step


def _next_of(instances: list[int], *, ascending: bool) -> _Next:
    def older(start: int) -> int | None:
        place = bisect_left(instances, start)
        return instances[place - 1] if place else None

    def newer(start: int) -> int | None:
        place = bisect_right(instances, start)
        return instances[place] if place < len(instances) else None

    return newer if ascending else older


def _between(tx: Tx, workflow: str, range: _Range) -> list[int]:
    found = tx.connection.execute(_SQL["between"], (workflow, *range)).get
    return sorted({*json.loads(found)})


def _with_prefix(tx: Tx, workflow: str, prefix: str) -> list[int]:
    bounds = (prefix, prefix + _ABOVE_ID_CHARACTERS)
    return sorted(json.loads(tx.connection.execute(_SQL["with_prefix"], (workflow, *bounds)).get))


def _has_value_in(tx: Tx, instance: int, range: _Range) -> bool:
    found: int = tx.connection.execute(_SQL["has_between"], (instance, *range)).get
    return found == 1


def _range(condition: Condition) -> _Range:
    """A range with both bounds, because SQLite sorts numbers before texts, and texts before encoded (BLOB) texts."""
    value = _stored(condition.value)
    low, high = (-inf, inf) if isinstance(value, int | float) else ("", _ABOVE_ALL_TEXTS)
    key, excluded_bound = encode_text(condition.key), value if condition.op in "<>" else None
    return (
        _Range(key, low, value, excluded_bound)
        if condition.op.startswith("<")
        else _Range(key, value, high, excluded_bound)
    )


def _stored(value: str | float) -> _Value:
    return encode_text(value) if isinstance(value, str) else value
