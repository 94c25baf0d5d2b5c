"""The instances that a command acts on: given by name, or by a filter.

A command with a filter is a bulk action of the server (``POST /_bulk``): ``--dry-run`` shows the count and a sample.
"""

from __future__ import annotations

import functools
import inspect
import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

import typer

from holdfast.cli.options import read_instant, read_seconds, set_signature
from holdfast.cli.remote import CommandFailedError, Remote, print_note
from holdfast.cli.response_fields import TERMINAL, Fields
from holdfast.cli.terminal_text import count_text
from holdfast.core.condition_text import parse_condition

_POLL_SECONDS = 0.2
_ENDED = (*TERMINAL,)


def _text(name: str, metavar: str, help: str) -> Any:
    return Annotated[str | None, typer.Option(f"--{name}", metavar=metavar, help=help)]


def _when(name: str, help: str) -> Any:
    return Annotated[str | None, typer.Option(f"--{name}", metavar="WHEN", parser=read_instant, help=help)]


_OPTIONS: dict[str, Any] = {
    "address": Annotated[
        list[str] | None,
        typer.Argument(metavar="WORKFLOW/ID", show_default=False, help="The instance, instead of -w and -i."),
    ],
    "workflow": Annotated[str | None, typer.Option("--workflow", "-w", metavar="WF", help="The name of the workflow.")],
    "ids": Annotated[
        list[str] | None,
        typer.Option("--id", "-i", metavar="ID", help="The id of an instance; repeat the option for several."),
    ],
    "status": _text("status", "STATUS", "All instances with this status."),
    "error": _text("error", "NAME", "All instances that this error ended, such as KeyError."),
    "search": Annotated[
        list[str] | None,
        typer.Option(
            "--search",
            metavar="KEY=VALUE",
            help="All instances with this search attribute; total=>=100 compares, a number in double quotes is text.",
        ),
    ],
    "id_prefix": _text("id-prefix", "TEXT", "All instances whose id begins with this text."),
    "since": Annotated[
        float | None,
        typer.Option(
            "--since",
            metavar="DURATION",
            parser=read_seconds,
            help="All instances that ended within this time; with the status of an open run, those that were created "
            "within it.",
        ),
    ],
    "created_after": _when("created-after", "All instances created at this time or later."),
    "created_before": _when("created-before", "All instances created before this time."),
    "ended_after": _when("ended-after", "All instances that ended at this time or later."),
    "ended_before": _when("ended-before", "All instances that ended before this time."),
    "version": _text("version", "VERSION", "All instances that this release started."),
    "queue": _text("queue", "QUEUE", "All instances of this queue."),
    "dry_run": Annotated[bool, typer.Option("--dry-run", help="Only count the instances, and show some of them.")],
    "rate": Annotated[
        float | None, typer.Option("--rate", metavar="N", min=0.001, help="At most N instances per second.")
    ],
}
_FILTERS = {
    "workflow": "workflow", "status": "status", "error": "error", "id_prefix": "idPrefix",
    "created_after": "createdAfter", "created_before": "createdBefore", "ended_after": "endedAfter",
    "ended_before": "endedBefore", "version": "version", "queue": "queue",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Selection:
    """Instances by name, grouped by workflow, or a filter of the server."""

    named: dict[str, list[str]]
    filter: dict[str, Any]
    dry_run: bool
    rate: float | None


def selecting(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options that select instances to ``command``, which gets them as ``selection``."""

    @functools.wraps(command)
    def run(remote: Remote, **options: Any) -> None:
        own = {name: options.pop(name) for name in _OPTIONS}
        command(remote, selection=_selection(own), **options)

    parameters = inspect.signature(command, eval_str=True).parameters.values()
    kept = [parameter for parameter in parameters if parameter.name != "selection"]
    added = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=annotation, default=_default(name))
        for name, annotation in _OPTIONS.items()
    ]
    kept = [kept[0], *(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in kept[1:])]
    set_signature(run, inspect.Signature([*kept, *added]))
    return run


def _default(name: str) -> Any:
    return False if name == "dry_run" else None


def _selection(own: dict[str, Any]) -> Selection:
    named: dict[str, list[str]] = {}
    for text in own["address"] or ():
        workflow, slash, id_ = text.partition("/")
        if not slash or not workflow or not id_ or "/" in id_:
            raise typer.BadParameter(f"{text!r} is not of the form WORKFLOW/ID")
        named.setdefault(workflow, []).append(id_)
    if own["ids"]:
        if own["workflow"] is None or named:
            raise typer.BadParameter("give instances either as WORKFLOW/ID or with -w and -i")
        named[own["workflow"]] = own["ids"]
    conditions = _conditions(own)
    if named and ({*conditions} - {"workflow"} or own["dry_run"] or (own["address"] and own["workflow"])):
        raise typer.BadParameter("give either instances or a filter, not both")
    if not named and not conditions:
        raise typer.BadParameter("name the instances: WORKFLOW/ID, or -w WF -i ID; or select them, as with --status")
    return Selection(named, {} if named else conditions, own["dry_run"], own["rate"])


def _conditions(own: dict[str, Any]) -> dict[str, Any]:
    conditions: dict[str, Any] = {wire: own[name] for name, wire in _FILTERS.items() if own[name] is not None}
    if own["since"] is not None:
        is_open = own["error"] is None and own["status"] is not None and own["status"] not in _ENDED
        start = datetime.now(UTC) - timedelta(seconds=own["since"])
        conditions["createdAfter" if is_open else "endedAfter"] = start.isoformat()
    search = {}
    for text in own["search"] or ():
        key, equals, value = text.partition("=")
        if not key or not equals:
            raise typer.BadParameter(f"{text!r} is not of the form KEY=VALUE", param_hint="'--search'")
        search[key] = parse_condition(value)
    return conditions | ({"search": search} if search else {})


def run_bulk(
    remote: Remote, selection: Selection, action: str, reason: str | None, arguments: dict[str, Any] | None = None
) -> None:
    """Start a bulk action, or with --dry-run count its instances, and show its progress until it has ended."""
    body: dict[str, Any] = {"action": action, "filter": selection.filter, "dryRun": selection.dry_run}
    body |= {} if reason is None else {"reason": reason}
    body |= {} if selection.rate is None else {"rate": selection.rate}
    body |= {} if not arguments else {"arguments": arguments}
    if selection.dry_run:
        _show_sample(remote.post("_bulk", expect="count", body=json.dumps(body), repeatable=True), action)
        return
    started = remote.post("_bulk", expect="id", body=json.dumps(body), repeatable=False)
    job = _wait_for_end(remote, started.text("id"), action)
    counts = ", ".join(f"{job.number(name) or 0} {name}" for name in ("done", "failed", "skipped"))
    typer.echo(f"{action}: {counts} of {count_text(job.number('total') or 0, 'instance')}.")
    for error in job.list("errors"):
        typer.echo(f"{error.text('pid')}: {error.text('message')}", err=True)
    if job.number("failed"):
        raise CommandFailedError(f"{action} failed on {job.number('failed')} instances")


def _wait_for_end(remote: Remote, id: str, action: str) -> Fields:
    """Show the progress of a bulk action, which continues on the server if the command is interrupted."""
    try:
        while (job := remote.get("_bulk", id, expect="status")).text("status") == "running":
            _show_progress(action, job)
            time.sleep(_POLL_SECONDS)
    except (KeyboardInterrupt, CommandFailedError):
        _show_progress(action, None)
        print_note(f"{action} continues on the server; GET _bulk/{id} shows its progress")
        raise
    _show_progress(action, None)
    return job


def _show_progress(action: str, job: Fields | None) -> None:
    """Show the progress in one line of a terminal; None: delete the line."""
    if sys.stderr.isatty():
        visited = 0 if job is None else sum(job.number(name) or 0 for name in ("done", "failed", "skipped"))
        text = "" if job is None else f"{action}: {visited} of {count_text(job.number('total') or 0, 'instance')}"
        sys.stderr.write(f"\r\x1b[K{text}")
        sys.stderr.flush()


def _show_sample(counted: Fields, action: str) -> None:
    from holdfast.cli import views

    typer.echo(f"{action} would be applied to {count_text(counted.number('count') or 0, 'instance')}.")
    sample = Fields({"instances": counted.any("sample"), "hasNextPage": False})
    if sample.list("instances"):
        views.show_list(sample, None, None)
