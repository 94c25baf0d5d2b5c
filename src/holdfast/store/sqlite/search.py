"""What runs say of themselves, and how they are found by it.

Terms are kept by instance, for only its current run is looked for. Those that are equal to a value are in the order of
a list: several such conditions, and the status, are followed side by side, each leaping to where the others are. A
range is in the order of its values: what is in it is sorted if there is nothing else to go by. The instances whose ids
begin with a text are such a range too.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from math import inf
from typing import NamedTuple

from holdfast.store.protocol import Attributes, Condition, ListQuery, Term
from holdfast.store.sqlite.rows import Text, safe
from holdfast.store.sqlite.sql import statements
from holdfast.store.sqlite.tx import Row, Tx

_SQL = statements("search")
_Value = Text | int | float
_Next = Callable[[int], int | None]
"""The newest instance that is older than this one."""
_AFTER_ALL_TEXTS = b"\xff"
_AFTER_ALL_ID_CHARACTERS = "~"
_INSTANCE_ID = 2


class _Range(NamedTuple):
    key: Text
    low: _Value
    high: _Value
    but: _Value | None
    """The bound itself, where it does not belong to the range."""


def describe(tx: Tx, run: int, said: Attributes) -> None:
    tx.connection.execute(_SQL["say"], (run, said.memo, said.search, tx.now))
    if said.search is not None:
        drop_terms(tx, run)
        put_terms(tx, run, said.terms)


def put_terms(tx: Tx, run: int, terms: Sequence[Term]) -> None:
    tx.connection.executemany(_SQL["term"], [(run, safe(term.key), _stored(term.value)) for term in terms])


def drop_terms(tx: Tx, run: int) -> None:
    tx.connection.execute(_SQL["drop_terms"], (run,))


def matching(tx: Tx, workflow: str, query: ListQuery, before: int) -> Iterator[Row]:
    """Rows of one workflow's current runs, the newest instance first."""
    ranges = [_range(condition) for condition in query.search if condition.op != "="]
    for instance in _candidates(tx, workflow, query, before):
        if all(_is_in(tx, instance, one) for one in ranges):
            row = tx.connection.execute(_SQL["record"], (workflow, instance)).fetchone()
            if row is not None and row[_INSTANCE_ID].startswith(query.id_prefix or ""):
                yield row


def _candidates(tx: Tx, workflow: str, query: ListQuery, before: int) -> Iterator[int]:
    equal = [condition for condition in query.search if condition.op == "="]
    steps = [_next_equal(tx, workflow, condition) for condition in equal]
    if not query.search:
        steps.append(_next_of(_with_prefix(tx, workflow, query.id_prefix or "", before)))
    elif not equal:
        steps.append(_next_of(_between(tx, workflow, _range(query.search[0]), before)))
    if query.status is not None:
        steps.append(_next_status(tx, workflow, query.status))
    return _side_by_side(steps, before)


def _side_by_side(steps: Sequence[_Next], before: int) -> Iterator[int]:
    while (met := _common(steps, before)) is not None:
        yield met
        before = met


def _common(steps: Sequence[_Next], before: int) -> int | None:
    """The newest that all of them have: whoever is further on says where the others look next."""
    met = before - 1
    while True:
        for step in steps:
            found = step(met + 1)
            if found is None:
                return None
            if found != met:
                met = found
                break
        else:
            return met


def _next_equal(tx: Tx, workflow: str, condition: Condition) -> _Next:
    wanted = (workflow, safe(condition.key), _stored(condition.value))

    def step(before: int) -> int | None:
        found: int | None = tx.connection.execute(_SQL["next_equal"], (*wanted, before)).get
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
    bounds = (prefix, prefix + _AFTER_ALL_ID_CHARACTERS)
    return sorted(json.loads(tx.connection.execute(_SQL["with_prefix"], (workflow, *bounds, before)).get))


def _is_in(tx: Tx, instance: int, range: _Range) -> bool:
    found: int = tx.connection.execute(_SQL["has_between"], (instance, *range)).get
    return found == 1


def _range(condition: Condition) -> _Range:
    """SQLite sorts numbers before texts, and texts before those that are kept as bytes: a range has two ends."""
    value = _stored(condition.value)
    low, high = (-inf, inf) if isinstance(value, int | float) else ("", _AFTER_ALL_TEXTS)
    key, but = safe(condition.key), value if condition.op in "<>" else None
    return _Range(key, low, value, but) if condition.op.startswith("<") else _Range(key, value, high, but)


def _stored(value: str | float) -> _Value:
    return safe(value) if isinstance(value, str) else value
