"""The receipts of one store, by which a repeated call is recognised and gets the result of the first attempt."""

from __future__ import annotations

import heapq
from itertools import count

from holdfast.store.postgres.batch import Receipt


class Receipts:
    """Assigns receipts. The database keeps one receipt per line, and only one call at a time uses a line."""

    def __init__(self) -> None:
        self._numbers = count(1)
        self._free_lines: list[int] = []
        self._next_line = count()

    def take(self) -> Receipt:
        line = heapq.heappop(self._free_lines) if self._free_lines else next(self._next_line)
        return Receipt(line, next(self._numbers))

    def free(self, receipt: Receipt) -> None:
        if receipt.line is not None:
            heapq.heappush(self._free_lines, receipt.line)
