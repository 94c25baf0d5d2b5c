"""What a run waits for: times, due steps and retries, events. Knows nothing of what happens then."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Container

from holdfast.store.protocol import Mail
from holdfast.workflow.asked import Asked, AskedStep, AskedTimer, AskedWait

_NO_TOPICS: frozenset[str] = frozenset()


class Agenda:
    """The open waits of one run. Those that are closed are passed over, and dropped when they are met."""

    __slots__ = ("_due", "_gone", "_mailbox", "_orders", "_seen", "_waits", "ready")

    def __init__(self) -> None:
        self.ready: list[AskedStep] = []
        """Steps that are to be called, now or at their ``not_before``."""
        self._due: list[tuple[int, int, Asked]] = []
        self._orders = 0
        self._waits: dict[str, deque[AskedWait]] = {}
        self._mailbox: dict[str, deque[Mail]] = {}
        self._seen: set[int] = set()
        self._gone: set[int] = set()

    def wait_until(self, due: int, asked: AskedWait | AskedTimer) -> None:
        self._orders += 1
        heapq.heappush(self._due, (due, self._orders, asked))

    def wait_for(self, event_type: str, asked: AskedWait) -> None:
        self._waits.setdefault(event_type, deque()).append(asked)

    def receive(self, mail: Mail) -> None:
        """Keep an event until it is wanted; one that was received before is passed over."""
        if mail.n not in self._seen:
            self._seen.add(mail.n)
            self._mailbox.setdefault(mail.type, deque()).append(mail)

    def arrived(self, n: int) -> None:
        """An event that was delivered before this machine was opened."""
        self._seen.add(n)
        self._gone.add(n)

    def first(self, event_type: str) -> Mail | None:
        box = self._mailbox.get(event_type)
        return box[0] if box else None

    def _drop_gone(self) -> None:
        """Take out what a replay has delivered; per type that came in order, and so is at the front."""
        for event_type, box in list(self._mailbox.items()):
            while box and box[0].n in self._gone:
                box.popleft()
            if not box:
                del self._mailbox[event_type]
        self._gone.clear()

    @property
    def topics(self) -> frozenset[str]:
        return frozenset(self._waits) if self._waits else _NO_TOPICS

    def dissolve(self) -> None:
        """The machine is dropped: what was asked for has errors that point back to it."""
        self.ready.clear()
        self._due.clear()
        self._waits.clear()

    # --- what comes next

    def next_due(self) -> tuple[int | None, bool]:
        """When something is due by itself, and whether that is a retry."""
        self._drop_closed()
        timer = self._due[0][0] if self._due else None
        retry = min((a.not_before for a in self.ready if not a.closed), default=None) if self.ready else None
        if retry is not None and (timer is None or retry <= timer):
            return retry, True
        return timer, False

    def due_wait(self, now_ms: int) -> AskedWait | AskedTimer | None:
        """The wait whose time came first."""
        self._drop_closed()
        if self._due and self._due[0][0] <= now_ms:
            return self._due[0][2]  # type: ignore[return-value]  # only such are put there
        return None

    def wanted_mail(self, may_arrive: Callable[[str], bool]) -> Mail | None:
        """The oldest event that somebody waits for, or that may arrive without that."""
        if self._waits:
            self._drop_closed_waits()
        if self._gone:
            self._drop_gone()
        found: Mail | None = None
        for event_type, box in self._mailbox.items():
            if (found is None or box[0].n < found.n) and (event_type in self._waits or may_arrive(event_type)):
                found = box[0]
        return found

    def hand_over(self, mail: Mail) -> AskedWait | None:
        """Take an event out of the mailbox, and the wait, if any, that has been waiting for it the longest."""
        box = self._mailbox.get(mail.type)
        if box and box[0].n == mail.n:
            box.popleft()
            if not box:
                del self._mailbox[mail.type]
        waits = self._waits.get(mail.type)
        return waits.popleft() if waits else None

    def _drop_closed_waits(self) -> None:
        for event_type in list(self._waits):
            waits = self._waits[event_type]
            while waits and waits[0].closed:
                waits.popleft()
            if not waits:
                del self._waits[event_type]

    def used_up(self) -> AskedStep | None:
        """A step that is to be called although its attempts are gone."""
        for asked in self.ready:
            most = asked.spec.retry.max_attempts
            if most is not None and asked.failures >= most and not asked.closed:
                self.ready.remove(asked)
                return asked
        return None

    def new_steps(self, now_ms: int, recorded: Container[str]) -> list[AskedStep]:
        """Steps to be called now of which nothing is recorded."""
        return [
            asked
            for asked in self.ready
            if asked.not_before <= now_ms and not asked.closed and asked.key not in recorded
        ]

    def due_steps(self, now_ms: int) -> list[AskedStep]:
        """Take the steps that are to be called now."""
        due = [asked for asked in self.ready if asked.not_before <= now_ms and not asked.closed]
        if len(due) == len(self.ready):
            self.ready.clear()
        else:
            self.ready = [asked for asked in self.ready if asked.not_before > now_ms and not asked.closed]
        return due

    def _drop_closed(self) -> None:
        while self._due and self._due[0][2].closed:
            heapq.heappop(self._due)
