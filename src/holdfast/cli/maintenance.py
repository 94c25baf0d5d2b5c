"""Commands that work on a database directly: ``prune``, ``export``, ``import``, ``move``, ``doctor``, ``reencrypt``."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from holdfast.core.durations import to_ms
from holdfast.core.model import Status
from holdfast.errors import InvalidDurationError

Url = Annotated[
    str,
    typer.Argument(metavar="URL", envvar="HOLDFAST_DATABASE_URL", show_default=False, help="The URL of the database."),
]
Schema = Annotated[
    str | None, typer.Option("--schema", metavar="NAME", help="PostgreSQL: the schema of the tables. Default: holdfast")
]


class EndedStatus(StrEnum):
    COMPLETE = Status.COMPLETE.value
    ERRORED = Status.ERRORED.value
    CANCELLED = Status.CANCELLED.value
    TERMINATED = Status.TERMINATED.value


def read_duration(text: str) -> int:
    """Milliseconds of a duration such as ``90d``."""
    try:
        return to_ms(text)
    except InvalidDurationError as error:
        raise typer.BadParameter(str(error)) from None


def add_maintenance_commands(cli: typer.Typer) -> None:
    cli.command()(prune)
    cli.command(name="export")(export)
    cli.command(name="import")(import_)
    cli.command()(move)
    cli.command()(doctor)
    cli.command()(reencrypt)


def prune(
    url: Url,
    older_than: Annotated[
        int,
        typer.Option(
            "--older-than", metavar="DURATION", parser=read_duration, help="Only runs that ended this long ago: 90d."
        ),
    ],
    workflow: Annotated[
        str | None, typer.Option("-w", "--workflow", metavar="NAME", help="Only runs of this workflow.")
    ] = None,
    status: Annotated[
        list[EndedStatus] | None,
        typer.Option("--status", help="Only runs with this status. Repeat the option for several."),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only count the runs.")] = False,
    schema: Schema = None,
) -> None:
    """Delete finished runs of a database, with their history, events and logs.

    Safe while workers run: runs are deleted in small transactions. Runs whose parent has not ended, and runs with
    outbound events that are not delivered, are kept. The id of a deleted instance can be used again. Free pages of a
    SQLite file are returned to the file system.

    \b
    Examples:
      holdfast prune sqlite:///shop.db --older-than 90d --dry-run       count first
      holdfast prune sqlite:///shop.db --older-than 90d
      holdfast prune --older-than 30d --status complete -w fulfil       with $HOLDFAST_DATABASE_URL set
    """
    from holdfast.cli.pruning import PruneOptions
    from holdfast.cli.pruning import prune as delete

    statuses = tuple(Status(one.value) for one in status or EndedStatus)
    delete(PruneOptions(url, schema, older_than, workflow, statuses, dry_run), typer.echo)


Abort = Annotated[bool, typer.Option("--abort", help="Give up an interrupted transfer: open the source again.")]


def export(
    url: Annotated[str, typer.Argument(metavar="URL", help="The database.")],
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The file to write: one JSON object per line.")],
    abort: Abort = False,
    schema: Schema = None,
) -> None:
    """Write all runs of a database to a file: open and finished ones, with history, timers, mailboxes and outbox.

    Stop all workers first. While the command runs, no process can write to the database or open it. If the command is
    interrupted, the database stays closed: repeat the command to continue where it stopped, or use --abort.

    \b
    Examples:
      holdfast export sqlite:///shop.db shop.jsonl
      holdfast export sqlite:///shop.db shop.jsonl --abort    after an interruption: open the database again

    Exit code 0 if the file is complete, 1 if a worker is alive or the file exists.
    """
    from holdfast.cli.transfer import Address, export_file

    export_file(Address(url, schema), file, typer.echo, abort=abort)


def import_(
    file: Annotated[Path, typer.Argument(metavar="FILE", exists=True, dir_okay=False, help="A file of an export.")],
    url: Annotated[str, typer.Argument(metavar="URL", help="The database; it must be empty, or not exist yet.")],
    schema: Schema = None,
) -> None:
    """Read all runs of a file into an empty database. Open runs continue when a worker starts.

    Until the command has ended, no process can open the database. If the command is interrupted, repeat it: it
    continues where it stopped. At the end counts and digests of the rows are compared.

    \b
    Examples:
      holdfast import shop.jsonl postgresql://app@db1/shop
      holdfast import shop.jsonl sqlite:///copy.db

    Exit code 0 if all rows are equal afterwards, 1 if the database is not empty or the file not complete.
    """
    from holdfast.cli.transfer import Address, import_file

    import_file(file, Address(url, schema), typer.echo)


def move(
    source: Annotated[str, typer.Argument(metavar="SOURCE", help="The URL of the database with the runs.")],
    target: Annotated[str, typer.Argument(metavar="TARGET", help="The URL of an empty database.")],
    source_schema: Annotated[
        str | None, typer.Option("--source-schema", metavar="NAME", help="PostgreSQL: the schema of the source.")
    ] = None,
    target_schema: Annotated[
        str | None, typer.Option("--target-schema", metavar="NAME", help="PostgreSQL: the schema of the target.")
    ] = None,
    abort: Abort = False,
) -> None:
    """Move all runs to another database, in either direction between SQLite and PostgreSQL.

    Stop all workers and clients first. The source is closed: no process can write to it or open it, also afterwards.
    Open runs, timers, mailboxes, schedules and the outbox continue in the target when a worker starts there. If the
    command is interrupted, repeat it: it continues where it stopped. At the end counts and digests of the rows are
    compared.

    \b
    Examples:
      holdfast move sqlite:///shop.db postgresql://app@db1/shop
      holdfast move postgresql://app@db1/shop sqlite:///shop.db
      holdfast move sqlite:///shop.db postgresql://app@db1/shop --abort    open the source again

    Exit code 0 if all rows are equal afterwards, 1 if a worker of the source is alive or the target is not empty.
    """
    from holdfast.cli.transfer import Address
    from holdfast.cli.transfer import move as transfer

    transfer(Address(source, source_schema), Address(target, target_schema), typer.echo, abort=abort)


def doctor(
    url: Url,
    app: Annotated[
        str | None,
        typer.Option("--app", metavar="MODULE:APP", help="Also check that the app has the code of all runs."),
    ] = None,
    app_dir: Annotated[
        Path, typer.Option("--app-dir", metavar="PATH", help="Search for the module here first.")
    ] = Path(),
    schema: Schema = None,
) -> None:
    """Check a database: settings that lose data, rights, disk, bloat, and runs that no worker executes.

    Each finding has a severity and the command that fixes it. The command changes nothing.

    \b
    Examples:
      holdfast doctor sqlite:///shop.db
      holdfast doctor postgresql://app@db1/shop --app shop:app

    Exit code 0 if there are no errors (warnings are allowed), 1 if there are.
    """
    from holdfast.cli.doctor import examine, load, report

    if not report(examine(url, schema, load(app, app_dir)), typer.echo):
        raise typer.Exit(1)


def reencrypt(
    app: Annotated[str, typer.Argument(metavar="MODULE:APP", help="The app, with its keys.")],
    app_dir: Annotated[
        Path, typer.Option("--app-dir", metavar="PATH", help="Search for the module here first.")
    ] = Path(),
) -> None:
    """Encrypt all stored values of an app's database with the app's first key.

    This includes values that were stored before the app had a codec. Safe while workers run: values are replaced in
    small transactions, and only if their row has not changed. If the command is interrupted, repeat it. An old key can
    be removed from the app when the command reports 0 values.

    \b
    Examples:
      holdfast reencrypt shop:app

    Exit code 0 if all values are encrypted with the first key, 1 if some cannot be read with the keys of the app.
    """
    from holdfast.cli.loading import load_app
    from holdfast.cli.reencryption import reencrypt as rewrite

    if not rewrite(load_app(app, app_dir), typer.echo):
        raise typer.Exit(1)
