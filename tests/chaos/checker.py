"""Conditions that hold while faults are injected, and conditions on the final state.

All queries bypass the engine.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from crash.workload import Planned

from .database_probe import GUARDS, DatabaseProbe
from .server import Server
from .workload import ACCOUNTS, account_of

_RESULTS = """
SELECT r.instance_id, convert_from(f.key, 'UTF8') AS key, f.seq, f.ok, f.value, f.at, f.attempts, f.event
  FROM holdfast.holdfast_fact AS f JOIN holdfast.holdfast_run AS r ON r.id = f.run WHERE f.state = 0
"""
_ATTEMPTS = """
SELECT r.instance_id, convert_from(f.key, 'UTF8') AS key, max(f.attempts) AS attempts
  FROM holdfast.holdfast_fact AS f JOIN holdfast.holdfast_run AS r ON r.id = f.run
 WHERE f.state IN (0, 2) AND f.kind = 'do' GROUP BY r.instance_id, f.key
"""
_EVENTS = """
SELECT r.instance_id, encode(e.dedup, 'escape') AS dedup, convert_from(e.consumed_by, 'UTF8') AS consumed_by
  FROM holdfast.holdfast_event AS e JOIN holdfast.holdfast_run AS r ON r.id = e.run
"""
_RUNS = "SELECT instance_id, status, output, error FROM holdfast.holdfast_run"
_OPEN = """
SELECT r.instance_id, r.status, convert_from(r.note, 'UTF8') AS note, t.owner, t.run_at, t.lease_until, t.losses
  FROM holdfast.holdfast_run AS r LEFT JOIN holdfast.holdfast_task AS t ON t.run = r.id
 WHERE r.completed_at IS NULL ORDER BY r.id LIMIT 5
"""
_LINES = """
SELECT r.instance_id FROM holdfast.holdfast_log AS l JOIN holdfast.holdfast_run AS r ON r.id = l.run
 WHERE convert_from(l.message, 'UTF8') = 'between a and b' AND NOT l.is_replay
"""
# Waits that ended before the time at which they were due.
_EARLY = """
SELECT count(*) FROM holdfast.holdfast_fact AS started JOIN holdfast.holdfast_fact AS ended USING (run, key)
 WHERE started.state = 1 AND started.wake_at IS NOT NULL AND ended.state = 0 AND ended.event IS NULL
   AND ended.at < started.wake_at
"""
_TIMES = """
SELECT min(least(at, started_at)) AS first, max(greatest(at, started_at)) AS last FROM holdfast.holdfast_fact
"""
_SESSIONS = """
SELECT pid, usename, state, wait_event, pg_blocking_pids(pid) AS blocked_by, left(query, 80) AS query
  FROM pg_stat_activity
 WHERE datname = current_database() AND pid <> pg_backend_pid() AND (state <> 'idle' OR wait_event_type = 'Lock')
"""
_NOW = "SELECT floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint"


class Checker(DatabaseProbe):
    """Checks a database and the side file in which steps record their executions."""

    def __init__(self, server: Server, database: str, side: Path, plan: Iterable[Planned]) -> None:
        super().__init__(server, database)
        self._side = side
        self._plan: dict[str, Planned] = {}
        self.expect(plan)
        self._results: dict[tuple[str, str], tuple[Any, ...]] = {}
        self._began = 0
        self.snapshots = 0
        self.losses = 0
        """Number of times that a worker died or was stopped."""

    def expect(self, plan: Iterable[Planned]) -> None:
        """Add expected runs."""
        self._plan |= {planned.id: planned for planned in plan}

    async def prepare(self, tables: str) -> None:
        await self.execute(tables + GUARDS)
        self._began = await self.one(_NOW)

    # --- reading

    def side(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self._side.read_text().splitlines()] if self._side.exists() else []

    def ran(self) -> list[tuple[str, str, int]]:
        """Every execution of a step: run, key, attempt."""
        return [(line["run"], line["key"], line["attempt"]) for line in self.side() if "run" in line]

    async def open_runs(self) -> int:
        ended = "SELECT count(*) FROM holdfast.holdfast_run WHERE completed_at IS NOT NULL"
        return len(self._plan) - int(await self.one(ended))

    async def complete(self) -> bool:
        return await self.open_runs() <= 0

    async def describe(self) -> str:
        """The state for the report of a failure."""
        open_runs = [dict(row) for row in await self.rows(_OPEN)]
        busy = [dict(row) for row in await self.rows(_SESSIONS)]
        return (
            f"{await self.open_runs()} of {len(self._plan)} runs are open, such as {open_runs}\n"
            f"the server is busy with {busy}\nforbidden: {self.forbidden()}"
        )

    # --- checks at any moment

    async def snapshot(self) -> None:
        """Check what holds at any moment: acknowledged writes exist, no result changed, no step began too early."""
        side = self.side()  # read first: its entries must be in the database by now
        before, rows = self._results, await self.rows(_RESULTS)
        self._results = {(row[0], row[1]): tuple(row)[2:] for row in rows}
        for key, result in before.items():
            assert self._results.get(key) == result, f"{key} was {result} and is {self._results.get(key)}"
        for line in side:
            for key in line.get("needs", ()):
                assert (line["run"], key) in self._results, f"{line} began before {key!r} was durable"
        await self._check_acknowledged(side)
        assert not self.forbidden()
        self.snapshots += 1

    async def _check_acknowledged(self, side: Iterable[dict[str, Any]]) -> None:
        runs = {row[0] for row in await self.rows("SELECT instance_id FROM holdfast.holdfast_run")}
        events = Counter((row[0], row[1]) for row in await self.rows(_EVENTS))
        for line in side:
            if line.get("acknowledged") == "start":
                assert line["id"] in runs, f"{line} is lost"
            elif line.get("acknowledged") == "event":
                times = events[line["id"], line["event"]]
                assert times == 1, f"{line} is there {times} times"

    # --- checks at the end

    async def check_at_end(self) -> None:
        """Check that the final state is the planned one."""
        await self.snapshot()
        await self._check_outcomes()
        await self._check_events()
        await self._check_ledger()
        await self._check_times()
        await self._check_executions()
        logged = Counter(row[0] for row in await self.rows(_LINES))
        assert logged == Counter(p.id for p in self._plan.values() if p.workflow == "sequence")
        assert await self.one("SELECT count(*) FROM holdfast.holdfast_task") == 0

    async def _check_outcomes(self) -> None:
        found = {
            run: (status, output if output is None else json.loads(output), error)
            for run, status, output, error in await self.rows(_RUNS)
        }
        expected = {p.id: ("complete", p.expected, None) for p in self._plan.values()}
        wrong = {run: found.get(run) for run, outcome in expected.items() if found.get(run) != outcome}
        assert not wrong, f"{len(wrong)} runs have other results than expected, such as {dict(list(wrong.items())[:5])}"
        assert len(found) == len(expected), f"unexpected runs: {set(found) - set(expected)}"

    async def _check_events(self) -> None:
        rows = await self.rows(_EVENTS)
        assert Counter(row[0] for row in rows) == Counter(p.id for p in self._plan.values() for _ in p.events)
        assert all(row["consumed_by"] is not None for row in rows)
        assert len({(row[0], row["consumed_by"]) for row in rows}) == len(rows)

    async def _check_ledger(self) -> None:
        expected = Counter((p.id, entry, p.n) for p in self._plan.values() for entry in p.ledger)
        found = Counter(tuple(row) for row in await self.rows("SELECT run, entry, n FROM ledger"))
        assert found == expected, f"more: {found - expected}, less: {expected - found}"
        balances: Counter[int] = Counter(dict.fromkeys(range(ACCOUNTS), 0))
        for p in self._plan.values():
            if p.workflow == "transfer":
                balances[account_of(p.id)] += p.n
        assert {row[0]: row[1] for row in await self.rows("SELECT id, balance FROM account")} == balances

    async def _check_times(self) -> None:
        """Check that no wait ended early and that no stored time is from a wrong clock."""
        assert await self.one(_EARLY) == 0
        [times] = await self.rows(_TIMES)
        if times["first"] is not None:
            slack = 2_000  # a worker reads the database's time only at intervals
            assert self._began - slack <= times["first"]
            assert times["last"] <= await self.one(_NOW) + slack

    async def _check_executions(self) -> None:
        """Check that steps ran as often as recorded, except for attempts lost with a worker or a connection."""
        recorded = {(row[0], row[1]): row[2] for row in await self.rows(_ATTEMPTS)}
        for (run, key), times in Counter((run, key) for run, key, _ in self.ran()).items():
            assert times <= recorded[run, key] + self.losses, f"{run} {key} ran {times} times"
        for run, key, attempt in self.ran():
            if not self._plan[run].buffered:
                assert attempt <= recorded[run, key], f"{run} {key}: attempt {attempt} of {recorded[run, key]}"
