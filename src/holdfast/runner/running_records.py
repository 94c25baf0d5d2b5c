"""Records of steps that are still running: START facts, log lines and heartbeats."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from holdfast.core import codec
from holdfast.errors import StoreError
from holdfast.runner.calls import CallsInFlight
from holdfast.runner.turn_writer import TurnWriter
from holdfast.store.protocol import Fact, Heartbeat, Log, Observed, Signal, Store, Verdict

_log = logging.getLogger("holdfast")


class RunningRecords:
    """Writes START facts and log lines of a turn's running attempts, in the background."""

    def __init__(self, pid: str, owner: str, calls: CallsInFlight, writer: TurnWriter) -> None:
        self._pid = pid
        self._owner = owner
        self._calls = calls
        self._writer = writer

    def write(self, signal: Callable[[Signal | None], None]) -> asyncio.Task[None] | None:
        """Start writing what is not stored yet; ``signal`` receives the signal in the store's reply."""
        calls = self._calls
        if calls.recording is None and calls.running and not calls.in_transaction:
            started, logs = calls.new_records()
            if started or logs:  # a task for each run in flight, every half second, would be most of the work
                facts = [fact._replace(value=codec.encode({"owner": self._owner}, what="owner")) for fact in started]
                calls.recording = asyncio.get_running_loop().create_task(self._write(facts, logs, signal))
                calls.recording.add_done_callback(self._done)
        return calls.recording

    async def _write(self, facts: Sequence[Fact], logs: Sequence[Log], signal: Callable[[Signal | None], None]) -> None:
        committed = await self._writer.write_interim(Observed(facts=facts, logs=logs))
        if committed is None:
            return
        if committed.verdict is Verdict.LOST:
            signal(None)
        elif committed.verdict is Verdict.PAUSING:
            signal(Signal.PAUSE)
        else:
            signal(committed.signal)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._calls.recording = None
        if not task.cancelled() and task.exception() is not None:
            _log.warning("could not record the running steps of %s: %r", self._pid, task.exception())


async def record_heartbeats(store: Store, heartbeats: Sequence[Heartbeat]) -> None:
    """Store heartbeats. A failure loses only reported progress, so it is logged and not raised."""
    if heartbeats:
        try:
            await store.record_heartbeats(heartbeats)
        except StoreError as error:
            _log.warning("could not record the heartbeats of %d steps: %s", len(heartbeats), error)
