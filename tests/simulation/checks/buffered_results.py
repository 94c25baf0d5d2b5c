"""Checks that results which workers buffer (``persist="task"``) are stored when a run suspends or ends.

Only results of ``stamp`` steps are checked, because each call of such a step has a different result.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from holdfast.core import codec
from holdfast.core.model import Status
from holdfast.store.protocol import (
    Commit,
    Committed,
    FactState,
    Finish,
    LateResults,
    Release,
    SnapshotQuery,
    TaskRef,
    Verdict,
)
from holdfast.testing.simulation.watch import Rows

_Facts = Mapping[tuple[Any, ...], Any]
"""Facts of a run by state, key and number."""


class ResultWatch:
    """Checks the facts of runs when they suspend, when they end, and after each ``add_late_results``."""

    def __init__(self, rows: Rows) -> None:
        self._rows = rows
        self._seen: dict[TaskRef, dict[str, int]] = {}
        """For each claim: the stamps that the code has received since the run was loaded, by key."""
        self._stamps: dict[tuple[int, str], set[int]] = {}
        """For each run and key: all stamps that the code has received."""
        self._terminated: dict[int, TaskRef] = {}
        """For each terminated run: the claim that the termination ended."""

    def result_seen(self, task: TaskRef, key: str, stamp: int) -> None:
        """Record that the code of a run has received a stamp."""
        self._seen.setdefault(task, {})[key] = stamp
        self._stamps.setdefault((task.run, key), set()).add(stamp)

    def terminated(self, run: int, owner: str, epoch: int) -> None:
        self._terminated[run] = TaskRef(run, 0, owner, epoch)

    def before(self, operation: str, args: tuple[Any, ...]) -> _Facts:
        return self._facts(args[0].run) if operation == "add_late_results" else {}

    def after(self, operation: str, args: tuple[Any, ...], answer: Any, before: _Facts) -> Iterator[str]:
        match operation:
            case "commit":
                for commit, done in zip(args[0], answer, strict=True):
                    yield from self._committed(commit, done)
            case "read" if isinstance(args[0], SnapshotQuery):
                self._loaded(args[0].run)
            case "add_late_results":
                yield from self._added_late(args[0], before)
            case _:
                pass

    def _loaded(self, run: int) -> None:
        """Forget the stamps of a run that a worker loads: it continues from the stored facts and calls steps again."""
        for task in [task for task in self._seen if task.run == run]:
            del self._seen[task]

    def _committed(self, commit: Commit, done: Committed) -> Iterator[str]:
        """Check that a run which suspends or ends has all results that its code received."""
        suspends = isinstance(commit.following.next, Release | Finish) and done.verdict is Verdict.APPLIED
        seen = self._seen.get(commit.task) if suspends else None
        if seen and not seen.items() <= self._results(commit.task.run).items():
            yield f"run {commit.task.run} suspends or ends, and results that its code received are not stored: {seen}"

    def _added_late(self, late: LateResults, before: _Facts) -> Iterator[str]:
        """Check that late results are added to terminated runs only, and replace no fact."""
        run, after = late.run, self._facts(late.run)
        [(status,)] = self._rows("SELECT status FROM holdfast_run WHERE id = ?", run)
        if any(after.get(place) != fact for place, fact in before.items()):
            yield f"late results have replaced facts of run {run}"
        if status == Status.TERMINATED:
            missing = {(int(fact.state), fact.key, fact.n) for fact in late.facts} - after.keys()
            if missing:
                yield f"run {run} is terminated, and late results were not added: {sorted(missing)}"
        elif after.keys() - before.keys():
            yield f"run {run} is {status}, and late results were added: {sorted(after.keys() - before.keys())}"

    def lost(self, living: Collection[str], removed: Collection[int] = ()) -> Iterator[str]:
        """Check that a terminated run has all results that its code received, if its worker is alive.

        ``living`` holds the ids of the workers that are alive, ``removed`` the runs that were deleted. A stored stamp
        may also be one that the code received under an earlier claim, because the worker of that claim may add its
        results first.
        """
        for run, task in self._terminated.items():
            if run in removed:
                continue
            results = self._results(run)
            for key in self._seen.get(task, ()) if task.owner in living else ():
                result, seen = results.get(key), self._stamps[run, key]
                if result not in seen:
                    yield f"run {run} was terminated with the result {result} of {key}; its code received {seen}"

    def _results(self, run: int) -> Mapping[str, Any]:
        rows = self._rows("SELECT key, value FROM holdfast_fact WHERE run = ? AND state = ?", run, FactState.RESULT)
        return {key: codec.plain(value) for key, value in rows}

    def _facts(self, run: int) -> _Facts:
        rows = self._rows("SELECT state, key, n, ok, value, at, attempts FROM holdfast_fact WHERE run = ?", run)
        return {row[:3]: row[3:] for row in rows}
