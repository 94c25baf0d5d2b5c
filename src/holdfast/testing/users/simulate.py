"""``simulate``: a user's workflow under crashes, retries, slow and failing steps and reordered events.

Runs it once without faults, then once for each seed, and compares. What differs is made small: the same run with as
few of its faults as show the difference, which then says what kind of mistake it is (``judge``).
"""

from __future__ import annotations

import asyncio
import contextvars
import hashlib
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from holdfast.app import Holdfast
from holdfast.kernel.startable import Startable
from holdfast.ports import Threads
from holdfast.testing.simulation.shrink import smallest
from holdfast.testing.users.calls import Step
from holdfast.testing.users.judge import Judge, Trouble
from holdfast.testing.users.report import (
    SEED,
    Finding,
    SentEvent,
    SimulatedRun,
    SimulationFailed,
    SimulationReport,
)
from holdfast.testing.users.scene import CALM, Play, Seen, perform

R = TypeVar("R")

Allow = Callable[[SimulatedRun], bool] | Collection[Any]
Check = Callable[[SimulatedRun], object]

_MOST_FINDINGS = 5
_AFTER_A_FINDING = 20
"""So many seeds are run at least after one, to find others."""
_MOST_LOOKED_INTO = 5
_MOST_TRIES = 60
"""Runs to make one finding small."""


async def simulate(
    app: Holdfast,
    workflow: Startable[Any, Any] | str,
    params: Any = None,
    *,
    seeds: int = 200,
    first: int = 1,
    seed: int | None = None,
    events: Iterable[SentEvent | tuple[str, Any] | str] = (),
    world: Callable[[], Any] | None = None,
    view: Callable[[Any], Any] | None = None,
    check: Check | None = None,
    allow: Allow = (),
    tables: str | Sequence[str] = (),
    id: str = "simulated",
    fail: bool = True,
    **options: Any,
) -> SimulationReport:
    """Put a workflow, a chain or a graph under faults, and report what does not stand them.

    ``seeds`` runs, from ``first`` on, or that of ``seed`` alone. ``events``: what the outside sends. ``world`` makes
    the fakes anew that the steps use, for each run; ``view`` says what of them has to be as it is without faults.
    ``check`` is called with each run at its end, and asserts what must hold. ``allow``: results that are right besides
    that of the run without faults, or a function that says so of a run. ``tables``: statements that make the tables of
    steps with a ``StepTx`` or a ``Transaction``. ``options`` are those of ``app.start``.

    Raises ``SimulationFailed`` if anything was found, unless ``fail`` is False.

    Example::

        async def test_an_order_survives() -> None:
            await simulate(app, fulfil, Order("o-1", 125), events=[("approval", {"by": "ann"})], world=fresh_bank)
    """
    name = workflow if isinstance(workflow, str) else workflow.name
    app.registry.get(name)
    statements = [tables] if isinstance(tables, str) else [*tables]
    play = Play(app, name, params, id, options, [_event(one) for one in events], world, view, statements)
    wanted = range(first, first + seeds) if seed is None else range(seed, seed + 1)
    thread = _OneThread()
    try:
        report = await _Exploring(play, thread, allow, check).explore(wanted)
    finally:
        thread.close()
    if fail and not report.ok:
        raise SimulationFailed(report)
    return report


def _event(given: SentEvent | tuple[str, Any] | str) -> SentEvent:
    if isinstance(given, SentEvent):
        return given
    return SentEvent(given) if isinstance(given, str) else SentEvent(*given)


class _OneThread:
    """Where the simulated loop runs, beside that of the caller; a caller who is cancelled waits for the run."""

    def __init__(self) -> None:
        self._threads = Threads(1)

    async def do(self, call: Callable[[], R]) -> R:
        context = contextvars.copy_context()
        done = self._threads.submit(lambda: context.run(call))
        try:
            return await asyncio.shield(done)
        except asyncio.CancelledError:
            await asyncio.wait([done])  # or it would go on behind the back of whoever comes next
            raise

    def close(self) -> None:
        self._threads.close()


@dataclass(slots=True)
class _Exploring:
    play: Play
    thread: _OneThread
    allow: Allow
    check: Check | None
    findings: list[Finding] = field(default_factory=list)
    endings: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    looked_into: int = 0
    """Differences that were made small."""
    digests: Any = field(default_factory=hashlib.sha256)

    async def explore(self, seeds: range) -> SimulationReport:
        calm = await self._perform(CALM)
        judge = Judge(calm, self.allow, self.check)
        trouble = judge.of_calm() or judge.of_calm_again(await self._perform(CALM))
        if trouble is not None:
            self.findings.append(judge.finding(trouble, calm))
        else:
            await self._look_at_all(seeds, judge)
        return SimulationReport(
            self.play.workflow,
            self.endings.total(),
            self.findings,
            self.endings,
            self.faults,
            self.digests.hexdigest()[:16],
            f"await simulate(app, {self.play.workflow}, ..., seed={SEED})",
        )

    async def _look_at_all(self, seeds: range, judge: Judge) -> None:
        """All of them; once something was found, not many more."""
        enough = len(seeds)
        for done, seed in enumerate(seeds, 1):
            await self._look_at(seed, judge)
            if self.findings:
                enough = min(enough, _AFTER_A_FINDING + 2 * done)
            if done >= enough or len(self.findings) >= _MOST_FINDINGS or self.looked_into >= _MOST_LOOKED_INTO:
                return

    async def _look_at(self, seed: int, judge: Judge) -> None:
        """Run a seed, and look into what is new."""
        seen = await self._perform(seed, judge)
        self.digests.update(seen.digest.encode())
        self.endings[seen.run.ending] += 1
        self.faults.update(seen.numbers)
        trouble = judge.of(seen)
        if trouble is None or judge.is_explained(trouble, seen, self.findings):
            return
        self.looked_into += 1
        finding = await self._made_small(seed, seen, trouble, judge)
        if not any((finding.kind, finding.step) == (other.kind, other.step) for other in self.findings):
            self.findings.append(finding)

    async def _made_small(self, seed: int, seen: Seen, trouble: Trouble, judge: Judge) -> Finding:
        return await self.thread.do(lambda: self._smallest(seed, seen, trouble, judge))

    def _smallest(self, seed: int, seen: Seen, trouble: Trouble, judge: Judge) -> Finding:
        tries = 0

        def again(faults: Sequence[str]) -> Seen | None:
            nonlocal tries
            tries += 1
            found = perform(self.play, seed, judge.calm, only=faults)
            same = judge.of(found)
            return found if same is not None and same.tag == trouble.tag else None

        if again(seen.faults) is None:
            return judge.unsteady(seen)
        kept = smallest(seen.faults, lambda faults: tries < _MOST_TRIES and again(faults) is not None)
        small = again(kept) or seen
        return judge.finding(judge.of(small) or trouble, small, self._guilty(small, trouble, judge))

    def _guilty(self, seen: Seen, trouble: Trouble, judge: Judge) -> list[Step]:
        """Steps that make the same trouble when they are called twice in a row, and nothing else is wrong."""
        guilty = []
        for step, until in judge.suspects(seen):
            if until is None:
                guilty.append(step)
                continue
            same = judge.of(perform(self.play, CALM, judge.calm, rehearsed={step: until}))
            if same is not None and same.tag == trouble.tag:
                guilty.append(step)
        return guilty

    async def _perform(self, seed: int, judge: Judge | None = None) -> Seen:
        return await self.thread.do(lambda: perform(self.play, seed, None if judge is None else judge.calm))
