"""``holdfast schedules``: the schedules of a server. Uses HTTP only."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Annotated, Any

import typer

from holdfast.cli.options import remote_command
from holdfast.cli.remote import Remote
from holdfast.cli.schedule_options import (
    Calendars,
    CatchUp,
    Cleared,
    Crons,
    End,
    Every,
    Excluded,
    Jitter,
    Name,
    Note,
    Offset,
    OverlapOption,
    Reason,
    Start,
    Zone,
    schedule_body,
)
from holdfast.cli.start_options import (
    ContextValues,
    ExecutionTimeout,
    Memo,
    Params,
    Priority,
    Queue,
    RunTimeout,
    SearchAttributes,
    Summary,
    TaskTimeout,
    WorkflowRetry,
)

if TYPE_CHECKING:
    from rich.text import Text

    from holdfast.cli.response_fields import Fields

_WORD = re.compile(r"(?=[A-Z])")

schedules = typer.Typer(no_args_is_help=True, rich_markup_mode=None)


@schedules.callback()
def about() -> None:
    """Show and change the schedules of a server.

    \b
    Examples:
      holdfast schedules list
      holdfast schedules create nightly -w report --cron '0 3 * * *' --timezone Europe/Berlin
      holdfast schedules backfill nightly --from 2026-01-01T00:00:00Z --to 2026-01-08T00:00:00Z
    """


@schedules.command(name="list")
@remote_command
def list_schedules(
    remote: Remote,
    workflow: Annotated[
        str | None, typer.Option("--workflow", "-w", metavar="WF", help="Only schedules of this workflow.")
    ] = None,
) -> None:
    """List the schedules by name, with the next tick and the last outcome.

    \b
    Examples:
      holdfast schedules list
      holdfast schedules list -w report
    """
    from holdfast.cli.output import console, show_table, table

    found: list[Fields] = []
    cursor: str | None = None
    while True:
        page = remote.get("_schedules", expect="schedules", query={"workflow": workflow, "cursor": cursor})
        found += page.list("schedules")
        cursor = page.text("nextCursor") or None
        if cursor is None:
            break
    if not found:
        console().print("There are no schedules.")
        return
    columns = ["SCHEDULE", "WORKFLOW", "STATE", "NEXT TICK", "LAST OUTCOME", "SPEC"]
    show_table(console(), table(columns, [_row(one) for one in found]))


@schedules.command()
@remote_command
def get(
    remote: Remote,
    name: Name,
    runs: Annotated[int, typer.Option("--runs", "-n", metavar="N", min=0, max=100, help="Number of last runs.")] = 10,
) -> None:
    """Show a schedule with its next ticks and its last runs.

    \b
    Examples:
      holdfast schedules get nightly
      holdfast schedules get nightly -n 100
    """
    from holdfast.cli.output import show_text

    show_text(_described(remote.get("_schedules", name, expect="name", query={"runs": runs})))


@schedules.command()
@remote_command
def create(
    remote: Remote,
    name: Name,
    workflow: Annotated[str, typer.Option("--workflow", "-w", metavar="WF", help="The workflow to start.")],
    params: Params = None,
    cron: Crons = None,
    every: Every = None,
    offset: Offset = None,
    calendar: Calendars = None,
    exclude: Excluded = None,
    timezone: Zone = None,
    overlap: OverlapOption = None,
    catch_up: CatchUp = None,
    jitter: Jitter = None,
    start: Start = None,
    end: End = None,
    queue: Queue = None,
    priority: Priority = None,
    execution_timeout: ExecutionTimeout = None,
    run_timeout: RunTimeout = None,
    task_timeout: TaskTimeout = None,
    retry: WorkflowRetry = None,
    search: SearchAttributes = None,
    memo: Memo = None,
    context: ContextValues = None,
    summary: Summary = None,
    paused: Annotated[bool, typer.Option("--paused", help="Create the schedule paused.")] = False,
    note: Note = None,
) -> None:
    """Create a schedule.

    \b
    Examples:
      holdfast schedules create nightly -w report --cron '0 3 * * *' --timezone Europe/Berlin --catch-up 1h
      holdfast schedules create pulse -w ping --every '30 seconds' --overlap skip
      holdfast schedules create invoices -w bill --calendar 'last weekday of the month at 18:00' --params '{"of": 1}'
    """
    body = schedule_body(
        params=params, cron=cron, every=every, offset=offset, calendar=calendar, exclude=exclude, timezone=timezone,
        overlap=overlap, catch_up=catch_up, jitter=jitter, start=start, end=end, queue=queue, priority=priority,
        execution_timeout=execution_timeout, run_timeout=run_timeout, task_timeout=task_timeout, retry=retry,
        search=search, memo=memo, context=context, summary=summary, name=name, workflow=workflow,
        paused=paused, note=note,
    )  # fmt: skip
    remote.post("_schedules", expect="name", body=body, repeatable=False)
    typer.echo(f"created schedule {name}")


@schedules.command()
@remote_command
def update(
    remote: Remote,
    name: Name,
    workflow: Annotated[
        str | None, typer.Option("--workflow", "-w", metavar="WF", help="The workflow to start from now on.")
    ] = None,
    params: Params = None,
    cron: Crons = None,
    every: Every = None,
    offset: Offset = None,
    calendar: Calendars = None,
    exclude: Excluded = None,
    timezone: Zone = None,
    overlap: OverlapOption = None,
    catch_up: CatchUp = None,
    jitter: Jitter = None,
    start: Start = None,
    end: End = None,
    queue: Queue = None,
    priority: Priority = None,
    execution_timeout: ExecutionTimeout = None,
    run_timeout: RunTimeout = None,
    task_timeout: TaskTimeout = None,
    retry: WorkflowRetry = None,
    search: SearchAttributes = None,
    memo: Memo = None,
    context: ContextValues = None,
    summary: Summary = None,
    clear: Cleared = None,
    reason: Reason = None,
) -> None:
    """Replace some options of a schedule.

    \b
    Examples:
      holdfast schedules update nightly --cron '0 4 * * *'
      holdfast schedules update nightly --overlap queue_one --catch-up last --run-timeout 1h
      holdfast schedules update nightly --clear jitter --clear run-timeout --reason 'the report is fast now'
    """
    body = schedule_body(
        params=params, cron=cron, every=every, offset=offset, calendar=calendar, exclude=exclude, timezone=timezone,
        overlap=overlap, catch_up=catch_up, jitter=jitter, start=start, end=end, queue=queue, priority=priority,
        execution_timeout=execution_timeout, run_timeout=run_timeout, task_timeout=task_timeout, retry=retry,
        search=search, memo=memo, context=context, summary=summary, workflow=workflow, clear=clear,
        reason=reason,
    )  # fmt: skip
    if json.loads(body).keys() <= {"reason"}:
        raise typer.BadParameter("give at least one option to change")
    remote.patch("_schedules", name, expect="name", body=body)
    typer.echo(f"updated schedule {name}")


@schedules.command()
@remote_command
def pause(remote: Remote, name: Name, note: Note = None) -> None:
    """Pause a schedule: no more ticks are taken up. Runs that were started continue.

    \b
    Examples:
      holdfast schedules pause nightly --note 'the warehouse moves'
    """
    remote.post("_schedules", name, "pause", expect="ok", body=json.dumps(_given(note=note)), repeatable=True)
    typer.echo(f"paused schedule {name}")


@schedules.command()
@remote_command
def resume(remote: Remote, name: Name, note: Note = None) -> None:
    """Resume a schedule: ticks are taken up again, from the next one on.

    \b
    Examples:
      holdfast schedules resume nightly
    """
    remote.post("_schedules", name, "resume", expect="ok", body=json.dumps(_given(note=note)), repeatable=True)
    typer.echo(f"resumed schedule {name}")


@schedules.command()
@remote_command
def trigger(remote: Remote, name: Name, reason: Reason = None) -> None:
    """Start a run now, also of a paused schedule.

    \b
    Examples:
      holdfast schedules trigger nightly
    """
    body = json.dumps(_given(reason=reason))
    run = remote.post("_schedules", name, "trigger", expect="id", body=body, repeatable=False)
    typer.echo(f"started {run.text('workflowName')}/{run.text('id')}")


@schedules.command()
@remote_command
def backfill(
    remote: Remote,
    name: Name,
    start: Annotated[str, typer.Option("--from", metavar="TIME", help="The first moment: 2026-01-01T00:00:00Z.")],
    end: Annotated[str, typer.Option("--to", metavar="TIME", help="The last moment: 2026-01-08T00:00:00Z.")],
    overlap: OverlapOption = None,
    reason: Reason = None,
) -> None:
    """Start runs for the ticks of a period, one after the other unless --overlap says otherwise.

    Ticks that have a run start nothing new.

    \b
    Examples:
      holdfast schedules backfill nightly --from 2026-01-01T00:00:00Z --to 2026-01-08T00:00:00Z
      holdfast schedules backfill nightly --from 2026-01-01T00:00:00Z --to 2026-01-08T00:00:00Z --overlap allow
    """
    body = json.dumps(_given(start=start, end=end, overlap=overlap, reason=reason))
    done = remote.post("_schedules", name, "backfill", expect="ticks", body=body, repeatable=True)
    typer.echo(f"{done.number('ticks') or 0} ticks of {name} run")


@schedules.command()
@remote_command
def preview(
    remote: Remote,
    name: Name,
    count: Annotated[int, typer.Option("--count", "-n", metavar="N", min=1, max=1000, help="Number of ticks.")] = 10,
) -> None:
    """Show the next ticks, in UTC.

    \b
    Examples:
      holdfast schedules preview nightly -n 3
    """
    for tick in remote.get("_schedules", name, "preview", expect="ticks", query={"count": count}).texts("ticks"):
        typer.echo(tick)


@schedules.command()
@remote_command
def delete(remote: Remote, name: Name, reason: Reason = None) -> None:
    """Delete a schedule. Its runs stay.

    \b
    Examples:
      holdfast schedules delete nightly
    """
    remote.delete("_schedules", name, expect="ok", body=json.dumps(_given(reason=reason)))
    typer.echo(f"deleted schedule {name}")


def _given(**options: Any) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None and value != []}


def _row(schedule: Fields) -> list[Text]:
    from holdfast.cli.output import line

    runs = schedule.list("lastRuns")
    ticks = schedule.texts("nextTicks")
    cells = [
        schedule.text("name"),
        schedule.text("workflowName"),
        "paused" if schedule.true("paused") else "on",
        ticks[0] if ticks else "-",
        runs[0].text("outcome") if runs else "-",
        schedule.fields("spec").text("text"),
    ]
    return [line(cell) for cell in cells]


def _option_lines(options: dict[str, Any]) -> list[str]:
    """The start options of the runs: ``run timeout 1 h``."""
    return [
        f"{_WORD.sub(' ', name).lower()} {value if isinstance(value, str) else json.dumps(value)}"
        for name, value in options.items()
    ]


def _described(schedule: Fields) -> str:
    lines = [
        f"{schedule.text('name')}: {schedule.text('workflowName')}, {schedule.fields('spec').text('text')}",
        f"overlap {schedule.text('overlap')}, catch-up {schedule.text('catchUp') or 'none'}",
        f"queue {schedule.text('queue')}, priority {schedule.number('priority') or 0}",
        f"params {json.dumps(schedule.any('params'))}",
        *_option_lines(schedule.any("options") or {}),
    ]
    if schedule.true("paused"):
        lines.append(f"paused: {schedule.text('note') or 'no note'}")
    elif schedule.text("note"):
        lines.append(schedule.text("note"))
    lines += [f"next {tick}" for tick in schedule.texts("nextTicks")]
    lines += [f"{run.text('scheduledFor')} {run.text('outcome')} {run.text('id')}" for run in schedule.list("lastRuns")]
    return "\n".join(lines) + "\n"
