"""The commands of ``holdfast instances`` that are for graphs or for chains only. Speaks HTTP only."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from holdfast.cli.instances import json_object, manage
from holdfast.cli.options import InstanceId, InstanceIds, WorkflowName, remote_command
from holdfast.cli.remote import Remote


def add_kinds(instances: typer.Typer) -> None:
    instances.command()(remote_command(facts))
    instances.command()(remote_command(mermaid))
    instances.command()(remote_command(kill))
    instances.command()(remote_command(outbox))
    instances.command()(remote_command(redeliver))


# --- graphs


def facts(
    remote: Remote,
    workflow: WorkflowName,
    id: InstanceId,
    prefix: Annotated[
        str | None,
        typer.Option("--prefix", metavar="TEXT", help="Only keys that begin so: meta, start/, result/, tombstone."),
    ] = None,
) -> None:
    """Show what is stored of a graph: its plan, the starts of its nodes and their results.

    \b
    Examples:
      holdfast instances facts -w etl -i e-1
      holdfast instances facts -w etl -i e-1 --prefix result/      what came out so far?
      holdfast instances facts -w etl -i e-1 --prefix start/load/  who has tried to load, and when?
    """
    from holdfast.cli import views  # noqa: PLC0415  (rich)

    answer = remote.get(workflow, "instances", id, "facts", expect="facts", query={"prefix": prefix})
    views.show_facts(answer, workflow, id, prefix)


def mermaid(remote: Remote, workflow: WorkflowName, id: InstanceId) -> None:
    """Draw a graph, coloured by what its nodes have come to, as a Mermaid flowchart.

    \b
    Examples:
      holdfast instances mermaid -w etl -i e-1
      holdfast instances mermaid -w etl -i e-1 > e-1.mmd
    """
    from holdfast.cli.shown import show_text  # noqa: PLC0415  (rich)

    show_text(remote.get_text(workflow, "instances", id, "mermaid"))


def kill(
    remote: Remote,
    workflow: WorkflowName,
    ids: InstanceIds,
    reason: Annotated[
        str | None, typer.Option("--reason", metavar="TEXT", help="Why; it is written on the tombstone.")
    ] = None,
) -> None:
    """Kill graphs: no node starts any more, and what is in flight is refused.

    \b
    Examples:
      holdfast instances kill -w etl -i e-1
      holdfast instances kill -w etl -i e-1 -i e-2 --reason "wrong source"
    """
    body = json_object(reason=None if reason is None else json.dumps(reason))
    manage(remote, workflow, ids, "kill", "is killed", body=body)


# --- chains


def outbox(remote: Remote, workflow: WorkflowName, id: InstanceId) -> None:
    """Show what a chain tells the world, and whether it was delivered.

    \b
    Examples:
      holdfast instances outbox -w order.process -i order-1
    """
    from holdfast.cli import views  # noqa: PLC0415  (rich)

    views.show_outbox(remote.get(workflow, "instances", id, "outbox", expect="events"), workflow, id)


def redeliver(remote: Remote, workflow: WorkflowName, id: InstanceId) -> None:
    """Try the events of a chain again that were parked after too many failures.

    \b
    Examples:
      holdfast instances redeliver -w order.process -i order-1
      holdfast instances outbox -w order.process -i order-1      see what becomes of them
    """
    from holdfast.cli import views  # noqa: PLC0415  (rich)

    # Not repeated by itself: the answer to the second request would say that there was nothing to do.
    answer = remote.post(workflow, "instances", id, "outbox", "redeliver", expect="redelivered", repeatable=False)
    views.show_redelivered(answer, workflow, id)
