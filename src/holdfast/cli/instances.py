"""``holdfast instances``: show and control instances. Uses HTTP only; ``views`` formats the output."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import Annotated, TypeAlias

import typer

from holdfast.cli.options import InstanceId, InstanceIds, WorkflowName, read_json, read_seconds, remote_command
from holdfast.cli.remote import CommandFailedError, Remote
from holdfast.cli.response_fields import TERMINAL
from holdfast.cli.terminal_text import one_line
from holdfast.core.show import shown

instances = typer.Typer(no_args_is_help=True, rich_markup_mode=None)


Check: TypeAlias = Callable[[Remote, str, str], None]


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


# --- reading


@instances.command(name="list")
@remote_command
def list_instances(
    remote: Remote,
    workflow: WorkflowName,
    status: Annotated[
        Status | None,
        typer.Option("--status", metavar="STATUS", help=f"Only instances with this status: {', '.join(Status)}."),
    ] = None,
    search: Annotated[
        list[str] | None,
        typer.Option(
            "--search",
            metavar="KEY=VALUE",
            help="Only instances with this search attribute; total=>=100 compares, a number in double quotes is text. "
            "Repeat the option for several attributes.",
        ),
    ] = None,
    page_size: PageSize = None,
    cursor: Annotated[
        str | None, typer.Option("--cursor", metavar="CURSOR", help="Start after this cursor, as printed below a page.")
    ] = None,
) -> None:
    """List the instances of a workflow, newest first, 25 to a page.

    \b
    Examples:
      holdfast instances list -w fulfil
      holdfast instances list -w fulfil --search customer=c-1 --search "total=>=100"
      holdfast instances list -w fulfil --status errored --page-size 100
      holdfast instances list -w fulfil --cursor i1234
    """
    from holdfast.cli import views  # noqa: PLC0415  (rich)

    query = {"status": status, "pageSize": page_size, "cursor": cursor, **_attributes(search or ())}
    options = [word for text in search or () for word in ("--search", text)]
    if page_size is not None:
        options += ["--page-size", str(page_size)]
    page = remote.get(workflow, "instances", expect="instances", query=query)
    views.show_list(page, workflow, status, options, searched=bool(search))


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
    from holdfast.cli import views  # noqa: PLC0415  (rich)

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
    from holdfast.cli import history_pages, views  # noqa: PLC0415  (rich)

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
    from holdfast.cli import history_pages, views  # noqa: PLC0415  (rich)

    path = (workflow, "instances", id)
    filters: dict[str, object] = {"logLevel": log_level, "logCategory": log_category}
    if not follow:
        query = {"runNumber": run, "order": order, "includeLogs": "true", **filters}
        request = history_pages.HistoryRequest(path, query, page_size, {"logs": logs_cursor})
        views.show_logs(history_pages.read(remote, request, lists=("logs",)), replayed=include_replayed)
        return
    if order is Order.DESC or page_size is not None:
        raise typer.BadParameter("--follow cannot be combined with --order desc or --page-size")
    from holdfast.cli.follow import Follower  # noqa: PLC0415

    views.show_followed(Follower(remote, path, filters, logs_cursor, replayed=include_replayed), run)


# --- control requests and events


@instances.command()
@remote_command
def create(
    remote: Remote,
    workflow: WorkflowName,
    id: Annotated[
        str | None,
        typer.Option("--id", "-i", metavar="ID", help="The id of the new instance. Default: generated by the server."),
    ] = None,
    params: Annotated[
        str | None, typer.Option("--params", metavar="JSON", parser=read_json, help="The input of the workflow.")
    ] = None,
) -> None:
    """Start a new instance of a workflow.

    With an id the request is safe to repeat, because an id can be used only once. Without an id, the command repeats
    the request only if the server certainly did not process it.

    \b
    Examples:
      holdfast instances create -w fulfil -i order-1 --params '{"id": "order-1", "total": 125}'
      holdfast instances create -w greet --params '"ann"'
    """
    from holdfast.cli import views  # noqa: PLC0415  (rich)

    body = json_object(id=None if id is None else json.dumps(id), params=params)
    created = remote.post(workflow, "instances", expect="id", body=body, repeatable=id is not None)
    views.show_created(created, workflow)


@instances.command()
@remote_command
def pause(remote: Remote, workflow: WorkflowName, ids: InstanceIds) -> None:
    """Pause instances: they stop before their next step. Events are stored, and timers keep running.

    \b
    Examples:
      holdfast instances pause -w fulfil -i order-1
      holdfast instances pause -w fulfil -i order-1 -i order-2
      holdfast instances get -w fulfil -i order-1       shows when the pause has taken effect
    """
    manage(remote, workflow, ids, "pause", "pause requested")


@instances.command()
@remote_command
def resume(remote: Remote, workflow: WorkflowName, ids: InstanceIds) -> None:
    """Resume paused instances. An instance that is not paused does not change; one that has ended is an error.

    \b
    Examples:
      holdfast instances resume -w fulfil -i order-1
      holdfast instances resume -w fulfil -i order-1 -i order-2
    """
    manage(remote, workflow, ids, "resume", "resumed", check=_check_open)


@instances.command()
@remote_command
def restart(remote: Remote, workflow: WorkflowName, ids: InstanceIds) -> None:
    """Restart instances from the beginning.

    The new run has the input of the old one. The old run stays readable: see `history --run`.

    \b
    Examples:
      holdfast instances restart -w fulfil -i order-1
      holdfast instances restart -w fulfil -i order-1 -i order-2
      holdfast instances history -w fulfil -i order-1 --run 0      the run before the first restart
    """
    manage(remote, workflow, ids, "restart", "restarted", repeatable=False)


@instances.command()
@remote_command
def terminate(remote: Remote, workflow: WorkflowName, ids: InstanceIds) -> None:
    """End instances at once. Their code cannot clean up, and steps in flight cannot undo the termination.

    \b
    Examples:
      holdfast instances terminate -w fulfil -i order-1
      holdfast instances terminate -w fulfil -i order-1 -i order-2
    """
    manage(remote, workflow, ids, "terminate", "terminated")


@instances.command()
@remote_command
def cancel(
    remote: Remote,
    workflow: WorkflowName,
    ids: InstanceIds,
    reason: Annotated[
        str | None, typer.Option("--reason", metavar="TEXT", help="The reason; the workflow code can read it.")
    ] = None,
    deadline: Annotated[
        float | None,
        typer.Option(
            "--deadline",
            metavar="DURATION",
            parser=read_seconds,
            help="Terminate instances that have not ended after this time: seconds, or 30s, 5m.",
        ),
    ] = None,
) -> None:
    """Request cancellation of instances. Their code may clean up first.

    \b
    Examples:
      holdfast instances cancel -w fulfil -i order-1
      holdfast instances cancel -w fulfil -i order-1 -i order-2 --reason "out of stock" --deadline 5m
    """
    body = json_object(
        reason=None if reason is None else json.dumps(reason),
        deadlineMs=None if deadline is None else str(round(deadline * 1000)),
    )
    manage(remote, workflow, ids, "cancel", "cancellation requested", body=body)


@instances.command(name="send-event")
@remote_command
def send_event(
    remote: Remote,
    workflow: WorkflowName,
    id: InstanceId,
    type: Annotated[str, typer.Option("--type", "-t", metavar="TYPE", help="The type of the event.")],
    payload: Annotated[
        str | None, typer.Option("--payload", metavar="JSON", parser=read_json, help="The payload of the event.")
    ] = None,
) -> None:
    """Send an event to an instance. The event is stored until the workflow waits for its type.

    Retries of this command are safe: the event has an id, and an id is delivered once. Running the command again sends
    another event.

    \b
    Examples:
      holdfast instances send-event -w fulfil -i order-1 -t approval --payload '{"by": "ann"}'
      holdfast instances send-event -w fulfil -i order-1 -t go
    """
    from holdfast.cli import views  # noqa: PLC0415  (rich)

    body = json_object(type=json.dumps(type), payload=payload, id=json.dumps(str(uuid.uuid4())))
    sent = remote.post(workflow, "instances", id, "events", expect="accepted", body=body, repeatable=True)
    views.show_sent(sent, workflow, id, type)


def manage(
    remote: Remote, workflow: str, ids: Sequence[str], action: str, outcome: str,
    *, body: str | None = None, repeatable: bool = True, check: Check | None = None,
) -> None:  # fmt: skip
    """Send a control request for each id in turn and print its outcome.

    With several ids, a failed request does not stop the others. ``check`` raises if the request must not be sent.
    """
    from holdfast.cli import views  # noqa: PLC0415  (rich)

    unique_ids, failed = list(dict.fromkeys(ids)), False
    for instance_id in unique_ids:
        try:
            if check is not None:
                check(remote, workflow, instance_id)
            remote.post(workflow, "instances", instance_id, action, expect="ok", body=body, repeatable=repeatable)
        except CommandFailedError as error:
            if len(unique_ids) == 1:
                raise
            failed = True
            typer.echo(one_line(_with_pid(f"{workflow}/{instance_id}", str(error))), err=True)
        else:
            views.show_managed(workflow, instance_id, outcome)
    if failed:
        raise typer.Exit(1)


def _with_pid(pid: str, problem: str) -> str:
    return problem if problem.startswith(pid) else f"{pid}: {problem}"


def _check_open(remote: Remote, workflow: str, id: str) -> None:
    """Refuse to resume an instance that has ended: the server would accept the request without any effect."""
    status = remote.get(workflow, "instances", id, expect="details").fields("details").text("status")
    if status in TERMINAL:
        raise CommandFailedError(
            f"{workflow}/{id} has ended ({status}) and cannot be resumed; use restart to run it again"
        )


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


def json_object(**fields: str | None) -> str:
    """A JSON object of fields that are JSON texts; fields that are None are omitted."""
    return "{" + ", ".join(f'"{name}": {text}' for name, text in fields.items() if text is not None) + "}"
