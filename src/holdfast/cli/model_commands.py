"""The commands of ``holdfast instances`` for graphs only or for chains only. Uses HTTP only."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from holdfast.cli.control_commands import json_object, manage
from holdfast.cli.options import InstanceId, InstanceIds, WorkflowName, remote_command
from holdfast.cli.remote import Remote


def add_model_commands(instances: typer.Typer) -> None:
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
        typer.Option("--prefix", metavar="TEXT", help="Only keys with this prefix: meta, start/, result/, item/, ..."),
    ] = None,
) -> None:
    """Show the facts of a graph: its plan, the starts of its nodes and their results.

    \b
    Examples:
      holdfast instances facts -w etl -i e-1
      holdfast instances facts -w etl -i e-1 --prefix result/      the results so far
      holdfast instances facts -w etl -i e-1 --prefix start/load/  the starts of node load, with their owners
    """
    from holdfast.cli import views

    response = remote.get(workflow, "instances", id, "facts", expect="facts", query={"prefix": prefix})
    views.show_facts(response, workflow, id, prefix)


def mermaid(remote: Remote, workflow: WorkflowName, id: InstanceId) -> None:
    """Draw a graph as a Mermaid flowchart, coloured by the state of its nodes.

    \b
    Examples:
      holdfast instances mermaid -w etl -i e-1
      holdfast instances mermaid -w etl -i e-1 > e-1.mmd
    """
    from holdfast.cli.output import show_text

    show_text(remote.get_text(workflow, "instances", id, "mermaid"))


def kill(
    remote: Remote,
    workflow: WorkflowName,
    ids: InstanceIds,
    reason: Annotated[
        str | None, typer.Option("--reason", metavar="TEXT", help="The reason; it is stored with the tombstone.")
    ] = None,
) -> None:
    """Kill graphs: no node starts any more, and results of nodes in flight are refused.

    \b
    Examples:
      holdfast instances kill -w etl -i e-1
      holdfast instances kill -w etl -i e-1 -i e-2 --reason "wrong source"
    """
    body = json_object(reason=None if reason is None else json.dumps(reason))
    manage(remote, workflow, ids, "kill", "killed", body=body)


# --- chains


def outbox(remote: Remote, workflow: WorkflowName, id: InstanceId) -> None:
    """Show the outbound events of a chain, and the state of their delivery.

    \b
    Examples:
      holdfast instances outbox -w order.process -i order-1
    """
    from holdfast.cli import views

    views.show_outbox(remote.get(workflow, "instances", id, "outbox", expect="events"), workflow, id)


def redeliver(remote: Remote, workflow: WorkflowName, id: InstanceId) -> None:
    """Deliver again the outbound events of a chain that were parked after too many failures.

    \b
    Examples:
      holdfast instances redeliver -w order.process -i order-1
      holdfast instances outbox -w order.process -i order-1      shows the result
    """
    from holdfast.cli import views

    # Not repeatable: the response to a second request would report 0 events.
    response = remote.post(workflow, "instances", id, "outbox", "redeliver", expect="redelivered", repeatable=False)
    views.show_redelivered(response, workflow, id)
