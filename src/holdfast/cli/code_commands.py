"""Commands that run the code of an app on recorded runs: ``check``, ``replay``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Target = Annotated[
    str, typer.Argument(metavar="MODULE:APP", help="The app, as for an import: shop:app, jobs.main:app.")
]
AppDir = Annotated[
    Path, typer.Option("--app-dir", metavar="PATH", help="Search for the module here first.", show_default=True)
]
Schema = Annotated[
    str | None, typer.Option("--schema", metavar="NAME", help="PostgreSQL: the schema of the tables. Default: holdfast")
]
Against = Annotated[
    str | None,
    typer.Option(
        "--against",
        metavar="URL",
        envvar="HOLDFAST_DATABASE_URL",
        show_envvar=False,
        help="The database with the runs. Default: the variable HOLDFAST_DATABASE_URL, else the database of the app.",
    ),
]


def add_code_commands(cli: typer.Typer) -> None:
    cli.command()(check)
    cli.command()(replay)


def check(
    target: Target,
    against: Against = None,
    schema: Schema = None,
    workflow: Annotated[
        str | None, typer.Option("-w", "--workflow", metavar="NAME", help="Only runs of this workflow.")
    ] = None,
    sample: Annotated[
        int | None, typer.Option("--sample", metavar="N", min=1, help="At most N runs of each workflow.")
    ] = None,
    junit: Annotated[
        Path | None, typer.Option("--junit", metavar="FILE", help="Also write a report in the format of JUnit.")
    ] = None,
    processes: Annotated[
        int, typer.Option("--processes", metavar="N", min=1, help="Number of processes that replay runs.")
    ] = 1,
    app_dir: AppDir = Path(),
) -> None:
    """Check whether the open runs of a database fit the code of an app, before it is deployed.

    Replays every open run on this code. Nothing is written, no step is called, and workers may run meanwhile. Reports
    for each workflow how many runs fit, would be parked (with what is recorded and what the code requests), would call
    a step again, would not use a recorded result, have a recorded value that no longer fits, or belong to a workflow
    that the app does not have. Steps after the end of a run's history may be added and removed. Declare other changes
    that are intended with @app.step(renamed_from=...) and app.retired_steps(...). If the app has a version, runs that
    are pinned to another version are counted apart, because workers of this app do not claim them.

    \b
    Examples:
      holdfast check shop:app --against postgresql://app@db1/shop          all open runs
      holdfast check shop:app --against sqlite:///shop.db -w fulfil        one workflow
      holdfast check shop:app --sample 100 --junit check.xml               in CI, with $HOLDFAST_DATABASE_URL set
      holdfast check shop:app --processes 4                                on four cores

    Exit code 0 if all runs fit, 1 if one does not or the database cannot be read, 2 if there is no such app.
    """
    from holdfast.cli.check import CheckCommand, run

    command = CheckCommand(target, app_dir, against, schema, workflow, sample, junit, processes)
    raise typer.Exit(run(command))


def replay(
    target: Target,
    instance: Annotated[
        str | None,
        typer.Argument(metavar="WORKFLOW/ID", show_default=False, help="The instance, unless --file is given."),
    ] = None,
    file: Annotated[
        Path | None, typer.Option("--file", metavar="FILE", help="A run written by run.export or instances export.")
    ] = None,
    until: Annotated[
        int | None,
        typer.Option(
            "--until", metavar="N", min=0, help="Stop after N facts; 0 is before the first. Default: the end."
        ),
    ] = None,
    run_number: Annotated[
        int | None, typer.Option("--run", metavar="N", min=0, help="The number of the run. Default: the current run.")
    ] = None,
    pdb: Annotated[
        bool, typer.Option("--pdb", help="Stop in the Python debugger where the code continues after the fact --until.")
    ] = False,
    all_frames: Annotated[bool, typer.Option("--all", help="Also show frames of libraries and of Holdfast.")] = False,
    against: Against = None,
    schema: Schema = None,
    app_dir: AppDir = Path(),
) -> None:
    """Replay a run on the code of an app, and show where the code is after a fact of its history.

    Shows the facts, the stack of every task with its local variables, what the code waits for, and its log lines. On a
    terminal, n and p step forwards and backwards through the history. Nothing is written, and no step is called: steps
    return their recorded results. Values of secret names are redacted, except in the debugger.

    \b
    Examples:
      holdfast replay shop:app fulfil/o-1                the current position; n and p step through the history
      holdfast replay shop:app fulfil/o-1 --until 2      after two facts
      holdfast replay shop:app fulfil/o-1 --until 2 --pdb
      holdfast replay shop:app --file run.json           a run from another machine

    Exit code 0 if the code fits the history, 1 if it does not, 2 if there is no such app.
    """
    from holdfast.cli.replay import ReplayCommand, run

    command = ReplayCommand(
        target, app_dir, instance, file, until, run_number, against, schema, pdb=pdb, all_frames=all_frames
    )
    raise typer.Exit(run(command))
