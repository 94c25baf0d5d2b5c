"""One run of a user's workflow to its end, with the mishaps of one seed: the same seed, the same run."""

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
from holdfast.testing.users.calls import Called, Calls, Needs, Step
from holdfast.testing.users.loop import UsersLoop
from holdfast.testing.users.mishaps import Mishap, Mishaps
from holdfast.testing.users.outside import Outside
from holdfast.testing.users.process import MOMENT, UserProcess
from holdfast.testing.users.replay import replayed_otherwise
from holdfast.testing.users.report import SentEvent, SimulatedRun, SimulationError

CALM = 0
"""The seed of the run without faults."""
_MOST_CALLBACKS = 100_000
"""Without faults; a run that takes so many has no end. With faults it may take a few times as many as without."""
_TIMES = 20
_MOST_LOOKS_AFTER = 500
"""After the end of the run, at what it has left behind."""
_LOOK_SECONDS = 0.1
_LONG_LOOK_SECONDS = 1.0
"""While steps take their time."""
_MARGIN_MS = 300
_MOST_WORKERS = 3


@dataclass(frozen=True, slots=True)
class Play:
    """What is simulated: the same in all seeds."""

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
class Seen:
    """What came of a run."""

    run: SimulatedRun
    plain: Any
    """The result as it is stored."""
    view: Any
    """What the world outside looks like."""
    stuck: str | None
    """What it waits for in vain."""
    endless: str | None
    replay: str | None
    """What another replay of it would do differently."""
    calls: Sequence[Called]
    needs: Mapping[Step, Needs]
    faults: Sequence[str]
    numbers: Counter[str]
    story: Sequence[str]
    digest: str
    callbacks: int

    @property
    def end(self) -> tuple[Any, ...]:
        return self.run.status, self.plain, self.run.error


def perform(
    play: Play,
    seed: int,
    calm: Seen | None = None,
    *,
    only: Collection[str] | None = None,
    rehearsed: Mapping[Step, int] | None = None,
) -> Seen:
    """Run it once. ``calm``: what came of it without faults. ``only``: of its faults, just these.

    ``rehearsed``: steps that are called twice in a row, with how far the first call gets.
    """
    collecting = gc.isenabled()
    gc.disable()  # what it finalizes, and when, is no part of the seed
    most = _MOST_CALLBACKS if calm is None else _MOST_CALLBACKS // 10 + _TIMES * calm.callbacks
    loop = UsersLoop(stream(seed, "schedule"), most)
    scene = _Scene(play, seed, loop, {} if calm is None else calm.needs, only, rehearsed or {})
    try:
        with listening([]):
            seen = scene.play()
    finally:
        with listening([]):
            loop.end()
            scene.end()
        if collecting:
            gc.enable()
    if loop.refused is not None:
        raise loop.refused
    if scene.broken:
        raise SimulationError(f"This is a bug of Holdfast, seen with seed {seed}; please report it: {scene.broken[0]}")
    return seen


class _Scene:
    def __init__(
        self,
        play: Play,
        seed: int,
        loop: UsersLoop,
        needed: Mapping[Step, Needs],
        only: Collection[str] | None,
        rehearsed: Mapping[Step, int],
    ) -> None:
        self._play = play
        self._seed = seed
        self._loop = loop
        self._trace = Trace()
        self._story: list[str] = []
        self._own_tables: set[str] = set()
        """Those that are not the user's."""
        self._stopped: list[tuple[int, Process]] = []
        """Those that stand still, and until when."""
        self._clock = LoopClock(loop)
        self._mishaps = Mishaps(seed, () if seed == CALM else only)
        self._database = SimulatedDatabase(loop, self._trace)
        self._calls = Calls(
            loop,
            self._mishaps,
            needed,
            rehearsed,
            most_attempts=self._most_attempts,
            finished=self._finished,
            kill=self._kill,
            stop=self._stop,
            note=self._note,
        )
        self._workers = self._make_workers()
        self._client = UserProcess("outside", play.app, loop, self._database, Mishaps(CALM, ()))
        self._outside = Outside(
            play.events, self._pid, self._client, self._database, self._mishaps, self._now, self._note
        )

    @property
    def broken(self) -> Sequence[str]:
        """Promises of the engine, if there are any."""
        return self._trace.violations

    @property
    def _pid(self) -> str:
        return f"{self._play.workflow}/{self._play.id}"

    def _make_workers(self) -> list[UserProcess]:
        """As the app's own workers, perhaps without a memory."""
        number = 1 if self._seed == CALM else stream(self._seed, "workers").randint(1, _MOST_WORKERS)
        made = []
        for n in range(1, number + 1):
            name, config = f"worker {n}", self._play.app.worker_config
            config = replace(config, poll=max(MOMENT, config.poll_ms / 1000))
            if self._mishaps.has(Mishap.NO_CACHE, name):
                config = replace(config, cache=0)
            made.append(
                UserProcess(
                    name,
                    self._play.app,
                    self._loop,
                    self._database,
                    self._mishaps,
                    config=config,
                    calls=self._calls,
                    died=self._died,
                )
            )
        return made

    # --- the play

    def play(self) -> Seen:
        world = self._play.world() if self._play.world is not None else None
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
            result = self._play.app.registry.get(self._play.workflow).decode_output(plain)
        run = SimulatedRun(None if self._seed == CALM else self._seed, status, result, error_text, world)
        self._note(self._pid, f"{run.ending}" if stuck is None else f"waits for ever: {stuck}")
        view = self._view(world)
        return Seen(
            run,
            plain,
            view,
            stuck,
            endless,
            None if endless or stuck else replayed_otherwise(self._play.app, self._database, self._loop),
            self._calls.made,
            dict(self._calls.needs),
            [*self._mishaps.happened],
            self._mishaps.numbers(),
            [*self._story],
            self._trace.digest(),
            self._loop.callbacks,
        )

    def end(self) -> None:
        for process in [*self._workers, self._client]:
            process.end()

    async def _run(self) -> str | None:
        """To the end; what it waits for if there is none."""
        await self._loop.spawn(self._database.process, self._database.open())
        self._own_tables = self._tables()
        for statement in self._play.tables:
            self._database.rows(statement)
        self._client.boot()
        for worker in self._workers:
            worker.boot()
        client, play = self._client.client, self._play
        await self._client.do(client.start(play.workflow, play.params, id=play.id, **play.options))
        self._note(self._pid, "is started")
        await self._outside.begin()
        return await self._follow()

    async def _follow(self) -> str | None:
        looks_after, pause = 0, _LOOK_SECONDS
        while self._loop.refused is None:
            await asyncio.sleep(pause)
            self._resume()
            over = self._ended()
            looks_after += over
            if looks_after > _MOST_LOOKS_AFTER:
                return None
            if not self._resting():
                pause = min(1.5 * pause, _LONG_LOOK_SECONDS)
                continue
            pause = _LOOK_SECONDS
            due = self._next_due()
            if await self._outside.go_on(nothing_else=due is None and not over):
                continue
            due = _earliest(due, self._outside.next_at(), *(at for at, _ in self._stopped))
            if due is None:
                return None if over else await self._reasons()
            self._skip_to(due)
        return None

    # --- what there is to do

    def _resting(self) -> bool:
        """No worker has anything at hand, and what one has left behind is still its own."""
        return not any(worker.busy for worker in self._workers)

    def _resume(self) -> None:
        for entry in [entry for entry in self._stopped if entry[0] <= self._now()]:
            self._stopped.remove(entry)
            entry[1].stopped = False

    def _next_due(self) -> int | None:
        """When something happens by itself. What nobody here can run does not."""
        registry = self._play.app.registry
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
        """To shortly before it: everybody is there when it comes."""
        seconds = (due - _MARGIN_MS - self._now()) / 1000
        if seconds > 0:
            self._loop.pass_time(seconds)
            for worker in self._workers:
                worker.wake()

    def _ended(self) -> bool:
        return bool(self._row("SELECT completed_at IS NOT NULL", [True])[0])

    def _end(self) -> tuple[str, Any, str | None]:
        never = "never started", None, None, None
        status, output, error, note = self._row("SELECT status, output, error, note", never)
        if error is not None:
            failure = Failure.decode(error)
            return status, output, f"{failure.name}: {failure.message}"
        return status, output, note

    def _row(self, select: str, otherwise: Sequence[Any]) -> Sequence[Any]:
        rows = self._database.rows(
            f"{select} FROM holdfast_run WHERE workflow = ? AND instance_id = ? AND current = 1",
            self._play.workflow,
            self._play.id,
        )
        return rows[0] if rows else otherwise

    async def _reasons(self) -> str:
        """Why the runs that have not ended wait."""
        living = self._database.rows(
            "SELECT workflow, instance_id FROM holdfast_run WHERE completed_at IS NULL AND current = 1 ORDER BY id"
        )
        told = []
        for workflow, instance in living:
            described = await self._client.do(self._client.client.describe(workflow, instance))
            told.append(f"{workflow}/{instance} is {described.why}")
        return "; ".join(told)

    def _view(self, world: Any) -> Any:
        """What there is to compare, as it is now."""
        if self._play.view is not None:
            world = self._play.view(world)
        elif not any("__eq__" in vars(cls) for cls in type(world).__mro__[:-1]):
            world = getattr(world, "__dict__", world)  # no object is equal to another
        tables = {name: self._contents(name) for name in sorted(self._tables() - self._own_tables)}
        return copy.deepcopy((world, tables))

    def _tables(self) -> set[str]:
        rows = self._database.rows("SELECT name FROM sqlite_schema WHERE type = 'table'")
        return {name for (name,) in rows}

    def _contents(self, table: str) -> list[tuple[Any, ...]]:
        quoted = table.replace('"', '""')
        return sorted(self._database.rows(f'SELECT * FROM "{quoted}"'), key=repr)  # noqa: S608

    def _most_attempts(self, step: Step) -> int | None:
        """Of a chain's step: that is part of the run's plan."""
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

    # --- what befalls

    def _kill(self, process: Process | None, how: str) -> None:
        for worker in self._workers:
            if worker.process is process:
                worker.kill(how, process)

    def _died(self, worker: UserProcess, how: str) -> None:
        self._note(worker.name, f"dies {how}")
        again = self._mishaps.draw(f"again.{worker.name}.{worker.lives}").uniform(0.02, 1.0)
        self._loop.call_later(again, worker.boot, context=self._loop.main.context())

    def _stop(self, process: Process | None, leases: float) -> None:
        if process is None:
            return
        seconds = leases * self._play.app.worker_config.lease_ms / 1000
        self._note(process.name, f"stands still for {seconds:.1f} s before that is recorded, and goes on")
        process.stopped = True
        self._stopped.append((self._now() + round(seconds * 1000), process))

    def _now(self) -> int:
        return to_ms(self._clock.now())

    def _note(self, who: str, what: str) -> None:
        self._story.append(f"{self._loop.time():12.3f} s  {who}: {what}")


def _earliest(*times: int | None) -> int | None:
    return min((at for at in times if at is not None), default=None)
