"""Every SQL statement of docs/production.md runs on a database that is in use."""

from __future__ import annotations

import re
from pathlib import Path

import asyncpg
import pytest

from holdfast.core.model import Status
from holdfast.ports import SystemRandomness
from holdfast.store.postgres import PostgresStore
from holdfast.store.protocol import (
    Commit,
    Delivered,
    Delivery,
    Finish,
    Following,
    NewRun,
    Observed,
    Outbound,
    OutboxClaimRequest,
    RunByName,
    RunsById,
    TaskRef,
)
from postgres_server import new_database
from store.world import FLOW, World

PAGE = Path(__file__).parents[3] / "docs" / "production.md"
STATEMENTS = [
    statement
    for block in re.findall(r"```sql\n(.*?)```", PAGE.read_text(), re.DOTALL)
    for statement in block.split(";")
    if statement.strip()
]


@pytest.mark.parametrize("statement", STATEMENTS, ids=[s.split()[0] + str(n) for n, s in enumerate(STATEMENTS)])
async def test_a_statement_of_the_production_page_runs(statement: str) -> None:
    url = new_database()
    store = PostgresStore(url, random=SystemRandomness())
    await store.open()
    connection = await asyncpg.connect(url)
    try:
        await store.create([NewRun("flow", "waits", b"1")])
        [created] = await store.create([NewRun("flow", "ends", b"1", owner="w", lease_ms=1000)])
        task = TaskRef(created.run.run, 0, "w", created.epoch)
        await store.commit([Commit(task, following=Following(next=Finish(Status.COMPLETE, output=b"1")))])
        [created] = await store.create([NewRun("flow", "says", b"1", owner="w", lease_ms=1000)])
        task = TaskRef(created.run.run, 0, "w", created.epoch)
        observed = Observed(outbox=[Outbound("t", None, "s")])
        await store.commit([Commit(task, observed, Following(next=Finish(Status.COMPLETE, output=b"1")))])
        if statement.split(maxsplit=1)[0] in ("GRANT", "CREATE"):
            statement = statement.replace("CREATE ROLE shop LOGIN", "SELECT 1").replace("TO shop", "TO PUBLIC")
        rows = await connection.fetch(statement)
        if "oldest_s" in statement:
            assert [row["workflow"] for row in rows] == ["flow"]
        if "WITH old" in statement:
            await connection.execute("UPDATE holdfast.holdfast_run SET completed_at = 1 WHERE completed_at IS NOT NULL")
            await connection.execute(statement)
            assert [run.instance_id for run in await store.runs(RunsById([1, 2, 3]))] == ["waits", "says"]
            [event] = (await store.claim_outbox(OutboxClaimRequest("w", 1000, 9))).rows
            await store.settle_outbox("w", [Delivered(event.run, event.n)])
            await connection.execute(statement)
            assert (await store.runs(RunsById([3])), await store.outbox(3)) == ([], [])
    finally:
        await connection.close()
        await store.close()


async def test_deleting_an_old_run_deletes_the_dedup_keys_of_its_events(
    world: World, other: asyncpg.Connection
) -> None:
    [retention] = [statement for statement in STATEMENTS if "WITH old" in statement]
    task = await world.start_claimed("a")
    await world.send("go", dedup="early")
    await world.commit(task, deliveries=[Delivery(1, "s", 1)])
    task = await world.continue_claimed(task)
    await world.send("go", dedup="late")
    assert (await world.send("go", dedup="early")).duplicate

    await other.execute("UPDATE holdfast.holdfast_run SET completed_at = 1 WHERE completed_at IS NOT NULL")
    await other.execute(retention)

    assert not await world.store.runs(RunByName(FLOW, "a", 0))
    assert [(await world.send("go", dedup=key)).duplicate for key in ("early", "late")] == [False, True]
