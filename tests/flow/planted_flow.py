"""Bugs of flow control by name, which can be planted to test that the checks find them.

A bug replaces an attribute of the engine, or removes a trigger of the database. Bugs of schedules are planted in the
engine's simulation (``tests/simulation/planted_schedules.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from holdfast.store.sqlite import claim, limit_uses, permits, singletons, start_policies
from holdfast.testing.simulation.database import SimulatedDatabase

Patch = tuple[Any, str, Callable[[Any], Any]]


def _without_trigger(name: str) -> Patch:
    def replace(original: Any) -> Any:
        async def open_and_drop(database: Any) -> None:
            await original(database)
            database.connection.execute(f"DROP TRIGGER {name}")

        return open_and_drop

    return SimulatedDatabase, "open", replace


def _admit_one_more(original: Any) -> Any:
    def room(flow: Any, key: Any, needs_tokens: int = 1) -> Any:
        found, limit = original(flow, key, needs_tokens), flow.limit(key.name)
        full = limit is not None and limit.values.concurrency == found.used
        return found._replace(free=True) if full else found

    return room


def _clock_ahead(original: Any) -> Any:
    class Ahead:
        def __init__(self, tx: Any) -> None:
            self.connection = tx.connection
            self.now = tx.now + 500

    def room(flow: Any, key: Any, needs_tokens: int = 1) -> Any:
        tx, flow._tx = flow._tx, Ahead(flow._tx)
        try:
            return original(flow, key, needs_tokens)
        finally:
            flow._tx = tx

    return room


def _statement(module: Any, name: str, old: str, new: str) -> Patch:
    def replace(original: Any) -> Any:
        assert old in original[name]
        return {**original, name: original[name].replace(old, new)}

    return module, "_SQL", replace


BUGS: dict[str, Patch] = {
    "leaked permit": _without_trigger("holdfast_task_released"),
    "over-admission": (limit_uses.LimitUses, "room", _admit_one_more),
    "too many at once": (limit_uses.LimitUses, "room_for", lambda _: lambda _uses, _keys, wanted, _tokens: wanted),
    "lost wake-up of a waiter": (permits._Flow, "_grant_at", lambda _: lambda *_args: None),
    "starved key": _statement(permits, "next_group", "needs_tokens, pass,", "needs_tokens, pass DESC,"),
    "wrong GCRA clock": (limit_uses.LimitUses, "room", _clock_ahead),
    "debounce lost update": _statement(start_policies, "replace_start", "params = ?2", "params = coalesce(params, ?2)"),
    "batch split": (start_policies, "_append", lambda _: lambda *_args: None),
    "lost wake-up of a singleton": _without_trigger("holdfast_single_ended"),
    "lost key": _statement(claim, "claim_run", "iif(bucket = 3, 1, bucket)", "bucket"),
    "two singletons": (singletons, "executed", lambda _: lambda *_args: None),
}


@contextmanager
def planted(name: str) -> Iterator[None]:
    owner, attribute, replace = BUGS[name]
    original = getattr(owner, attribute)
    setattr(owner, attribute, replace(original))
    try:
        yield
    finally:
        setattr(owner, attribute, original)
