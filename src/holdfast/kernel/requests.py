"""Requests to the store, checked and encoded: the one place where a start or an event gets its form."""

from __future__ import annotations

import hashlib
from typing import Any

from holdfast.core import codec, names
from holdfast.core.durations import Duration, to_ms
from holdfast.core.limits import Limits
from holdfast.errors import InvalidOptionError, WorkflowNotFoundError
from holdfast.kernel.definition import Definition, Registry
from holdfast.ports import Runtime
from holdfast.store.protocol import NewEvent, NewRun

ON_CONFLICT = ("use_existing", "fail")
ON_REUSE = ("use_existing", "reject")


class Requests:
    """Makes requests of what users pass."""

    def __init__(self, registry: Registry, limits: Limits, runtime: Runtime) -> None:
        self._registry = registry
        self._limits = limits
        self._runtime = runtime
        self._root = runtime.random.bytes(16)

    def definition(self, workflow: Any) -> Definition:
        """The definition meant by a workflow object or a name."""
        name = workflow if isinstance(workflow, str) else getattr(workflow, "name", None)
        if not isinstance(name, str):
            raise WorkflowNotFoundError(
                f"{workflow!r} is no workflow; pass a function decorated with @app.workflow, or its name"
            )
        return self._registry.get(name)

    def new_run(
        self,
        workflow: Any,
        params: Any = None,
        *,
        id: str | None = None,
        queue: str = "default",
        priority: int = 0,
        start_delay: Duration | None = None,
    ) -> NewRun:
        definition = self.definition(workflow)
        instance_id = self.new_id() if id is None else names.check_instance_id(id, self._limits)
        if not isinstance(priority, int) or isinstance(priority, bool) or abs(priority) > 2**31:
            raise InvalidOptionError(f"priority must be an int (lower runs first), not {priority!r}")
        if not isinstance(queue, str) or not queue:
            raise InvalidOptionError(f"queue must be a name, not {queue!r}")
        return NewRun(
            workflow=definition.name,
            instance_id=instance_id,
            params=definition.encode_params(params, self._limits),
            kind=definition.kind,
            queue=queue,
            priority=priority,
            delay_ms=0 if start_delay is None else to_ms(start_delay, "start_delay"),
            seed=self._seed(definition.name, instance_id),
        )

    def new_event(
        self, workflow: str, instance_id: str, type: str, payload: Any = None, *, id: str | None = None
    ) -> NewEvent:
        names.check_event_type(type, self._limits)
        if id is not None and (not isinstance(id, str) or not 0 < len(id) <= 200):
            raise InvalidOptionError(f"the id of an event must be 1 to 200 characters of text, not {id!r}")
        data = None
        if payload is not None:
            data = codec.encode(payload, what="payload", limit=self._limits.event_payload)
        return NewEvent(workflow, names.check_instance_id(instance_id, self._limits), type, data, dedup=id)

    def new_id(self) -> str:
        return self._runtime.random.uuid4().hex

    def _seed(self, workflow: str, instance_id: str) -> int:
        """Unguessable from outside; with seeded randomness the same for the same id, whatever the order of starts."""
        digest = hashlib.sha256(self._root + f"{workflow}/{instance_id}".encode()).digest()
        return int.from_bytes(digest[:8], "big", signed=True)
