"""Checks that only the owner of a task writes, and that no task is taken from an owner whose lease is valid."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from holdfast.store.protocol import Advance, Commit, Committed, TaskRef, Verdict
from holdfast.testing.simulation.watch import Rows


class FenceWatch:
    """Compares each write with the tasks as they were just before it. ``now_ms`` returns the database's time."""

    def __init__(self, rows: Rows, now_ms: Callable[[], int]) -> None:
        self._rows = rows
        self._now_ms = now_ms

    def before(self, operation: str, args: tuple[Any, ...]) -> Any:
        match operation:
            case "commit" | "advance":
                return self._fences([commit.task for commit in args[0]])
            case "reap":
                return self._leased_tasks()
            case _:
                return None

    def after(self, operation: str, args: tuple[Any, ...], answer: Any, before: Any) -> Iterator[str]:
        match operation:
            case "commit" if not is_ended_transaction(args[0], answer):
                written = [committed.verdict is not Verdict.LOST for committed in answer]
                yield from _check_fences(args[0], before, written)
            case "advance":
                yield from _check_fences(args[0], before, answer.applied)
            case "reap":
                for freed in answer:
                    if (freed.run, freed.unit) in before:
                        yield f"run {freed.run} was freed although its owner's lease had not expired"
            case _:
                pass

    def _fences(self, tasks: Sequence[TaskRef]) -> list[bool]:
        """For each task: True if its owner and epoch match those in the database."""
        sql = "SELECT owner, epoch FROM holdfast_task WHERE run = ? AND unit = ?"
        return [self._rows(sql, task.run, task.unit) == [(task.owner, task.epoch)] for task in tasks]

    def _leased_tasks(self) -> list[tuple[Any, ...]]:
        """Run and unit of the tasks whose lease has not expired."""
        sql = "SELECT run, unit FROM holdfast_task WHERE owner IS NOT NULL AND lease_until > ?"
        return self._rows(sql, self._now_ms())


def _check_fences(
    commits: Sequence[Commit | Advance], fences: Sequence[bool], written: Sequence[bool]
) -> Iterator[str]:
    for commit, fence_holds, is_written in zip(commits, fences, written, strict=True):
        if is_written and not fence_holds:
            yield f"run {commit.task.run} was written by a worker that does not own it"
        elif fence_holds and not is_written and len(commits) == 1:  # a commit of a batch may end the run of another one
            yield f"a commit to run {commit.task.run} by its owner was refused"


def is_ended_transaction(commits: Sequence[Commit], answers: Sequence[Committed]) -> bool:
    """Return True if the commit was rejected because its live transaction had already ended."""
    return commits[0].observed.transaction is not None and answers[0].verdict is Verdict.REJECTED
