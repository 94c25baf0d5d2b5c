"""Applies the operations of a commit in their order, and builds the facts that record their results."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from holdfast.store.protocol import (
    CANCEL,
    AffectedRuns,
    CancelRun,
    Created,
    Fact,
    NewEvent,
    NewRun,
    Operation,
    RecordedOperation,
    ReplyToEvent,
    RequestResult,
    RunRecord,
    TerminateRun,
    UnwatchRun,
    Watch,
    WatchRun,
)
from holdfast.store.sqlite import ends
from holdfast.store.sqlite.control import request_cancel
from holdfast.store.sqlite.create import create
from holdfast.store.sqlite.reads import find_current, record_of
from holdfast.store.sqlite.replies import reply_to_event
from holdfast.store.sqlite.send import QueuedEvent, send, send_engine_event
from holdfast.store.sqlite.tx import Tx
from holdfast.store.sqlite.watching import unwatch, watch


@dataclass(slots=True)
class OperationResults:
    results: list[RequestResult] = field(default_factory=list)
    claimed_children: list[Created] = field(default_factory=list)
    affected: AffectedRuns = field(default_factory=AffectedRuns)


def perform(tx: Tx, run: int, operations: Sequence[RecordedOperation]) -> OperationResults:
    performer = _Performer(tx, record_of(tx, run))
    for recorded in operations:
        performer.done.results.append(performer.apply(recorded.operation))
    return performer.done


def result_facts(operations: Sequence[RecordedOperation], results: Sequence[RequestResult]) -> list[Fact]:
    return [
        recorded.fact._replace(ok=result.ok, value=json.dumps(result).encode())
        for recorded, result in zip(operations, results, strict=True)
    ]


class _Performer:
    """Applies the operations of one run."""

    def __init__(self, tx: Tx, run: RunRecord) -> None:
        self._tx = tx
        self._run = run
        self.done = OperationResults()

    def apply(self, operation: Operation) -> RequestResult:
        if self._run.run in self.done.affected.ended:  # an earlier operation ended the run itself
            return RequestResult.ENDED
        match operation:
            case NewRun():
                return self._start(operation)
            case NewEvent():
                return self._send(operation)
            case ReplyToEvent():
                done = reply_to_event(self._tx, self._run, operation, self.done.affected)
                return RequestResult.DONE if done else RequestResult.MISSING
            case _:
                target = find_current(self._tx, operation.workflow, operation.instance_id)
                return RequestResult.MISSING if target is None else self._apply_to(target, operation)

    def _apply_to(
        self, target: RunRecord, operation: WatchRun | UnwatchRun | CancelRun | TerminateRun
    ) -> RequestResult:
        match operation:
            case WatchRun():
                self._watch(target, operation.watch)
            case UnwatchRun():
                unwatch(self._tx, self._run.run, target.run, operation.watch)
            case _ if target.status.terminal:
                return RequestResult.ENDED
            case CancelRun(children_only=True) if target.parent != ends.pid_of(self._run):
                pass
            case CancelRun():
                event = QueuedEvent(CANCEL, operation.payload, sender=ends.pid_of(self._run))
                request_cancel(self._tx, target, event, operation.deadline_ms, self.done.affected)
            case TerminateRun():
                ends.merge(self.done.affected, ends.terminate(self._tx, target.run, operation.reason))
        return RequestResult.DONE

    def _start(self, new: NewRun) -> RequestResult:
        [created] = create(self._tx, [new])
        ends.merge(self.done.affected, created.affected)
        if created.epoch or created.units:
            self.done.claimed_children.append(created)
        if created.created and not created.epoch:
            self.done.affected.work = True
        return created.result

    def _send(self, event: NewEvent) -> RequestResult:
        # Without a claimant: the result of an operation cannot report a claim.
        [sent] = send(self._tx, [replace(event, claimant=None)])
        if sent.run is None:
            return RequestResult.MISSING
        if not sent.accepted:
            return RequestResult.ENDED
        if sent.woken:
            self.done.affected.woken.append(sent.run.run)
            self.done.affected.work |= sent.run.owner is None
        return RequestResult.DONE

    def _watch(self, target: RunRecord, kind: Watch) -> None:
        if target.status.terminal:
            send_engine_event(self._tx, self._run.run, ends.exit_event(target, kind), self.done.affected)
        else:
            watch(self._tx, self._run.run, target.run, kind)
