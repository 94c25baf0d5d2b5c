"""Settings and components that all turns of a worker share, and the interface of the worker for its turns."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from holdfast.errors import StoreError
from holdfast.ports import Randomness
from holdfast.runner import report
from holdfast.runner.advancer import Advancer
from holdfast.runner.attempts import Ports
from holdfast.runner.committer import Committer
from holdfast.runner.permits import Permits
from holdfast.runner.store_retry import log_and_pause
from holdfast.store.protocol import PLAINLY_APPLIED, Commit, Committed, Created, Fact, Log, NewRun, RunRecord, Store
from holdfast.store.retry import call_with_retry

R = TypeVar("R")


@dataclass(slots=True, eq=False)
class Budget:
    """Number of step calls that the turns of one pass may still start; None: no limit."""

    steps: int | None = None

    def take(self) -> bool:
        if self.steps is None:
            return True
        self.steps -= 1
        return self.steps >= 0

    @property
    def spent(self) -> bool:
        return self.steps is not None and self.steps <= 0


class TurnHost(Protocol):
    """The part of the worker that its turns use."""

    def notify(self, committed: Committed) -> None:
        """Notify this process of a commit that affected other runs."""
        ...

    def reserve_child(self, new: NewRun) -> int:
        """Reserve slots for a run that is about to be created, if any are free, and make the worker its owner.

        Returns the number of reserved slots.
        """
        ...

    def begin_children(self, slots: int, claimed_children: Sequence[Created]) -> None:
        """End the reservation of this number of slots, and begin the turns of the created runs."""
        ...

    def run_in_background(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a rollback without waiting for it; a failure is logged."""
        ...

    def outbox_written(self) -> None:
        """Notify the outbox dispatcher that outbound events were committed."""
        ...

    def streams_written(self, run: int) -> None:
        """Notify readers of the run's streams of a commit."""
        ...

    def heartbeat_within(self, lease_ms: int) -> None:
        """Schedule the next heartbeat early enough for a lease of this many milliseconds."""
        ...

    def add_late(self, run: RunRecord, results: Sequence[Fact], logs: Sequence[Log]) -> None:
        """Store results and log lines that were not written before their run ended.

        No effect on a run that has not ended.
        """
        ...


@dataclass(slots=True, eq=False)
class TurnContext:
    """Settings and components that all turns of a worker share."""

    store: Store
    committer: Committer
    advancer: Advancer
    ports: Ports
    random: Randomness
    lease_ms: int
    host: TurnHost
    permits: Permits | None = None
    """None: the program declares no limits."""
    strict: bool = False
    """Replay is strict for every workflow."""
    budget: Budget = field(default_factory=Budget)

    def committed(self, run: RunRecord, commit: Commit, result: Committed) -> None:
        """Report what a commit of a run has written: failures to the log, all of it to the telemetry."""
        if result is not PLAINLY_APPLIED or commit.following.next is not None or report.has_failed(commit):
            report.committed(run, commit, result)
        if self.ports.telemetry is not None:
            self.ports.telemetry.commit_written(run, commit, result)

    def call_store(self, run: RunRecord, call: Callable[[], Awaitable[R]]) -> Awaitable[R]:
        """Call a store method for a run; retries while the store fails."""
        return self.call(f"access run {run.pid}", call)

    def call(self, what: str, call: Callable[[], Awaitable[R]]) -> Awaitable[R]:
        """Call the store, again and again while it fails. ``what`` names the call in log lines."""
        return call_with_retry(call, StoreError, log_and_pause(what, self.random))
