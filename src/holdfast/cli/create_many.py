"""``holdfast instances create-many``: instances from a file with one JSON object per line. Uses HTTP only."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Annotated, Any, NamedTuple, TextIO

import typer

from holdfast.cli.options import WorkflowName, remote_command
from holdfast.cli.remote import CommandFailedError, Remote

_MAX_INSTANCES = 100
"""The number of instances that a request may have by default (``Limits.batch``)."""
_MAX_CHARACTERS = 500_000
_UNREPEATABLE = {"onConflict", "onReuse"}
"""Options by which a start changes an instance that exists."""


class _Line(NamedTuple):
    number: int
    text: str
    """The text is sent as it is, so that no number is rounded."""
    fields: dict[str, Any]


def add_create_many_command(instances: typer.Typer) -> None:
    instances.command(name="create-many")(remote_command(create_many))


def create_many(
    remote: Remote,
    workflow: WorkflowName,
    file: Annotated[
        typer.FileText,
        typer.Argument(metavar="FILE", encoding="utf-8", help="One JSON object per line; - is standard input."),
    ],
) -> None:
    """Start many instances of a workflow, a hundred per request.

    Each line of the file is an object with `id`, and optionally `params` and the start options of the HTTP API, such
    as `queue`, `delay` or `onReuse`. Ids that exist already are left out, so that the command can be repeated. A line
    that is not valid ends the command; instances of earlier requests stay.

    \b
    Examples:
      holdfast instances create-many -w fulfil orders.jsonl
      echo '{"id": "o-1", "params": {"total": 125}, "queue": "slow"}' | holdfast instances create-many -w fulfil -
    """
    created = total = 0
    for lines in _batches(file):
        body = f'{{"instances": [{", ".join(line.text for line in lines)}]}}'
        repeatable = all(_UNREPEATABLE.isdisjoint(line.fields) for line in lines)
        try:
            page = remote.post(workflow, "instances", "batch", expect="instances", body=body, repeatable=repeatable)
        except CommandFailedError as error:
            raise CommandFailedError(f"lines {lines[0].number} to {lines[-1].number}: {error}") from None
        created, total = created + len(page.list("instances")), total + len(lines)
    others = "" if created == total else f"; {total - created} existed already"
    typer.echo(f"{created} instances are created{others}.")


def _batches(file: TextIO) -> Iterator[list[_Line]]:
    batch: list[_Line] = []
    size = 0
    for line in _lines(file):
        if batch and (len(batch) == _MAX_INSTANCES or size + len(line.text) > _MAX_CHARACTERS):
            yield batch
            batch, size = [], 0
        batch.append(line)
        size += len(line.text)
    if batch:
        yield batch


def _lines(file: TextIO) -> Iterator[_Line]:
    """The lines that are not empty."""
    for number, line in enumerate(file, 1):
        text = line.strip()
        if not text:
            continue
        try:
            value: Any = json.loads(text, parse_int=len)  # int() refuses very long numbers
        except (ValueError, RecursionError) as error:
            raise typer.BadParameter(f"line {number} is not JSON: {error}", param_hint="'FILE'") from None
        if not isinstance(value, dict) or not isinstance(value.get("id"), str):
            raise typer.BadParameter(f"line {number} is not an object with an id", param_hint="'FILE'")
        yield _Line(number, text, value)
