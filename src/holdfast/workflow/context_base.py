"""The base of the context's parts: the machine, guarded against use outside the workflow's loop, and the logger."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from datetime import datetime
from typing import TYPE_CHECKING

from holdfast.workflow import guard
from holdfast.workflow.logger import Logger
from holdfast.workflow.loop import current_loop

if TYPE_CHECKING:
    from holdfast.workflow.machine import Machine


class ContextBase:
    _log: Logger | None = None

    def __init__(self, machine: Machine, now: Callable[[], datetime]) -> None:
        self._unguarded = machine
        self._now = now

    @property
    def log(self) -> Logger:
        """Durable log lines of the run. May be used in steps, too."""
        log = self._log
        if log is None:
            machine = self._unguarded
            log = self._log = Logger(machine.log, machine.loop, machine.limits, self._now)
        return log

    @property
    def _machine(self) -> Machine:
        """The machine. Raises outside its loop: so every method and property but ``log`` is guarded."""
        machine = self._unguarded
        if current_loop() is not machine.loop:
            raise guard.context_refusal(_used_member(self))
        return machine


def _used_member(context: ContextBase) -> str:
    """The name of the context's method or property that user code called."""
    frame, name = inspect.currentframe(), ""
    frame = None if frame is None else frame.f_back
    while frame is not None and frame.f_locals.get("self") is context:
        name, frame = frame.f_code.co_name, frame.f_back
    return name
