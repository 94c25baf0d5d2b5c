"""Where the ``holdfast`` logger's lines go while a command runs."""

from __future__ import annotations

import logging

_FORMAT = "%(asctime)s %(levelname)s %(message)s"


def set_up_logging(level: str | None) -> None:
    """Plain lines on standard error, unless the user's module has set up logging: then its choice stands."""
    logger = logging.getLogger("holdfast")
    if not logger.hasHandlers():
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter(_FORMAT))
        logger.addHandler(handler)
    if level is not None or logger.level == logging.NOTSET:
        logger.setLevel((level or "info").upper())
