"""The tools and resources of the MCP server, with which a model finds, explains and repairs runs.

The server reads by default. Tools that write exist only with ``write=True``; each of them leaves an audit record with
its actor. The command ``holdfast mcp`` serves it; a program may also mount it:
``mcp_server(app).streamable_http_app()``. ``access`` decides who may call a tool.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal, Union

from pydantic import TypeAdapter
from pydantic_core import to_jsonable_python

from holdfast._version import __version__
from holdfast.app import Holdfast
from holdfast.checking import Checker, CheckOptions
from holdfast.client import Handle
from holdfast.client.audit import audit
from holdfast.client.replaying import Replayer
from holdfast.core.actor import check_actor, current_actor
from holdfast.core.functions import resolved
from holdfast.core.model import Status
from holdfast.errors import (
    HoldfastError,
    InstanceNotFoundError,
    RunCancelledError,
    RunFailedError,
    RunTerminatedError,
)
from holdfast.extras import extra
from holdfast.kernel.requests import Requests
from holdfast.mcp.access import AuthorizedServer
from holdfast.mcp.pages import page, titles
from holdfast.ports import milliseconds
from holdfast.store.protocol import RecordAction

with extra("mcp", "The MCP server"):
    from mcp.server import MCPServer
    from mcp.server.mcpserver.exceptions import ToolError
    from mcp.types import ToolAnnotations

_log = logging.getLogger("holdfast.mcp")

_MAX_WAIT = 600.0
StatusName = Literal["active", "waiting", "paused", "complete", "errored", "terminated", "cancelled"]

_READ = ToolAnnotations(read_only_hint=True)
_WRITE = ToolAnnotations(read_only_hint=False, destructive_hint=False)
_DESTROY = ToolAnnotations(read_only_hint=False, destructive_hint=True)

_GUIDE = """# Runs of Holdfast

A workflow is code; an instance of it has an id, and is executed as a run. Each step of a run is recorded, so a run
continues after its last recorded step when there was a crash or a deploy.

- `active`: a worker executes it, or will soon. `waiting`: for an event, a timer, a retry, a child. `paused`: by a
  person, or because its history does not fit the code (`NON_DETERMINISTIC`). The others are ends.
- Find runs with `list_runs`, for example `status="errored"`. `explain_run` says why a run does not continue.
- A run that waits for an event needs `send_event` with the type that `why` names.
- An errored run whose cause is gone continues with `retry_run`; recorded steps are not called again.
- A run that was given a wrong input, or recorded a wrong result, is repeated from a step on with `fork_run`.
- A step that cannot succeed gets its outcome with `resolve_step`.
- A workflow that is offered as a tool has the workflow's name. A call that takes long returns with `done: false` and
  the run's id; call the tool again with that `run_id` to continue waiting. The run continues meanwhile.
- `check_code` replays open runs on the code of this server, and reports those that do not fit.
- The resource `holdfast://docs` lists pages of the documentation, such as `holdfast://docs/repair`.
"""


def mcp_server(app: Holdfast, *, write: bool = False, actor: str = "mcp") -> MCPServer[Any]:
    """An MCP server with tools for the runs of an app, which must be open while the server is used.

    ``write``: add the tools that start, repair and control runs. ``actor`` is the name in their audit records, unless
    a hook of ``Holdfast(authorize=...)`` names the caller. Workflows with ``mcp=True`` are tools in any case: their
    author offers them.
    """
    server = AuthorizedServer(
        app, "holdfast", version=__version__, instructions="Read the resource holdfast://guide first."
    )
    _add_resources(server, app)
    reading = _Reading(app)
    _add(server, _READ, reading.list_runs, reading.explain_run, reading.run_history, reading.run_stack)
    _add(server, _READ, reading.run_logs, reading.statistics, reading.audit_records, reading.check_code)
    writing = _Writing(app, check_actor(actor))
    for name, description in app.registry.mcp_tools.items():
        server.add_tool(
            _workflow_tool(writing, name), name=name, description=_described(description), annotations=_WRITE
        )
    if write:
        _add(server, _WRITE, writing.start_run, writing.send_event, writing.retry_run, writing.fork_run)
        _add(server, _WRITE, writing.pause_run, writing.resume_run)
        _add(server, _DESTROY, writing.resolve_step, writing.cancel_run, writing.terminate_run)
    return server


def _add(server: MCPServer[Any], annotations: ToolAnnotations, *tools: Callable[..., Any]) -> None:
    for tool in tools:
        server.add_tool(tool, annotations=annotations)


_RESUMABLE = (
    "Starts a durable run and waits for its result. If `done` is false, the run continues: call this tool again with "
    "its `run_id` to wait for the same run. A call without `run_id` starts another run."
)


def _described(description: str) -> str:
    return f"{description}\n\n{_RESUMABLE}" if description else _RESUMABLE


def _workflow_tool(writing: _Writing, name: str) -> Callable[..., Any]:
    """A tool that starts a workflow and waits for its result, with the workflow's own type as its schema."""
    params_type = resolved(writing.app.registry.get(name).params_type)

    async def call(params: Any = None, run_id: str | None = None, wait_seconds: float = 50.0) -> dict[str, Any]:
        run = await writing.start(name, params, run_id)
        if wait_seconds > 0:
            with suppress(TimeoutError, RunFailedError, RunCancelledError, RunTerminatedError):
                await run.result(timeout=min(wait_seconds, _MAX_WAIT))
        found = await run.describe()
        return {
            "run_id": run.id,
            "done": Status(found.status).terminal,
            "status": found.status,
            "output": to_jsonable_python(found.output),
            "error": to_jsonable_python(found.error),
            "why": found.why,
        }

    signature = inspect.signature(call, eval_str=True)
    # A run that exists needs no input, so `params` may be left out; the workflow's own check asks for it otherwise.
    typed = signature.parameters["params"].replace(annotation=Union[params_type, None])  # noqa: UP007  (of a value)
    parameters = [typed if each.name == "params" else each for each in signature.parameters.values()]
    if params_type is None:
        parameters = [each for each in parameters if each.name != "params"]
    described: Any = call
    described.__signature__ = signature.replace(parameters=parameters)
    call.__annotations__ = {each.name: each.annotation for each in parameters} | {"return": dict[str, Any]}
    return call


def _add_resources(server: MCPServer[Any], app: Holdfast) -> None:
    @server.resource("holdfast://guide", description="States of runs, and how to find and repair them.")
    def guide() -> str:
        return _GUIDE

    @server.resource("holdfast://docs", mime_type="application/json", description="Pages of the documentation.")
    def docs() -> dict[str, str]:
        return titles()

    @server.resource("holdfast://docs/{name}", mime_type="text/markdown", description="A page of the documentation.")
    def doc(name: str) -> str:
        return page(name)

    @server.resource("holdfast://workflows", mime_type="application/json", description="The workflows of the app.")
    def workflows() -> list[dict[str, Any]]:
        return [{"name": definition.name, "kind": definition.kind} for definition in app.registry]

    @server.resource(
        "holdfast://workflows/{name}", mime_type="application/json", description="Schemas of params and events."
    )
    def workflow(name: str) -> dict[str, Any]:
        definition = app.registry.get(name)
        events = {kind: _schema(event.annotation) for kind, event in definition.events.items()}
        return {"name": name, "kind": definition.kind, "params": _schema(definition.params_type), "events": events}


def _schema(annotation: Any) -> Any:
    """The JSON schema of a type; None if there is no value, an empty schema if the type has none."""
    if annotation is None:
        return None
    try:
        return TypeAdapter(resolved(annotation)).json_schema()
    except Exception:  # pydantic raises many classes for types without a schema
        return {}


async def _run(app: Holdfast, workflow: str, id: str) -> Handle[Any]:
    try:
        return await app.get(workflow, id)
    except HoldfastError as error:
        raise ToolError(str(error)) from error


@dataclass(frozen=True, slots=True)
class _Reading:
    """The tools that read. Their docstrings are shown to the model."""

    app: Holdfast

    async def list_runs(
        self,
        workflow: str | None = None,
        status: StatusName | None = None,
        id_prefix: str | None = None,
        error: str | None = None,
        search: dict[str, Any] | None = None,
        limit: int = 20,
        cursor: str | None = None,
    ) -> dict[str, Any]:
        """List instances, the newest first. ``error`` is the name of an error class; ``search`` has search attributes
        that must be equal. Pass ``cursor`` of the answer for the next page."""
        given = {"status": status, "id_prefix": id_prefix, "error": error, "search": search}
        conditions: Any = {name: value for name, value in given.items() if value is not None}
        page = await _refusing(self.app.list(workflow, limit=limit, cursor=cursor, **conditions))
        return {"runs": to_jsonable_python(page.items), "cursor": page.cursor}

    async def explain_run(self, workflow: str, id: str) -> dict[str, Any]:
        """Explain one instance: its status, why it does not continue, its error, its input and its unfinished steps."""
        run = await _run(self.app, workflow, id)
        description = await run.describe()
        steps = (await run.history()).steps
        unfinished = [step for step in steps if step.status != "completed"]
        return {
            **_as_json(description),
            "steps_recorded": len(steps),
            "unfinished_steps": to_jsonable_python(unfinished),
        }

    async def run_history(self, workflow: str, id: str) -> dict[str, Any]:
        """The recorded steps of an instance with their results, and the events that it received."""
        return _as_json(await (await _run(self.app, workflow, id)).history())

    async def run_stack(self, workflow: str, id: str) -> dict[str, Any]:
        """The places in the code where an open instance waits, with local variables; secrets are hidden."""
        return _as_json(await _refusing((await _run(self.app, workflow, id)).stack()))

    async def run_logs(self, workflow: str, id: str) -> dict[str, Any]:
        """The last 100 log lines of an instance."""
        return {"lines": to_jsonable_python((await (await _run(self.app, workflow, id)).logs())[-100:])}

    async def statistics(self) -> dict[str, Any]:
        """Numbers of runs by workflow and status, due work, errors of the last hour and slow steps."""
        return _as_json(await self.app.stats())

    async def audit_records(self, workflow: str | None = None, id: str | None = None) -> dict[str, Any]:
        """The latest control requests with their actors: of one instance, or of all."""
        run = await _run(self.app, workflow, id) if workflow is not None and id is not None else None
        return {"records": to_jsonable_python((await self.app.audit(run)).items)}

    async def check_code(self, workflow: str | None = None, sample: int = 100) -> dict[str, Any]:
        """Replay open instances on the code of this server, and report those whose history does not fit it."""
        app = self.app
        store = app._opened().store  # noqa: SLF001  (as the methods of the app do)
        requests = Requests(app.registry, app.limits, app.runtime, store.clock)
        strict = app.worker_config.replay == "strict"
        replayer = Replayer(app.registry, requests, milliseconds(store.clock), strict=strict)
        report = await Checker(store, replayer, app.worker_config.version).check(CheckOptions(workflow, sample, 0, 1))
        return {"ok": report.ok, "checked": report.checked, "report": report.text()}


@dataclass(frozen=True, slots=True)
class _Writing:
    """The tools that write, in the name of ``actor``. Each call is logged."""

    app: Holdfast
    actor: str

    async def start_run(self, workflow: str, params: Any = None, id: str | None = None) -> dict[str, Any]:
        """Start an instance. The schema of ``params`` is in the resource ``holdfast://workflows/{name}``. An instance
        with the same id is used instead of a new one, also if it has ended."""
        run = await self.start(workflow, params, id)
        return {"workflow": run.workflow, "id": run.id}

    async def start(self, workflow: str, params: Any, run_id: str | None) -> Handle[Any]:
        """Start a run; if ``run_id`` exists, the run that has it."""
        if run_id is not None:
            with suppress(InstanceNotFoundError):
                return await self.app.get(workflow, run_id)
        options: dict[str, Any] = {} if run_id is None else {"id": run_id}
        run: Handle[Any] = await self._act(f"start {workflow}", self.app.start(workflow, params, **options), "start")
        return run

    async def send_event(
        self, workflow: str, id: str, type: str, payload: Any = None, event_id: str | None = None
    ) -> str:
        """Send an event to an instance. The same ``event_id`` twice is delivered once."""
        run = await _run(self.app, workflow, id)
        await self._act(f"send event {type!r} to {run.pid}", run.send_event(type, payload, id=event_id))
        return "sent"

    async def retry_run(self, workflow: str, id: str, reason: str) -> str:
        """Let an errored instance continue from its history; failed steps are called again."""
        run = await _run(self.app, workflow, id)
        await self._act(f"retry {run.pid}", run.retry(reason=reason))
        return "retried"

    async def fork_run(
        self,
        workflow: str,
        id: str,
        before: str,
        reason: str,
        new_id: str | None = None,
        outputs: dict[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Start a new instance with the history before the step ``before``. ``outputs`` replaces results of steps."""
        run = await _run(self.app, workflow, id)
        call = run.fork(before=before, id=new_id, outputs=outputs, reason=reason)
        forked = await self._act(f"fork {run.pid}", call)
        return {"workflow": forked.workflow, "id": forked.id}

    async def resolve_step(
        self, workflow: str, id: str, step_key: str, reason: str, result: Any = None, error: str | None = None
    ) -> str:
        """Record the outcome of a step that is retrying or failed: ``result``, or ``error`` as the code receives it."""
        run = await _run(self.app, workflow, id)
        outcome: dict[str, Any] = {"result": result} if error is None else {"error": error}
        await self._act(f"resolve {step_key!r} of {run.pid}", run.resolve(step_key, reason=reason, **outcome))
        return "resolved"

    async def pause_run(self, workflow: str, id: str) -> str:
        """Pause an instance after the steps that run now."""
        run = await _run(self.app, workflow, id)
        await self._act(f"pause {run.pid}", run.pause())
        return "paused"

    async def resume_run(self, workflow: str, id: str) -> str:
        """Let a paused instance continue."""
        run = await _run(self.app, workflow, id)
        await self._act(f"resume {run.pid}", run.resume())
        return "resumed"

    async def cancel_run(self, workflow: str, id: str, reason: str) -> str:
        """Ask an instance to end; its code may clean up first."""
        run = await _run(self.app, workflow, id)
        await self._act(f"cancel {run.pid}", run.cancel(reason))
        return "cancelled"

    async def terminate_run(self, workflow: str, id: str, reason: str) -> str:
        """End an instance at once, without its cleanup code."""
        run = await _run(self.app, workflow, id)
        await self._act(f"terminate {run.pid}", run.terminate(reason))
        return "terminated"

    async def _act(self, what: str, call: Any, action: str | None = None, reason: str | None = None) -> Any:
        """Make a call in the name of the actor. ``action``: the audit record to write, for a call that writes none."""
        actor = current_actor.get() or self.actor
        with self.app.acting_as(actor):
            done = await _refusing(call)
            if action is not None:
                store = self.app._opened().store  # noqa: SLF001  (as the methods of the app do)
                await _refusing(store.control(RecordAction(done.workflow, done.id), audit(action, reason)))
        _log.info("%s: %s", actor, what)
        return done


def _as_json(record: Any) -> dict[str, Any]:
    fields: dict[str, Any] = to_jsonable_python(record)
    return fields


async def _refusing(call: Any) -> Any:
    """Await a call; an error of Holdfast is reported to the model."""
    try:
        return await call
    except HoldfastError as error:
        raise ToolError(str(error)) from error
