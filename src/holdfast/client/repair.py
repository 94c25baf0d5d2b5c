"""Repair of runs: retry, resolve, fork and delete.

A retry, a resolved step of an errored run, and a fork create a new run with a copy of the recorded history
(the ``repair.py`` of the authoring model chooses the facts), so the old run stays as it is. Children are repaired
first: the new run of the parent watches them, and a child that has ended by then sends its exit event at once. A crash
between the two requests therefore loses nothing; the retry of the parent can be repeated.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from holdfast.client.audit import audit
from holdfast.client.instances import Instances, require_found
from holdfast.client.repair_checks import check_open, replaced, resolved, wrong_state
from holdfast.client.replaying import Replayer
from holdfast.client.run_file import StoredRun
from holdfast.core import codec
from holdfast.core.actor import current_actor
from holdfast.core.checks import check_text
from holdfast.core.failure import Failure
from holdfast.core.model import Status, to_ms
from holdfast.core.names import check_instance_id
from holdfast.core.origin import Origin
from holdfast.errors import ErrorInfo, InstanceExistsError, InvalidOptionError, ResultInvalidError, StateError
from holdfast.kernel.definition import Registry
from holdfast.kernel.model import RecordedRun, UnitModel
from holdfast.kernel.notify import Hub
from holdfast.kernel.options import RunOptions
from holdfast.kernel.repair import Continuation, RepairRules, Resolution
from holdfast.kernel.requests import Requests
from holdfast.ports import Clock
from holdfast.store.protocol import (
    Audit,
    ContinueRun,
    ControlResult,
    DeleteInstance,
    Fact,
    FactsQuery,
    FactState,
    RecordAction,
    Reply,
    ReplyByHand,
    ResolveStep,
    ResolveUnit,
    RestartRun,
    RunByName,
    RunRecord,
    SnapshotQuery,
    Store,
)

_EVENT_ID = re.compile("[0-9]{1,18}:[0-9]{1,18}")


class _Unchanged:
    def __repr__(self) -> str:
        return "..."


UNCHANGED: Any = _Unchanged()
"""The value of an argument that was not given; None is a value."""


class Repair:
    """Requests that repair runs."""

    def __init__(
        self, store: Store, registry: Registry, hub: Hub, requests: Requests, clock: Clock, instances: Instances,
        replayer: Replayer,
    ) -> None:  # fmt: skip
        self._store = store
        self._registry = registry
        self._hub = hub
        self._requests = requests
        self._clock = clock
        self._instances = instances
        self._replayer = replayer

    # --- retry

    async def retry(self, workflow: str, id: str, reason: str | None = None) -> RunRecord:
        """Let an errored run continue from its history; returns the new run."""
        return await self._retry(await self._instances.find(workflow, id), reason)

    async def retry_run(self, found: RunRecord, reason: str | None = None) -> RunRecord:
        """As ``retry``. Raises ``StateError`` if another run has taken the place of the one that was found.

        ``found`` may come from a list, which leaves blobs out.
        """
        row = await self._instances.find(found.workflow, found.instance_id)
        if row.run != found.run:
            raise replaced(row, "retried")
        return await self._retry(row, reason)

    async def _retry(self, row: RunRecord, reason: str | None, resolution: Resolution | None = None) -> RunRecord:
        action = "retry" if resolution is None else "resolve"
        record = audit(action, reason)
        async with self._refusals(row, record):
            if row.status is not Status.ERRORED:
                raise wrong_state(row, "retried", "errored")
            continuation = self._rules(row).retry(await self._recorded(row), to_ms(self._clock.now()), resolution)
        if resolution is not None and resolution.ok:
            await self._check_fit(row, continuation.facts, [resolution.step])
        deleted = await self._repair_children(continuation.children, reason)
        continuation = continuation.without_children(deleted)
        key_number = row.key_number
        request = self._request(row, continuation, action, reason, key_number=key_number)
        result = await self._store.control(request, record)
        new = require_found(row.workflow, row.instance_id, result.run)
        if result.refused:
            raise wrong_state(new, "retried", "errored")
        self._hub.affected(result.affected)
        self._hub.work()
        return new

    async def _deleted(self, pids: Sequence[str]) -> list[str]:
        """Those of the instances that exist no more."""
        deleted = []
        for pid in pids:
            workflow, _, instance_id = pid.partition("/")
            if await self._instances.find_or_none(workflow, instance_id) is None:
                deleted.append(pid)
        return deleted

    async def retry_or_restart(self, row: RunRecord, reason: str | None = None) -> None:
        """Retry an errored run, or restart a terminated or cancelled one; no effect on other runs.

        If another request has retried or restarted the run meanwhile, the new run stays as it is.
        """
        if row.status is Status.ERRORED:
            try:
                await self._retry(row, reason)
            except StateError:
                current = await self._instances.find(row.workflow, row.instance_id)
                if current.run == row.run:
                    raise
        elif row.status in (Status.TERMINATED, Status.CANCELLED):
            await self.restart(row, reason, only=True)

    async def _repair_children(self, pids: Sequence[str], reason: str | None) -> list[str]:
        """Retry or restart children; returns the pids of those that were deleted."""
        deleted = []
        for pid in pids:
            workflow, _, instance_id = pid.partition("/")
            child = await self._instances.find_or_none(workflow, instance_id)
            if child is None:
                deleted.append(pid)
            else:
                await self.retry_or_restart(child, reason)
        return deleted

    async def restart(self, row: RunRecord, reason: str | None = None, *, only: bool = False) -> RunRecord:
        """Start an instance again from the beginning; returns the new run.

        ``only``: if ``row`` is no longer the current run, the current run stays as it is and is returned.
        """
        result = await self._restart(row, reason, run=row.run if only else None)
        return require_found(row.workflow, row.instance_id, result.run)

    async def restart_run(self, found: RunRecord, reason: str | None = None) -> None:
        """As ``restart``. Raises ``StateError`` if another run has taken the place of the one that was found.

        A run that had not ended may have been followed by another one of its line, which is restarted in its place.
        """
        row = await self._instances.find(found.workflow, found.instance_id)
        place = {"run": found.run} if found.status.terminal else {"line": found.run}
        result = await self._restart(row, reason, **place)
        if result.refused:
            raise replaced(require_found(row.workflow, row.instance_id, result.run), "restarted")

    async def _restart(
        self, row: RunRecord, reason: str | None, *, run: int | None = None, line: int | None = None
    ) -> ControlResult:
        now = to_ms(self._clock.now())
        options = self._fresh_options(row, now)
        expires_ms, expiry = options.expiry(now)
        model = self._registry.model(row.kind)
        units = () if model.units is None else await model.units.successor_units(self._store, row)
        request = RestartRun(row.workflow, row.instance_id, expires_ms, expiry, options.encode(), units, run, line)
        result = await self._store.control(request, audit("restart", reason))
        require_found(row.workflow, row.instance_id, result.run)
        self._hub.affected(result.affected)  # a refused request ended no run: the turn of the current run goes on
        return result

    # --- resolve

    async def resolve(
        self,
        workflow: str,
        id: str,
        step_key: str,
        *,
        result: Any = UNCHANGED,
        error: str | ErrorInfo | None = None,
        reason: str | None = None,
    ) -> None:
        check_text("step_key", step_key)
        row = await self._instances.find(workflow, id)
        ok, value = self._outcome(result, error)
        async with self._refusals(row, audit("resolve", reason)):
            if row.status.terminal and row.status is not Status.ERRORED:
                raise wrong_state(row, "resolved", "open or errored")
        resolution = Resolution(step_key, ok, value, to_ms(self._clock.now()))
        units = self._registry.model(row.kind).units
        if units is not None and ok:
            resolution = resolution._replace(value=self._checked(row, step_key, resolution.value))
        if row.status is Status.ERRORED:
            await self._retry(row, reason, resolution)
        elif units is not None:
            await self._resolve_unit(units, row, resolution, reason)
        else:
            await self._resolve_step(row, resolution, reason)

    async def _resolve_step(self, row: RunRecord, resolution: Resolution, reason: str | None) -> None:
        """Send the outcome to the owner of the run, which records it."""
        recorded = await self._recorded(row)
        async with self._refusals(row, audit("resolve", reason)):
            check_open(recorded, resolution.step)
        if resolution.ok:
            await self._check_fit(row, resolved(recorded, resolution), [resolution.step])
        content = {"step": resolution.step, "ok": resolution.ok, "value": codec.plain(resolution.value)}
        request = ResolveStep(row.workflow, row.instance_id, codec.encode(content, what="outcome"))
        answer = await self._store.control(request, audit("resolve", reason))
        if answer.refused:
            run = require_found(row.workflow, row.instance_id, answer.run)
            raise wrong_state(run, "resolved", "open or errored")
        self._hub.affected(answer.affected)

    async def _resolve_unit(self, units: UnitModel, row: RunRecord, resolution: Resolution, reason: str | None) -> None:
        """Write the outcome of a node. The run itself has no owner that could record it."""
        async with self._refusals(row, audit("resolve", reason)):
            advance = units.resolve(await self._recorded(row), resolution)
        request = ResolveUnit(row.workflow, row.instance_id, advance)
        answer = await self._store.control(request, audit("resolve", reason))
        require_found(row.workflow, row.instance_id, answer.run)
        if answer.refused:
            raise StateError(f"node {resolution.step!r} of {row.pid} has ended, so it cannot be resolved")
        self._hub.work()

    def _checked(self, row: RunRecord, node: str, value: bytes) -> bytes:
        """A result that fits the annotation of its node, if this process has the graph."""
        driver = self._registry.get(row.workflow).unit_driver if row.workflow in self._registry else None
        return value if driver is None else driver.check_result(node, value)

    async def _check_fit(self, row: RunRecord, facts: Sequence[Fact], keys: Collection[str]) -> None:
        """Raise ``ResultInvalidError`` if the result of one of these steps does not fit, in a run with this history.

        The run would be parked, and no further repair could replace the result. ``facts`` may lack the plan.
        """
        snapshot = await self._store.read(SnapshotQuery(row.run))
        plan = [fact for fact in snapshot.facts if fact.state == FactState.PLAN]
        history = replace(snapshot, facts=[*plan, *(fact for fact in facts if fact.state != FactState.PLAN)])
        run = replace(row, status=Status.ACTIVE, completed_at=None, error=None, output=None)
        unfit = self._replayer.unfit_value(StoredRun(run, history, []))
        if unfit is not None and any(repr(key) in unfit for key in keys):
            raise ResultInvalidError(f"{row.pid} would be parked with this result: {unfit}")

    def _outcome(self, result: Any, error: str | ErrorInfo | None) -> tuple[bool, bytes]:
        if (result is UNCHANGED) == (error is None):
            raise InvalidOptionError("resolve takes either result= or error=")
        if error is None:
            return True, self._requests.result(result)
        if isinstance(error, ErrorInfo):
            return False, Failure(error.name, error.message, kind="Resolved", retryable=False).encode()
        if not isinstance(error, str) or not error:
            raise InvalidOptionError("resolve(error=...) takes text or an ErrorInfo")
        return False, Failure("ResolvedError", error, kind="Resolved", retryable=False).encode()

    # --- reply

    async def reply(
        self,
        workflow: str,
        id: str,
        event_id: str,
        payload: Any = None,
        *,
        error: str | None = None,
        reason: str | None = None,
    ) -> None:
        """Reply to an ask in the mailbox of a run, in place of its code."""
        row = await self._instances.find(workflow, id)
        if not _EVENT_ID.fullmatch(check_text("event_id", event_id)):
            raise InvalidOptionError("an event is named by its id (event_id), such as '0:3' (RUN:NUMBER)")
        number, _, event = event_id.partition(":")
        reply = Reply(error is None, self._requests.payload(payload if error is None else error))
        request = ReplyByHand(row.workflow, row.instance_id, int(number), int(event), reply)
        answer = await self._store.control(request, audit("reply", reason))
        run = require_found(row.workflow, row.instance_id, answer.run)
        if answer.refused:
            raise StateError(
                f"no ask {event_id} of {run.pid} waits for a reply: the run has ended, the event is not an ask, "
                "or it has a reply already"
            )
        self._hub.affected(answer.affected)
        self._hub.replied()

    # --- fork

    async def fork(
        self,
        workflow: str,
        id: str,
        *,
        before: str,
        fork_id: str | None = None,
        outputs: Mapping[str, Any] | None = None,
        params: Any = UNCHANGED,
        reason: str | None = None,
    ) -> RunRecord:
        """Start a new instance with the recorded history before a step; returns its run."""
        record = audit("fork", reason)
        check_text("before", before)
        if outputs is not None and not (isinstance(outputs, Mapping) and all(isinstance(key, str) for key in outputs)):
            raise InvalidOptionError("outputs must be a mapping of step keys to results")
        row = await self._instances.find(workflow, id)
        new_id = self._requests.new_id() if fork_id is None else check_instance_id(fork_id, self._requests.limits)
        encoded = {key: self._requests.result(value) for key, value in (outputs or {}).items()}
        has_units = self._registry.model(row.kind).units is not None
        if has_units:
            encoded = {node: self._checked(row, node, value) for node, value in encoded.items()}
        async with self._refusals(row, record):
            continuation = self._rules(row).fork(await self._recorded(row), before, encoded)
        continuation = continuation.without_children(await self._deleted([pid for pid, _ in continuation.watches]))
        if encoded and not has_units:
            await self._check_fit(row, continuation.facts, encoded)
        request = self._request(row, continuation, "fork", reason, fork_id=new_id, params=params)
        result = await self._store.control(request, record)
        new = require_found(workflow, id, result.run)
        if result.refused:
            raise InstanceExistsError(f"instance {new_id!r} of {workflow!r} exists already ({new.status.value})")
        self._hub.affected(result.affected)
        self._hub.work()
        return new

    async def fork_as(
        self, row: RunRecord, suffix: str, before: str, outputs: Mapping[str, Any], reason: str | None
    ) -> RunRecord:
        """Fork an instance; the id of the fork is that of the instance and ``suffix``.

        Raises ``StateError`` if the instance is itself such a fork: the bulk action that made it may be repeated.
        """
        origin_id = row.instance_id.removesuffix(suffix)
        if origin_id != row.instance_id:
            first = await self._store.read(RunByName(row.workflow, row.instance_id, 0))
            origins = [Origin.decode(run.origin) for run in [*first, row] if run.origin is not None]
            if any((origin.action, origin.pid) == ("fork", f"{row.workflow}/{origin_id}") for origin in origins):
                raise StateError(f"{row.pid} is itself the fork of {row.workflow}/{origin_id}; give another suffix")
        return await self.fork(
            row.workflow, row.instance_id, before=before, fork_id=f"{row.instance_id}{suffix}", outputs=outputs,
            reason=reason,
        )  # fmt: skip

    # --- delete

    async def delete(self, workflow: str, id: str, reason: str | None = None, *, run: int | None = None) -> None:
        """Delete an ended instance. ``run``: only if this is its current run."""
        result = await self._store.control(DeleteInstance(workflow, id, run), audit("delete", reason))
        row = require_found(workflow, id, result.run)
        if result.refused:
            raise replaced(row, "deleted") if run not in (None, row.run) else wrong_state(row, "deleted", "ended")

    # --- parts of requests

    @asynccontextmanager
    async def _refusals(self, row: RunRecord, record: Audit) -> AsyncIterator[None]:
        """Record a request that this process refuses, as the store records those that it refuses."""
        try:
            yield
        except StateError:
            await self._store.control(RecordAction(row.workflow, row.instance_id, refused=True), record)
            raise

    def _rules(self, row: RunRecord) -> RepairRules:
        rules = self._registry.model(row.kind).repair
        if rules is None:
            raise StateError(f"{row.pid} is a {row.kind}: this process has no rules for the repair of such runs")
        return rules

    async def _recorded(self, row: RunRecord) -> RecordedRun:
        facts: list[Fact] = await self._store.read(FactsQuery(row.run))
        return RecordedRun(row, facts)

    def _request(
        self,
        row: RunRecord,
        continuation: Continuation,
        action: str,
        reason: str | None,
        *,
        fork_id: str | None = None,
        params: Any = UNCHANGED,
        key_number: int | None = None,
    ) -> ContinueRun:
        now = to_ms(self._clock.now())
        options = self._fresh_options(row, now)
        expires_ms, expiry = options.expiry(now)
        actor = current_actor.get()
        origin = Origin(action, row.pid, row.number, now, actor, reason, row.replayed_number, key_number)
        encoded = row.params if params is UNCHANGED else self._requests.params(row.workflow, params)
        return ContinueRun(
            row.workflow,
            row.instance_id,
            row.run,
            facts=continuation.facts,
            events=continuation.events,
            origin=origin.encode(),
            params=encoded,
            fork_id=fork_id,
            expires_ms=expires_ms,
            expiry=expiry,
            options=options.encode(),
            units=continuation.units,
            open_nodes=continuation.open_nodes,
            watches=continuation.watches,
        )

    def _fresh_options(self, row: RunRecord, now: int) -> RunOptions:
        """The options of a run that begins now: the timeout of the instance counts from now on."""
        options = RunOptions.decode(row.options)
        return options if options.execution_ms is None else options.ending(now + options.execution_ms)
