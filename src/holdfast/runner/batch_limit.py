"""Number of commits, or of advances, that a worker writes in one transaction."""

from __future__ import annotations

from collections.abc import Callable

_MAX_BATCH = 256
_SMALL_BATCH = 4
"""Batch size while the event loop also serves requests, which run between two batches."""


def batch_limit(sharing_loop: Callable[[], bool], writers: int = 1) -> Callable[[], int]:
    """A function that returns the maximum size of the next batch. ``sharing_loop``: the loop also serves requests.

    With several ``writers`` each gets a part of the maximum: one batch with the commits of all turns would leave
    nothing to do for the other writers, and the turns would wait for it together.
    """
    return lambda: _SMALL_BATCH if sharing_loop() else max(1, _MAX_BATCH // writers)
