"""The ``holdfast`` command: reads arguments, hands over, and turns errors into one line and an exit code.

Exit codes: 0 as promised, 1 it failed, 2 wrong usage, 130 interrupted.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

cli = typer.Typer(
    name="holdfast",
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


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
      holdfast demo                 watch an order survive the death of its worker
      holdfast demo --file my.db    the same, on a file of your choice
      holdfast demo --help          what a command does, with examples
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


def main() -> None:
    """The console script."""
    reconfigure = getattr(sys.stdout, "reconfigure", None)
    if reconfigure is not None:
        reconfigure(errors="replace")  # a terminal that cannot show a sign shows "?"
    from holdfast.errors import HoldfastError  # noqa: PLC0415

    try:
        cli()
    except HoldfastError as error:
        sys.exit(f"holdfast: {error}")
    except KeyboardInterrupt:
        sys.stderr.write("holdfast: interrupted\n")
        sys.exit(130)
