"""Logging configuration of the commands."""

from __future__ import annotations

import logging

_FORMAT = "%(asctime)s %(levelname)s %(message)s"


def set_up_logging(level: str | None, log_format: str | None = None) -> None:
    """Log lines to standard error. Handlers that the user's module has configured are kept.

    With the format ``json`` all lines of the program are logged, each as a JSON object with the fields of its run.
    """
    logger = logging.getLogger("holdfast")
    if log_format == "json":
        _log_json(level)
        return
    if not logger.hasHandlers():
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter(_FORMAT))
        logger.addHandler(handler)
    if level is not None or logger.level == logging.NOTSET:
        logger.setLevel((level or "info").upper())


def _log_json(level: str | None) -> None:
    """Replace the handlers of the root logger by one that writes JSON."""
    from holdfast.telemetry.logs import JsonFormatter, LogContext

    handler = logging.StreamHandler()
    handler.addFilter(LogContext())
    handler.setFormatter(JsonFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    if level is not None or root.level in (logging.NOTSET, logging.WARNING):
        root.setLevel((level or "info").upper())
    logger = logging.getLogger("holdfast")
    logger.handlers.clear()
    logger.setLevel(logging.NOTSET)
