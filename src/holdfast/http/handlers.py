"""The request handlers. Each one calls the client and converts the result to a response; it decides nothing else.

The handlers of a class use the same part of the client. A handler's docstring is the description of its route in the
OpenAPI document.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Annotated, Any, TypeVar

from fastapi import Path, Query
from starlette.requests import Request
from starlette.responses import Response

from holdfast.client import Client, HistoryQuery, Start
from holdfast.core.records import Page
from holdfast.http import response_bodies, responses, wire, wire_requests
from holdfast.http.admission import admitted
from holdfast.http.backend import Backend
from holdfast.http.queries import check_at_most, check_length, check_query, wait_seconds
from holdfast.http.responses import drawing, reply
from holdfast.http.start_options import start_options
from holdfast.kernel.telemetry import observe

R = TypeVar("R")

Name = Annotated[str, Path(description="The name of a registered workflow.")]
Id = Annotated[str, Path(description="The id of an instance.")]
RunNumber = Annotated[wire_requests.WholeNumber, Path(description="The number of a run, counted from 0.")]


class Handlers:
    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._limits = backend.limits

    def _client(self) -> Client:
        return self._backend.client()

    def _page_size(self, requested: int) -> int:
        check_at_most(["query", "pageSize"], requested, self._limits.page_size)
        return requested


def traced(client: Client, request: Request, operation: Awaitable[R]) -> Awaitable[R]:
    """The operation, in the trace context of the request's headers."""
    telemetry = client.telemetry
    return operation if telemetry is None else observe(telemetry.request_began(request.headers), operation)


class Reads(Handlers):
    """Instances, and the histories of their runs."""

    async def list_instances(
        self, request: Request, workflow: Name, query: Annotated[wire_requests.ListParams, Query()]
    ) -> Response:
        """Instances of a workflow, newest first; ``search.KEY=VALUE`` selects instances by search attributes."""
        self._check_prefix(query)
        limit = self._page_size(query.pageSize)
        page = await self._client().instances.list(
            workflow, cursor=query.cursor, limit=limit, within=admitted(request).filters
        )
        return reply(response_bodies.instance_list(page))

    async def list_all_instances(
        self, request: Request, query: Annotated[wire_requests.AllParams, Query()]
    ) -> Response:
        """Instances of all workflows that meet all conditions, newest first, each with what it is waiting for."""
        self._check_prefix(query)
        client, filters = self._client(), admitted(request).filters
        limit, ascending = self._page_size(query.pageSize), query.order == "asc"
        rows = await client.instances.page(filters, cursor=query.cursor, limit=limit, ascending=ascending)
        descriptions = await asyncio.gather(*(client.reads.describe_listed(row) for row in rows.items))
        summaries = [client.instances.summary(row) for row in rows.items]
        found = Page([*zip(summaries, descriptions, strict=True)], rows.cursor, rows.previous)
        return reply(response_bodies.found_instances(found))

    async def get_instance(self, workflow: Name, instance_id: Id) -> Response:
        """One instance: its status, its input, and one sentence about what it is waiting for."""
        client = self._client()
        description = await client.reads.describe(*client.instances.address(workflow, instance_id))
        return reply(response_bodies.described_instance(description))

    async def result(
        self, request: Request, workflow: Name, instance_id: Id, query: Annotated[wire_requests.ResultParams, Query()]
    ) -> Response:
        """The result of the current run. 202 if it has not ended after ``wait``: a time such as 30s, at most 60s."""
        check_query(request, query)
        seconds = wait_seconds(query.wait)
        client = self._client()
        status = await client.wait_for_status(*client.instances.address(workflow, instance_id), seconds)
        return reply(response_bodies.details(status), 200 if status.ended else 202)

    async def history(
        self, request: Request, workflow: Name, instance_id: Id, query: Annotated[wire_requests.HistoryParams, Query()]
    ) -> Response:
        """Steps, events and logs of the current run, or of the run with the number ``runNumber``."""
        return await self._history(request, workflow, instance_id, query.runNumber, query)

    async def run_history(
        self,
        request: Request,
        workflow: Name,
        instance_id: Id,
        run: RunNumber,
        query: Annotated[wire_requests.RunParams, Query()],
    ) -> Response:
        """Steps, events and logs of one run."""
        return await self._history(request, workflow, instance_id, run, query)

    async def _history(
        self, request: Request, workflow: str, instance_id: str, run: int | None, query: wire_requests.RunParams
    ) -> Response:
        check_query(request, query)
        if query.logCategory is not None:  # a missing optional field is None
            check_length(["query", "logCategory"], query.logCategory, self._limits.log_category)
        client = self._client()
        history_query = HistoryQuery(
            limit=self._page_size(query.pageSize),
            descending=query.order == "desc",
            steps_cursor=query.stepsCursor,
            events_cursor=query.eventsCursor,
            include_logs=query.includeLogs,
            logs_cursor=query.logsCursor,
            level=query.logLevel,
            category=query.logCategory,
        )
        page = await client.reads.history_page(*client.instances.address(workflow, instance_id), run, history_query)
        return reply(response_bodies.history(page))

    def _check_prefix(self, query: wire_requests.ListParams) -> None:
        if query.idPrefix is not None:  # a missing optional field is None
            check_length(["query", "idPrefix"], query.idPrefix, self._limits.instance_id)


class Starts(Handlers):
    """New instances."""

    async def create(self, request: Request, workflow: Name) -> Response:
        """Start an instance. An id that already exists is refused, unless ``onConflict`` or ``onReuse`` allow it."""
        body: wire_requests.NewInstance = admitted(request).body
        options = start_options(body)
        client = self._client()
        created = await traced(
            client, request, client.starts.create(workflow, body.get("params"), id=body.get("id"), **options)
        )
        if "reason" in body:
            await client.control.note(workflow, created.id, "start", body["reason"] or None)
        return reply(response_bodies.instance(created))

    async def create_batch(self, request: Request, workflow: Name) -> Response:
        """Start many instances, or none if one is invalid. The response omits ids that already exist or repeat."""
        self._backend.registry.get(workflow)
        body: wire_requests.NewBatch = admitted(request).body
        check_at_most(["instances"], len(body["instances"]), self._limits.batch)
        starts = [Start(entry["id"], entry.get("params"), **start_options(entry)) for entry in body["instances"]]
        client = self._client()
        return reply(response_bodies.batch(await traced(client, request, client.starts.create_many(workflow, starts))))


class Control(Handlers):
    """Control requests."""

    async def pause(self, request: Request, workflow: Name, instance_id: Id) -> Response:
        """Pause the run before more workflow code runs. Events are stored, and timers keep running."""
        return await self._request(request, workflow, instance_id, lambda client: client.control.pause)

    async def resume(self, request: Request, workflow: Name, instance_id: Id) -> Response:
        """Resume a paused run, or withdraw a pause that has not taken effect. Otherwise it does nothing."""
        return await self._request(request, workflow, instance_id, lambda client: client.control.resume)

    async def terminate(self, request: Request, workflow: Name, instance_id: Id) -> Response:
        """End the run at once, without running its code any further."""
        return await self._request(request, workflow, instance_id, lambda client: client.control.terminate)

    async def restart(self, request: Request, workflow: Name, instance_id: Id) -> Response:
        """Start the instance again from the beginning, under the next run number."""
        return await self._request(request, workflow, instance_id, lambda client: client.control.restart)

    async def delete(self, request: Request, workflow: Name, instance_id: Id) -> Response:
        """Delete an instance that has ended, with all of its runs. Its audit records are kept."""
        return await self._request(request, workflow, instance_id, lambda client: client.repair.delete)

    async def cancel(self, request: Request, workflow: Name, instance_id: Id) -> Response:
        """Request cancellation: the run's code may clean up. A run that misses the deadline is terminated."""
        client = self._client()
        address = client.instances.address(workflow, instance_id)
        body: wire_requests.CancelRequest = admitted(request).body
        deadline_ms = body.get("deadlineMs")
        deadline = None if deadline_ms is None else timedelta(milliseconds=deadline_ms)
        return await _done(client.control.cancel(*address, body.get("reason"), deadline))

    async def move(self, request: Request, workflow: Name, instance_id: Id) -> Response:
        """Move a pinned run to another release: workers of that version claim it from now on."""
        client = self._client()
        body: wire_requests.MoveRequest = admitted(request).body
        address = client.instances.address(workflow, instance_id)
        return await _done(client.control.move(*address, body["version"], body.get("reason")))

    async def kill(self, request: Request, workflow: Name, instance_id: Id) -> Response:
        """Write the tombstone of a graph's run: no node starts any more, and results of running nodes are refused."""
        client = self._client()
        address = client.instances.address(workflow, instance_id)
        body: wire_requests.KillRequest = admitted(request).body
        return await _done(client.control.kill(*address, body.get("reason")))

    async def _request(
        self,
        request: Request,
        workflow: str,
        instance_id: str,
        method: Callable[[Client], Callable[..., Awaitable[Any]]],
    ) -> Response:
        """Call a method of the client that takes an instance and a reason."""
        client = self._client()
        return await _done(method(client)(*client.instances.address(workflow, instance_id), _reason(request)))


class Events(Handlers):
    """Events to instances."""

    async def send_event(self, request: Request, workflow: Name, instance_id: Id) -> Response:
        """Send an event to an instance that has not ended. The response has the instance's status at that time."""
        client = self._client()
        address = client.instances.address(workflow, instance_id)
        body: wire_requests.NewEvent = admitted(request).body
        event = (body["type"], body.get("payload"))
        sending = client.events.send(*address, *event, event_id=body.get("id"), reason=body.get("reason"))
        status = await traced(client, request, sending)
        sent: wire.SentEvent = {"status": response_bodies.details(status), "accepted": True}
        return reply(sent)


class Units(Handlers):
    """Runs that consist of units: graphs."""

    async def draw_graph(self, workflow: Name) -> Response:
        """A graph as a Mermaid flowchart."""
        return drawing(self._client().units.draw_definition(workflow))

    async def draw_instance(self, workflow: Name, instance_id: Id) -> Response:
        """A run of a graph as a Mermaid flowchart, coloured by the state of each node."""
        client = self._client()
        return drawing(await client.units.draw_run(*client.instances.address(workflow, instance_id)))

    async def facts(
        self, request: Request, workflow: Name, instance_id: Id, query: Annotated[wire_requests.FactsParams, Query()]
    ) -> Response:
        """The stored facts of a graph's run, by key; ``prefix`` selects keys that begin with it."""
        check_query(request, query)
        client = self._client()
        address = client.instances.address(workflow, instance_id)
        body: wire.Facts = {"facts": await client.units.facts(*address, query.prefix)}
        return reply(body)


class Outbox(Handlers):
    """Outbound events."""

    async def outbox(self, workflow: Name, instance_id: Id) -> Response:
        """The outbound events of a run, in order, each with the state of its delivery."""
        client = self._client()
        return reply(
            response_bodies.outbox(await client.outbox.records(*client.instances.address(workflow, instance_id)))
        )

    async def redeliver(self, request: Request, workflow: Name, instance_id: Id) -> Response:
        """Deliver parked events again, starting with the first attempt. The response has their number."""
        client = self._client()
        address = client.instances.address(workflow, instance_id)
        body: wire.Redelivered = {"redelivered": await client.outbox.redeliver(*address, reason=_reason(request))}
        return reply(body)


class Server(Handlers):
    """The app as a whole."""

    async def list_workflows(self) -> Response:
        """The registered workflows, in the order of their registration."""
        return reply(response_bodies.workflows([definition.name for definition in self._backend.registry]))

    async def tick(self, request: Request) -> Response:
        """Run the instances that are due now until they wait or end."""
        if self._backend.tick is None:
            raise responses.Problem(
                403, responses.RUNNER_TICK_DISABLED, "ticks over HTTP are not enabled on this server"
            )
        body: wire_requests.TickRequest = admitted(request).body
        processed = await self._backend.tick(max_instances=body.get("maxInstances"), max_steps=body.get("maxSteps"))
        ticked: wire.Ticked = {"processed": processed}
        return reply(ticked)

    async def health(self) -> Response:
        """Readiness: 503 while the app is closed or the store does not respond."""
        await self._client().check()
        return await self.liveness()

    async def liveness(self) -> Response:
        """Liveness: the process responds. Needs no authorization and does not access the store."""
        alive: wire.Health = {"status": "ok"}
        return reply(alive)


def _reason(request: Request) -> str | None:
    body: wire_requests.ReasonRequest = admitted(request).body
    return body.get("reason")


async def _done(request: Awaitable[None]) -> Response:
    await request
    return done()


def done() -> Response:
    body: wire.Done = {"ok": True}
    return reply(body)
