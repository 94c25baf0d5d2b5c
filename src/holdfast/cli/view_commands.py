"""The commands that show where a run is in its code, or compare two runs: ``instances stack``, ``export``, ``diff``.

Uses HTTP only.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from holdfast.cli.errors import WrongUsageError
from holdfast.cli.options import InstanceId, WorkflowName, remote_command
from holdfast.cli.remote import CommandFailedError, Remote
from holdfast.cli.response_fields import Fields

_DEFAULT_URL = "http://127.0.0.1:8787/api/workflows"
"""The server of ``holdfast dev``. Two files are compared without a server."""
RunNumber = Annotated[
    int | None,
    typer.Option("--run", metavar="N", min=0, help="The number of the run, counted from 0. Default: the current run."),
]


def add_view_commands(cli: typer.Typer, instances: typer.Typer) -> None:
    instances.command()(remote_command(stack))
    instances.command()(remote_command(export))
    instances.command(name="diff")(remote_command(diff, _DEFAULT_URL))
    cli.command(name="diff")(remote_command(diff, _DEFAULT_URL))


def stack(
    remote: Remote,
    workflow: WorkflowName,
    id: InstanceId,
    all_frames: Annotated[bool, typer.Option("--all", help="Also show frames of libraries and of Holdfast.")] = False,
) -> None:
    """Show where the code of a run is: for each task the frames, with their local variables.

    The server replays the run's facts on its code; nothing is written, and no step is called. Values of secret names
    are redacted. The server must allow this: holdfast dev does, holdfast serve with --debug, app.asgi(debug=True).

    \b
    Examples:
      holdfast instances stack -w fulfil -i order-1
      holdfast instances stack -w fulfil -i order-1 --all    with frames of libraries
    """
    from holdfast.cli.output import show_text
    from holdfast.cli.stack_text import stack_lines

    response = remote.get(workflow, "instances", id, "stack", expect="tasks", query={"all": _flag(all_frames)})
    show_text("\n".join(stack_lines(f"{workflow}/{id}", response)) + "\n")


def export(
    remote: Remote,
    workflow: WorkflowName,
    id: InstanceId,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="FILE", help="Write to this file. Default: ID.json; - prints."),
    ] = None,
    run_number: RunNumber = None,
) -> None:
    """Write a run to a file that replays on another machine: its input, facts, events and log lines.

    holdfast replay steps through the file, and holdfast.testing.replay_file makes it a test.

    \b
    Examples:
      holdfast instances export -w fulfil -i order-1                 writes order-1.json
      holdfast instances export -w fulfil -i order-1 -o run.json
      holdfast replay shop:app --file run.json
    """
    document = _document(remote, workflow, id, run_number)
    text = json.dumps(document, indent=1, ensure_ascii=False) + "\n"
    data = text.encode("utf-8", "backslashreplace")
    if output is not None and str(output) == "-":
        sys.stdout.buffer.write(data)
        return
    path = output or Path(f"{id}.json")
    try:
        path.write_bytes(data)
    except OSError as error:
        raise CommandFailedError(f"{path} cannot be written: {error.strerror or error}") from None
    fields = Fields(document)
    number, count = fields.fields("run").number("number"), len(fields.list("facts"))
    typer.echo(f"{workflow}/{id}, run {number}: {count} facts, written to {path}")


def diff(
    remote: Remote,
    first: Annotated[
        str, typer.Argument(metavar="A", help="A run: WORKFLOW/ID, WORKFLOW/ID:RUN, or an exported file.")
    ],
    second: Annotated[str, typer.Argument(metavar="B", help="The run to compare with A.")],
) -> None:
    """Compare two runs: where their inputs, the order of their steps, their results and their log lines differ.

    \b
    Examples:
      holdfast diff fulfil/order-1 fulfil/order-1-fork       two instances
      holdfast diff fulfil/order-1:0 fulfil/order-1:1        two runs of an instance, before and after a restart
      holdfast diff before.json after.json                   two exported runs
      holdfast instances diff fulfil/order-1 fulfil/order-2  the same command

    Exit code 0 if they are the same, 1 if they differ, 2 if a run is not named as above.
    """
    from holdfast.cli.diff import difference_lines
    from holdfast.cli.output import show_text

    lines = difference_lines(_named(remote, first), _named(remote, second), first, second)
    show_text("\n".join(lines) + "\n" if lines else f"{first} and {second} are the same\n")
    raise typer.Exit(1 if lines else 0)


def _named(remote: Remote, name: str) -> Any:
    path = Path(name)
    if path.is_file():
        try:
            return json.loads(path.read_bytes())
        except ValueError:
            raise WrongUsageError(f"{name} is not an exported run: it is not JSON") from None
    workflow, _, rest = name.partition("/")
    instance_id, _, number = rest.partition(":")
    if not workflow or not instance_id or "/" in instance_id or (number and not number.isdigit()):
        raise WrongUsageError(f"{name!r} is neither a file nor a run; write WORKFLOW/ID or WORKFLOW/ID:RUN")
    return _document(remote, workflow, instance_id, int(number) if number else None)


def _document(remote: Remote, workflow: str, id: str, run_number: int | None) -> Any:
    response = remote.get(workflow, "instances", id, "export", expect="facts", query={"runNumber": run_number})
    return response.plain()


def _flag(value: bool) -> str | None:
    return "true" if value else None
