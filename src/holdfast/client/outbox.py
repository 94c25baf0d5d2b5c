"""The outbound events of a run, and their repeated delivery."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.client.audit import audit
from holdfast.client.instances import Instances, require_found
from holdfast.client.records import outbox_record
from holdfast.core.outbound import OutboxRecord
from holdfast.kernel.notify import Hub
from holdfast.store.protocol import OutboxQuery, RedeliverOutbox, Store


class Outbox:
    def __init__(self, store: Store, hub: Hub, instances: Instances) -> None:
        self._store = store
        self._hub = hub
        self._instances = instances

    async def records(self, workflow: str, id: str, run_number: int | None = None) -> Sequence[OutboxRecord]:
        row = await self._instances.find(workflow, id, run_number)
        return [outbox_record(one) for one in await self._store.read(OutboxQuery(row.run))]

    async def redeliver(self, workflow: str, id: str, run_number: int | None = None, reason: str | None = None) -> int:
        """Deliver parked events again; returns their number."""
        if run_number is not None:
            await self._instances.find(workflow, id, run_number)
        result = await self._store.control(RedeliverOutbox(workflow, id, run_number), audit("redeliver", reason))
        require_found(workflow, id, result.run)
        self._hub.outbox_written()
        return result.redelivered
