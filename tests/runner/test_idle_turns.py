"""Runs that are claimed again and again without progress are reported by name and slowed down."""

from __future__ import annotations

import asyncio
import logging
from typing import Any, cast

import pytest

from apps import MakeApp
from driving import until, until_status
from holdfast import Context, Graph, Handle, Holdfast, WorkerConfig
from holdfast.core.model import TaskKind
from holdfast.runner import idle_turns as module
from holdfast.runner import unit_turns
from holdfast.runner.idle_turns import FREE_TURNS, REPORTED_TURNS, IdleTurns
from holdfast.runner.turn import Turn
from holdfast.runner.unit_turns import GraphRunTurn
from holdfast.store.protocol import Claim, MailboxPage, Release, RunByName, RunRecord, TaskRef
from holdfast.workflow import mailbox

TASK_KEY = (7, 0)


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Run:
    workflow = "etl"
    instance_id = "nightly"


def claim(*, last: int = 0, kind: TaskKind = TaskKind.WAKE, at: int | None = 1) -> Claim:
    run = cast("RunRecord", cast("Any", Run()))
    return Claim(TaskRef(*TASK_KEY, "w1", 1), kind, False, run, MailboxPage((), complete=True, last=last), at)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def idle_turns(clock: Clock) -> IdleTurns:
    return IdleTurns(clock)


def spin(idle_turns: IdleTurns, clock: Clock, turns: int, spinning: Claim | None = None) -> None:
    """Count idle turns in immediate succession, each after its pause."""
    for _ in range(turns):
        clock.now += 0.001 + idle_turns.pause_before(TASK_KEY)
        idle_turns.idle(spinning or claim())


def reported(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]


# --- counting


def test_a_run_that_spins_is_reported_by_name_and_again_when_its_turns_have_doubled(
    idle_turns: IdleTurns, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    spin(idle_turns, clock, REPORTED_TURNS - 1)
    assert reported(caplog) == []

    spin(idle_turns, clock, 1)
    [line] = reported(caplog)
    assert line.startswith(f"run etl/nightly was claimed {REPORTED_TURNS} times in a row without progress")

    spin(idle_turns, clock, REPORTED_TURNS)
    assert len(reported(caplog)) == 2


def test_the_first_turns_are_not_slowed_down_and_later_ones_by_up_to_a_second(
    idle_turns: IdleTurns, clock: Clock
) -> None:
    spin(idle_turns, clock, FREE_TURNS - 1)
    assert idle_turns.pause_before(TASK_KEY) == 0

    spin(idle_turns, clock, 3)
    assert 0 < idle_turns.pause_before(TASK_KEY) < 0.01

    spin(idle_turns, clock, 100)
    assert idle_turns.pause_before(TASK_KEY) == module.MAX_PAUSE_S
    assert idle_turns.pause_before((8, 0)) == 0


@pytest.mark.parametrize("cause", ["event", "resume", "time", "progress"])
def test_turns_with_a_cause_are_not_counted(
    idle_turns: IdleTurns, clock: Clock, caplog: pytest.LogCaptureFixture, cause: str
) -> None:
    for n in range(5 * REPORTED_TURNS):
        spin(idle_turns, clock, 1, claim(last=n) if cause == "event" else None)
        if cause == "resume":
            idle_turns.idle(claim(kind=TaskKind.RESUME))
        elif cause == "time":
            clock.now += 2
        elif cause == "progress":
            idle_turns.forget(TASK_KEY)

    assert reported(caplog) == []
    assert idle_turns.pause_before(TASK_KEY) == 0


def test_a_unit_claimed_by_an_advance_counts_although_its_kind_is_resume(
    idle_turns: IdleTurns, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    spin(idle_turns, clock, REPORTED_TURNS, claim(kind=TaskKind.RESUME, at=None))
    assert len(reported(caplog)) == 1


@pytest.mark.promise("bounded-resources", store=None)
def test_the_number_of_remembered_streaks_is_limited(clock: Clock) -> None:
    idle_turns = IdleTurns(clock)
    for run in range(5000):
        idle_claim = claim()
        idle_claim.task = idle_claim.task._replace(run=run)
        idle_turns.idle(idle_claim)

    assert len(idle_turns._streaks) == module._MAX_STREAKS


# --- in a worker


@pytest.fixture
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_PAUSE_S", 0.02)


def graph_with_children(app: Holdfast) -> Graph:
    @app.workflow
    async def child(ctx: Context, n: int) -> int:
        await ctx.wait_for_event("go", type="go")
        return n

    graph = app.graph("graph")
    graph.node(run=child, name="one", input=lambda: 1)
    graph.node(run=child, name="two", input=lambda: 2)
    return graph


async def children_of(app: Holdfast, run: Handle[Any]) -> list[Handle[Any]]:
    found = [child.pid.split("/") for child in (await run.describe()).children]
    return [await app.get(*pid) for pid in found] if len(found) == 2 else []


@pytest.mark.promise("liveness")
@pytest.mark.usefixtures("short_pauses")
async def test_a_graph_that_spins_is_reported_slowed_down_and_continues_without_the_cause(
    make_app: MakeApp, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    app = make_app()
    graph = graph_with_children(app)
    turns: list[float] = []

    async def read_no_exits(_turn: GraphRunTurn) -> MailboxPage:
        turns.append(asyncio.get_running_loop().time())
        return MailboxPage((), complete=True, last=0)

    async with app:
        run = await app.start(graph, id="spinning")
        children = await until(lambda: children_of(app, run))
        with monkeypatch.context() as bug:
            bug.setattr(unit_turns, "_exits", lambda _bag: [])
            bug.setattr(GraphRunTurn, "_read_exits", read_no_exits)
            for child in children:
                await child.send_event("go")
            await until(lambda: has_reported(caplog))
        assert "run graph/spinning was claimed 20 times in a row without progress" in reported(caplog)[0]
        assert turns[-1] - turns[FREE_TURNS] > 0.02

        assert await run.result(timeout=60) == {"one": 1, "two": 2}


async def has_reported(caplog: pytest.LogCaptureFixture) -> bool:
    return bool(reported(caplog))


@pytest.mark.promise("isolation-of-runs")
@pytest.mark.above_the_store
@pytest.mark.usefixtures("short_pauses")
@pytest.mark.interpreted("replaces a method that a compiled build calls directly")
async def test_a_workflow_that_spins_is_reported_and_delays_no_other_run(
    make_app: MakeApp, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    app = make_app()

    @app.workflow
    async def waiting(ctx: Context) -> int:
        return int((await ctx.wait_for_event("go", type="go")).payload)

    @app.workflow
    async def other(ctx: Context) -> int:
        return await ctx.do("step", lambda: 1)

    plan = Turn._plan

    def always_due(turn: Turn, decision: Any) -> Any:
        planned = plan(turn, decision)
        if isinstance(planned, Release) and turn.claim.run.workflow == "waiting":
            planned.run_at = turn._context.ports.now_ms()
        return planned

    async with app:
        with monkeypatch.context() as bug:
            bug.setattr(Turn, "_plan", always_due)
            run = await app.start(waiting, id="w")
            await until(lambda: has_reported(caplog))
            assert await (await app.start(other)).result(timeout=60) == 1
        await run.send_event("go", 5)

        assert await run.result(timeout=60) == 5
    assert all(line.startswith("run waiting/w was claimed") for line in reported(caplog))


@pytest.mark.above_the_store
@pytest.mark.usefixtures("short_pauses")
async def test_a_worker_stops_although_a_run_spins(
    make_app: MakeApp, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    app = make_app()
    graph = graph_with_children(app)
    monkeypatch.setattr(unit_turns, "_exits", lambda _bag: [])
    monkeypatch.setattr(GraphRunTurn, "_read_exits", no_exits)
    async with app:
        run = await app.start(graph)
        for child in await until(lambda: children_of(app, run)):
            await child.send_event("go")
        await until(lambda: has_reported(caplog))

    assert (await asyncio.wait_for(_owner(make_app(), run.id), 60)) is None


async def no_exits(_turn: GraphRunTurn) -> MailboxPage:
    return MailboxPage((), complete=True, last=0)


async def _owner(app: Holdfast, id_: str) -> str | None:
    async with app.connect():
        [row] = await app._opened().store.read(RunByName("graph", id_))
        return row.owner


# --- busy runs that make progress


@pytest.fixture
def streaks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Lengths of the streaks of idle turns, one entry for each counted turn."""
    counted: list[int] = [0]
    idle = IdleTurns.idle

    def recording(idle_turns: IdleTurns, idle_claim: Claim) -> None:
        idle(idle_turns, idle_claim)
        counted.append(idle_turns._streaks[idle_claim.task[:2]].turns)

    monkeypatch.setattr(IdleTurns, "idle", recording)
    return counted


@pytest.mark.above_the_store
async def test_many_quick_events_do_not_count_as_idle_turns(
    make_app: MakeApp, monkeypatch: pytest.MonkeyPatch, streaks: list[int]
) -> None:
    # The channel is soon full, and events wake the run although it cannot take them.
    monkeypatch.setattr(mailbox, "_CHANNEL_CAPACITY", 5)
    app = make_app()

    @app.workflow
    async def listening(ctx: Context) -> list[int]:
        work = ctx.listen("work")
        await ctx.wait_for_event("go", type="go", timeout="1 hour")
        return [await work.receive() for _ in range(60)]

    async with app:
        run = await app.start(listening)
        await until_status(run, "waiting")
        for n in range(60):
            await run.send_event("work", n)
        await run.send_event("go")
        assert await run.result(timeout=60) == [*range(60)]

    assert max(streaks) < FREE_TURNS


@pytest.mark.above_the_store
async def test_polls_heartbeats_and_pauses_do_not_count_as_idle_turns(make_app: MakeApp, streaks: list[int]) -> None:
    app = make_app(worker=WorkerConfig(lease="60 ms", poll="5 ms", max_losses=1_000_000))
    go = asyncio.Event()

    @app.workflow
    async def polling(ctx: Context) -> int:
        for n in range(30):
            await ctx.sleep(f"poll {n}", "2 ms")
        return 30

    @app.workflow
    async def slow(ctx: Context) -> None:
        await ctx.do("step", go.wait)

    @app.workflow
    async def paused(ctx: Context) -> None:
        await ctx.wait_for_event("go", type="go")

    async with app:
        runs = [await app.start(polling), await app.start(slow)]
        controlled = await app.start(paused)
        for _ in range(REPORTED_TURNS):
            await until_status(controlled, "waiting")
            await controlled.pause()
            await until_status(controlled, "paused")
            await controlled.resume()
        go.set()
        await controlled.send_event("go")
        for run in [*runs, controlled]:
            await run.result(timeout=60)

    assert max(streaks) < FREE_TURNS
