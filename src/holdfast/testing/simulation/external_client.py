"""The client of a simulated run: sends the scenario's events when the run waits for them.

Events of one type are sent in the order of the scenario. A late event is still sent before the run's wait times out;
an early event is sent before the run waits for it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from holdfast.core.show import shown
from holdfast.errors import InstanceNotFoundError, InstanceTerminalError
from holdfast.store.protocol import ANY_TOPIC
from holdfast.testing.simulation.app_process import AppProcess
from holdfast.testing.simulation.database import SimulatedDatabase
from holdfast.testing.simulation.fault_plan import FaultKind, FaultPlan
from holdfast.testing.simulation.report import SentEvent
from holdfast.testing.simulation.streams import chance

_MAX_LATENESS_MS = 3_600_000
_MAX_PART_OF_WAIT = 0.9
_MAX_REPEAT_DELAY_MS = 2_000


class ExternalClient:
    """Sends events to the simulated run and to other runs of its scenario.

    ``main`` is the pid of the simulated run. ``now`` returns the database's time in milliseconds.
    """

    def __init__(
        self,
        events: Sequence[SentEvent],
        main: str,
        process: AppProcess,
        database: SimulatedDatabase,
        faults: FaultPlan,
        now: Callable[[], int],
        note: Callable[[str, str], None],
    ) -> None:
        self._main = main
        self._process = process
        self._database = database
        self._faults = faults
        self._now = now
        self._note = note
        self._pending = [*enumerate(events, 1)]
        self._times: dict[int, int] = {}
        """Time at which an event is sent, by its number; only for events that a run waits for."""
        self._repeats: list[tuple[int, int, SentEvent]] = []

    def next_at(self) -> int | None:
        """Return the time of the next scheduled event, or None."""
        return min([*self._times.values(), *(at for at, _, _ in self._repeats)], default=None)

    async def send_early(self) -> None:
        """Send the early events. An event is not sent early unless all earlier events of its type were."""
        not_early: set[tuple[str | None, str]] = set()
        for number, event in [*self._pending]:
            receiver_and_type = event.to, event.type
            early = receiver_and_type not in not_early and self._faults.at(
                [FaultKind.EARLY], "event", f"event.{number}"
            )
            if not early or not await self._send(number, event, "before anything waits for it"):
                not_early.add(receiver_and_type)

    async def send_due(self, *, nothing_else: bool) -> bool:
        """Send the events that are due; return True if any was sent.

        With ``nothing_else`` no other process has anything to do: the next event is then sent even if no run is known
        to wait for it.
        """
        sent = False
        for number, event in self._next_events():
            at = self._time_of(number, event)
            if at is not None and at <= self._now():
                sent |= await self._send(number, event, "")
        for entry in [entry for entry in self._repeats if entry[0] <= self._now()]:
            self._repeats.remove(entry)
            await self._request(entry[2])
            self._note("outside", f"{_named(entry[2])} is sent a second time")
            sent = True
        if not sent and nothing_else and self.next_at() is None:
            for number, event in self._next_events()[:1]:
                sent = await self._send(number, event, "though nothing is known to wait for it")
        return sent

    def _next_events(self) -> list[tuple[int, SentEvent]]:
        """Return the next event for each receiver and type."""
        first: dict[tuple[str | None, str], tuple[int, SentEvent]] = {}
        for number, event in self._pending:
            first.setdefault((event.to, event.type), (number, event))
        return list(first.values())

    def _time_of(self, number: int, event: SentEvent) -> int | None:
        """Return the time at which an event is sent; None while no run waits for it."""
        if number in self._times:
            return self._times[number]
        workflow, _, instance = (event.to or self._main).partition("/")
        waits = self._database.rows(
            "SELECT t.topics, t.run_at FROM holdfast_task AS t JOIN holdfast_run AS r ON r.id = t.run "
            "WHERE r.workflow = ? AND r.instance_id = ? AND r.current = 1 AND t.unit = 0 AND t.owner IS NULL",
            workflow,
            instance,
        )
        for topics, run_at in waits:
            if event.type in topics.split() or ANY_TOPIC in topics.split():
                self._times[number] = self._now() + self._lateness(number, event, run_at)
                return self._times[number]
        return None

    def _lateness(self, number: int, event: SentEvent, run_at: int | None) -> int:
        if not self._faults.at([FaultKind.LATE], "event", f"late.{number}"):
            return 0
        most = (
            _MAX_LATENESS_MS
            if run_at is None
            else min(_MAX_LATENESS_MS, _MAX_PART_OF_WAIT * max(0, run_at - self._now()))
        )
        late = round(most * chance(self._faults.seed, f"lateness.{number}"))
        self._note("outside", f"{_named(event)} is late by {late / 1000:.3f} s")
        return late

    async def _send(self, number: int, event: SentEvent, how: str) -> bool:
        self._times.pop(number, None)
        try:
            await self._request(event)
        except InstanceNotFoundError:
            return False  # the receiver does not exist yet
        self._pending.remove((number, event))
        self._note("outside", f"{_named(event)} is sent {how}".rstrip())
        if self._faults.at([FaultKind.TWICE], "event", f"twice.{number}"):
            self._repeats.append((self._now() + round(_MAX_REPEAT_DELAY_MS * self._chance(number)), number, event))
        return True

    async def _request(self, event: SentEvent) -> None:
        workflow, _, instance = (event.to or self._main).partition("/")
        client: Any = self._process.client
        try:
            await self._process.do(client.events.send(workflow, instance, event.type, event.payload, event_id=event.id))
        except InstanceTerminalError:
            self._note("outside", f"{_named(event)} is refused: the run has ended")

    def _chance(self, number: int) -> float:
        return chance(self._faults.seed, f"again.{number}")


def _named(event: SentEvent) -> str:
    to = "" if event.to is None else f" to {event.to}"
    return f"event {event.type!r} with {shown(event.payload, 40)}{to}"
