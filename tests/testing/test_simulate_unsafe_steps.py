"""Steps that are not safe to run twice are found and named."""

from __future__ import annotations

import asyncio

import pytest

from holdfast import ChainTask, Context, Holdfast
from holdfast.testing import FindingKind

from .finding import World, find


@pytest.fixture
def app() -> Holdfast:
    return Holdfast("sqlite://")


@pytest.fixture
def world() -> World:
    return World()


async def test_a_charge_without_an_idempotency_key_is_a_finding(app: Holdfast, world: World) -> None:
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

    report = await find(app, fulfil, "o-1", world=world.fresh)

    [finding] = report.findings
    assert (finding.kind, finding.step) == (FindingKind.STEP, "'charge'")
    assert "without faults: ['o-1']" in finding.message
    assert "now:            ['o-1', 'o-1']" in finding.message
    assert "'charge' was called more than once: returned 'payment o-1', then returned 'payment o-1'" in finding.message
    assert len(finding.faults) == 1
    assert any("step 'charge' is called again (call 2)" in line for line in finding.story)


async def test_a_repeated_call_of_a_plain_function_is_a_finding(app: Holdfast, world: World) -> None:
    @app.step
    def charge(order: str) -> None:
        world.done.append(order)

    @app.workflow
    async def fulfil(_ctx: Context, order: str) -> None:
        await charge(order)

    report = await find(app, fulfil, "o-1", world=world.fresh)
    assert [(one.kind, one.step) for one in report.findings] == [(FindingKind.STEP, "'charge'")]


async def test_a_step_that_was_interrupted_in_the_middle_is_a_finding(app: Holdfast, world: World) -> None:
    """The step is safe to repeat after it has ended, but not after an interruption between its two effects."""

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

    report = await find(app, transfer, 5, world=world.fresh, seeds=60)

    [finding] = report.findings
    assert (finding.kind, finding.step) == (FindingKind.STEP, "'move'")
    assert "interrupted, then returned None" in finding.message
    assert any("dies within step 'move'" in line for line in finding.story)


async def test_a_second_call_that_is_refused_is_a_finding(app: Holdfast, world: World) -> None:
    """The world is not compared (``view`` returns None): the failed run alone is the finding."""

    @app.step
    async def register(name: str) -> str:
        if name in world.done:
            raise ValueError(f"{name} exists already")
        world.done.append(name)
        return name

    @app.workflow
    async def sign_up(_ctx: Context, name: str) -> str:
        return await register(name)

    report = await find(app, sign_up, "ann", world=world.fresh, view=lambda _done: None)

    [finding] = report.findings
    assert (finding.kind, finding.step) == (FindingKind.STEP, "'register'")
    assert "now:            errored: ValueError: ann exists already" in finding.message
    assert "returned 'ann', then raised ValueError: ann exists already" in finding.message


async def test_an_unsafe_node_and_an_unsafe_chain_step_are_named(app: Holdfast, world: World) -> None:
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
        [finding] = (await find(app, work, world=world.fresh)).findings
        assert (finding.kind, finding.step) == (FindingKind.STEP, step)


async def test_an_unsafe_step_of_a_child_is_named(app: Holdfast, world: World) -> None:
    @app.step
    async def charge() -> None:
        world.done.append("charged")

    @app.workflow
    async def child(_ctx: Context) -> None:
        await charge()

    @app.workflow
    async def parent(ctx: Context) -> None:
        await ctx.run(child, id="the-child")

    [finding] = (await find(app, parent, world=world.fresh)).findings
    assert (finding.kind, finding.step) == (FindingKind.STEP, "'charge'")
    assert any("child/the-child: step 'charge' is called again" in line for line in finding.story)
