"""The code of one run while it is in memory: its loop, its main task, and how it ended."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from holdfast.errors import DamagedRunError, NonDeterministicError, WorkflowStuckError
from holdfast.store.protocol import Finish
from holdfast.workflow.ending import Ending
from holdfast.workflow.loop import NO_HOST, WorkflowLoop


class Execution:
    """Runs the code of one run, and records why the code does not run any more."""

    __slots__ = (
        "_fatal",
        "cancel_reason",
        "divergence",
        "divergence_code",
        "ended",
        "halted",
        "loop",
        "main",
        "value_unfit",
    )

    def __init__(self, loop: WorkflowLoop) -> None:
        self.loop = loop
        self.ended = False
        """True if the code has ended, or the machine is closed."""
        self.halted = False
        """True if no more code runs, although the run has not ended."""
        self.divergence: str | None = None
        """The difference between history and code; None: they fit."""
        self.divergence_code = NonDeterministicError.code
        """The first word of the note with which the run is parked."""
        self.value_unfit = False
        """True if they differ in a recorded value that does not fit its annotation any more."""
        self.cancel_reason: str | None = None
        """The reason of the cancel request, after one was received; empty if it gave none."""
        self.main: asyncio.Task[Any] | None = None
        self._fatal: BaseException | None = None

    @property
    def started(self) -> bool:
        return self.main is not None

    @property
    def failed(self) -> bool:
        """True if the run ends with an error that its code did not raise."""
        return self._fatal is not None

    @property
    def damage(self) -> DamagedRunError | None:
        """The error that ended the code, if the code ended because stored data of the run cannot be read."""
        main = self.main
        if main is None or not main.done() or main.cancelled():
            return None
        return _damage_in(main.exception())

    def start(self, code: Coroutine[Any, Any, Any]) -> None:
        self.main = self.loop.create_task(code, name="main")
        self.run()

    def run(self) -> None:
        """Run the code until all its tasks wait."""
        try:
            self.loop.run_until_idle()
        except (SystemExit, KeyboardInterrupt, WorkflowStuckError) as error:
            # asyncio tasks re-raise the first two, to stop the program. Here they are failures of the run.
            self._fatal = error
        self.ended = self.ended or self._fatal is not None or (self.main is not None and self.main.done())

    def fail(self, error: Exception) -> None:
        """End the run with this error."""
        self._fatal = self._fatal or error

    def cancel(self, reason: str | None) -> None:
        """Cancel the main task, as a cancel request demands."""
        self.cancel_reason = reason or ""
        if self.main is not None:
            self.main.cancel()

    def cancel_before_start(self, reason: str | None) -> None:
        self.cancel_reason = reason or ""
        self.ended = True

    @property
    def error(self) -> BaseException | None:
        """The error that ended the code, if one did."""
        if self._fatal is not None or self.main is None or not self.main.done():
            return self._fatal
        return None if self.main.cancelled() else self.main.exception()

    def note_divergence(self, message: str, *, value: bool = False) -> None:
        """Record that history and code do not match; the machine then parks the run.

        ``value``: a recorded value does not fit its annotation.
        """
        if self.divergence is None:
            self.divergence, self.value_unfit = message, value

    def note_damage(self, what: str, error: DamagedRunError) -> None:
        """Record that a stored value cannot be read; the machine then parks the run. ``what`` names the value."""
        if self.divergence is None:
            self.divergence, self.divergence_code = f"{what} cannot be read: {error}", error.code

    def diverge_by_damage(self, what: str, error: DamagedRunError) -> asyncio.Future[Any]:
        """Note, from workflow code, that a value cannot be read. The returned future never completes."""
        self.note_damage(what, error)
        return self.loop.create_future()

    def diverge_by_value(self, message: str) -> asyncio.Future[Any]:
        """Note, from workflow code, that a recorded value does not fit. The returned future never completes."""
        self.note_divergence(message, value=True)
        return self.loop.create_future()

    def finish(self, ending: Ending) -> Finish:
        return ending.finish(self.main, self._fatal)

    def close(self) -> None:
        """Close the coroutines of the code, and break the reference cycles between code, loop and machine."""
        self.ended = True
        self.loop.close_coroutines()
        self.main = None
        self.loop.host = NO_HOST


def _damage_in(error: BaseException | None) -> DamagedRunError | None:
    """The first damage in an error; a task group raises the errors of its tasks in an exception group."""
    if isinstance(error, BaseExceptionGroup):
        return next(filter(None, map(_damage_in, error.exceptions)), None)
    return error if isinstance(error, DamagedRunError) else None
