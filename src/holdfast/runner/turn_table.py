"""The turns of a worker that have not ended."""

from __future__ import annotations

import asyncio
from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import contextmanager

from holdfast.runner.damaged_turn import DamagedTurn
from holdfast.runner.turn import Turn
from holdfast.runner.unit_turns import GraphRunTurn, UnitTurn
from holdfast.store.protocol import Heartbeat, HeldTask, Signal

TaskKey = tuple[int, int]
"""Run and unit."""
AnyTurn = Turn | UnitTurn | GraphRunTurn | DamagedTurn


class TurnTable:
    """The turns by task, each with the asyncio task that runs it."""

    def __init__(self) -> None:
        self._turns: dict[TaskKey, AnyTurn] = {}
        self._tasks: dict[TaskKey, asyncio.Task[None]] = {}
        self._suspects: set[AnyTurn] = set()
        """Turns that were suspect when they began. A turn never becomes suspect later."""
        self._noted_ends: list[set[int]] = []

    def __len__(self) -> int:
        return len(self._turns)

    def __contains__(self, task_key: TaskKey) -> bool:
        return task_key in self._turns

    def get(self, task_key: TaskKey) -> AnyTurn | None:
        return self._turns.get(task_key)

    def executes(self, run: int) -> bool:
        """True if the run itself, not only a unit, has a turn whose task is not lost."""
        turn = self._turns.get((run, 0))
        return turn is not None and not turn.lost

    def task(self, task_key: TaskKey) -> asyncio.Task[None] | None:
        return self._tasks.get(task_key)

    def snapshot(self) -> dict[TaskKey, AnyTurn]:
        return dict(self._turns)

    def add(self, turn: AnyTurn, task: asyncio.Task[None]) -> None:
        """Add a turn. It replaces a turn of the same task that was lost and claimed again."""
        task_key = turn.task[:2]
        self._suspects.discard(self._turns.get(task_key, turn))
        self._turns[task_key] = turn
        self._tasks[task_key] = task
        if turn.suspect:
            self._suspects.add(turn)

    def remove(self, turn: AnyTurn) -> bool:
        """Remove a turn; False if it is not in the table."""
        task_key = turn.task[:2]
        if self._turns.get(task_key) is not turn:
            return False
        del self._turns[task_key], self._tasks[task_key]
        self._suspects.discard(turn)
        for noted in self._noted_ends:
            noted.add(task_key[0])
        return True

    @contextmanager
    def noting_ends(self) -> Iterator[Container[int]]:
        """Note the runs whose turns end during the block."""
        noted = set[int]()
        self._noted_ends.append(noted)
        try:
            yield noted
        finally:
            self._noted_ends = [other for other in self._noted_ends if other is not noted]

    # --- state of the turns

    @property
    def blocked(self) -> bool:
        """True if every turn waits."""
        return all(turn.waiting for turn in self._turns.values())

    @property
    def has_suspect(self) -> bool:
        return any(turn.suspect for turn in self._suspects)

    def count_of_queue(self, queue: str) -> int:
        return sum(turn.claim.run.queue == queue for turn in self._turns.values())

    def leases(self) -> list[int]:
        """Durations of the individual leases of owned tasks."""
        turns = self._turns.values()
        return [turn.lease_ms for turn in turns if isinstance(turn, Turn) and turn.lease_ms is not None]

    # --- signals

    def signal_all(self, signal: Signal | None) -> None:
        for turn in list(self._turns.values()):
            turn.signal(signal)

    def deliver_signals(self, turns: Mapping[TaskKey, AnyTurn], held: Sequence[HeldTask]) -> None:
        """Pass the signals of a heartbeat to the turns; a turn whose task is not among the owned ones is lost.

        ``turns``: the snapshot of the table before the heartbeat.
        """
        by_key = {(h.run, h.unit): h for h in held}
        for task_key, turn in turns.items():
            owned = by_key.get(task_key)
            if owned is not None and owned.epoch == turn.task.epoch:
                if owned.signal:
                    turn.signal(owned.signal)
            elif self._turns.get(task_key) is turn:
                turn.signal(None)

    # --- records of running steps

    def record_running(self, *, only_waiting: bool) -> list[asyncio.Task[None]]:
        """Start writing the unstored records of running steps; returns the asyncio tasks that write them."""
        turns = [turn for turn in self._turns.values() if turn.waiting or not only_waiting]
        return [write for turn in turns if (write := turn.record_running()) is not None]

    def heartbeats(self) -> list[Heartbeat]:
        return [heartbeat for turn in list(self._turns.values()) for heartbeat in turn.heartbeats()]

    # --- stop and wait

    def stop(self) -> None:
        for turn in list(self._turns.values()):
            turn.stop()

    async def wait(self, seconds: float) -> None:
        """Wait up to this long for the end of the present turns."""
        if self._tasks:
            await asyncio.wait(list(self._tasks.values()), timeout=seconds)

    async def wait_until_empty(self) -> None:
        while self._tasks:
            await asyncio.wait(list(self._tasks.values()))

    def cancel(self) -> list[asyncio.Task[None]]:
        """Cancel all turns; returns their asyncio tasks."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        return tasks
