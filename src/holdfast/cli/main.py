"""The ``holdfast`` command: parses arguments, calls the command, and reports an error as one line and an exit code.

Exit codes: 0 success, 1 failure, 2 wrong usage, 130 interrupted, 143 ended by a second SIGTERM.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from holdfast.cli.code_commands import add_code_commands
from holdfast.cli.control_commands import add_control_commands
from holdfast.cli.create_many import add_create_many_command
from holdfast.cli.flow import limits, queues
from holdfast.cli.init import init
from holdfast.cli.instances import instances
from holdfast.cli.maintenance import add_maintenance_commands
from holdfast.cli.mcp_command import mcp
from holdfast.cli.model_commands import add_model_commands
from holdfast.cli.observe import add_observe_commands
from holdfast.cli.options import read_event, read_json, remote_command
from holdfast.cli.repair_commands import add_repair_commands
from holdfast.cli.schedules import schedules
from holdfast.cli.serve import Format, LogLevel, Target, dev, serve
from holdfast.cli.streams import add_stream_command
from holdfast.cli.versions import versions
from holdfast.cli.view_commands import add_view_commands
from holdfast.cli.worker_commands import workers
from holdfast.cli.workflows import workflows

AppDir = Annotated[
    Path, typer.Option("--app-dir", metavar="PATH", help="Search for the module here first.", show_default=True)
]

cli = typer.Typer(
    name="holdfast",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
cli.command()(dev)
cli.command()(serve)
cli.add_typer(workflows, name="workflows")
add_create_many_command(instances)
add_control_commands(instances)
add_repair_commands(instances)
add_stream_command(instances)
add_model_commands(instances)
add_view_commands(cli, instances)
cli.add_typer(instances, name="instances")
cli.add_typer(schedules, name="schedules")
cli.add_typer(queues, name="queues")
cli.add_typer(limits, name="limits")
cli.add_typer(workers, name="workers")
add_maintenance_commands(cli)
add_code_commands(cli)
cli.command()(mcp)
cli.command()(init)
cli.command()(remote_command(versions))
add_observe_commands(cli)


def _show_version(requested: bool) -> None:
    if requested:
        from holdfast._version import __version__

        typer.echo(f"holdfast {__version__}")
        raise typer.Exit


@cli.callback(invoke_without_command=True)
def holdfast(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Durable workflows for Python: ordinary async code that survives crashes, deploys and months of waiting.

    \b
    Examples:
      holdfast demo                        watch an order survive the death of its worker
      holdfast demo --file my.db           the same, in a file of your choice
      holdfast init shop                   make a project with tests, Dockerfile and compose file
      holdfast dev shop:app                develop: worker, HTTP API, restart on changes
      holdfast worker shop:app             run the workflows of the app in shop.py
      holdfast serve shop:app              serve its HTTP API
      holdfast migrate sqlite:///shop.db   migrate a database to the current schema
      holdfast simulate shop:app fulfil    test a workflow under crashes and reordered events
      holdfast check shop:app              check open runs on new code before it is deployed
      holdfast replay shop:app fulfil/o-1  step through the history of a run
      holdfast instances list -w fulfil    list instances (see: holdfast instances --help)
      holdfast top                         watch the whole system
      holdfast worker --help               help of a command, with examples

    \b
    Exit codes:
      0     success; for commands that run until a signal: orderly shutdown
      1     failure; standard error has the reason
      2     wrong usage: options, invalid JSON in an argument, no such app
      130   interrupted by Ctrl-C
      143   ended by a second SIGTERM

    workflows, instances, workers, queues, limits, stats and top use HTTP only, with the server given by --base-url or
    $HOLDFAST_BASE_URL.
    """
    del version  # handled by its callback
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@cli.command()
def demo(
    file: Annotated[
        Path | None,
        typer.Option(
            "--file",
            metavar="PATH",
            help="The SQLite file to create; it must not exist yet. Default: a file in a new temporary directory.",
        ),
    ] = None,
    keep: Annotated[bool, typer.Option("--keep/--no-keep", help="Keep the file afterwards, for inspection.")] = True,
) -> None:
    """Watch an order survive the death of its worker.

    Runs an order in a worker process, kills that process with SIGKILL while a step runs, and starts another worker.
    Takes about ten seconds. The exit code is 0 only if the order completed and no finished step was run a second
    time.

    \b
    Examples:
      holdfast demo                       in a new file, which is kept
      holdfast demo --file /tmp/demo.db   in a file of your choice
      holdfast demo --no-keep             remove the file afterwards
      holdfast demo | cat                 plain lines, no colour
    """
    from holdfast.cli.demo import demonstrate

    if not demonstrate(file, keep=keep):
        raise typer.Exit(1)


Processes = Annotated[
    int,
    typer.Option("--processes", metavar="N", min=1, help="Number of worker processes; several are supervised."),
]
Concurrency = Annotated[
    int | None,
    typer.Option("--concurrency", metavar="M", min=1, help="Maximum number of runs that each process owns."),
]
Queues = Annotated[
    list[str] | None,
    typer.Option("--queue", metavar="Q", help="Claim only from this queue; repeat it. Shares: bulk=20,default=80."),
]
Drain = Annotated[
    str | None,
    typer.Option("--drain", metavar="DURATION", help="Time for steps in flight to end: 45, '90 s', '5 min'."),
]
Level = Annotated[
    LogLevel | None,
    typer.Option("--log-level", help="Default: info, unless the module sets up logging.", case_sensitive=False),
]
MetricsPort = Annotated[
    int | None,
    typer.Option(
        "--metrics-port",
        metavar="N",
        min=1,
        max=65000,
        help="Serve /metrics, /healthz and /readyz on this port; several processes use the ports from N on.",
    ),
]
MetricsHost = Annotated[str, typer.Option("--metrics-host", metavar="HOST", help="The address of the metrics port.")]


@cli.command()
def worker(
    target: Target,
    processes: Processes = 1,
    concurrency: Concurrency = None,
    queue: Queues = None,
    drain: Drain = None,
    app_dir: AppDir = Path(),
    log_level: Level = None,
    log_format: Format = None,
    metrics_port: MetricsPort = None,
    metrics_host: MetricsHost = "127.0.0.1",
    metrics_ports: Annotated[int, typer.Option("--metrics-ports", hidden=True)] = 1,
    supervisor_fd: Annotated[int | None, typer.Option("--supervisor-fd", hidden=True)] = None,
) -> None:
    """Run the workflows of an app, until SIGTERM or SIGINT.

    The first signal drains the worker: no more steps start, steps in flight have time to end, and all runs are
    released, so that other workers can claim them at once. A second signal ends the process at once. Settings that
    have no option here, or are not given, come from the app's WorkerConfig.

    With several processes, a process that ends is replaced, after a growing pause if it ends repeatedly. If the
    supervising process is killed, its workers drain and end.

    \b
    Examples:
      holdfast worker shop:app                           one process, in the directory of shop.py
      holdfast worker shop:app --processes 4             four processes
      holdfast worker shop:app --queue mail --queue bulk runs of these queues only
      holdfast worker shop:app --queue bulk=20,default=80 a fifth of the slots for bulk
      holdfast worker jobs.main:app --app-dir /srv/shop  from any directory
      holdfast worker shop:app --drain '2 min'           for long steps
      holdfast worker shop:app --metrics-port 9464       with metrics for Prometheus
      holdfast worker shop:app --log-format json         log lines as JSON, with the run and the step

    Exit code 0 after a drain, 1 if the app cannot be run, 2 if there is no such app.
    """
    from holdfast.cli.worker import WorkerOptions, work

    options = WorkerOptions(
        target, app_dir, concurrency, tuple(queue or ()), drain, log_level, log_format, metrics_port, metrics_host,
        metrics_ports,
    )  # fmt: skip
    if processes == 1:
        work(options, supervisor_fd)
        return
    from holdfast.cli.supervisor import supervise

    raise typer.Exit(supervise(options, processes))


@cli.command()
def migrate(
    url: Annotated[
        str,
        typer.Argument(metavar="URL", envvar="HOLDFAST_DATABASE_URL", help="The URL of the database, as in the app."),
    ],
    schema: Annotated[
        str | None, typer.Option("--schema", metavar="NAME", help="The PostgreSQL schema with Holdfast's tables.")
    ] = None,
    check: Annotated[bool, typer.Option("--check", help="Change nothing; fail if a migration is needed.")] = False,
) -> None:
    """Migrate the tables of a database to the current schema, before workers with new code start.

    Safe while workers run, and when several migrations run at once. To keep a password out of the process list, give
    the URL in the environment.

    \b
    Examples:
      holdfast migrate sqlite:///shop.db               a file in this directory, created if it does not exist
      holdfast migrate postgresql://app@db1/shop       a PostgreSQL server
      HOLDFAST_DATABASE_URL=... holdfast migrate       the URL from the environment
      holdfast migrate --check sqlite:///shop.db       check whether a migration is needed

    Exit code 0 if the schema is up to date afterwards, 1 if it is not.
    """
    from holdfast.cli.migration import bring_up_to_date

    typer.echo(bring_up_to_date(url, schema, check=check))


@cli.command()
def simulate(
    target: Annotated[
        str | None,
        typer.Argument(metavar="MODULE:APP", help="The app, as for a worker."),
    ] = None,
    workflow: Annotated[
        str | None, typer.Argument(metavar="WORKFLOW", help="The name of a workflow, a chain or a graph of the app.")
    ] = None,
    params: Annotated[
        str | None, typer.Option("--params", metavar="JSON", parser=read_json, help="The input of the workflow.")
    ] = None,
    event: Annotated[
        list[str] | None,
        typer.Option(
            "--event",
            metavar="TYPE=JSON",
            parser=read_event,
            help="An event to send when the workflow waits for it. Repeat the option for several.",
        ),
    ] = None,
    world: Annotated[
        str | None,
        typer.Option("--world", metavar="MODULE:FUNCTION", help="Resets the fakes; its return value is compared."),
    ] = None,
    allow: Annotated[
        list[str] | None,
        typer.Option(
            "--allow", metavar="JSON", parser=read_json, help="Another valid result. Repeat the option for several."
        ),
    ] = None,
    seeds: Annotated[
        int, typer.Option("--seeds", metavar="N", min=1, help="Number of seeds.", show_default=True)
    ] = 200,
    first: Annotated[int, typer.Option("--first", metavar="S", min=1, help="The first seed.")] = 1,
    seed: Annotated[int | None, typer.Option("--seed", metavar="S", min=1, help="Run only this seed.")] = None,
    app_dir: AppDir = Path(),
) -> None:
    """Run a workflow under faults, in virtual time: crashes, retries, slow and failing steps, reordered events.

    The functions of steps are called, so the services they use must be fakes; I/O is not possible. The simulation
    reports a step that is not safe to run twice, a result that depends on timing, a wait that can never end, and any
    outcome that differs from the outcome without faults. Each finding has a short description and the command that
    reproduces it. The Python function holdfast.testing.simulate has more options.

    \b
    Examples:
      holdfast simulate shop:app fulfil --params '{"id": "o-1"}'        200 seeds
      holdfast simulate shop:app fulfil --event 'approval={"by": "ann"}'  with an event
      holdfast simulate shop:app fulfil --world shop:fresh_bank         also compare the fakes
      holdfast simulate shop:app fulfil --seed 17                       repeat one seed

    Exit code 0 if nothing was found, 1 if something was found, 2 if there is no such app or workflow.
    """
    from holdfast.cli.simulation import SimulateOptions, run

    options = SimulateOptions(
        target, workflow, app_dir, params, tuple(event or ()), world, tuple(allow or ()), seeds, first, seed
    )
    raise typer.Exit(run(options))


def main() -> None:
    """The console script."""
    reconfigure = getattr(sys.stdout, "reconfigure", None)
    if reconfigure is not None:
        reconfigure(errors="replace")  # print "?" for characters that the terminal's encoding lacks
    from holdfast.cli.errors import WrongUsageError
    from holdfast.errors import HoldfastError

    try:
        cli()
    except HoldfastError as error:
        sys.stderr.write(f"holdfast: {' '.join(str(error).split())}\n")
        sys.exit(2 if isinstance(error, WrongUsageError) else 1)
    except KeyboardInterrupt:
        sys.stderr.write("holdfast: interrupted\n")
        sys.exit(130)
