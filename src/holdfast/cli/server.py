"""``holdfast serve``: the HTTP API of an app, with or without a worker, until a signal or the supervisor ends it.

This module handles signals instead of uvicorn: requests in flight end first, then the worker drains, and the exit
code is 0.
"""

from __future__ import annotations

import asyncio
import dataclasses
import ipaddress
import logging
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import uvicorn
from starlette.responses import PlainTextResponse

from holdfast.app import Holdfast
from holdfast.cli.errors import WrongUsageError
from holdfast.cli.health import PATHS, health
from holdfast.cli.loading import load_app, split_target
from holdfast.cli.logs import set_up_logging
from holdfast.cli.supervisor_link import SupervisorLink
from holdfast.cli.terminal_text import escape_controls
from holdfast.core.collector import tune_collector
from holdfast.errors import HoldfastError

_log = logging.getLogger("holdfast")

_API = "/api/workflows"
_REQUEST_SECONDS = 5
"""Time for requests in flight to end after a stop was requested."""
_CLOSE_SECONDS = 10.0
_STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class CannotServeError(HoldfastError):
    code = "CANNOT_SERVE"


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """The options of the command line."""

    target: str
    app_dir: Path
    host: str
    port: int
    worker: bool = False
    tick: bool = False
    insecure: bool = False
    drain: float | None = None
    """Seconds; None: the setting of the app."""
    log_level: str | None = None
    log_format: str | None = None
    hints: bool = False
    debug: bool = False
    dashboard: bool = False
    example: bool = False

    def __post_init__(self) -> None:
        split_target(self.target)

    def arguments(self) -> list[str]:
        """These options as arguments of another ``holdfast serve``."""
        named = [("--app-dir", self.app_dir), ("--host", self.host), ("--port", self.port)]
        named += [("--drain", self.drain), ("--log-level", self.log_level), ("--log-format", self.log_format)]
        flags = [("--worker", self.worker), ("--tick", self.tick)]
        flags += [("--insecure", self.insecure), ("--hints", self.hints), ("--debug", self.debug)]
        flags += [("--dashboard", self.dashboard), ("--example", self.example)]
        return [
            *(f"{name}={value}" for name, value in named if value is not None),
            *(name for name, is_set in flags if is_set),
            "--",
            self.target,
        ]


def run_server(options: ServeOptions, supervisor_fd: int | None) -> None:
    app = load_app(options.target, options.app_dir)
    tune_collector()
    check_exposure(app, options)
    set_up_logging(options.log_level, options.log_format)
    app.collect_metrics()
    if options.drain is not None:
        app.worker_config = dataclasses.replace(app.worker_config, drain=options.drain)
    link = SupervisorLink(supervisor_fd) if supervisor_fd is not None else None
    with listening(options.host, options.port) as listener, asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(_serve(app, options, listener, link))


def check_exposure(app: Holdfast, options: ServeOptions) -> None:
    """Refuse to serve other machines without hooks: every caller could start, read and end every run."""
    if (app.authorize is None or app.authorize.open) and not options.insecure and not is_loopback(options.host):
        raise WrongUsageError(
            f"--host {options.host}: the app has no authorize hooks, so every caller that can reach this address "
            "could read and control its runs; give the app hooks, or give --insecure"
        )


def is_loopback(host: str) -> bool:
    with suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host == "localhost"


@contextmanager
def listening(host: str, port: int) -> Iterator[socket.socket]:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, port), family=family, backlog=2048)
    except OSError as error:
        reason = (error.strerror or str(error)).partition(" (while")[
            0
        ]  # Python appends the address, which the message below has
        raise CannotServeError(f"cannot listen on {host} port {port}: {reason}; see --host and --port") from None
    with listener:
        yield listener


class Server(uvicorn.Server):
    """A uvicorn server that does not handle signals, and calls ``started`` when it accepts requests."""

    def __init__(self, config: uvicorn.Config, started: Callable[[], None], end_streams: Callable[[], None]) -> None:
        super().__init__(config)
        self._started = started
        self._end_streams = end_streams

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._end_streams()  # they do not end by themselves, and the shutdown waits for open connections
        await super().shutdown(sockets)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._started()

    def stop(self) -> None:
        self.should_exit = True


async def _serve(app: Holdfast, options: ServeOptions, listener: socket.socket, link: SupervisorLink | None) -> None:
    def started() -> None:
        _show_start(app, options, listener.getsockname()[1])
        if link is not None:
            link.ready()

    async with _opened(app, options), app.lifespan():  # uvicorn does not run the lifespan
        application = _Application(app, options)
        server = Server(_config(application), started, application.end_streams)
        _stop_at_signals(server.stop)
        if link is not None:
            drain = app.worker_config.drain_ms / 1000 if options.worker else 0.0
            link.watch(server.stop, drain + _REQUEST_SECONDS + _CLOSE_SECONDS)
        await server.serve(sockets=[listener])
        _log.info("stopping" + ("; waiting for steps in flight" if options.worker else ""))
    _log.info("stopped")


def _opened(app: Holdfast, options: ServeOptions) -> AbstractAsyncContextManager[Holdfast]:
    return app if options.worker else app.connect()


def _config(application: _Application) -> uvicorn.Config:
    return uvicorn.Config(
        application,
        http=http_protocol(),
        lifespan="off",  # the app is already open
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=_REQUEST_SECONDS,
    )


class _Application:
    """ASGI: the API and, if requested, the dashboard at all other paths."""

    def __init__(self, app: Holdfast, options: ServeOptions) -> None:
        hosts = [_in_url(options.host)]
        self._app = app
        self._api = app.asgi(api=_API, tick=options.tick, hosts=hosts, metrics=True, debug=options.debug)
        self._site: Any = self._api
        if options.dashboard:
            self._site = app.dashboard(
                hosts=hosts, debug=options.debug, insecure=options.insecure, example=options.example
            )

    async def __call__(self, connection: Any, receive: Any, send: Any) -> None:
        path = connection.get("path", "")
        if path in PATHS:
            status, body = await health(self._app, path)
            await PlainTextResponse(body, status, {"Cache-Control": "no-store"})(connection, receive, send)
            return
        is_api = path in (_API, "/metrics") or path.startswith(f"{_API}/")
        await (self._api if is_api else self._site)(connection, receive, send)

    def end_streams(self) -> None:
        for served in (self._api, self._site):
            served.state.live.close()


def new_loop() -> asyncio.AbstractEventLoop:
    """A uvloop event loop if uvloop is installed: a dependency except on Windows and other Python implementations."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


def http_protocol() -> Any:
    """The protocol on httptools if that is installed; otherwise h11, which limits the head of a request itself."""
    try:
        from holdfast.cli.protocol import BoundedProtocol
    except ImportError:
        return "h11"
    return BoundedProtocol


def _stop_at_signals(stop: Callable[[], None]) -> None:
    """Stop in an orderly way at the first signal, and restore the default handling for the second.

    With the default handling the system ends the process, which no Python code can delay.
    """

    def handle(_number: int, _frame: FrameType | None) -> None:
        for number in _STOP_SIGNALS:
            signal.signal(number, signal.SIG_DFL)
        stop()

    for number in _STOP_SIGNALS:
        signal.signal(number, handle)


# --- output at the start


def base_url(host: str, port: int) -> str:
    """The base URL for programs on this machine."""
    reachable = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104  (compared, not bound)
    return f"http://{_in_url(reachable)}:{port}{_API}"


def _in_url(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _show_start(app: Holdfast, options: ServeOptions, port: int) -> None:
    url, runnable = base_url(options.host, port), app.registry.runnable()
    names = [definition.name for definition in app.registry if definition.name in runnable]
    if options.dashboard:
        print(f"Open    {url.removesuffix(_API)}/", flush=True)
    print(f"API     {url}", flush=True)
    if options.tick:
        print(f"Ticks   POST {url}/_runner/tick", flush=True)
    if options.worker:
        print(f"Worker  runs {', '.join(names) or 'nothing: the app has no workflows'}", flush=True)
    if options.hints:
        _show_hints(url, names, options.app_dir)


def _show_hints(url: str, names: list[str], directory: Path) -> None:
    workflow = names[0] if names else "WORKFLOW"
    lines = [
        f"Reload  when a .py file in {escape_controls(str(directory.resolve()))} changes",
        "",
        "Try, in another terminal:",
        f"  export HOLDFAST_BASE_URL={url}",
        "  holdfast workflows list",
        f"  holdfast instances create -w {workflow} -i first --params '...'",
        f"  holdfast instances get -w {workflow} -i first --full",
        f"  holdfast instances history -w {workflow} -i first",
        "",
    ]
    print("\n".join(lines), flush=True)
