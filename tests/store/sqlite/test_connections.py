"""Runs and events on the caller's connection are committed or rolled back with the caller's transaction."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import apsw
import pytest

from holdfast.errors import AppClosedError, InvalidOptionError, StoreBusyError, StoreUnavailableError
from holdfast.store.protocol import (
    Attributes,
    Condition,
    Expiry,
    FactsQuery,
    NewEvent,
    NewRun,
    OnConflict,
    RelationsQuery,
    StartEvent,
    TaskRef,
    Term,
    Watch,
)
from holdfast.store.sqlite import SqliteStore
from store.world import FLOW, LEASE, FakeClock, World, done, pid, plan, unit


@pytest.fixture
def mine(store: SqliteStore, path: str) -> Iterator[apsw.Connection]:
    """The caller's connection, to a file that has a table of the caller."""
    connection = apsw.Connection(path)
    connection.execute("CREATE TABLE orders (n INTEGER PRIMARY KEY)")
    yield connection
    connection.close()


def orders(connection: apsw.Connection) -> int:
    return int(connection.execute("SELECT count(*) FROM orders").get)


async def test_a_committed_run_can_be_read_and_claimed(world: World, store: SqliteStore, mine: apsw.Connection) -> None:
    mine.execute("BEGIN; INSERT INTO orders VALUES (1)")
    [created] = await store.create([NewRun(FLOW, "a", b"7")], connection=mine)
    assert created.created
    assert mine.in_transaction
    assert await world.ids() == []

    mine.execute("COMMIT")

    claim = await world.claim_one()
    assert (claim.run.run, claim.run.instance_id, claim.run.params) == (created.run.run, "a", b"7")
    assert orders(mine) == 1


async def test_chains_and_graphs_can_be_created_on_the_callers_connection(
    world: World, store: SqliteStore, mine: apsw.Connection
) -> None:
    graph = NewRun(FLOW, "g", kind="graph", units=[unit(1), unit(2, 1)], owner="w1", lease_ms=LEASE, claim_limit=1)
    with mine:
        chain, made = await store.create([NewRun(FLOW, "c", kind="chain", plan=[plan("s")]), graph], connection=mine)

    assert await store.read(FactsQuery(chain.run.run)) == [plan("s")]
    assert await world.starts(made.run.run) == [("a", 1)]
    advanced = await world.advance(done(TaskRef(made.run.run, 1, "w1", 1), 2), claim_limit=1)
    assert [one.unit for one in advanced.claimed] == [2]


async def test_a_rolled_back_graph_leaves_no_rows(world: World, store: SqliteStore, mine: apsw.Connection) -> None:
    mine.execute("BEGIN")
    [made] = await store.create([NewRun(FLOW, "g", units=[unit(1)], plan=[plan("meta")])], connection=mine)

    mine.execute("ROLLBACK")

    assert await store.read(FactsQuery(made.run.run)) == []
    assert await world.claimed_units() == []


async def test_a_rollback_of_the_caller_removes_runs_and_events(
    world: World, store: SqliteStore, mine: apsw.Connection
) -> None:
    run = await world.start_waiting("waits", "go")
    mine.execute("BEGIN; INSERT INTO orders VALUES (1)")
    await store.create([NewRun(FLOW, "a")], connection=mine)
    [sent] = await store.send([NewEvent(FLOW, "waits", "go")], connection=mine)
    assert sent.woken

    mine.execute("ROLLBACK")

    assert orders(mine) == 0
    assert await world.ids() == ["waits"]
    assert await world.undelivered(run.run) == []
    assert await world.claimed_ids() == []
    assert (await world.create("a")).created


async def test_an_event_wakes_its_run_when_it_is_committed(
    world: World, store: SqliteStore, mine: apsw.Connection
) -> None:
    await world.start_waiting("a", "go")
    mine.execute("BEGIN IMMEDIATE")
    [sent] = await store.send([NewEvent(FLOW, "a", "go", b"1")], connection=mine)
    assert (sent.accepted, sent.woken) == (True, True)

    mine.execute("COMMIT")

    assert [(event.type, event.payload) for event in (await world.claim_one()).mailbox_page.events] == [("go", b"1")]


async def test_a_run_can_be_created_and_sent_to_in_one_transaction(
    world: World, store: SqliteStore, mine: apsw.Connection
) -> None:
    with mine:
        await store.create([NewRun(FLOW, "a"), NewRun(FLOW, "b"), NewRun(FLOW, "a")], connection=mine)
        [again] = await store.create([NewRun(FLOW, "a")], connection=mine)
        await store.send([NewEvent(FLOW, "b", "go")], connection=mine)

    assert not again.created
    assert await world.ids() == ["b", "a"]
    assert [len(claim.mailbox_page.events) for claim in (await world.claim()).claims] == [0, 1]


async def test_start_events_attributes_parent_and_asks_are_written_too(
    world: World, store: SqliteStore, mine: apsw.Connection
) -> None:
    parent, old = await world.start_claimed("p"), await world.start_claimed("old")
    attributes = Attributes(b"1", b"{}", [Term("k", 1)])
    with mine:
        made, again = await store.create(
            [
                NewRun(
                    FLOW,
                    "a",
                    attributes=attributes,
                    start_events=[StartEvent("hello", b"1")],
                    parent=pid("p"),
                    parent_run=parent.run,
                    expires_ms=5,
                    expiry=Expiry.RUN,
                ),
                NewRun(FLOW, "old", on_conflict=OnConflict.TERMINATE_EXISTING),
            ],
            connection=mine,
        )
        await store.send([NewEvent(FLOW, "a", "ask", dedup="k", ask="q")], connection=mine)

    assert (made.run, again.run.number) == (await world.find("a"), 1)
    assert again.affected is not None
    assert again.affected.ended == [old.run]
    assert [(event.type, event.ask) for event in await world.undelivered(made.run.run)] == [
        ("hello", None),
        ("ask", "q"),
    ]
    assert await world.ids(search=[Condition("k", "=", 1)]) == ["a"]
    assert (await store.read(RelationsQuery(made.run.run))).watched_by == [(pid("p"), Watch.MONITOR)]


async def test_without_an_open_transaction_the_call_commits_at_once(
    world: World, store: SqliteStore, mine: apsw.Connection
) -> None:
    [created] = await store.create([NewRun(FLOW, "a")], connection=mine)

    assert not mine.in_transaction
    assert created.created
    assert await world.ids() == ["a"]
    assert (await world.start("b")).run > created.run.run


async def test_without_an_open_transaction_the_call_is_atomic(
    world: World, store: SqliteStore, mine: apsw.Connection, path: str
) -> None:
    other = apsw.Connection(path)

    def intrude(_: apsw.Cursor, sql: str, __: object) -> bool:
        if sql.startswith("INSERT INTO holdfast_run"):
            with suppress(apsw.BusyError):
                other.execute("INSERT INTO orders VALUES (1)")
        return True

    mine.exec_trace = intrude
    await store.create([NewRun(FLOW, "a")], connection=mine)

    assert await world.ids() == ["a"]
    assert orders(mine) == 0


@pytest.mark.parametrize("open_transaction", [False, True])
async def test_a_failed_call_is_rolled_back_without_the_callers_writes(
    world: World, store: SqliteStore, mine: apsw.Connection, open_transaction: bool
) -> None:
    if open_transaction:
        mine.execute("BEGIN; INSERT INTO orders VALUES (1)")
    unfit: Any = object()

    with pytest.raises(TypeError):
        await store.create([NewRun(FLOW, "a"), NewRun(FLOW, "b", params=unfit)], connection=mine)

    assert mine.in_transaction is open_transaction
    if open_transaction:
        mine.execute("COMMIT")
        assert orders(mine) == 1
    assert await world.ids() == []


async def test_runs_on_the_callers_connection_have_the_stores_time(
    world: World, store: SqliteStore, mine: apsw.Connection
) -> None:
    [created] = await store.create([NewRun(FLOW, "a")], connection=mine)

    assert created.run.created_at == (await world.find("a")).created_at == world.now()


async def test_the_callers_row_tracer_and_cursor_factory_do_not_matter(
    world: World, store: SqliteStore, mine: apsw.Connection
) -> None:
    class Odd(apsw.Cursor):
        def fetchone(self) -> Any:
            raise AssertionError

    def shape(_: apsw.Cursor, row: Any) -> Any:
        return {"row": row}

    mine.row_trace, mine.cursor_factory = shape, Odd
    await store.create([NewRun(FLOW, "a")], connection=mine)
    await store.create([NewRun(FLOW, "a")], connection=mine)
    await store.send([NewEvent(FLOW, "a", "go")], connection=mine)

    assert (mine.row_trace, mine.cursor_factory) == (shape, Odd)
    assert len((await world.claim_one()).mailbox_page.events) == 1


async def test_another_store_notices_the_callers_commit(store: SqliteStore, mine: apsw.Connection) -> None:
    before = await store.wait_for_change(None)
    mine.execute("BEGIN")
    await store.create([NewRun(FLOW, "a")], connection=mine)
    assert await store.wait_for_change(before) == before

    mine.execute("COMMIT")

    assert await store.wait_for_change(before) != before


async def test_the_store_waits_for_the_caller(world: World, store: SqliteStore, mine: apsw.Connection) -> None:
    mine.execute("BEGIN IMMEDIATE")
    waiting = asyncio.create_task(world.start("b"))
    await world.ids()

    await store.create([NewRun(FLOW, "a")], connection=mine)
    mine.execute("COMMIT")
    await waiting

    assert await world.ids() == ["b", "a"]


async def test_a_file_locked_by_another_connection_raises_store_busy(
    store: SqliteStore, mine: apsw.Connection, path: str
) -> None:
    other = apsw.Connection(path)
    other.execute("BEGIN IMMEDIATE")
    mine.set_busy_timeout(20)

    with pytest.raises(StoreBusyError, match=r"for 0\.02 s"):
        await store.create([NewRun(FLOW, "a")], connection=mine)

    other.execute("ROLLBACK")
    assert not mine.in_transaction
    await store.create([NewRun(FLOW, "a")], connection=mine)


# --- connections that are accepted


async def test_another_kind_of_connection_is_refused(store: SqliteStore) -> None:
    for wrong in ("connection", 7):
        with pytest.raises(InvalidOptionError, match=r"must be an apsw\.Connection to .*store\.db"):
            await store.create([NewRun(FLOW, "a")], connection=wrong)
        with pytest.raises(InvalidOptionError, match="apsw"):
            await store.send([NewEvent(FLOW, "a", "go")], connection=wrong)


async def test_a_connection_to_another_database_is_refused(world: World, store: SqliteStore, tmp_path: Path) -> None:
    other = str(tmp_path / "other.db")
    attached = apsw.Connection(other)
    attached.execute("ATTACH ? AS store", (str(tmp_path / "store.db"),))

    for wrong in (apsw.Connection(other), apsw.Connection(":memory:"), apsw.Connection(""), attached):
        with pytest.raises(InvalidOptionError, match=r"must be a connection to .*store\.db"):
            await store.create([NewRun(FLOW, "a")], connection=wrong)

    assert await world.ids() == []


async def test_a_closed_connection_is_refused(store: SqliteStore, mine: apsw.Connection) -> None:
    mine.close()

    with pytest.raises(InvalidOptionError, match="closed"):
        await store.create([NewRun(FLOW, "a")], connection=mine)


async def test_the_same_file_by_another_name_is_accepted(world: World, store: SqliteStore, tmp_path: Path) -> None:
    (tmp_path / "link.db").symlink_to(tmp_path / "store.db")

    await store.create([NewRun(FLOW, "a")], connection=apsw.Connection(str(tmp_path / "link.db")))

    assert await world.ids() == ["a"]


async def test_a_store_in_memory_refuses_a_connection(clock: FakeClock) -> None:
    store = SqliteStore(None, clock=clock)
    await store.open()

    with pytest.raises(InvalidOptionError, match="in memory"):
        await store.create([NewRun(FLOW, "a")], connection=apsw.Connection(":memory:"))

    await store.close()


async def test_a_deleted_file_is_noticed(store: SqliteStore, mine: apsw.Connection, path: str) -> None:
    Path(path).rename(path + ".old")

    with pytest.raises(StoreUnavailableError, match="deleted or replaced"):
        await store.create([NewRun(FLOW, "a")], connection=mine)


async def test_a_closed_store_refuses_a_connection(store: SqliteStore, mine: apsw.Connection) -> None:
    await store.close()

    with pytest.raises(AppClosedError):
        await store.create([NewRun(FLOW, "a")], connection=mine)
