"""The services of a worker for its turns."""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from typing import Any

from holdfast.kernel.notify import Hub
from holdfast.runner import notifications, report
from holdfast.runner.background_tasks import BackgroundTasks
from holdfast.runner.lease_keeper import LeaseKeeper
from holdfast.runner.local_starts import LocalStarts
from holdfast.store.protocol import Committed, Created, Fact, LateResults, Log, NewRun, RunRecord, Store


class WorkerHost:
    """Implements ``TurnHost`` with the parts of the worker."""

    abandoned = False
    """The worker stopped as a killed process does: nothing more is written."""

    def __init__(
        self, store: Store, hub: Hub, starts: LocalStarts, leases: LeaseKeeper, background: BackgroundTasks
    ) -> None:
        self._store = store
        self._hub = hub
        self._starts = starts
        self._leases = leases
        self._background = background

    def notify(self, committed: Committed) -> None:
        notifications.committed(self._hub, committed)

    def reserve_child(self, new: NewRun) -> int:
        return self._starts.reserve_child(new)

    def begin_children(self, slots: int, claimed_children: Sequence[Created]) -> None:
        self._starts.begin_children(slots, claimed_children)

    def run_in_background(self, work: Coroutine[Any, Any, None]) -> None:
        self._background.run(work, "roll back the transaction of a step")

    def outbox_written(self) -> None:
        self._hub.outbox_written()

    def streams_written(self, run: int) -> None:
        if self._hub.read_streams:
            self._hub.stream_written(run)

    def heartbeat_within(self, lease_ms: int) -> None:
        self._leases.heartbeat_within(lease_ms)

    def add_late(self, run: RunRecord, results: Sequence[Fact], logs: Sequence[Log]) -> None:
        if not self.abandoned:
            what = f"store the last results and log lines of {report.named(run)}"
            self._background.run(self._write_late(run, results, logs), what)

    async def _write_late(self, run: RunRecord, results: Sequence[Fact], logs: Sequence[Log]) -> None:
        await self._store.add_late_results(LateResults(run.run, results, logs))
