"""``Handle``: the user's reference to one instance."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable
from typing import TYPE_CHECKING, Any, TypeVar

from holdfast.client.handle_repair import RepairHandle
from holdfast.client.handle_streams import HandleStreams
from holdfast.client.handle_views import HandleViews
from holdfast.client.records import seconds_of
from holdfast.core import codec, durations
from holdfast.core.durations import Duration
from holdfast.core.failure import Failure
from holdfast.core.model import LevelName, Status
from holdfast.core.outbound import OutboxRecord
from holdfast.core.records import History, InstanceDescription, InstanceStatus, LogLine
from holdfast.errors import (
    ErrorInfo,
    HoldfastError,
    RunCancelledError,
    RunFailedError,
    RunTerminatedError,
)
from holdfast.kernel.definition import Definition
from holdfast.kernel.end_waiter import ExpectedEnd
from holdfast.store.protocol import (
    Finish,
    RunRecord,
)

if TYPE_CHECKING:
    from holdfast.client.client import Client

R = TypeVar("R", covariant=True)

_WHY_SECONDS = 2.0
"""Maximum time to read the reason for the message of a ``TimeoutError``."""


class Handle(RepairHandle[R], HandleViews, HandleStreams):
    """A reference to one instance. It holds no resources; two handles with the same id refer to the same instance."""

    def __init__(
        self,
        client: Client,
        definition: Definition,
        id: str,
        expected: ExpectedEnd | None = None,
        run: int | None = None,
    ) -> None:
        """``run``: the current run when the handle was made, if it was read."""
        self._unguarded = client
        self._definition = definition
        self._expected = expected
        self._run = run
        self.id = id
        self.workflow = definition.name

    def __repr__(self) -> str:
        return f"<Handle {self.pid}>"

    @property
    def pid(self) -> str:
        return f"{self.workflow}/{self.id}"

    async def result(self, timeout: Duration | None = None) -> R:
        """Wait for the end of the run and return the decoded output.

        Raises ``RunFailedError``, ``RunTerminatedError`` or ``RunCancelledError`` if the run ended without an output,
        and ``TimeoutError`` if it has not ended within ``timeout``; the message says what the run waits for.
        """
        seconds = seconds_of(timeout)
        ending = self._client.wait_for_end(self.workflow, self.id, self._expected, self._run)
        end = await (ending if seconds is None else self._within(seconds, ending))
        if end.status is Status.COMPLETE:
            output: R = self._definition.decode_output(codec.plain(end.output))
            return output
        raise _run_error(self.pid, end)

    async def _within(self, seconds: float, ending: Awaitable[RunRecord | Finish]) -> RunRecord | Finish:
        try:
            async with asyncio.timeout(seconds):
                return await ending
        except TimeoutError:
            raise await _timed_out(self, "ended", seconds) from None

    async def status(self) -> InstanceStatus:
        return self._client.instances.status(await self._client.instances.find(self.workflow, self.id))

    async def describe(self) -> InstanceDescription:
        return await self._client.reads.describe(self.workflow, self.id)

    async def pause(self, reason: str | None = None) -> None:
        """Pause the run: no more workflow code runs, and a step in flight is finished. Timers continue to count."""
        await self._client.control.pause(self.workflow, self.id, reason)

    async def resume(self, reason: str | None = None) -> None:
        """Resume the run. No effect on a run that is not paused."""
        await self._client.control.resume(self.workflow, self.id, reason)

    async def terminate(self, reason: str | None = None) -> None:
        """End the run now. Steps in flight cannot write any more."""
        await self._client.control.terminate(self.workflow, self.id, reason)

    async def cancel(self, reason: str | None = None, deadline: Duration | None = None) -> None:
        """Request cancellation: the code receives ``CancelledError`` and may clean up.

        ``deadline``: the time after which the run is terminated.
        """
        await self._client.control.cancel(self.workflow, self.id, reason, deadline)

    async def ask(self, topic: str, payload: Any = None, timeout: Duration | None = None) -> Any:
        """Send a message and return the reply that the run's code gives with ``msg.reply``.

        Raises ``Rejected`` after ``msg.reject``, ``TimeoutError`` if there is no reply within ``timeout`` (the message
        says what the run waits for), and ``InstanceTerminalError`` if the run ends without a reply.
        """
        seconds = seconds_of(timeout)
        try:
            return await self._client.ask(self.workflow, self.id, topic, payload, timeout)
        except TimeoutError:
            if seconds is None:
                raise
            raise await _timed_out(self, f"replied to {topic!r}", seconds) from None

    async def restart(self, reason: str | None = None) -> None:
        """Start the instance again from the beginning, with the next run number. The old run stays readable."""
        await self._client.control.restart(self.workflow, self.id, reason)
        self._expected = None

    async def move(self, version: str, reason: str | None = None) -> None:
        """Move a pinned run to another release: workers of ``version`` claim it from now on.

        A worker that owns the run keeps it until the run suspends or the worker stops.
        """
        await self._client.control.move(self.workflow, self.id, version, reason)

    async def send_event(
        self, type: str, payload: Any = None, *, id: str | None = None, connection: Any = None
    ) -> None:
        """Send an event. It stays in the mailbox until a ``wait_for_event`` of its type receives it.

        ``id``: an idempotency key; events with the same id are delivered once. Ids are remembered across successors
        (continue-as-new, retries, ticks of a schedule), but not across a restart.
        ``connection``: your own connection to the same database; the event is sent when its transaction commits.
        """
        await self._client.events.send(self.workflow, self.id, type, payload, event_id=id, connection=connection)

    async def history(self, run_number: int | None = None) -> History:
        return await self._client.reads.history(self.workflow, self.id, run_number)

    async def results(self) -> dict[str, Any]:
        """Results of a graph's nodes so far, by name, without nodes that failed or were skipped."""
        return await self._client.units.results(self.workflow, self.id)

    async def facts(self, prefix: str = "") -> dict[str, Any]:
        """Facts of a graph: ``meta``, ``start/<node>/<ts>``, ``result/<node>``, ``item/<node>/<n>``, ``tombstone``."""
        return await self._client.units.facts(self.workflow, self.id, prefix)

    async def kill(self, reason: str | None = None) -> None:
        """Kill a graph: write its tombstone. No more nodes start, and results of nodes in flight are refused."""
        await self._client.control.kill(self.workflow, self.id, reason)

    async def to_mermaid(self) -> str:
        """A Mermaid flowchart of a graph, coloured by the states of its nodes."""
        return await self._client.units.draw_run(self.workflow, self.id)

    async def outbox(self, run_number: int | None = None) -> list[OutboxRecord]:
        """Outbound events of a chain in order: pending, delivered, or parked after too many failures."""
        return [*await self._client.outbox.records(self.workflow, self.id, run_number)]

    async def redeliver(self, run_number: int | None = None) -> int:
        """Deliver parked outbound events again, starting with the first attempt; returns their number."""
        return await self._client.outbox.redeliver(self.workflow, self.id, run_number)

    async def logs(self, level: LevelName | None = None, category: str | None = None) -> list[LogLine]:
        row = await self._client.instances.find(self.workflow, self.id)
        return await self._client.reads.logs(row, level=level, category=category)

    def follow_logs(self) -> AsyncIterator[LogLine]:
        """Iterate over log lines as they are written, until the run has ended."""
        return self._client.reads.follow_logs(self.workflow, self.id)


async def _timed_out(run: Handle[Any], what: str, seconds: float) -> TimeoutError:
    """The error of a wait for a run, with what the run waits for."""
    try:
        async with asyncio.timeout(_WHY_SECONDS):
            why = (await run.describe()).why
    except (HoldfastError, TimeoutError) as error:
        why = f"the reason cannot be read ({type(error).__name__})"
    return TimeoutError(f"run {run.pid} has not {what} within {durations.describe(round(seconds * 1000))}: {why}")


def _run_error(pid: str, end: RunRecord | Finish) -> Exception:
    if end.status is Status.TERMINATED:
        reason = end.note or "no reason given"
        return RunTerminatedError(f"run {pid} was terminated ({reason})", ErrorInfo("Terminated", reason))
    failed = Failure.decode(end.error) if end.error else Failure("Unknown", "no error was recorded")
    info = failed.info
    if end.status is Status.CANCELLED:
        return RunCancelledError(f"run {pid} was cancelled: {info.message}", info)
    error = RunFailedError(f"run {pid} failed with {info.name}: {info.message}", info)
    error.__cause__ = failed.as_noted_exception(f"run {pid}")
    return error
