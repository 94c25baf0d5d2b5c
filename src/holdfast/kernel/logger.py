"""Durable log lines of step functions: kept in memory with the attempt, stored with its outcome."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any

from holdfast.core import codec
from holdfast.core.facts import Log
from holdfast.core.limits import Limits
from holdfast.core.model import Level, to_ms
from holdfast.core.names import check_log_category
from holdfast.errors import InvalidLogError
from holdfast.kernel.attempt import current_attempt


class StepLogger:
    """Writes log lines with the step's key and attempt. May be called from the step's tasks and threads."""

    def __init__(self, limits: Limits, now: Callable[[], datetime]) -> None:
        self._limits = limits
        self._now = now

    def debug(self, message: str, data: Any = None, *, category: str = "workflow") -> None:
        self._write(Level.DEBUG, message, data, category)

    def info(self, message: str, data: Any = None, *, category: str = "workflow") -> None:
        self._write(Level.INFO, message, data, category)

    def warning(self, message: str, data: Any = None, *, category: str = "workflow") -> None:
        self._write(Level.WARN, message, data, category)

    def error(self, message: str, data: Any = None, *, category: str = "workflow") -> None:
        self._write(Level.ERROR, message, data, category)

    def _write(self, level: Level, message: str, data: Any, category: str) -> None:
        limits = self._limits
        check_log_category(category, limits)
        text = str(message)
        if len(text) > limits.log_message:
            text = text[: limits.log_message - 1] + "…"
        encoded = None if data is None else codec.encode(data, what="log data", limit=limits.log_data)
        self._put(level, category, text, encoded)

    def _put(self, level: Level, category: str, text: str, data: bytes | None) -> None:
        attempt = current_attempt.get()
        if attempt is None:
            raise InvalidLogError("this logger belongs to a run: use it inside workflow code or a step")
        attempt.log(Log(level, category, text, data, to_ms(self._now()), attempt.key, attempt.number))
