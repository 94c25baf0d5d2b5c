"""Retries of a turn's store calls for as long as the store fails.

A turn keeps its unwritten state in memory meanwhile. The lease of its task limits how long that is useful.
"""

from __future__ import annotations

import logging

from holdfast.errors import StoreError
from holdfast.ports import Randomness
from holdfast.store.retry import PauseAfter, backoff

_log = logging.getLogger("holdfast")


def log_and_pause(what: str, random: Randomness) -> PauseAfter[StoreError]:
    """Return the rule for ``call_with_retry``: retry without a limit, and log. ``what`` names the call in log lines."""

    def pause_after(error: StoreError, failures: int, _deadline: float) -> float:
        pause = backoff(failures, random)
        _log.warning("could not %s (%s), trying again in %.1f s: %s", what, error.code, pause, error)
        return pause

    return pause_after
