"""The receipts of one store, by which a repeated call is recognised and gets the result of the first attempt."""

from __future__ import annotations

import heapq
from itertools import count

from holdfast.store.postgres.batch import Receipt


class Receipts:
    """Assigns receipts. The database keeps one receipt per stream, and only one call at a time uses a stream."""

    def __init__(self) -> None:
        self._numbers = count(1)
        self._free_streams: list[int] = []
        self._next_stream = count()

    def take(self) -> Receipt:
        stream = heapq.heappop(self._free_streams) if self._free_streams else next(self._next_stream)
        return Receipt(stream, next(self._numbers))

    def free(self, receipt: Receipt) -> None:
        if receipt.stream is not None:
            heapq.heappush(self._free_streams, receipt.stream)
