"""The ends of other runs, and the children of a run with their ends."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from holdfast.core.envelope import check_decoded
from holdfast.core.failure import Failure
from holdfast.core.model import Status
from holdfast.errors import ChildError
from holdfast.store.protocol import StoredEvent
from holdfast.workflow.waiters import Waiters


@dataclass(frozen=True, slots=True)
class End:
    """The end of a run. ``output`` is plain JSON."""

    output: Any
    error: ChildError | None

    @classmethod
    def of(cls, pid: str, content: Mapping[str, Any]) -> End:
        """The end that the payload of an exit event describes. Raises ``PayloadError`` if the output is encoded."""
        check_decoded(content["output"])
        return cls(content["output"], _error(pid, content))


def _error(pid: str, content: Mapping[str, Any]) -> ChildError | None:
    status, note = content["status"], content.get("note")
    if status == Status.COMPLETE:
        return None
    if content["error"] is not None:
        return Failure.from_content(content["error"]).as_child_error(pid, status)
    reason = note or "no reason given"
    terminated = Failure("Terminated", f"the run was terminated ({reason})", kind="Terminated", retryable=False)
    return terminated.as_child_error(pid, status)


class ChildEnds:
    """The children that a run has started, and the ends of those that have ended."""

    def __init__(self, waiters: Waiters) -> None:
        self._waiters = waiters
        self._keys: dict[str, str] = {}
        """The key of the operation that started each child, by pid; empty if that key has its result already."""
        self._ends: dict[str, End] = {}
        self._unrequested: dict[str, str] = {}
        """The key of a recorded start that the code has not requested yet, by the pid of the child."""
        self._early: dict[str, End] = {}
        """Ends that were delivered before the code requested the start of the child, by the key of the start."""

    def __contains__(self, pid: str) -> bool:
        """True if the run is a child that has ended."""
        return pid in self._ends

    def expects(self, pid: str) -> bool:
        """True if the run is a child whose end will be delivered under the key of an earlier start."""
        return pid in self._keys and pid not in self._ends

    def start_recorded(self, pid: str, key: str) -> None:
        """Note a recorded start that the code has not requested yet: the child's end may be delivered first."""
        self._unrequested[pid] = key

    def started(self, pid: str, key: str, *, opens: bool) -> End | None:
        """Note that a child was started under a key. ``opens``: the child's end will be delivered under this key.

        Returns the child's end if it was delivered already.
        """
        if opens or pid in self._ends:
            self._keys[pid] = key if opens else ""  # empty: the child ended meanwhile, under its first key
        self._ends.pop(pid, None)
        if self._unrequested.get(pid) == key:
            del self._unrequested[pid]
        end = self._early.pop(key, None)
        if end is not None:
            self._ends[pid] = end
        return end

    def record(self, pid: str, end: End) -> bool:
        """Record the end of a run, if the run is a child, and resume the code that waits for it.

        False if the code has not requested the start of the child yet: the end is kept until then.
        """
        if (key := self._unrequested.pop(pid, None)) is not None:
            self._early[key] = end
            return False
        if pid in self._keys:
            self._ends[pid] = end
            self._waiters.resolve(pid, end)
        return True

    def is_child(self, pid: str) -> bool:
        return pid in self._keys

    def get(self, pid: str) -> End | None:
        return self._ends.get(pid)

    async def wait(self, pid: str) -> End:
        """Wait for the end of a child."""
        end = self._ends.get(pid)
        if end is None:
            end = await self._waiters.wait(pid)
        return end

    def key_of(self, stored: StoredEvent) -> str | None:
        """The key of the operation that started the child that sent this exit event; None if none waits for it."""
        pid = stored.sender or ""
        return self._unrequested.get(pid) or (None if pid in self._ends else self._keys.get(pid) or None)

    def start_key(self, pid: str) -> str | None:
        """The key of the operation that started a child; None if the run is no child, or the key has its result."""
        return self._keys.get(pid) or None

    def running(self) -> Iterator[str]:
        """Pids of the children that have not ended."""
        return (pid for pid in self._keys if pid not in self._ends)

    def clear(self) -> None:
        self._ends.clear()  # tracebacks of their errors refer to the code's frames
        self._early.clear()
