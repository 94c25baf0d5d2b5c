"""All bytes and texts are read as they were written, including NUL and strings that are not valid Unicode."""

from __future__ import annotations

import json
from itertools import count

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from holdfast.core.model import Status
from holdfast.store.protocol import (
    Attributes,
    Condition,
    CurrentRuns,
    Delivery,
    EventsQuery,
    LogsQuery,
    NewRun,
    NextRun,
    Park,
    Reply,
    ReplyQuery,
    ReplyToEvent,
    SnapshotQuery,
    Term,
)
from store.world import FLOW, World, log_line, result, turn

pytestmark = pytest.mark.promise("clear-errors")

texts = st.text(st.characters(), max_size=30) | st.text(st.characters(categories=["Cs"]), min_size=1, max_size=3)
payloads = st.none() | st.binary(max_size=100)
# The store reads start policies from the options of a run, so options are JSON objects.
stored_options = st.none() | texts.map(lambda text: json.dumps({"context": {"single": text}}).encode())
numbers = st.integers(-(2**63), 2**63 - 1)
ids = (f"r{n}" for n in count())

# Each example has its own ids. The speed of generation does not matter here.
_checks = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
_settings = settings(max_examples=60, deadline=None, suppress_health_check=_checks)


@_settings
@given(st.lists(texts, min_size=1, max_size=5, unique=True), payloads, texts, numbers)
@example(["\0", "a\0b", "\ud800", "\udfff\0", ""], b"\0\xff", "\ud800", 2**63 - 1)
async def test_any_fact_is_read_as_it_was_written(
    world: World, keys: list[str], value: bytes | None, title: str, number: int
) -> None:
    task = await world.start_claimed(next(ids))
    facts = [result(key, value=value, name=title, at=number) for key in keys]

    await world.store.commit([turn(task, facts=facts)])

    stored = await world.facts(task.run)
    assert sorted(stored) == sorted(facts)
    assert sorted((await world.store.read(SnapshotQuery(task.run))).facts) == sorted(facts)


@_settings
@given(texts, payloads, st.none() | texts)
@example("\0\ud800", b"", "\udc80")
async def test_any_log_is_read_as_it_was_written(
    world: World, message: str, data: bytes | None, key: str | None
) -> None:
    task = await world.start_claimed(next(ids))
    written = log_line(message, data=data, step_key=key)

    await world.commit(task, logs=[written])

    [stored] = await world.store.read(LogsQuery(task.run))
    assert stored.log == written


@_settings
@given(payloads, texts, texts, texts)
@example(b"\0", "\ud800", "\udfff", "\ud800\0")
async def test_any_event_is_read_as_it_was_written(
    world: World, payload: bytes | None, sender: str, dedup: str, key: str
) -> None:
    name = next(ids)
    task = await world.start_claimed(name)

    await world.send("go", name, payload=payload, sender=sender, dedup=dedup)
    again = await world.send("go", name, dedup=dedup)
    await world.commit(task, deliveries=[Delivery(1, key, 1)])

    [stored] = await world.store.read(EventsQuery(task.run))
    assert again.duplicate
    assert (stored.payload, stored.sender, stored.consumed_by) == (payload, sender, key)


@_settings
@given(payloads, texts, numbers)
@example(b"", "\ud800", -1)
async def test_any_run_is_read_as_it_was_written(world: World, params: bytes | None, note: str, seed: int) -> None:
    name = next(ids)
    await world.store.create([NewRun(FLOW, name, params, seed=seed)])
    parked = await world.start_claimed(name + "-parked")
    await world.commit(parked, then=Park(note))
    await world.terminate(name, note)

    run = await world.find(name)
    assert (run.params, run.seed, run.note) == (params, seed, note)
    assert (await world.find(name + "-parked")).note == note


@_settings
@given(stored_options, payloads, payloads, texts)
@example(b'{"context": {"single": "\\u0000 \\ud800"}}', b"\0", b"\xff", "\ud800\0")
async def test_options_and_attributes_of_a_run_are_read_as_they_were_written(
    world: World, options: bytes | None, memo: bytes | None, search: bytes | None, note: str
) -> None:
    name = next(ids)
    made = await world.create(name, options=options, attributes=Attributes(memo, search))
    task = (await world.claim_one()).task

    await world.finish(task, Status.ERRORED, note=note, next=NextRun(None))

    old, new = await world.find(name, 0), await world.find(name, 1)
    assert [(run.options, run.memo, run.search) for run in (made.run, old, new)] == [(options, memo, search)] * 3
    assert old.note == note
    await world.terminate(name)


@_settings
@given(texts, texts, payloads)
@example("\ud800", "\0", b"\xff")
async def test_any_ask_and_reply_are_read_as_they_were_written(
    world: World, dedup: str, ask: str, value: bytes | None
) -> None:
    name = next(ids)
    task = await world.start_claimed(name)
    await world.send("ask", name, dedup=dedup, ask=ask)

    await world.operate(task, ReplyToEvent(1, Reply(True, value)))

    [event] = await world.undelivered(task.run)
    assert event.ask == ask
    assert await world.store.read(ReplyQuery(task.run, dedup)) == Reply(True, value)


@_settings
@given(texts, texts | numbers | st.floats(allow_nan=False, allow_infinity=False))
@example("\ud800", "\udfff\0")
@example("\0", 2**63 - 1)
async def test_a_run_is_found_by_any_search_term(world: World, key: str, value: str | float) -> None:
    name = next(ids)
    await world.create(name, attributes=Attributes(None, b"{}", [Term(key, value)]))

    for op in ("=", "<=", ">="):
        found = await world.store.read(CurrentRuns(search=[Condition(key, op, value)], limit=1))
        assert [run.instance_id for run in found] == [name]
    assert name not in await world.ids(search=[Condition(key, "<", value)], limit=1)
