"""Requests of a bulk retry on children: allowed are those of the runs that it retries, and of no other runs."""

from __future__ import annotations

import sqlite3
from typing import Any

import pytest

from holdfast.client.bulk_work import BulkProgress
from holdfast.core import codec
from holdfast.store.protocol import AffectedRuns, Audit, ControlResult, NewBulkJob, RestartRun
from simulation.checks.bulk_actions import BulkWatch

ORIGIN, CHILD, FORK, GRANDCHILD = range(1, 5)
RETRY = Audit("restart", None, "the retry")


class Database:
    """Instances of the workflow ``flow``, each with the run that has the number of the instance."""

    def __init__(self) -> None:
        self._connection = sqlite3.connect(":memory:")
        self._connection.execute(
            "CREATE TABLE holdfast_run (id, instance, line, workflow DEFAULT 'flow', instance_id, status, search, "
            "error_name, current DEFAULT 1)"
        )
        self.watch = BulkWatch(self._rows, lambda: 0)

    def _rows(self, sql: str, *args: Any) -> list[tuple[Any, ...]]:
        return self._connection.execute(sql, args).fetchall()

    def add(self, run: int, status: str, *, children: tuple[int, ...] = ()) -> None:
        sql = "INSERT INTO holdfast_run (id, instance, instance_id, status) VALUES (?, ?, ?, ?)"
        self._connection.execute(sql, (run, run, f"i{run}", status))
        self.watch.created(run, "flow", f"i{run}")
        for child in children:
            self.watch.started(run, f"flow/i{child}")

    def retry_errored(self) -> None:
        """Begin the bulk retry of the errored runs."""
        content = {
            "action": "retry", "arguments": {"reason": RETRY.reason}, "rate": None,
            "filters": [{"status": "errored", "search": []}],
        }  # fmt: skip
        job = NewBulkJob("job", codec.encode(content, what="job"), 100, BulkProgress().encode())
        assert [*self.watch.after("bulk", (job,), None, None)] == []

    def restart(self, run: int) -> list[str]:
        """The violations of an accepted restart that the bulk retry requests."""
        args = (RestartRun("flow", f"i{run}"), RETRY)
        before = self.watch.before("control", args)
        new: Any = "the new run"
        return [*self.watch.after("control", args, ControlResult(new, AffectedRuns()), before)]


@pytest.fixture
def database() -> Database:
    return Database()


def test_the_retry_of_a_fork_restarts_the_child_that_its_origin_started(database: Database) -> None:
    database.add(ORIGIN, "complete", children=(CHILD,))
    database.add(CHILD, "terminated", children=(GRANDCHILD,))
    database.add(FORK, "errored", children=(CHILD,))
    database.add(GRANDCHILD, "cancelled")
    database.retry_errored()

    assert database.restart(CHILD) == database.restart(GRANDCHILD) == []


def test_the_restart_of_a_child_whose_parents_did_not_fit_the_filter_is_reported(database: Database) -> None:
    database.add(ORIGIN, "complete", children=(CHILD,))
    database.add(CHILD, "terminated")
    database.add(FORK, "errored")
    database.retry_errored()

    assert database.restart(CHILD) == ["the retry of the retry acted on flow/i2, which did not fit its filter"]


def test_the_restart_of_a_child_that_completed_is_reported(database: Database) -> None:
    database.add(FORK, "errored", children=(CHILD,))
    database.add(CHILD, "complete")
    database.retry_errored()

    assert database.restart(CHILD) == ["the retry of the retry restarted the child i2, which was complete"]
