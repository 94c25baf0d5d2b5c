"""The ``holdfast`` command: reads arguments, hands over, and turns errors into one line and an exit code.

Exit codes: 0 as promised, 1 it failed, 2 wrong usage, 130 interrupted, 143 ended by a second SIGTERM.
"""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from holdfast.cli.instances import instances
from holdfast.cli.kinds import add_kinds
from holdfast.cli.options import read_event, read_json
from holdfast.cli.serve import dev, serve
from holdfast.cli.workflows import workflows

cli = typer.Typer(
    name="holdfast",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
cli.command()(dev)
cli.command()(serve)
cli.add_typer(workflows, name="workflows")
add_kinds(instances)
cli.add_typer(instances, name="instances")


def _show_version(wanted: bool) -> None:
    if wanted:
        from holdfast import __version__  # noqa: PLC0415  (heavier than parsing arguments)

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
      holdfast demo --file my.db           the same, on a file of your choice
      holdfast dev shop:app                develop: worker, HTTP API, restart on changes
      holdfast worker shop:app             run the workflows of the app in shop.py
      holdfast serve shop:app              serve its HTTP API
      holdfast migrate sqlite:///shop.db   bring a database up to date
      holdfast simulate shop:app fulfil    does the workflow stand crashes and reordered events?
      holdfast instances list -w fulfil    what is running? (see: holdfast instances --help)
      holdfast worker --help               what a command does, with examples

    \b
    Exit codes:
      0     done; for what runs until a signal: ended in order
      1     it failed; standard error says why
      2     wrong usage: options, broken JSON in an argument, no such app
      130   interrupted by Ctrl-C
      143   ended by a second SIGTERM

    workflows and instances speak HTTP only, to the server that --base-url or $HOLDFAST_BASE_URL names.
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
            help="The SQLite file to make; it must not exist yet. Default: a new one in the temporary directory.",
        ),
    ] = None,
    keep: Annotated[bool, typer.Option("--keep/--no-keep", help="Keep the file afterwards, to look into it.")] = True,
) -> None:
    """Watch an order survive the death of its worker.

    Runs an order in a worker process, kills that process with SIGKILL in the middle, and starts another one. Takes
    about ten seconds and ends by itself. The exit code is 0 only if the order completed and no finished step was run
    a second time.

    \b
    Examples:
      holdfast demo                       on a new file, which is kept
      holdfast demo --file /tmp/demo.db   on a file of your choice
      holdfast demo --no-keep             leave nothing behind
      holdfast demo | cat                 plain lines, no colour
    """
    from holdfast.cli.demo import demonstrate  # noqa: PLC0415  (rich and the engine)

    if not demonstrate(file, keep=keep):
        raise typer.Exit(1)


class LogLevel(StrEnum):
    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


@cli.command()
def worker(
    target: Annotated[
        str, typer.Argument(metavar="MODULE:APP", help="Where the app is, as for an import: shop:app, jobs.main:app.")
    ],
    processes: Annotated[
        int, typer.Option("--processes", metavar="N", min=1, help="Worker processes; more than one are supervised.")
    ] = 1,
    concurrency: Annotated[
        int | None,
        typer.Option("--concurrency", metavar="M", min=1, help="Runs held at the same time, by each process."),
    ] = None,
    queue: Annotated[
        list[str] | None,
        typer.Option("--queue", metavar="Q", help="Take runs of this queue only. Repeat it for several."),
    ] = None,
    drain: Annotated[
        str | None,
        typer.Option("--drain", metavar="DURATION", help="How long steps in flight get to end: 45, '90 s', '5 min'."),
    ] = None,
    app_dir: Annotated[
        Path, typer.Option("--app-dir", metavar="PATH", help="Look for the module here first.", show_default=True)
    ] = Path(),
    log_level: Annotated[
        LogLevel | None,
        typer.Option("--log-level", help="Default: info, unless the module sets up logging.", case_sensitive=False),
    ] = None,
    lifeline: Annotated[int | None, typer.Option("--lifeline", hidden=True)] = None,
) -> None:
    """Run the workflows of an app, until SIGTERM or SIGINT.

    The first signal drains: no more steps start, those in flight get time to end, and all runs are given back, so that
    other workers go on with them at once. A second signal ends it on the spot. What the options do not say is as in
    the app's WorkerConfig.

    With several processes, one that dies is replaced, after a growing pause if it dies again and again. If the
    supervising process is killed, its workers drain and end.

    \b
    Examples:
      holdfast worker shop:app                           one process, in the directory of shop.py
      holdfast worker shop:app --processes 4             four of them
      holdfast worker shop:app --queue mail --queue bulk runs of these queues only
      holdfast worker jobs.main:app --app-dir /srv/shop  from anywhere
      holdfast worker shop:app --drain '2 min'           for steps that take their time

    Exit code 0 after a drain, 1 if the app cannot be run, 2 if there is none.
    """
    from holdfast.cli.worker import WorkerOptions, work  # noqa: PLC0415  (the engine)

    options = WorkerOptions(target, app_dir, concurrency, tuple(queue or ()), drain, log_level)
    if processes == 1:
        work(options, lifeline)
        return
    from holdfast.cli.supervisor import supervise  # noqa: PLC0415

    raise typer.Exit(supervise(options, processes))


@cli.command()
def migrate(
    url: Annotated[
        str, typer.Argument(metavar="URL", envvar="HOLDFAST_DATABASE_URL", help="The database, as the app names it.")
    ],
    schema: Annotated[
        str | None, typer.Option("--schema", metavar="NAME", help="The PostgreSQL schema with Holdfast's tables.")
    ] = None,
    check: Annotated[bool, typer.Option("--check", help="Change nothing; fail if a migration is due.")] = False,
) -> None:
    """Bring the tables in a database up to date, before workers with new code start.

    Safe while others work, and when several do it at once. Keep a password out of the list of processes: give the URL
    in the environment.

    \b
    Examples:
      holdfast migrate sqlite:///shop.db               a file in this directory, made if there is none
      holdfast migrate postgresql://app@db1/shop       a server
      HOLDFAST_DATABASE_URL=... holdfast migrate       from the environment
      holdfast migrate --check sqlite:///shop.db       is there something to do?

    Exit code 0 if the database is up to date now, 1 if it is not.
    """
    from holdfast.cli.migration import bring_up_to_date  # noqa: PLC0415  (the engine)

    typer.echo(bring_up_to_date(url, schema, check=check))


@cli.command()
def simulate(
    target: Annotated[
        str | None,
        typer.Argument(metavar="[MODULE:APP]", help="Where the app is, as for a worker. Default: the engine itself."),
    ] = None,
    workflow: Annotated[
        str | None, typer.Argument(metavar="[WORKFLOW]", help="The name of a workflow, a chain or a graph of the app.")
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
            help="What the outside sends, when it is waited for. Repeat it for several.",
        ),
    ] = None,
    world: Annotated[
        str | None,
        typer.Option("--world", metavar="MODULE:FUNCTION", help="Makes the fakes anew; what it returns is compared."),
    ] = None,
    allow: Annotated[
        list[str] | None,
        typer.Option("--allow", metavar="JSON", parser=read_json, help="Another result that is right. Repeatable."),
    ] = None,
    seeds: Annotated[
        int | None,
        typer.Option("--seeds", metavar="N", min=1, help="How many seeds. Default: 200, of the engine 100."),
    ] = None,
    first: Annotated[int, typer.Option("--first", metavar="S", min=1, help="The first of them.")] = 1,
    seed: Annotated[int | None, typer.Option("--seed", metavar="S", min=1, help="This one alone.")] = None,
    story: Annotated[
        bool, typer.Option("--story", help="Of the engine: tell what happened, made as small as possible.")
    ] = False,
    counts: Annotated[
        bool, typer.Option("--counts", help="Of the engine: how often each fault met each operation.")
    ] = False,
    bug: Annotated[
        str | None, typer.Option("--bug", metavar="BUG", help="Of the engine: with a planted bug. Is it found?")
    ] = None,
    only: Annotated[
        str | None, typer.Option("--only", metavar="FAULTS", help="Of the engine, with --seed: none but these faults.")
    ] = None,
    without: Annotated[
        str | None,
        typer.Option("--without", metavar="IDS", help="Of the engine, with --seed: without these instances."),
    ] = None,
    processes: Annotated[
        int, typer.Option("--processes", metavar="N", min=1, help="Of the engine: run seeds in N processes at once.")
    ] = 1,
    app_dir: Annotated[
        Path, typer.Option("--app-dir", metavar="PATH", help="Look for the module here first.", show_default=True)
    ] = Path(),
) -> None:
    """Run a workflow under faults, in virtual time: crashes, retries, slow and failing steps, reordered events.

    Its steps are really called, so their services must be fakes; there is no I/O. Reports a step that is not safe to
    run twice, a result that depends on timing, a wait that can never end, and whatever ends otherwise than without
    faults; each with a short story, and the command that shows it again. More can be said in Python:
    holdfast.testing.simulate.

    Without an app, it is the engine that is simulated, with workflows of its own, and its promises are checked.

    \b
    Examples:
      holdfast simulate shop:app fulfil --params '{"id": "o-1"}'        200 seeds
      holdfast simulate shop:app fulfil --event 'approval={"by": "ann"}'  with an event
      holdfast simulate shop:app fulfil --world shop:fresh_bank         compare the fakes, too
      holdfast simulate shop:app fulfil --seed 17                       one of them again
      holdfast simulate --seeds 1000 --story                            the engine

    Exit code 0 if nothing was found, 1 if something was, 2 if there is no such app or workflow.
    """
    from holdfast.cli.simulation import SimulateOptions, run  # noqa: PLC0415  (the engine, and its simulation)

    options = SimulateOptions(
        target, workflow, app_dir, params, tuple(event or ()), world, tuple(allow or ()),
        seeds, first, seed, story, counts, bug, only, without, processes,
    )  # fmt: skip
    raise typer.Exit(run(options))


def main() -> None:
    """The console script."""
    reconfigure = getattr(sys.stdout, "reconfigure", None)
    if reconfigure is not None:
        reconfigure(errors="replace")  # a terminal that cannot show a sign shows "?"
    from holdfast.cli.errors import WrongUsageError  # noqa: PLC0415
    from holdfast.errors import HoldfastError  # noqa: PLC0415

    try:
        cli()
    except HoldfastError as error:
        sys.stderr.write(f"holdfast: {' '.join(str(error).split())}\n")
        sys.exit(2 if isinstance(error, WrongUsageError) else 1)
    except KeyboardInterrupt:
        sys.stderr.write("holdfast: interrupted\n")
        sys.exit(130)
