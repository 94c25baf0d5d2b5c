"""Event payloads and their types: a declared event is checked where it is sent, others where they are received."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from pydantic import BaseModel, field_validator

from apps import MakeApp
from driving import finish, lose_worker, until, until_status
from holdfast import (
    Context,
    EventInvalidError,
    Handle,
    Holdfast,
    InvalidEventTypeError,
    InvalidOptionError,
    Message,
    Rejected,
    RunFailedError,
    StepTx,
    Workflow,
)
from holdfast.testing import Harness
from scenarios.message_drives import number_of_instances


@dataclass
class Approval:
    by: str
    amount: int


GOOD = {"by": "ann", "amount": 5}
BAD = {"by": "ann"}


@pytest.fixture
def order(app: Holdfast) -> Workflow[Any]:
    @app.workflow(events={"approval": Approval, "note": str})
    async def order(ctx: Context) -> Any:
        event = await ctx.wait_for_event("approval", type="approval")
        return [type(event.payload).__name__, event.payload.amount]

    return order


async def stored_events(run: Handle[Any]) -> list[Any]:
    return [(event.type, event.payload) for event in (await run.history()).events]


async def consumed(run: Handle[Any]) -> bool:
    return any(event.consumed_by_step_key for event in (await run.history()).events)


def check_refusal(error: EventInvalidError) -> None:
    assert (error.code, error.event) == ("EVENT_INVALID", "approval")
    assert [issue["path"] for issue in error.issues] == [["amount"]]
    assert "'approval'" in str(error)
    assert "amount: Field required" in str(error)


# --- sending declared events


@pytest.mark.promise("clear-errors")
async def test_an_invalid_declared_event_is_refused_and_the_run_still_waits(h: Harness, order: Workflow[Any]) -> None:
    run = await h.start(order)
    await h.run_until_idle()

    with pytest.raises(EventInvalidError) as caught:
        await run.send_event("approval", BAD)

    check_refusal(caught.value)
    assert await stored_events(run) == []
    await run.send_event("approval", Approval("ann", 5))
    await h.run_until_idle()
    assert await run.result() == ["Approval", 5]


@pytest.mark.above_the_store
@pytest.mark.parametrize("payload", [None, "ann", {"by": "ann", "amount": "5"}, {"by": 1, "amount": 5}, [GOOD]])
async def test_a_sent_payload_without_the_documented_json_form_is_refused(
    h: Harness, order: Workflow[Any], payload: Any
) -> None:
    run = await h.start(order)
    with pytest.raises(EventInvalidError):
        await run.send_event("approval", payload)
    assert await stored_events(run) == []


@pytest.mark.above_the_store
async def test_events_of_undeclared_types_carry_any_payload(h: Harness, order: Workflow[Any]) -> None:
    run = await h.start(order)
    await run.send_event("other", BAD)
    await run.send_event("note", "text")
    assert await stored_events(run) == [("other", BAD), ("note", "text")]


@pytest.mark.above_the_store
async def test_an_ask_with_an_invalid_payload_is_refused(h: Harness, order: Workflow[Any]) -> None:
    run = await h.start(order)
    with pytest.raises(EventInvalidError) as caught:
        await run.ask("approval", BAD, timeout=5)
    check_refusal(caught.value)
    assert await stored_events(run) == []


@pytest.mark.promise("clear-errors")
async def test_a_start_with_an_invalid_message_starts_nothing(h: Harness, order: Workflow[Any]) -> None:
    with pytest.raises(EventInvalidError) as caught:
        await h.start(order, id="o", messages=[("note", "first"), ("approval", BAD)])
    check_refusal(caught.value)
    assert await number_of_instances(h) == 0


@pytest.mark.parametrize("way", ["send", "ask", "spawn"])
async def test_a_workflow_that_sends_an_invalid_event_gets_the_error_also_on_replay(
    app: Holdfast, h: Harness, order: Workflow[Any], way: str
) -> None:
    @app.workflow
    async def sender(ctx: Context, pid: str) -> Any:
        ways: dict[str, Any] = {
            "send": lambda payload: ctx.send(pid, "approval", payload),
            "ask": lambda payload: ctx.ask(pid, "approval", payload, timeout=3600),
            "spawn": lambda payload: ctx.spawn(order, messages=[("approval", payload)]),
        }
        try:
            await ways[way](BAD)
        except EventInvalidError as error:
            refused = error
        await ctx.sleep("later", "1 hour")
        check_refusal(refused)
        if way == "ask":
            return "refused"
        await ways[way](GOOD)
        return "sent"

    run = await h.start(order, id="o")
    await h.run_until_idle()
    sending = await h.start(sender, run.pid)
    await h.run_until_idle()
    assert await stored_events(run) == []
    await h.restart()
    await h.advance("1 hour")

    assert await sending.result() == ("refused" if way == "ask" else "sent")
    steps = [step.type for step in (await sending.history()).steps]
    assert steps == {"send": ["sleep", "send"], "ask": ["sleep"], "spawn": ["sleep", "child"]}[way]


async def test_a_step_transaction_that_sends_an_invalid_event_fails_without_retries(
    app: Holdfast, h: Harness, order: Workflow[Any]
) -> None:
    calls: list[str] = []

    @app.step
    async def approve(tx: StepTx, pid: str) -> None:
        calls.append(pid)
        tx.send(pid, "approval", BAD)

    @app.workflow
    async def sender(_ctx: Context, pid: str) -> Any:
        try:
            await approve(pid)
        except EventInvalidError as error:
            check_refusal(error)
            return "refused"

    run = await h.start(order)
    assert await finish(h, sender, run.pid) == "refused"
    assert calls == [run.pid]
    assert await stored_events(run) == []


@pytest.mark.above_the_store
async def test_a_recorded_send_is_not_checked_again(make_app: MakeApp) -> None:
    """A declaration that is added while runs are open applies to future events."""

    def program(events: dict[str, Any] | None) -> Holdfast:
        app = make_app()

        @app.workflow(events=events)
        async def order(ctx: Context) -> None:
            await ctx.inbox.receive()
            await ctx.wait_for_event("end", type="end")

        @app.workflow
        async def sender(ctx: Context, pid: str) -> str:
            await ctx.send(pid, "approval", BAD)
            await ctx.wait_for_event("go", type="go")
            return "sent"

        return app

    async with program(None) as app:
        run = await app.start("order", id="o")
        await until_status(await app.start("sender", run.pid, id="s"), "waiting")
    async with program({"approval": Approval}) as app:
        sender = await app.get("sender", "s")
        await sender.send_event("go")
        assert await sender.result(timeout=60) == "sent"


@pytest.mark.above_the_store
async def test_a_remote_workflow_may_declare_its_events(app: Holdfast, h: Harness) -> None:
    app.remote("elsewhere", events={"approval": Approval})
    app.remote("unknown")
    declared, unchecked = await h.start("elsewhere"), await h.start("unknown")

    with pytest.raises(EventInvalidError):
        await declared.send_event("approval", BAD)
    await unchecked.send_event("approval", BAD)


# --- receiving events


async def test_an_invalid_event_fails_its_wait_and_the_run_may_wait_again(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def order(ctx: Context) -> Any:
        refused = []
        for attempt in range(3):
            try:
                event = await ctx.wait_for_event(f"approval {attempt}", type="approval", payload=Approval)
            except EventInvalidError as error:
                check_refusal(error)
                refused.append(attempt)
            else:
                return refused, event.payload.amount
        return None

    run = await h.start(order)
    await h.run_until_idle()
    for payload in (BAD, BAD):
        await run.send_event("approval", payload)
        await h.run_until_idle()
        await h.restart()
    await run.send_event("approval", GOOD)
    await h.run_until_idle()

    assert await run.result() == [[0, 1], 5]
    history = await run.history()
    assert [(e.payload, e.consumed_by_step_key) for e in history.events] == [
        (BAD, "approval 0"),
        (BAD, "approval 1"),
        (GOOD, "approval 2"),
    ]
    assert [(s.status, s.error and s.error.name) for s in history.steps] == [
        ("errored", "EventInvalidError"),
        ("errored", "EventInvalidError"),
        ("completed", None),
    ]


async def test_an_invalid_event_fails_a_run_that_does_not_catch_the_error(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def order(ctx: Context) -> int:
        return (await ctx.wait_for_event("approval", type="approval", payload=Approval)).payload.amount

    run = await h.start(order)
    await run.send_event("approval", BAD)
    await h.run_until_idle()

    with pytest.raises(RunFailedError) as caught:
        await run.result()
    assert caught.value.error.name == "EventInvalidError"
    assert "'approval'" in caught.value.error.message
    assert "amount: Field required" in caught.value.error.message


@pytest.mark.above_the_store
async def test_a_wait_of_the_same_name_raises_the_same_error(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def order(ctx: Context) -> Any:
        messages = []
        for _ in range(2):
            try:
                await ctx.wait_for_event("approval", type="approval", payload=Approval)
            except EventInvalidError as error:
                messages.append(str(error))
        return messages

    run = await h.start(order)
    await run.send_event("approval", BAD)
    await run.send_event("approval", GOOD)
    await h.run_until_idle()

    first, second = await run.result()
    assert first == second
    assert [e.consumed_by_step_key for e in (await run.history()).events] == ["approval", None]


async def test_a_failed_wait_is_replayed_after_its_worker_was_lost(app: Holdfast, h: Harness) -> None:
    entered: list[str] = []

    async def lose_worker_once(amount: int) -> str:
        entered.append("in")
        if len(entered) == 1:
            h._the_worker().abandon()
        return f"{amount} refused"

    @app.workflow
    async def order(ctx: Context) -> Any:
        try:
            await ctx.wait_for_event("approval", type="approval", payload=Approval)
        except EventInvalidError as error:
            return await ctx.do("refuse", lose_worker_once, len(error.issues))

    run = await h.start(order)
    await h.run_until_idle()
    await run.send_event("approval", BAD)
    await h.run_until_idle()
    await lose_worker(h)
    await h.advance("1 minute")

    assert await run.result() == "1 refused"
    assert len(entered) == 2


@pytest.mark.above_the_store
@pytest.mark.parametrize("persist", ["step", "task"])
async def test_a_paused_run_gets_the_error_when_it_is_resumed(app: Holdfast, h: Harness, persist: Any) -> None:
    @app.workflow(persist=persist)
    async def order(ctx: Context) -> str:
        try:
            await ctx.wait_for_event("approval", type="approval", payload=Approval)
        except EventInvalidError as error:
            await ctx.sleep("later", "1 hour")
            return error.event
        return "fits"

    run = await h.start(order)
    await h.run_until_idle()
    await run.pause()
    await run.send_event("approval", BAD)
    await h.run_until_idle()
    assert (await run.status()).status == "paused"
    await run.resume()
    await h.run_until_idle()
    await h.restart()
    await h.advance("1 hour")
    assert await run.result() == "approval"


@pytest.mark.above_the_store
async def test_a_received_event_that_is_no_longer_valid_parks_the_run(make_app: MakeApp) -> None:
    def program(annotation: Any) -> Holdfast:
        app = make_app()

        @app.workflow
        async def order(ctx: Context) -> Any:
            event = await ctx.wait_for_event("approval", type="approval", payload=annotation)
            await ctx.wait_for_event("go", type="go")
            return event.payload

        return app

    async with program(dict[str, Any]) as app:
        run = await app.start("order", id="o")
        await run.send_event("approval", BAD)
        await until(lambda: consumed(run))
    async with program(Approval) as app:
        run = await app.get("order", "o")
        await run.send_event("go")
        await until_status(run, "paused")
        assert "NON_DETERMINISTIC" in str((await run.describe()).why)
    async with program(dict[str, Any]) as app:
        run = await app.get("order", "o")
        await run.resume()
        assert await run.result(timeout=60) == BAD


class Fragile(BaseModel):
    by: str

    @field_validator("by")
    @classmethod
    def broken(cls, value: str) -> str:
        raise KeyError(value)


@pytest.mark.above_the_store
async def test_a_validator_that_raises_anything_makes_the_event_invalid(app: Holdfast, h: Harness) -> None:
    @app.workflow(events={"declared": Fragile})
    async def order(ctx: Context) -> str:
        try:
            await ctx.wait_for_event("approval", type="approval", payload=Fragile)
        except EventInvalidError as error:
            return str(error)
        return ""

    run = await h.start(order)
    with pytest.raises(EventInvalidError, match="KeyError"):
        await run.send_event("declared", {"by": "ann"})
    await run.send_event("approval", {"by": "ann"})
    await h.run_until_idle()
    assert "KeyError" in await run.result()


# --- channels


@pytest.mark.above_the_store
async def test_channels_return_declared_payloads_as_their_type(app: Holdfast, h: Harness) -> None:
    @app.workflow(events={"approval": Approval, "question": Approval})
    async def order(ctx: Context) -> Any:
        payload = await ctx.listen("approval").receive()
        message = await ctx.listen("question", messages=True).receive()
        other: Message = await ctx.inbox.receive()
        return [payload.amount, message.payload.amount, other.payload]

    run = await h.start(order, messages=[("approval", GOOD), ("question", GOOD), ("other", GOOD)])
    await h.run_until_idle()
    assert await run.result() == [5, 5, GOOD]


async def test_an_invalid_message_is_consumed_and_rejected(make_app: MakeApp) -> None:
    """The message comes from a process that does not know the declaration."""
    app, client = make_app(), make_app()
    client.remote("order")

    @app.workflow(events={"approval": Approval})
    async def order(ctx: Context) -> Any:
        messages = ctx.listen("approval", messages=True)
        try:
            await messages.receive()
        except EventInvalidError as error:
            check_refusal(error)
        return (await messages.receive()).payload.amount

    async with app, client.connect():
        await app.start(order, id="o")
        run = await client.get("order", "o")
        with pytest.raises(Rejected) as caught:
            await run.ask("approval", BAD, timeout=10)
        assert "amount: Field required" in caught.value.reason
        await run.send_event("approval", GOOD)
        assert await run.result(timeout=60) == 5


# --- declaring


@pytest.mark.above_the_store
@pytest.mark.parametrize("events", [["approval"], "approval", 5])
def test_events_must_be_a_mapping(app: Holdfast, events: Any) -> None:
    with pytest.raises(InvalidOptionError, match="events must map event types to payload types"):
        app.workflow(events=events)


@pytest.mark.above_the_store
def test_a_declared_event_type_must_be_valid(app: Holdfast) -> None:
    with pytest.raises(InvalidEventTypeError):
        app.workflow(events={"not valid": Approval})
