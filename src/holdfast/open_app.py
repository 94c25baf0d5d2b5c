"""``OpenApp``: the objects that exist only while an app is open. ``lifetime.py`` makes and closes it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from holdfast.client import Client, Handle
from holdfast.client.reconciliation import Reconciliation
from holdfast.core.limits import Limits
from holdfast.core.model import Status
from holdfast.core.workflow_code import refuse_in_workflow_code
from holdfast.graph.progress import Advancement, Finished, Killed, Started
from holdfast.kernel.attempt import StepEngine
from holdfast.kernel.definition import Registry
from holdfast.kernel.logger import StepLogger
from holdfast.kernel.notify import Hub
from holdfast.kernel.requests import Requests
from holdfast.kernel.telemetry import Telemetry, telemetry_of
from holdfast.ports import Runtime, Spawn, Timers, milliseconds
from holdfast.runner.attempts import Ports
from holdfast.runner.config import WorkerConfig
from holdfast.runner.worker import Worker
from holdfast.store.protocol import DeclareQueues, Store

if TYPE_CHECKING:
    from holdfast.payloads.config import PayloadConfig


class App(Protocol):
    """The parts of an app that remain when it is closed."""

    url: str
    schema: str | None
    registry: Registry
    limits: Limits
    runtime: Runtime
    worker_config: WorkerConfig
    program: str
    telemetry: list[Telemetry]
    payloads: PayloadConfig | None


class OpenApp:
    """The objects that exist only while an app is open: store, client, hub and workers."""

    def __init__(
        self, app: App, store: Store, timers: Timers, spawn: Spawn, hub: Hub | None = None,
        client: type[Client] = Client, *, plain: bool = False,
    ) -> None:  # fmt: skip
        """``plain``: store values without the codecs and the blobs of the app, as a simulation does."""
        self.store = store = store if plain else payload_store(app, store)
        self.hub = hub or Hub()
        self._app = app
        self._spawn = spawn
        requests = Requests(app.registry, app.limits, app.runtime, store.clock, app.worker_config.version)
        self.telemetry = telemetry_of(app.telemetry)
        self.client = client(store, app.registry, self.hub, requests, app.limits, store.clock, self.telemetry)
        now_ms = milliseconds(store.clock)
        engine = StepEngine(StepLogger(app.limits, app.runtime.time.now), now_ms, app.limits.heartbeat, app.limits)
        self.ports = Ports(now_ms, timers, spawn, requests, store.begin, engine, telemetry=self.telemetry)
        self.worker: Worker | None = None
        self.manual_worker: Worker | None = None
        """The worker that ``advance`` uses."""

    def outside_runs(self) -> OpenApp:
        """This object, for a method of the app; raises if workflow code called the method."""
        refuse_in_workflow_code("Holdfast", depth=3)
        return self

    def new_worker(self, config: WorkerConfig) -> Worker:
        random = self._app.runtime.random
        return Worker(self.store, self._app.registry, self.hub, self.ports, random, config, self._app.program)

    async def reconcile(self) -> None:
        """Store the limits, queues and schedules that the code declares, and let the database count blobs.

        Counting begins here, because the first blob may be written beside a transaction of the caller, whose lock the
        creation of triggers would wait for.
        """
        if (prepare := getattr(self.store, "prepare_blobs", None)) is not None:
            await prepare()
        await self.client.flow.declare()
        await self._declare_queues()
        declared = [*self._app.registry.schedules.values()]
        await Reconciliation(self.store, self._app.registry, milliseconds(self.store.clock)).run(declared)

    async def _declare_queues(self) -> None:
        declared = {queue.name: queue.paused for queue in self._app.registry.queues.values()}
        if declared:
            await self.store.queues(DeclareQueues(declared))

    def start_worker(self, config: WorkerConfig) -> None:
        self.worker = self.new_worker(config)
        self.worker.start()
        self.client.local.worker = self.worker

    async def advance(self, run: Handle[Any]) -> Advancement:
        row = await self.client.units.find(run.workflow, run.id)
        if row.status.terminal:
            return Killed(row.note) if row.status is Status.TERMINATED else Finished(row.status.value)
        nodes = await self._manual_worker().start_units(row)
        if nodes is None:
            return await self.advance(run)
        return Started(tuple(nodes))

    def _manual_worker(self) -> Worker:
        """A worker that claims tasks only in ``advance``."""
        if self.manual_worker is None:
            self.manual_worker = self.new_worker(self._app.worker_config)
            self.manual_worker.start_manual()
        return self.manual_worker

    async def stop_manual_worker(self) -> None:
        manual_worker, self.manual_worker = self.manual_worker, None
        if manual_worker is not None:
            await manual_worker.stop()

    async def close(self) -> None:
        self.client.local.worker = None
        await self.client.close()
        if self.worker is not None:
            await self.worker.stop()
        await self.stop_manual_worker()
        self._spawn.close()
        await self.store.close()
        self.hub.close()
        if self.telemetry is not None:
            self.telemetry.close()


def payload_store(app: App, store: Store) -> Store:
    """The store that the engine uses for a database: with codecs and blobs if the app or a workflow has some.

    Raises ``DefinitionError`` if a definition has a secret and no key to encrypt it.
    """
    secrets = [*app.registry.with_secrets()]
    if app.payloads is None and not app.registry.codecs and not secrets:
        return store
    from holdfast.payloads.config import PayloadConfig  # noqa: PLC0415  (only apps that use it load it)

    config = app.payloads or PayloadConfig()
    for kind, name in secrets:
        config.check_secret(f"{kind} {name}", None if kind == "step" else app.registry.codecs.get(name))
    return config.wrap(store, app.registry.codecs, app.limits)
