"""The store as one simulated process sees it: the shared database behind a line that is slow and breaks.

What the engine may expect of a store that failed holds here too. After an error of ``commit`` or ``advance`` nobody
knows whether it was written, and the same call again is answered by what came of the first (a store keeps receipts for
that). All other calls that fail may have been done or not.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, cast

from holdfast.errors import StoreBusyError, StoreError, StoreFullError, StoreUnavailableError
from holdfast.store.protocol import Commit, Committed, LiveTransaction
from holdfast.store.sqlite.live import Live
from holdfast.testing.simulation.database import SimulatedDatabase
from holdfast.testing.simulation.faults import OF_A_CALL, OF_A_NOTIFICATION, Faults, Kind
from holdfast.testing.simulation.ports import LoopClock
from holdfast.testing.simulation.streams import chance

_LATENCY = 0.003
_PATIENCE = 0.5
"""After how many seconds a request that never arrived is taken to have failed."""
_MOMENT = 0.6
"""How long ``wait_for_change`` waits at most, where nothing else is said."""
_WITH_RECEIPT = frozenset({"commit", "advance"})
_ERRORS: dict[Kind, type[StoreError]] = {
    Kind.REFUSED: StoreUnavailableError,
    Kind.BUSY: StoreBusyError,
    Kind.FULL: StoreFullError,
}


class Line:
    """The transaction of a step, as its process sees it. A line that breaks is the end of it.

    ``within`` carries a statement to the database, under a name.
    """

    def __init__(
        self,
        database: SimulatedDatabase,
        within: Callable[[str, Callable[[], Coroutine[Any, Any, Any]]], Awaitable[Any]],
    ) -> None:
        self._database = database
        self._within = within
        self._live: Live | None = None
        self._gone = False

    def opened(self, live: Live) -> None:
        self._live = live
        if self._gone:
            self._database.give_up(live)

    def hang_up(self) -> None:
        """After the end: nothing."""
        self._gone = True
        if self._live is not None and self._live._end_answer is None:
            self._database.give_up(self._live)

    def carried(self, one: Commit) -> Commit:
        return replace(one, observed=replace(one.observed, transaction=self._live))

    async def execute(self, sql: str, args: tuple[Any, ...]) -> int:
        return cast("int", await self._statement("execute", lambda live: live.execute(sql, args)))

    async def fetch(self, sql: str, args: tuple[Any, ...]) -> Sequence[Mapping[str, Any]]:
        rows = await self._statement("fetch", lambda live: live.fetch(sql, args))
        return cast("Sequence[Mapping[str, Any]]", rows)

    async def rollback(self) -> None:
        self.hang_up()

    async def _statement(self, name: str, statement: Callable[[Live], Coroutine[Any, Any, Any]]) -> Any:
        live = self._live
        if live is None:
            raise RuntimeError("it is not open")
        try:
            return await self._within(name, lambda: statement(live))
        except StoreUnavailableError:
            self.hang_up()
            raise


class NodeStore:
    """``die`` ends the process; ``longest`` is for how many seconds a call may be late.

    ``moment``: how long ``wait_for_change`` waits at most.
    """

    def __init__(
        self,
        name: str,
        database: SimulatedDatabase,
        clock: LoopClock,
        faults: Faults,
        *,
        die: Callable[[str], None],
        longest: float,
        moment: float = _MOMENT,
    ) -> None:
        self.clock = clock
        self.cut_off = False
        """It cannot be reached."""
        self._name = name
        self._database = database
        self._faults = faults
        self._die = die
        self._longest = longest
        self._moment = moment
        self._calls: Counter[str] = Counter()
        self._receipts: dict[tuple[int, ...], tuple[Any, Any]] = {}
        self._lines: list[Line] = []
        self._version = 0
        self._missed = False
        self._news = asyncio.Event()
        database.listeners[name] = self._hear

    def __getattr__(self, operation: str) -> Any:
        if not hasattr(self._database.store, operation):
            raise AttributeError(operation)
        return partial(self._call, operation)

    async def close(self) -> None:
        self.hang_up()

    def hang_up(self) -> None:
        """The process is gone, and its connections with it."""
        self._database.listeners.pop(self._name, None)
        for line in self._lines:
            line.hang_up()
        self._lines.clear()

    async def wait_for_change(self, since: int | None) -> int:
        """As if told by the database; what was not told is found after a moment."""
        if since == self._version:
            self._news.clear()
            try:
                await asyncio.wait_for(self._news.wait(), self._moment)
            except TimeoutError:
                self._version += self._missed
                self._missed = False
        return self._version

    def _hear(self) -> None:
        self._calls["notification"] += 1
        place = f"{self._name}.notification#{self._calls['notification']}"
        kind = self._faults.at(OF_A_NOTIFICATION, "notification", place)
        if kind is Kind.NOTIFY_LOST:
            self._missed = True
        elif kind is Kind.NOTIFY_LATE:
            asyncio.get_running_loop().call_later(chance(self._faults.seed, f"late.{place}"), self._told)
        else:
            self._told()

    def _told(self) -> None:
        self._version += 1
        self._news.set()

    async def begin(self) -> LiveTransaction:
        line = Line(self._database, self._within)
        self._lines.append(line)
        try:
            await self._call("begin", line.opened)
        except BaseException:
            line.hang_up()  # it may be open already, or will be
            raise
        return line

    async def commit(self, commits: Sequence[Commit]) -> list[Committed]:
        line = commits[0].observed.transaction
        if not isinstance(line, Line):
            return cast("list[Committed]", await self._call("commit", commits))
        try:
            return cast("list[Committed]", await self._call("commit", [line.carried(one) for one in commits]))
        finally:
            line.hang_up()  # it is over, whatever came of it

    async def _within(self, operation: str, statement: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        async def ask(kind: Kind | None) -> Any:
            answer = await asyncio.shield(self._database.within(statement()))
            if kind is Kind.CRASH_AFTER:
                await self._crash(f"after its {operation} was done")
            return answer

        return await self._send(operation, ask)

    async def _call(self, operation: str, *args: Any, **options: Any) -> Any:
        return await self._send(operation, lambda kind: self._ask(operation, args, options, kind), args)

    async def _send(
        self, operation: str, ask: Callable[[Kind | None], Awaitable[Any]], args: tuple[Any, ...] = ()
    ) -> Any:
        """Ask it of the database, by a line that is slow and breaks."""
        self._calls[operation] += 1
        place = f"{self._name}.{operation}#{self._calls[operation]}"
        kind = self._faults.at(OF_A_CALL, operation, place)
        slowness = chance(self._faults.seed, f"late.{place}")
        await asyncio.sleep(_LATENCY * slowness)
        if kind is Kind.LATE_REQUEST:
            await asyncio.sleep(self._longest * slowness)
        if self.cut_off:
            self._faults.counts[Kind.PARTITION, operation] += 1
        if kind is Kind.LOST_REQUEST or self.cut_off:
            await asyncio.sleep(_PATIENCE * slowness)
            raise StoreUnavailableError(f"simulated: {operation} did not arrive")
        if kind is not None and kind in _ERRORS:
            raise _ERRORS[kind](f"simulated: {operation} was refused")
        if kind is Kind.CRASH_BEFORE:
            await self._crash(f"before its {operation} was sent")
        answer = await ask(kind)
        if kind is Kind.LATE_ANSWER:
            await asyncio.sleep(self._longest * slowness)
        if kind is Kind.AMBIGUOUS:
            if operation in _WITH_RECEIPT:
                self._receipts[_key(args)] = args, answer
            raise StoreUnavailableError(f"simulated: {operation} was done, and the line broke")
        return answer

    async def _ask(self, operation: str, args: tuple[Any, ...], options: dict[str, Any], kind: Kind | None) -> Any:
        if operation in _WITH_RECEIPT:
            known = self._receipts.pop(_key(args), None)
            if known is not None:
                return known[1]

        def then() -> None:
            if kind is Kind.CRASH_AFTER:
                self._die(f"after its {operation} was written")

        return await asyncio.shield(self._database.ask(self._name, operation, args, options, then))

    async def _crash(self, how: str) -> None:
        self._die(how)
        await asyncio.get_running_loop().create_future()


def _key(args: tuple[Any, ...]) -> tuple[int, ...]:
    return tuple(id(one) for one in args[0])
