"""Checks runs that ended some time ago, and deletes them as retention does."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import asyncpg

from chaos.database_probe import RETENTION, DatabaseProbe
from chaos.server import Server
from chaos.workload import ACCOUNTS, account_of
from holdfast.core.model import Status
from holdfast.store.postgres import prune
from holdfast.store.postgres.tx import Tx
from holdfast.store.protocol import PrunePosition, PruneRuns

from .workload import COUNTER, STARTED, Expected, expected_of, number_of

_NOW = "SELECT (extract(epoch FROM now()) * 1000)::bigint"
_OLD = """
SELECT id, workflow, instance_id, current, status, output, completed_at FROM holdfast.holdfast_run
 WHERE status IN ('complete', 'errored', 'terminated', 'cancelled')
   AND completed_at <= $1
   AND NOT EXISTS (SELECT FROM holdfast.holdfast_outlet WHERE run = id)
"""
_EVENTS = """
SELECT run, type, payload, consumed_by IS NOT NULL AS consumed FROM holdfast.holdfast_event
 WHERE run = ANY($1::bigint[]) AND type NOT LIKE '@%' ORDER BY run, n
"""
_OUTBOX = (
    "SELECT run, delivered_at IS NOT NULL AS delivered FROM holdfast.holdfast_outbox WHERE run = ANY($1::bigint[])"
)
_LEDGER = "SELECT run, entry, n FROM ledger WHERE run = ANY($1::text[])"
_DELETE_LEDGER = "DELETE FROM ledger WHERE run = ANY($1::text[])"
# Rows of dead workers, and the receipts of their last commits, are kept for a day; audit records and counts for ever.
_LEFT = """
SELECT tablename FROM pg_tables WHERE schemaname = 'holdfast'
   AND tablename NOT IN ('holdfast_meta', 'holdfast_worker', 'holdfast_receipt', 'holdfast_audit', 'holdfast_tally')
"""


class Auditor(DatabaseProbe):
    def __init__(self, server: Server, database: str, finished: Path, *, age: float, deleting: bool = True) -> None:
        """``finished``: the file of the runs that the client has finished with; others that it started are kept.

        ``age``: seconds after its end at which a run is deleted. ``deleting``: False to check runs and keep them.
        """
        super().__init__(server, database, application=RETENTION)
        self.deleted = 0
        self._finished = finished
        self._age = age
        self._deleting = deleting
        self._correct: set[tuple[str, str]] = set()

    async def sweep(self, age: float | None = None) -> None:
        """Check the runs that ended ``age`` seconds ago, and delete the same runs."""

        async def one(connection: asyncpg.Connection[Any]) -> int:
            async with connection.transaction(isolation="repeatable_read"):
                return await self._sweep(connection, self._age if age is None else age)

        self.deleted += await self.with_retry(one)

    async def _sweep(self, connection: asyncpg.Connection[Any], age: float) -> int:
        now, age_ms = await connection.fetchval(_NOW), round(age * 1000)
        # The same bound as in ``_prune``: a run that is deleted but not listed here would count as lost.
        old = await connection.fetch(_OLD, now - age_ms)
        # A client that repeats a start or a read whose reply was lost must find the run, as with a long retention.
        if needed := self._needed(old):
            age_ms = now - min(needed) + 1
            old = [row for row in old if row["completed_at"] <= now - age_ms]
        fresh = [row for row in old if row["current"] and (row["workflow"], row["instance_id"]) not in self._correct]
        await self._check(connection, fresh)
        if not self._deleting:
            return 0
        await connection.execute(_DELETE_LEDGER, [row["instance_id"] for row in fresh])
        return sum([await _prune(connection, status, now, age_ms) for status in Status if status.terminal])

    def _needed(self, old: Sequence[Any]) -> list[int]:
        """When those of these runs ended that the client has started and not finished with."""
        finished = _lines(self._finished)
        return [
            row["completed_at"]
            for row in old
            if row["current"]
            and row["workflow"] in (*STARTED, COUNTER)
            and (row["workflow"], row["instance_id"]) not in finished
        ]

    async def _check(self, connection: asyncpg.Connection[Any], rows: Sequence[Any]) -> None:
        ids = [row["id"] for row in rows]
        events, outbox = await connection.fetch(_EVENTS, ids), await connection.fetch(_OUTBOX, ids)
        received, delivered, ledger = defaultdict(list), Counter[int](), Counter[tuple[str, str, int]]()
        for event in events:
            assert event["consumed"], f"{dict(event)} was not consumed"
            received[event["run"]].append((event["type"], _value(event["payload"])))
        for row in outbox:
            assert row["delivered"], f"{dict(row)} was not delivered"
            delivered[row["run"]] += 1
        ledger.update(tuple(row) for row in await connection.fetch(_LEDGER, [row["instance_id"] for row in rows]))
        for row in rows:
            n = number_of(row["instance_id"])
            expected = expected_of(row["workflow"], n)
            _check_one(row, expected, received[row["id"]], delivered[row["id"]])
            ledger.subtract((row["instance_id"], entry, n) for entry in expected.ledger)
            self._correct.add((row["workflow"], row["instance_id"]))
        wrong = {key: times for key, times in ledger.items() if times}
        assert not wrong, f"rows of the ledger, too many (> 0) or too few (< 0): {wrong}"

    # --- at the end

    async def open_runs(self) -> int:
        return int(await self.one("SELECT count(*) FROM holdfast.holdfast_run WHERE completed_at IS NULL"))

    async def check_at_end(self, acknowledged: Path) -> int:
        """Check that every acknowledged run has its expected end, and no row is left; returns the number of runs."""
        await self.sweep(age=0)
        started = _lines(acknowledged)
        lost = sorted(started - self._correct)
        assert not lost, f"lost {len(lost)} of {len(started)}: {lost[:5]}; {await self.open_runs()} runs are open"
        assert not self.forbidden()
        await self._check_balances()
        if self._deleting:
            for row in await self.rows(_LEFT):
                left = await self.one(f"SELECT count(*) FROM holdfast.{row[0]}")
                assert left == 0, f"{left} rows are left in {row[0]}"
        return len(self._correct)

    async def _check_balances(self) -> None:
        balances: Counter[int] = Counter(dict.fromkeys(range(ACCOUNTS), 0))
        for workflow, instance_id in self._correct:
            if workflow == "transfer":
                balances[account_of(instance_id)] += number_of(instance_id)
        assert {row[0]: row[1] for row in await self.rows("SELECT id, balance FROM account")} == balances


async def _prune(connection: asyncpg.Connection[Any], status: Status, now: int, age_ms: int) -> int:
    """Delete the runs with this status that ended long ago, in the caller's transaction; returns their number."""
    tx, position, deleted = Tx(connection, "holdfast", now, "soak"), PrunePosition(), 0
    while True:
        pruned = await prune.prune(tx, PruneRuns(None, status, age_ms, after=position, limit=1000))
        deleted += pruned.runs
        if pruned.next is None:
            return deleted
        position = pruned.next


def _check_one(row: Any, expected: Expected, events: Sequence[tuple[str, Any]], delivered: int) -> None:
    run = f"{row['workflow']}/{row['instance_id']}"
    assert row["status"] == expected.status, f"{run} is {row['status']}"
    if expected.output is not None:
        assert _value(row["output"]) == expected.output, f"{run} has the output {row['output']}"
    if row["workflow"] != "counter":  # the number of its events depends on the length of the soak
        assert sorted(events, key=str) == sorted(expected.events, key=str), f"{run} received {events}"
    assert delivered == expected.outbox, f"{run} has {delivered} outbound events"


def _lines(file: Path) -> set[tuple[str, ...]]:
    """The runs in a file of the client, which may be writing the last line."""
    written = file.read_text() if file.exists() else ""
    return {tuple(line.split()) for line in written[: written.rfind("\n") + 1].splitlines()}


def _value(stored: bytes | None) -> Any:
    return None if stored is None else json.loads(stored)
