"""The table of routes: for each its path, scope, handler, body and responses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import TypeAdapter

from holdfast.http import wire, wire_requests, wire_run, wire_views
from holdfast.http.auth import AuthContent, AuthEvent, AuthInstance, Scope
from holdfast.http.backend import Backend
from holdfast.http.bulk_handlers import Bulk, bulk_content
from holdfast.http.handlers import Control, Events, Outbox, Reads, Server, Starts, Units
from holdfast.http.queries import all_filter, list_filter
from holdfast.http.repair_handlers import Audit, Repair
from holdfast.http.run_handlers import Details
from holdfast.http.spec import Spec
from holdfast.http.view_handlers import Views

_ENDING_POLICIES = ("cancel_running", "replace_waiting")
"""Start policies that end other runs."""
_INSTANCES = "/{workflow}/instances"
_INSTANCE = "/{workflow}/instances/{instance_id}"

_NEW_INSTANCE = TypeAdapter(wire_requests.NewInstance)
_NEW_BATCH = TypeAdapter(wire_requests.NewBatch)
_NEW_EVENT = TypeAdapter(wire_requests.NewEvent)
_TICK = TypeAdapter(wire_requests.TickRequest)
_CANCEL = TypeAdapter(wire_requests.CancelRequest)
_KILL = TypeAdapter(wire_requests.KillRequest)
_MOVE = TypeAdapter(wire_requests.MoveRequest)
_BULK = TypeAdapter(wire_requests.BulkRequest)
_REASON = TypeAdapter(wire_requests.ReasonRequest)
_RESOLVE = TypeAdapter(wire_requests.ResolveRequest)
_REPLY = TypeAdapter(wire_requests.ReplyRequest)
_FORK = TypeAdapter(wire_requests.ForkRequest)


def _new_instance_content(body: wire_requests.NewInstance) -> AuthContent:
    return AuthContent(body, [AuthInstance(body.get("id"), body.get("params"))])


def _new_batch_content(body: wire_requests.NewBatch) -> AuthContent:
    return AuthContent(body, [AuthInstance(entry["id"], entry.get("params")) for entry in body["instances"]])


def _start_scopes(body: Mapping[str, Any]) -> set[Scope]:
    """The other scopes of a start: of one that ends or repairs runs, and of one that sends events."""
    controls = (
        body.get("onConflict") == "terminate_existing"
        or body.get("onReuse") == "retry_if_failed"
        or body.get("singleton") in _ENDING_POLICIES
    )
    return {scope for scope, needed in ((Scope.MANAGE, controls), (Scope.SEND_EVENT, "messages" in body)) if needed}


def _batch_scopes(body: wire_requests.NewBatch) -> set[Scope]:
    return {scope for entry in body["instances"] for scope in _start_scopes(entry)}


def _bulk_scopes(body: wire_requests.BulkRequest) -> set[Scope]:
    """The other scope of a bulk action: that of the request which it makes on each instance."""
    return {Scope.SEND_EVENT} if body["action"] == "sendEvent" else set()


def _new_event_content(body: wire_requests.NewEvent) -> AuthContent:
    return AuthContent(body, event=AuthEvent(body["type"], body.get("payload"), body.get("id")))


def route_table(backend: Backend) -> Sequence[Spec]:
    """All routes, in the order of the OpenAPI document."""
    server = Server(backend)
    return [
        Spec("GET", "", "listWorkflows", Scope.READ, server.list_workflows, wire.Workflows, no_instances=True),
        *_instance_routes(backend),
        *_repair_routes(backend),
        *_unit_routes(backend),
        *_outbox_routes(backend),
        *_view_routes(backend),
        *_detail_routes(backend),
        Spec(
            "POST", "/_runner/tick", "tick", Scope.TICK, server.tick, wire.Ticked,
            (400, 403, 408, 413, 415), _TICK, body_required=False,
        ),
        Spec("GET", "/_health", "getHealth", Scope.READ, server.health, wire.Health, no_instances=True),
        Spec("GET", "/_health/live", "getLiveness", None, server.liveness, wire.Health),
    ]  # fmt: skip


def _repair_routes(backend: Backend) -> Sequence[Spec]:
    repair, audit, bulk = Repair(backend), Audit(backend), Bulk(backend)
    return [
        Spec(
            "POST", f"{_INSTANCE}/retry", "retryInstance", Scope.MANAGE, repair.retry, wire.Done,
            (400, 404, 408, 409, 413, 415), _REASON, body_required=False,
        ),
        Spec(
            "POST", f"{_INSTANCE}/fork", "forkInstance", Scope.MANAGE, repair.fork, wire.Instance,
            (400, 404, 408, 409, 413, 415), _FORK,
        ),
        Spec(
            "POST", f"{_INSTANCE}/resolve", "resolveStep", Scope.MANAGE, repair.resolve, wire.Done,
            (400, 404, 408, 409, 413, 415), _RESOLVE,
        ),
        Spec(
            "POST", f"{_INSTANCE}/reply", "replyToAsk", Scope.MANAGE, repair.reply_to_ask, wire.Done,
            (400, 404, 408, 409, 413, 415), _REPLY,
        ),
        Spec(
            "GET", f"{_INSTANCE}/audit", "getAudit", Scope.READ, audit.of_instance, wire.AuditRecords, (400, 404),
        ),
        Spec(
            "POST", "/_bulk", "startBulk", Scope.MANAGE, bulk.start, wire.BulkAccepted,
            (400, 404, 408, 413, 415), _BULK, content=bulk_content, lists=True, also=_bulk_scopes,
        ),
        Spec("GET", "/_bulk/{bulk_id}", "getBulk", Scope.MANAGE, bulk.progress, wire.BulkJob, (404,)),
        Spec("GET", "/_audit", "getAllAudit", Scope.READ, audit.all, wire.AuditRecords, (400,)),
    ]  # fmt: skip


def _instance_routes(backend: Backend) -> Sequence[Spec]:
    reads, starts, events = Reads(backend), Starts(backend), Events(backend)
    return [
        Spec(
            "GET", _INSTANCES, "listInstances", Scope.READ, reads.list_instances, wire.InstanceList, (400, 404),
            filter=list_filter,
        ),
        Spec(
            "GET", "/_instances", "listAllInstances", Scope.READ, reads.list_all_instances, wire.FoundInstances,
            (400, 404), filter=all_filter,
        ),
        Spec(
            "POST", _INSTANCES, "createInstance", Scope.CREATE, starts.create, wire.Instance,
            (400, 404, 408, 409, 413, 415), _NEW_INSTANCE, content=_new_instance_content, also=_start_scopes,
        ),
        Spec(
            "POST", f"{_INSTANCES}/batch", "createInstances", Scope.CREATE, starts.create_batch, wire.Batch,
            (400, 404, 408, 413, 415), _NEW_BATCH, content=_new_batch_content, also=_batch_scopes,
        ),
        Spec("GET", _INSTANCE, "getInstance", Scope.READ, reads.get_instance, wire.DescribedInstance, (400, 404)),
        Spec(
            "GET", f"{_INSTANCE}/result", "getResult", Scope.READ, reads.result, wire.Details, (400, 404), pending=True,
        ),
        *_control_routes(Control(backend)),
        Spec(
            "POST", f"{_INSTANCE}/events", "sendEvent", Scope.SEND_EVENT, events.send_event, wire.SentEvent,
            (400, 404, 408, 409, 413, 415), _NEW_EVENT, content=_new_event_content,
        ),
        Spec("GET", f"{_INSTANCE}/history", "getHistory", Scope.READ, reads.history, wire.History, (400, 404)),
        Spec(
            "GET", f"{_INSTANCE}/history/{{run}}", "getRunHistory", Scope.READ, reads.run_history, wire.History,
            (400, 404),
        ),
    ]  # fmt: skip


def _control_routes(control: Control) -> Sequence[Spec]:
    return [
        Spec(
            "POST", f"{_INSTANCE}/pause", "pauseInstance", Scope.MANAGE, control.pause, wire.Done,
            (400, 404, 408, 409, 413, 415), _REASON, body_required=False,
        ),
        Spec(
            "POST", f"{_INSTANCE}/resume", "resumeInstance", Scope.MANAGE, control.resume, wire.Done,
            (400, 404, 408, 413, 415), _REASON, body_required=False,
        ),
        Spec(
            "POST", f"{_INSTANCE}/terminate", "terminateInstance", Scope.MANAGE, control.terminate, wire.Done,
            (400, 404, 408, 409, 413, 415), _REASON, body_required=False,
        ),
        Spec(
            "POST", f"{_INSTANCE}/restart", "restartInstance", Scope.MANAGE, control.restart, wire.Done,
            (400, 404, 408, 413, 415), _REASON, body_required=False,
        ),
        Spec(
            "DELETE", _INSTANCE, "deleteInstance", Scope.MANAGE, control.delete, wire.Done,
            (400, 404, 408, 409, 413, 415), _REASON, body_required=False,
        ),
        Spec(
            "POST", f"{_INSTANCE}/cancel", "cancelInstance", Scope.MANAGE, control.cancel, wire.Done,
            (400, 404, 408, 409, 413, 415), _CANCEL, body_required=False,
        ),
        Spec(
            "POST", f"{_INSTANCE}/move", "moveInstance", Scope.MANAGE, control.move, wire.Done,
            (400, 404, 408, 409, 413, 415), _MOVE,
        ),
    ]  # fmt: skip


def _unit_routes(backend: Backend) -> Sequence[Spec]:
    units, control = Units(backend), Control(backend)
    return [
        Spec(
            "GET", "/{workflow}/mermaid", "drawGraph", Scope.READ, units.draw_graph, str, (400, 404), needs_units=True,
            no_instances=True,
        ),
        Spec(
            "GET", f"{_INSTANCE}/facts", "getFacts", Scope.READ, units.facts, wire.Facts, (400, 404),
            needs_units=True,
        ),
        Spec(
            "GET", f"{_INSTANCE}/mermaid", "drawInstance", Scope.READ, units.draw_instance, str, (400, 404),
            needs_units=True,
        ),
        Spec(
            "POST", f"{_INSTANCE}/kill", "killInstance", Scope.MANAGE, control.kill, wire.Done,
            (400, 404, 408, 409, 413, 415), _KILL, body_required=False, needs_units=True,
        ),
    ]  # fmt: skip


def _outbox_routes(backend: Backend) -> Sequence[Spec]:
    outbox = Outbox(backend)
    return [
        Spec("GET", f"{_INSTANCE}/outbox", "getOutbox", Scope.READ, outbox.outbox, wire.Outbox, (400, 404)),
        Spec(
            "POST", f"{_INSTANCE}/outbox/redeliver", "redeliverOutbox", Scope.MANAGE, outbox.redeliver,
            wire.Redelivered, (400, 404, 408, 413, 415), _REASON, body_required=False,
        ),
    ]  # fmt: skip


def _detail_routes(backend: Backend) -> Sequence[Spec]:
    details = Details(backend)
    return [
        Spec(
            "GET", f"{_INSTANCE}/timeline", "getTimeline", Scope.READ, details.timeline, wire_run.Timeline, (400, 404),
        ),
        Spec("GET", f"{_INSTANCE}/step", "getStep", Scope.READ, details.step, wire_run.OneStep, (400, 404)),
        Spec("GET", f"{_INSTANCE}/facts/all", "listFacts", Scope.READ, details.facts, wire_run.FactPage, (400, 404)),
        Spec("GET", f"{_INSTANCE}/mailbox", "getMailbox", Scope.READ, details.mailbox, wire_run.Mailbox, (400, 404)),
        Spec("GET", f"{_INSTANCE}/family", "getFamily", Scope.READ, details.family, wire_run.Family, (400, 404)),
    ]  # fmt: skip


def _view_routes(backend: Backend) -> Sequence[Spec]:
    views = Views(backend)
    return [
        Spec(
            "GET", f"{_INSTANCE}/stack", "getStack", Scope.DEBUG, views.stack, wire_views.Stack, (400, 403, 404),
        ),
        Spec(
            "GET", f"{_INSTANCE}/replay", "replayInstance", Scope.DEBUG, views.replay, wire_views.Replay,
            (400, 403, 404),
        ),
        Spec(
            "GET", f"{_INSTANCE}/positions", "getPositions", Scope.DEBUG, views.fact_positions,
            wire_views.FactPositions, (400, 403, 404),
        ),
        Spec("GET", f"{_INSTANCE}/export", "exportInstance", Scope.READ, views.export, dict, (400, 404)),
    ]  # fmt: skip
