"""Events are stored until a wait consumes them: the oldest first, each once, and never after the wait's deadline."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest

from apps import MakeApp
from driving import finish, until_status
from holdfast import (
    Context,
    Holdfast,
    InstanceNotFoundError,
    InstanceTerminalError,
    InvalidEventTypeError,
    InvalidOptionError,
    RunFailedError,
    WaitForEventTimeoutError,
    WorkerConfig,
)
from holdfast.store.protocol import SnapshotQuery
from holdfast.store.sqlite import SqliteStore
from holdfast.testing import Harness


@dataclass
class Approval:
    by: str
    amount: int


@pytest.fixture
def waiter(app: Holdfast) -> Any:
    @app.workflow
    async def waiter(ctx: Context, timeout: str) -> Any:
        try:
            event = await ctx.wait_for_event("approval", type="approval", timeout=timeout)
        except WaitForEventTimeoutError as error:
            return ["timeout", error.code]
        return [event.type, event.payload, (event.timestamp - ctx.info.started_at).total_seconds()]

    return waiter


async def test_an_event_ends_the_wait(h: Harness, waiter: Any) -> None:
    run = await h.start(waiter, "1 hour")
    await h.run_until_idle()
    assert (await run.status()).status == "waiting"
    await h.advance("10 minutes")
    await run.send_event("approval", {"by": "ann"})
    await h.advance("5 minutes")
    assert await run.result() == ["approval", {"by": "ann"}, 600]
    history = await run.history()
    [step], [event] = history.steps, history.events
    assert (step.type, step.status, step.wait_event_type) == ("waitForEvent", "completed", "approval")
    assert (event.consumed_by_step_key, event.payload) == ("approval", {"by": "ann"})
    assert event.delivered_at is not None


@pytest.mark.promise("no-lost-wakeup")
async def test_an_event_sent_before_the_wait_is_stored_and_ends_it(h: Harness, waiter: Any) -> None:
    run = await h.start(waiter, "1 hour")
    await run.send_event("other", 0)
    await run.send_event("approval", 1)
    await run.send_event("approval", 2)
    await h.run_until_idle()
    assert (await run.result())[1] == 1
    events = (await run.history()).events
    assert [(e.type, e.payload, e.consumed_by_step_key) for e in events] == [
        ("other", 0, None),
        ("approval", 1, "approval"),
        ("approval", 2, None),
    ]


@pytest.mark.promise("messages-once-in-order")
async def test_events_are_consumed_oldest_first(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def flow(ctx: Context) -> list[Any]:
        return [(await ctx.wait_for_event(f"w{n}", type="go")).payload for n in range(3)]

    run = await h.start(flow)
    for n in range(3):
        await run.send_event("go", n)
        await h.advance(1)
    assert await run.result() == [0, 1, 2]


async def test_two_waits_on_one_type_consume_events_in_the_order_of_the_waits(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def flow(ctx: Context) -> list[Any]:
        waits = [ctx.wait_for_event(name, type="go") for name in ("first", "second")]
        return [event.payload for event in await asyncio.gather(*waits)]

    run = await h.start(flow)
    await h.run_until_idle()
    for payload in ("a", "b"):
        await run.send_event("go", payload)
        await h.restart()
        await h.run_until_idle()
    assert await run.result() == ["a", "b"]
    consumed = [(e.payload, e.consumed_by_step_key) for e in (await run.history()).events]
    assert consumed == [("a", "first"), ("b", "second")]


async def test_the_default_timeout_is_a_day(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def flow(ctx: Context) -> str:
        try:
            await ctx.wait_for_event("go", type="go")
        except TimeoutError as error:
            return str(error)
        return "?"

    run = await h.start(flow)
    await h.advance(timedelta(hours=24) - timedelta(milliseconds=1))
    assert (await run.status()).status == "waiting"
    await h.advance(0.001)
    assert await run.result() == "no event of type 'go' came for 'go' within 1 day"
    [step] = (await run.history()).steps
    assert step.status == "errored"
    assert step.error is not None
    assert step.error.name == "WaitForEventTimeoutError"


@pytest.mark.parametrize("timeout", ["1 second", "365 days"])
async def test_the_shortest_and_the_longest_timeout_are_accepted(h: Harness, waiter: Any, timeout: str) -> None:
    run = await h.start(waiter, timeout)
    await h.advance(timeout)
    assert await run.result() == ["timeout", "WAIT_FOR_EVENT_TIMEOUT"]


@pytest.mark.above_the_store
@pytest.mark.parametrize("timeout", ["999 ms", "0s", "366 days", "-1s", "whenever"])
async def test_timeouts_outside_the_range_are_refused(h: Harness, waiter: Any, timeout: str) -> None:
    with pytest.raises(RunFailedError) as caught:
        await finish(h, waiter, timeout)
    assert caught.value.error.name == "InvalidDurationError"
    assert "'approval'" in caught.value.error.message


async def test_an_event_created_after_the_deadline_is_never_consumed(h: Harness, waiter: Any) -> None:
    run = await h.start(waiter, "10s")
    await h.run_until_idle()
    await h.advance("11s", run=False)
    await run.send_event("approval", "late")
    await h.restart()
    await h.run_until_idle()
    assert await run.result() == ["timeout", "WAIT_FOR_EVENT_TIMEOUT"]
    [event] = (await run.history()).events
    assert (event.delivered_at, event.consumed_by_step_key) == (None, None)


@pytest.mark.promise("no-lost-wakeup")
async def test_an_event_created_before_the_deadline_ends_the_wait_even_if_processed_later(
    h: Harness, waiter: Any
) -> None:
    run = await h.start(waiter, "10s")
    await h.run_until_idle()
    await h.advance("9s", run=False)
    await run.send_event("approval", "in time")
    await h.advance("1 hour", run=False)
    await h.restart()
    await h.run_until_idle()
    assert await run.result() == ["approval", "in time", 9]


async def test_an_event_created_at_the_deadline_ends_the_wait(h: Harness, waiter: Any) -> None:
    run = await h.start(waiter, "10s")
    await h.run_until_idle()
    await h.advance("10s", run=False)
    await run.send_event("approval", "just")
    await h.run_until_idle()
    assert (await run.result())[0] == "approval"


async def test_an_event_in_time_ends_the_wait_even_if_a_step_is_in_flight_at_the_deadline(
    app: Holdfast, h: Harness
) -> None:
    done = asyncio.Event()

    @app.workflow
    async def flow(ctx: Context) -> list[Any]:
        step = asyncio.create_task(ctx.do("busy", done.wait))
        event = await ctx.wait_for_event("go", type="go", timeout="10s")
        return [event.payload, await step]

    run = await h.start(flow)
    await h.run_until_idle()
    await h.advance("9s", run=False)
    await run.send_event("go", "in time")
    await h.advance("5s")
    done.set()
    await h.run_until_idle()
    assert await run.result() == ["in time", True]


async def test_an_event_of_a_cancelled_wait_goes_to_the_next_wait(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def flow(ctx: Context) -> Any:
        try:
            await asyncio.wait_for(ctx.wait_for_event("first", type="go"), 5)
        except TimeoutError:
            await ctx.sleep("nap", 5)
        return (await ctx.wait_for_event("second", type="go")).payload

    run = await h.start(flow)
    await h.advance("7s")
    await run.send_event("go", "for the second")
    await h.restart()
    await h.advance("10s")
    assert await run.result() == "for the second"
    steps = {s.step_key: s.status for s in (await run.history()).steps}
    assert steps == {"first": "errored", "nap": "completed", "second": "completed"}


@pytest.mark.promise("messages-once-in-order")
async def test_two_sends_with_the_same_id_store_one_event(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def flow(ctx: Context) -> list[Any]:
        return [(await ctx.wait_for_event(f"w{n}", type="go")).payload for n in range(2)]

    run = await h.start(flow)
    for payload in ("first", "again"):
        await run.send_event("go", payload, id="charge-1")
    await h.run_until_idle()
    assert (await run.status()).status == "waiting"
    await run.send_event("go", "other", id="charge-2")
    await h.run_until_idle()
    assert await run.result() == ["first", "other"]


async def test_an_id_stays_known_after_its_event_was_consumed(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def flow(ctx: Context) -> list[Any]:
        return [(await ctx.wait_for_event(f"w{n}", type="go")).payload for n in range(2)]

    run = await h.start(flow)
    await run.send_event("go", "first", id="charge-1")
    await h.run_until_idle()
    await run.send_event("go", "repeated", id="charge-1")
    await h.run_until_idle()
    assert (await run.status()).status == "waiting"
    assert len((await run.history()).events) == 1


async def test_an_ended_run_refuses_events(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def flow(ctx: Context) -> None: ...

    run = await h.start(flow, id="over")
    await h.run_until_idle()
    with pytest.raises(InstanceTerminalError, match="'over'") as caught:
        await run.send_event("go")
    assert caught.value.code == "INSTANCE_TERMINAL"
    assert (await run.history()).events == []


async def test_a_send_to_an_unknown_instance_raises_not_found(h: Harness, waiter: Any) -> None:
    run = await h.start(waiter, "1 hour", id="here")
    unknown = type(run)(run._client, run._definition, "nowhere")
    with pytest.raises(InstanceNotFoundError, match="'nowhere'") as caught:
        await unknown.send_event("approval")
    assert caught.value.code == "INSTANCE_NOT_FOUND"


@pytest.mark.above_the_store
@pytest.mark.parametrize("bad", ["", "with space", "-dash", "x" * 101, "é", None, 5])
async def test_a_bad_event_type_is_refused_in_a_send_and_in_a_wait(
    app: Holdfast, h: Harness, waiter: Any, bad: Any
) -> None:
    run = await h.start(waiter, "1 hour")
    with pytest.raises(InvalidEventTypeError):
        await run.send_event(bad)

    @app.workflow
    async def flow(ctx: Context) -> None:
        await ctx.wait_for_event("w", type=bad)

    with pytest.raises(RunFailedError) as caught:
        await finish(h, flow)
    assert caught.value.error.name == "InvalidEventTypeError"


@pytest.mark.above_the_store
async def test_a_bad_event_id_is_refused(h: Harness, waiter: Any) -> None:
    run = await h.start(waiter, "1 hour")
    for bad in ("", "x" * 201, 5):
        with pytest.raises(InvalidOptionError):
            await run.send_event("approval", id=bad)  # type: ignore[arg-type]


@pytest.mark.above_the_store
async def test_a_payload_is_decoded_to_its_type_live_and_on_replay(app: Holdfast, h: Harness) -> None:
    seen: list[Any] = []

    @app.workflow
    async def flow(ctx: Context) -> None:
        event = await ctx.wait_for_event("approval", type="approval", payload=Approval)
        seen.append(event.payload)
        await ctx.sleep("nap", "1 hour")

    run = await h.start(flow)
    await run.send_event("approval", Approval("ann", 3))
    await h.run_until_idle()
    await h.restart()
    await h.advance("1 hour")
    await run.result()
    assert seen == [Approval("ann", 3)] * 2


@pytest.mark.above_the_store
async def test_a_repeated_wait_of_the_same_name_returns_the_same_event(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def flow(ctx: Context) -> list[Any]:
        return [(await ctx.wait_for_event("w", type="go")).payload for _ in range(2)]

    run = await h.start(flow)
    await run.send_event("go", "one")
    await run.send_event("go", "two")
    await h.run_until_idle()
    assert await run.result() == ["one", "one"]


async def test_an_event_wakes_a_waiting_run_of_a_real_app_without_polling(make_app: MakeApp) -> None:
    from holdfast import WorkerConfig

    app = make_app(worker=WorkerConfig(poll="1 hour"))

    @app.workflow
    async def flow(ctx: Context) -> Any:
        return (await ctx.wait_for_event("go", type="go")).payload

    async with app:
        run = await app.start(flow)
        await until_status(run, "waiting")
        await run.send_event("go", "now")
        assert await run.result(timeout=60) == "now"


@pytest.mark.above_the_store
async def test_an_event_created_in_time_while_its_run_is_loaded_ends_the_wait(
    make_app: MakeApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    app, read = make_app(worker=WorkerConfig(cache=0)), SqliteStore.read

    @app.workflow
    async def order(ctx: Context) -> list[Any]:
        async def wait(name: str, timeout: float) -> Any:
            try:
                return (await ctx.wait_for_event(name, type=name, timeout=timeout)).payload
            except WaitForEventTimeoutError:
                return "late"

        return [*await asyncio.gather(wait("first", 60), wait("second", 1))]

    async with app:
        run = await app.start(order)
        await until_status(run, "waiting")

        async def load_slowly(store: SqliteStore, query: Any) -> Any:
            if not isinstance(query, SnapshotQuery):
                return await read(store, query)
            monkeypatch.setattr(SqliteStore, "read", read)
            await run.send_event("second", "in time")
            await asyncio.sleep(1.2)
            return await read(store, query)

        monkeypatch.setattr(SqliteStore, "read", load_slowly)
        await run.send_event("first", "there")

        assert await run.result(timeout=60) == ["there", "in time"]
