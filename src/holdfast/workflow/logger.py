"""``ctx.log``: durable log lines."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import TYPE_CHECKING

from holdfast.core.limits import Limits
from holdfast.core.model import Level
from holdfast.kernel.logger import StepLogger
from holdfast.workflow.loop import WorkflowLoop, running_loop

if TYPE_CHECKING:
    from holdfast.workflow.run_log import RunLog


class Logger(StepLogger):
    """Durable log lines, from workflow code and from steps (then with the step's key and attempt)."""

    def __init__(self, log: RunLog, loop: WorkflowLoop, limits: Limits, now: Callable[[], datetime]) -> None:
        super().__init__(limits, now)
        self._log = log
        self._loop = loop

    def _put(self, level: Level, category: str, text: str, data: bytes | None) -> None:
        if running_loop() is self._loop:
            self._log.write(level, category, text, data)
        else:
            super()._put(level, category, text, data)
