"""Chains on a database: order of steps, outputs, errors, history and descriptions."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import pytest

from apps import MakeApp
from driving import finish
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


@pytest.fixture
def orders(app: Holdfast) -> Any:
    """A chain that validates an order, waits for its payment and ships it."""
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


async def test_steps_run_in_order_and_receive_the_outputs_of_previous_steps(h: Harness, orders: Any) -> None:
    run = await h.start(orders, "o-1", id="o-1")
    await h.run_until_idle()
    await run.send_event("paid", 125)
    await h.run_until_idle()
    assert await run.result(timeout=60) == {"VALIDATE": {"id": "o-1"}, "PAY": 125, "shipped": 2}


@pytest.mark.promise("exact-replay")
async def test_a_chain_has_the_same_result_wherever_its_worker_is_lost(h: Harness, orders: Any) -> None:
    async def send_payment(_h: Harness, run: Any) -> None:
        await run.send_event("paid", 125, id="payment")

    result = await h.crash_everywhere(orders, "o-1", drive=send_payment)
    assert result == {"VALIDATE": {"id": "o-1"}, "PAY": 125, "shipped": 2}


async def test_the_history_contains_every_step_before_the_first_one_runs(h: Harness, orders: Any) -> None:
    run = await h.start(orders, "o-1", start_delay="1 minute")
    steps = (await run.history()).steps
    assert [(s.step_seq, s.name, s.state, s.status) for s in steps] == [
        (0, "VALIDATE", "READY", "pending"),
        (1, "PAY", "PENDING", "pending"),
        (2, "SHIP", "PENDING", "pending"),
    ]


async def test_the_history_shows_the_states_of_waiting_and_dead_steps(h: Harness, orders: Any) -> None:
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


async def test_a_waiting_step_is_ready_when_its_event_has_arrived(h: Harness, orders: Any) -> None:
    run = await h.start(orders, "o-1")
    await h.run_until_idle()
    await run.send_event("other")
    assert (await run.history()).steps[1].state == "WAITING"
    await run.send_event("paid", 1)
    assert (await run.history()).steps[1].state == "READY"


async def test_status_and_description_show_the_current_step(h: Harness, orders: Any) -> None:
    run = await h.start(orders, "o-1")
    assert (await run.status()).native_status == "RUNNING"
    await h.run_until_idle()
    described = await run.describe()
    assert (described.kind, described.status) == ("chain", "waiting")
    assert (described.native_status, described.workflow_version) == ("RUNNING", 2)
    assert described.current_step is not None
    assert (described.current_step.name, described.current_step.state) == ("PAY", "WAITING")
    assert described.why.startswith("waiting for an event of type 'paid' in 'PAY' until")
    await run.send_event("paid", 1)
    await h.run_until_idle()
    assert ((await run.status()).status, (await run.status()).native_status) == ("complete", "COMPLETED")
    assert (await run.describe()).current_step.name == "SHIP"  # type: ignore[union-attr]


async def test_why_states_that_a_chain_has_not_started(h: Harness, orders: Any) -> None:
    run = await h.start(orders, start_delay="1 hour")
    assert (await run.describe()).why.startswith("waiting for its start at")
    due = await h.start(orders)
    assert (await due.describe()).why == "due, and waiting for a worker of queue 'default'"


async def test_a_failed_chain_names_the_step_and_the_error(h: Harness, app: Holdfast) -> None:
    chain = app.chain("fails")

    @chain.step("CHARGE", max_attempts=2)
    async def charge(task: ChainTask) -> Any:
        raise LookupError("no such card")

    run = await h.start(chain)
    await h.advance("1 minute")
    with pytest.raises(RunFailedError, match="no such card") as caught:
        await run.result(timeout=60)
    assert caught.value.error.name == "LookupError"
    assert "'CHARGE'" in caught.value.error.message
    assert ((await run.status()).status, (await run.status()).native_status) == ("errored", "FAILED")


async def test_a_pending_retry_is_shown_with_its_time_and_error(h: Harness, app: Holdfast) -> None:
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
    assert await run.result(timeout=60) == 3
    [step] = (await run.history()).steps
    assert (step.state, step.attempts, step.error) == ("DONE", 2, None)


async def test_a_non_retryable_error_is_final(h: Harness, app: Holdfast) -> None:
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
async def test_any_json_value_can_be_an_output(h: Harness, app: Holdfast, value: Any) -> None:
    chain = app.chain("values")

    @chain.step("ONLY")
    async def only(task: ChainTask) -> Any:
        return value

    assert await finish(h, chain) == value


@dataclass
class Order:
    id: str
    total: int


async def test_the_params_of_a_task_have_the_declared_type(h: Harness, app: Holdfast) -> None:
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


async def test_the_task_of_a_handler_describes_its_step_and_run(h: Harness, app: Holdfast) -> None:
    chain = app.chain("described")
    seen: list[ChainTask] = []

    @chain.step("FIRST")
    def first(task: ChainTask) -> Any:
        seen.append(task)

    await finish(h, chain, {"a": 1}, id="one")
    [task] = seen
    assert (task.workflow, task.instance_id, task.pid, task.run_number) == ("described", "one", "described/one", 0)
    assert (task.kind, task.params, task.event, task.attempt) == ("RUN", {"a": 1}, None, 1)
    assert (task.step_type, task.step_seq, dict(task.outputs)) == ("FIRST", 0, {})


async def test_handlers_can_write_log_lines(h: Harness, app: Holdfast) -> None:
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


async def test_many_chains_can_be_started_in_one_call(h: Harness, orders: Any) -> None:
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


async def test_an_event_carries_the_pid_of_its_sender(h: Harness, app: Holdfast) -> None:
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


async def test_a_chain_of_a_thousand_steps_takes_one_commit_per_step(h: Harness, app: Holdfast) -> None:
    chain = app.chain("long")
    for n in range(1000):

        @chain.step(f"S{n}")
        async def step(task: ChainTask) -> int:
            return task.step_seq

    run = await h.start(chain)
    await h.run_until_idle()
    assert await run.result(timeout=60) == 999
    assert h._store.commits == 1000  # one for each step; that of the last step also ends the run


async def test_a_chain_runs_in_real_time(make_app: MakeApp) -> None:
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
        assert await run.result(timeout=60) == 42


async def test_ticks_run_a_chain(make_app: MakeApp) -> None:
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
        assert await run.result(timeout=60) == 2


# --- definitions


def test_a_chain_needs_a_valid_name_that_is_not_taken(app: Holdfast) -> None:
    app.chain("one")
    with pytest.raises(WorkflowAlreadyRegisteredError):
        app.chain("one")
    for name in ("", "no spaces", 5):
        with pytest.raises(InvalidNameError):
            app.chain(name)  # type: ignore[arg-type]


@pytest.mark.parametrize("version", [0, -1, "1", True, None, 1.5])
def test_a_version_must_be_a_positive_integer(app: Holdfast, version: Any) -> None:
    with pytest.raises(InvalidOptionError, match="version"):
        app.chain("one", version)


def test_the_options_of_a_step_are_checked_at_definition(app: Holdfast) -> None:
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


async def test_a_chain_without_steps_cannot_be_started(h: Harness, app: Holdfast) -> None:
    chain = app.chain("empty")
    with pytest.raises(DefinitionError, match="no steps"):
        await h.start(chain)
    assert (await h.app.list()).items == []


def test_a_decorated_handler_can_be_called_as_a_function(app: Holdfast) -> None:
    chain = app.chain("one")

    @chain.step("A")
    def a(task: Any) -> Any:
        return task + 1

    assert a(1) == 2


async def test_concurrent_starts_with_one_id_create_one_run(h: Harness, orders: Any) -> None:
    await asyncio.gather(*(h.start(orders, n, id="one") for n in range(10)))
    assert len((await h.app.list()).items) == 1
