"""The outside of a simulated run: it starts it, and sends what it was told to send, when the run waits for that.

Events of one type are sent in the order in which they are given. One that is late still comes before anything that the
run waits for is due; one that is early is there before the run waits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from holdfast.core.show import shown
from holdfast.errors import InstanceNotFoundError, InstanceTerminalError
from holdfast.store.protocol import ANY_TOPIC
from holdfast.testing.simulation.database import SimulatedDatabase
from holdfast.testing.simulation.streams import chance
from holdfast.testing.users.mishaps import Mishap, Mishaps
from holdfast.testing.users.process import UserProcess
from holdfast.testing.users.report import SentEvent

_LATEST_MS = 3_600_000
_OF_THE_WAIT = 0.9
_AGAIN_MS = 2_000


class Outside:
    """``now`` is in milliseconds, as in the database."""

    def __init__(
        self,
        events: Sequence[SentEvent],
        main: str,
        process: UserProcess,
        database: SimulatedDatabase,
        mishaps: Mishaps,
        now: Callable[[], int],
        note: Callable[[str, str], None],
    ) -> None:
        self._main = main
        self._process = process
        self._database = database
        self._mishaps = mishaps
        self._now = now
        self._note = note
        self._pending = [*enumerate(events, 1)]
        self._times: dict[int, int] = {}
        """When an event that is waited for is sent."""
        self._again: list[tuple[int, int, SentEvent]] = []

    def next_at(self) -> int | None:
        """When something is sent, as far as that is known."""
        return min([*self._times.values(), *(at for at, _, _ in self._again)], default=None)

    async def begin(self) -> None:
        """Send what comes early; of one type, none before the one before it."""
        closed: set[tuple[str | None, str]] = set()
        for number, event in [*self._pending]:
            lane = event.to, event.type
            early = lane not in closed and self._mishaps.at([Mishap.EARLY], "event", f"event.{number}")
            if not early or not await self._send(number, event, "before anything waits for it"):
                closed.add(lane)

    async def go_on(self, *, nothing_else: bool) -> bool:
        """Send what is due, or waited for; whether anything was. ``nothing_else``: nothing will happen otherwise."""
        sent = False
        for number, event in self._heads():
            at = self._time_of(number, event)
            if at is not None and at <= self._now():
                sent |= await self._send(number, event, "")
        for entry in [entry for entry in self._again if entry[0] <= self._now()]:
            self._again.remove(entry)
            await self._ask(entry[2])
            self._note("outside", f"{_named(entry[2])} is sent a second time")
            sent = True
        if not sent and nothing_else and self.next_at() is None:
            for number, event in self._heads()[:1]:
                sent = await self._send(number, event, "though nothing is known to wait for it")
        return sent

    def _heads(self) -> list[tuple[int, SentEvent]]:
        """The next one of each type and receiver."""
        first: dict[tuple[str | None, str], tuple[int, SentEvent]] = {}
        for number, event in self._pending:
            first.setdefault((event.to, event.type), (number, event))
        return list(first.values())

    def _time_of(self, number: int, event: SentEvent) -> int | None:
        """When it is sent, once somebody waits for it."""
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
        if not self._mishaps.at([Mishap.LATE], "event", f"late.{number}"):
            return 0
        most = _LATEST_MS if run_at is None else min(_LATEST_MS, _OF_THE_WAIT * max(0, run_at - self._now()))
        late = round(most * chance(self._mishaps.seed, f"lateness.{number}"))
        self._note("outside", f"{_named(event)} is late by {late / 1000:.3f} s")
        return late

    async def _send(self, number: int, event: SentEvent, how: str) -> bool:
        self._times.pop(number, None)
        try:
            await self._ask(event)
        except InstanceNotFoundError:
            return False  # later
        self._pending.remove((number, event))
        self._note("outside", f"{_named(event)} is sent {how}".rstrip())
        if self._mishaps.at([Mishap.TWICE], "event", f"twice.{number}"):
            self._again.append((self._now() + round(_AGAIN_MS * self._chance(number)), number, event))
        return True

    async def _ask(self, event: SentEvent) -> None:
        workflow, _, instance = (event.to or self._main).partition("/")
        client: Any = self._process.client
        try:
            await self._process.do(client.send_event(workflow, instance, event.type, event.payload, event_id=event.id))
        except InstanceTerminalError:
            self._note("outside", f"{_named(event)} finds that the run has ended")

    def _chance(self, number: int) -> float:
        return chance(self._mishaps.seed, f"again.{number}")


def _named(event: SentEvent) -> str:
    to = "" if event.to is None else f" to {event.to}"
    return f"event {event.type!r} with {shown(event.payload, 40)}{to}"
