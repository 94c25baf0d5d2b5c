"""Retention, and the check that goes before it: what has ended and is old enough is looked at, and then deleted.

The statement that deletes is the one of docs/production.md.
"""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import asyncpg

from chaos.database_probe import RETENTION, DatabaseProbe
from chaos.server import Server
from chaos.workload import ACCOUNTS, account_of

from .workload import Expected, expected_of, number_of

_PRODUCTION = Path(__file__).parents[2] / "docs" / "production.md"
_NINETY_DAYS = "90 * 86400"

_OLD = f"""
SELECT id, workflow, instance_id, current, status, output FROM holdfast.holdfast_run
 WHERE status IN ('complete', 'errored', 'terminated', 'cancelled')
   AND completed_at < (extract(epoch FROM now()) - {_NINETY_DAYS}) * 1000
   AND NOT EXISTS (SELECT FROM holdfast.holdfast_outlet WHERE run = id)
"""
_MAIL = """
SELECT run, type, payload, consumed_by IS NOT NULL AS taken FROM holdfast.holdfast_event
 WHERE run = ANY($1::bigint[]) AND type NOT LIKE '@%' ORDER BY run, n
"""
_OUTBOX = (
    "SELECT run, delivered_at IS NOT NULL AS delivered FROM holdfast.holdfast_outbox WHERE run = ANY($1::bigint[])"
)
_LEDGER = "SELECT run, entry, n FROM ledger WHERE run = ANY($1::text[])"
_SPEND = "DELETE FROM ledger WHERE run = ANY($1::text[])"
# Workers that died, and the receipts of their last commits, are remembered for a day.
_LEFT = """
SELECT tablename FROM pg_tables WHERE schemaname = 'holdfast'
   AND tablename NOT IN ('holdfast_meta', 'holdfast_worker', 'holdfast_receipt')
"""


def retention() -> str:
    """The statement of the documentation."""
    section = _PRODUCTION.read_text().partition("### Retention")[2]
    found = re.search(r"```sql\n(.*?)```", section, re.DOTALL)
    assert found is not None, "docs/production.md has no statement under Retention"
    assert _NINETY_DAYS in found[1]
    return found[1]


class Auditor(DatabaseProbe):
    def __init__(self, server: Server, database: str, *, age: float, deleting: bool = True) -> None:
        """``age``: how many seconds a run is kept. ``deleting``: or else for ever."""
        super().__init__(server, database, application=RETENTION)
        self.deleted = 0
        self._age = age
        self._deleting = deleting
        self._right: set[tuple[str, str]] = set()

    async def sweep(self, age: float | None = None) -> None:
        """Look at what is old enough, and delete that very same."""

        async def one(connection: asyncpg.Connection[Any]) -> int:
            async with connection.transaction(isolation="repeatable_read"):
                return await self._sweep(connection, self._age if age is None else age)

        self.deleted += await self.with_retry(one)

    async def _sweep(self, connection: asyncpg.Connection[Any], age: float) -> int:
        old = await connection.fetch(_OLD.replace(_NINETY_DAYS, str(age)))
        fresh = [row for row in old if row["current"] and (row["workflow"], row["instance_id"]) not in self._right]
        await self._check(connection, fresh)
        if not self._deleting:
            return 0
        await connection.execute(_SPEND, [row["instance_id"] for row in fresh])
        answer = await connection.execute(retention().replace(_NINETY_DAYS, str(age)).rstrip().rstrip(";"))
        return int(answer.split()[-1])

    async def _check(self, connection: asyncpg.Connection[Any], rows: Sequence[Any]) -> None:
        ids = [row["id"] for row in rows]
        mail, outbox = await connection.fetch(_MAIL, ids), await connection.fetch(_OUTBOX, ids)
        start_events, told, ledger = defaultdict(list), Counter[int](), Counter[tuple[str, str, int]]()
        for start_event in mail:
            assert start_event["taken"], f"nobody took {dict(start_event)}"
            start_events[start_event["run"]].append((start_event["type"], _value(start_event["payload"])))
        for row in outbox:
            assert row["delivered"], f"{dict(row)} was not delivered"
            told[row["run"]] += 1
        ledger.update(tuple(row) for row in await connection.fetch(_LEDGER, [row["instance_id"] for row in rows]))
        for row in rows:
            n = number_of(row["instance_id"])
            expected = expected_of(row["workflow"], n)
            _check_one(row, expected, start_events[row["id"]], told[row["id"]])
            ledger.subtract((row["instance_id"], entry, n) for entry in expected.ledger)
            self._right.add((row["workflow"], row["instance_id"]))
        assert not any(ledger.values()), f"not there once: { {key: times for key, times in ledger.items() if times} }"

    # --- at the end

    async def open_runs(self) -> int:
        return int(await self.one("SELECT count(*) FROM holdfast.holdfast_run WHERE completed_at IS NULL"))

    async def check_at_end(self, acknowledged: Path) -> int:
        """Everything that was acknowledged came out right, and nothing is left; how many runs there were."""
        await self.sweep(age=0)
        told = {tuple(line.split()) for line in acknowledged.read_text().splitlines()}
        lost = sorted(told - self._right)
        assert not lost, f"lost {len(lost)} of {len(told)}: {lost[:5]}; {await self.open_runs()} runs are open"
        assert not self.forbidden()
        await self._check_balances()
        if self._deleting:
            for row in await self.rows(_LEFT):
                left = await self.one(f"SELECT count(*) FROM holdfast.{row[0]}")
                assert left == 0, f"{left} rows are left in {row[0]}"
        return len(self._right)

    async def _check_balances(self) -> None:
        balances: Counter[int] = Counter(dict.fromkeys(range(ACCOUNTS), 0))
        for workflow, instance_id in self._right:
            if workflow == "transfer":
                balances[account_of(instance_id)] += number_of(instance_id)
        assert {row[0]: row[1] for row in await self.rows("SELECT id, balance FROM account")} == balances


def _check_one(row: Any, expected: Expected, mail: Sequence[tuple[str, Any]], told: int) -> None:
    run = f"{row['workflow']}/{row['instance_id']}"
    assert row["status"] == expected.status, f"{run} is {row['status']}"
    if expected.output is not None:
        assert _value(row["output"]) == expected.output, f"{run} came to {row['output']}"
    if row["workflow"] != "counter":  # which got numbers for as long as it lived
        assert sorted(mail, key=str) == sorted(expected.events, key=str), f"{run} got {mail}"
    assert told == expected.outbox, f"{run} told the world {told} times"


def _value(stored: bytes | None) -> Any:
    return None if stored is None else json.loads(stored)
