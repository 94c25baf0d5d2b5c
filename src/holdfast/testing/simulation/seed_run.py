"""One execution of a scenario to its end, with the faults of one seed. The same seed gives the same execution."""

from __future__ import annotations

import asyncio
import copy
import gc
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from holdfast.core import codec
from holdfast.core.model import Status, to_ms
from holdfast.testing.simulation.app_process import AppProcess
from holdfast.testing.simulation.database import SimulatedDatabase
from holdfast.testing.simulation.engine_log import capture_errors
from holdfast.testing.simulation.external_client import ExternalClient
from holdfast.testing.simulation.fault_plan import FaultPlan
from holdfast.testing.simulation.loop import Livelock
from holdfast.testing.simulation.ports import LoopClock
from holdfast.testing.simulation.replay import replay_difference
from holdfast.testing.simulation.report import SimulatedRun, SimulationError
from holdfast.testing.simulation.scenario import BASELINE_SEED, Scenario, SeedResult
from holdfast.testing.simulation.scenario_loop import ScenarioLoop
from holdfast.testing.simulation.scenario_rows import ScenarioRows, earliest
from holdfast.testing.simulation.step_calls import AttemptNeeds, Step, StepCalls
from holdfast.testing.simulation.streams import stream
from holdfast.testing.simulation.trace import Trace
from holdfast.testing.simulation.worker_group import WorkerGroup

_MAX_CALLBACKS = 100_000
"""Callbacks after which a run without faults counts as endless."""
_CALLBACK_FACTOR = 20
"""Allowed callbacks of a run with faults, as a multiple of the baseline's."""
_MAX_POLLS_AFTER_END = 500
"""Polls after the end of the run, while work that the run left behind continues."""
_POLL_SECONDS = 0.1
_LONG_POLL_SECONDS = 1.0
"""Maximum interval between polls while a worker is busy."""
_MARGIN_MS = 300


def run_seed(
    scenario: Scenario,
    seed: int,
    baseline: SeedResult | None = None,
    *,
    only: Collection[str] | None = None,
    extra_calls: Mapping[Step, int] | None = None,
) -> SeedResult:
    """Execute the scenario once, with the faults of ``seed``.

    ``baseline`` is the result without faults. ``only`` restricts the faults to these names. ``extra_calls`` maps steps
    that are called twice in a row to the suspension at which the first call is abandoned (0: none).
    """
    collecting = gc.isenabled()
    gc.disable()  # finalizers would run at moments that the seed does not determine
    max_callbacks = _MAX_CALLBACKS if baseline is None else _MAX_CALLBACKS // 10 + _CALLBACK_FACTOR * baseline.callbacks
    loop = ScenarioLoop(stream(seed, "schedule"), max_callbacks)
    seed_run = _SeedRun(scenario, seed, loop, {} if baseline is None else baseline.needs, only, extra_calls or {})
    try:
        with capture_errors([]):
            result = seed_run.execute()
    finally:
        with capture_errors([]):
            loop.end()
            seed_run.end()
        if collecting:
            gc.enable()
    if loop.refused is not None:
        raise loop.refused
    if seed_run.violations:
        raise SimulationError(
            f"This is a bug of Holdfast, seen with seed {seed}; please report it: {seed_run.violations[0]}"
        )
    return result


class _SeedRun:
    def __init__(
        self,
        scenario: Scenario,
        seed: int,
        loop: ScenarioLoop,
        needed: Mapping[Step, AttemptNeeds],
        only: Collection[str] | None,
        extra_calls: Mapping[Step, int],
    ) -> None:
        self._scenario = scenario
        self._seed = seed
        self._loop = loop
        self._trace = Trace()
        self._story: list[str] = []
        self._clock = LoopClock(loop)
        self._faults = FaultPlan(seed, () if seed == BASELINE_SEED else only)
        self._database = SimulatedDatabase(loop, self._trace)
        self._rows = ScenarioRows(scenario, self._database)
        self._workers = WorkerGroup(scenario, loop, self._faults, self._now, self._note)
        self._calls = StepCalls(
            loop,
            self._faults,
            needed,
            extra_calls,
            max_attempts_of=self._rows.max_attempts_of,
            finished=self._rows.finished,
            kill=self._workers.kill,
            stop=self._workers.stop,
            note=self._note,
        )
        self._workers.create(self._database, self._calls)
        self._client = AppProcess("outside", scenario.app, loop, self._database, FaultPlan(BASELINE_SEED, ()))
        self._external_client = ExternalClient(
            scenario.events, scenario.pid, self._client, self._database, self._faults, self._now, self._note
        )

    @property
    def violations(self) -> Sequence[str]:
        """Violations of the engine's promises."""
        return self._trace.violations

    def execute(self) -> SeedResult:
        world = self._scenario.world() if self._scenario.world is not None else None
        stuck = endless = None
        try:
            stuck = self._loop.run_until_complete(self._run())
        except Livelock as error:
            endless = str(error)
        status, output, error_text = self._rows.end()
        result = plain = codec.plain(output)
        if status == Status.COMPLETE:
            result = self._scenario.app.registry.get(self._scenario.workflow).decode_output(plain)
        run = SimulatedRun(None if self._seed == BASELINE_SEED else self._seed, status, result, error_text, world)
        self._note(self._scenario.pid, run.ending if stuck is None else f"waits forever: {stuck}")
        return SeedResult(
            run,
            plain,
            self._view(world),
            stuck,
            endless,
            None if endless or stuck else replay_difference(self._scenario.app, self._database, self._loop),
            self._calls.made,
            dict(self._calls.needs),
            [*self._faults.happened],
            self._faults.counts_by_kind(),
            [*self._story],
            self._trace.digest(),
            self._loop.callbacks,
        )

    def end(self) -> None:
        """Release the memory of all processes."""
        self._workers.end()
        self._client.end()
        self._database.close()

    async def _run(self) -> str | None:
        """Run to the end; return the reason if the run waits forever."""
        await self._loop.spawn(self._database.process, self._database.open())
        self._rows.create_tables()
        self._client.boot()
        self._workers.boot()
        client, scenario = self._client.client, self._scenario
        await self._client.do(client.start(scenario.workflow, scenario.params, id=scenario.id, **scenario.options))
        self._note(scenario.pid, "is started")
        await self._external_client.send_early()
        return await self._poll_until_end()

    async def _poll_until_end(self) -> str | None:
        polls_after_end, pause = 0, _POLL_SECONDS
        while self._loop.refused is None:
            await asyncio.sleep(pause)
            self._workers.continue_stopped()
            ended = self._rows.ended()
            polls_after_end += ended
            if polls_after_end > _MAX_POLLS_AFTER_END:
                return None
            if self._workers.busy:
                pause = min(1.5 * pause, _LONG_POLL_SECONDS)
                continue
            pause = _POLL_SECONDS
            due = self._rows.next_due()
            if await self._external_client.send_due(nothing_else=due is None and not ended):
                continue
            due = earliest(due, self._external_client.next_at(), *self._workers.continue_times)
            if due is None:
                return None if ended else await self._reasons()
            self._skip_to(due)
        return None

    def _skip_to(self, due: int) -> None:
        """Skip to shortly before ``due``, so that all workers are running when it is reached."""
        seconds = (due - _MARGIN_MS - self._now()) / 1000
        if seconds > 0:
            self._loop.skip_time(seconds)
            self._workers.wake()

    async def _reasons(self) -> str:
        """Return the reasons why the runs that have not ended wait."""
        reasons = []
        for workflow, instance in self._rows.unfinished():
            described = await self._client.do(self._client.client.reads.describe(workflow, instance))
            reasons.append(f"{workflow}/{instance} is {described.why}")
        return "; ".join(reasons)

    def _view(self, world: Any) -> Any:
        """Return a copy of the state to compare: the fakes and the user's tables."""
        if self._scenario.view is not None:
            world = self._scenario.view(world)
        elif not any("__eq__" in vars(cls) for cls in type(world).__mro__[:-1]):
            world = getattr(world, "__dict__", world)  # two objects without __eq__ are never equal
        return copy.deepcopy((world, self._rows.user_tables()))

    def _now(self) -> int:
        return to_ms(self._clock.now())

    def _note(self, subject: str, text: str) -> None:
        """Add an entry to the story."""
        self._story.append(f"{self._loop.time():12.3f} s  {subject}: {text}")
