"""Response bodies of stack and replay, made from the records that the client returns."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.core.views import FactPosition, FactRecord, FrameInfo, PendingRequest, ReplayView, Stack
from holdfast.http import response_bodies, wire_views
from holdfast.http.response_bodies import code_position, date, optional_date


def stack(record: Stack) -> wire_views.Stack:
    body: wire_views.Stack = {
        "tasks": [
            {"name": task.name, "frames": [_frame(frame) for frame in task.frames], "waitingFor": task.waiting_for}
            for task in record.tasks
        ]
    }
    if record.difference is not None:
        body["difference"] = record.difference
    return body


def _frame(frame: FrameInfo) -> wire_views.Frame:
    return {
        "file": frame.file,
        "line": frame.line,
        "function": frame.function,
        "source": frame.source,
        "locals": frame.locals,
    }


def replay(view: ReplayView) -> wire_views.Replay:
    return {
        "position": view.position,
        "total": view.total,
        "fact": None if view.fact is None else _fact(view.fact),
        "stack": stack(view.stack),
        "pending": [_pending(request) for request in view.pending],
        "logs": [response_bodies.log(line) for line in view.logs],
    }


def fact_positions(found: Sequence[FactPosition]) -> wire_views.FactPositions:
    return {
        "positions": [
            {"fact": one.fact, "stepKey": one.step_key, "ok": one.ok, "position": code_position(one.position)}
            for one in found
        ]
    }


def _fact(record: FactRecord) -> wire_views.Fact:
    body: wire_views.Fact = {
        "stepKey": record.step_key,
        "type": record.type,
        "name": record.name,
        "ok": record.ok,
        "result": record.result,
        "at": date(record.at),
        "state": record.state,
    }
    if record.error is not None:
        body["error"] = response_bodies.failure(record.error)
    return body


def _pending(request: PendingRequest) -> wire_views.Pending:
    body: wire_views.Pending = {
        "stepKey": request.step_key,
        "type": request.type,
        "name": request.name,
        "wakeAt": optional_date(request.wake_at),
        "waitEventType": request.wait_event_type,
        "attempts": request.attempts,
        "recorded": request.recorded,
    }
    if request.position is not None:
        body["position"] = code_position(request.position)
    return body
