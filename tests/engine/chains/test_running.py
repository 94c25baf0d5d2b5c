"""Chains on a database: order, outputs, errors, what people see of them."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import pytest

from holdfast import (
    ChainTask,
    ChainTaskKind,
    Completed,
    Context,
    Dead,
    DefinitionError,
    Holdfast,
    InvalidDurationError,
    InvalidNameError,
    InvalidOptionError,
    NonRetryableError,
    ParamsInvalidError,
    RetryStep,
    RunFailedError,
    Start,
    Waiting,
    WorkflowAlreadyRegisteredError,
)
from holdfast.testing import Harness

from ..conftest import MakeApp
from ..driving import finish


@pytest.fixture
def orders(app: Holdfast) -> Any:
    """Validates, waits for a payment, ships."""
    chain = app.chain("order.process", version=2)

    @chain.step("VALIDATE")
    async def validate(task: ChainTask) -> Any:
        return {"id": task.params}

    @chain.step("PAY", max_attempts=3)
    def pay(task: ChainTask) -> Any:
        if task.kind is ChainTaskKind.RUN:
            return Waiting("paid", "1 hour")
        if task.event is None:
            return Dead("nobody paid")
        return Completed(task.event.payload)

    @chain.step("SHIP")
    async def ship(task: ChainTask) -> Any:
        return Completed(dict(task.outputs) | {"shipped": task.step_seq})

    return chain


async def test_it_runs_its_steps_in_order_with_the_outputs_before(h: Harness, orders: Any) -> None:
    run = await h.start(orders, "o-1", id="o-1")
    await h.run_until_idle()
    await run.send_event("paid", 125)
    await h.run_until_idle()
    assert await run.result(timeout=5) == {"VALIDATE": {"id": "o-1"}, "PAY": 125, "shipped": 2}


async def test_it_is_the_same_wherever_the_worker_is_lost(h: Harness, orders: Any) -> None:
    async def pays(_h: Harness, run: Any) -> None:
        await run.send_event("paid", 125, id="payment")

    result = await h.crash_everywhere(orders, "o-1", drive=pays)
    assert result == {"VALIDATE": {"id": "o-1"}, "PAY": 125, "shipped": 2}


async def test_the_history_has_every_step_from_the_start(h: Harness, orders: Any) -> None:
    run = await h.start(orders, "o-1", start_delay="1 minute")
    steps = (await run.history()).steps
    assert [(s.step_seq, s.name, s.state, s.status) for s in steps] == [
        (0, "VALIDATE", "READY", "pending"),
        (1, "PAY", "PENDING", "pending"),
        (2, "SHIP", "PENDING", "pending"),
    ]


async def test_the_history_while_it_waits_and_at_its_end(h: Harness, orders: Any) -> None:
    run = await h.start(orders, "o-1")
    await h.run_until_idle()
    steps = (await run.history()).steps
    assert [(s.state, s.status, s.wait_event_type) for s in steps] == [
        ("DONE", "completed", None),
        ("WAITING", "waiting", "paid"),
        ("PENDING", "pending", None),
    ]
    await h.advance("1 hour")
    steps = (await run.history()).steps
    assert [(s.state, s.attempts, s.status) for s in steps] == [
        ("DONE", 0, "completed"),
        ("DEAD", 1, "errored"),
        ("PENDING", 0, "pending"),
    ]
    assert steps[1].error is not None
    assert steps[1].error.message == "nobody paid"


async def test_a_step_whose_event_has_come_is_ready(h: Harness, orders: Any) -> None:
    run = await h.start(orders, "o-1")
    await h.run_until_idle()
    await run.send_event("other")
    assert (await run.history()).steps[1].state == "WAITING"
    await run.send_event("paid", 1)
    assert (await run.history()).steps[1].state == "READY"


async def test_what_is_said_of_it(h: Harness, orders: Any) -> None:
    run = await h.start(orders, "o-1")
    assert (await run.status()).native_status == "RUNNING"
    await h.run_until_idle()
    found = await run.describe()
    assert (found.kind, found.status, found.native_status, found.workflow_version) == ("chain", "waiting", "RUNNING", 2)
    assert found.current_step is not None
    assert (found.current_step.name, found.current_step.state) == ("PAY", "WAITING")
    assert found.why.startswith("waiting for an event of type 'paid' in 'PAY' until")
    await run.send_event("paid", 1)
    await h.run_until_idle()
    assert ((await run.status()).status, (await run.status()).native_status) == ("complete", "COMPLETED")
    assert (await run.describe()).current_step.name == "SHIP"  # type: ignore[union-attr]


async def test_one_that_has_not_begun_says_so(h: Harness, orders: Any) -> None:
    run = await h.start(orders, start_delay="1 hour")
    assert (await run.describe()).why.startswith("waiting for its start at")
    now = await h.start(orders)
    assert (await now.describe()).why == "due, and waiting for a worker of queue 'default'"


async def test_a_failed_chain_names_the_step_and_the_error(h: Harness, app: Holdfast) -> None:
    chain = app.chain("fails")

    @chain.step("CHARGE", max_attempts=2)
    async def charge(task: ChainTask) -> Any:
        raise LookupError("no such card")

    run = await h.start(chain)
    await h.advance("1 minute")
    with pytest.raises(RunFailedError, match="no such card") as caught:
        await run.result(timeout=5)
    assert caught.value.error.name == "LookupError"
    assert "'CHARGE'" in caught.value.error.message
    assert ((await run.status()).status, (await run.status()).native_status) == ("errored", "FAILED")


async def test_a_retry_is_shown_with_its_time_and_error(h: Harness, app: Holdfast) -> None:
    chain = app.chain("retries")

    @chain.step("CHARGE")
    async def charge(task: ChainTask) -> Any:
        return RetryStep("30 seconds", "gateway busy") if task.attempt < 3 else Completed(task.attempt)

    run = await h.start(chain)
    await h.run_until_idle()
    [step] = (await run.history()).steps
    assert (step.state, step.status, step.attempts, step.max_attempts) == ("READY", "waiting", 1, 5)
    assert step.error is not None
    assert step.error.message == "gateway busy"
    assert (step.next_retry_at - h.now()).total_seconds() == 30  # type: ignore[operator]
    assert "waiting to retry step 'CHARGE' after failed attempt 1 of 5" in (await run.describe()).why
    await h.advance("1 minute")
    assert await run.result(timeout=5) == 3
    [step] = (await run.history()).steps
    assert (step.state, step.attempts, step.error) == ("DONE", 2, None)


async def test_an_error_that_is_not_to_be_retried_is_final(h: Harness, app: Holdfast) -> None:
    chain = app.chain("final")
    calls = []

    @chain.step("ONLY")
    async def only(task: ChainTask) -> Any:
        calls.append(task.attempt)
        raise NonRetryableError("never", "Forbidden")

    run = await h.start(chain)
    await h.advance("1 hour")
    assert (calls, (await run.status()).error.name) == ([1], "Forbidden")  # type: ignore[union-attr]


@pytest.mark.parametrize("value", [None, 0, "", [], {"a": None}, False])
async def test_any_value_is_an_output(h: Harness, app: Holdfast, value: Any) -> None:
    chain = app.chain("values")

    @chain.step("ONLY")
    async def only(task: ChainTask) -> Any:
        return value

    assert await finish(h, chain) == value


@dataclass
class Order:
    id: str
    total: int


async def test_its_input_has_the_declared_type(h: Harness, app: Holdfast) -> None:
    chain = app.chain("typed", params=Order)
    seen: list[Any] = []

    @chain.step("ONLY")
    async def only(task: ChainTask) -> Any:
        seen.append(task.params)

    await finish(h, chain, Order("o-1", 5))
    await finish(h, chain, {"id": "o-2", "total": 6})
    assert seen == [Order("o-1", 5), Order("o-2", 6)]
    with pytest.raises(ParamsInvalidError):
        await h.start(chain, {"id": "o-3"})


async def test_what_a_handler_is_told(h: Harness, app: Holdfast) -> None:
    chain = app.chain("told")
    seen: list[ChainTask] = []

    @chain.step("FIRST")
    def first(task: ChainTask) -> Any:
        seen.append(task)

    await finish(h, chain, {"a": 1}, id="one")
    [task] = seen
    assert (task.workflow, task.instance_id, task.pid, task.run_number) == ("told", "one", "told/one", 0)
    assert (task.kind, task.params, task.event, task.attempt) == ("RUN", {"a": 1}, None, 1)
    assert (task.step_type, task.step_seq, dict(task.outputs)) == ("FIRST", 0, {})


async def test_handlers_log(h: Harness, app: Holdfast) -> None:
    chain = app.chain("logs")

    @chain.step("ASYNC")
    async def first(task: ChainTask) -> Any:
        task.log.info("here", {"n": 1})

    @chain.step("PLAIN")
    def second(task: ChainTask) -> Any:
        task.log.warning("and here", category="ship")

    run = await h.start(chain)
    await h.run_until_idle()
    lines = await run.logs()
    assert [(li.step_key, li.attempt, li.level, li.message, li.data, li.category) for li in lines] == [
        ("ASYNC", 1, "info", "here", {"n": 1}, "workflow"),
        ("PLAIN", 1, "warn", "and here", None, "ship"),
    ]


async def test_many_start_at_once(h: Harness, orders: Any) -> None:
    runs = await h.app.start_many(orders, [Start(f"o-{n}", n) for n in range(20)])
    await h.run_until_idle()
    for run in runs:
        await run.send_event("paid", 1)
    await h.run_until_idle()
    assert {(await run.status()).status for run in runs} == {"complete"}


async def test_a_workflow_runs_a_chain_as_its_child(h: Harness, app: Holdfast, orders: Any) -> None:
    @app.workflow
    async def parent(ctx: Context) -> Any:
        child = await ctx.spawn(orders, "o-1", id="child")
        await ctx.send(child.pid, "paid", 7)
        return await child.result()

    result = await h.crash_everywhere(parent)
    assert result == {"VALIDATE": {"id": "o-1"}, "PAY": 7, "shipped": 2}


async def test_the_one_who_sent_the_event_is_named(h: Harness, app: Holdfast) -> None:
    chain = app.chain("asks")
    senders = []

    @chain.step("ONLY")
    async def only(task: ChainTask) -> Any:
        if task.event is None:
            return Waiting("go", "1 hour")
        senders.append(task.event.sender)
        return None

    @app.workflow
    async def sender(ctx: Context) -> None:
        await ctx.send("asks/one", "go")

    await h.start(chain, id="one")
    await h.run_until_idle()
    await h.start(sender, id="me")
    await h.run_until_idle()
    assert senders == ["sender/me"]


async def test_a_thousand_steps(h: Harness, app: Holdfast) -> None:
    chain = app.chain("long")
    for n in range(1000):

        @chain.step(f"S{n}")
        async def step(task: ChainTask) -> int:
            return task.step_seq

    run = await h.start(chain)
    await h.run_until_idle()
    assert await run.result(timeout=5) == 999
    assert h._store.commits == 1000  # one for each step, the end with the last


async def test_it_runs_in_real_time(make_app: MakeApp) -> None:
    app = make_app()
    chain = app.chain("real")

    @chain.step("WAIT")
    async def wait(task: ChainTask) -> Any:
        return Waiting("go", "1 hour") if task.event is None else task.event.payload

    @chain.step("THREAD")
    def thread(task: ChainTask) -> Any:
        return task.outputs["WAIT"] + 1

    async with app:
        run = await app.start(chain)
        await run.send_event("go", 41)
        assert await run.result(timeout=10) == 42


async def test_ticks_run_it(make_app: MakeApp) -> None:
    app = make_app()
    chain = app.chain("ticked")

    @chain.step("A")
    async def a(task: ChainTask) -> Any:
        return 1

    @chain.step("B")
    async def b(task: ChainTask) -> Any:
        return task.outputs["A"] + 1

    async with app.connect():
        run = await app.start(chain)
        assert await app.tick(max_steps=1) == 1
        assert (await run.status()).status == "active"
        assert [s.state for s in (await run.history()).steps] == ["DONE", "READY"]
        await app.tick()
        assert await run.result(timeout=5) == 2


# --- definitions


def test_a_chain_needs_a_name_of_its_own(app: Holdfast) -> None:
    app.chain("one")
    with pytest.raises(WorkflowAlreadyRegisteredError):
        app.chain("one")
    for name in ("", "no spaces", 5):
        with pytest.raises(InvalidNameError):
            app.chain(name)  # type: ignore[arg-type]


@pytest.mark.parametrize("version", [0, -1, "1", True, None, 1.5])
def test_a_version_is_a_number(app: Holdfast, version: Any) -> None:
    with pytest.raises(InvalidOptionError, match="version"):
        app.chain("one", version)


def test_a_step_is_checked_when_it_is_made(app: Holdfast) -> None:
    chain = app.chain("one")

    @chain.step("A")
    async def a(task: ChainTask) -> None: ...

    with pytest.raises(DefinitionError, match="has a step 'A' already"):
        chain.step("A")
    for name in ("", None, 5, "x" * 300):
        with pytest.raises(InvalidNameError):
            chain.step(name)  # type: ignore[arg-type]
    for attempts in (0, -1, "3", True, None, 1.5):
        with pytest.raises(InvalidOptionError, match="max_attempts"):
            chain.step("B", max_attempts=attempts)  # type: ignore[arg-type]
    for duration in ("soon", -1, True):
        with pytest.raises(InvalidDurationError):
            chain.step("B", lease=duration)
        with pytest.raises(InvalidDurationError):
            chain.step("B", timeout=duration)
    for lease in (0, "99 ms"):
        with pytest.raises(InvalidOptionError, match="lease must be at least 100 ms"):
            chain.step("B", lease=lease)
    with pytest.raises(InvalidOptionError, match="timeout must be at least 1 ms"):
        chain.step("B", timeout=0)
    with pytest.raises(DefinitionError, match="function"):
        chain.step("B")(5)  # type: ignore[type-var]
    assert chain.steps == ("A",)


async def test_a_chain_without_steps_is_not_started(h: Harness, app: Holdfast) -> None:
    chain = app.chain("empty")
    with pytest.raises(DefinitionError, match="no steps"):
        await h.start(chain)
    assert (await h.app.list()).items == []


def test_a_handler_stays_a_function(app: Holdfast) -> None:
    chain = app.chain("one")

    @chain.step("A")
    def a(task: Any) -> Any:
        return task + 1

    assert a(1) == 2


async def test_the_same_id_is_the_same_chain(h: Harness, orders: Any) -> None:
    await asyncio.gather(*(h.start(orders, n, id="one") for n in range(10)))
    assert len((await h.app.list()).items) == 1
