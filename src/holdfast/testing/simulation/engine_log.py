"""The engine's log during a simulation."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

_LOG_OF_RUNS = "holdfast.runs"
"""The logger of failures of users' code, which are not errors of the engine."""


@contextmanager
def capture_errors(errors: list[str]) -> Iterator[None]:
    """Append unexpected errors of the engine to ``errors``; print nothing.

    The engine logs such an error and continues, so the error has no other effect that a simulation could see.
    """
    log, handler = logging.getLogger("holdfast"), _ErrorHandler(errors)
    before = log.handlers, log.propagate
    log.handlers, log.propagate = [handler], False
    try:
        yield
    finally:
        log.handlers, log.propagate = before


class _ErrorHandler(logging.Handler):
    def __init__(self, errors: list[str]) -> None:
        super().__init__(logging.ERROR)
        self._errors = errors

    def emit(self, record: logging.LogRecord) -> None:
        if record.name == _LOG_OF_RUNS:
            return
        error = record.exc_info[1] if record.exc_info else None
        self._errors.append(f"{record.getMessage()} {error!r}")
