"""Positions of runs in their code, for ``why``."""

from __future__ import annotations

import logging
from collections import OrderedDict

from holdfast.client.replaying import Replayer
from holdfast.client.run_file import StoredRun
from holdfast.core.history import NO_POSITIONS, Positions
from holdfast.store.protocol import RunRecord, Snapshot

_log = logging.getLogger("holdfast")

_MAX_FACTS = 500
"""A run with more facts is not replayed for its description: that would block the event loop for too long."""
_MAX_CACHED = 1000


class Locator:
    """Finds where in the code an open run waits, by a replay. The result is kept until the run has another fact.

    A description never fails because of its positions: if the replay fails, there are none.
    """

    def __init__(self, replayer: Replayer) -> None:
        self._replayer = replayer
        self._cache: OrderedDict[int, tuple[tuple[int, int], Positions]] = OrderedDict()

    def locates(self, row: RunRecord) -> bool:
        """True if the run is open and this process has its code."""
        return not row.status.terminal and self._replayer.has_code(row.workflow, row.kind)

    def positions(self, row: RunRecord, snapshot: Snapshot) -> Positions:
        facts = snapshot.facts
        if not self.locates(row) or len(facts) > _MAX_FACTS:
            return NO_POSITIONS
        state = len(facts), max((fact.at for fact in facts), default=0)
        cached = self._cache.get(row.run)
        if cached is None or cached[0] != state:
            cached = self._cache[row.run] = state, self._replayed(row, snapshot)
            if len(self._cache) > _MAX_CACHED:
                self._cache.popitem(last=False)
        return cached[1]

    def _replayed(self, row: RunRecord, snapshot: Snapshot) -> Positions:
        try:
            with self._replayer.open(StoredRun(row, snapshot, [])) as inspection:
                inspection.replay_to(len(inspection.facts))
                return inspection.positions()
        except Exception as error:
            _log.debug("run %s cannot be located in its code: %r", row.pid, error)
            return NO_POSITIONS
