"""Outbound events: written with the step, delivered in order, at least once, and parked when nothing helps."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest

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
from holdfast.testing import Harness

from ..conftest import MakeApp
from ..driving import until


def talking(app: Holdfast, events: int = 3, name: str = "talking") -> Any:
    """A chain of two steps that tell the world."""
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


class Taker:
    """Takes events, except that it fails as often as it is told."""

    def __init__(self, app: Holdfast, **options: Any) -> None:
        self.tried: list[OutboundEvent] = []
        self.taken: list[OutboundEvent] = []
        self.fails: Callable[[OutboundEvent], bool] = lambda event: False
        app.outbox(self._take, **options)

    async def _take(self, event: OutboundEvent) -> None:
        self.tried.append(event)
        if self.fails(event):
            raise ConnectionError("nobody there")
        self.taken.append(event)

    @property
    def types(self) -> list[str]:
        return [event.type for event in self.taken]


async def through(h: Harness, run: Handle[Any]) -> None:
    await h.run_until_idle()
    await run.send_event("go", 7)
    await h.run_until_idle()


async def test_events_are_delivered_in_their_order_with_all_they_have(h: Harness, app: Holdfast) -> None:
    chain, taker = talking(app), Taker(app)
    run = await h.start(chain, id="one")
    await through(h, run)
    assert taker.types == ["asked", "asked", "asked", "answered", "ended"]
    assert [event.id for event in taker.taken] == [f"talking/one/0/{n}" for n in range(1, 6)]
    assert [event.payload for event in taker.taken] == [{"n": 0}, {"n": 1}, {"n": 2}, 7, None]
    first = taker.taken[0]
    assert (first.workflow, first.instance_id, first.step, first.attempt) == ("talking", "one", "ASK", 1)
    assert first.created_at == h.now()
    assert {record.state for record in await run.outbox()} == {"delivered"}


async def test_a_plain_function_takes_them_too(h: Harness, app: Holdfast) -> None:
    chain, taken = talking(app), []

    @app.outbox
    def take(event: OutboundEvent) -> None:
        taken.append(event.type)

    run = await h.start(chain)
    await through(h, run)
    assert taken == ["asked", "asked", "asked", "answered", "ended"]


async def test_without_a_handler_they_wait(h: Harness, app: Holdfast) -> None:
    run = await h.start(talking(app))
    await through(h, run)
    assert [record.state for record in await run.outbox()] == ["pending"] * 5
    taker = Taker(app)
    await h.run_until_idle()
    assert len(taker.taken) == 5


async def test_one_that_fails_is_tried_again_and_holds_up_those_behind_it(h: Harness, app: Holdfast) -> None:
    chain, taker = talking(app), Taker(app)
    taker.fails = lambda event: event.attempt < 3
    run = await h.start(chain)
    await through(h, run)
    assert (len(taker.tried), taker.types) == (1, [])
    [first, second, *_] = await run.outbox()
    assert (first.state, first.attempts, first.error) == ("pending", 1, "ConnectionError: nobody there")
    assert 1 <= (first.next_attempt_at - h.now()).total_seconds() <= 1.2  # type: ignore[operator]
    assert (second.state, second.attempts) == ("pending", 0)
    await h.advance("1 minute")
    assert taker.types == ["asked", "asked", "asked", "answered", "ended"]
    assert [event.attempt for event in taker.tried[:3]] == [1, 2, 3]
    assert {event.id for event in taker.tried[:3]} == {taker.taken[0].id}


async def test_one_that_fails_does_not_hold_up_other_runs(h: Harness, app: Holdfast) -> None:
    chain, taker = talking(app, 1), Taker(app)
    taker.fails = lambda event: event.instance_id == "bad"
    for name in ("bad", "good"):
        await through(h, await h.start(chain, id=name))
    assert {event.instance_id for event in taker.taken} == {"good"}
    assert len(taker.taken) == 3


async def test_one_that_never_arrives_is_parked_and_the_others_go_on(h: Harness, app: Holdfast) -> None:
    chain, taker = talking(app), Taker(app, max_attempts=4)
    taker.fails = lambda event: event.payload == {"n": 1}
    run = await h.start(chain)
    await through(h, run)
    await h.advance("1 hour")
    assert [record.state for record in await run.outbox()] == [
        "delivered", "parked", "delivered", "delivered", "delivered",
    ]  # fmt: skip
    assert [event.attempt for event in taker.tried if event.payload == {"n": 1}] == [1, 2, 3, 4]
    parked = (await run.outbox())[1]
    assert (parked.attempts, parked.error, parked.parked_at is not None) == (4, "ConnectionError: nobody there", True)


async def test_a_parked_event_is_delivered_when_somebody_asks_for_it(h: Harness, app: Holdfast) -> None:
    chain, taker = talking(app, 1), Taker(app, max_attempts=1)
    taker.fails = lambda event: len(taker.tried) < 2
    run = await h.start(chain)
    await h.run_until_idle()
    assert [record.state for record in await run.outbox()] == ["parked"]
    assert await run.redeliver() == 1
    await h.run_until_idle()
    assert [record.state for record in await run.outbox()] == ["delivered"]
    assert await run.redeliver() == 0


async def test_the_pauses_grow_up_to_five_minutes(h: Harness, app: Holdfast) -> None:
    chain, taker = talking(app, 1), Taker(app, max_attempts=12)
    times = []

    def fails(event: OutboundEvent) -> bool:
        times.append(h.now())
        return True

    taker.fails = fails
    run = await h.start(chain)
    await h.advance("50 minutes")
    pauses = [(b - a).total_seconds() for a, b in pairwise(times)]
    for pause, least in zip(pauses, [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300], strict=True):
        assert least <= pause <= min(least * 1.2, 300) + 0.001
    assert [record.state for record in await run.outbox()] == ["parked"]


@pytest.mark.parametrize("error", [SystemExit(1), KeyboardInterrupt(), BaseException("odd")])
async def test_whatever_a_handler_raises_is_its_own_failure(h: Harness, app: Holdfast, error: BaseException) -> None:
    chain = talking(app, 1)

    @app.outbox
    async def take(event: OutboundEvent) -> None:
        raise error

    run = await h.start(chain)
    await h.run_until_idle()
    [record] = await run.outbox()
    assert (record.state, record.attempts) == ("pending", 1)
    assert type(error).__name__ in (record.error or "")


async def test_events_of_an_attempt_that_failed_do_not_go_out(h: Harness, app: Holdfast) -> None:
    chain, taker = app.chain("fails"), Taker(app)

    @chain.step("ONLY")
    async def only(task: ChainTask) -> Any:
        if task.attempt == 1:
            return RetryStep("1 second", "again")
        if task.attempt == 2:
            raise ValueError("no")
        return Dead("over", [Outbound("over")])

    run = await h.start(chain)
    await h.advance("1 minute")
    assert ((await run.status()).status, taker.types) == ("errored", ["over"])


async def test_a_step_that_is_repeated_after_a_crash_says_it_once(h: Harness, app: Holdfast) -> None:
    """What is written with the step is written once, wherever the worker was lost; it may be delivered more often."""
    chain, taker = talking(app), Taker(app)

    async def go(_h: Harness, run: Handle[Any]) -> None:
        await run.send_event("go", 7, id="go")

    assert await h.crash_everywhere(chain, drive=go) == "end"
    by_run: dict[str, list[str]] = {}
    for event in taker.taken:
        by_run.setdefault(event.id, []).append(event.type)
    assert sorted(by_run) == [f"talking/crash-everywhere/0/{n}" for n in range(1, 6)]


async def test_a_restart_has_events_of_its_own(h: Harness, app: Holdfast) -> None:
    chain, taker = talking(app, 1), Taker(app)
    run = await h.start(chain, id="one")
    await through(h, run)
    await run.restart()
    await h.run_until_idle()
    assert [event.id for event in taker.taken][-1] == "talking/one/1/1"
    assert [record.id for record in await run.outbox()] == ["talking/one/1/1"]
    assert len(await run.outbox(run_number=0)) == 3


async def test_one_that_its_workers_died_with_is_parked_untried(h: Harness, app: Holdfast) -> None:
    run = await h.start(talking(app, 1))
    await h.run_until_idle()
    for _ in range(2):
        assert len((await h._store.outbox_claim("dead", 1000, 1)).rows) == 1
        await h.advance("2 seconds", run=False)
    taker = Taker(app, max_attempts=2)
    await h.run_until_idle()
    [record] = await run.outbox()
    assert (record.state, taker.tried) == ("parked", [])


async def test_one_whose_worker_died_is_tried_by_another(h: Harness, app: Holdfast) -> None:
    run = await h.start(talking(app, 1))
    await h.run_until_idle()
    await h._store.outbox_claim("dead", 1000, 1)
    taker = Taker(app)
    await h.run_until_idle()
    assert taker.tried == []
    await h.advance("2 seconds")
    assert [event.attempt for event in taker.taken] == [2]
    assert [record.state for record in await run.outbox()] == ["delivered"]


async def test_options_are_checked(app: Holdfast) -> None:
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


async def test_the_worker_delivers_by_itself(make_app: MakeApp) -> None:
    app = make_app(worker=WorkerConfig(poll="1 minute"))  # it is woken, and does not look
    chain, taker = talking(app), Taker(app)
    async with app:
        runs = [await app.start(chain, id=f"r-{n}") for n in range(20)]
        await asyncio.gather(*(run.send_event("go", 7) for run in runs))

        async def all_there() -> bool:
            return len(taker.taken) == 100

        await until(all_there, seconds=15)
        for run in runs:
            assert [e.type for e in taker.taken if e.instance_id == run.id] == [
                "asked", "asked", "asked", "answered", "ended",
            ]  # fmt: skip


async def test_only_so_many_are_under_way_at_once(make_app: MakeApp) -> None:
    app = make_app()
    chain, most, now = talking(app, 1), 0, 0
    taken, full = [], asyncio.Event()

    @app.outbox(concurrency=3)
    async def take(event: OutboundEvent) -> None:
        nonlocal most, now
        now += 1
        most = max(most, now)
        if now == 3:
            full.set()
        await full.wait()
        await asyncio.sleep(0)
        now -= 1
        taken.append(event.id)

    async with app:
        for n in range(12):
            await app.start(chain, id=f"r-{n}")

        async def all_there() -> bool:
            return len(taken) == 12

        await until(all_there, seconds=15)
    assert most == 3


async def test_another_process_delivers(make_app: MakeApp) -> None:
    writer, courier = make_app(), make_app(worker=WorkerConfig(poll="1 minute"))  # it hears of it, and does not look
    chain, taker = talking(writer), Taker(courier)
    async with writer, courier:
        await writer.start(chain, id="one")

        async def all_there() -> bool:
            return len(taker.taken) == 3

        await until(all_there, seconds=15)
    assert [event.payload for event in taker.taken] == [{"n": 0}, {"n": 1}, {"n": 2}]


async def test_two_couriers_keep_the_order(make_app: MakeApp) -> None:
    apps = [make_app(), make_app()]
    takers = [Taker(app) for app in apps]
    taken: list[OutboundEvent] = []
    for taker in takers:
        taker.taken = taken
    chain = talking(apps[0], 30)
    async with apps[0], apps[1]:
        await apps[0].start(chain, id="one")

        async def all_there() -> bool:
            return len(taken) == 30

        await until(all_there, seconds=15)
    assert [event.payload["n"] for event in taken] == list(range(30))


async def test_a_worker_that_stops_gives_back_what_it_could_not_deliver(make_app: MakeApp) -> None:
    app = make_app(worker=WorkerConfig(drain="50 ms"))
    chain, began = talking(app, 1), asyncio.Event()
    tried = []

    @app.outbox
    async def take(event: OutboundEvent) -> None:
        tried.append(event.attempt)
        began.set()
        if len(tried) == 1:
            await asyncio.Event().wait()

    async with app:
        await app.start(chain, id="one")
        await asyncio.wait_for(began.wait(), 10)
    async with app:
        run = await app.get(chain, "one")

        async def delivered() -> bool:
            return [record.state for record in await run.outbox()] == ["delivered"]

        await until(delivered, seconds=10)
    assert tried == [1, 2]


async def test_a_delivery_may_take_only_so_long(make_app: MakeApp) -> None:
    app = make_app()
    chain, stopped = talking(app, 1), asyncio.Event()

    @app.outbox(timeout="30 ms")
    async def take(event: OutboundEvent) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()

    async with app:
        run = await app.start(chain)
        await asyncio.wait_for(stopped.wait(), 10)

        async def failed() -> str | None:
            return (await run.outbox())[0].error

        assert "took longer" in await until(failed)


async def test_a_tick_delivers(make_app: MakeApp) -> None:
    app = make_app()
    chain, taker = talking(app), Taker(app)
    async with app.connect():
        await app.start(chain)
        await app.tick()
    assert taker.types == ["asked", "asked", "asked"]
