"""``holdfast workers``: the workers of a server, and their drains. Uses HTTP only."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from holdfast.cli.observe import worker_table
from holdfast.cli.options import remote_command
from holdfast.cli.remote import Remote

workers = typer.Typer(invoke_without_command=True, rich_markup_mode=None)

WorkerId = Annotated[str, typer.Argument(metavar="WORKER", help="The id of the worker.")]
Reason = Annotated[str | None, typer.Option("--reason", metavar="TEXT", help="Audited with the change.")]


@remote_command
def _list(
    remote: Remote,
    context: typer.Context,
    wide: Annotated[bool, typer.Option("--wide", help="Also show host, process and times.")] = False,
) -> None:
    """List the workers, the oldest first, including those that died within the last day; drain and resume workers.

    HELD is the number of runs and nodes that the worker executes.

    \b
    Examples:
      holdfast workers
      holdfast workers --wide
      holdfast workers | awk '$2 == "dead" {print $1}'      ids of dead workers
      holdfast workers drain shop@app-1:4711:3f19
    """
    del context  # decides whether this function is called
    from holdfast.cli.output import console, show_table

    found = remote.get("_workers", expect="workers").list("workers")
    show_table(console(), worker_table(found, wide=wide)) if found else console().print("There are no workers.")


workers.callback()(_list)


@workers.command()
@remote_command
def drain(remote: Remote, worker: WorkerId, reason: Reason = None) -> None:
    """Drain a worker: it claims nothing more, and releases its runs once their steps in flight have ended.

    The worker receives the request with its next heartbeat, three times within a lease. Its process continues, and
    can be stopped without interrupting a step as soon as it holds no run.

    \b
    Examples:
      holdfast workers drain shop@app-1:4711:3f19 --reason 'the host is replaced'
    """
    remote.post("_workers", worker, "drain", expect="draining", body=_body(reason), repeatable=True)
    typer.echo(f"{worker}: draining")


@workers.command()
@remote_command
def resume(remote: Remote, worker: WorkerId, reason: Reason = None) -> None:
    """End the drain of a worker: it claims again.

    \b
    Examples:
      holdfast workers resume shop@app-1:4711:3f19
    """
    remote.post("_workers", worker, "resume", expect="draining", body=_body(reason), repeatable=True)
    typer.echo(f"{worker}: resumed")


def _body(reason: str | None) -> str | None:
    return None if reason is None else json.dumps({"reason": reason})
