"""Hostile settings: optimizations and notifications are disabled.

They replace the engine's defaults; settings that a test gives itself apply. The cache is empty, so that every turn is a
cold replay. There are no notifications, neither in a process nor from PostgreSQL, and half of the runs that a client
starts or wakes are not claimed for the worker of its process. The lease is 50 ms, and a batch has one item. The pool of
PostgreSQL has one connection, and another one that is reserved for step transactions; heartbeats have their own.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from holdfast.kernel.notify import Hub
from holdfast.open_app import OpenApp
from holdfast.runner import batch_limit, slots
from holdfast.runner.config import WorkerConfig
from holdfast.runner.local_starts import LocalStarts
from holdfast.runner.worker import Worker
from holdfast.store.postgres import database as postgres_database
from holdfast.store.postgres import settings as postgres_settings
from holdfast.store.postgres import store as postgres_store
from holdfast.store.sqlite import database as sqlite_database

from .faults import Faults
from .store import HOSTILE, HostileStore, WorkersStore

LEASE = "50 ms"
POLL = "30 ms"
_ORDINARY = dict(zip(WorkerConfig.__dataclass_fields__, WorkerConfig.__init__.__defaults__ or (), strict=True))
_CONSTANTS: list[tuple[Any, str, int]] = [
    (batch_limit, "_MAX_BATCH", 1),
    (batch_limit, "_SMALL_BATCH", 1),
    (slots, "_MAX_CLAIM", 1),
    (postgres_store, "_MAX_ITEMS", 1),
    (postgres_store, "_WRITERS", 1),
    (sqlite_database, "_JOBS_PER_TRANSACTION", 1),
    (postgres_settings, "_POOL_SIZE", 2),
    (postgres_settings, "_SMALLEST_POOL", 2),
    (postgres_database, "_KEPT_FREE", 1),
]


class QuietHub:
    """The hub of a worker, without notifications to other parts of the process."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self.deaf = False
        """True if the worker receives no notifications either, because it has loops that poll."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._hub, name)

    def subscribe(self, *listeners: Any) -> Callable[[], None]:
        return (lambda: None) if self.deaf else self._hub.subscribe(*listeners)

    def ended(self, *_: Any) -> None: ...

    def replied(self) -> None: ...


@contextmanager
def hostile(faults: Faults) -> Iterator[None]:
    """Apply hostile settings to the apps, stores and workers that this process creates during the context."""
    undo: list[Callable[[], None]] = []

    def put(owner: Any, name: str, value: Any) -> None:
        before = getattr(owner, name)
        setattr(owner, name, value)
        undo.append(lambda: setattr(owner, name, before))

    for owner, name, value in _CONSTANTS:
        put(owner, name, value)
    _wrap_stores(put, faults)
    _hand_over_half(put, faults)
    log = logging.getLogger("holdfast")
    log.addFilter(_is_not_injected)
    undo.append(lambda: log.removeFilter(_is_not_injected))
    with defaults(lease=LEASE, poll=POLL, cache=0):
        try:
            yield
        finally:
            for back in reversed(undo):
                back()


def _is_not_injected(record: logging.LogRecord) -> bool:
    """False for log lines about injected faults: tests check the other lines."""
    return HOSTILE not in record.getMessage()


@contextmanager
def defaults(**changed: Any) -> Iterator[None]:
    """Change the defaults of ``WorkerConfig`` during the context."""
    before = WorkerConfig.__init__.__defaults__
    now = dict(zip(_ORDINARY, before or (), strict=True)) | changed
    WorkerConfig.__init__.__defaults__ = tuple(now.values())
    try:
        yield
    finally:
        WorkerConfig.__init__.__defaults__ = before


def ordinary_lease() -> Any:
    return defaults(lease=_ORDINARY["lease"])


def _wrap_stores(put: Callable[[Any, str, Any], None], faults: Faults) -> None:
    opened, started, stopped = OpenApp.__init__, Worker.start, Worker.stop

    def open_app(self: OpenApp, app: Any, store: Any, *ports: Any, **more: Any) -> None:
        opened(self, app, HostileStore(store, faults), *ports, **more)  # type: ignore[arg-type]

    def new_worker(self: OpenApp, config: WorkerConfig) -> Worker:
        store: Any = WorkersStore(self.store, faults, config.lease_ms)
        hub: Any = QuietHub(self.hub)
        return Worker(store, self._app.registry, hub, self.ports, self._app.runtime.random, config)

    def start(self: Worker) -> None:
        self._store.in_loops = self._hub.deaf = True  # type: ignore[attr-defined]
        started(self)

    async def stop(self: Worker, drain_ms: int | None = None) -> None:
        # A release that fails leaves the task to the expiry of its lease, but tests expect the release.
        self._store.in_loops = False  # type: ignore[attr-defined]
        await stopped(self, drain_ms)

    put(OpenApp, "__init__", open_app)
    put(OpenApp, "new_worker", new_worker)
    put(Worker, "start", start)
    put(Worker, "stop", stop)


def _hand_over_half(put: Callable[[Any, str, Any], None], faults: Faults) -> None:
    reserve_slot, reserve_units = LocalStarts.reserve_slot, LocalStarts.reserve_units

    def maybe(self: LocalStarts, workflow: str) -> bool:
        return faults.half("hand over") and reserve_slot(self, workflow)

    def maybe_units(self: LocalStarts, most: int) -> int:
        return reserve_units(self, most if faults.half("hand over") else 0)

    put(LocalStarts, "reserve_slot", maybe)
    put(LocalStarts, "reserve_units", maybe_units)
