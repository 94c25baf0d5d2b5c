"""Random values of workflow code: drawn from the run's seed, so that they are the same on every replay."""

from __future__ import annotations

import hashlib
from random import Random

from holdfast.store.protocol import RunRecord
from holdfast.workflow.guard import WorkflowRandom
from holdfast.workflow.loop import WorkflowLoop


class Randomness:
    """The random values of one run."""

    __slots__ = ("_draws", "_generator", "_loop", "_number", "_run")

    def __init__(self, run: RunRecord, loop: WorkflowLoop) -> None:
        self._run = run
        self._number = run.replayed_number
        self._loop = loop
        self._generator: Random | None = None
        self._draws = 0

    @property
    def generator(self) -> Random:
        if self._generator is None:
            self._generator = WorkflowRandom(f"{self._run.seed}/{self._number}", self._loop)
        return self._generator

    def draw_bytes(self, n: int) -> bytes:
        self._draws += 1
        return hashlib.shake_256(f"{self._run.seed}/{self._number}/{self._draws}".encode()).digest(n)
