"""Versions of changes to workflow code, as ``ctx.version`` chooses and records them."""

from __future__ import annotations

from holdfast.core.checks import is_whole_number
from holdfast.core.limits import Limits
from holdfast.core.model import StepType
from holdfast.errors import InvalidOptionError, VersionUnsupportedError
from holdfast.store.protocol import Fact, FactState
from holdfast.workflow.keys import ANONYMOUS
from holdfast.workflow.pending import DecisionBuffer
from holdfast.workflow.position import Position
from holdfast.workflow.recorded_history import RecordedHistory


class Versions:
    """The versions of changes for one run."""

    __slots__ = ("_buffer", "_history", "_longest", "_position")

    def __init__(self, history: RecordedHistory, buffer: DecisionBuffer, position: Position, limits: Limits) -> None:
        self._history = history
        self._buffer = buffer
        self._position = position
        self._longest = limits.step_name - 10

    def choose(self, change_id: str, least: int, most: int) -> int:
        """The version of a change for this run: the newest, unless the run passed this call before it was added."""
        self._check(change_id, least, most)
        key = f"{ANONYMOUS}version {change_id}"
        chosen = self._history.versions.get(key)
        if chosen is None:
            chosen = self._history.versions[key] = least if self._position.replaying else most
            now = self._position.now_ms
            fact = Fact(
                FactState.RESULT, key, 0, StepType.VERSION, now, now, value=str(chosen).encode(), name=change_id
            )
            self._buffer.add_fact(fact)  # observed, so that a pause, which drops the following part, keeps it
        if not least <= chosen <= most:
            raise VersionUnsupportedError(
                f"this run uses version {chosen} of {change_id!r}, and the code supports {least} to {most}; "
                "run it with code that still has that version"
            )
        return chosen

    def _check(self, change_id: str, least: int, most: int) -> None:
        if not isinstance(change_id, str) or not 0 < len(change_id) <= self._longest:
            raise InvalidOptionError(f"a change id must be text of 1 to {self._longest} characters, not {change_id!r}")
        for bound in (least, most):
            if not is_whole_number(bound, -(2**31), 2**31):
                raise InvalidOptionError(f"the versions of {change_id!r} are whole numbers, not {bound!r}")
        if least > most:
            raise InvalidOptionError(f"version {change_id!r}: min_supported {least} is above max_supported {most}")
