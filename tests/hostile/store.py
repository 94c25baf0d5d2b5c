"""A store whose calls fail as real ones do, in front of a real one.

For each operation it does only what the engine promises to survive. What a client asks for may be late, but does not
fail: an error there is the caller's to see. What a worker asks for in its loops and turns fails in every way; in a pass
(``app.tick``, the harness), whose caller sees errors of its claim, only what the turns ask for.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

from holdfast.errors import StoreBusyError, StoreUnavailableError

from .faults import Faults, Kind

HOSTILE = "hostile:"
"""How the errors of this store begin."""
LONG_LEASE_MS = 1000
"""Of shorter ones, a heartbeat that fails is the end: it is only a little late. And of longer ones, what a claim took
whose answer got lost is given back too late for a test, which is at the second heartbeat."""
_MOMENT = 0.02
_PAUSE = 0.03
"""Between two looks at what others wrote."""

_LATE = frozenset({Kind.LATE})
_FAILING = frozenset({Kind.REFUSED, Kind.BUSY, Kind.LATE})
_EVERY = frozenset(Kind)
OF_CLIENTS = (
    "create", "send", "control", "outbox", "undelivered", "reply", "relations", "runs", "facts", "events", "logs",
    "workers", "versions", "begin",
)  # fmt: skip
OF_TURNS = {
    "commit": _EVERY,
    "advance": _EVERY,
    "set_leases": _EVERY,
    "create": _FAILING,
    "load": _FAILING,
    "runs": _FAILING,
    "undelivered": _FAILING,
    "facts": _FAILING,
}
OF_LOOPS = {
    "claim": _EVERY,
    "reap": _EVERY,
    "claim_outbox": _FAILING,
    "settle_outbox": _EVERY,
    "register_worker": _EVERY,
    "heartbeat": _EVERY,
    "fetch_signals": _EVERY,
}
_OF_LEASES = ("register_worker", "heartbeat")
_WITH_RECEIPT = ("commit", "advance")


class HostileStore:
    """The store as clients see it."""

    def __init__(self, store: Any, faults: Faults) -> None:
        self.real = store
        self.faults = faults

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.real, name)
        kinds = self._kinds(name)
        return partial(self._call, name, kinds) if kinds else found

    async def wait_for_change(self, since: int | None) -> int:
        """Nobody is told anything: a look now and then, which may find something."""
        if since is None:
            return 0
        await asyncio.sleep(_PAUSE)
        return since + 1

    def _kinds(self, operation: str) -> frozenset[Kind]:
        return _LATE if operation in OF_CLIENTS else frozenset()

    async def _call(self, operation: str, kinds: frozenset[Kind], *args: Any, **options: Any) -> Any:
        kind, how = self.faults.at(operation, kinds)
        if kind is Kind.LATE and how < 0.5:
            await asyncio.sleep(how * _MOMENT)
        if kind is Kind.REFUSED or kind is Kind.BUSY:
            await self._refuse(kind, operation, args)
        answer = await self._done(operation, args, options)
        if kind is Kind.LATE and how >= 0.5:
            await asyncio.sleep(how * _MOMENT)
        if kind is Kind.AMBIGUOUS:
            self._keep(operation, args, answer)
            raise StoreUnavailableError(f"{HOSTILE} {operation} was done, and the line broke")
        return answer

    async def _refuse(self, kind: Kind, operation: str, args: tuple[Any, ...]) -> None:
        if operation == "commit":
            for one in args[0]:
                if one.observed.transaction is not None:  # it ends with its commit, applied or not
                    await one.observed.transaction.rollback()
        if kind is Kind.BUSY:
            raise StoreBusyError(f"{HOSTILE} {operation} met a deadlock; nothing was written")
        raise StoreUnavailableError(f"{HOSTILE} {operation} was refused")

    async def _done(self, operation: str, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
        return await getattr(self.real, operation)(*args, **options)

    def _keep(self, operation: str, args: tuple[Any, ...], answer: Any) -> None:
        """Nothing that a client asks for is done and said to have failed."""


class WorkersStore(HostileStore):
    """The store as a worker sees it."""

    def __init__(self, store: Any, faults: Faults, lease_ms: int) -> None:
        super().__init__(store, faults)
        self.in_loops = False
        """Whether its worker has loops, which outlast errors."""
        self._lease_ms = lease_ms
        self._receipts: dict[tuple[int, ...], tuple[Any, Any]] = {}
        """A store that is asked again answers what it did: these are the calls that have to be answered so."""

    async def reap(self, max_losses: int) -> Any:
        return await self._call("reap", self._kinds("reap"), max_losses)

    def _kinds(self, operation: str) -> frozenset[Kind]:
        if operation in _OF_LEASES and self._lease_ms < LONG_LEASE_MS:
            return _LATE if self.in_loops else frozenset()
        if operation == "claim" and self._lease_ms >= LONG_LEASE_MS:
            return _FAILING if self.in_loops else frozenset()
        if operation in OF_LOOPS:
            return OF_LOOPS[operation] if self.in_loops else frozenset()
        return OF_TURNS.get(operation, frozenset())

    async def _done(self, operation: str, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
        if operation in _WITH_RECEIPT:
            known = self._receipts.pop(_key(args), None)
            if known is not None:
                return known[1]
        answer = await super()._done(operation, args, options)
        if operation == "reap":
            for _ in answer:
                self.faults.lease_lost()
        return answer

    def _keep(self, operation: str, args: tuple[Any, ...], answer: Any) -> None:
        if operation in _WITH_RECEIPT:
            self._receipts[_key(args)] = args, answer


def _key(args: tuple[Any, ...]) -> tuple[int, ...]:
    return tuple(id(one) for one in args[0])
