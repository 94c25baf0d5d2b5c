"""``holdfast serve``: the HTTP API of an app, with or without a worker, until a signal or the supervisor ends it.

Signals are handled here and not by uvicorn: requests are answered first, then the worker drains, and the exit code
is 0.
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

from holdfast.app import Holdfast
from holdfast.cli import memory
from holdfast.cli.errors import WrongUsageError
from holdfast.cli.lifeline import Lifeline
from holdfast.cli.loading import load_app, split_target
from holdfast.cli.logs import set_up_logging
from holdfast.cli.safe import safe
from holdfast.errors import HoldfastError

_log = logging.getLogger("holdfast")

_API = "/api/workflows"
_ANSWER_SECONDS = 5
"""How long requests in flight may take once the server is told to stop."""
_CLOSE_SECONDS = 10.0
_STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class CannotServeError(HoldfastError):
    code = "CANNOT_SERVE"


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """What was asked for on the command line."""

    target: str
    app_dir: Path
    host: str
    port: int
    worker: bool = False
    tick: bool = False
    insecure: bool = False
    drain: float | None = None
    """Seconds; None leaves it to the app."""
    log_level: str | None = None
    hints: bool = False

    def __post_init__(self) -> None:
        split_target(self.target)

    def arguments(self) -> list[str]:
        """The same, for another ``holdfast serve``."""
        named = [("--app-dir", self.app_dir), ("--host", self.host), ("--port", self.port)]
        named += [("--drain", self.drain), ("--log-level", self.log_level)]
        flags = [("--worker", self.worker), ("--tick", self.tick)]
        flags += [("--insecure", self.insecure), ("--hints", self.hints)]
        return [
            *(f"{name}={value}" for name, value in named if value is not None),
            *(name for name, given in flags if given),
            "--",
            self.target,
        ]


def run_server(options: ServeOptions, lifeline: int | None) -> None:
    app = load_app(options.target, options.app_dir)
    memory.settle()
    check_exposure(app, options)
    set_up_logging(options.log_level)
    if options.drain is not None:
        app.worker_config = dataclasses.replace(app.worker_config, drain=options.drain)
    line = Lifeline(lifeline) if lifeline is not None else None
    with listening(options.host, options.port) as listener, asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(_serve(app, options, listener, line))


def check_exposure(app: Holdfast, options: ServeOptions) -> None:
    """Whoever reaches an API without hooks may start, read and end every run."""
    if app.authorize.open and not options.insecure and not is_loopback(options.host):
        raise WrongUsageError(
            f"--host {options.host}: the app has no authorize hooks, so everyone who can reach this address could "
            "read and steer its runs; give the app hooks, or give --insecure"
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
        reason = (error.strerror or str(error)).partition(" (while")[0]  # Python adds the address, which is named here
        raise CannotServeError(f"cannot listen on {host} port {port}: {reason}; see --host and --port") from None
    with listener:
        yield listener


class Server(uvicorn.Server):
    """One that leaves signals to this module, and says when it answers."""

    def __init__(self, config: uvicorn.Config, started: Callable[[], None]) -> None:
        super().__init__(config)
        self._started = started

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._started()

    def stop(self) -> None:
        self.should_exit = True


async def _serve(app: Holdfast, options: ServeOptions, listener: socket.socket, lifeline: Lifeline | None) -> None:
    def started() -> None:
        _show_start(app, options, listener.getsockname()[1])
        if lifeline is not None:
            lifeline.ready()

    async with _opened(app, options):
        server = Server(_config(app, options), started)
        _stop_at_signals(server.stop)
        if lifeline is not None:
            drain = app.worker_config.drain_ms / 1000 if options.worker else 0.0
            lifeline.watch(server.stop, drain + _ANSWER_SECONDS + _CLOSE_SECONDS)
        await server.serve(sockets=[listener])
        _log.info("stopping" + ("; steps in flight may end" if options.worker else ""))
    _log.info("stopped")


def _opened(app: Holdfast, options: ServeOptions) -> AbstractAsyncContextManager[Holdfast]:
    return app if options.worker else app.connect()


def _config(app: Holdfast, options: ServeOptions) -> uvicorn.Config:
    return uvicorn.Config(
        app.asgi(api=_API, tick=options.tick, hosts=[_in_url(options.host)]),
        http=http_protocol(),
        lifespan="off",  # the app is open already
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=_ANSWER_SECONDS,
    )


def new_loop() -> asyncio.AbstractEventLoop:
    """The fast one where there is one: it is a dependency but on Windows and other Pythons."""
    try:
        import uvloop  # noqa: PLC0415
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


def http_protocol() -> Any:
    """The fast parser, likewise; the other one has bounds of its own."""
    try:
        from holdfast.cli.protocol import BoundedProtocol  # noqa: PLC0415
    except ImportError:
        return "h11"
    return BoundedProtocol


def _stop_at_signals(stop: Callable[[], None]) -> None:
    """The first signal stops in order. Then the system's own handling is back: nothing can hold up the second."""

    def handle(_number: int, _frame: FrameType | None) -> None:
        for number in _STOP_SIGNALS:
            signal.signal(number, signal.SIG_DFL)
        stop()

    for number in _STOP_SIGNALS:
        signal.signal(number, handle)


# --- what is said at the start


def base_url(host: str, port: int) -> str:
    """As a program on this machine reaches it."""
    shown = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104  (read, not bound)
    return f"http://{_in_url(shown)}:{port}{_API}"


def _in_url(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _show_start(app: Holdfast, options: ServeOptions, port: int) -> None:
    url, runnable = base_url(options.host, port), app.registry.runnable()
    names = [definition.name for definition in app.registry if definition.name in runnable]
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
        f"Reload  when a .py file in {safe(str(directory.resolve()))} changes",
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
