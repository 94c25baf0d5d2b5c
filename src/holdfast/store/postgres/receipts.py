"""The receipts of one store, by which a repeated call is recognised and gets the result of the first attempt."""

from __future__ import annotations

import heapq
from itertools import count

from holdfast.store.postgres.batch import Receipt


class Receipts:
    """Assigns receipts. The database keeps one receipt per sequence, and only one call at a time uses a sequence."""

    def __init__(self) -> None:
        self._numbers = count(1)
        self._free_sequences: list[int] = []
        self._next_sequence = count()

    def take(self) -> Receipt:
        sequence = heapq.heappop(self._free_sequences) if self._free_sequences else next(self._next_sequence)
        return Receipt(sequence, next(self._numbers))

    def free(self, receipt: Receipt) -> None:
        if receipt.sequence is not None:
            heapq.heappush(self._free_sequences, receipt.sequence)
