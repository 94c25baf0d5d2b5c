"""The commands of ``holdfast instances`` that start and control instances and send events. Uses HTTP only."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, TypeAlias

import typer

from holdfast.cli.options import Reason, WorkflowName, read_json, read_seconds, remote_command
from holdfast.cli.remote import CommandFailedError, Remote
from holdfast.cli.response_fields import TERMINAL
from holdfast.cli.selection import Selection, run_bulk, selecting
from holdfast.cli.start_options import (
    ConflictPolicy,
    ContextValues,
    CronText,
    DebounceMaxWait,
    DebounceTime,
    DedupeKey,
    DedupePeriod,
    Delay,
    ExecutionTimeout,
    Key,
    LimitPolicy,
    Memo,
    Messages,
    NewId,
    Params,
    Priority,
    Queue,
    ReusePolicy,
    RunTimeout,
    SearchAttributes,
    SingletonPolicy,
    StartAt,
    Summary,
    TaskTimeout,
    WorkflowRetry,
    policy,
)
from holdfast.cli.terminal_text import one_line

Check: TypeAlias = Callable[[Remote, str, str], None]


def add_control_commands(instances: typer.Typer) -> None:
    instances.command()(remote_command(create))
    instances.command()(remote_command(selecting(pause)))
    instances.command()(remote_command(selecting(resume)))
    instances.command()(remote_command(selecting(restart)))
    instances.command()(remote_command(selecting(terminate)))
    instances.command()(remote_command(selecting(cancel)))
    instances.command()(remote_command(selecting(move)))
    instances.command(name="send-event")(remote_command(selecting(send_event)))


def create(
    remote: Remote,
    workflow: WorkflowName,
    id: NewId = None,
    params: Params = None,
    queue: Queue = None,
    priority: Priority = None,
    delay: Delay = None,
    start_at: StartAt = None,
    execution_timeout: ExecutionTimeout = None,
    run_timeout: RunTimeout = None,
    task_timeout: TaskTimeout = None,
    retry: WorkflowRetry = None,
    cron: CronText = None,
    search: SearchAttributes = None,
    memo: Memo = None,
    context: ContextValues = None,
    message: Messages = None,
    summary: Summary = None,
    on_conflict: ConflictPolicy = None,
    on_reuse: ReusePolicy = None,
    key: Key = None,
    singleton: SingletonPolicy = None,
    dedupe: DedupeKey = None,
    dedupe_period: DedupePeriod = None,
    debounce: DebounceTime = None,
    debounce_max_wait: DebounceMaxWait = None,
    on_limit: LimitPolicy = None,
    reason: Reason = None,
) -> None:
    """Start a new instance of a workflow.

    With an id the request is safe to repeat, because an id can be used only once. Without an id, the command repeats
    the request only if the server certainly did not process it.

    \b
    Examples:
      holdfast instances create -w fulfil -i order-1 --params '{"id": "order-1", "total": 125}'
      holdfast instances create -w greet --params '"ann"'
      holdfast instances create -w greet --queue night --delay 8h --search team=a --priority 5
      holdfast instances create -w greet -i g-1 --on-reuse retry_if_failed --run-timeout 10m
      holdfast instances create -w greet --message 'approval={"by": "ann"}'
      holdfast instances create -w reindex --params '"shop-1"' --key shop-1 --debounce 5s --debounce-max-wait 1m
    """
    from holdfast.cli import views

    texts = {
        "id": id, "queue": queue, "startAt": start_at, "cron": cron, "summary": summary, "onConflict": on_conflict,
        "onReuse": on_reuse, "key": key, "singleton": singleton, "onLimit": on_limit, "reason": reason,
        "delay": delay, "executionTimeout": execution_timeout, "runTimeout": run_timeout, "taskTimeout": task_timeout,
        "dedupe": policy("dedupe", key=dedupe, period=dedupe_period),
        "debounce": policy("debounce", wait=debounce, maxWait=debounce_max_wait),
    }  # fmt: skip
    body = json_object(
        **json_texts(texts), params=params, priority=None if priority is None else str(priority), retry=retry,
        memo=memo, context=context, messages=_message_list(message), search=search_object(search),
    )  # fmt: skip
    created = remote.post(workflow, "instances", expect="id", body=body, repeatable=id is not None)
    views.show_created(created, workflow)


def search_object(texts: Sequence[str] | None) -> str | None:
    """Search attributes as a JSON object: numbers, true and false as such, any other value as text."""
    if not texts:
        return None
    attributes: dict[str, object] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not key or not equals:
            raise typer.BadParameter(f"{one_line(text)!r} is not of the form KEY=VALUE", param_hint="'--search'")
        try:
            parsed = json.loads(value)
        except ValueError:
            parsed = value
        attributes[key] = parsed if isinstance(parsed, str | int | float | bool) else value
    return json.dumps(attributes)


def _message_list(texts: Sequence[str] | None) -> str | None:
    """Messages as a JSON list. Their payloads are JSON already."""
    if not texts:
        return None
    pairs = [text.partition("=") for text in texts]
    fields = [json_object(type=json.dumps(type_), payload=payload or None) for type_, _, payload in pairs]
    return f"[{', '.join(fields)}]"


def pause(remote: Remote, selection: Selection, reason: Reason = None) -> None:
    """Pause instances: they stop before their next step. Events are stored, and timers keep running.

    \b
    Examples:
      holdfast instances pause -w fulfil -i order-1
      holdfast instances pause -w fulfil -i order-1 -i order-2
      holdfast instances get -w fulfil -i order-1       shows when the pause has taken effect
    """
    apply(remote, selection, "pause", "pause requested", reason=reason)


def resume(remote: Remote, selection: Selection, reason: Reason = None) -> None:
    """Resume paused instances. An instance that is not paused does not change; one that has ended is an error.

    \b
    Examples:
      holdfast instances resume -w fulfil -i order-1
      holdfast instances resume -w fulfil -i order-1 -i order-2
    """
    apply(remote, selection, "resume", "resumed", reason=reason, check=_check_open)


def restart(remote: Remote, selection: Selection, reason: Reason = None) -> None:
    """Restart instances from the beginning.

    The new run has the input of the old one. The old run stays readable: see `history --run`.

    \b
    Examples:
      holdfast instances restart -w fulfil -i order-1
      holdfast instances restart -w fulfil -i order-1 -i order-2
      holdfast instances history -w fulfil -i order-1 --run 0      the run before the first restart
    """
    apply(remote, selection, "restart", "restarted", reason=reason, repeatable=False)


def terminate(remote: Remote, selection: Selection, reason: Reason = None) -> None:
    """End instances at once. Their code cannot clean up, and steps in flight cannot undo the termination.

    \b
    Examples:
      holdfast instances terminate -w fulfil -i order-1
      holdfast instances terminate -w fulfil -i order-1 -i order-2 --reason "ticket 7"
    """
    apply(remote, selection, "terminate", "terminated", reason=reason)


def cancel(
    remote: Remote,
    selection: Selection,
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
    arguments = {} if deadline is None else {"deadlineMs": round(deadline * 1000)}
    apply(remote, selection, "cancel", "cancellation requested", reason=reason, arguments=arguments)


def send_event(
    remote: Remote,
    selection: Selection,
    type: Annotated[str, typer.Option("--type", "-t", metavar="TYPE", help="The type of the event.")],
    payload: Annotated[
        str | None, typer.Option("--payload", metavar="JSON", parser=read_json, help="The payload of the event.")
    ] = None,
    reason: Reason = None,
) -> None:
    """Send an event to instances. The event is stored until the workflow waits for its type.

    Retries of this command are safe: the event has an id, and an id is delivered once. Running the command again sends
    another event. Give one instance by name, or select instances with a filter.

    \b
    Examples:
      holdfast instances send-event -w fulfil -i order-1 -t approval --payload '{"by": "ann"}'
      holdfast instances send-event fulfil/order-1 -t go
      holdfast instances send-event -w fulfil --status waiting -t go --dry-run
    """
    from holdfast.cli import views

    if not selection.named:
        arguments = {"type": type, **({} if payload is None else {"payload": json.loads(payload)})}
        run_bulk(remote, selection, "sendEvent", reason, arguments)
        return
    [(workflow, ids)] = selection.named.items() if len(selection.named) == 1 else [("", [])]
    if len(ids) != 1:
        raise typer.BadParameter("give one id, or select instances with a filter")
    texts = {"type": type, "id": str(uuid.uuid4()), "reason": reason}
    body = json_object(payload=payload, **json_texts(texts))
    sent = remote.post(workflow, "instances", ids[0], "events", expect="accepted", body=body, repeatable=True)
    views.show_sent(sent, workflow, ids[0], type)


def move(
    remote: Remote,
    selection: Selection,
    to: Annotated[str, typer.Option("--to", metavar="VERSION", help="The version of the workers to run on.")],
    reason: Reason = None,
) -> None:
    """Move pinned instances to another release: workers of that version claim them from now on.

    Give instances by name, or select them with a filter.

    \b
    Examples:
      holdfast instances move fulfil/order-1 --to 2026-11-17
      holdfast instances move --version 2026-11-16 --status waiting --to 2026-11-17 --dry-run
      holdfast versions                                 shows the open runs of each version
    """
    if not selection.named:
        run_bulk(remote, selection, "move", reason, {"version": to})
    body = json_object(**json_texts({"version": to, "reason": reason}))
    for workflow, ids in selection.named.items():
        manage(remote, workflow, ids, "move", f"moved to {to}", body=body)


def apply(
    remote: Remote, selection: Selection, action: str, outcome: str,
    *, reason: str | None = None, arguments: dict[str, int] | None = None, repeatable: bool = True,
    check: Check | None = None,
) -> None:  # fmt: skip
    """Send a control request for each selected instance, or a bulk action for a filter."""
    if not selection.named:
        run_bulk(remote, selection, action, reason, arguments)
    content = {**({} if reason is None else {"reason": reason}), **(arguments or {})}
    body = json.dumps(content) if content else None
    for workflow, ids in selection.named.items():
        manage(remote, workflow, ids, action, outcome, body=body, repeatable=repeatable, check=check)


def manage(
    remote: Remote, workflow: str, ids: Sequence[str], action: str | None, outcome: str,
    *, body: str | None = None, repeatable: bool = True, check: Check | None = None,
) -> None:  # fmt: skip
    """Send a control request for each id in turn and print its outcome. ``action``: its route; None: DELETE.

    With several ids, a failed request does not stop the others. ``check`` raises if the request must not be sent.
    """
    from holdfast.cli import views

    unique_ids, failed = list(dict.fromkeys(ids)), False
    for instance_id in unique_ids:
        try:
            if check is not None:
                check(remote, workflow, instance_id)
            path = (workflow, "instances", instance_id)
            if action is None:
                remote.delete(*path, expect="ok", body=body)
            else:
                remote.post(*path, action, expect="ok", body=body, repeatable=repeatable)
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
        how = "retry to continue from its history, or restart" if status == "errored" else "restart"
        raise CommandFailedError(
            f"{workflow}/{id} has ended ({status}) and cannot be resumed; use {how} to run it again"
        )


def json_texts(values: Mapping[str, object]) -> dict[str, str | None]:
    """The values as JSON texts; None stays None."""
    return {name: None if value is None else json.dumps(value) for name, value in values.items()}


def json_object(**fields: str | None) -> str:
    """A JSON object of fields that are JSON texts; fields that are None are omitted."""
    return "{" + ", ".join(f'"{name}": {text}' for name, text in fields.items() if text is not None) + "}"
