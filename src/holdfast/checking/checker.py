"""Reads the open runs of a store and compares each with the code."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from holdfast.checking.report import CheckReport
from holdfast.client.replaying import Replayer
from holdfast.client.run_file import StoredRun
from holdfast.core.model import Status
from holdfast.errors import HoldfastError
from holdfast.kernel.inspection import Difference, DifferenceKind
from holdfast.store.protocol import CurrentRuns, RunsById, Snapshot, SnapshotQuery, Store

_PAGE = 500
"""Number of runs that are listed, and read, at a time."""
_READS = 8
"""Number of concurrent reads of histories: most of the time of a read is the round trip to the database."""
_OPEN = (Status.ACTIVE, Status.WAITING, Status.PAUSED)

Progress = Callable[[int, int], None]
"""Called with the number of checked runs and the number of all runs to check."""


@dataclass(frozen=True, slots=True)
class CheckOptions:
    """The runs to check."""

    workflow: str | None = None
    sample: int | None = None
    """Maximum number of runs of each workflow; None: all."""
    part: int = 0
    parts: int = 1
    """Check only runs whose id modulo ``parts`` is ``part``: the share of one of several processes."""


class Checker:
    """Checks the open runs of one store on the code of one app."""

    def __init__(self, store: Store, replayer: Replayer, version: str | None = None) -> None:
        """``version``: that of the app; None: runs that are pinned to a version are checked like all others."""
        self._store = store
        self._version = version
        self._replayer = replayer

    async def check(self, options: CheckOptions, progress: Progress = lambda _checked, _total: None) -> CheckReport:
        runs = await self._open_runs(options)
        report = CheckReport(sampled=options.sample is not None)
        progress(0, len(runs))
        for start in range(0, len(runs), _PAGE):
            for stored in await self._load(runs[start : start + _PAGE]):
                row = stored.row
                if not row.status.terminal:  # it may have ended meanwhile
                    self._add(report, stored)
                    await asyncio.sleep(0)
            progress(min(start + _PAGE, len(runs)), len(runs))
        return report

    # --- reads

    async def _open_runs(self, options: CheckOptions) -> list[int]:
        """The ids of the runs to check. A sample is spread evenly over the age of a workflow's runs."""
        by_workflow: dict[str, dict[int, None]] = {}
        for status in _OPEN:
            before: int | None = None
            while True:
                query = CurrentRuns(options.workflow, status, before, _PAGE)
                page = await self._store.read(query)
                for row in page:
                    by_workflow.setdefault(row.workflow, {})[row.run] = None
                if len(page) < _PAGE:
                    break
                before = page[-1].instance
        chosen = [run for runs in by_workflow.values() for run in _sample(sorted(runs), options.sample)]
        return sorted(run for run in chosen if run % options.parts == options.part)

    async def _load(self, ids: Sequence[int]) -> list[StoredRun]:
        limit = asyncio.Semaphore(_READS)

        async def load(run: int) -> Snapshot:
            async with limit:
                return await self._store.read(SnapshotQuery(run))

        snapshots = dict(zip(ids, await asyncio.gather(*map(load, ids)), strict=True))
        # After the histories: a run that was deleted meanwhile has an empty history, and no row any more.
        rows = await self._store.read(RunsById(ids))
        return [StoredRun(row, snapshots[row.run], []) for row in rows]

    # --- comparison

    def _add(self, report: CheckReport, stored: StoredRun) -> None:
        row, of_workflow, differences = stored.row, report.of(stored.row.workflow), self._differences(stored)
        if self._version is not None and row.pinned and row.version not in (None, self._version):
            of_workflow.add_pinned(differences)
        else:
            of_workflow.add(row.pid, row.number, differences)

    def _differences(self, stored: StoredRun) -> list[Difference]:
        try:
            return self._replayer.differences(stored)
        except (HoldfastError, ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            text = f"the run cannot be replayed: {type(error).__name__}: {error}"
            return [Difference(DifferenceKind.PARKED, text)]


def _sample(runs: Sequence[int], count: int | None) -> Sequence[int]:
    if count is None or len(runs) <= count:
        return runs
    return [runs[i * len(runs) // count] for i in range(count)]
