"""The commands of ``holdfast instances`` that repair and delete instances. Uses HTTP only."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from holdfast.cli.control_commands import json_object, manage
from holdfast.cli.options import InstanceId, WorkflowName, read_json, remote_command
from holdfast.cli.remote import Remote
from holdfast.cli.selection import Selection, run_bulk, selecting

Reason = Annotated[str | None, typer.Option("--reason", metavar="TEXT", help="The reason, for the audit record.")]


def add_repair_commands(instances: typer.Typer) -> None:
    instances.command()(remote_command(selecting(retry)))
    instances.command()(remote_command(fork))
    instances.command()(remote_command(resolve))
    instances.command()(remote_command(selecting(delete)))


def retry(remote: Remote, selection: Selection, reason: Reason = None) -> None:
    """Let errored instances go on from their history: what failed is tried again.

    Recorded results stay. Give instances by name, or select them with a filter.

    \b
    Examples:
      holdfast instances retry fulfil/order-1 --reason "the gateway is back"
      holdfast instances retry --status errored --error KeyError --since 1h --dry-run
      holdfast instances retry -w fulfil --error KeyError --rate 50
    """
    if not selection.named:
        run_bulk(remote, selection, "retry", reason)
    for workflow, ids in selection.named.items():
        body = json_object(reason=None if reason is None else json.dumps(reason))
        manage(remote, workflow, ids, "retry", "goes on", body=body, repeatable=False)


def delete(remote: Remote, selection: Selection, reason: Reason = None) -> None:
    """Delete ended instances with their runs, events and logs. Audit records stay.

    \b
    Examples:
      holdfast instances delete --status complete --ended-before 2026-01-01 --dry-run
      holdfast instances delete -w fulfil --id-prefix test-
    """
    if selection.named:
        raise typer.BadParameter("select the instances to delete with a filter, such as --id-prefix")
    run_bulk(remote, selection, "delete", reason)


def fork(
    remote: Remote,
    workflow: WorkflowName,
    id: InstanceId,
    before: Annotated[str, typer.Option("--before", metavar="STEP", help="The step at which the new instance begins.")],
    new_id: Annotated[
        str | None, typer.Option("--new-id", metavar="ID", help="The id of the new instance. Default: generated.")
    ] = None,
    outputs: Annotated[
        str | None,
        typer.Option("--outputs", metavar="JSON", parser=read_json, help="Other results of earlier steps, by key."),
    ] = None,
    params: Annotated[
        str | None, typer.Option("--params", metavar="JSON", parser=read_json, help="Another input.")
    ] = None,
    reason: Reason = None,
) -> None:
    """Start a new instance with the recorded history before a step.

    \b
    Examples:
      holdfast instances fork fulfil/order-1 --before charge --new-id order-1-again
      holdfast instances fork fulfil/order-1 --before charge --outputs '{"lookup": {"price": 3}}'
    """
    from holdfast.cli import views  # noqa: PLC0415  (rich)

    body = json_object(
        before=json.dumps(before),
        id=None if new_id is None else json.dumps(new_id),
        outputs=outputs,
        params=params,
        reason=None if reason is None else json.dumps(reason),
    )
    forked = remote.post(workflow, "instances", id, "fork", expect="id", body=body, repeatable=new_id is not None)
    views.show_created(forked, workflow)


def resolve(
    remote: Remote,
    workflow: WorkflowName,
    id: InstanceId,
    step: Annotated[str, typer.Option("--step", metavar="KEY", help="The key of the step.")],
    result: Annotated[
        str | None, typer.Option("--result", metavar="JSON", parser=read_json, help="The result of the step.")
    ] = None,
    error: Annotated[
        str | None, typer.Option("--error", metavar="TEXT", help="The message of the error that the code receives.")
    ] = None,
    reason: Reason = None,
) -> None:
    """Decide the outcome of a step that is retrying or failed: a result, or an error.

    \b
    Examples:
      holdfast instances resolve fulfil/order-1 --step charge --result '"paid in cash"' --reason "ticket 1"
      holdfast instances resolve fulfil/order-1 --step charge --error "the card was stolen"
    """
    if (result is None) == (error is None):
        raise typer.BadParameter("give either --result or --error")
    body = json_object(
        stepKey=json.dumps(step),
        result=result,
        error=None if error is None else json.dumps(error),
        reason=None if reason is None else json.dumps(reason),
    )
    manage(remote, workflow, [id], "resolve", f"step {step} is resolved", body=body, repeatable=False)
