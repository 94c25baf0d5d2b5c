"""The context belongs to workflow code: a step may use neither it nor the objects it created."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from driving import finish, until_status
from holdfast import Channel, Context, Handle, Holdfast, WorkflowCodeError, select
from holdfast.testing import Harness

pytestmark = pytest.mark.above_the_store

PID = "flow/other"
USES: dict[str, Callable[[Context], Any]] = {
    "do": lambda ctx: ctx.do("inner", print),
    "call": lambda ctx: ctx.call("inner", print),
    "now": lambda ctx: ctx.now(),
    "sleep": lambda ctx: ctx.sleep("nap", 1),
    "sleep_until": lambda ctx: ctx.sleep_until("nap", datetime(2031, 1, 1, tzinfo=UTC)),
    "after": lambda ctx: ctx.after(1),
    "timer": lambda ctx: ctx.timer(1),
    "every": lambda ctx: ctx.every(1),
    "wait_for_event": lambda ctx: ctx.wait_for_event("go", type="go"),
    "inbox": lambda ctx: ctx.inbox,
    "listen": lambda ctx: ctx.listen("topic"),
    "unlisten": lambda ctx: ctx.unlisten(Channel()),
    "send": lambda ctx: ctx.send(PID, "topic"),
    "ask": lambda ctx: ctx.ask(PID, "topic"),
    "run": lambda ctx: ctx.run("flow"),
    "spawn": lambda ctx: ctx.spawn("flow"),
    "events": lambda ctx: ctx.events,
    "trap_links": lambda ctx: setattr(ctx, "trap_links", True),
    "monitor": lambda ctx: ctx.monitor(PID),
    "unmonitor": lambda ctx: ctx.unmonitor(PID),
    "link": lambda ctx: ctx.link(PID),
    "unlink": lambda ctx: ctx.unlink(PID),
    "cancel": lambda ctx: ctx.cancel(PID),
    "terminate": lambda ctx: ctx.terminate(PID),
    "continue_as_new": lambda ctx: ctx.continue_as_new(),
    "set_search": lambda ctx: ctx.set_search(a=1),
    "set_memo": lambda ctx: ctx.set_memo(a=1),
    "stream": lambda ctx: ctx.stream("out"),
    "values": lambda ctx: ctx.values,
    "version": lambda ctx: ctx.version("change", 1, 2),
    "saga": lambda ctx: ctx.saga(),
    "info": lambda ctx: ctx.info,
    "random": lambda ctx: ctx.random,
    "uuid4": lambda ctx: ctx.uuid4(),
    "random_bytes": lambda ctx: ctx.random_bytes(8),
}


def test_the_tests_of_this_module_use_every_member_of_the_context() -> None:
    members = {name for name, _ in inspect.getmembers(Context) if not name.startswith("_")}
    assert members - {"log"} == set(USES)  # ctx.log may be used in steps


async def _errors_in_step(step: Callable[[Context], Any], app: Holdfast, h: Harness) -> dict[str, str]:
    """Run the step function that ``step`` returns for a context, and return its errors by member."""

    @app.workflow
    async def flow(ctx: Context) -> Any:
        return await ctx.do("charge", step(ctx))

    errors: dict[str, str] = await finish(h, flow, id="a")
    return errors


def _errors_of_uses(ctx: Context) -> dict[str, str]:
    refused = {}
    for name, use in USES.items():
        try:
            use(ctx)
        except WorkflowCodeError as error:
            refused[name] = str(error)
    return refused


@pytest.mark.parametrize("where", ["async", "thread", "task"])
async def test_the_error_of_every_member_names_the_member_and_the_step(app: Holdfast, h: Harness, where: str) -> None:
    def step(ctx: Context) -> Any:
        async def run() -> Any:
            if where == "async":
                return _errors_of_uses(ctx)
            async with asyncio.TaskGroup() as group:
                task = group.create_task(asyncio.to_thread(_errors_of_uses, ctx))
            return task.result()

        return (lambda: _errors_of_uses(ctx)) if where == "thread" else run

    refused = await _errors_in_step(step, app, h)
    assert set(refused) == set(USES)
    for name, message in refused.items():
        assert message.startswith(f"ctx.{name} was used inside step 'charge' of flow/a;")
    assert "step_info()" in refused["info"]
    assert "context_values()" in refused["values"]
    assert "StepTx" in refused["send"]


async def test_a_step_that_uses_the_context_is_not_retried_and_fails_the_run(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def flow(ctx: Context) -> Any:
        return await ctx.do("charge", lambda: ctx.uuid4().hex)

    run = await h.start(flow)
    await h.run_until_idle()
    assert (await run.status()).status == "errored"
    [step] = (await run.history()).steps
    assert step.attempts == 1
    assert step.error is not None
    assert step.error.name == "WorkflowCodeError"


async def test_a_refused_use_of_random_numbers_in_a_step_does_not_change_those_of_the_run(
    app: Holdfast, h: Harness
) -> None:
    live: list[Any] = []

    @app.workflow
    async def flow(ctx: Context) -> list[Any]:
        rng = ctx.random

        def misuse() -> None:
            for use in (ctx.uuid4, lambda: ctx.random_bytes(4), rng.random, lambda: rng.randrange(100)):
                with pytest.raises(WorkflowCodeError):
                    use()

        first = ctx.uuid4().hex
        await ctx.do("misuse", misuse)
        values = [first, ctx.uuid4().hex, rng.random(), rng.randrange(100)]
        live.append(values)
        await ctx.sleep("nap", "1 hour")
        return values

    run = await h.start(flow)
    await h.run_until_idle()
    await h.restart()
    await h.advance("1 hour")
    assert await run.result(timeout=60) == live[0]


async def test_awaitables_of_workflow_code_are_refused_in_a_step(app: Holdfast, h: Harness) -> None:
    """Awaitables created in workflow code and awaited in a step start nothing."""

    @app.workflow
    async def other(ctx: Context) -> None:
        await ctx.wait_for_event("go", type="go")

    @app.workflow
    async def flow(ctx: Context) -> list[str]:
        awaitables = [
            ctx.sleep("nap", 1), ctx.do("inner", print), ctx.wait_for_event("go", type="go"),
            ctx.send(PID, "topic"), ctx.spawn(other, id="stray"), ctx.monitor(PID), ctx.ask(PID, "topic"),
        ]  # fmt: skip

        async def misuse() -> list[str]:
            names = []
            for awaitable in awaitables:
                try:
                    await awaitable
                except Exception as error:
                    names.append(type(error).__name__)
            return names

        return await ctx.do("misuse", misuse)

    run = await h.start(flow)
    await h.run_until_idle()
    assert await run.result(timeout=60) == ["WorkflowCodeError"] * 7
    assert [step.step_key for step in (await run.history()).steps] == ["misuse"]
    assert (await h.app.list(other)).items == []


async def test_channels_messages_children_and_sagas_are_refused_in_a_step(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def child(ctx: Context) -> str:
        await ctx.wait_for_event("go", type="go")
        return "grown"

    @app.workflow
    async def flow(ctx: Context) -> Any:
        orders = ctx.listen("order", messages=True)
        message = await orders.receive()
        spawned = await ctx.spawn(child, id="child")
        queue: Channel[int] = Channel(capacity=3)
        timer = ctx.timer("1 hour")
        async with ctx.saga() as saga:
            uses: list[Callable[[], Any]] = [
                lambda: queue.send(1), queue.receive, lambda: select(queue, timer), orders.receive,
                lambda: message.reply("in a step"), lambda: message.reject("in a step"), spawned.result,
                lambda: saga.add(print), queue.close, orders.close, timer.stop, lambda: timer.reset(1),
            ]  # fmt: skip

            async def misuse() -> list[str]:
                names = []
                for use in uses:
                    try:
                        returned = use()
                        if inspect.isawaitable(returned):
                            await returned
                    except Exception as error:
                        names.append(type(error).__name__)
                return names

            names = await ctx.do("misuse", misuse)
        await message.reply("in the code")
        await queue.send(7)
        return [names, len(queue), len(timer), await spawned.result()]

    run = await h.start(flow, id="a")
    await h.run_until_idle()
    asking = asyncio.ensure_future(run.ask("order", 5))
    while not asking.done():
        await h.run_until_idle()
        await asyncio.sleep(0)
    assert await asking == "in the code"
    await (await h.app.get(child, "child")).send_event("go")
    await h.run_until_idle()
    assert await run.result(timeout=60) == [["WorkflowCodeError"] * 12, 1, 0, "grown"]


async def test_a_context_is_refused_after_its_run_has_ended(app: Holdfast, h: Harness) -> None:
    leaked: list[Context] = []

    @app.workflow
    async def flow(ctx: Context) -> None:
        leaked.append(ctx)

    @app.workflow
    async def other(_ctx: Context) -> str:
        with pytest.raises(WorkflowCodeError, match=r"ctx\.uuid4 was used outside the workflow code"):
            leaked[0].uuid4()
        return "refused"

    await finish(h, flow)
    with pytest.raises(WorkflowCodeError, match=r"ctx\.now was used outside the workflow code"):
        leaked[0].now()
    assert await finish(h, other) == "refused"


async def test_a_run_that_a_step_starts_has_its_own_context() -> None:
    app = Holdfast("sqlite://")

    @app.workflow
    async def child(ctx: Context) -> str:
        ctx.set_memo(seen=ctx.now().isoformat())
        return await ctx.do("inner", lambda: "done")

    @app.workflow
    async def parent(ctx: Context) -> Any:
        return await ctx.do("start", start)

    async def start() -> Any:
        run: Handle[str] = await app.start(child)
        return await run.result(timeout=60)

    async with app:
        run = await app.start(parent)
        await until_status(run, "complete")
        assert await run.result(timeout=60) == "done"


async def test_the_log_of_the_context_works_in_steps_and_in_workflow_code(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def flow(ctx: Context) -> None:
        await ctx.do("say", lambda: ctx.log.info("in the step"))
        ctx.log.info("in the code")

    run = await h.start(flow)
    await h.run_until_idle()
    assert [(line.message, line.step_key) for line in await run.logs()] == [
        ("in the step", "say"),
        ("in the code", None),
    ]
