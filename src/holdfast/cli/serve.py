"""The arguments of ``holdfast serve`` and ``holdfast dev``, which ``server`` and ``dev`` implement."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from holdfast.cli.errors import WrongUsageError
from holdfast.cli.options import read_seconds


class LogFormat(StrEnum):
    TEXT = "text"
    JSON = "json"


class LogLevel(StrEnum):
    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


Target = Annotated[
    str, typer.Argument(metavar="MODULE:APP", help="The app, as for an import: shop:app, jobs.main:app.")
]
OptionalTarget = Annotated[
    str | None, typer.Argument(metavar="MODULE:APP", help="The app, as for an import: shop:app, jobs.main:app.")
]
Host = Annotated[str, typer.Option("--host", metavar="HOST", help="The address to listen on.")]
Port = Annotated[
    int, typer.Option("--port", metavar="N", min=0, max=65535, help="The port to listen on; 0 chooses a free port.")
]
Insecure = Annotated[
    bool,
    typer.Option("--insecure", help="Serve other machines even if the app has no authorize hooks."),
]
AppDir = Annotated[Path, typer.Option("--app-dir", metavar="PATH", help="Search for the module here first.")]
Level = Annotated[
    LogLevel | None,
    typer.Option(
        "--log-level",
        metavar="LEVEL",
        help="debug, info, warning or error. Default: info, unless the module sets up logging.",
    ),
]
Format = Annotated[
    LogFormat | None,
    typer.Option("--log-format", metavar="FORMAT", help="text or json: one JSON object per line. Default: text."),
]
_DRAIN = "Time for steps in flight to end: 45, '90 s', '5 min'."
_DEV_DRAIN = 2.0


def is_loopback_name(host: str) -> bool:
    """True for addresses that only this machine reaches: there, the routes for debugging are enabled by default."""
    return host in ("127.0.0.1", "localhost", "::1")


def serve(
    target: Target,
    worker: Annotated[bool, typer.Option("--worker", help="Also run the workflows, in this process.")] = False,
    tick: Annotated[
        bool, typer.Option("--tick", help="Run the instances that are due at each POST _runner/tick, in this process.")
    ] = False,
    debug: Annotated[
        bool, typer.Option("--debug", help="Enable the routes that show stacks and local variables of runs.")
    ] = False,
    dashboard: Annotated[
        bool, typer.Option("--dashboard", help="Also serve the dashboard, at the root of the server.")
    ] = False,
    host: Host = "127.0.0.1",
    port: Port = 8787,
    insecure: Insecure = False,
    drain: Annotated[
        float | None, typer.Option("--drain", metavar="DURATION", parser=read_seconds, help=_DRAIN)
    ] = None,
    app_dir: AppDir = Path(),
    log_level: Level = None,
    log_format: Format = None,
    supervisor_fd: Annotated[int | None, typer.Option("--supervisor-fd", hidden=True)] = None,
    hints: Annotated[bool, typer.Option("--hints", hidden=True)] = False,
    example: Annotated[bool, typer.Option("--example", hidden=True)] = False,
) -> None:
    """Serve the HTTP API of an app, until SIGTERM or SIGINT.

    Prints the base URL, which the management commands need. GET /metrics is for Prometheus; --dashboard adds pages for
    a browser at the root of the server. Without --worker, this process starts and controls runs, and workers in other
    processes run them; with --tick, ticks of a scheduler such as cron run them. After the first signal, requests and
    steps in flight have time to end; a second signal ends the process at once.

    \b
    Examples:
      holdfast serve shop:app                      the API only, on 127.0.0.1:8787
      holdfast serve shop:app --worker             with a worker in the same process
      holdfast serve shop:app --dashboard          with pages for a browser on http://127.0.0.1:8787/
      holdfast serve shop:app --tick               run due instances at each POST _runner/tick
      holdfast serve shop:app --host 0.0.0.0       for other machines; the app needs authorize hooks
      holdfast serve jobs.main:app --app-dir /srv/shop --port 9000

    Exit code 0 after a signal, 1 if it cannot serve, 2 if there is no such app.
    """
    from holdfast.extras import extra

    with extra("server", "holdfast serve"):
        from holdfast.cli.server import ServeOptions, run_server

    options = ServeOptions(
        target, app_dir, host, port,
        worker=worker, tick=tick, insecure=insecure, drain=drain, log_level=log_level, log_format=log_format,
        hints=hints, debug=debug, dashboard=dashboard, example=example,
    )  # fmt: skip
    run_server(options, supervisor_fd)


def dev(
    target: OptionalTarget = None,
    example: Annotated[
        bool, typer.Option("--example", help="Serve an example instead: fifty workflows, and an order to try.")
    ] = False,
    host: Host = "127.0.0.1",
    port: Port = 8787,
    insecure: Insecure = False,
    app_dir: AppDir = Path(),
    log_level: Level = None,
    log_format: Format = None,
) -> None:
    """Run a worker, the API and the dashboard; restart on changes.

    For development: restarts when a .py file below --app-dir changes, and runs continue where they were. Code that
    cannot be imported is reported, and imported again at the next change. On a loopback address, the routes that show
    stacks and local variables of runs are enabled.

    \b
    Examples:
      holdfast dev shop:app                 on 127.0.0.1:8787; prints commands to try
      holdfast dev shop:app --port 9000
      holdfast dev jobs.main:app --app-dir src
      holdfast dev --example                an example with 5,000 runs; its workers can be killed

    Exit code 0 after a signal; 1 or 2 if the first start of the app fails.
    """
    from holdfast.extras import extra

    with extra("server", "holdfast dev"):
        from holdfast.cli.dev import develop
        from holdfast.cli.example import TARGET, run_example
        from holdfast.cli.server import ServeOptions

    if (target is None) is not example:
        raise WrongUsageError("give either MODULE:APP or --example")
    options = ServeOptions(
        target or TARGET, app_dir, host, port,
        worker=not example, insecure=insecure, drain=_DEV_DRAIN, log_level=log_level, log_format=log_format,
        debug=is_loopback_name(host), dashboard=True, example=example,
    )  # fmt: skip
    raise typer.Exit(run_example(options) if example else develop(options))
