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
    Finish,
    Following,
    NewRun,
    Observed,
    Outbound,
    TaskRef,
)
from postgres_server import new_database

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
    finally:
        await connection.close()
        await store.close()
