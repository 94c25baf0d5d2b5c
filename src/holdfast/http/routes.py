"""The routes: each calls the client and shapes the answer. Nothing else is decided here."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated, Protocol

from fastapi import Path, Query
from pydantic import TypeAdapter
from starlette.requests import Request
from starlette.responses import Response

from holdfast.client import Client, HistoryQuery, Start
from holdfast.core.limits import Limits
from holdfast.http import answers, wire
from holdfast.http.admission import admitted
from holdfast.http.answers import drawing, reply
from holdfast.http.auth import AuthContent, AuthEvent, AuthInstance, Scope
from holdfast.http.queries import check_at_most, check_length, check_query, list_filter
from holdfast.http.spec import Spec
from holdfast.kernel.definition import Registry
from holdfast.kernel.units import GRAPH

_NEW_INSTANCE = TypeAdapter(wire.NewInstance)
_NEW_BATCH = TypeAdapter(wire.NewBatch)
_NEW_EVENT = TypeAdapter(wire.NewEvent)
_TICK = TypeAdapter(wire.TickRequest)
_CANCEL = TypeAdapter(wire.CancelRequest)
_KILL = TypeAdapter(wire.KillRequest)

Name = Annotated[str, Path(description="The name of a registered workflow.")]
Id = Annotated[str, Path(description="The id of an instance.")]
RunNumber = Annotated[wire.WholeNumber, Path(description="The number of a run, counted from 0.")]


class Tick(Protocol):
    async def __call__(self, *, max_instances: int | None = None, max_steps: int | None = None) -> int: ...


@dataclass(frozen=True, slots=True)
class Backend:
    """What the routes need of an app."""

    registry: Registry
    limits: Limits
    client: Callable[[], Client]
    """Raises ``AppClosedError`` while the app is not open."""
    tick: Tick | None
    """None: ticks over HTTP are not enabled."""


def _one_instance(body: wire.NewInstance) -> AuthContent:
    return AuthContent(body, [AuthInstance(body.get("id"), body.get("params"))])


def _instances(body: wire.NewBatch) -> AuthContent:
    return AuthContent(body, [AuthInstance(one["id"], one.get("params")) for one in body["instances"]])


def _event(body: wire.NewEvent) -> AuthContent:
    return AuthContent(body, event=AuthEvent(body["type"], body.get("payload"), body.get("id")))


class Routes:
    """The handlers, over one backend."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._limits = backend.limits

    def table(self) -> Sequence[Spec]:
        read, create, manage = Scope.READ, Scope.CREATE, Scope.MANAGE
        instances, one = "/{workflow}/instances", "/{workflow}/instances/{instance_id}"
        return [
            Spec("GET", "", "listWorkflows", read, self.list_workflows, wire.Workflows, impersonal=True),
            Spec(
                "GET", instances, "listInstances", read, self.list_instances, wire.InstanceList, (400, 404),
                filter=list_filter,
            ),
            Spec(
                "POST", instances, "createInstance", create, self.create, wire.Instance,
                (400, 404, 408, 409, 413, 415), _NEW_INSTANCE, content=_one_instance,
            ),
            Spec(
                "POST", f"{instances}/batch", "createInstances", create, self.create_batch, wire.Batch,
                (400, 404, 408, 413, 415), _NEW_BATCH, content=_instances,
            ),
            Spec("GET", one, "getInstance", read, self.get_instance, wire.DescribedInstance, (400, 404)),
            Spec("POST", f"{one}/pause", "pauseInstance", manage, self.pause, wire.Done, (400, 404, 409)),
            Spec("POST", f"{one}/resume", "resumeInstance", manage, self.resume, wire.Done, (400, 404)),
            Spec("POST", f"{one}/terminate", "terminateInstance", manage, self.terminate, wire.Done, (400, 404, 409)),
            Spec("POST", f"{one}/restart", "restartInstance", manage, self.restart, wire.Done, (400, 404)),
            Spec(
                "POST", f"{one}/cancel", "cancelInstance", manage, self.cancel, wire.Done,
                (400, 404, 408, 409, 413, 415), _CANCEL, body_needed=False,
            ),
            Spec(
                "POST", f"{one}/events", "sendEvent", Scope.SEND_EVENT, self.send_event, wire.SentEvent,
                (400, 404, 408, 409, 413, 415), _NEW_EVENT, content=_event,
            ),
            Spec("GET", f"{one}/history", "getHistory", read, self.history, wire.History, (400, 404)),
            Spec("GET", f"{one}/history/{{run}}", "getRunHistory", read, self.run_history, wire.History, (400, 404)),
            *self._of_graphs(one),
            *self._of_chains(one),
            Spec(
                "POST", "/_runner/tick", "tick", Scope.TICK, self.tick, wire.Ticked,
                (400, 403, 408, 413, 415), _TICK, body_needed=False,
            ),
            Spec("GET", "/_health", "getHealth", read, self.health, wire.Health, impersonal=True),
            Spec("GET", "/_health/live", "getLiveness", None, self.liveness, wire.Health),
        ]  # fmt: skip

    def _of_graphs(self, one: str) -> Sequence[Spec]:
        read, manage = Scope.READ, Scope.MANAGE
        return [
            Spec(
                "GET", "/{workflow}/mermaid", "drawGraph", read, self.draw_graph, str, (400, 404), kind=GRAPH,
                impersonal=True,
            ),
            Spec("GET", f"{one}/facts", "getFacts", read, self.facts, wire.Facts, (400, 404), kind=GRAPH),
            Spec("GET", f"{one}/mermaid", "drawInstance", read, self.draw_instance, str, (400, 404), kind=GRAPH),
            Spec(
                "POST", f"{one}/kill", "killInstance", manage, self.kill, wire.Done,
                (400, 404, 408, 409, 413, 415), _KILL, body_needed=False, kind=GRAPH,
            ),
        ]  # fmt: skip

    def _of_chains(self, one: str) -> Sequence[Spec]:
        read, manage = Scope.READ, Scope.MANAGE
        return [
            Spec("GET", f"{one}/outbox", "getOutbox", read, self.outbox, wire.Outbox, (400, 404)),
            Spec(
                "POST", f"{one}/outbox/redeliver", "redeliverOutbox", manage, self.redeliver, wire.Redelivered,
                (400, 404),
            ),
        ]  # fmt: skip

    # --- reading

    async def list_workflows(self) -> Response:
        """The registered workflows, in the order of their registration."""
        return reply(wire.workflows([definition.name for definition in self._backend.registry]))

    async def list_instances(
        self, request: Request, workflow: Name, query: Annotated[wire.ListParams, Query()]
    ) -> Response:
        """Instances of a workflow, the newest first; with ``search.KEY=VALUE`` only those with these attributes."""
        if query.idPrefix is not None:  # a field that may be missing is None then
            check_length(["query", "idPrefix"], query.idPrefix, self._limits.instance_id)
        limit = self._page_size(query.pageSize)
        page = await self._client().list(workflow, cursor=query.cursor, limit=limit, within=admitted(request).filters)
        return reply(wire.instance_list(page))

    async def get_instance(self, workflow: Name, instance_id: Id) -> Response:
        """One instance: its status, its input, and in one sentence what it is waiting for."""
        client = self._client()
        return reply(wire.described_instance(await client.describe(*client.address(workflow, instance_id))))

    async def history(
        self, request: Request, workflow: Name, instance_id: Id, query: Annotated[wire.HistoryParams, Query()]
    ) -> Response:
        """Steps, events and logs of the current run, or of the one that ``runNumber`` names."""
        return await self._history(request, workflow, instance_id, query.runNumber, query)

    async def run_history(
        self,
        request: Request,
        workflow: Name,
        instance_id: Id,
        run: RunNumber,
        query: Annotated[wire.RunParams, Query()],
    ) -> Response:
        """Steps, events and logs of one run."""
        return await self._history(request, workflow, instance_id, run, query)

    async def _history(
        self, request: Request, workflow: str, instance_id: str, run: int | None, query: wire.RunParams
    ) -> Response:
        check_query(request, query)
        if query.logCategory is not None:  # a field that may be missing is None then
            check_length(["query", "logCategory"], query.logCategory, self._limits.log_category)
        client = self._client()
        wanted = HistoryQuery(
            limit=self._page_size(query.pageSize),
            descending=query.order == "desc",
            steps_cursor=query.stepsCursor,
            events_cursor=query.eventsCursor,
            include_logs=query.includeLogs,
            logs_cursor=query.logsCursor,
            level=query.logLevel,
            category=query.logCategory,
        )
        page = await client.history_page(*client.address(workflow, instance_id), run, wanted)
        return reply(wire.history(page))

    # --- starting

    async def create(self, request: Request, workflow: Name) -> Response:
        """Start an instance. An id that exists is refused, whatever became of it."""
        body: wire.NewInstance = admitted(request).body
        made = await self._client().create(workflow, body.get("params"), id=body.get("id"))
        return reply(wire.instance(made))

    async def create_batch(self, request: Request, workflow: Name) -> Response:
        """Start many instances, or none if one is wrong. Ids that exist, and repeats, are left out of the answer."""
        self._backend.registry.get(workflow)
        body: wire.NewBatch = admitted(request).body
        check_at_most(["instances"], len(body["instances"]), self._limits.batch)
        starts = [Start(entry["id"], entry.get("params")) for entry in body["instances"]]
        return reply(wire.batch(await self._client().create_many(workflow, starts)))

    # --- steering

    async def pause(self, workflow: Name, instance_id: Id) -> Response:
        """Stop before more workflow code runs; events are kept, timers go on counting."""
        client = self._client()
        return await _done(client.pause(*client.address(workflow, instance_id)))

    async def resume(self, workflow: Name, instance_id: Id) -> Response:
        """Go on, or withdraw a pause that has not taken effect; of a run that is not paused: nothing."""
        client = self._client()
        return await _done(client.resume(*client.address(workflow, instance_id)))

    async def terminate(self, workflow: Name, instance_id: Id) -> Response:
        """End it now, for good."""
        client = self._client()
        return await _done(client.terminate(*client.address(workflow, instance_id)))

    async def restart(self, workflow: Name, instance_id: Id) -> Response:
        """Begin again from the start under the next run number."""
        client = self._client()
        return await _done(client.restart(*client.address(workflow, instance_id)))

    async def cancel(self, request: Request, workflow: Name, instance_id: Id) -> Response:
        """Ask it to cancel: its code may clean up. With a deadline it is terminated then."""
        client = self._client()
        address = client.address(workflow, instance_id)
        body: wire.CancelRequest = admitted(request).body
        deadline_ms = body.get("deadlineMs")
        deadline = None if deadline_ms is None else timedelta(milliseconds=deadline_ms)
        return await _done(client.cancel(*address, body.get("reason"), deadline))

    async def send_event(self, request: Request, workflow: Name, instance_id: Id) -> Response:
        """Send an event to an instance that has not ended; answers its status at that time."""
        client = self._client()
        address = client.address(workflow, instance_id)
        body: wire.NewEvent = admitted(request).body
        status = await client.send_event(*address, body["type"], body.get("payload"), event_id=body.get("id"))
        sent: wire.SentEvent = {"status": wire.details(status), "accepted": True}
        return reply(sent)

    # --- graphs

    async def draw_graph(self, workflow: Name) -> Response:
        """A graph as a Mermaid flowchart."""
        return drawing(self._client().drawing(workflow))

    async def draw_instance(self, workflow: Name, instance_id: Id) -> Response:
        """A run of a graph as a Mermaid flowchart, coloured by what its nodes have come to."""
        client = self._client()
        return drawing(await client.to_mermaid(*client.address(workflow, instance_id)))

    async def facts(
        self, request: Request, workflow: Name, instance_id: Id, query: Annotated[wire.FactsParams, Query()]
    ) -> Response:
        """What is stored of a graph's run, by key; with ``prefix`` only the keys that begin so."""
        check_query(request, query)
        client = self._client()
        found: wire.Facts = {"facts": await client.facts(*client.address(workflow, instance_id), query.prefix)}
        return reply(found)

    async def kill(self, request: Request, workflow: Name, instance_id: Id) -> Response:
        """Write the tombstone of a graph's run: nothing starts any more, and what is in flight is refused."""
        client = self._client()
        address = client.address(workflow, instance_id)
        body: wire.KillRequest = admitted(request).body
        return await _done(client.kill(*address, body.get("reason")))

    # --- chains

    async def outbox(self, workflow: Name, instance_id: Id) -> Response:
        """What a chain's run has to tell the world, in its order, and what became of that."""
        client = self._client()
        return reply(wire.outbox(await client.outbox(*client.address(workflow, instance_id))))

    async def redeliver(self, workflow: Name, instance_id: Id) -> Response:
        """Try parked events again, from the first attempt on; answers how many there were."""
        client = self._client()
        done: wire.Redelivered = {"redelivered": await client.redeliver(*client.address(workflow, instance_id))}
        return reply(done)

    # --- operating

    async def tick(self, request: Request) -> Response:
        """One runner pass: run what is due now until it rests."""
        if self._backend.tick is None:
            raise answers.Problem(403, answers.RUNNER_TICK_DISABLED, "ticks over HTTP are not enabled on this server")
        body: wire.TickRequest = admitted(request).body
        processed = await self._backend.tick(max_instances=body.get("maxInstances"), max_steps=body.get("maxSteps"))
        ticked: wire.Ticked = {"processed": processed}
        return reply(ticked)

    async def health(self) -> Response:
        """Whether this server can serve: it answers 503 while the app is closed or the store does not answer."""
        await self._client().check()
        return await self.liveness()

    async def liveness(self) -> Response:
        """Whether this process answers at all. Needs no authorization and touches nothing."""
        alive: wire.Health = {"status": "ok"}
        return reply(alive)

    # --- inside

    def _client(self) -> Client:
        return self._backend.client()

    def _page_size(self, wanted: int) -> int:
        check_at_most(["query", "pageSize"], wanted, self._limits.page_size)
        return wanted


async def _done(doing: Awaitable[None]) -> Response:
    await doing
    done: wire.Done = {"ok": True}
    return reply(done)
