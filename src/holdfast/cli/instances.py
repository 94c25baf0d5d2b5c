"""``holdfast instances``: look at runs and steer them. Speaks HTTP only; how things look is in ``views``."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import Annotated, TypeAlias

import typer

from holdfast.cli.options import InstanceId, InstanceIds, WorkflowName, read_json, read_seconds, remote_command
from holdfast.cli.remote import CommandFailedError, Remote
from holdfast.cli.safe import one_line
from holdfast.cli.wire import TERMINAL
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
    typer.Option("--page-size", metavar="N", min=1, max=100, help="Show one page of so many (1 to 100)."),
]
RunNumber = Annotated[
    int | None, typer.Option("--run", metavar="N", min=0, help="This run; restarts count up from 0. Default: the last.")
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
    str | None, typer.Option("--logs-cursor", metavar="CURSOR", help="Go on with the log lines behind this cursor.")
]


@instances.callback()
def about() -> None:
    """Look at instances of workflows, and steer them.

    \b
    Examples, with $HOLDFAST_BASE_URL set:
      holdfast instances list -w fulfil --status errored     what went wrong?
      holdfast instances get -w fulfil -i order-1            what is it doing, and why?
      holdfast instances history -w fulfil -i order-1        what happened so far?
      holdfast instances logs -w fulfil -i order-1 --follow  what is happening now?

    facts, mermaid and kill are for graphs, outbox and redeliver for chains.
    """


# --- looking


@instances.command(name="list")
@remote_command
def list_instances(
    remote: Remote,
    workflow: WorkflowName,
    status: Annotated[
        Status | None,
        typer.Option("--status", metavar="STATUS", help=f"Only those with this status: {', '.join(Status)}."),
    ] = None,
    search: Annotated[
        list[str] | None,
        typer.Option(
            "--search",
            metavar="KEY=VALUE",
            help="Only those with this attribute; total=>=100 compares, a number in double quotes is text. Repeat it "
            "for several attributes.",
        ),
    ] = None,
    page_size: PageSize = None,
    cursor: Annotated[
        str | None, typer.Option("--cursor", metavar="CURSOR", help="Go on behind this cursor, which a page ends with.")
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
    given = [word for text in search or () for word in ("--search", text)]
    if page_size is not None:
        given += ["--page-size", str(page_size)]
    found = remote.get(workflow, "instances", expect="instances", query=query)
    views.show_list(found, workflow, status, given, searched=bool(search))


@instances.command()
@remote_command
def get(
    remote: Remote,
    workflow: WorkflowName,
    id: InstanceId,
    full: Annotated[bool, typer.Option("--full", help="Show the input and the output too.")] = False,
) -> None:
    """Show what an instance is doing, and why.

    Its status, its current step, its times and the traceback of its error; with --full also its input and its output.

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
    full: Annotated[bool, typer.Option("--full", help="Show the traceback of each error too.")] = False,
    include_logs: Annotated[bool, typer.Option("--include-logs", help="Tell the log lines too.")] = False,
    log_level: LogLevel = None,
    log_category: LogCategory = None,
    order: Ordering = Order.ASC,
    page_size: PageSize = None,
    steps_cursor: Annotated[
        str | None, typer.Option("--steps-cursor", metavar="CURSOR", help="Go on with the steps behind this cursor.")
    ] = None,
    events_cursor: Annotated[
        str | None, typer.Option("--events-cursor", metavar="CURSOR", help="Go on with the events behind this cursor.")
    ] = None,
    logs_cursor: LogsCursor = None,
) -> None:
    """Tell what happened in a run.

    Steps, attempts, retries, waits, events and errors, in the order of time. All of it, or one page if you give
    --page-size or a cursor.

    \b
    Examples:
      holdfast instances history -w fulfil -i order-1
      holdfast instances history -w fulfil -i order-1 --full       with tracebacks
      holdfast instances history -w fulfil -i order-1 --include-logs --log-level error
      holdfast instances history -w fulfil -i order-1 --run 0      before the first restart
      holdfast instances history -w fulfil -i order-1 --order desc | head
    """
    from holdfast.cli import past, views  # noqa: PLC0415  (rich)

    instance = remote.get(workflow, "instances", id, expect="meta")
    filters = {"logLevel": log_level, "logCategory": log_category} if include_logs else {}
    wanted = past.Wanted(
        path=(workflow, "instances", id),
        query={"runNumber": run, "order": order, "includeLogs": "true" if include_logs else None, **filters},
        page_size=page_size,
        cursors={"steps": steps_cursor, "events": events_cursor, "logs": logs_cursor},
    )
    views.show_history(past.read(remote, wanted), instance, newest_first=order is Order.DESC, full=full)


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
            help="Go on as lines are written, until the run has ended. A server that goes away is waited for.",
        ),
    ] = False,
    log_level: LogLevel = None,
    log_category: LogCategory = None,
    order: Ordering = Order.ASC,
    page_size: PageSize = None,
    logs_cursor: LogsCursor = None,
    include_replayed: Annotated[
        bool,
        typer.Option("--include-replayed", help="Show the lines too that a replay wrote again; they are marked."),
    ] = False,
) -> None:
    """Show what a run has logged.

    All of it, or one page if you give --page-size or a cursor. Times are UTC. Lines that a replay wrote again are left
    out unless you ask for them.

    \b
    Examples:
      holdfast instances logs -w fulfil -i order-1
      holdfast instances logs -w fulfil -i order-1 --follow
      holdfast instances logs -w fulfil -i order-1 --log-level error
      holdfast instances logs -w fulfil -i order-1 --log-category system    what the engine says
      holdfast instances logs -w fulfil -i order-1 --include-replayed       how often did the code run?
    """
    from holdfast.cli import past, views  # noqa: PLC0415  (rich)

    path = (workflow, "instances", id)
    filters: dict[str, object] = {"logLevel": log_level, "logCategory": log_category}
    if not follow:
        query = {"runNumber": run, "order": order, "includeLogs": "true", **filters}
        wanted = past.Wanted(path, query, page_size, {"logs": logs_cursor})
        views.show_logs(past.read(remote, wanted, lists=("logs",)), replayed=include_replayed)
        return
    if order is Order.DESC or page_size is not None:
        raise typer.BadParameter("lines are followed as they come; leave out --order and --page-size")
    from holdfast.cli.follow import Follower  # noqa: PLC0415

    views.show_followed(Follower(remote, path, filters, logs_cursor, replayed=include_replayed), run)


# --- steering


@instances.command()
@remote_command
def create(
    remote: Remote,
    workflow: WorkflowName,
    id: Annotated[
        str | None,
        typer.Option("--id", "-i", metavar="ID", help="The id of the new instance. Default: the server makes one."),
    ] = None,
    params: Annotated[
        str | None, typer.Option("--params", metavar="JSON", parser=read_json, help="The input of the workflow.")
    ] = None,
) -> None:
    """Start a new instance of a workflow.

    With an id it is safe to repeat: an id is used only once. Without one, it is repeated only if the server certainly
    did not get it.

    \b
    Examples:
      holdfast instances create -w fulfil -i order-1 --params '{"id": "order-1", "total": 125}'
      holdfast instances create -w greet --params '"ann"'
    """
    from holdfast.cli import views  # noqa: PLC0415  (rich)

    body = json_object(id=None if id is None else json.dumps(id), params=params)
    answer = remote.post(workflow, "instances", expect="id", body=body, repeatable=id is not None)
    views.show_created(answer, workflow)


@instances.command()
@remote_command
def pause(remote: Remote, workflow: WorkflowName, ids: InstanceIds) -> None:
    """Pause instances: they stop before their next step. Events are kept, and timers go on counting.

    \b
    Examples:
      holdfast instances pause -w fulfil -i order-1
      holdfast instances pause -w fulfil -i order-1 -i order-2
      holdfast instances get -w fulfil -i order-1       see when it has taken effect
    """
    manage(remote, workflow, ids, "pause", "is asked to pause")


@instances.command()
@remote_command
def resume(remote: Remote, workflow: WorkflowName, ids: InstanceIds) -> None:
    """Let paused instances go on. One that is not paused stays as it is; one that has ended is an error.

    \b
    Examples:
      holdfast instances resume -w fulfil -i order-1
      holdfast instances resume -w fulfil -i order-1 -i order-2
    """
    manage(remote, workflow, ids, "resume", "may go on", check=_check_open)


@instances.command()
@remote_command
def restart(remote: Remote, workflow: WorkflowName, ids: InstanceIds) -> None:
    """Begin instances again from the start.

    With the input they had. The old run stays readable: see `history --run`.

    \b
    Examples:
      holdfast instances restart -w fulfil -i order-1
      holdfast instances restart -w fulfil -i order-1 -i order-2
      holdfast instances history -w fulfil -i order-1 --run 0      the run before the first restart
    """
    manage(remote, workflow, ids, "restart", "begins again", repeatable=False)


@instances.command()
@remote_command
def terminate(remote: Remote, workflow: WorkflowName, ids: InstanceIds) -> None:
    """End instances now. Their code gets no chance to clean up; nothing in flight can undo it.

    \b
    Examples:
      holdfast instances terminate -w fulfil -i order-1
      holdfast instances terminate -w fulfil -i order-1 -i order-2
    """
    manage(remote, workflow, ids, "terminate", "is terminated")


@instances.command()
@remote_command
def cancel(
    remote: Remote,
    workflow: WorkflowName,
    ids: InstanceIds,
    reason: Annotated[str | None, typer.Option("--reason", metavar="TEXT", help="Why; its code is told.")] = None,
    deadline: Annotated[
        float | None,
        typer.Option(
            "--deadline",
            metavar="DURATION",
            parser=read_seconds,
            help="Terminate it if it has not ended by then: seconds, or 30s, 5m.",
        ),
    ] = None,
) -> None:
    """Ask instances to cancel. Their code may clean up first.

    \b
    Examples:
      holdfast instances cancel -w fulfil -i order-1
      holdfast instances cancel -w fulfil -i order-1 -i order-2 --reason "out of stock" --deadline 5m
    """
    body = json_object(
        reason=None if reason is None else json.dumps(reason),
        deadlineMs=None if deadline is None else str(round(deadline * 1000)),
    )
    manage(remote, workflow, ids, "cancel", "is asked to cancel", body=body)


@instances.command(name="send-event")
@remote_command
def send_event(
    remote: Remote,
    workflow: WorkflowName,
    id: InstanceId,
    type: Annotated[str, typer.Option("--type", "-t", metavar="TYPE", help="The type that the workflow waits for.")],
    payload: Annotated[
        str | None, typer.Option("--payload", metavar="JSON", parser=read_json, help="What the event says.")
    ] = None,
) -> None:
    """Send an event to an instance. It is kept until the workflow waits for its type.

    Safe to repeat by itself: the event carries an id, and the same id is delivered once. Running the command again
    sends another event.

    \b
    Examples:
      holdfast instances send-event -w fulfil -i order-1 -t approval --payload '{"by": "ann"}'
      holdfast instances send-event -w fulfil -i order-1 -t go
    """
    from holdfast.cli import views  # noqa: PLC0415  (rich)

    body = json_object(type=json.dumps(type), payload=payload, id=json.dumps(str(uuid.uuid4())))
    answer = remote.post(workflow, "instances", id, "events", expect="accepted", body=body, repeatable=True)
    views.show_sent(answer, workflow, id, type)


def manage(
    remote: Remote, workflow: str, ids: Sequence[str], action: str, outcome: str,
    *, body: str | None = None, repeatable: bool = True, check: Check | None = None,
) -> None:  # fmt: skip
    """Ask for something that is answered with no more than ``ok``, for each id in turn.

    With several ids, one that fails does not stop the others. ``check`` raises what speaks against asking.
    """
    from holdfast.cli import views  # noqa: PLC0415  (rich)

    chosen, failed = list(dict.fromkeys(ids)), False
    for one in chosen:
        try:
            if check is not None:
                check(remote, workflow, one)
            remote.post(workflow, "instances", one, action, expect="ok", body=body, repeatable=repeatable)
        except CommandFailedError as error:
            if len(chosen) == 1:
                raise
            failed = True
            typer.echo(one_line(_about_one(f"{workflow}/{one}", str(error))), err=True)
        else:
            views.show_managed(workflow, one, outcome)
    if failed:
        raise typer.Exit(1)


def _about_one(pid: str, problem: str) -> str:
    return problem if problem.startswith(pid) else f"{pid}: {problem}"


def _check_open(remote: Remote, workflow: str, id: str) -> None:
    """The server answers the resume of a run that has ended with ``ok``, although it has no effect."""
    status = remote.get(workflow, "instances", id, expect="details").fields("details").text("status")
    if status in TERMINAL:
        raise CommandFailedError(f"{workflow}/{id} has ended ({status}) and cannot be resumed; restart begins it again")


def _attributes(texts: Sequence[str]) -> dict[str, list[str]]:
    """Texts such as ``total=>=100`` as parts of a query. What the value means is for the server to say."""
    found: dict[str, list[str]] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not key or not equals or not _is_utf8(text):
            raise typer.BadParameter(f"{shown(text)} is not of the form KEY=VALUE", param_hint="'--search'")
        found.setdefault(f"search.{key}", []).append(value)
    return found


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def json_object(**fields: str | None) -> str:
    """An object of fields that are JSON already; those without a value are left out."""
    return "{" + ", ".join(f'"{name}": {text}' for name, text in fields.items() if text is not None) + "}"
