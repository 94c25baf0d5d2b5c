"""Outbound events: written with the step, delivered in order and at least once, parked after the last attempt."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest

from apps import MakeApp
from driving import until
from holdfast import (
    ChainTask,
    Completed,
    Dead,
    DefinitionError,
    Handle,
    Holdfast,
    InvalidDurationError,
    InvalidOptionError,
    Outbound,
    OutboundEvent,
    RetryStep,
    Waiting,
    WorkerConfig,
)
from holdfast.store.protocol import ClaimOutbox
from holdfast.testing import Harness


def emitting_chain(app: Holdfast, events: int = 3, name: str = "emitting_chain") -> Any:
    """A chain of two steps that emit outbound events."""
    chain = app.chain(name)

    @chain.step("ASK")
    async def ask(task: ChainTask) -> Any:
        if task.kind == "RUN":
            return Waiting("go", "1 hour", [Outbound("asked", {"n": n}) for n in range(events)])
        return Completed(None, [Outbound("answered", task.event.payload if task.event else None)])

    @chain.step("END")
    async def end(task: ChainTask) -> Any:
        return Completed("end", [Outbound("ended")])

    return chain


class RecordingHandler:
    """An outbox handler that records events and fails for those that ``fails`` selects."""

    def __init__(self, app: Holdfast, **options: Any) -> None:
        self.attempted: list[OutboundEvent] = []
        self.delivered_events: list[OutboundEvent] = []
        self.fails: Callable[[OutboundEvent], bool] = lambda event: False
        app.outbox(self._handle, **options)

    async def _handle(self, event: OutboundEvent) -> None:
        self.attempted.append(event)
        if self.fails(event):
            raise ConnectionError("nobody there")
        self.delivered_events.append(event)

    @property
    def types(self) -> list[str]:
        return [event.type for event in self.delivered_events]


async def run_to_end(h: Harness, run: Handle[Any]) -> None:
    await h.run_until_idle()
    await run.send_event("go", 7)
    await h.run_until_idle()


@pytest.mark.promise("outbox")
async def test_events_are_delivered_in_order_with_all_fields(h: Harness, app: Holdfast) -> None:
    chain, handler = emitting_chain(app), RecordingHandler(app)
    run = await h.start(chain, id="one")
    await run_to_end(h, run)
    assert handler.types == ["asked", "asked", "asked", "answered", "ended"]
    assert [event.id for event in handler.delivered_events] == [f"emitting_chain/one/0/{n}" for n in range(1, 6)]
    assert [event.payload for event in handler.delivered_events] == [{"n": 0}, {"n": 1}, {"n": 2}, 7, None]
    first = handler.delivered_events[0]
    assert (first.workflow, first.instance_id, first.step, first.attempt) == ("emitting_chain", "one", "ASK", 1)
    assert first.created_at == h.now()
    assert {record.state for record in await run.outbox()} == {"delivered"}


async def test_a_plain_function_can_be_the_handler(h: Harness, app: Holdfast) -> None:
    chain, delivered_events = emitting_chain(app), []

    @app.outbox
    def take(event: OutboundEvent) -> None:
        delivered_events.append(event.type)

    run = await h.start(chain)
    await run_to_end(h, run)
    assert delivered_events == ["asked", "asked", "asked", "answered", "ended"]


async def test_events_stay_pending_without_a_handler(h: Harness, app: Holdfast) -> None:
    run = await h.start(emitting_chain(app))
    await run_to_end(h, run)
    assert [record.state for record in await run.outbox()] == ["pending"] * 5
    handler = RecordingHandler(app)
    await h.run_until_idle()
    assert len(handler.delivered_events) == 5


@pytest.mark.promise("outbox")
async def test_a_failed_delivery_is_retried_and_delays_later_events_of_the_run(h: Harness, app: Holdfast) -> None:
    chain, handler = emitting_chain(app), RecordingHandler(app)
    handler.fails = lambda event: event.attempt < 3
    run = await h.start(chain)
    await run_to_end(h, run)
    assert (len(handler.attempted), handler.types) == (1, [])
    [first, second, *_] = await run.outbox()
    assert (first.state, first.attempts, first.error) == ("pending", 1, "ConnectionError: nobody there")
    assert 1 <= (first.next_attempt_at - h.now()).total_seconds() <= 1.2  # type: ignore[operator]
    assert (second.state, second.attempts) == ("pending", 0)
    await h.advance("1 minute")
    assert handler.types == ["asked", "asked", "asked", "answered", "ended"]
    assert [event.attempt for event in handler.attempted[:3]] == [1, 2, 3]
    assert {event.id for event in handler.attempted[:3]} == {handler.delivered_events[0].id}


@pytest.mark.promise("isolation-of-runs")
async def test_a_failed_delivery_does_not_delay_other_runs(h: Harness, app: Holdfast) -> None:
    chain, handler = emitting_chain(app, 1), RecordingHandler(app)
    handler.fails = lambda event: event.instance_id == "bad"
    for name in ("bad", "good"):
        await run_to_end(h, await h.start(chain, id=name))
    assert {event.instance_id for event in handler.delivered_events} == {"good"}
    assert len(handler.delivered_events) == 3


async def test_an_event_is_parked_after_its_last_attempt_and_later_events_are_delivered(
    h: Harness, app: Holdfast
) -> None:
    chain, handler = emitting_chain(app), RecordingHandler(app, max_attempts=4)
    handler.fails = lambda event: event.payload == {"n": 1}
    run = await h.start(chain)
    await run_to_end(h, run)
    await h.advance("1 hour")
    assert [record.state for record in await run.outbox()] == [
        "delivered", "parked", "delivered", "delivered", "delivered",
    ]  # fmt: skip
    assert [event.attempt for event in handler.attempted if event.payload == {"n": 1}] == [1, 2, 3, 4]
    parked = (await run.outbox())[1]
    assert (parked.attempts, parked.error, parked.parked_at is not None) == (4, "ConnectionError: nobody there", True)


async def test_redeliver_delivers_a_parked_event(h: Harness, app: Holdfast) -> None:
    chain, handler = emitting_chain(app, 1), RecordingHandler(app, max_attempts=1)
    handler.fails = lambda event: len(handler.attempted) < 2
    run = await h.start(chain)
    await h.run_until_idle()
    assert [record.state for record in await run.outbox()] == ["parked"]
    assert await run.redeliver() == 1
    await h.run_until_idle()
    assert [record.state for record in await run.outbox()] == ["delivered"]
    assert await run.redeliver() == 0


async def test_the_delays_between_attempts_grow_up_to_five_minutes(h: Harness, app: Holdfast) -> None:
    chain, handler = emitting_chain(app, 1), RecordingHandler(app, max_attempts=12)
    times = []

    def fails(event: OutboundEvent) -> bool:
        times.append(h.now())
        return True

    handler.fails = fails
    run = await h.start(chain)
    await h.advance("50 minutes")
    delays = [(b - a).total_seconds() for a, b in pairwise(times)]
    for delay, shortest in zip(delays, [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300], strict=True):
        assert shortest <= delay <= min(shortest * 1.2, 300) + 0.001
    assert [record.state for record in await run.outbox()] == ["parked"]


@pytest.mark.parametrize("error", [SystemExit(1), KeyboardInterrupt(), BaseException("odd")])
async def test_any_exception_of_a_handler_is_a_failed_delivery(h: Harness, app: Holdfast, error: BaseException) -> None:
    chain = emitting_chain(app, 1)

    @app.outbox
    async def take(event: OutboundEvent) -> None:
        raise error

    run = await h.start(chain)
    await h.run_until_idle()
    [record] = await run.outbox()
    assert (record.state, record.attempts) == ("pending", 1)
    assert type(error).__name__ in (record.error or "")


@pytest.mark.promise("outbox")
async def test_events_of_a_failed_attempt_are_not_delivered(h: Harness, app: Holdfast) -> None:
    chain, handler = app.chain("fails"), RecordingHandler(app)

    @chain.step("ONLY")
    async def only(task: ChainTask) -> Any:
        if task.attempt == 1:
            return RetryStep("1 second", "again")
        if task.attempt == 2:
            raise ValueError("no")
        return Dead("over", [Outbound("over")])

    run = await h.start(chain)
    await h.advance("1 minute")
    assert ((await run.status()).status, handler.types) == ("errored", ["over"])


@pytest.mark.promise("outbox")
async def test_a_step_repeated_after_a_crash_writes_its_events_once(h: Harness, app: Holdfast) -> None:
    """The outbound events of a step are written once, wherever the worker is lost; they may be delivered repeatedly."""
    chain, handler = emitting_chain(app), RecordingHandler(app)

    async def go(_h: Harness, run: Handle[Any]) -> None:
        await run.send_event("go", 7, id="go")

    assert await h.crash_everywhere(chain, drive=go) == "end"
    by_id: dict[str, list[str]] = {}
    for event in handler.delivered_events:
        by_id.setdefault(event.id, []).append(event.type)
    assert sorted(by_id) == [f"emitting_chain/crash-everywhere/0/{n}" for n in range(1, 6)]


async def test_a_restarted_run_has_its_own_outbox(h: Harness, app: Holdfast) -> None:
    chain, handler = emitting_chain(app, 1), RecordingHandler(app)
    run = await h.start(chain, id="one")
    await run_to_end(h, run)
    await run.restart()
    await h.run_until_idle()
    assert [event.id for event in handler.delivered_events][-1] == "emitting_chain/one/1/1"
    assert [record.id for record in await run.outbox()] == ["emitting_chain/one/1/1"]
    assert len(await run.outbox(run_number=0)) == 3


async def test_an_event_whose_attempts_were_all_lost_is_parked_without_another_attempt(
    h: Harness, app: Holdfast
) -> None:
    run = await h.start(emitting_chain(app, 1))
    await h.run_until_idle()
    for _ in range(2):
        assert len((await h._store.outbox(ClaimOutbox("dead", 1000, 1))).rows) == 1
        await h.advance("2 seconds", run=False)
    handler = RecordingHandler(app, max_attempts=2)
    await h.run_until_idle()
    [record] = await run.outbox()
    assert (record.state, handler.attempted) == ("parked", [])


@pytest.mark.promise("outbox")
async def test_another_worker_delivers_an_event_whose_worker_died(h: Harness, app: Holdfast) -> None:
    run = await h.start(emitting_chain(app, 1))
    await h.run_until_idle()
    await h._store.outbox(ClaimOutbox("dead", 1000, 1))
    handler = RecordingHandler(app)
    await h.run_until_idle()
    assert handler.attempted == []
    await h.advance("2 seconds")
    assert [event.attempt for event in handler.delivered_events] == [2]
    assert [record.state for record in await run.outbox()] == ["delivered"]


async def test_invalid_options_of_the_outbox_are_refused(app: Holdfast) -> None:
    for options in (
        {"max_attempts": 0},
        {"max_attempts": "3"},
        {"concurrency": 0},
        {"concurrency": True},
        {"timeout": 0},
    ):
        with pytest.raises(InvalidOptionError):
            app.outbox(print, **options)
    with pytest.raises(InvalidDurationError):
        app.outbox(print, timeout="soon")
    with pytest.raises(DefinitionError):
        app.outbox(5)  # type: ignore[call-overload]
    app.outbox(print)
    with pytest.raises(DefinitionError, match="already"):
        app.outbox(print)


# --- in real time


async def test_the_worker_is_notified_of_new_events(make_app: MakeApp) -> None:
    app = make_app(
        worker=WorkerConfig(poll="1 hour")
    )  # the poll is too rare to find the events: the worker is notified
    chain, handler = emitting_chain(app), RecordingHandler(app)
    async with app:
        runs = [await app.start(chain, id=f"r-{n}") for n in range(20)]
        await asyncio.gather(*(run.send_event("go", 7) for run in runs))

        async def all_delivered() -> bool:
            return len(handler.delivered_events) == 100

        await until(all_delivered, seconds=15)
        for run in runs:
            assert [e.type for e in handler.delivered_events if e.instance_id == run.id] == [
                "asked", "asked", "asked", "answered", "ended",
            ]  # fmt: skip


@pytest.mark.promise("bounded-resources")
async def test_concurrent_deliveries_are_limited(make_app: MakeApp) -> None:
    app = make_app()
    chain, max_running, running = emitting_chain(app, 1), 0, 0
    delivered_events, full = [], asyncio.Event()

    @app.outbox(concurrency=3)
    async def take(event: OutboundEvent) -> None:
        nonlocal max_running, running
        running += 1
        max_running = max(max_running, running)
        if running == 3:
            full.set()
        await full.wait()
        await asyncio.sleep(0)
        running -= 1
        delivered_events.append(event.id)

    async with app:
        for n in range(12):
            await app.start(chain, id=f"r-{n}")

        async def all_delivered() -> bool:
            return len(delivered_events) == 12

        await until(all_delivered, seconds=15)
    assert max_running == 3


async def test_another_process_delivers_events(make_app: MakeApp) -> None:
    writer, deliverer = (
        make_app(),
        make_app(worker=WorkerConfig(poll="1 hour")),
    )  # delivery depends on the notification
    chain, handler = emitting_chain(writer), RecordingHandler(deliverer)
    async with writer, deliverer:
        await writer.start(chain, id="one")

        async def all_delivered() -> bool:
            return len(handler.delivered_events) == 3

        await until(all_delivered, seconds=15)
    assert [event.payload for event in handler.delivered_events] == [{"n": 0}, {"n": 1}, {"n": 2}]


@pytest.mark.promise("outbox")
async def test_two_delivering_processes_keep_the_order_of_events(make_app: MakeApp) -> None:
    apps = [make_app(), make_app()]
    handlers = [RecordingHandler(app) for app in apps]
    delivered_events: list[OutboundEvent] = []
    for handler in handlers:
        handler.delivered_events = delivered_events
    chain = emitting_chain(apps[0], 30)
    async with apps[0], apps[1]:
        await apps[0].start(chain, id="one")

        async def all_delivered() -> bool:
            return len(delivered_events) == 30

        await until(all_delivered, seconds=15)
    assert [event.payload["n"] for event in delivered_events] == list(range(30))


async def test_a_stopping_worker_releases_undelivered_events(make_app: MakeApp) -> None:
    app = make_app(worker=WorkerConfig(drain="50 ms"))
    chain, began = emitting_chain(app, 1), asyncio.Event()
    attempted = []

    @app.outbox
    async def take(event: OutboundEvent) -> None:
        attempted.append(event.attempt)
        began.set()
        if len(attempted) == 1:
            await asyncio.Event().wait()

    async with app:
        await app.start(chain, id="one")
        await asyncio.wait_for(began.wait(), 60)
    async with app:
        run = await app.get(chain, "one")

        async def delivered() -> bool:
            return [record.state for record in await run.outbox()] == ["delivered"]

        await until(delivered, seconds=10)
    assert attempted == [1, 2]


async def test_a_delivery_is_cancelled_at_its_timeout(make_app: MakeApp) -> None:
    app = make_app()
    chain, stopped = emitting_chain(app, 1), asyncio.Event()

    @app.outbox(timeout="30 ms")
    async def take(event: OutboundEvent) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()

    async with app:
        run = await app.start(chain)
        await asyncio.wait_for(stopped.wait(), 60)

        async def failed() -> str | None:
            return (await run.outbox())[0].error

        assert "took longer" in await until(failed)


async def test_a_tick_delivers_events(make_app: MakeApp) -> None:
    app = make_app()
    chain, handler = emitting_chain(app), RecordingHandler(app)
    async with app.connect():
        await app.start(chain)
        await app.tick()
    assert handler.types == ["asked", "asked", "asked"]
