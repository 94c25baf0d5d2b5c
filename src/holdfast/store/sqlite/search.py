"""Memo and search attributes of runs, and searches by search terms.

Terms are stored per instance, because only the current run of an instance is searched for. The terms equal to a value
are ordered by instance, as a list is. Several equality conditions and the status are therefore intersected like a merge
join: each skips to the instance that the others have reached. The terms of a range are ordered by value, so the
instances of a range are sorted if there is no equality condition. The instances whose ids have a prefix are a range.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from math import inf
from typing import NamedTuple

from holdfast.store.protocol import Attributes, Condition, CurrentRuns, Term
from holdfast.store.sqlite.rows import Text, encode_text
from holdfast.store.sqlite.sql import statements
from holdfast.store.sqlite.tx import Row, Tx

_SQL = statements("search")
_Value = Text | int | float
_Next = Callable[[int], int | None]
"""Returns the newest matching instance that is older than the given one."""
_ABOVE_ALL_TEXTS = b"\xff"
_ABOVE_ID_CHARACTERS = "~"
_INSTANCE_ID = 2


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


def matching(tx: Tx, workflow: str, query: CurrentRuns, before: int) -> Iterator[Row]:
    """Rows of one workflow's matching current runs, the newest instance first."""
    ranges = [_range(condition) for condition in query.search if condition.op != "="]
    for instance in _candidates(tx, workflow, query, before):
        if all(_has_value_in(tx, instance, one) for one in ranges):
            row = tx.connection.execute(_SQL["record"], (workflow, instance)).fetchone()
            if row is not None and row[_INSTANCE_ID].startswith(query.id_prefix or ""):
                yield row


def _candidates(tx: Tx, workflow: str, query: CurrentRuns, before: int) -> Iterator[int]:
    equal = [condition for condition in query.search if condition.op == "="]
    steps = [_next_equal(tx, workflow, condition) for condition in equal]
    if not query.search:
        steps.append(_next_of(_with_prefix(tx, workflow, query.id_prefix or "", before)))
    elif not equal:
        steps.append(_next_of(_between(tx, workflow, _range(query.search[0]), before)))
    if query.status is not None:
        steps.append(_next_status(tx, workflow, query.status))
    return _intersect(steps, before)


def _intersect(steps: Sequence[_Next], before: int) -> Iterator[int]:
    while (candidate := _next_common(steps, before)) is not None:
        yield candidate
        before = candidate


def _next_common(steps: Sequence[_Next], before: int) -> int | None:
    """The newest instance that all steps match. Each step continues at the oldest instance that a step has found."""
    candidate = before - 1
    while True:
        for step in steps:
            found = step(candidate + 1)
            if found is None:
                return None
            if found != candidate:
                candidate = found
                break
        else:
            return candidate


def _next_equal(tx: Tx, workflow: str, condition: Condition) -> _Next:
    key = (workflow, encode_text(condition.key), _stored(condition.value))

    def step(before: int) -> int | None:
        found: int | None = tx.connection.execute(_SQL["next_equal"], (*key, before)).get
        return found

    return step


def _next_status(tx: Tx, workflow: str, status: str) -> _Next:
    def step(before: int) -> int | None:
        found: int | None = tx.connection.execute(_SQL["next_status"], (workflow, status, before)).get
        return found

    return step


def _next_of(instances: list[int]) -> _Next:
    def step(before: int) -> int | None:
        place = bisect_left(instances, before)
        return instances[place - 1] if place else None

    return step


def _between(tx: Tx, workflow: str, range: _Range, before: int) -> list[int]:
    found = tx.connection.execute(_SQL["between"], (workflow, *range, before)).get
    return sorted(json.loads(found))


def _with_prefix(tx: Tx, workflow: str, prefix: str, before: int) -> list[int]:
    bounds = (prefix, prefix + _ABOVE_ID_CHARACTERS)
    return sorted(json.loads(tx.connection.execute(_SQL["with_prefix"], (workflow, *bounds, before)).get))


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
