"""``Handle``: one instance, as users hold it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from holdfast.core import codec, durations
from holdfast.core.durations import Duration
from holdfast.core.failure import Failure
from holdfast.core.model import (
    History,
    InstanceDescription,
    InstanceStatus,
    LevelName,
    LogLine,
    Status,
)
from holdfast.core.outbound import OutboxRecord
from holdfast.errors import (
    ErrorInfo,
    HoldfastError,
    RunCancelledError,
    RunFailedError,
    RunTerminatedError,
)
from holdfast.kernel.definition import Definition
from holdfast.kernel.ends import Expected
from holdfast.store.protocol import (
    Finish,
    RunRecord,
)

if TYPE_CHECKING:
    from holdfast.client.client import Client

R = TypeVar("R", covariant=True)

_WHY_SECONDS = 2.0
"""How long a wait that has run out waits for the reason, at most."""


class Handle(Generic[R]):
    """One instance, from outside. Holding one costs nothing; two handles of the same id are the same instance."""

    def __init__(
        self,
        client: Client,
        definition: Definition,
        id: str,
        expected: Expected | None = None,
    ) -> None:
        self._client = client
        self._definition = definition
        self._expected = expected
        self.id = id
        self.workflow = definition.name

    def __repr__(self) -> str:
        return f"<Handle {self.pid}>"

    @property
    def pid(self) -> str:
        return f"{self.workflow}/{self.id}"

    async def result(self, timeout: Duration | None = None) -> R:
        """Wait for the end and return the decoded output.

        Raises ``RunFailedError``, ``RunTerminatedError`` or ``RunCancelledError`` when it ended otherwise, and
        ``TimeoutError`` when the wait, not the run, took too long; its message says what the run waits for.
        """
        seconds = seconds_of(timeout)
        ending = self._client.ended(self.workflow, self.id, self._expected)
        end = await (ending if seconds is None else self._within(seconds, ending))
        if end.status is Status.COMPLETE:
            return self._definition.decode_output(codec.plain(end.output))  # type: ignore[no-any-return]
        raise _run_error(self.pid, end)

    async def _within(self, seconds: float, ending: Awaitable[RunRecord | Finish]) -> RunRecord | Finish:
        try:
            async with asyncio.timeout(seconds):
                return await ending
        except TimeoutError:
            waited = durations.describe(round(seconds * 1000))
            raise TimeoutError(f"run {self.pid} has not ended within {waited}: {await self._why()}") from None

    async def _why(self) -> str:
        try:
            async with asyncio.timeout(_WHY_SECONDS):
                return (await self.describe()).why
        except (HoldfastError, TimeoutError) as error:
            return f"what it waits for cannot be read ({type(error).__name__})"

    async def status(self) -> InstanceStatus:
        return self._client.status_of(await self._client.find(self.workflow, self.id))

    async def describe(self) -> InstanceDescription:
        return await self._client.describe(self.workflow, self.id)

    async def pause(self) -> None:
        """Stop before more workflow code runs; a step in flight is kept. Timers go on counting."""
        await self._client.pause(self.workflow, self.id)

    async def resume(self) -> None:
        """Go on; of a run that is not paused: nothing."""
        await self._client.resume(self.workflow, self.id)

    async def terminate(self, reason: str | None = None) -> None:
        """End it now, for good; nothing in flight can overwrite that."""
        await self._client.terminate(self.workflow, self.id, reason)

    async def cancel(self, reason: str | None = None, deadline: Duration | None = None) -> None:
        """Ask it to cancel: its code gets ``CancelledError`` and may clean up. At the deadline it is terminated."""
        await self._client.cancel(self.workflow, self.id, reason, deadline)

    async def ask(self, topic: str, payload: Any = None, timeout: Duration | None = None) -> Any:
        """Send a message and wait for the answer that the run's code gives by ``msg.reply``.

        Raises ``Rejected`` on ``msg.reject``, ``TimeoutError`` when none came in time, ``InstanceTerminalError`` when
        the run ended without one.
        """
        return await self._client.ask(self.workflow, self.id, topic, payload, timeout)

    async def restart(self) -> None:
        """Begin again from the start under the next run number; the old run stays readable."""
        await self._client.restart(self.workflow, self.id)
        self._expected = None

    async def send_event(
        self, type: str, payload: Any = None, *, id: str | None = None, connection: Any = None
    ) -> None:
        """Send an event; it waits for a ``wait_for_event`` of its type. The same ``id`` twice is delivered once.

        ``id``: known as long as the instance goes on by itself (continue-as-new, retries, ticks); new after a restart.
        ``connection``: your own to the same database; the event is sent when its transaction commits.
        """
        await self._client.send_event(self.workflow, self.id, type, payload, event_id=id, connection=connection)

    async def history(self, run_number: int | None = None) -> History:
        return await self._client.history(self.workflow, self.id, run_number)

    async def results(self) -> dict[str, Any]:
        """Of a graph: what its nodes have come to so far, by name; those that failed or were skipped are left out."""
        return await self._client.results(self.workflow, self.id)

    async def facts(self, prefix: str = "") -> dict[str, Any]:
        """Of a graph: what is stored of it, as ``meta``, ``start/<node>/<ts>``, ``result/<node>``, ``tombstone``."""
        return await self._client.facts(self.workflow, self.id, prefix)

    async def kill(self, reason: str | None = None) -> None:
        """Of a graph: write the tombstone. Nothing starts any more, and what is in flight is refused."""
        await self._client.kill(self.workflow, self.id, reason)

    async def to_mermaid(self) -> str:
        """Of a graph: a Mermaid flowchart, coloured by what its nodes have come to."""
        return await self._client.to_mermaid(self.workflow, self.id)

    async def outbox(self, run_number: int | None = None) -> list[OutboxRecord]:
        """What a chain has to tell the world, in its order: pending, delivered, or parked after too many failures."""
        return [*await self._client.outbox(self.workflow, self.id, run_number)]

    async def redeliver(self, run_number: int | None = None) -> int:
        """Try parked events again, from the first attempt on; how many there were."""
        return await self._client.redeliver(self.workflow, self.id, run_number)

    async def logs(self, level: LevelName | None = None, category: str | None = None) -> list[LogLine]:
        row = await self._client.find(self.workflow, self.id)
        return await self._client.logs(row, level=level, category=category)

    def follow_logs(self) -> AsyncIterator[LogLine]:
        """Log lines as they come; ends with the run."""
        return self._client.follow(self.workflow, self.id)


def seconds_of(timeout: Duration | None) -> float | None:
    return None if timeout is None else durations.to_ms(timeout, "timeout") / 1000


def _run_error(pid: str, end: RunRecord | Finish) -> Exception:
    if end.status is Status.TERMINATED:
        reason = end.note or "no reason given"
        return RunTerminatedError(f"run {pid} was terminated ({reason})", ErrorInfo("Terminated", reason))
    failed = Failure.decode(end.error) if end.error else Failure("Unknown", "no error was recorded")
    info = failed.info
    if end.status is Status.CANCELLED:
        return RunCancelledError(f"run {pid} was cancelled: {info.message}", info)
    error = RunFailedError(f"run {pid} failed with {info.name}: {info.message}", info)
    error.__cause__ = failed.as_evidence(f"run {pid}")
    return error
