"""The event loop of one schedule: when no process can run, the next action of the schedule is executed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random

from holdfast.testing.simulation.loop import Livelock, SimulatedLoop


class ExploredLoop(SimulatedLoop):
    """Processes run in a fixed order until all of them wait; then ``decide`` is called."""

    def __init__(self, max_callbacks: int) -> None:
        super().__init__(Random(0), max_callbacks)
        self.decide: Callable[[], None] = self.move_time

    @property
    def next_timer(self) -> float | None:
        """The time of the next timer."""
        return min((when for when, _, timer in self._timers if not timer._cancelled), default=None)

    def move_time(self) -> None:
        """Move time to the next timer."""
        self._move_time()

    def _run_once(self) -> None:
        while not self._stopping:  # type: ignore[attr-defined]
            process = next((one for one in self._processes if one.ready and not one.stopped), None)
            if process is None:
                self.decide()
                continue
            self.running = process
            self._run_handle(process.ready.popleft())

    def _run_handle(self, handle: asyncio.Handle) -> None:
        if handle._cancelled:
            return
        self.callbacks += 1
        if self.callbacks > self._max_callbacks:
            raise Livelock(f"more than {self._max_callbacks:,} callbacks, after {self._time:.3f} s")
        try:
            handle._context.run(handle._callback, *handle._args)  # type: ignore[attr-defined]
        except (KeyboardInterrupt, SystemExit, Livelock):
            raise
        except BaseException as error:
            self.call_exception_handler({"message": f"error in {handle!r}", "exception": error})
