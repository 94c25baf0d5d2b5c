"""``holdfast replay``: a run on the code of an app, position by position, or in the Python debugger."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast.app import Holdfast
from holdfast.cli.errors import WrongUsageError
from holdfast.cli.loading import load_app
from holdfast.cli.terminal_text import escape_controls, one_line
from holdfast.client.replaying import Replayer, fact_record
from holdfast.client.run_file import StoredRun, loads
from holdfast.core.facts import Fact
from holdfast.core.show import shown
from holdfast.core.views import FactRecord, ReplayView
from holdfast.errors import InstanceNotFoundError
from holdfast.kernel.requests import Requests
from holdfast.open_app import payload_store
from holdfast.ports import milliseconds
from holdfast.store.protocol import LogsQuery, RunByName, SnapshotQuery
from holdfast.store_url import check_url, make_store

_HELP = "n next, p previous, NUMBER position, q quit"


@dataclass(frozen=True, slots=True)
class ReplayCommand:
    """The options of the command line."""

    target: str
    app_dir: Path
    instance: str | None
    file: Path | None
    until: int | None
    run_number: int | None
    against: str | None
    schema: str | None
    pdb: bool
    all_frames: bool


def run(command: ReplayCommand) -> int:
    """Show the run; return the exit code: 1 if the code does not fit the history."""
    if (command.instance is None) == (command.file is None):
        raise WrongUsageError("name a run: WORKFLOW/ID, or --file FILE")
    app = load_app(command.target, command.app_dir)
    app.registry.check()
    stored = _from_file(command.file) if command.file is not None else asyncio.run(_from_database(app, command))
    requests = Requests(app.registry, app.limits, app.runtime, app.runtime.time)
    replayer = Replayer(app.registry, requests, milliseconds(app.runtime.time))
    if command.pdb:
        from holdfast.cli.debugger import debug

        debug(replayer, stored, command.until)
        return 0
    return _show(command, replayer, stored)


def _from_file(file: Path) -> StoredRun:
    try:
        return loads(file.read_bytes())
    except OSError as error:
        raise WrongUsageError(f"--file {file}: {error.strerror or error}") from None


async def _from_database(app: Holdfast, command: ReplayCommand) -> StoredRun:
    workflow, _, instance_id = (command.instance or "").partition("/")
    if not workflow or not instance_id:
        raise WrongUsageError(f"{command.instance!r} does not name an instance; write WORKFLOW/ID, such as fulfil/o-1")
    url, schema = command.against or app.url, command.schema or (None if command.against else app.schema)
    check_url(url, schema)
    store = payload_store(app, make_store(url, schema, app.runtime))
    await store.open(migrate=False)
    try:
        found = await store.read(RunByName(workflow, instance_id, command.run_number))
        if not found:
            raise InstanceNotFoundError(f"there is no instance {instance_id!r} of workflow {workflow!r}")
        [row] = found
        return StoredRun(row, await store.read(SnapshotQuery(row.run)), [*await store.read(LogsQuery(row.run))])
    finally:
        await store.close()


# --- the text


def _show(command: ReplayCommand, replayer: Replayer, stored: StoredRun) -> int:
    view = replayer.view(stored, command.until, all=command.all_frames)
    while True:
        _print(replayer, stored, view)
        if not _on_terminal():
            break
        position = _next_position(view)
        if position is None:
            break
        view = replayer.view(stored, position, all=command.all_frames)
    differences = replayer.differences(stored)
    for difference in differences:
        sys.stdout.write(f"{escape_controls(f'the code does not fit the history: {difference.message}')}\n")
    return 1 if differences else 0


def _on_terminal() -> bool:
    return sys.stdin.isatty() and sys.stdout.isatty()


def _next_position(view: ReplayView) -> int | None:
    """The position that the user enters; None to quit."""
    while True:
        try:
            answer = input(f"({view.position} of {view.total}; {_HELP}) ").strip()
        except EOFError:
            return None
        if answer in ("", "n", "next"):
            return min(view.position + 1, view.total)
        if answer in ("p", "prev", "previous"):
            return max(view.position - 1, 0)
        if answer.isdigit():
            return min(int(answer), view.total)
        if answer in ("q", "quit", "exit"):
            return None


def _print(replayer: Replayer, stored: StoredRun, view: ReplayView) -> None:
    for line in _lines(replayer, stored, view):
        sys.stdout.write(f"{escape_controls(line)}\n")


def _lines(replayer: Replayer, stored: StoredRun, view: ReplayView) -> Iterator[str]:
    row = stored.row
    yield f"{row.pid}, run {row.number}: {row.status.value}; position {view.position} of {view.total}"
    with replayer.open(stored) as inspection:
        facts: list[Fact] = [*inspection.facts]
    for number, fact in enumerate(facts, 1):
        mark = ">" if number == view.position else " "
        yield f"{mark} {number:3}  {_fact(fact_record(fact, stored))}"
    for task in view.stack.tasks:
        yield ""
        yield f"task {task.name}" + (f", waiting for {task.waiting_for}" if task.waiting_for else "")
        for frame in task.frames:
            yield f'  File "{frame.file}", line {frame.line}, in {frame.function}'
            if frame.source:
                yield f"    {frame.source}"
            yield from (f"      {name} = {text}" for name, text in frame.locals.items())
    if view.pending:
        yield ""
        yield "the code waits for " + ", ".join(map(str, view.pending))
    if view.logs:
        yield ""
        yield from (f"log {line.level}  {one_line(line.message)}" for line in view.logs)
    yield ""


def _fact(fact: FactRecord) -> str:
    when = f"{fact.at:%Y-%m-%d %H:%M:%S}.{fact.at.microsecond // 1000:03}"
    outcome = fact.state if fact.state != "result" else "completed" if fact.ok else "failed"
    value = ""
    if fact.error is not None:
        value = f": {fact.error.name}: {fact.error.message}"
    elif fact.result is not None:
        value = f": {shown(_json(fact.result), 100)[1:-1]}"
    return f"{when}  {fact.name} ({fact.type}) {outcome}{one_line(value) if value else ''}"


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
