"""The request handlers that repair runs and show audit records."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Query
from starlette.requests import Request
from starlette.responses import Response

from holdfast.client import UNCHANGED
from holdfast.core.records import AuditRecord, Page
from holdfast.errors import ErrorInfo
from holdfast.http import response_bodies, responses, wire, wire_requests
from holdfast.http.admission import admitted
from holdfast.http.handlers import Handlers, Id, Name, done
from holdfast.http.queries import check_query
from holdfast.http.responses import reply


class Repair(Handlers):
    """Retry, fork and resolve."""

    async def retry(self, request: Request, workflow: Name, instance_id: Id) -> Response:
        """Let an errored run continue from its history: failed steps are called again, with fresh attempts."""
        client = self._client()
        body: wire_requests.ReasonRequest = admitted(request).body
        await client.repair.retry(*client.instances.address(workflow, instance_id), body.get("reason"))
        return done()

    async def resolve(self, request: Request, workflow: Name, instance_id: Id) -> Response:
        """Record the outcome of a step that is retrying or failed: a result, or an error that the code receives."""
        client = self._client()
        address = client.instances.address(workflow, instance_id)
        body: wire_requests.ResolveRequest = admitted(request).body
        error = body.get("error")
        await client.repair.resolve(
            *address,
            body["stepKey"],
            result=body.get("result", None if error is None else UNCHANGED),
            error=ErrorInfo(error.get("name", "ResolvedError"), error.get("message", ""))
            if isinstance(error, dict)
            else error,
            reason=body.get("reason"),
        )
        return done()

    async def reply_to_ask(self, request: Request, workflow: Name, instance_id: Id) -> Response:
        """Reply to an ask that waits in the mailbox of a run, in place of its code."""
        client = self._client()
        address = client.instances.address(workflow, instance_id)
        body: wire_requests.ReplyRequest = admitted(request).body
        if "payload" in body and "error" in body:
            raise responses.Problem(400, responses.VALIDATION_ERROR, "a reply has either payload or error")
        await client.repair.reply(
            *address, body["eventId"], body.get("payload"), error=body.get("error"), reason=body.get("reason")
        )
        return done()

    async def fork(self, request: Request, workflow: Name, instance_id: Id) -> Response:
        """Start a new instance with the recorded history before a step, optionally with other results or params."""
        client = self._client()
        address = client.instances.address(workflow, instance_id)
        body: wire_requests.ForkRequest = admitted(request).body
        for allowed in admitted(request).filters:
            if allowed.id_prefix is not None and not body.get("id", "").startswith(allowed.id_prefix):
                message = f"the id of an instance that this caller creates must begin with {allowed.id_prefix!r}"
                raise responses.Problem(403, responses.FORBIDDEN, message)
        row = await client.repair.fork(
            *address,
            before=body["before"],
            fork_id=body.get("id"),
            outputs=body.get("outputs"),
            params=body.get("params", UNCHANGED),
            reason=body.get("reason"),
        )
        return reply(response_bodies.instance(client.instances.summary(row)))


class Audit(Handlers):
    """Audit records."""

    async def of_instance(
        self, request: Request, workflow: Name, instance_id: Id, query: Annotated[wire_requests.AuditParams, Query()]
    ) -> Response:
        """The control requests on one instance, the newest first, also after the instance was deleted."""
        address = self._client().instances.address(workflow, instance_id)
        return await self._records(request, query, "/".join(address))

    async def all(self, request: Request, query: Annotated[wire_requests.AuditParams, Query()]) -> Response:
        """All control requests, the newest first."""
        return await self._records(request, query, None)

    async def _records(self, request: Request, query: wire_requests.AuditParams, target: str | None) -> Response:
        check_query(request, query)
        limit = self._page_size(query.pageSize)
        page = await self._client().audit.records(target, cursor=query.cursor, limit=limit)
        return reply(audit_body(page))


def audit_body(page: Page[AuditRecord]) -> wire.AuditRecords:
    body: wire.AuditRecords = {
        "records": [_record(record) for record in page.items],
        "hasNextPage": page.cursor is not None,
    }
    if page.cursor is not None:
        body["cursor"] = body["nextCursor"] = page.cursor
    return body


def _record(record: AuditRecord) -> Any:
    body: wire.AuditRecord = {
        "at": response_bodies.date(record.at),
        "actor": record.actor,
        "action": record.action,
        "target": record.target,
        "reason": record.reason,
        "outcome": record.outcome,
    }
    return body
