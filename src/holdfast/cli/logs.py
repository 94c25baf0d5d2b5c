"""Logging configuration of the commands."""

from __future__ import annotations

import logging

_FORMAT = "%(asctime)s %(levelname)s %(message)s"


def set_up_logging(level: str | None) -> None:
    """Log plain lines to standard error. Handlers that the user's module has configured are kept."""
    logger = logging.getLogger("holdfast")
    if not logger.hasHandlers():
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter(_FORMAT))
        logger.addHandler(handler)
    if level is not None or logger.level == logging.NOTSET:
        logger.setLevel((level or "info").upper())
