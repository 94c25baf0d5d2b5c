"""Mistakes in workflows are found, each with the kind of the mistake."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from holdfast import Context, Holdfast, Retry, StepTx, Transaction, select
from holdfast.testing import FindingKind, SentEvent, SimulatedRun, SimulationFailed, simulate

from .finding import World, find


@pytest.fixture
def app() -> Holdfast:
    return Holdfast("sqlite://")


@pytest.fixture
def world() -> World:
    return World()


# --- a result that depends on timing


async def test_a_result_that_depends_on_the_order_of_outcomes_is_a_finding(app: Holdfast) -> None:
    @app.step
    async def fetch(page: int) -> int:
        return page

    @app.workflow
    async def pages(ctx: Context) -> list[int]:
        calls = [ctx.do(f"page {n}", fetch, n) for n in range(3)]
        return [await done for done in asyncio.as_completed(calls)]

    report = await find(app, pages)

    [finding] = report.findings
    assert (finding.kind, finding.step) == (FindingKind.TIMING, None)
    assert "without faults: returned [0, 1, 2]" in finding.message
    assert len(report.endings) > 1


async def test_effects_that_depend_on_the_order_of_calls_are_a_finding(app: Holdfast, world: World) -> None:
    @app.step
    async def ship(part: int) -> None:
        if part not in world.done:
            world.done.append(part)

    @app.workflow
    async def order(ctx: Context) -> None:
        await asyncio.gather(*(ctx.do(f"part {n}", ship, n) for n in range(3)))

    assert (await find(app, order, world=world.fresh)).kinds == [FindingKind.TIMING]
    assert (await find(app, order, world=world.fresh, view=sorted)).ok


async def test_a_repeated_step_that_does_not_cause_the_problem_is_not_named(app: Holdfast, world: World) -> None:
    """The later second call changes the order of the effects; two calls in a row would have no effect."""

    @app.step
    async def ship(part: int) -> None:
        await asyncio.sleep(0.1 * part)
        if part not in world.done:
            world.done.append(part)

    @app.workflow
    async def order(ctx: Context) -> None:
        await asyncio.gather(*(ctx.do(f"part {n}", ship, n) for n in range(1, 3)))

    [finding] = (await find(app, order, world=world.fresh, seed=13)).findings

    assert any("is called again" in line for line in finding.story)
    assert (finding.kind, finding.step) == (FindingKind.TIMING, None)


async def test_an_event_that_counts_twice_is_a_finding(app: Holdfast) -> None:
    @app.workflow
    async def votes(ctx: Context) -> int:
        return sum([(await ctx.wait_for_event(f"vote {n}", type="vote")).payload for n in range(3)])

    sent = [("vote", 1), ("vote", 10), ("vote", 100)]
    report = await find(app, votes, events=sent)

    assert report.kinds == [FindingKind.TIMING]
    assert any("is sent a second time" in line for line in report.findings[0].story)
    with_ids = [SentEvent(type_, payload, id=f"v{payload}") for type_, payload in sent]
    assert (await find(app, votes, events=with_ids)).ok


async def test_a_timeout_that_a_crash_exceeds_is_a_finding(app: Holdfast) -> None:
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

    assert (await find(app, impatient, seeds=20)).kinds == [FindingKind.TIMING]
    assert (await find(app, impatient, allow=["given up"])).ok


# --- a wait that can never end


async def test_a_wait_for_an_event_that_is_never_sent_is_a_finding(app: Holdfast) -> None:
    @app.workflow
    async def listener(ctx: Context) -> Any:
        return await ctx.listen("go").receive()

    report = await find(app, listener)

    [finding] = report.findings
    assert (finding.kind, finding.seed) == (FindingKind.WAIT, None)
    assert "listener/simulated is waiting for message 'go'" in finding.message
    assert report.seeds == 0
    assert (await find(app, listener, events=[("go", 1)])).ok


async def test_a_wait_for_an_event_that_was_discarded_is_a_finding(app: Holdfast) -> None:
    """The workflow ends if the message is sent while it waits, and discards a message that is sent earlier."""

    @app.step
    async def prepare() -> None: ...

    @app.workflow
    async def forgetful(ctx: Context) -> Any:
        channel = ctx.listen("go")
        await prepare()
        await ctx.sleep("settle", "1 minute")
        while (await select(channel, default=True)).channel is not None:
            """Discard the events that have arrived."""
        return await channel.receive()

    report = await find(app, forgetful, events=[("go", 1)])

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

    report = await find(app, parent)
    assert report.kinds == [FindingKind.WAIT]
    assert "child/the-child is waiting for message 'go'" in report.findings[0].message
    assert (await find(app, parent, events=[SentEvent("go", 1, to="child/the-child")])).ok


# --- other findings


async def test_code_that_returns_another_result_on_replay_is_a_finding(app: Holdfast, world: World) -> None:
    @app.workflow
    async def counts(ctx: Context) -> int:
        world.done.append("replayed")
        number = len(world.done)
        await ctx.sleep("nap", "1 second")
        return number

    report = await find(app, counts, world=world.fresh, view=lambda _done: None)

    [finding] = report.findings
    assert finding.kind is FindingKind.REPLAY
    assert "counts/simulated returned 1, and 2 when it was replayed" in finding.message


async def test_code_that_calls_another_step_on_replay_is_a_finding(app: Holdfast, world: World) -> None:
    @app.workflow
    async def moody(ctx: Context) -> str:
        world.done.append("replayed")
        if len(world.done) == 1:
            await ctx.sleep("pause", "1 minute")
        else:
            await ctx.wait_for_event("pause", type="go")
        return "done"

    assert (await find(app, moody, world=world.fresh)).kinds == [FindingKind.REPLAY]


async def test_a_step_without_retries_is_a_finding(app: Holdfast) -> None:
    """The step has one attempt, so the run fails if the worker dies during that attempt."""

    @app.step(retry=Retry(limit=0))
    async def once() -> str:
        return "done"

    @app.workflow
    async def careful(_ctx: Context) -> str:
        return await once()

    def failed(run: SimulatedRun) -> bool:
        return run.status == "errored"

    [finding] = (await find(app, careful)).findings
    assert finding.kind is FindingKind.FAILURE
    assert "StepMaxAttemptsExceeded" in finding.message
    assert (await find(app, careful, allow=failed)).ok


async def test_a_run_that_fails_without_faults_is_a_finding(app: Holdfast) -> None:
    @app.step(retry=Retry(limit=1, delay="1 second"))
    async def broken() -> None:
        raise LookupError("no such thing")

    @app.workflow
    async def order(_ctx: Context) -> None:
        await broken()

    report = await find(app, order)

    assert [(one.kind, one.seed) for one in report.findings] == [(FindingKind.FAILURE, None)]
    assert "errored: LookupError: no such thing, without any fault" in report.findings[0].message


async def test_a_run_that_never_ends_is_a_finding(app: Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.testing.simulation.seed_run._MAX_CALLBACKS", 5_000)

    @app.workflow
    async def clock(ctx: Context) -> None:
        raise ctx.continue_as_new()

    assert (await find(app, clock)).kinds == [FindingKind.ENDLESS]


async def test_a_failing_check_names_the_unsafe_step(app: Holdfast, world: World) -> None:
    @app.step
    async def charge(amount: int) -> None:
        world.done.append(amount)

    @app.workflow
    async def order(_ctx: Context, amount: int) -> None:
        await charge(amount)

    def paid_once(run: SimulatedRun) -> None:
        assert run.status == "complete"
        assert sum(run.world) <= 5, f"{sum(run.world)} were paid"

    report = await find(app, order, 5, world=world.fresh, view=lambda _done: None, check=paid_once)

    [finding] = report.findings
    assert (finding.kind, finding.step) == (FindingKind.STEP, "'charge'")
    assert "check: 10 were paid" in finding.message


async def test_a_check_that_fails_without_faults_is_a_finding(app: Holdfast) -> None:
    @app.workflow
    async def nothing(_ctx: Context) -> None: ...

    def never(_run: SimulatedRun) -> None:
        raise AssertionError("it is not so")

    [finding] = (await find(app, nothing, check=never)).findings
    assert (finding.kind, finding.seed, finding.message) == (FindingKind.CHECK, None, "check: it is not so")


async def test_fakes_that_keep_state_between_runs_are_a_finding(app: Holdfast) -> None:
    counter = iter(range(1000))

    @app.step
    async def number() -> int:
        return next(counter)

    @app.workflow
    async def order(_ctx: Context) -> int:
        return await number()

    report = await find(app, order)
    assert report.kinds == [FindingKind.UNSTEADY]
    assert "Two runs without faults ended differently" in report.findings[0].message


async def test_rows_that_differ_are_a_finding(app: Holdfast, world: World) -> None:
    @app.step
    async def note(tx: StepTx) -> None:
        world.done.append("called")
        tx.execute("INSERT INTO line VALUES (?)", len(world.done))

    @app.workflow
    async def order(_ctx: Context) -> None:
        await note()

    report = await find(
        app, order, seeds=20, world=world.fresh, view=lambda _done: None, tables=["CREATE TABLE line (n INTEGER)"]
    )
    assert [(one.kind, one.step) for one in report.findings] == [(FindingKind.STEP, "'note'")]
    assert "{'line': [(2,)]}" in report.findings[0].message


async def test_an_effect_outside_the_transaction_is_a_finding(app: Holdfast, world: World) -> None:
    @app.step
    async def charge(tx: Transaction) -> None:
        await tx.execute("INSERT INTO line VALUES (1)")
        world.done.append("charged")

    @app.workflow
    async def order(_ctx: Context) -> None:
        await charge()

    [finding] = (await find(app, order, world=world.fresh, tables="CREATE TABLE line (n INTEGER)")).findings
    assert (finding.kind, finding.step) == (FindingKind.STEP, "'charge'")
    assert "['charged', 'charged']" in finding.message


async def test_the_assertion_error_shows_the_findings(app: Holdfast, world: World) -> None:
    @app.step
    async def charge() -> None:
        world.done.append("charged")

    @app.workflow
    async def order(_ctx: Context) -> None:
        await charge()

    with pytest.raises(SimulationFailed) as raised:
        await simulate(app, order, seeds=10, world=world.fresh)

    text, report = str(raised.value), raised.value.report
    assert isinstance(raised.value, AssertionError)
    assert text.startswith("order: 1 finding in 10 seeds\n\n1. A step that is not safe to run twice: 'charge' (seed ")
    assert "What to do: A step runs at least once" in text
    assert f"Again: await simulate(app, order, ..., seed={report.findings[0].seed})" in text
    again = await simulate(app, order, seed=report.findings[0].seed, world=world.fresh, fail=False)
    assert again.findings == report.findings
