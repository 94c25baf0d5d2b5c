"""``holdfast stats``, ``top`` and ``audit``: the state of the whole system. Uses HTTP only."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.cli.options import read_seconds, remote_command
from holdfast.cli.remote import Remote
from holdfast.cli.terminal_text import count_text

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table
    from rich.text import Text

    from holdfast.cli.response_fields import Fields

_OPEN = ("active", "waiting", "paused")
_ENDED = ("complete", "errored", "cancelled", "terminated")


def add_observe_commands(cli: typer.Typer) -> None:
    cli.command()(remote_command(stats))
    cli.command()(remote_command(top))
    cli.command()(remote_command(audit))


def stats(remote: Remote) -> None:
    """Show runs by workflow and status, throughput, due tasks, errors of the last hour and the slowest steps.

    \b
    Examples:
      holdfast stats
    """
    from holdfast.cli.output import console, show_table

    out = console()
    for index, (title, table) in enumerate(_stats(remote.get("_stats", expect="runs"))):
        out.print(("\n" if index else "") + title, style="bold", highlight=False)
        show_table(out, table)


def top(
    remote: Remote,
    interval: Annotated[
        float, typer.Option("--interval", metavar="DURATION", parser=read_seconds, help="Time between two readings.")
    ] = "2",  # type: ignore[assignment]  # parsed as an argument
    once: Annotated[bool, typer.Option("--once", help="Print one reading and end.")] = False,
) -> None:
    """Watch the whole system in the terminal: throughput, queues, workers, runs, errors. Ctrl-C ends it.

    \b
    Examples:
      holdfast top
      holdfast top --interval 5s
      holdfast top --once
    """
    from rich.live import Live

    from holdfast.cli.output import console

    out = console()
    if once or not out.is_terminal:
        out.print(_overview(remote))
        return
    with Live(_overview(remote), console=out, screen=True, auto_refresh=False) as live:
        try:
            while True:
                live.update(_overview(remote), refresh=True)
                time.sleep(max(0.2, interval))
        except KeyboardInterrupt:
            return


def audit(
    remote: Remote,
    instance: Annotated[
        str | None,
        typer.Argument(metavar="WORKFLOW/ID", show_default=False, help="Only records of this instance."),
    ] = None,
    limit: Annotated[int, typer.Option("--limit", metavar="N", min=1, max=1000, help="Number of records.")] = 25,
) -> None:
    """List audit records, the newest first: action, instance, actor, reason and outcome.

    \b
    Examples:
      holdfast audit
      holdfast audit fulfil/order-1
      holdfast audit --limit 1000 | awk '$3 == "ann"'      what ann did
    """
    from holdfast.cli.output import console, show_table

    path = ["_audit"] if instance is None else [*_workflow_and_id(instance), "audit"]
    records: list[Fields] = []
    cursor: str | None = None
    while len(records) < limit:
        query = {"pageSize": str(min(100, limit - len(records))), **({} if cursor is None else {"cursor": cursor})}
        page = remote.get(*path, expect="records", query=query)
        records += page.list("records")
        cursor = page.text("nextCursor") or None
        if cursor is None:
            break
    show_table(console(), _audit(records)) if records else console().print("There are no audit records.")


def _workflow_and_id(pid: str) -> list[str]:
    workflow, slash, id_ = pid.partition("/")
    if not (slash and workflow and id_) or "/" in id_:
        raise typer.BadParameter(f"{pid!r} is not of the form WORKFLOW/ID")
    return [workflow, "instances", id_]


# --- tables


def _audit(records: list[Fields]) -> Table:
    from holdfast.cli.output import line, table, timestamp

    rows = []
    for record in records:
        at = timestamp(record.time("at")).replace(" ", "T")
        names = [record.text(name) or "-" for name in ("action", "actor", "target", "outcome", "reason")]
        rows.append([line(text) for text in (at, *names)])
    return table(["AT_UTC", "ACTION", "ACTOR", "TARGET", "OUTCOME", "REASON"], rows)


def _stats(found: Fields) -> Iterator[tuple[str, Table]]:
    from holdfast.cli.output import line, table

    yield _throughput(found), _runs(found)
    errors = found.fields("errors")
    if errors:
        rows = [[line(name), line(str(errors.any(name)))] for name in errors]
        yield "Errors of the last hour", table(["ERROR", "RUNS"], rows)
    steps = found.list("slowestSteps")
    if steps:
        columns = ["WORKFLOW", "STEP", "CALLS", "MEAN_S", "P50_S", "P95_S", "MAX_S"]
        yield "Slowest steps of the latest runs", table(columns, [_step(step) for step in steps])


def _throughput(found: Fields) -> str:
    started, ended = found.number("startedPerMinute") or 0, found.number("endedPerMinute") or 0
    hour = f"{found.number('startedLastHour') or 0} and {found.number('endedLastHour') or 0} in the last hour"
    due, oldest = found.number("due") or 0, found.time("oldestDue")
    waiting = f"{due} due" + ("" if oldest is None else f", the oldest for {age(oldest)}")
    workers = found.number("workers") or 0
    return (
        f"{started} started and {ended} ended in the last minute ({hour}); {waiting}; {count_text(workers, 'worker')}"
    )


def _runs(found: Fields) -> Table:
    from holdfast.cli.output import line, table

    runs = found.fields("runs")
    statuses = [status for status in (*_OPEN, *_ENDED) if any(runs.fields(name).number(status) for name in runs)]
    rows: list[list[Text]] = []
    for name in runs:
        counts = runs.fields(name)
        rows.append([line(name), *(line(str(counts.number(status) or 0)) for status in statuses)])
    return table(["WORKFLOW", *(status.upper() for status in statuses)], rows)


def _step(step: Fields) -> list[Text]:
    from holdfast.cli.output import line

    seconds = [f"{float(step.any(name) or 0) / 1000:.3f}" for name in ("meanMs", "p50Ms", "p95Ms", "maxMs")]
    return [line(text) for text in (step.text("workflowName"), step.text("step"), str(step.number("count")), *seconds)]


def queue_table(found: list[Fields]) -> Table:
    from holdfast.cli.output import line, table

    rows = []
    for queue in found:
        oldest = queue.time("oldestDue")
        numbers = [str(queue.number(name) or 0) for name in ("due", "running", "workers")]
        waited = "-" if oldest is None else age(oldest)
        state = "paused" if queue.true("paused") else "open"
        rows.append([line(text) for text in (queue.text("name"), *numbers, waited, state)])
    return table(["QUEUE", "DUE", "RUNNING", "WORKERS", "OLDEST", "STATE"], rows)


def worker_table(found: list[Fields], *, wide: bool) -> Table:
    from holdfast.cli.output import coloured, line, table, timestamp

    rows = []
    for worker in found:
        state = coloured("ok") if worker.true("alive") else coloured("error")
        state.plain = ("draining" if worker.true("draining") else "alive") if worker.true("alive") else "dead"
        row = [line(worker.text("id")), state, line(",".join(worker.texts("queues")) or "-")]
        row += [line(str(worker.number(name) or 0)) for name in ("held", "concurrency")]
        row.append(line(worker.text("version") or "-"))
        if wide:
            times = [timestamp(worker.time(name)).replace(" ", "T") for name in ("startedAt", "seenAt")]
            row += [line(text) for text in (worker.text("host"), str(worker.number("pid")), *times)]
        rows.append(row)
    columns = ["WORKER", "STATE", "QUEUES", "HELD", "CONCURRENCY", "VERSION"]
    return table([*columns, *(["HOST", "PID", "STARTED_UTC", "SEEN_UTC"] if wide else [])], rows)


def _overview(remote: Remote) -> RenderableType:
    """Everything that ``top`` shows."""
    from rich.console import Group
    from rich.text import Text

    stats, queues = remote.get("_stats", expect="runs"), remote.get("_queues", expect="queues").list("queues")
    workers = remote.get("_workers", expect="workers").list("workers")
    parts: list[RenderableType] = [Text(f"holdfast top   {datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC", style="bold")]
    for title, table in _stats(stats):
        parts += [Text(f"\n{title}", style="bold"), table]
    if queues:
        parts += [Text("\nQueues", style="bold"), queue_table(queues)]
    if workers:
        parts += [Text("\nWorkers", style="bold"), worker_table(workers, wide=False)]
    return Group(*parts)


def age(since: datetime) -> str:
    """The time since then, without spaces: 250ms, 12s, 5m10s, 3h20m."""
    seconds = max(0.0, (datetime.now(UTC) - since).total_seconds())
    if seconds < 1:
        return f"{round(seconds * 1000)}ms"
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}h{minutes:02}m"
    return f"{minutes}m{rest:02}s" if minutes else f"{rest}s"
