"""Control requests on a run: pause, resume, terminate, cancel, restart, move; kill, for runs that consist of units."""

from __future__ import annotations

from holdfast.client.audit import audit
from holdfast.client.instances import Instances, refuse_terminal, require_found
from holdfast.client.repair import Repair
from holdfast.client.units import UnitReader
from holdfast.core.checks import check_optional_text
from holdfast.core.durations import Duration
from holdfast.core.names import check_version
from holdfast.kernel.definition import Registry
from holdfast.kernel.notify import Hub
from holdfast.kernel.requests import Requests
from holdfast.ports import Clock
from holdfast.store.protocol import (
    Audit,
    CancelRun,
    MoveRun,
    PauseRun,
    RecordAction,
    ResumeRun,
    Signal,
    Store,
    TerminateRun,
)


class Control:
    """Writes control requests, and notifies the turns of this process."""

    def __init__(
        self, store: Store, registry: Registry, hub: Hub, requests: Requests, clock: Clock, instances: Instances,
        units: UnitReader, repair: Repair,
    ) -> None:  # fmt: skip
        self._store = store
        self._registry = registry
        self._hub = hub
        self._requests = requests
        self._clock = clock
        self._instances = instances
        self._units = units
        self._repair = repair

    async def note(self, workflow: str, id: str, action: str, reason: str | None) -> None:
        """Audit a start by a person."""
        await self._store.control(RecordAction(workflow, id), audit(action, reason))

    async def pause(self, workflow: str, id: str, reason: str | None = None) -> None:
        check_optional_text("reason", reason)
        result = await self._store.control(PauseRun(workflow, id), audit("pause", reason))
        row = require_found(workflow, id, result.run)
        refuse_terminal(row, "paused")
        self._hub.signal(row.run, Signal.PAUSE)

    async def resume(self, workflow: str, id: str, reason: str | None = None) -> None:
        check_optional_text("reason", reason)
        result = await self._store.control(ResumeRun(workflow, id), audit("resume", reason))
        require_found(workflow, id, result.run)
        self._hub.work()

    async def terminate(self, workflow: str, id: str, reason: str | None = None) -> None:
        check_optional_text("reason", reason)
        await self._end(TerminateRun(workflow, id, reason), "terminated", audit("terminate", reason))

    async def kill(self, workflow: str, id: str, reason: str | None = None) -> None:
        check_optional_text("reason", reason)
        await self._units.find(workflow, id)
        await self._end(TerminateRun(workflow, id, reason), "killed", audit("kill", reason))

    async def cancel(self, workflow: str, id: str, reason: str | None = None, deadline: Duration | None = None) -> None:
        payload, deadline_ms = self._requests.cancellation(reason, deadline)
        await self._end(CancelRun(workflow, id, payload, deadline_ms), "cancelled", audit("cancel", reason))

    async def _end(self, request: TerminateRun | CancelRun, what: str, record: Audit) -> None:
        result = await self._store.control(request, record)
        refuse_terminal(require_found(request.workflow, request.instance_id, result.run), what)
        self._hub.affected(result.affected)

    async def move(self, workflow: str, id: str, version: str, reason: str | None = None) -> None:
        check_version("version", version)
        check_optional_text("reason", reason)
        request = MoveRun(workflow, id, version, pinned=workflow in self._registry.pinned())
        result = await self._store.control(request, audit("move", reason))
        refuse_terminal(require_found(workflow, id, result.run), "moved")
        self._hub.affected(result.affected)

    async def restart(self, workflow: str, id: str, reason: str | None = None) -> None:
        check_optional_text("reason", reason)
        await self._repair.restart(await self._instances.find(workflow, id), reason)
