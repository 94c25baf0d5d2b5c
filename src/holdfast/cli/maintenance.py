"""Commands that work on a database directly: ``prune``."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from holdfast.core.durations import to_ms
from holdfast.core.model import Status
from holdfast.errors import InvalidDurationError

Url = Annotated[
    str,
    typer.Argument(
        metavar="URL", envvar="HOLDFAST_DATABASE_URL", show_default=False, help="The database. Default: the variable."
    ),
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
    from holdfast.cli.pruning import PruneOptions  # noqa: PLC0415  (the engine)
    from holdfast.cli.pruning import prune as delete  # noqa: PLC0415

    statuses = tuple(Status(one.value) for one in status or EndedStatus)
    delete(PruneOptions(url, schema, older_than, workflow, statuses, dry_run), typer.echo)
