"""Control requests on a run: pause, resume, terminate, cancel, restart, move; kill, for runs that consist of units."""

from __future__ import annotations

from holdfast.client.instances import Instances, refuse_terminal, require_found
from holdfast.client.units import UnitReader
from holdfast.core.checks import check_optional_text
from holdfast.core.durations import Duration
from holdfast.core.model import to_ms
from holdfast.core.names import check_version
from holdfast.kernel.definition import Registry
from holdfast.kernel.notify import Hub
from holdfast.kernel.options import RunOptions
from holdfast.kernel.requests import Requests
from holdfast.ports import Clock
from holdfast.store.protocol import (
    CancelRun,
    MoveRun,
    PauseRun,
    RestartRun,
    ResumeRun,
    Signal,
    Store,
    TerminateRun,
)


class Control:
    """Writes control requests, and notifies the turns of this process."""

    def __init__(
        self, store: Store, registry: Registry, hub: Hub, requests: Requests, clock: Clock, instances: Instances,
        units: UnitReader,
    ) -> None:  # fmt: skip
        self._store = store
        self._registry = registry
        self._hub = hub
        self._requests = requests
        self._clock = clock
        self._instances = instances
        self._units = units

    async def pause(self, workflow: str, id: str) -> None:
        row = require_found(workflow, id, (await self._store.control(PauseRun(workflow, id))).run)
        refuse_terminal(row, "paused")
        self._hub.signal(row.run, Signal.PAUSE)

    async def resume(self, workflow: str, id: str) -> None:
        require_found(workflow, id, (await self._store.control(ResumeRun(workflow, id))).run)
        self._hub.work()

    async def terminate(self, workflow: str, id: str, reason: str | None = None) -> None:
        check_optional_text("reason", reason)
        await self._end(TerminateRun(workflow, id, reason), "terminated")

    async def kill(self, workflow: str, id: str, reason: str | None = None) -> None:
        check_optional_text("reason", reason)
        await self._units.find(workflow, id)
        await self._end(TerminateRun(workflow, id, reason), "killed")

    async def cancel(self, workflow: str, id: str, reason: str | None = None, deadline: Duration | None = None) -> None:
        payload, deadline_ms = self._requests.cancellation(reason, deadline)
        await self._end(CancelRun(workflow, id, payload, deadline_ms), "cancelled")

    async def _end(self, request: TerminateRun | CancelRun, what: str) -> None:
        result = await self._store.control(request)
        refuse_terminal(require_found(request.workflow, request.instance_id, result.run), what)
        self._hub.affected(result.affected)

    async def move(self, workflow: str, id: str, version: str) -> None:
        check_version("version", version)
        request = MoveRun(workflow, id, version, pinned=workflow in self._registry.pinned())
        result = await self._store.control(request)
        refuse_terminal(require_found(workflow, id, result.run), "moved")
        self._hub.affected(result.affected)

    async def restart(self, workflow: str, id: str) -> None:
        before = await self._instances.find(workflow, id)
        options = RunOptions.decode(before.options)
        if options.execution_ms is not None:
            options = options.ending(to_ms(self._clock.now()) + options.execution_ms)
        expires_ms, expiry = options.expiry(to_ms(self._clock.now()))
        model = self._registry.model(before.kind)
        units = () if model.units is None else await model.units.successor_units(self._store, before)
        result = await self._store.control(RestartRun(workflow, id, expires_ms, expiry, options.encode(), units))
        require_found(workflow, id, result.run)
        self._hub.affected(result.affected)
        self._hub.signal(before.run, None)
        self._hub.ended(before.run, None)
        self._hub.work()
