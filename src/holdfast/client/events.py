"""Events sent from outside a run, and the replies to them."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

from holdfast.client.audit import audit
from holdfast.client.instances import Instances, refuse_terminal, require_found
from holdfast.client.local_worker import LocalWork
from holdfast.client.records import seconds_of
from holdfast.core import codec
from holdfast.core.actor import current_actor
from holdfast.core.durations import Duration
from holdfast.core.records import InstanceStatus
from holdfast.core.show import shown
from holdfast.errors import InstanceTerminalError, Rejected
from holdfast.kernel.notify import Hub
from holdfast.kernel.requests import Requests
from holdfast.kernel.telemetry import Telemetry, observe
from holdfast.store.protocol import Audit, NewEvent, Reply, ReplyQuery, RunRecord, SendEvent, Sent, Signal, Store


class EventSender:
    """Sends events to runs, and waits for replies."""

    def __init__(
        self,
        store: Store,
        hub: Hub,
        requests: Requests,
        instances: Instances,
        local: LocalWork,
        telemetry: Telemetry | None,
    ) -> None:
        self._store = store
        self._hub = hub
        self._requests = requests
        self._instances = instances
        self._local = local
        self._telemetry = telemetry

    async def send(
        self,
        workflow: str,
        id: str,
        type: str,
        payload: Any = None,
        *,
        event_id: str | None = None,
        connection: Any = None,
        reason: str | None = None,
    ) -> InstanceStatus:
        """Send an event. It has an audit record if an actor sends it, or if there is a ``reason``, even an empty one.

        An event that the caller's own transaction writes has none.
        """
        new = self._requests.new_event(workflow, id, type, payload, id=event_id)
        audited = connection is None and (reason is not None or current_actor.get() is not None)
        record = audit("send_event", reason or f"event {type}") if audited else None
        return self._instances.status(await self._send(new, connection, record))

    async def _send(self, event: NewEvent, connection: Any = None, record: Audit | None = None) -> RunRecord:
        """Send an event; returns the run that it was sent to."""
        write = self._write(event, connection, record)
        sent = await (write if self._telemetry is None else observe(self._telemetry.send_began(event), write))
        row = require_found(event.workflow, event.instance_id, sent.run)
        if not sent.accepted:
            refuse_terminal(row, "sent an event")
        if sent.woken and sent.claim is None and sent.committed is None:
            self._hub.work()
            self._hub.signal(row.run, Signal.EVENTS)
        return row

    async def _write(self, event: NewEvent, connection: Any, record: Audit | None) -> Sent:
        """Write an event. A run that it wakes begins its turn in this process's worker, if a slot is free.

        An event with an audit record is written with the record, and does not begin the turn.
        """
        if record is not None:
            result = await self._store.control(SendEvent(event), record)
            return Sent(None, accepted=False) if result.sent is None else replace(result.sent, run=result.run)
        worker = self._local.worker
        if worker is None or connection is not None:
            [sent] = await self._store.send([event], connection=connection)
            return sent
        with self._local.call():
            return await worker.send(event)

    async def ask(self, workflow: str, id: str, topic: str, payload: Any, timeout: Duration | None) -> Any:
        """Send a message and wait for the reply of the run's code."""
        seconds = seconds_of(timeout)
        key = self._requests.new_id()
        new = replace(self._requests.new_event(workflow, id, topic, payload, id=key), ask=key)
        row = await self._send(new)
        async with asyncio.timeout(seconds):
            reply = await self._wait_for_reply(row, key)
        value = codec.plain(reply.value)
        if not reply.ok:
            raise Rejected(f"{workflow}/{id} rejected {topic!r}: {shown(value)}", value)
        return value

    async def _wait_for_reply(self, row: RunRecord, key: str) -> Reply:
        """Wait for the reply of the run, or of a successor to which its events were moved."""
        version: int | None = None
        while True:
            replied = self._hub.wait_for_reply()
            try:
                current = await self._instances.find(row.workflow, row.instance_id)
                reply = await self._store.read(ReplyQuery(row.run, key))
                if reply is not None:
                    return reply
                if current.status.terminal:
                    raise InstanceTerminalError(
                        f"run {row.workflow}/{row.instance_id} ended ({current.status.value}) without a reply"
                    )
                version = await self._next_change(version, replied)
            finally:
                replied.cancel()

    async def _next_change(self, version: int | None, replied: asyncio.Future[None]) -> int | None:
        """Wait until a run of this process has replied or another process has written."""
        changed: asyncio.Future[int] = asyncio.ensure_future(self._store.wait_for_change(version))
        either: list[asyncio.Future[Any]] = [changed, replied]
        try:
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            return changed.result() if changed.done() else version
        finally:
            changed.cancel()
