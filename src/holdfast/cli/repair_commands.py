"""The commands of ``holdfast instances`` that repair and delete instances. Uses HTTP only."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from holdfast.cli.control_commands import json_object, manage
from holdfast.cli.options import InstanceId, Reason, WorkflowName, read_json, remote_command
from holdfast.cli.remote import Remote
from holdfast.cli.selection import Selection, run_bulk, selecting


def add_repair_commands(instances: typer.Typer) -> None:
    instances.command()(remote_command(selecting(retry)))
    instances.command()(remote_command(selecting(fork)))
    instances.command()(remote_command(resolve))
    instances.command()(remote_command(selecting(delete)))


def retry(remote: Remote, selection: Selection, reason: Reason = None) -> None:
    """Let errored instances continue from their history: what failed is tried again.

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
        manage(remote, workflow, ids, "retry", "continues", body=body, repeatable=False)


def delete(remote: Remote, selection: Selection, reason: Reason = None) -> None:
    """Delete ended instances with their runs, events and logs. Audit records stay.

    \b
    Examples:
      holdfast instances delete fulfil/order-1 --reason "asked by the customer"
      holdfast instances delete --status complete --ended-before 2026-01-01 --dry-run
      holdfast instances delete -w fulfil --id-prefix test-
    """
    if not selection.named:
        run_bulk(remote, selection, "delete", reason)
    body = None if reason is None else json.dumps({"reason": reason})
    for workflow, ids in selection.named.items():
        manage(remote, workflow, ids, None, "deleted", body=body, repeatable=False)


def fork(
    remote: Remote,
    selection: Selection,
    before: Annotated[str, typer.Option("--before", metavar="STEP", help="The step at which the new instance begins.")],
    new_id: Annotated[
        str | None, typer.Option("--new-id", metavar="ID", help="The id of the new instance. Default: generated.")
    ] = None,
    suffix: Annotated[
        str | None,
        typer.Option("--suffix", metavar="TEXT", help="With a filter: the end of the new ids. Default: -fork."),
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
    """Start new instances with the recorded history before a step.

    Give one instance by name, or select instances with a filter. The id of a fork of a selected instance is the id of
    the instance and the suffix; instances without the step, or whose fork exists already, are skipped.

    \b
    Examples:
      holdfast instances fork fulfil/order-1 --before charge --new-id order-1-again
      holdfast instances fork fulfil/order-1 --before charge --outputs '{"lookup": {"price": 3}}'
      holdfast instances fork -w fulfil --error KeyError --before charge --suffix -fixed --dry-run
    """
    if selection.named:
        _fork_one(remote, selection, suffix, json_object(
            before=json.dumps(before),
            id=None if new_id is None else json.dumps(new_id),
            outputs=outputs,
            params=params,
            reason=None if reason is None else json.dumps(reason),
        ), repeatable=new_id is not None)  # fmt: skip
        return
    if new_id is not None or params is not None:
        raise typer.BadParameter("--new-id and --params are for one instance; with a filter give --suffix")
    arguments = {"before": before, "suffix": suffix, "outputs": None if outputs is None else json.loads(outputs)}
    run_bulk(remote, selection, "fork", reason, {name: value for name, value in arguments.items() if value is not None})


def _fork_one(remote: Remote, selection: Selection, suffix: str | None, body: str | None, *, repeatable: bool) -> None:
    from holdfast.cli import views

    [(workflow, ids)] = selection.named.items() if len(selection.named) == 1 else [("", [])]
    if len(ids) != 1 or suffix is not None:
        raise typer.BadParameter("give one instance, or select instances with a filter and --suffix")
    forked = remote.post(workflow, "instances", ids[0], "fork", expect="id", body=body, repeatable=repeatable)
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
