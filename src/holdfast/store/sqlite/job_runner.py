"""Runs jobs on a connection, many in one transaction: group commit.

If a job fails, the transaction is rolled back and each job runs again in a transaction of its own, so that only the
failing job fails. The results stay in the jobs; this module neither queues jobs nor resolves their futures.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import Any

import apsw

from holdfast.store.sqlite.connection import StoreConnection
from holdfast.store.sqlite.errors import ENVIRONMENT, translate
from holdfast.store.sqlite.guard import TransactionRolledBack
from holdfast.store.sqlite.jobs import Job, Mode, is_bare
from holdfast.store.sqlite.opening import BUSY_S
from holdfast.store.sqlite.tx import Tx, Work


class JobRunner:
    """Runs jobs on one connection."""

    def __init__(self, tx: StoreConnection, path: str) -> None:
        self._tx = tx
        self._path = path

    def run(self, jobs: list[Job]) -> None:
        """Run the jobs in their order; wait for locks of other connections as long as the busy timeout."""
        for bare, part in groupby(jobs, is_bare):
            if bare:
                for job in part:
                    self._run_bare(job)
            else:
                self._run_together(list(part))
        self._tx.rejections.clear()

    def run_without_waiting(self, jobs: list[Job]) -> bool:
        """Run the jobs, which are all bare or all not; False if they have to wait for a lock or to run one by one."""
        tx = self._tx
        connection = tx.connection
        connection.set_busy_timeout(0)
        tx.inline = True
        try:
            if is_bare(jobs[0]):
                for job in jobs:
                    job.result = job.work(tx, job.argument)
            else:
                self._transaction(jobs)
        except apsw.BusyError:
            return False
        except ENVIRONMENT as error:
            self.fail(jobs, error)
        except Exception:
            return False
        finally:
            tx.inline = False
            if tx.connected:
                connection.set_busy_timeout(BUSY_S * 1000)
        return True

    def fail(self, jobs: Iterable[Job], error: Exception) -> None:
        for job in jobs:
            job.error = translate(error, self._path, BUSY_S)  # one instance per job: they are raised in different tasks
        self._tx.on_error(error)

    def _run_bare(self, job: Job) -> None:
        try:
            if job.mode is not Mode.LAST:
                self._tx.reconnect()
            job.result = job.work(self._tx, job.argument)
        except Exception as error:  # it is the caller's to handle
            self.fail([job], error)

    def _run_together(self, jobs: list[Job]) -> None:
        try:
            self._tx.reconnect()
            self._transaction(jobs)
        except ENVIRONMENT as error:
            self.fail(jobs, error)
        except Exception:
            for job in jobs:
                self._run_alone(job)

    def _run_alone(self, job: Job) -> None:
        while True:
            try:
                self._tx.reconnect()
                self._transaction([job])
            except TransactionRolledBack:
                continue  # each pass adds one more commit of this job to ``rejections``
            except Exception as error:  # it is the caller's to handle
                self.fail([job], error)
            return

    def _transaction(self, jobs: list[Job]) -> None:
        tx = self._tx
        connection = tx.connection
        tx.begin()
        try:
            tx.prepare()
            for work, part in _calls(jobs):
                _call(tx, work, part)
            if tx.before_commit is not None:
                tx.before_commit(tx)
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise


def _calls(jobs: list[Job]) -> Iterator[tuple[Work[Any, Any], list[Job]]]:
    """The jobs in their order, with adjacent MERGED jobs of the same work combined."""
    for (work, mode), part in groupby(jobs, lambda job: (job.work, job.mode)):
        if mode is Mode.MERGED:
            yield work, list(part)
        else:
            for job in part:
                yield work, [job]


def _call(tx: Tx, work: Work[Any, Any], jobs: list[Job]) -> None:
    first = jobs[0]
    if len(jobs) == 1:
        first.result = work(tx, first.argument)
        return
    results = work(tx, [item for job in jobs for item in job.argument])
    start = 0
    for job in jobs:
        end = start + len(job.argument)
        job.result = results[start:end]
        start = end
