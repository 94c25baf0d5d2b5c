"""``Holdfast``: the composition root. It wires the parts together and holds no logic of its own."""

from __future__ import annotations

import builtins
import inspect
import os
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Mapping
from contextlib import asynccontextmanager, nullcontext
from types import FrameType
from typing import TYPE_CHECKING, Any, Concatenate, Literal, ParamSpec, TypeVar, Unpack, overload

from holdfast.chain.chain import Chain
from holdfast.chain.chain import define as define_chain
from holdfast.client import Client, Handle, Start
from holdfast.core import codec
from holdfast.core.durations import Duration, to_ms
from holdfast.core.functions import check_function
from holdfast.core.limits import Limits
from holdfast.core.model import InstanceSummary, Page, Status, StatusName, WorkerInfo
from holdfast.core.names import check_step_name, check_workflow_name
from holdfast.core.outbound import OutboundEvent
from holdfast.core.retry import Retry
from holdfast.errors import AppClosedError, DefinitionError, InvalidOptionError, InvalidUrlError
from holdfast.graph.definition import Graph
from holdfast.graph.progress import Advancement, Finished, Killed, Started
from holdfast.graph.units import GraphDriver
from holdfast.http.auth import Authorize, check_authorize
from holdfast.kernel.attempt import StepEngine, StepTx, Transaction
from holdfast.kernel.definition import Definition, Registry
from holdfast.kernel.events import declared_events
from holdfast.kernel.logger import StepLogger
from holdfast.kernel.notify import Hub
from holdfast.kernel.outbox import DEFAULT_CONCURRENCY, DEFAULT_MAX_ATTEMPTS, DEFAULT_TIMEOUT, outbox_handler
from holdfast.kernel.requests import Requests, StartOptions, timeout_ms
from holdfast.kernel.startable import Startable
from holdfast.kernel.units import GRAPH
from holdfast.ports import LocalSpawn, LoopTimers, Runtime, Spawn, Timers, milliseconds
from holdfast.runner.attempts import Ports
from holdfast.runner.config import WorkerConfig
from holdfast.runner.identity import program_name
from holdfast.runner.worker import Worker
from holdfast.store.protocol import Migrated, Store
from holdfast.workflow.context import Context, OptionalInput, Workflow
from holdfast.workflow.driver import Manners, define
from holdfast.workflow.naming import StepNames
from holdfast.workflow.steps import Step, check_raises, check_retry, inspect_step

if TYPE_CHECKING:
    from fastapi import FastAPI

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
D = TypeVar("D", bound=Callable[[OutboundEvent], Any])

DEFAULT_URL = "sqlite:///holdfast.db"
DEFAULT_SCHEMA = "holdfast"
_POSTGRES = ("postgresql://", "postgres://")
_DEFINING = ("holdfast.app", "holdfast.graph.", "holdfast.chain.")


class _Other:
    """A type for overloads: a parameter that takes an ``_Other`` takes anything, so it is not the transaction."""


class Holdfast:
    """An app: its workflows and steps, its database, and (while it is open) a worker.

    Example::

        app = Holdfast("sqlite:///shop.db")

        @app.step
        async def charge(amount: int) -> str: ...

        @app.workflow
        async def order(ctx: Context, amount: int) -> str:
            return await charge(amount)

        async with app:
            run = await app.start(order, 125)
            print(await run.result())
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        schema: str | None = None,
        runtime: Runtime | None = None,
        worker: WorkerConfig | None = None,
        limits: Limits | None = None,
        authorize: Authorize | None = None,
    ) -> None:
        self.url = url if url is not None else os.environ.get("HOLDFAST_DATABASE_URL") or DEFAULT_URL
        check_url(self.url, schema)
        self.schema = schema
        self.runtime = runtime or Runtime()
        self.limits = limits or Limits()
        self.authorize = check_authorize(authorize)
        self.registry = Registry()
        self._step_names = StepNames()
        self.worker_config = worker or WorkerConfig()
        """Of the worker that the next ``async with`` or ``tick`` runs."""
        self.program = program_name(_caller())
        """The module that made this app, as ids of its workers show it."""
        self._open: OpenApp | None = None
        self._harnesses: builtins.list[OpenApp] = []
        """Test harnesses that stand in for the database while they are open, the newest last."""
        self._guests = 0
        """How many times this app was opened, and not closed, in a harness."""

    def __repr__(self) -> str:
        return f"<Holdfast {shown_url(self.url)}>"

    # --- registering

    @overload
    def workflow(self, fn: OptionalInput[T, R], /) -> Workflow[T | None, R]: ...

    @overload
    def workflow(self, fn: Callable[[Context, T], Coroutine[Any, Any, R]], /) -> Workflow[T, R]: ...

    @overload
    def workflow(self, fn: Callable[[Context], Coroutine[Any, Any, R]], /) -> Workflow[None, R]: ...

    @overload
    def workflow(
        self,
        /,
        *,
        name: str | None = ...,
        retry: Retry | None = ...,
        timeout: Duration | None = ...,
        persist: Literal["step", "task"] = ...,
        cancel: Literal["raise", "event"] = ...,
        trap_links: bool = ...,
        events: Mapping[str, Any] | None = ...,
        replay: Literal["lenient", "strict"] = ...,
    ) -> WorkflowDecorator: ...

    def workflow(
        self,
        fn: Callable[..., Coroutine[Any, Any, Any]] | None = None,
        /,
        *,
        name: str | None = None,
        retry: Retry | None = None,
        timeout: Duration | None = None,
        persist: Literal["step", "task"] = "step",
        cancel: Literal["raise", "event"] = "raise",
        trap_links: bool = False,
        events: Mapping[str, Any] | None = None,
        replay: Literal["lenient", "strict"] = "lenient",
    ) -> Any:
        """Register workflow code: ``async def fn(ctx)`` or ``async def fn(ctx, params)``.

        ``retry`` (none by default) and ``timeout`` are for a run as a whole, where its start does not say otherwise.
        ``persist="step"`` makes every step durable before the next begins; ``"task"`` keeps results in memory until
        the run suspends, which is faster and repeats more after a crash. ``cancel="event"`` tells the code of a
        cancellation by ``ctx.events`` only, ``trap_links`` likewise of a linked run that failed. ``events`` maps event
        types to the types of their payloads: an event that does not fit is refused where it is sent.
        ``replay="strict"`` parks a run before a step without a record is called while a recorded result belongs to a
        step that is not registered any more; ``"lenient"`` writes a warning.
        """
        if persist not in ("step", "task"):
            raise InvalidOptionError(f"persist must be 'step' or 'task', not {persist!r}")
        if cancel not in ("raise", "event"):
            raise InvalidOptionError(f"cancel must be 'raise' or 'event', not {cancel!r}")
        if not isinstance(trap_links, bool):
            raise InvalidOptionError(f"trap_links must be True or False, not {trap_links!r}")
        if replay not in ("lenient", "strict"):
            raise InvalidOptionError(f"replay must be 'lenient' or 'strict', not {replay!r}")
        manners = Manners(
            persist, cancel, trap_links, None if retry is None else check_retry(retry),
            None if timeout is None else timeout_ms("timeout", timeout), declared_events(events, self.limits), replay,
        )  # fmt: skip
        local_names = _caller_names()

        def register(function: Callable[..., Coroutine[Any, Any, Any]]) -> Workflow[Any, Any]:
            chosen = check_workflow_name(_name_of(function) if name is None else name, self.limits)
            definition = define(
                chosen,
                function,
                limits=self.limits,
                now=self.runtime.time.now,
                manners=manners,
                local_names=local_names,
                step_names=self._step_names,
            )
            self.registry.add(definition)
            return Workflow(chosen, function)

        return register if fn is None else register(fn)

    @overload
    def step(self, fn: Callable[Concatenate[_Other, ...], Coroutine[Any, Any, R]], /) -> Step[..., R]: ...

    @overload
    def step(self, fn: Callable[Concatenate[_Other, ...], R], /) -> Step[..., R]: ...

    @overload
    def step(self, fn: Callable[Concatenate[StepTx, P], Coroutine[Any, Any, R]], /) -> Step[P, R]: ...

    @overload
    def step(self, fn: Callable[Concatenate[Transaction, P], Coroutine[Any, Any, R]], /) -> Step[P, R]: ...

    @overload
    def step(self, fn: Callable[Concatenate[StepTx, P], R], /) -> Step[P, R]: ...

    @overload
    def step(self, fn: Callable[P, Coroutine[Any, Any, R]], /) -> Step[P, R]: ...

    @overload
    def step(self, fn: Callable[P, R], /) -> Step[P, R]: ...

    @overload
    def step(
        self,
        /,
        *,
        name: str | None = ...,
        retry: Retry | None = ...,
        timeout: Duration | None = ...,
        raises: tuple[type[BaseException], ...] | None = ...,
        renamed_from: str | tuple[str, ...] = ...,
    ) -> StepDecorator: ...

    def step(
        self,
        fn: Callable[..., Any] | None = None,
        /,
        *,
        name: str | None = None,
        retry: Retry | None = None,
        timeout: Duration | None = None,
        raises: tuple[type[BaseException], ...] | None = None,
        renamed_from: str | tuple[str, ...] = (),
    ) -> Any:
        """Register a step.

        A function whose result is recorded. Async ones run on the worker's loop, others in threads. ``renamed_from``:
        the earlier name of the step, or several; open runs go on with what they have recorded under it.
        """
        if retry is not None:
            check_retry(retry)
        if timeout is not None:
            to_ms(timeout, "timeout")
        if raises is not None:
            check_raises(raises)
        old_names = (renamed_from,) if isinstance(renamed_from, str) else tuple(renamed_from)
        for old in old_names:
            check_step_name(old, self.limits)
        local_names = _caller_names()

        def register(function: Callable[..., Any]) -> Step[Any, Any]:
            chosen = check_step_name(_name_of(function) if name is None else name, self.limits)
            check_function(f"step {chosen!r}", function)
            spec = inspect_step(function, local_names).with_options(retry, timeout, raises)
            self.registry.add_step(chosen, spec.check_types)
            self._step_names.register(chosen, old_names)
            return Step(chosen, spec, function)

        return register if fn is None else register(fn)

    def retired_steps(self, *names: str) -> None:
        """Declare that steps were removed on purpose: open runs that have recorded them go on without a warning."""
        self._step_names.retire([check_step_name(name, self.limits) for name in names])

    @overload
    def graph(self, name: str, version: int = ..., *, params: type[T]) -> Graph[T]: ...

    @overload
    def graph(self, name: str, version: int = ..., *, params: Any = ...) -> Graph[Any]: ...

    def graph(self, name: str, version: int = 1, *, params: Any = Any) -> Graph[Any]:
        """Register a graph; its nodes are added with ``@graph.node``. ``version`` is recorded with each run.

        ``params``: the type of its input, where the nodes' own annotations do not say.
        """
        check_workflow_name(name, self.limits)
        if not isinstance(version, int) or isinstance(version, bool) or version < 1:
            raise InvalidOptionError(f"version must be a whole number of at least 1, not {version!r}")
        graph: Graph[Any] = Graph(
            name, version, params,
            limits=self.limits, local_names=_caller_names, changed=lambda g: self.registry.replace(self._graph(g)),
        )  # fmt: skip
        self.registry.add(self._graph(graph))
        return graph

    def _graph(self, graph: Graph[Any]) -> Definition:
        return Definition(
            graph.name,
            GRAPH,
            None,
            graph.decode_params,
            codec.decoder(Any),
            params_type=graph.params_type,
            version=graph.version,
            blueprint=graph.blueprint,
            unit_driver=GraphDriver(graph, self.limits),
            check=graph.check_types,
        )

    @overload
    def chain(self, name: str, version: int = ..., *, params: type[T]) -> Chain[T]: ...

    @overload
    def chain(self, name: str, version: int = ..., *, params: Any = ...) -> Chain[Any]: ...

    def chain(self, name: str, version: int = 1, *, params: Any = Any) -> Chain[Any]:
        """Register a chain; its steps are added with ``@chain.step("TYPE")``. ``version`` is recorded with each run.

        ``params``: the type of its input.
        """
        chain, definition = define_chain(name, version, params, limits=self.limits, now=self.runtime.time.now)
        self.registry.add(definition)
        return chain

    @overload
    def outbox(
        self, handler: D, /, *, max_attempts: int = ..., concurrency: int = ..., timeout: Duration = ...
    ) -> D: ...

    @overload
    def outbox(
        self, /, *, max_attempts: int = ..., concurrency: int = ..., timeout: Duration = ...
    ) -> Callable[[D], D]: ...

    def outbox(
        self,
        handler: Any = None,
        /,
        *,
        max_attempts: int = DEFAULT_MAX_ATTEMPTS,
        concurrency: int = DEFAULT_CONCURRENCY,
        timeout: Duration = DEFAULT_TIMEOUT,
    ) -> Any:
        """Register who delivers the outbound events of chains: ``async`` or plain, called with an ``OutboundEvent``.

        At least once each, those of a run in their order; it has failed if it raises, and is then tried again, up to
        ``max_attempts`` times. ``concurrency``: how many at a time. ``timeout``: how long one delivery may take; what a
        worker had when it died is taken over after one and a half times that. Register it before the app is opened.
        """

        def register(function: Any) -> Any:
            chosen = outbox_handler(function, max_attempts, concurrency, timeout)
            if self.registry.outbox is not None:
                raise DefinitionError("this app has an outbox handler already; let one function call the other")
            self.registry.outbox = chosen
            return function

        return register if handler is None else register(handler)

    @overload
    def remote(
        self, name: str, *, params: type[T], result: type[R], events: Mapping[str, Any] | None = ...
    ) -> Workflow[T, R]: ...

    @overload
    def remote(
        self, name: str, *, params: type[T], result: Any = ..., events: Mapping[str, Any] | None = ...
    ) -> Workflow[T, Any]: ...

    @overload
    def remote(
        self, name: str, *, params: Any = ..., result: type[R], events: Mapping[str, Any] | None = ...
    ) -> Workflow[Any, R]: ...

    @overload
    def remote(
        self, name: str, *, params: Any = ..., result: Any = ..., events: Mapping[str, Any] | None = ...
    ) -> Workflow[Any, Any]: ...

    def remote(
        self, name: str, *, params: Any = Any, result: Any = Any, events: Mapping[str, Any] | None = None
    ) -> Workflow[Any, Any]:
        """Declare a workflow that other processes implement, so that this one can start it.

        ``events``: as in ``@app.workflow``. Without it, events are sent unchecked, and one that does not fit fails the
        wait that receives it.
        """
        check_workflow_name(name, self.limits)
        decoders = codec.decoder(params, exact=True), codec.decoder(result)
        declared = declared_events(events, self.limits)
        self.registry.add(Definition(name, "workflow", None, *decoders, params_type=params, events=declared))
        return Workflow(name, _not_here)

    # --- opening

    async def __aenter__(self) -> Holdfast:
        await self._enter(with_worker=True)
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self._leave()

    @asynccontextmanager
    async def connect(self) -> AsyncIterator[Holdfast]:
        """Open as a client only: starts, reads and steers runs, but leaves them to workers elsewhere."""
        await self._enter(with_worker=False)
        try:
            yield self
        finally:
            await self._leave()

    async def _enter(self, *, with_worker: bool) -> None:
        if self._harnesses:
            self._guests += 1
            return
        if self._open is not None:
            raise AppClosedError(f"{self!r} is open already; one `async with` at a time")
        self.registry.check()
        store = make_store(self.url, self.schema, self.runtime)
        await store.open()
        self._open = OpenApp(self, store, LoopTimers(store.clock), LocalSpawn())
        if with_worker:
            self._open.start_worker(self.worker_config)

    async def _leave(self) -> None:
        if self._guests:
            self._guests -= 1
            return
        opened, self._open = self._open, None
        if opened is not None:
            await opened.close()

    def _opened(self) -> OpenApp:
        if self._harnesses:
            return self._harnesses[-1]
        if self._open is None:
            raise AppClosedError(f"{self!r} is not open; use it inside `async with app:` (or `app.connect()`)")
        return self._open

    # --- using

    @overload
    async def start(
        self,
        workflow: Startable[None, R],
        params: None = ...,
        *,
        connection: Any = ...,
        **options: Unpack[StartOptions],
    ) -> Handle[R]: ...

    @overload
    async def start(
        self, workflow: Startable[T, R], params: T, *, connection: Any = ..., **options: Unpack[StartOptions]
    ) -> Handle[R]: ...

    @overload
    async def start(
        self, workflow: str, params: Any = ..., *, connection: Any = ..., **options: Unpack[StartOptions]
    ) -> Handle[Any]: ...

    async def start(
        self,
        workflow: Startable[Any, Any] | str,
        params: Any = None,
        *,
        connection: Any = None,
        **options: Unpack[StartOptions],
    ) -> Handle[Any]:
        """Start a run; returns once it is durable. An ``id`` that exists gives a handle to what is there.

        With ``connection=``, your own to the same database, it is durable when your transaction commits.
        """
        return await self._opened().client.start(workflow, params, connection=connection, **options)

    @overload
    async def start_many(self, workflow: Startable[T, R], starts: Iterable[Start[T]]) -> list[Handle[R]]: ...

    @overload
    async def start_many(self, workflow: str, starts: Iterable[Start[Any]]) -> list[Handle[Any]]: ...

    async def start_many(self, workflow: Startable[Any, Any] | str, starts: Iterable[Start[Any]]) -> list[Handle[Any]]:
        """Start a batch in one transaction; ids that exist, and repeats, are left out of the result."""
        return await self._opened().client.start_many(workflow, starts)

    @overload
    async def get(self, workflow: Startable[Any, R], id: str) -> Handle[R]: ...

    @overload
    async def get(self, workflow: str, id: str) -> Handle[Any]: ...

    async def get(self, workflow: Startable[Any, Any] | str, id: str) -> Handle[Any]:
        return await self._opened().client.get(workflow, id)

    async def list(
        self,
        workflow: Startable[Any, Any] | str | None = None,
        *,
        status: StatusName | None = None,
        search: Mapping[str, Any] | None = None,
        id_prefix: str | None = None,
        cursor: str | None = None,
        limit: int = 25,
    ) -> Page[InstanceSummary]:
        """Instances, newest first, a page at a time.

        ``search``: attributes they must have, equal (``{"customer": "c-1"}``) or compared (``{"total": (">=", 100)}``).
        ``id_prefix``: what their ids begin with.
        """
        return await self._opened().client.list(
            workflow, status=status, search=search, id_prefix=id_prefix, cursor=cursor, limit=limit
        )

    async def workers(self) -> builtins.list[WorkerInfo]:
        """The workers of this database, the longest running first; those that died too, for a day."""
        return [*await self._opened().client.workers()]

    async def tick(self, *, max_instances: int | None = None, max_steps: int | None = None) -> int:
        """One runner pass: run what is due now until it rests. For programs that bring their own schedule."""
        for name, value in (("max_instances", max_instances), ("max_steps", max_steps)):
            if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 0):
                raise InvalidOptionError(f"{name} must be a whole number, not {value!r}")
        worker = self._opened().new_worker(self.worker_config)
        return await worker.run_pass(max_instances, max_steps)

    async def advance(self, run: Handle[Any]) -> Advancement:
        """One step of a graph's processor: claim its ready nodes and start them in this process.

        Safe to call from anywhere at any time: a node never has two starts under a living lease, nor two results.
        """
        return await self._opened().advance(run)

    # --- serving

    def asgi(
        self, *, api: str = "/api/workflows", tick: bool = False, worker: bool = True, hosts: Iterable[str] = ()
    ) -> FastAPI:
        """The HTTP API as an ASGI application, to be served as it is or mounted in another one.

        Served as it is, it opens this app by its own lifespan, with a worker unless ``worker`` is False. ``api`` is the
        path it answers under, ``tick`` enables ``POST _runner/tick``, ``hosts`` are names besides localhost under which
        a server on a loopback address is reached, by way of a proxy.
        """
        from holdfast.http.api import make_api  # noqa: PLC0415  (FastAPI is for those who serve)
        from holdfast.http.routes import Backend  # noqa: PLC0415

        backend = Backend(self.registry, self.limits, self._visited, self.tick if tick else None)
        lifespan = self.lifespan if worker else self._lifespan_of_client
        return make_api(backend, base=api, authorize=self.authorize, hosts=hosts, lifespan=lifespan)

    def _visited(self) -> Client:
        opened = self._opened()
        opened.hub.visit()
        return opened.client

    @asynccontextmanager
    async def lifespan(self, _asgi: Any = None) -> AsyncIterator[None]:
        """Open for as long as a server runs: ``FastAPI(lifespan=app.lifespan)``, or inside your own lifespan.

        An app that is open already stays as it is.
        """
        async with nullcontext() if self._is_served() else self:
            yield

    @asynccontextmanager
    async def _lifespan_of_client(self, _asgi: Any = None) -> AsyncIterator[None]:
        """The same without a worker."""
        async with nullcontext() if self._is_served() else self.connect():
            yield

    def _is_served(self) -> bool:
        """True while the app is open, or a test harness stands in for it."""
        return self._open is not None or bool(self._harnesses)


class OpenApp:
    """What exists only while an app is open."""

    def __init__(
        self, app: Holdfast, store: Store, timers: Timers, spawn: Spawn, hub: Hub | None = None,
        client: type[Client] = Client,
    ) -> None:  # fmt: skip
        self.store = store
        self.hub = hub or Hub()
        self._app = app
        self._spawn = spawn
        requests = Requests(app.registry, app.limits, app.runtime, store.clock)
        self.client = client(store, app.registry, self.hub, requests, app.limits, store.clock)
        now_ms = milliseconds(store.clock)
        engine = StepEngine(StepLogger(app.limits, app.runtime.time.now), now_ms, app.limits.heartbeat)
        self.ports = Ports(now_ms, timers, spawn, requests, store.begin, engine)
        self.worker: Worker | None = None
        self.hand: Worker | None = None
        """The one that ``advance`` drives."""

    def new_worker(self, config: WorkerConfig) -> Worker:
        random = self._app.runtime.random
        return Worker(self.store, self._app.registry, self.hub, self.ports, random, config, self._app.program)

    def start_worker(self, config: WorkerConfig) -> None:
        self.worker = self.new_worker(config)
        self.worker.start()
        self.client.worker = self.worker

    async def advance(self, run: Handle[Any]) -> Advancement:
        row = await self.client.graph(run.workflow, run.id)
        if row.status.terminal:
            return Killed(row.note) if row.status is Status.TERMINATED else Finished(row.status.value)
        nodes = await self._hand().start_units(row)
        if nodes is None:
            return await self.advance(run)
        return Started(tuple(nodes))

    def _hand(self) -> Worker:
        """A worker that does only what it is told."""
        if self.hand is None:
            self.hand = self.new_worker(self._app.worker_config)
            self.hand.start_by_hand()
        return self.hand

    async def drop_hand(self) -> None:
        hand, self.hand = self.hand, None
        if hand is not None:
            await hand.stop()

    async def close(self) -> None:
        self.client.worker = None
        await self.client.close()
        if self.worker is not None:
            await self.worker.stop()
        await self.drop_hand()
        self._spawn.close()
        await self.store.close()
        self.hub.close()


class WorkflowDecorator:
    """The type of ``@app.workflow(...)``."""

    @overload
    def __call__(self, fn: OptionalInput[T, R], /) -> Workflow[T | None, R]: ...

    @overload
    def __call__(self, fn: Callable[[Context, T], Coroutine[Any, Any, R]], /) -> Workflow[T, R]: ...

    @overload
    def __call__(self, fn: Callable[[Context], Coroutine[Any, Any, R]], /) -> Workflow[None, R]: ...

    def __call__(self, fn: Callable[..., Any], /) -> Any: ...


class StepDecorator:
    """The type of ``@app.step(...)``."""

    @overload
    def __call__(self, fn: Callable[Concatenate[_Other, ...], Awaitable[R]], /) -> Step[..., R]: ...

    @overload
    def __call__(self, fn: Callable[Concatenate[_Other, ...], R], /) -> Step[..., R]: ...

    @overload
    def __call__(self, fn: Callable[Concatenate[StepTx, P], Awaitable[R]], /) -> Step[P, R]: ...

    @overload
    def __call__(self, fn: Callable[Concatenate[Transaction, P], Awaitable[R]], /) -> Step[P, R]: ...

    @overload
    def __call__(self, fn: Callable[Concatenate[StepTx, P], R], /) -> Step[P, R]: ...

    @overload
    def __call__(self, fn: Callable[P, Awaitable[R]], /) -> Step[P, R]: ...

    @overload
    def __call__(self, fn: Callable[P, R], /) -> Step[P, R]: ...

    def __call__(self, fn: Callable[..., Any], /) -> Any: ...


async def migrate(url: str, *, schema: str | None = None) -> Migrated:
    """Bring a database's schema up to date, and do nothing else."""
    return await _opened_once(url, schema, migrate=True)


async def verify(url: str, *, schema: str | None = None) -> Migrated:
    """Raise ``SchemaVersionError`` unless a database's schema is up to date."""
    return await _opened_once(url, schema, migrate=False)


async def _opened_once(url: str, schema: str | None, *, migrate: bool) -> Migrated:
    check_url(url, schema)
    store = make_store(url, schema, Runtime())
    try:
        return await store.open(migrate=migrate)
    finally:
        await store.close()


def make_store(url: str, schema: str | None, runtime: Runtime) -> Store:
    """The store a URL names. Drivers are imported here, so that one pays only for the database one uses."""
    if url.startswith(_POSTGRES):
        from holdfast.store.postgres import PostgresStore  # noqa: PLC0415  (see above)

        return PostgresStore(url, schema=schema or DEFAULT_SCHEMA, random=runtime.random)
    from holdfast.store.sqlite import SqliteStore  # noqa: PLC0415  (see above)

    return SqliteStore(_sqlite_path(url), clock=runtime.time)


def check_url(url: str, schema: str | None = None) -> None:
    if not isinstance(url, str) or not (url == "sqlite://" or url.startswith(("sqlite:///", *_POSTGRES))):
        raise InvalidUrlError(
            f"{shown_url(url)!r} is not a database URL; use sqlite:///relative.db, sqlite:////absolute/path.db, "
            "sqlite:// (in memory) or postgresql://user@host/database"
        )
    if schema is not None and not (url.startswith(_POSTGRES) and isinstance(schema, str) and schema):
        raise InvalidOptionError(f"schema={schema!r}: a schema has a name, and only PostgreSQL has schemas")


def shown_url(url: Any) -> str:
    """The URL without a password."""
    text = re.sub(r"(?i)(pass\w*=)[^&\s]*", r"\1…", str(url))
    scheme, separator, rest = text.rpartition("://")
    return f"{scheme}{separator}…@{rest.rpartition('@')[2]}" if "@" in rest else text


def _sqlite_path(url: str) -> str | None:
    path = url.removeprefix("sqlite://").removeprefix("/")
    return None if path in ("", ":memory:") else path


def _name_of(function: Any) -> Any:
    return getattr(function, "__name__", "")


async def _not_here(*_args: Any) -> Any:
    raise AppClosedError("this workflow is implemented by another process")


def _caller_names() -> Mapping[str, Any]:
    """Names at the place of the decorator: annotations may mean classes that are local to a function there."""
    frame = _caller()
    if frame is None:
        return {}
    return dict(frame.f_locals) if frame.f_locals is not frame.f_globals else {}


def _caller() -> FrameType | None:
    frame = inspect.currentframe()
    while frame is not None and frame.f_globals.get("__name__", "").startswith(_DEFINING):
        frame = frame.f_back
    return frame
