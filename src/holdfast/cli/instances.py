"""``holdfast instances``: the group of commands, and those that show instances.

Uses HTTP only; ``views`` formats the output. The other commands of the group are in ``control_commands`` and
``model_commands``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Annotated

import typer

from holdfast.cli.options import InstanceId, WorkflowName, check_name, read_instant, read_seconds, remote_command
from holdfast.cli.remote import Remote
from holdfast.cli.response_fields import TERMINAL
from holdfast.core.show import shown

instances = typer.Typer(no_args_is_help=True, rich_markup_mode=None)


class Status(StrEnum):
    ACTIVE = "active"
    WAITING = "waiting"
    PAUSED = "paused"
    COMPLETE = "complete"
    ERRORED = "errored"
    TERMINATED = "terminated"
    CANCELLED = "cancelled"


class Level(StrEnum):
    DEBUG = "debug"
    INFO = "info"
    WARN = "warn"
    ERROR = "error"


class Order(StrEnum):
    ASC = "asc"
    DESC = "desc"


PageSize = Annotated[
    int | None,
    typer.Option("--page-size", metavar="N", min=1, max=100, help="Show one page of N items (1 to 100)."),
]
RunNumber = Annotated[
    int | None,
    typer.Option("--run", metavar="N", min=0, help="The number of the run, counted from 0. Default: the current run."),
]
LogLevel = Annotated[
    Level | None,
    typer.Option(
        "--log-level", metavar="LEVEL", help="debug, info, warn or error: only log lines of exactly this level."
    ),
]
LogCategory = Annotated[
    str | None, typer.Option("--log-category", metavar="C", help="Only log lines of this category.")
]
Ordering = Annotated[Order, typer.Option("--order", metavar="ORDER", help="asc or desc: oldest or newest first.")]
LogsCursor = Annotated[
    str | None, typer.Option("--logs-cursor", metavar="CURSOR", help="Start with the log lines after this cursor.")
]


@instances.callback()
def about() -> None:
    """Show and control instances of workflows.

    \b
    Examples, with $HOLDFAST_BASE_URL set:
      holdfast instances list -w fulfil --status errored     instances that failed
      holdfast instances get -w fulfil -i order-1            status of an instance, and why
      holdfast instances history -w fulfil -i order-1        what has happened so far
      holdfast instances logs -w fulfil -i order-1 --follow  new log lines

    facts, mermaid and kill are for graphs, outbox and redeliver for chains.
    """


OfWorkflow = Annotated[
    str | None,
    typer.Option(
        "--workflow",
        "-w",
        metavar="WF",
        callback=check_name,
        help="Only instances of this workflow. Default: of all.",
    ),
]
OfStatus = Annotated[
    Status | None,
    typer.Option("--status", metavar="STATUS", help=f"Only instances with this status: {', '.join(Status)}."),
]
WithAttributes = Annotated[
    list[str] | None,
    typer.Option(
        "--search",
        metavar="KEY=VALUE",
        help="Only instances with this search attribute; total=>=100 compares, a number in double quotes is text. "
        "Repeat the option for several attributes.",
    ),
]
EndedBy = Annotated[str | None, typer.Option("--error", metavar="NAME", help="Only instances that this error ended.")]
IdPrefix = Annotated[
    str | None, typer.Option("--id-prefix", metavar="TEXT", help="Only instances whose id begins with this text.")
]
Since = Annotated[
    float | None,
    typer.Option(
        "--since",
        metavar="DURATION",
        parser=read_seconds,
        help="Only instances that were created within this time; with --error or the status of an ended run, only "
        "those that ended within it.",
    ),
]
CreatedAfter = Annotated[
    str | None,
    typer.Option(
        "--created-after", metavar="WHEN", parser=read_instant, help="Only instances created at this time or later."
    ),
]
CreatedBefore = Annotated[
    str | None,
    typer.Option(
        "--created-before", metavar="WHEN", parser=read_instant, help="Only instances created before this time."
    ),
]
EndedAfter = Annotated[
    str | None,
    typer.Option(
        "--ended-after", metavar="WHEN", parser=read_instant, help="Only instances that ended at this time or later."
    ),
]
EndedBefore = Annotated[
    str | None,
    typer.Option(
        "--ended-before", metavar="WHEN", parser=read_instant, help="Only instances that ended before this time."
    ),
]
OfVersion = Annotated[
    str | None, typer.Option("--version", metavar="VERSION", help="Only instances that this release started.")
]
OfQueue = Annotated[str | None, typer.Option("--queue", metavar="QUEUE", help="Only instances of this queue.")]
Cursor = Annotated[
    str | None, typer.Option("--cursor", metavar="CURSOR", help="Start after this cursor, as printed below a page.")
]
Wide = Annotated[
    bool,
    typer.Option("--wide", help="The same columns for every list, without empty fields, for programs such as awk."),
]


@instances.command(name="list")
@remote_command
def list_instances(
    remote: Remote,
    workflow: OfWorkflow = None,
    status: OfStatus = None,
    search: WithAttributes = None,
    error: EndedBy = None,
    id_prefix: IdPrefix = None,
    since: Since = None,
    created_after: CreatedAfter = None,
    created_before: CreatedBefore = None,
    ended_after: EndedAfter = None,
    ended_before: EndedBefore = None,
    version: OfVersion = None,
    queue: OfQueue = None,
    page_size: PageSize = None,
    cursor: Cursor = None,
    wide: Wide = False,
) -> None:
    """List instances of a workflow, or of all workflows, newest first, 25 to a page.

    \b
    Examples:
      holdfast instances list
      holdfast instances list --wide | awk '$2 == "errored" {print $1}'
      holdfast instances list -w fulfil
      holdfast instances list -w fulfil --search customer=c-1 --search "total=>=100"
      holdfast instances list -w fulfil --status errored --page-size 100
      holdfast instances list --error KeyError --since 1h
      holdfast instances list --created-after 2026-11-01 --created-before 2026-12-01
      holdfast instances list -w fulfil --cursor i1234
    """
    from holdfast.cli import views

    query = {"status": status, "pageSize": page_size, "cursor": cursor, **_attributes(search or ())}
    options = [word for text in search or () for word in ("--search", text)]
    filters = {
        "error": error,
        "idPrefix": id_prefix,
        "createdAfter": created_after,
        "createdBefore": created_before,
        "endedAfter": ended_after,
        "endedBefore": ended_before,
        "version": version,
        "queue": queue,
    }
    for name, text in filters.items():
        options += [] if text is None else [_option(name), text]
    options += [] if since is None else ["--since", f"{since:g}"]
    filters |= _since(since, error, status)
    if any(value is not None for value in filters.values()):
        query |= {**filters, "workflow": workflow}
    if page_size is not None:
        options += ["--page-size", str(page_size)]
    if wide:
        options.append("--wide")
    path = ("_instances",) if workflow is None or "workflow" in query else (workflow, "instances")
    page = remote.get(*path, expect="instances", query=query)
    views.show_list(page, workflow, status, options, searched=bool(search), wide=wide)


@instances.command()
@remote_command
def get(
    remote: Remote,
    workflow: WorkflowName,
    id: InstanceId,
    full: Annotated[bool, typer.Option("--full", help="Also show the input and the output.")] = False,
) -> None:
    """Show the state of an instance, and why it is in that state.

    Shows the status, the current step, the times and the traceback of the error; with --full also input and output.

    \b
    Examples:
      holdfast instances get -w fulfil -i order-1
      holdfast instances get -w fulfil -i order-1 --full
    """
    from holdfast.cli import views

    views.show_instance(remote.get(workflow, "instances", id, expect="details"), workflow, full=full)


@instances.command()
@remote_command
def history(
    remote: Remote,
    workflow: WorkflowName,
    id: InstanceId,
    run: RunNumber = None,
    full: Annotated[bool, typer.Option("--full", help="Also show the traceback of each error.")] = False,
    include_logs: Annotated[bool, typer.Option("--include-logs", help="Also show the log lines.")] = False,
    log_level: LogLevel = None,
    log_category: LogCategory = None,
    order: Ordering = Order.ASC,
    page_size: PageSize = None,
    steps_cursor: Annotated[
        str | None, typer.Option("--steps-cursor", metavar="CURSOR", help="Start with the steps after this cursor.")
    ] = None,
    events_cursor: Annotated[
        str | None, typer.Option("--events-cursor", metavar="CURSOR", help="Start with the events after this cursor.")
    ] = None,
    logs_cursor: LogsCursor = None,
) -> None:
    """Show what happened in a run.

    Shows steps, attempts, retries, waits, events and errors in chronological order: the whole history, or one page
    with --page-size or a cursor.

    \b
    Examples:
      holdfast instances history -w fulfil -i order-1
      holdfast instances history -w fulfil -i order-1 --full       with tracebacks
      holdfast instances history -w fulfil -i order-1 --include-logs --log-level error
      holdfast instances history -w fulfil -i order-1 --run 0      the run before the first restart
      holdfast instances history -w fulfil -i order-1 --order desc | head
    """
    from holdfast.cli import history_pages, views

    instance = remote.get(workflow, "instances", id, expect="meta")
    filters = {"logLevel": log_level, "logCategory": log_category} if include_logs else {}
    request = history_pages.HistoryRequest(
        path=(workflow, "instances", id),
        query={"runNumber": run, "order": order, "includeLogs": "true" if include_logs else None, **filters},
        page_size=page_size,
        cursors={"steps": steps_cursor, "events": events_cursor, "logs": logs_cursor},
    )
    views.show_history(history_pages.read(remote, request), instance, newest_first=order is Order.DESC, full=full)


@instances.command()
@remote_command
def logs(
    remote: Remote,
    workflow: WorkflowName,
    id: InstanceId,
    run: RunNumber = None,
    follow: Annotated[
        bool,
        typer.Option(
            "--follow",
            "-f",
            help="Show new lines until the run has ended. If the server becomes unavailable, wait for it.",
        ),
    ] = False,
    log_level: LogLevel = None,
    log_category: LogCategory = None,
    order: Ordering = Order.ASC,
    page_size: PageSize = None,
    logs_cursor: LogsCursor = None,
    include_replayed: Annotated[
        bool,
        typer.Option("--include-replayed", help="Also show the lines that a replay wrote again; they are marked."),
    ] = False,
) -> None:
    """Show the log lines of a run.

    Shows all lines, or one page with --page-size or a cursor. Times are UTC. Lines that a replay wrote again are
    omitted without --include-replayed.

    \b
    Examples:
      holdfast instances logs -w fulfil -i order-1
      holdfast instances logs -w fulfil -i order-1 --follow
      holdfast instances logs -w fulfil -i order-1 --log-level error
      holdfast instances logs -w fulfil -i order-1 --log-category system    lines of the engine
      holdfast instances logs -w fulfil -i order-1 --include-replayed       how often the code ran
    """
    from holdfast.cli import history_pages, views

    path = (workflow, "instances", id)
    filters: dict[str, object] = {"logLevel": log_level, "logCategory": log_category}
    if not follow:
        query = {"runNumber": run, "order": order, "includeLogs": "true", **filters}
        request = history_pages.HistoryRequest(path, query, page_size, {"logs": logs_cursor})
        views.show_logs(history_pages.read(remote, request, lists=("logs",)), replayed=include_replayed)
        return
    if order is Order.DESC or page_size is not None:
        raise typer.BadParameter("--follow cannot be combined with --order desc or --page-size")
    from holdfast.cli.follow import Follower

    views.show_followed(Follower(remote, path, filters, logs_cursor, replayed=include_replayed), run)


def _option(field: str) -> str:
    """The option of a field: --created-after for createdAfter."""
    return "--" + re.sub("[A-Z]", lambda letter: f"-{letter[0].lower()}", field)


def _since(seconds: float | None, error: str | None, status: Status | None) -> dict[str, str | None]:
    """The condition of --since: the time of the end for runs that have ended, else the time of creation."""
    if seconds is None:
        return {}
    ended = error is not None or (status is not None and status in TERMINAL)
    start = datetime.now(UTC) - timedelta(seconds=seconds)
    return {"endedAfter" if ended else "createdAfter": start.isoformat()}


def _attributes(texts: Sequence[str]) -> dict[str, list[str]]:
    """Query parameters for texts such as ``total=>=100``. The server interprets the values."""
    parameters: dict[str, list[str]] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not key or not equals or not _is_utf8(text):
            raise typer.BadParameter(f"{shown(text)} is not of the form KEY=VALUE", param_hint="'--search'")
        parameters.setdefault(f"search.{key}", []).append(value)
    return parameters


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
