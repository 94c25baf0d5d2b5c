"""Settings under which nothing is quick, and nobody is told anything.

Put over the engine's defaults: what a test says itself holds. Cache 0, so that every turn is a cold replay. No
notifications, neither in a process nor by PostgreSQL; half of what a client starts or wakes is not handed to the worker
beside it. A lease of 50 ms. Batches of one. Of PostgreSQL's connections one, and one more that steps' transactions get;
heartbeats have their own.
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
    """A worker's hub that tells nobody."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self.deaf = False
        """Nor is told anything: its worker has loops that find out by themselves."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._hub, name)

    def subscribe(self, *listeners: Any) -> Callable[[], None]:
        return (lambda: None) if self.deaf else self._hub.subscribe(*listeners)

    def ended(self, *_: Any) -> None: ...

    def replied(self) -> None: ...


@contextmanager
def hostile(faults: Faults) -> Iterator[None]:
    """What is made meanwhile in this process is made so."""
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
    log.addFilter(_is_news)
    undo.append(lambda: log.removeFilter(_is_news))
    with defaults(lease=LEASE, poll=POLL, cache=0):
        try:
            yield
        finally:
            for back in reversed(undo):
                back()


def _is_news(record: logging.LogRecord) -> bool:
    """That a store fails which is made to fail is none: tests look at what else is said."""
    return HOSTILE not in record.getMessage()


@contextmanager
def defaults(**changed: Any) -> Iterator[None]:
    """Other defaults of ``WorkerConfig``."""
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
        # What cannot be given back now is free when its lease runs out; tests want to see it given back.
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
