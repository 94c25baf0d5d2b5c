"""The receipts of one store: by which a call that is made again is known, and answered as the first time."""

from __future__ import annotations

import heapq
from itertools import count

from holdfast.store.postgres.batch import Receipt


class Receipts:
    """As many lines as there are calls at the same time; on each, one call follows another."""

    def __init__(self) -> None:
        self._numbers = count(1)
        self._lines: list[int] = []
        self._used = count()

    def take(self) -> Receipt:
        line = heapq.heappop(self._lines) if self._lines else next(self._used)
        return Receipt(line, next(self._numbers))

    def free(self, receipt: Receipt) -> None:
        if receipt.line is not None:
            heapq.heappush(self._lines, receipt.line)
