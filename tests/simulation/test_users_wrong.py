"""Mistakes in workflows, each of a kind: they are found, and called by their name."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from holdfast import ChainTask, Context, Holdfast, Retry, StepTx, Transaction, select
from holdfast.testing import FindingKind, SentEvent, SimulatedRun, SimulationFailed, SimulationReport, simulate

SEEDS = 10


@pytest.fixture
def app() -> Holdfast:
    return Holdfast("sqlite://")


class World:
    """What steps do outside; made anew for each run."""

    done: list[Any]

    def fresh(self) -> list[Any]:
        self.done = []
        return self.done


@pytest.fixture
def world() -> World:
    return World()


async def found(*args: Any, **options: Any) -> SimulationReport:
    return await simulate(*args, **{"seeds": SEEDS, "fail": False, **options})


# --- a step that is not safe to run twice


async def test_a_charge_without_a_key(app: Holdfast, world: World) -> None:
    @app.step
    async def look_up(order: str) -> str:
        return order

    @app.step
    async def charge(order: str) -> str:
        world.done.append(order)
        return f"payment {order}"

    @app.workflow
    async def fulfil(_ctx: Context, order: str) -> str:
        return await charge(await look_up(order))

    report = await found(app, fulfil, "o-1", world=world.fresh)

    [finding] = report.findings
    assert (finding.kind, finding.step) == (FindingKind.STEP, "'charge'")
    assert "without faults: ['o-1']" in finding.message
    assert "now:            ['o-1', 'o-1']" in finding.message
    assert "'charge' was called more than once: returned 'payment o-1', then returned 'payment o-1'" in finding.message
    assert len(finding.faults) == 1
    assert any("step 'charge' is called again (call 2)" in line for line in finding.story)


async def test_a_function_that_is_not_async(app: Holdfast, world: World) -> None:
    @app.step
    def charge(order: str) -> None:
        world.done.append(order)

    @app.workflow
    async def fulfil(_ctx: Context, order: str) -> None:
        await charge(order)

    report = await found(app, fulfil, "o-1", world=world.fresh)
    assert [(one.kind, one.step) for one in report.findings] == [(FindingKind.STEP, "'charge'")]


async def test_a_step_that_was_cut_off_in_the_middle(app: Holdfast, world: World) -> None:
    """It would be right if it always came to its end."""

    @app.step
    async def move(amount: int) -> None:
        if world.done == ["taken", "given"]:
            return
        world.done.append("taken")
        await asyncio.sleep(0)
        world.done.append("given")

    @app.workflow
    async def transfer(_ctx: Context, amount: int) -> None:
        await move(amount)

    report = await found(app, transfer, 5, world=world.fresh, seeds=60)

    [finding] = report.findings
    assert (finding.kind, finding.step) == (FindingKind.STEP, "'move'")
    assert "interrupted, then returned None" in finding.message
    assert any("dies within step 'move'" in line for line in finding.story)


async def test_a_second_call_that_is_refused(app: Holdfast, world: World) -> None:
    """Nothing outside is looked at: that the run fails is enough."""

    @app.step
    async def register(name: str) -> str:
        if name in world.done:
            raise ValueError(f"{name} exists already")
        world.done.append(name)
        return name

    @app.workflow
    async def sign_up(_ctx: Context, name: str) -> str:
        return await register(name)

    report = await found(app, sign_up, "ann", world=world.fresh, view=lambda _done: None)

    [finding] = report.findings
    assert (finding.kind, finding.step) == (FindingKind.STEP, "'register'")
    assert "now:            errored: ValueError: ann exists already" in finding.message
    assert "returned 'ann', then raised ValueError: ann exists already" in finding.message


async def test_a_node_of_a_graph_and_a_step_of_a_chain(app: Holdfast, world: World) -> None:
    graph, chain = app.graph("etl"), app.chain("orders")

    @graph.node
    async def extract() -> int:
        world.done.append("extracted")
        return 1

    @chain.step("PAY")
    async def pay(_task: ChainTask) -> int:
        world.done.append("paid")
        return 1

    for work, step in ((graph, "'extract'"), (chain, "'PAY'")):
        [finding] = (await found(app, work, world=world.fresh)).findings
        assert (finding.kind, finding.step) == (FindingKind.STEP, step)


async def test_a_step_of_a_child(app: Holdfast, world: World) -> None:
    @app.step
    async def charge() -> None:
        world.done.append("charged")

    @app.workflow
    async def child(_ctx: Context) -> None:
        await charge()

    @app.workflow
    async def parent(ctx: Context) -> None:
        await ctx.run(child, id="the-child")

    [finding] = (await found(app, parent, world=world.fresh)).findings
    assert (finding.kind, finding.step) == (FindingKind.STEP, "'charge'")
    assert any("child/the-child: step 'charge' is called again" in line for line in finding.story)


# --- a result that depends on timing


async def test_results_in_the_order_of_their_coming(app: Holdfast) -> None:
    @app.step
    async def fetch(page: int) -> int:
        return page

    @app.workflow
    async def pages(ctx: Context) -> list[int]:
        calls = [ctx.do(f"page {n}", fetch, n) for n in range(3)]
        return [await done for done in asyncio.as_completed(calls)]

    report = await found(app, pages)

    [finding] = report.findings
    assert (finding.kind, finding.step) == (FindingKind.TIMING, None)
    assert "without faults: returned [0, 1, 2]" in finding.message
    assert len(report.endings) > 1


async def test_what_the_steps_do_outside_in_the_order_of_their_coming(app: Holdfast, world: World) -> None:
    @app.step
    async def ship(part: int) -> None:
        if part not in world.done:
            world.done.append(part)

    @app.workflow
    async def order(ctx: Context) -> None:
        await asyncio.gather(*(ctx.do(f"part {n}", ship, n) for n in range(3)))

    assert (await found(app, order, world=world.fresh)).kinds == [FindingKind.TIMING]
    assert (await found(app, order, world=world.fresh, view=sorted)).ok


async def test_a_step_that_is_called_twice_and_is_not_to_blame(app: Holdfast, world: World) -> None:
    """Its second call comes later, and that is what shows: called twice in a row it does no harm."""

    @app.step
    async def ship(part: int) -> None:
        await asyncio.sleep(0.1 * part)
        if part not in world.done:
            world.done.append(part)

    @app.workflow
    async def order(ctx: Context) -> None:
        await asyncio.gather(*(ctx.do(f"part {n}", ship, n) for n in range(1, 3)))

    [finding] = (await found(app, order, world=world.fresh, seed=13)).findings

    assert any("is called again" in line for line in finding.story)
    assert (finding.kind, finding.step) == (FindingKind.TIMING, None)


async def test_an_event_that_counts_twice(app: Holdfast) -> None:
    @app.workflow
    async def votes(ctx: Context) -> int:
        return sum([(await ctx.wait_for_event(f"vote {n}", type="vote")).payload for n in range(3)])

    sent = [("vote", 1), ("vote", 10), ("vote", 100)]
    report = await found(app, votes, events=sent)

    assert report.kinds == [FindingKind.TIMING]
    assert any("is sent a second time" in line for line in report.findings[0].story)
    with_ids = [SentEvent(type_, payload, id=f"v{payload}") for type_, payload in sent]
    assert (await found(app, votes, events=with_ids)).ok


async def test_a_time_limit_that_a_crash_exceeds(app: Holdfast) -> None:
    @app.step
    async def ask() -> str:
        return "answered"

    @app.workflow
    async def impatient(_ctx: Context) -> str:
        try:
            async with asyncio.timeout(5):
                return await ask()
        except TimeoutError:
            return "given up"

    assert (await found(app, impatient, seeds=20)).kinds == [FindingKind.TIMING]
    assert (await found(app, impatient, allow=["given up"])).ok


# --- a wait that can never end


async def test_a_message_that_nobody_sends(app: Holdfast) -> None:
    @app.workflow
    async def listener(ctx: Context) -> Any:
        return await ctx.listen("go").receive()

    report = await found(app, listener)

    [finding] = report.findings
    assert (finding.kind, finding.seed) == (FindingKind.WAIT, None)
    assert "listener/simulated is waiting for message 'go'" in finding.message
    assert report.seeds == 0
    assert (await found(app, listener, events=[("go", 1)])).ok


async def test_an_event_that_was_thrown_away(app: Holdfast) -> None:
    """Right as long as the message comes when it is expected."""

    @app.step
    async def prepare() -> None: ...

    @app.workflow
    async def forgetful(ctx: Context) -> Any:
        channel = ctx.listen("go")
        await prepare()
        await ctx.sleep("settle", "1 minute")
        while (await select(channel, default=True)).channel is not None:
            """What came meanwhile is not meant for us."""
        return await channel.receive()

    report = await found(app, forgetful, events=[("go", 1)])

    [finding] = report.findings
    assert finding.kind is FindingKind.WAIT
    assert finding.seed is not None
    assert any("is sent before anything waits for it" in line for line in finding.story)


async def test_a_child_that_waits_is_named(app: Holdfast) -> None:
    @app.workflow
    async def child(ctx: Context) -> Any:
        return await ctx.listen("go").receive()

    @app.workflow
    async def parent(ctx: Context) -> Any:
        return await ctx.run(child, id="the-child")

    report = await found(app, parent)
    assert report.kinds == [FindingKind.WAIT]
    assert "child/the-child is waiting for message 'go'" in report.findings[0].message
    assert (await found(app, parent, events=[SentEvent("go", 1, to="child/the-child")])).ok


# --- the rest


async def test_code_that_gives_another_result_on_replay(app: Holdfast, world: World) -> None:
    @app.workflow
    async def counts(ctx: Context) -> int:
        world.done.append("replayed")
        number = len(world.done)
        await ctx.sleep("nap", "1 second")
        return number

    report = await found(app, counts, world=world.fresh, view=lambda _done: None)

    [finding] = report.findings
    assert finding.kind is FindingKind.REPLAY
    assert "counts/simulated returned 1, and 2 when it was replayed" in finding.message


async def test_code_that_asks_for_something_else_on_replay(app: Holdfast, world: World) -> None:
    @app.workflow
    async def moody(ctx: Context) -> str:
        world.done.append("replayed")
        if len(world.done) == 1:
            await ctx.sleep("pause", "1 minute")
        else:
            await ctx.wait_for_event("pause", type="go")
        return "done"

    assert (await found(app, moody, world=world.fresh)).kinds == [FindingKind.REPLAY]


async def test_a_step_that_is_never_tried_again(app: Holdfast) -> None:
    """It is tried once at most: a worker that dies with it makes the run fail."""

    @app.step(retry=Retry(limit=0))
    async def once() -> str:
        return "done"

    @app.workflow
    async def careful(_ctx: Context) -> str:
        return await once()

    def failed(run: SimulatedRun) -> bool:
        return run.status == "errored"

    [finding] = (await found(app, careful)).findings
    assert finding.kind is FindingKind.FAILURE
    assert "StepMaxAttemptsExceeded" in finding.message
    assert (await found(app, careful, allow=failed)).ok


async def test_a_run_that_fails_without_any_fault(app: Holdfast) -> None:
    @app.step(retry=Retry(limit=1, delay="1 second"))
    async def broken() -> None:
        raise LookupError("no such thing")

    @app.workflow
    async def order(_ctx: Context) -> None:
        await broken()

    report = await found(app, order)

    assert [(one.kind, one.seed) for one in report.findings] == [(FindingKind.FAILURE, None)]
    assert "errored: LookupError: no such thing, without any fault" in report.findings[0].message


async def test_a_run_that_never_comes_to_an_end(app: Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.testing.users.seed_run._MAX_CALLBACKS", 5_000)

    @app.workflow
    async def clock(ctx: Context) -> None:
        raise ctx.continue_as_new()

    assert (await found(app, clock)).kinds == [FindingKind.ENDLESS]


async def test_a_promise_of_the_user(app: Holdfast, world: World) -> None:
    @app.step
    async def charge(amount: int) -> None:
        world.done.append(amount)

    @app.workflow
    async def order(_ctx: Context, amount: int) -> None:
        await charge(amount)

    def paid_once(run: SimulatedRun) -> None:
        assert run.status == "complete"
        assert sum(run.world) <= 5, f"{sum(run.world)} were paid"

    report = await found(app, order, 5, world=world.fresh, view=lambda _done: None, check=paid_once)

    [finding] = report.findings
    assert (finding.kind, finding.step) == (FindingKind.STEP, "'charge'")
    assert "check: 10 were paid" in finding.message


async def test_a_promise_that_never_holds(app: Holdfast) -> None:
    @app.workflow
    async def nothing(_ctx: Context) -> None: ...

    def never(_run: SimulatedRun) -> None:
        raise AssertionError("it is not so")

    [finding] = (await found(app, nothing, check=never)).findings
    assert (finding.kind, finding.seed, finding.message) == (FindingKind.CHECK, None, "check: it is not so")


async def test_fakes_that_are_not_made_anew(app: Holdfast) -> None:
    counter = iter(range(1000))

    @app.step
    async def number() -> int:
        return next(counter)

    @app.workflow
    async def order(_ctx: Context) -> int:
        return await number()

    report = await found(app, order)
    assert report.kinds == [FindingKind.UNSTEADY]
    assert "Two runs without faults ended differently" in report.findings[0].message


async def test_rows_that_differ(app: Holdfast, world: World) -> None:
    @app.step
    async def note(tx: StepTx) -> None:
        world.done.append("called")
        tx.execute("INSERT INTO line VALUES (?)", len(world.done))

    @app.workflow
    async def order(_ctx: Context) -> None:
        await note()

    report = await found(
        app, order, seeds=20, world=world.fresh, view=lambda _done: None, tables=["CREATE TABLE line (n INTEGER)"]
    )
    assert [(one.kind, one.step) for one in report.findings] == [(FindingKind.STEP, "'note'")]
    assert "{'line': [(2,)]}" in report.findings[0].message


async def test_what_a_transaction_does_not_undo(app: Holdfast, world: World) -> None:
    @app.step
    async def charge(tx: Transaction) -> None:
        await tx.execute("INSERT INTO line VALUES (1)")
        world.done.append("charged")

    @app.workflow
    async def order(_ctx: Context) -> None:
        await charge()

    [finding] = (await found(app, order, world=world.fresh, tables="CREATE TABLE line (n INTEGER)")).findings
    assert (finding.kind, finding.step) == (FindingKind.STEP, "'charge'")
    assert "['charged', 'charged']" in finding.message


async def test_what_pytest_shows(app: Holdfast, world: World) -> None:
    @app.step
    async def charge() -> None:
        world.done.append("charged")

    @app.workflow
    async def order(_ctx: Context) -> None:
        await charge()

    with pytest.raises(SimulationFailed) as raised:
        await simulate(app, order, seeds=SEEDS, world=world.fresh)

    text, report = str(raised.value), raised.value.report
    assert isinstance(raised.value, AssertionError)
    assert text.startswith("order: 1 finding in 10 seeds\n\n1. A step that is not safe to run twice: 'charge' (seed ")
    assert "What to do: A step runs at least once" in text
    assert f"Again: await simulate(app, order, ..., seed={report.findings[0].seed})" in text
    again = await simulate(app, order, seed=report.findings[0].seed, world=world.fresh, fail=False)
    assert again.findings == report.findings
