"""Checks a database after a process was killed, and when all runs have ended.

The checker reads the database through its own connection, and the side file directly. It does not use the engine.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import apsw

from .workload import Planned

# Triggers that abort a transaction of the engine which breaks a promise.
GUARDS = """
CREATE TRIGGER fact_never_changes BEFORE UPDATE ON holdfast_fact WHEN old.state <> 7
    BEGIN SELECT raise(ABORT, 'a fact was changed'); END;
CREATE TRIGGER fact_never_goes BEFORE DELETE ON holdfast_fact
    BEGIN SELECT raise(ABORT, 'a fact was deleted'); END;
CREATE TRIGGER end_is_final BEFORE UPDATE ON holdfast_run WHEN old.completed_at IS NOT NULL
    BEGIN SELECT raise(ABORT, 'a finished run was changed'); END;
CREATE TRIGGER event_never_goes BEFORE DELETE ON holdfast_event
    BEGIN SELECT raise(ABORT, 'an event was deleted'); END;
CREATE TRIGGER event_is_consumed_once BEFORE UPDATE ON holdfast_event WHEN old.delivered_at IS NOT NULL
    BEGIN SELECT raise(ABORT, 'an event was consumed twice'); END;
"""

_RESULTS = """
SELECT r.instance_id, f.key, f.seq, f.ok, f.value, f.at, f.attempts, f.event
  FROM holdfast_fact AS f JOIN holdfast_run AS r ON r.id = f.run WHERE f.state = 0
"""
_ATTEMPTS = """
SELECT r.instance_id, f.key, max(f.attempts) FROM holdfast_fact AS f JOIN holdfast_run AS r ON r.id = f.run
 WHERE f.state IN (0, 2) AND f.kind = 'do' GROUP BY f.run, f.key
"""
_EVENTS = """
SELECT r.instance_id, e.dedup, e.consumed_by FROM holdfast_event AS e JOIN holdfast_run AS r ON r.id = e.run
"""
_OPEN = "SELECT instance_id, status, note FROM holdfast_run WHERE completed_at IS NULL ORDER BY id LIMIT 5"


class Ran(NamedTuple):
    """One execution of a step."""

    run: str
    key: str
    attempt: int
    needs: tuple[str, ...]
    pid: int
    ms: int


class Checker:
    def __init__(self, database: Path, side: Path, plan: Sequence[Planned]) -> None:
        self._connection = apsw.Connection(str(database), apsw.SQLITE_OPEN_READWRITE)
        self._connection.set_busy_timeout(30_000)
        self._connection.pragma("query_only", True)
        self._side = side
        self._plan = {planned.id: planned for planned in plan}
        self._results: dict[tuple[str, str], Any] = {}
        self.kills = 0

    def close(self) -> None:
        self._connection.close()

    # --- reading

    def rows(self, sql: str, *args: Any) -> list[tuple[Any, ...]]:
        return self._connection.execute(sql, args).fetchall()

    def one(self, sql: str, *args: Any) -> Any:
        return self._connection.execute(sql, args).get

    def side(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self._side.read_text().splitlines()] if self._side.exists() else []

    def ran(self) -> list[Ran]:
        return [
            Ran(line["run"], line["key"], line["attempt"], tuple(line["needs"]), line["pid"], line["ms"])
            for line in self.side()
            if "run" in line
        ]

    def results(self) -> dict[tuple[str, str], Any]:
        return {(run, key): rest for run, key, *rest in self.rows(_RESULTS)}

    def complete(self) -> bool:
        ended = self.one("SELECT count(*) FROM holdfast_run WHERE completed_at IS NOT NULL")
        return bool(ended >= len(self._plan))

    def open_runs(self) -> str:
        return f"{self.rows(_OPEN)} of {self.one('SELECT count(*) FROM holdfast_run')} runs"

    # --- after every kill

    def after_kill(self) -> None:
        """Check that no acknowledged row is missing, no result changed, and no step began too early."""
        self.kills += 1
        before, side = self._results, self.side()  # read before the database: it must hold all that these lines name
        self._results = self.results()
        for key, result in before.items():
            assert self._results.get(key) == result, f"{key} was {result} and is {self._results.get(key)}"
        for line in side:
            self._check_needs(line)
        self._check_acknowledged(side)

    def _check_needs(self, line: dict[str, Any]) -> None:
        for key in line.get("needs", ()):
            assert (line["run"], key) in self._results, f"{line} began before {key!r} was durable"

    def _check_acknowledged(self, side: Iterable[dict[str, Any]]) -> None:
        runs = {run for (run,) in self.rows("SELECT instance_id FROM holdfast_run")}
        events = Counter((run, dedup) for run, dedup, _ in self.rows(_EVENTS))
        for line in side:
            if line.get("acknowledged") == "start":
                assert line["id"] in runs, f"{line} is lost"
            elif line.get("acknowledged") == "event":
                assert events[line["id"], line["event"]] == 1, (
                    f"{line} is stored {events[line['id'], line['event']]} times"
                )

    # --- at the end

    def at_the_end(self, *, attempts_repeat: bool = False) -> None:
        """Check that every run has its expected end, and that nothing else is stored.

        ``attempts_repeat``: an attempt may begin twice, because a worker that shut down released its task.
        """
        self.after_kill()
        self._check_outcomes()
        self._check_events()
        self._check_ledger()
        self._check_logs()
        self._check_executions(attempts_repeat)
        assert self.one("SELECT count(*) FROM holdfast_task") == 0
        assert self.one("PRAGMA integrity_check") == "ok"

    def _check_outcomes(self) -> None:
        found = {
            run: (status, output if output is None else json.loads(output), error)
            for run, status, output, error in self.rows("SELECT instance_id, status, output, error FROM holdfast_run")
        }
        assert found == {p.id: ("complete", p.expected, None) for p in self._plan.values()}

    def _check_events(self) -> None:
        rows = self.rows(_EVENTS)
        expected = Counter(p.id for p in self._plan.values() for _ in p.events)
        assert Counter(run for run, _, _ in rows) == expected
        assert all(consumed_by is not None for _, _, consumed_by in rows)
        assert len({(run, consumed_by) for run, _, consumed_by in rows}) == len(rows)

    def _check_ledger(self) -> None:
        expected = Counter((p.id, entry) for p in self._plan.values() for entry in p.ledger)
        assert Counter(self.rows("SELECT run, entry FROM ledger")) == expected

    def _check_logs(self) -> None:
        """Check that each log line of workflow code is stored once, not counting lines marked as replayed."""
        lines = self.rows(
            "SELECT r.instance_id FROM holdfast_log AS l JOIN holdfast_run AS r ON r.id = l.run "
            "WHERE l.message = 'between a and b' AND NOT l.is_replay"
        )
        assert Counter(run for (run,) in lines) == Counter(
            p.id for p in self._plan.values() if p.workflow == "sequence"
        )

    def _check_executions(self, attempts_repeat: bool) -> None:
        ran = self.ran()
        recorded = {(run, key): attempts for run, key, attempts in self.rows(_ATTEMPTS)}
        opened = {line["pid"]: line["ms"] for line in self.side() if "open" in line}
        for one in ran:
            result = self._results.get((one.run, one.key))
            if result is not None and one.pid in opened:
                assert opened[one.pid] <= result[3], f"{one} ran in a process that started after the result was stored"
        for (run, key), times in Counter((one.run, one.key) for one in ran).items():
            assert times <= recorded[run, key] + self.kills, f"{run} {key} ran {times} times"
        strict = [one[:3] for one in ran if not self._plan[one.run].buffered]
        for run, key, attempt in strict:
            assert attempt <= recorded[run, key], f"{run} {key}: attempt {attempt} of {recorded[run, key]} recorded"
        if not attempts_repeat:
            again = {one: times for one, times in Counter(strict).items() if times > 1}
            assert not again, f"attempts that began twice: {again}"
