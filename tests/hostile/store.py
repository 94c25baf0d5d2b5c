"""A store that passes calls on to a real store and injects faults.

Each operation has only the faults that the engine promises to tolerate. Calls of clients are delayed but do not fail,
because the engine passes such an error to the caller. Calls of a worker's loops and turns fail in every way. In a pass
without loops (``app.tick``, the harness) only the calls of turns fail, because the caller sees an error of the claim.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

from holdfast.errors import StoreBusyError, StoreUnavailableError
from holdfast.testing.simulation.operation_text import operation_name

from .faults import Faults, Kind

HOSTILE = "hostile:"
"""The beginning of the messages of injected errors."""
LONG_LEASE_MS = 1000
"""The boundary between two rules. With a shorter lease, heartbeats are delayed but do not fail, because one failed
heartbeat would lose the lease. With this lease or a longer one, replies to claims are not lost, because a worker
releases such a claim only at its second heartbeat, too late for a test."""
_MOMENT = 0.02
_PAUSE = 0.03
"""Seconds between two polls for changes."""

_LATE = frozenset({Kind.LATE})
_FAILING = frozenset({Kind.REFUSED, Kind.BUSY, Kind.LATE})
_EVERY = frozenset(Kind)
OF_CLIENTS = frozenset({"create", "send", "control", "read", "begin", "change_schedules"})
"""Intents whose calls are delayed."""
OF_TURNS = {
    "commit": _EVERY,
    "advance": _EVERY,
    "set_leases": _EVERY,
    "create": _FAILING,
    "load": _FAILING,
    "get": _FAILING,
    "find": _FAILING,
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
    "due_schedules": _FAILING,
    "change_schedules": _EVERY,
}
"""Faults by the name of the operation: that of the intent, or of its request (``operation_name``)."""
_OF_WORKERS = frozenset({*OF_TURNS, *OF_LOOPS, "read", "outbox"})
"""Intents of which an operation has faults."""
_OF_LEASES = ("register_worker", "heartbeat")
_WITH_RECEIPT = ("commit", "advance")


class HostileStore:
    """The store of clients."""

    intents = OF_CLIENTS

    def __init__(self, store: Any, faults: Faults) -> None:
        self.real = store
        self.faults = faults

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.real, name)
        return partial(self._call, name) if name in self.intents else found

    async def wait_for_change(self, since: int | None) -> int:
        """Report a possible change at each poll, because there are no notifications."""
        if since is None:
            return 0
        await asyncio.sleep(_PAUSE)
        return since + 1

    def _kinds(self, operation: str) -> frozenset[Kind]:
        return _LATE

    async def _call(self, intent: str, *args: Any, **options: Any) -> Any:
        operation = operation_name(intent, args)
        kinds = self._kinds(operation)
        if not kinds:
            return await self._execute(intent, args, options)
        kind, how = self.faults.at(operation, kinds)
        if kind is Kind.LATE and how < 0.5:
            await asyncio.sleep(how * _MOMENT)
        if kind is Kind.REFUSED or kind is Kind.BUSY:
            await self._refuse(kind, operation, args)
        answer = await self._execute(intent, args, options)
        if kind is Kind.LATE and how >= 0.5:
            await asyncio.sleep(how * _MOMENT)
        if kind is Kind.AMBIGUOUS:
            self._keep_receipt(operation, args, answer)
            raise StoreUnavailableError(f"{HOSTILE} {operation} was executed, and the connection broke")
        return answer

    async def _refuse(self, kind: Kind, operation: str, args: tuple[Any, ...]) -> None:
        if operation == "commit":
            for one in args[0]:
                if (
                    one.observed.transaction is not None
                ):  # a live transaction ends with its commit, even if the commit is refused
                    await one.observed.transaction.rollback()
        if kind is Kind.BUSY:
            raise StoreBusyError(f"{HOSTILE} {operation} had a deadlock; nothing was written")
        raise StoreUnavailableError(f"{HOSTILE} {operation} was refused")

    async def _execute(self, intent: str, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
        return await getattr(self.real, intent)(*args, **options)

    def _keep_receipt(self, operation: str, args: tuple[Any, ...], answer: Any) -> None:
        """Do nothing: no call of a client is executed and reported as failed."""


class WorkersStore(HostileStore):
    """The store of a worker."""

    intents = _OF_WORKERS

    def __init__(self, store: Any, faults: Faults, lease_ms: int) -> None:
        super().__init__(store, faults)
        self.in_loops = False
        """True while the worker's loops run; they retry after errors."""
        self._lease_ms = lease_ms
        self._receipts: dict[tuple[int, ...], tuple[Any, Any]] = {}
        """Replies of calls that were executed and reported as failed, returned when the call is repeated."""

    async def reap(self, max_losses: int) -> Any:
        return await self._call("reap", max_losses)

    def _kinds(self, operation: str) -> frozenset[Kind]:
        if operation in _OF_LEASES and self._lease_ms < LONG_LEASE_MS:
            return _LATE if self.in_loops else frozenset()
        if operation == "claim" and self._lease_ms >= LONG_LEASE_MS:
            return _FAILING if self.in_loops else frozenset()
        if operation in OF_LOOPS:
            return OF_LOOPS[operation] if self.in_loops else frozenset()
        return OF_TURNS.get(operation, frozenset())

    async def _execute(self, intent: str, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
        if intent in _WITH_RECEIPT:
            known = self._receipts.pop(_key(args), None)
            if known is not None:
                return known[1]
        answer = await super()._execute(intent, args, options)
        if intent == "reap":
            for _ in answer:
                self.faults.lease_lost()
        return answer

    def _keep_receipt(self, operation: str, args: tuple[Any, ...], answer: Any) -> None:
        if operation in _WITH_RECEIPT:
            self._receipts[_key(args)] = args, answer


def _key(args: tuple[Any, ...]) -> tuple[int, ...]:
    return tuple(id(one) for one in args[0])
