"""``Holdfast``: the composition root. It connects the parts of the engine and contains no logic of its own."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, nullcontext
from typing import TYPE_CHECKING, Any, TypeVar, Unpack, overload

from holdfast.app_views import AppViews
from holdfast.core.checks import check_type, is_whole_number
from holdfast.core.limits import Limits
from holdfast.core.redaction import Redaction, redacted_names
from holdfast.core.retention import Retention, check_retention
from holdfast.definitions import Definitions, caller
from holdfast.errors import AppClosedError, InvalidOptionError
from holdfast.extras import extra
from holdfast.kernel.telemetry import Telemetry
from holdfast.lifetime import AppLifetime
from holdfast.ports import Runtime
from holdfast.runner.config import WorkerConfig
from holdfast.runner.identity import program_name
from holdfast.store_url import DEFAULT_URL, check_url, shown_url

if TYPE_CHECKING:
    from fastapi import FastAPI
    from starlette.applications import Starlette

    from holdfast.client import Client, Handle, Start
    from holdfast.graph.progress import Advancement
    from holdfast.http.auth import Authorize
    from holdfast.kernel.requests import StartOptions
    from holdfast.kernel.startable import Startable
    from holdfast.open_app import OpenApp
    from holdfast.payloads import Codec
    from holdfast.payloads.config import PayloadConfig
    from holdfast.sync_client import SyncClient

R = TypeVar("R")
T = TypeVar("T")


class Holdfast(Definitions, AppViews):
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
        retention: Retention | None = None,
        telemetry: Telemetry | Iterable[Telemetry] = (),
        redact: Iterable[str] = (),
        codec: Codec | Iterable[Codec] | None = None,
        blobs: str | None = None,
        blob_threshold: int | str = "64 KiB",
    ) -> None:
        """``telemetry``: observers of the engine, such as ``OpenTelemetry()``.

        ``redact``: names of variables and fields whose values ``stack`` and ``replay`` hide, besides the usual names of
        secrets, such as passwords and tokens. ``codec``: codecs that encode all values in the order given, such as
        ``[Zstd(), Aes(keys)]`` (``holdfast.payloads``). ``blobs``: the blob store for values above ``blob_threshold``:
        ``"file:///folder"``, ``"s3://bucket/prefix"`` or ``"database"``.
        """
        self.url = url if url is not None else os.environ.get("HOLDFAST_DATABASE_URL") or DEFAULT_URL
        check_url(self.url, schema)
        self.schema = schema
        limits = check_type("limits", limits, Limits) or Limits()
        self.payloads: PayloadConfig | None = None
        """The codecs and the blob store."""
        if codec is not None or blobs is not None:
            from holdfast.payloads.config import payload_config

            self.payloads = payload_config(codec, blobs, blob_threshold)
        super().__init__(
            limits if blobs is None else limits.with_blobs(), check_type("runtime", runtime, Runtime) or Runtime()
        )
        self.registry.retention = check_retention(retention)
        self.registry.redacted = redacted_names(redact)
        if authorize is not None:
            from holdfast.http.auth import check_authorize

            check_authorize(authorize)
        self.authorize = authorize
        """The policy of the HTTP API. None: every request is allowed."""
        self.worker_config = check_type("worker", worker, WorkerConfig) or WorkerConfig()
        """Settings of the worker that the next ``async with`` or ``tick`` starts."""
        self.program = program_name(caller())
        """The module that created this app, as shown in the ids of its workers."""
        self.telemetry = [telemetry] if isinstance(telemetry, Telemetry) else [*telemetry]
        """Observers of the engine from the next time the app is opened."""
        self._lifetime = AppLifetime(self)

    def __repr__(self) -> str:
        return f"<Holdfast {shown_url(self.url)}>"

    # --- opening

    async def __aenter__(self) -> Holdfast:
        await self._lifetime.enter(with_worker=True)
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self._lifetime.leave()

    @asynccontextmanager
    async def connect(self) -> AsyncIterator[Holdfast]:
        """Open as a client only: start, read and control runs that workers of other processes execute."""
        await self._lifetime.enter(with_worker=False)
        try:
            yield self
        finally:
            await self._lifetime.leave()

    def _opened(self) -> OpenApp:
        opened = self._lifetime.current
        if opened is None:
            raise AppClosedError(f"{self!r} is not open; use it inside `async with app:` (or `app.connect()`)")
        return opened.outside_runs()

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
        """Start a run; returns once it is durable. If the ``id`` exists, returns a handle of the existing instance.

        ``connection``: your own connection to the same database; the run is durable when its transaction commits.
        """
        return await self._opened().client.start(workflow, params, connection=connection, **options)

    @overload
    async def start_many(self, workflow: Startable[T, R], starts: Iterable[Start[T]]) -> list[Handle[R]]: ...

    @overload
    async def start_many(self, workflow: str, starts: Iterable[Start[Any]]) -> list[Handle[Any]]: ...

    async def start_many(self, workflow: Startable[Any, Any] | str, starts: Iterable[Start[Any]]) -> list[Handle[Any]]:
        """Start a batch in one transaction; the result omits ids that exist and repeated ids."""
        return await self._opened().client.start_many(workflow, starts)

    @overload
    async def get(self, workflow: Startable[Any, R], id: str) -> Handle[R]: ...

    @overload
    async def get(self, workflow: str, id: str) -> Handle[Any]: ...

    async def get(self, workflow: Startable[Any, Any] | str, id: str) -> Handle[Any]:
        return await self._opened().client.get(workflow, id)

    async def tick(self, *, max_instances: int | None = None, max_steps: int | None = None) -> int:
        """Claim the due tasks once and run each until it suspends or ends. For programs that do their own scheduling.

        Returns the number of claimed tasks.
        """
        for name, value in (("max_instances", max_instances), ("max_steps", max_steps)):
            if value is not None and not is_whole_number(value, 0):
                raise InvalidOptionError(f"{name} must be a whole number of at least 0, not {value!r}")
        worker = self._opened().new_worker(self.worker_config)
        return await worker.run_pass(max_instances, max_steps)

    async def advance(self, run: Handle[Any]) -> Advancement:
        """Claim the ready nodes of a graph's run and start them in this process.

        Safe to call from any process at any time: a node never has two starts under a valid lease, nor two results.
        """
        return await self._opened().advance(run)

    def sync(self, *, worker: bool = False) -> SyncClient:
        """This app as a blocking client, for code without an event loop: scripts, Flask, Django views.

        The client opens the app in a thread of its own, with a worker if ``worker`` is True.

        Example::

            with app.sync() as client:
                run = client.start(fulfil, Order("o-1", 125))
                print(run.result())
        """
        from holdfast.sync_client import SyncClient

        return SyncClient(self, worker=worker)

    # --- serving

    def client(self) -> Holdfast:
        """This app, if it is open: a dependency for routes of FastAPI, ``Depends(app.client)``.

        A route that declares it works under a ``Harness``, and can be given another app with FastAPI's
        ``dependency_overrides``.
        """
        self._opened()
        return self

    def asgi(
        self,
        *,
        api: str = "/api/workflows",
        tick: bool = False,
        worker: bool = True,
        hosts: Iterable[str] = (),
        metrics: bool = False,
        debug: bool = False,
    ) -> FastAPI:
        """The HTTP API as an ASGI application, to be served directly or mounted in another application.

        Served directly, its lifespan opens this app, with a worker unless ``worker`` is False. ``api`` is the path
        prefix of the API, ``tick`` enables ``POST _runner/tick``, ``hosts`` are host names besides localhost under
        which a proxy makes a server on a loopback address reachable, ``metrics`` adds ``GET /metrics`` for Prometheus
        at the root of the application, ``debug`` enables the routes that show stacks and local variables of runs.
        """
        with extra("server", "The HTTP API"):
            from holdfast.http.api import make_api
            from holdfast.http.auth import Authorize
            from holdfast.http.backend import Backend

        if metrics:
            self.collect_metrics()
        backend = Backend(
            self.registry, self.limits, self._client_for_request, self.tick if tick else None, self.runtime.time.now,
            self.metrics_text if metrics else None, debug=debug,
            title=self.program, boot=self.runtime.random.bytes(8).hex(),
        )  # fmt: skip
        lifespan = self.lifespan if worker else self._lifespan_of_client
        return make_api(backend, base=api, authorize=self.authorize or Authorize(), hosts=hosts, lifespan=lifespan)

    def dashboard(
        self,
        *,
        worker: bool = False,
        hosts: Iterable[str] = (),
        debug: bool = False,
        insecure: bool = False,
        example: bool = False,
    ) -> Starlette:
        """The dashboard as an ASGI application, to be served directly or mounted in another application at any path.

        Served directly, its lifespan opens this app, with a worker if ``worker`` is True. ``hosts`` and ``debug`` are
        as for ``asgi``. An app without authorize hooks is shown on loopback addresses only, unless
        ``insecure`` is True. ``example`` is for ``holdfast dev --example``.

        Example::

            web = FastAPI(lifespan=app.lifespan)
            web.mount("/flows", app.dashboard())
        """
        with extra("server", "The dashboard"):
            from holdfast.dashboard.site import make_dashboard
            from holdfast.http.auth import Authorize
            from holdfast.http.backend import Backend

        backend = Backend(
            self.registry, self.limits, self._client_for_request, None, self.runtime.time.now,
            redaction=Redaction(self.registry.redacted),
            title=self.program, boot=self.runtime.random.bytes(8).hex(), debug=debug, example=example,
        )  # fmt: skip
        return make_dashboard(
            backend, authorize=self.authorize or Authorize(), runtime=self.runtime, hosts=hosts, insecure=insecure,
            lifespan=self.lifespan if worker else self._lifespan_of_client,
        )  # fmt: skip

    def _client_for_request(self) -> Client:
        opened = self._opened()
        opened.hub.request_served()
        return opened.client

    @asynccontextmanager
    async def lifespan(self, _asgi: Any = None) -> AsyncIterator[None]:
        """Keep the app open while a server runs: ``FastAPI(lifespan=app.lifespan)``, or inside your own lifespan.

        No effect on an app that is open already.
        """
        async with nullcontext() if self._lifetime.current is not None else self:
            self._opened().client.bulk_jobs.watch()
            yield

    @asynccontextmanager
    async def _lifespan_of_client(self, _asgi: Any = None) -> AsyncIterator[None]:
        """As ``lifespan``, without a worker."""
        async with nullcontext() if self._lifetime.current is not None else self.connect():
            self._opened().client.bulk_jobs.watch()
            yield
