"""``RepairHandle``: the part of a handle that repairs a run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from holdfast.client.handle_client import HandleClient
from holdfast.client.repair import UNCHANGED
from holdfast.errors import ErrorInfo

if TYPE_CHECKING:
    from holdfast.client.handle import Handle
    from holdfast.kernel.end_waiter import ExpectedEnd

R = TypeVar("R", covariant=True)


class RepairHandle(HandleClient, Generic[R]):
    """Retry, resolve, fork and delete an instance. Each request has an audit record."""

    _expected: ExpectedEnd | None
    id: str
    workflow: str

    async def retry(self, *, reason: str | None = None) -> None:
        """Let an errored run continue from its history: failed steps are called again, with fresh attempts.

        The instance gets a run with the next number and a copy of the history; recorded results stay, and the errored
        run stays readable. Raises ``StateError`` if the run is not errored.
        """
        await self._client.repair.retry(self.workflow, self.id, reason)
        self._expected = None

    async def resolve(
        self, step_key: str, *, result: Any = UNCHANGED, error: str | ErrorInfo | None = None, reason: str | None = None
    ) -> None:
        """Record the outcome of a step that is retrying or failed: a result, or an error that the code receives.

        An errored run continues, as with ``retry``. Raises ``StateError`` if the step is neither retrying nor the
        reason why the run failed.
        """
        await self._client.repair.resolve(self.workflow, self.id, step_key, result=result, error=error, reason=reason)
        self._expected = None

    async def reply(
        self, event_id: str, payload: Any = None, *, error: str | None = None, reason: str | None = None
    ) -> None:
        """Reply to an ask that waits in the mailbox, in place of the run's code; ``error`` rejects it.

        ``event_id``: the ``id`` of the event in ``history().events``. A later reply of the code has no effect. Raises
        ``StateError`` if the run has ended, or if the event is not an ask or has a reply already.
        """
        await self._client.repair.reply(self.workflow, self.id, event_id, payload, error=error, reason=reason)

    async def fork(
        self,
        *,
        before: str,
        id: str | None = None,
        outputs: Mapping[str, Any] | None = None,
        params: Any = UNCHANGED,
        reason: str | None = None,
    ) -> Handle[R]:
        """Start a new instance with the recorded history before step ``before``.

        ``outputs`` replaces results of earlier steps, ``params`` the input. This instance is not changed.
        """
        row = await self._client.repair.fork(
            self.workflow, self.id, before=before, fork_id=id, outputs=outputs or {}, params=params, reason=reason
        )
        return await self._client.get(row.workflow, row.instance_id)

    async def delete(self, *, reason: str | None = None) -> None:
        """Delete an ended instance with all its runs, facts, events and logs; its audit records stay."""
        await self._client.repair.delete(self.workflow, self.id, reason)
