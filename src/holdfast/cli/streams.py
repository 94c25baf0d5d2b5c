"""``holdfast instances stream``: the items of a stream, as they are written.

The command remembers the offset of the last item, so that after an outage of the server it continues after it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Annotated, Any, NamedTuple

import typer

from holdfast.cli.options import InstanceId, WorkflowName, remote_command
from holdfast.cli.remote import Remote, RequestFailedError, print_note
from holdfast.cli.terminal_text import escape_controls

_PAUSE_S = 0.5


class _Item(NamedTuple):
    offset: int
    body: dict[str, Any]


def add_stream_command(instances: typer.Typer) -> None:
    instances.command()(stream)


@remote_command
def stream(
    remote: Remote,
    workflow: WorkflowName,
    id: InstanceId,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The name of the stream.")],
    after: Annotated[int, typer.Option("--after", min=0, help="Show the items after this offset.")] = 0,
    all_attempts: Annotated[
        bool, typer.Option("--all-attempts", help="Show items at once, those of failed attempts included.")
    ] = False,
    run: Annotated[int | None, typer.Option("--run", min=0, help="Read this run instead of the current one.")] = None,
) -> None:
    """Show the items of a stream, until it is closed or the run has ended.

    One line for each item: text as it is, any other value as JSON. If the server becomes unavailable, the command
    waits for it, and continues after the last item.

    \b
    Examples:
      holdfast instances stream chat/talk-1 tokens
      holdfast instances stream -w chat -i talk-1 tokens --all-attempts
      holdfast instances stream -w chat -i talk-1 tokens --after 120
    """
    path = (workflow, "instances", id, "streams", name)
    query: dict[str, object] = {"attempts": "all" if all_attempts else None, "runNumber": run}
    for item in _items(remote, path, query, after):
        value = item.body.get("value")
        text = value if isinstance(value, str) else json.dumps(value)
        mark = f"  (attempt {item.body.get('attempt')} failed)" if item.body.get("failed") else ""
        typer.echo(escape_controls(text, keep="\n\t") + mark)


def _items(remote: Remote, path: tuple[str, ...], query: dict[str, object], after: int) -> Iterator[_Item]:
    """Items until ``event: end``. A connection that ends without it is opened again."""
    begun = False
    while True:
        try:
            for item in _events(remote.lines(*path, query=query | {"after": after})):
                if item is None:
                    return
                begun, after = True, item.offset
                yield item
        except RequestFailedError as failure:
            if not (failure.transient and begun):
                raise
            print_note(f"{failure}; waiting for the server (Ctrl-C ends this)")
        begun = True
        time.sleep(_PAUSE_S)


def _events(lines: Iterator[str]) -> Iterator[_Item | None]:
    """The events of a response; None is the end of the stream."""
    fields: dict[str, str] = {}
    for line in lines:
        if line and not line.startswith(":"):
            name, _, value = line.partition(": ")
            fields[name] = value
        elif not line and fields:
            if fields.get("event") == "end":
                yield None
            elif "data" in fields and "id" in fields:
                yield _Item(int(fields["id"]), json.loads(fields["data"]))
            fields = {}
