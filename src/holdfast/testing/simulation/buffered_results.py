"""Results that workers buffer (``persist="task"``), compared with what the store has when a run suspends or ends.

Only stamps are compared: steps whose results differ from call to call.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

from holdfast.core import codec
from holdfast.core.model import Status
from holdfast.store.protocol import Commit, Committed, Fact, FactState, Finish, Log, Release, TaskRef, Verdict

Rows = Callable[..., list[tuple[Any, ...]]]
"""Runs a query."""


class ResultWatch:
    """Looks at the facts of runs when they suspend, when they end, and after each ``add_late_results``."""

    def __init__(self, rows: Rows) -> None:
        self._rows = rows
        self._seen: dict[TaskRef, dict[str, int]] = {}
        """The stamps that code saw under each claim since the run was loaded, by key."""
        self._stamps: dict[tuple[int, str], set[int]] = {}
        """All stamps that code of a run saw of a step."""
        self._terminated: dict[int, TaskRef] = {}
        """The claim that a terminated run was taken from."""
        self._before: Mapping[tuple[Any, ...], Any] | None = None

    @property
    def adding_late(self) -> bool:
        return self._before is not None

    def result_seen(self, task: TaskRef, key: str, stamp: int) -> None:
        """The code of a run has this result."""
        self._seen.setdefault(task, {})[key] = stamp
        self._stamps.setdefault((task.run, key), set()).add(stamp)

    def terminated(self, run: int, owner: str, epoch: int) -> None:
        self._terminated[run] = TaskRef(run, 0, owner, epoch)

    def before(self, operation: str, args: tuple[Any, ...]) -> None:
        """A call of the store begins."""
        if operation == "add_late_results":
            self._before = self._facts(args[0])

    def after(self, operation: str, args: tuple[Any, ...], answer: Any) -> Iterator[str]:
        """A call of the store has been done."""
        match operation:
            case "commit":
                for commit, done in zip(args[0], answer, strict=True):
                    yield from self._committed(commit, done)
            case "load":
                self._loaded(args[0])
            case "add_late_results":
                yield from self._added_late(*args)
            case _:
                pass

    def _loaded(self, run: int) -> None:
        """A worker goes on from the stored facts: after a takeover, or if the commit of a transaction was cut off."""
        for task in [task for task in self._seen if task.run == run]:
            del self._seen[task]

    def _committed(self, commit: Commit, done: Committed) -> Iterator[str]:
        """A run that suspends or ends has all results that its code saw."""
        suspends = isinstance(commit.following.next, Release | Finish) and done.verdict is Verdict.APPLIED
        seen = self._seen.get(commit.task) if suspends else None
        if seen and not seen.items() <= self._results(commit.task.run).items():
            yield f"run {commit.task.run} rests, and results that its code saw are not written: {seen}"

    def _added_late(self, run: int, offered: Sequence[Fact], _lines: Sequence[Log]) -> Iterator[str]:
        """Late results are added to terminated runs only, and replace nothing."""
        before, self._before = self._before or {}, None
        after = self._facts(run)
        [(status,)] = self._rows("SELECT status FROM holdfast_run WHERE id = ?", run)
        if any(after.get(place) != fact for place, fact in before.items()):
            yield f"late results have replaced facts of run {run}"
        if status == Status.TERMINATED:
            missing = {(int(fact.state), fact.key, fact.n) for fact in offered} - after.keys()
            if missing:
                yield f"run {run} is terminated, and late results were not added: {sorted(missing)}"
        elif after.keys() - before.keys():
            yield f"run {run} is {status}, and got late results: {sorted(after.keys() - before.keys())}"

    def lost(self, living: Collection[str]) -> Iterator[str]:
        """A terminated run has all results that its code saw, if its worker is alive.

        ``living``: the ids of these workers. A worker that lost the run before may have added its results first.
        """
        for run, task in self._terminated.items():
            results = self._results(run)
            for key in self._seen.get(task, ()) if task.owner in living else ():
                seen = self._stamps[run, key]
                if results.get(key) not in seen:
                    yield f"run {run} was terminated with the result {results.get(key)} of {key}; its code saw {seen}"

    def _results(self, run: int) -> Mapping[str, Any]:
        rows = self._rows("SELECT key, value FROM holdfast_fact WHERE run = ? AND state = ?", run, FactState.RESULT)
        return {key: codec.plain(value) for key, value in rows}

    def _facts(self, run: int) -> Mapping[tuple[Any, ...], Any]:
        """By state, key and number."""
        rows = self._rows("SELECT state, key, n, ok, value, at, attempts FROM holdfast_fact WHERE run = ?", run)
        return {row[:3]: row[3:] for row in rows}
