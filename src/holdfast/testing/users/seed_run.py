"""One execution of a scenario to its end, with the faults of one seed. The same seed gives the same execution."""

from __future__ import annotations

import asyncio
import copy
import gc
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from holdfast.app import Holdfast
from holdfast.core import codec
from holdfast.core.failure import Failure
from holdfast.core.model import Status, to_ms
from holdfast.store.protocol import FactState
from holdfast.testing.simulation.database import SimulatedDatabase
from holdfast.testing.simulation.loop import Livelock, Process
from holdfast.testing.simulation.ports import LoopClock
from holdfast.testing.simulation.run import listening
from holdfast.testing.simulation.streams import stream
from holdfast.testing.simulation.trace import Trace
from holdfast.testing.users.external_client import ExternalClient
from holdfast.testing.users.fault_plan import FaultKind, FaultPlan
from holdfast.testing.users.loop import UsersLoop
from holdfast.testing.users.process import WORKER_POLL_SECONDS, UserProcess
from holdfast.testing.users.replay import replay_difference
from holdfast.testing.users.report import SentEvent, SimulatedRun, SimulationError
from holdfast.testing.users.step_calls import AttemptNeeds, Step, StepCall, StepCalls

BASELINE_SEED = 0
"""The seed of the baseline, the run without faults."""
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
_MAX_WORKERS = 3


@dataclass(frozen=True, slots=True)
class Scenario:
    """What ``simulate`` was called with; the same for all seeds."""

    app: Holdfast
    workflow: str
    params: Any
    id: str
    options: Mapping[str, Any]
    events: Sequence[SentEvent]
    world: Callable[[], Any] | None
    view: Callable[[Any], Any] | None
    tables: Sequence[str]


@dataclass(frozen=True, slots=True)
class SeedResult:
    """The result of one execution of the scenario."""

    run: SimulatedRun
    plain: Any
    """The run's output as stored."""
    view: Any
    """Copy of the fakes' state and of the user's tables at the end."""
    stuck: str | None
    """Reason why the run waits forever; None if it does not."""
    endless: str | None
    """Message about a run that did not end within the allowed callbacks."""
    replay: str | None
    """Difference between the run and a replay of it; None if there is none."""
    calls: Sequence[StepCall]
    needs: Mapping[Step, AttemptNeeds]
    faults: Sequence[str]
    fault_counts: Counter[str]
    story: Sequence[str]
    digest: str
    callbacks: int

    @property
    def end(self) -> tuple[Any, ...]:
        return self.run.status, self.plain, self.run.error


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
    loop = UsersLoop(stream(seed, "schedule"), max_callbacks)
    seed_run = _SeedRun(scenario, seed, loop, {} if baseline is None else baseline.needs, only, extra_calls or {})
    try:
        with listening([]):
            result = seed_run.execute()
    finally:
        with listening([]):
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
        loop: UsersLoop,
        needed: Mapping[Step, AttemptNeeds],
        only: Collection[str] | None,
        extra_calls: Mapping[Step, int],
    ) -> None:
        self._scenario = scenario
        self._seed = seed
        self._loop = loop
        self._trace = Trace()
        self._story: list[str] = []
        self._engine_tables: set[str] = set()
        """Tables of the engine."""
        self._stopped: list[tuple[int, Process]] = []
        """Stopped processes, each with the time at which it continues."""
        self._clock = LoopClock(loop)
        self._faults = FaultPlan(seed, () if seed == BASELINE_SEED else only)
        self._database = SimulatedDatabase(loop, self._trace)
        self._calls = StepCalls(
            loop,
            self._faults,
            needed,
            extra_calls,
            max_attempts_of=self._max_attempts_of,
            finished=self._finished,
            kill=self._kill,
            stop=self._stop,
            note=self._note,
        )
        self._workers = self._make_workers()
        self._client = UserProcess("outside", scenario.app, loop, self._database, FaultPlan(BASELINE_SEED, ()))
        self._external_client = ExternalClient(
            scenario.events, self._pid, self._client, self._database, self._faults, self._now, self._note
        )

    @property
    def violations(self) -> Sequence[str]:
        """Violations of the engine's promises."""
        return self._trace.violations

    @property
    def _pid(self) -> str:
        return f"{self._scenario.workflow}/{self._scenario.id}"

    def _make_workers(self) -> list[UserProcess]:
        """Create workers with the app's configuration, some of them without a cache."""
        count = 1 if self._seed == BASELINE_SEED else stream(self._seed, "workers").randint(1, _MAX_WORKERS)
        workers = []
        for n in range(1, count + 1):
            name, config = f"worker {n}", self._scenario.app.worker_config
            config = replace(config, poll=max(WORKER_POLL_SECONDS, config.poll_ms / 1000))
            if self._faults.has(FaultKind.NO_CACHE, name):
                config = replace(config, cache=0)
            workers.append(
                UserProcess(
                    name,
                    self._scenario.app,
                    self._loop,
                    self._database,
                    self._faults,
                    config=config,
                    calls=self._calls,
                    died=self._restart_later,
                )
            )
        return workers

    # --- execution

    def execute(self) -> SeedResult:
        world = self._scenario.world() if self._scenario.world is not None else None
        endless = None
        stuck = None
        try:
            stuck = self._loop.run_until_complete(self._run())
        except Livelock as error:
            endless = str(error)
        status, output, error_text = self._end()
        plain = codec.plain(output)
        result = plain
        if status == Status.COMPLETE:
            result = self._scenario.app.registry.get(self._scenario.workflow).decode_output(plain)
        run = SimulatedRun(None if self._seed == BASELINE_SEED else self._seed, status, result, error_text, world)
        self._note(self._pid, f"{run.ending}" if stuck is None else f"waits forever: {stuck}")
        view = self._view(world)
        return SeedResult(
            run,
            plain,
            view,
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
        for process in [*self._workers, self._client]:
            process.end()

    async def _run(self) -> str | None:
        """Run to the end; return the reason if the run waits forever."""
        await self._loop.spawn(self._database.process, self._database.open())
        self._engine_tables = self._tables()
        for statement in self._scenario.tables:
            self._database.rows(statement)
        self._client.boot()
        for worker in self._workers:
            worker.boot()
        client, scenario = self._client.client, self._scenario
        await self._client.do(client.start(scenario.workflow, scenario.params, id=scenario.id, **scenario.options))
        self._note(self._pid, "is started")
        await self._external_client.send_early()
        return await self._poll_until_end()

    async def _poll_until_end(self) -> str | None:
        polls_after_end, pause = 0, _POLL_SECONDS
        while self._loop.refused is None:
            await asyncio.sleep(pause)
            self._resume()
            ended = self._ended()
            polls_after_end += ended
            if polls_after_end > _MAX_POLLS_AFTER_END:
                return None
            if any(worker.busy for worker in self._workers):
                pause = min(1.5 * pause, _LONG_POLL_SECONDS)
                continue
            pause = _POLL_SECONDS
            due = self._next_due()
            if await self._external_client.send_due(nothing_else=due is None and not ended):
                continue
            due = _earliest(due, self._external_client.next_at(), *(at for at, _ in self._stopped))
            if due is None:
                return None if ended else await self._reasons()
            self._skip_to(due)
        return None

    # --- due work

    def _resume(self) -> None:
        for entry in [entry for entry in self._stopped if entry[0] <= self._now()]:
            self._stopped.remove(entry)
            entry[1].stopped = False

    def _next_due(self) -> int | None:
        """Return the next time at which a task or an outbound event is due, without tasks that no worker can run."""
        registry = self._scenario.app.registry
        tasks = self._database.rows("SELECT workflow, owner, run_at, lease_until, expires_at FROM holdfast_task")
        times = [expires_at for *_, expires_at in tasks]
        for workflow, owner, run_at, lease_until, _ in tasks:
            if owner is not None:
                times.append(lease_until)
            elif workflow in registry.runnable():
                times.append(run_at)
        if registry.outbox is not None:
            [(due,)] = self._database.rows("SELECT min(due_at) FROM holdfast_outbox WHERE delivered_at IS NULL")
            times.append(due)
        return _earliest(*times)

    def _skip_to(self, due: int) -> None:
        """Skip to shortly before ``due``, so that all workers are running when it is reached."""
        seconds = (due - _MARGIN_MS - self._now()) / 1000
        if seconds > 0:
            self._loop.skip_time(seconds)
            for worker in self._workers:
                worker.wake()

    def _ended(self) -> bool:
        return bool(self._row("SELECT completed_at IS NOT NULL", [True])[0])

    def _end(self) -> tuple[str, Any, str | None]:
        not_started = "never started", None, None, None
        status, output, error, note = self._row("SELECT status, output, error, note", not_started)
        if error is not None:
            failure = Failure.decode(error)
            return status, output, f"{failure.name}: {failure.message}"
        return status, output, note

    def _row(self, select: str, default: Sequence[Any]) -> Sequence[Any]:
        rows = self._database.rows(
            f"{select} FROM holdfast_run WHERE workflow = ? AND instance_id = ? AND current = 1",
            self._scenario.workflow,
            self._scenario.id,
        )
        return rows[0] if rows else default

    async def _reasons(self) -> str:
        """Return the reasons why the runs that have not ended wait."""
        unfinished = self._database.rows(
            "SELECT workflow, instance_id FROM holdfast_run WHERE completed_at IS NULL AND current = 1 ORDER BY id"
        )
        reasons = []
        for workflow, instance in unfinished:
            described = await self._client.do(self._client.client.reads.describe(workflow, instance))
            reasons.append(f"{workflow}/{instance} is {described.why}")
        return "; ".join(reasons)

    def _view(self, world: Any) -> Any:
        """Return a copy of the state to compare: the fakes and the user's tables."""
        if self._scenario.view is not None:
            world = self._scenario.view(world)
        elif not any("__eq__" in vars(cls) for cls in type(world).__mro__[:-1]):
            world = getattr(world, "__dict__", world)  # two objects without __eq__ are never equal
        tables = {name: self._contents(name) for name in sorted(self._tables() - self._engine_tables)}
        return copy.deepcopy((world, tables))

    def _tables(self) -> set[str]:
        rows = self._database.rows("SELECT name FROM sqlite_schema WHERE type = 'table'")
        return {name for (name,) in rows}

    def _contents(self, table: str) -> list[tuple[Any, ...]]:
        quoted = table.replace('"', '""')
        return sorted(self._database.rows(f'SELECT * FROM "{quoted}"'), key=repr)  # noqa: S608

    def _max_attempts_of(self, step: Step) -> int | None:
        """Return the maximum attempts of a chain step, which the run's plan holds."""
        rows = self._facts(step, FactState.PLAN)
        return rows[0][0] if rows else 1

    def _finished(self, step: Step) -> bool:
        return bool(self._facts(step, FactState.RESULT))

    def _facts(self, step: Step, state: FactState) -> list[tuple[Any, ...]]:
        workflow, _, instance = step[0].partition("/")
        return self._database.rows(
            "SELECT f.max_attempts FROM holdfast_fact AS f JOIN holdfast_run AS r ON r.id = f.run "
            "WHERE r.workflow = ? AND r.instance_id = ? AND r.current = 1 AND f.state = ? AND f.key = ?",
            workflow,
            instance,
            int(state),
            step[1],
        )

    # --- faults of workers

    def _kill(self, process: Process | None, how: str) -> None:
        for worker in self._workers:
            if worker.process is process:
                worker.kill(how, process)

    def _restart_later(self, worker: UserProcess, how: str) -> None:
        self._note(worker.name, f"dies {how}")
        delay = self._faults.draw(f"again.{worker.name}.{worker.lives}").uniform(0.02, 1.0)
        self._loop.call_later(delay, worker.boot, context=self._loop.main.context())

    def _stop(self, process: Process | None, leases: float) -> None:
        if process is None:
            return
        seconds = leases * self._scenario.app.worker_config.lease_ms / 1000
        self._note(process.name, f"stops for {seconds:.1f} s before the result is recorded, then continues")
        process.stopped = True
        self._stopped.append((self._now() + round(seconds * 1000), process))

    def _now(self) -> int:
        return to_ms(self._clock.now())

    def _note(self, subject: str, text: str) -> None:
        self._story.append(f"{self._loop.time():12.3f} s  {subject}: {text}")


def _earliest(*times: int | None) -> int | None:
    return min((at for at in times if at is not None), default=None)
