"""The request handlers of bulk actions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import Path
from pydantic import TypeAdapter
from starlette.requests import Request
from starlette.responses import Response

from holdfast.client.bulk_jobs import BulkJob
from holdfast.core.attributes import OPERATORS
from holdfast.core.filters import Filter
from holdfast.http import bodies, response_bodies, responses, wire, wire_requests
from holdfast.http.admission import admitted
from holdfast.http.auth import AuthContent, AuthEvent
from holdfast.http.handlers import Handlers
from holdfast.http.responses import reply

_SAMPLE = 10
_ACTIONS = {"sendEvent": "send_event"}
_FIELDS = {
    "workflow": "workflow", "status": "status", "error": "error", "createdAfter": "created_after",
    "createdBefore": "created_before", "endedAfter": "ended_after", "endedBefore": "ended_before",
    "idPrefix": "id_prefix", "version": "version", "queue": "queue",
}  # fmt: skip


_NO_ARGUMENTS: TypeAdapter[Any] = TypeAdapter(wire_requests.NoArguments)
_ARGUMENTS: Mapping[str, TypeAdapter[Any]] = {
    "cancel": TypeAdapter(wire_requests.CancelArguments),
    "sendEvent": TypeAdapter(wire_requests.EventArguments),
    "fork": TypeAdapter(wire_requests.ForkArguments),
    "move": TypeAdapter(wire_requests.MoveArguments),
}


def bulk_content(body: wire_requests.BulkRequest) -> AuthContent:
    """The content that hooks see: the body, and its filter."""
    given: Any = body["filter"]
    if not given:
        issue: wire.Issue = {"path": ["filter"], "message": "needs at least one condition", "type": "too_short"}
        raise responses.invalid("filter: needs at least one condition", [issue])
    arguments: Any = {} if body.get("dryRun", False) else _checked_arguments(body)
    event = None
    if body["action"] == "sendEvent" and arguments:
        event = AuthEvent(arguments["type"], arguments.get("payload"), arguments.get("id"))
    search = {key: _condition(value) for key, value in given.get("search", {}).items()}
    fields = {name: given.get(key) for key, name in _FIELDS.items()}
    return AuthContent(body, event=event, filters=Filter(search=search or None, **fields))


def _checked_arguments(body: wire_requests.BulkRequest) -> Any:
    """The arguments of the action. A dry run needs none."""
    adapter = _ARGUMENTS.get(body["action"], _NO_ARGUMENTS)
    return bodies.check(adapter, body.get("arguments", {}), path=["arguments"])


def _condition(value: Any) -> Any:
    if isinstance(value, list) and len(value) == 2 and value[0] in OPERATORS:
        return tuple(value)
    return value


class Bulk(Handlers):
    """Bulk actions."""

    async def start(self, request: Request) -> Response:
        """Apply an action to all matching instances in the background, or with ``dryRun`` only count them."""
        client, filters = self._client(), admitted(request).filters
        body: wire_requests.BulkRequest = admitted(request).body
        workflow = body["filter"].get("workflow")
        if workflow is not None:
            self._backend.registry.get(workflow)
        if body.get("dryRun", False):
            bulk = client.bulk(filters)
            sample = [response_bodies.sampled_instance(one) for one in await bulk.sample(_SAMPLE)]
            counted: wire.BulkAccepted = {"count": await bulk.count(), "sample": sample}
            return reply(counted)
        arguments = {**body.get("arguments", {}), "reason": body.get("reason")}
        if "deadlineMs" in arguments:
            arguments["deadline_ms"] = arguments.pop("deadlineMs")
        action = _ACTIONS.get(body["action"], body["action"])
        accepted: wire.BulkAccepted = {
            "id": await client.bulk_jobs.create(action, filters, arguments, rate=body.get("rate"))
        }
        return reply(accepted)

    async def progress(self, bulk_id: Annotated[str, Path(description="The id of a bulk action.")]) -> Response:
        """The progress of a bulk action."""
        job = await self._client().bulk_jobs.get(bulk_id)
        if job is None:
            raise responses.Problem(404, responses.NOT_FOUND, "there is no bulk action with this id")
        return reply(_job(job))


def _job(job: BulkJob) -> Any:
    names = {name: key for key, name in _ACTIONS.items()}
    return {
        "id": job.id,
        "action": names.get(job.action, job.action),
        "status": "running" if job.ended_at is None else "complete",
        "total": job.total,
        "done": job.result.done,
        "failed": job.result.failed,
        "skipped": job.result.skipped,
        "errors": [{"pid": error.pid, "message": error.message} for error in job.result.errors],
        "actor": job.actor,
        "reason": job.reason,
        "createdAt": response_bodies.date(job.created_at),
        "endedAt": response_bodies.optional_date(job.ended_at),
    }
