"""``holdfast queues`` and ``holdfast limits``: the queues and limits of a server. Uses HTTP only."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from holdfast.cli.observe import age, queue_table
from holdfast.cli.options import read_seconds, remote_command
from holdfast.cli.remote import CommandFailedError, Remote

if TYPE_CHECKING:
    from rich.text import Text

    from holdfast.cli.response_fields import Fields

queues = typer.Typer(invoke_without_command=True, rich_markup_mode=None)
limits = typer.Typer(no_args_is_help=True, rich_markup_mode=None)

QueueName = Annotated[str, typer.Argument(metavar="QUEUE", help="The name of the queue.")]
LimitName = Annotated[str, typer.Argument(metavar="LIMIT", help="The name of the limit.")]
Reason = Annotated[str | None, typer.Option("--reason", metavar="TEXT", help="Audited with the change.")]
_POLL_SECONDS = 0.5
_COLUMNS = ["LIMIT", "CONCURRENCY", "IN_USE", "WAITING", "OLDEST", "RATE", "KEYS", "FAIR", "CHANGED"]


@remote_command
def _list(remote: Remote, context: typer.Context) -> None:
    """List the queues that have tasks or living workers, and the paused ones; pause, resume, drain and move queues.

    A task is a run, or a node of a graph. OLDEST is the time for which the oldest due task has been due.

    \b
    Examples:
      holdfast queues
      holdfast queues | awk '$2 > 100'      queues with more than 100 due tasks
      holdfast queues pause bulk
    """
    del context  # decides whether this function is called
    from holdfast.cli.output import console, show_table

    found = remote.get("_queues", expect="queues").list("queues")
    show_table(console(), queue_table(found)) if found else console().print("No queue has tasks or workers.")


queues.callback()(_list)


@queues.command()
@remote_command
def pause(remote: Remote, queue: QueueName, reason: Reason = None) -> None:
    """Pause a queue: no worker claims from it. Runs and nodes that workers execute continue until they suspend or end.

    \b
    Examples:
      holdfast queues pause bulk --reason 'the bank is down'
    """
    remote.post("_queues", queue, "pause", expect="paused", body=_body(reason), repeatable=True)
    typer.echo(f"{queue}: paused")


@queues.command()
@remote_command
def resume(remote: Remote, queue: QueueName, reason: Reason = None) -> None:
    """Resume a queue: workers claim from it again.

    \b
    Examples:
      holdfast queues resume bulk
    """
    remote.post("_queues", queue, "resume", expect="paused", body=_body(reason), repeatable=True)
    typer.echo(f"{queue}: resumed")


@queues.command()
@remote_command
def drain(
    remote: Remote,
    queue: QueueName,
    wait: Annotated[
        float, typer.Option("--wait", metavar="DURATION", parser=read_seconds, help="Maximum time to wait.")
    ] = 600.0,
    reason: Reason = None,
) -> None:
    """Pause a queue, and wait until no worker executes a run of it. After the wait, the queue stays paused.

    \b
    Examples:
      holdfast queues drain bulk --reason 'the bank is upgraded'
      holdfast queues drain bulk --wait 5m && holdfast queues resume bulk
    """
    remote.post("_queues", queue, "pause", expect="paused", body=_body(reason), repeatable=True)
    deadline = time.monotonic() + wait
    while running := _running(remote, queue):
        if time.monotonic() > deadline:
            raise CommandFailedError(f"{queue}: paused, but {running} of its tasks are still executed")
        time.sleep(_POLL_SECONDS)
    typer.echo(f"{queue}: paused, and no worker executes a run of it")


def _running(remote: Remote, queue: str) -> int:
    found = remote.get("_queues", expect="queues").list("queues")
    return sum(one.number("running") or 0 for one in found if one.text("name") == queue)


@queues.command()
@remote_command
def move(
    remote: Remote,
    queue: QueueName,
    to: Annotated[str, typer.Option("--to", metavar="QUEUE", help="The queue that receives the runs.")],
    reason: Reason = None,
) -> None:
    """Move the runs of a queue that no worker executes to another queue.

    \b
    Examples:
      holdfast queues move bulk --to slow
    """
    moved = remote.post("_queues", queue, "move", expect="moved", body=_body(reason, to=to), repeatable=True)
    typer.echo(f"{queue}: {moved.number('moved')} runs moved to {to}")


@limits.callback()
def about() -> None:
    """Show and change the limits of a server.

    \b
    Examples:
      holdfast limits list
      holdfast limits set bank --concurrency 10
    """


@limits.command(name="list")
@remote_command
def list_limits(remote: Remote) -> None:
    """List the limits by name, with their use.

    WAITING is the number of attempts, nodes and runs that wait for the limit, OLDEST the time for which the one that
    has waited the longest has waited.

    \b
    Examples:
      holdfast limits list
    """
    from holdfast.cli.output import console, show_table, table

    found = remote.get("_limits", expect="limits").list("limits")
    if not found:
        console().print("There are no limits.")
        return
    show_table(console(), table(_COLUMNS, [_row(limit) for limit in found]))


@limits.command(name="set")
@remote_command
def set_limit(
    remote: Remote,
    limit: LimitName,
    concurrency: Annotated[
        int | None, typer.Option("--concurrency", metavar="N", min=0, help="Maximum number in progress at once.")
    ] = None,
    rate: Annotated[
        str | None,
        typer.Option("--rate", metavar="N/DURATION", help="Maximum number of starts per time: '10/1 second', 600/1m."),
    ] = None,
    burst: Annotated[
        int | None, typer.Option("--burst", metavar="N", min=1, help="Maximum number of starts at once.")
    ] = None,
    no_concurrency: Annotated[bool, typer.Option("--no-concurrency", help="Remove the maximum in progress.")] = False,
    no_rate: Annotated[bool, typer.Option("--no-rate", help="Remove the rate.")] = False,
    weight: Annotated[
        list[str] | None,
        typer.Option("--weight", metavar="KEY=N", help="Replace the weights of fair keys; repeatable."),
    ] = None,
    fair: Annotated[
        bool | None, typer.Option("--fair/--no-fair", help="Serve the keys that wait at a shared limit in turn.")
    ] = None,
    reason: Reason = None,
) -> None:
    """Change values of a limit, for all workers and without a deploy. Values that are not given stay as they are.

    \b
    Examples:
      holdfast limits set bank --concurrency 10 --reason 'the bank has doubled our quota'
      holdfast limits set bank --rate '10/1 second' --burst 20
      holdfast limits set bank --no-rate
      holdfast limits set tenants --weight acme=2 --weight other=0.5
    """
    from holdfast.cli.output import console, show_table, table

    values: dict[str, Any] = {}
    if concurrency is not None or no_concurrency:
        values["concurrency"] = _one_of("concurrency", concurrency, removed=no_concurrency)
    if rate is not None or no_rate:
        given = None if rate is None else _rate(rate, burst)
        values["rate"] = _one_of("rate", given, removed=no_rate)
    elif burst is not None:
        raise typer.BadParameter("--burst needs --rate")
    if fair is not None:
        values["fair"] = fair
    if weight:
        values["weights"] = dict(map(_weight, weight))
    if not values:
        raise typer.BadParameter(
            "give --concurrency, --rate, --fair, --weight, --no-concurrency, --no-rate or --no-fair"
        )
    body = json.dumps(values if reason is None else values | {"reason": reason})
    changed = remote.put("_limits", limit, expect="name", body=body)
    show_table(console(), table(_COLUMNS, [_row(changed)]))


def _rate(text: str, burst: int | None) -> dict[str, Any]:
    count, slash, per = text.partition("/")
    if not slash or not count.strip().isdecimal() or not per.strip():
        raise typer.BadParameter(f"{text!r} is not of the form N/DURATION, such as '10/1 second'")
    rate: dict[str, Any] = {"count": int(count), "per": per.strip()}
    return rate if burst is None else rate | {"burst": burst}


def _one_of(option: str, value: Any, *, removed: bool) -> Any:
    if removed and value is not None:
        raise typer.BadParameter(f"--{option} and --no-{option} exclude each other")
    return value


def _weight(text: str) -> tuple[str, float]:
    key, equals, weight = text.rpartition("=")
    try:
        if equals:
            return key, float(weight)
    except ValueError:
        pass
    raise typer.BadParameter(f"{text!r} is not of the form KEY=N, such as acme=2")


def _body(reason: str | None, **values: Any) -> str | None:
    body = values if reason is None else values | {"reason": reason}
    return json.dumps(body) if body else None


def _fairness(limit: Fields) -> str:
    if not limit.true("fair"):
        return "-"
    weights = limit.any("weights")
    return ", ".join(f"{key}={weight:g}" for key, weight in weights.items()) if weights else "yes"


def _row(limit: Fields) -> list[Text]:
    from holdfast.cli.output import line

    rate, oldest = limit.fields("rate"), limit.time("oldestWaiting")
    concurrency = limit.number("concurrency")
    texts = (
        limit.text("name"),
        "-" if concurrency is None else str(concurrency),
        str(limit.number("used") or 0),
        str(limit.number("waiting") or 0),
        "-" if oldest is None else age(oldest),
        f"{rate.number('count')}/{rate.number('perMs')}ms, burst {rate.number('burst')}" if rate else "-",
        str(limit.number("keys") or 0),
        _fairness(limit),
        "yes" if limit.true("changed") else "no",
    )
    return [line(text) for text in texts]
