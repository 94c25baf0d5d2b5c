"""Start policies: options of a start that decide whether it creates a run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from holdfast.core.checks import is_whole_number
from holdfast.core.durations import Duration, timeout_ms
from holdfast.core.show import shown
from holdfast.errors import InvalidOptionError

_MAX_BATCH = 10_000


@dataclass(frozen=True, slots=True)
class Dedupe:
    """Deduplicate starts of a workflow by a key: while a run with the key is open, and for ``period`` after its start.

    Example::

        await app.start(reindex, shop, dedupe=Dedupe("shop-1", period="1 hour"))
    """

    key: str
    period: Duration | None = None


@dataclass(frozen=True, slots=True)
class Debounce:
    """Start a run when no further start with the key came for ``wait``; the params of the last start win.

    ``max_wait``: the longest delay after the first start. ``key``: the default is the start option ``key``.

    Example::

        await app.start(reindex, shop, debounce=Debounce("5 seconds", max_wait="1 minute", key="shop-1"))
    """

    wait: Duration
    max_wait: Duration | None = None
    key: str | None = None


@dataclass(frozen=True, slots=True)
class Batch:
    """Collect starts of a workflow: one run receives a list of the params of up to ``size`` starts.

    The run begins when it has ``size`` items, or ``wait`` after its first one. ``key``: a field of the params, or a
    function of them; each key has batches of its own.

    Example::

        @app.workflow(batch=Batch(size=100, wait="2 seconds"))
        async def index(ctx: Context, documents: list[Document]) -> int: ...
    """

    size: int
    wait: Duration
    key: str | Callable[[Any], Any] | None = None


def check_batch(batch: Any) -> Batch | None:
    """Check the ``batch=`` of a workflow."""
    if batch is None:
        return None
    if not isinstance(batch, Batch):
        raise InvalidOptionError(f"batch must be a Batch, such as Batch(100, wait='2 seconds'), not {shown(batch)}")
    if not is_whole_number(batch.size, 1, _MAX_BATCH + 1):
        raise InvalidOptionError(f"the size of a batch is 1 to {_MAX_BATCH}, not {shown(batch.size)}")
    timeout_ms("wait", batch.wait)
    if batch.key is not None and not isinstance(batch.key, str) and not callable(batch.key):
        raise InvalidOptionError("the key of a batch is the name of a field, or a function")
    return batch
