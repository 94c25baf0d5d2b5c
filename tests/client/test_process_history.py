"""``history`` and ``describe`` of runs that affect others: steps, events with senders, relations, and ``why``."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import Any

import pytest

from holdfast import Context, Handle, Holdfast, InstanceNotFoundError, Rejected, StepRecord
from holdfast.testing import Harness
from scenarios.observations import at, observe_with_crashes
from why_text import without_positions


@pytest.fixture
def waits(app: Holdfast) -> Any:
    @app.workflow
    async def waits(ctx: Context) -> Any:
        return (await ctx.wait_for_event("go", type="go", timeout="30 days")).payload

    return waits


def outline(step: StepRecord) -> tuple[Any, ...]:
    return step.type, step.name, step.status, step.result, step.error and step.error.name


async def _steps(h: Harness, run: Handle[Any]) -> list[tuple[Any, ...]]:
    return [outline(step) for step in (await run.history()).steps]


async def test_the_history_shows_children_as_steps(app: Holdfast, h: Harness, waits: Any) -> None:
    @app.workflow
    async def broken(ctx: Context) -> None:
        raise ValueError("no")

    @app.workflow
    async def parent(ctx: Context) -> None:
        await ctx.run(waits, id="good", messages=[("go", {"x": 1})])
        try:
            await ctx.run(broken, id="bad")
        except Exception:
            await ctx.spawn(waits, id="open")

    found = await observe_with_crashes(h, parent, observe=_steps)
    assert [(kind, status, result, error) for kind, _, status, result, error in found] == [
        ("child", "completed", {"x": 1}, None),
        ("child", "errored", None, "ValueError"),
        ("child", "waiting", None, None),
    ]


async def test_the_history_shows_a_terminated_child_as_errored(app: Holdfast, h: Harness, waits: Any) -> None:
    @app.workflow
    async def parent(ctx: Context) -> None:
        child = await ctx.spawn(waits, id="w")
        await ctx.terminate(child.pid, "enough")
        await ctx.events.receive()

    async def observe(harness: Harness, run: Handle[Any]) -> Any:
        steps = (await run.history()).steps
        return [(s.type, s.status, s.error and (s.error.name, s.error.message)) for s in steps]

    assert await observe_with_crashes(h, parent, observe=observe) == [
        ("child", "errored", ("Terminated", "enough")),
        ("terminate", "completed", None),
    ]


async def test_two_starts_of_one_child_are_both_completed_steps(app: Holdfast, h: Harness, waits: Any) -> None:
    @app.workflow
    async def parent(ctx: Context) -> Any:
        first = await ctx.spawn(waits, id="w")
        second = await ctx.spawn(waits, id="w", messages=[("go", 1)])
        return [await first.result(), await second.result()]

    async def observe(harness: Harness, run: Handle[Any]) -> Any:
        return [step.status for step in (await run.history()).steps if step.type == "child"]

    assert await observe_with_crashes(h, parent, observe=observe) == ["completed", "completed"]


async def test_each_operation_on_another_run_is_a_step(app: Holdfast, h: Harness, waits: Any) -> None:
    @app.workflow
    async def does(ctx: Context) -> None:
        child = await ctx.spawn(waits, id="w")
        await ctx.send(child.pid, "hello", 1)
        await ctx.send(child.pid, "hello", 2)
        await ctx.monitor("waits/w")
        await ctx.link("waits/w")
        await ctx.unlink("waits/w")
        await ctx.unmonitor("waits/w")
        await ctx.cancel("waits/w", "enough")

    found = await observe_with_crashes(h, does, observe=_steps)
    assert [(kind, status) for kind, _, status, *_ in found][1:] == [
        ("send", "completed"),
        ("send", "completed"),
        ("monitor", "completed"),
        ("link", "completed"),
        ("unlink", "completed"),
        ("cancel", "completed"),
    ]
    assert {name for _, name, *_ in found[1:3]} == {"hello to waits/w"}
    assert {name for _, name, *_ in found[3:]} == {"waits/w"}


async def test_the_history_shows_failed_operations(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def tries(ctx: Context) -> None:
        for attempt in (partial(ctx.send, topic="x"), ctx.monitor, ctx.cancel):
            with suppress(InstanceNotFoundError):
                await attempt("tries/nobody")

    found = await observe_with_crashes(h, tries, observe=_steps)
    assert [(kind, status, error) for kind, _, status, _, error in found] == [
        ("send", "errored", "InstanceNotFoundError"),
        ("monitor", "errored", "InstanceNotFoundError"),
        ("cancel", "errored", "InstanceNotFoundError"),
    ]


async def test_the_history_shows_asks_and_replies_with_their_outcomes(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def answers(ctx: Context) -> None:
        asked = ctx.listen("ask", messages=True)
        await (await asked.receive()).reply({"yes": 1})
        await (await asked.receive()).reject("not now")

    @app.workflow
    async def asks(ctx: Context) -> None:
        await ctx.spawn(answers, id="a")
        await ctx.ask("answers/a", "ask")
        with suppress(Rejected):
            await ctx.ask("answers/a", "ask")

    async def observe(harness: Harness, run: Handle[Any]) -> Any:
        asked = [step for step in await _steps(harness, run) if step[0] == "ask"]
        replied = [step for step in await _steps(harness, await at(harness, "answers/a")) if step[0] == "reply"]
        return asked, [(kind, name, status) for kind, name, status, *_ in replied]

    asked, replied = await observe_with_crashes(h, asks, observe=observe)
    assert asked == [
        ("ask", "ask of answers/a", "completed", {"yes": 1}, None),
        ("ask", "ask of answers/a", "errored", None, "Rejected"),
    ]
    assert replied == [("reply", "ask from asks/everywhere", "completed")] * 2


async def test_the_history_shows_messages_with_their_senders(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def reads(ctx: Context) -> None:
        inbox = ctx.inbox
        for _ in range(3):
            await inbox.receive()

    @app.workflow
    async def parent(ctx: Context) -> None:
        child = await ctx.spawn(reads, id="r", messages=[("first", 1)])
        await ctx.send(child.pid, "second", 2)
        await child.result()

    async def drive(harness: Harness, run: Handle[Any]) -> None:
        await (await at(harness, "reads/r")).send_event("third", 3, id="third")

    async def observe(harness: Harness, run: Handle[Any]) -> Any:
        events = (await (await at(harness, "reads/r")).history()).events
        return [(e.type, e.payload, e.sender, e.delivered_at is not None, e.consumed_by_step_key) for e in events]

    assert await observe_with_crashes(h, parent, observe=observe, drive=drive) == [
        ("first", 1, "parent/everywhere", True, "inbox"),
        ("second", 2, "parent/everywhere", True, "inbox"),
        ("third", 3, None, True, "inbox"),
    ]


async def test_the_history_shows_undelivered_messages(app: Holdfast, h: Harness, waits: Any) -> None:
    run = await h.start(waits)
    await h.run_until_idle()
    await run.send_event("unheard", {"x": 1})
    await h.run_until_idle()
    [event] = (await run.history()).events
    assert (event.type, event.payload, event.delivered_at, event.consumed_by_step_key) == (
        "unheard",
        {"x": 1},
        None,
        None,
    )


async def test_describe_shows_parent_children_links_and_monitors(app: Holdfast, h: Harness, waits: Any) -> None:
    @app.workflow
    async def parent(ctx: Context) -> None:
        await ctx.spawn(waits, id="done", messages=[("go", 1)])
        await ctx.spawn(waits, id="linked", link=True)
        await ctx.monitor("waits/stranger")
        await ctx.sleep("a while", "30 days")

    await h.start(waits, id="stranger")
    run = await h.start(parent, id="p")
    await h.run_until_idle()
    found = await run.describe()
    assert [(child.pid, child.status) for child in found.children] == [
        ("waits/done", "complete"),
        ("waits/linked", "waiting"),
    ]
    assert found.links == ["waits/linked"]
    assert sorted(found.monitors) == ["waits/linked", "waits/stranger"]
    assert found.parent is None
    child = await (await at(h, "waits/linked")).describe()
    assert (child.parent, child.links, child.monitors, child.children) == ("parent/p", ["parent/p"], [], [])


async def test_describe_shows_the_relations_carried_over_to_a_successor(app: Holdfast, h: Harness, waits: Any) -> None:
    @app.workflow
    async def continuing(ctx: Context, n: int = 0) -> None:
        if n == 0:
            await ctx.spawn(waits, id="w", link=True)
        if n < 2:
            raise ctx.continue_as_new(n + 1)
        await ctx.sleep("a while", "30 days")

    run = await h.start(continuing, id="g")
    await h.run_until_idle()
    found = await run.describe()
    assert (found.run_number, found.links, found.monitors) == (2, ["waits/w"], ["waits/w"])
    assert [child.pid for child in found.children] == ["waits/w"]
    child = await (await at(h, "waits/w")).describe()
    assert (child.parent, child.links) == ("continuing/g", ["continuing/g"])


async def test_describe_does_not_show_removed_links_and_monitors(app: Holdfast, h: Harness, waits: Any) -> None:
    @app.workflow
    async def changes(ctx: Context) -> None:
        await ctx.monitor("waits/w")
        await ctx.link("waits/w")
        await ctx.unmonitor("waits/w")
        await ctx.unlink("waits/w")
        await ctx.sleep("a while", "30 days")

    await h.start(waits, id="w")
    run = await h.start(changes)
    await h.run_until_idle()
    found = await run.describe()
    assert (found.links, found.monitors) == ([], [])


# --- why


async def test_why_names_the_child_that_a_run_waits_for(app: Holdfast, h: Harness, waits: Any) -> None:
    @app.workflow
    async def parent(ctx: Context) -> None:
        await ctx.run(waits, id="w")

    run = await h.start(parent)
    await h.run_until_idle()
    found = await run.describe()
    assert found.status == "waiting"
    assert found.why.startswith("waiting for child ")
    assert "waits" in found.why
    assert found.current_step is not None
    assert found.current_step.type == "child"


async def test_why_names_the_topic_that_a_run_waits_for(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def listens(ctx: Context) -> None:
        await ctx.listen("approve").receive()

    run = await h.start(listens)
    await h.run_until_idle()
    await h.advance("3 hours")
    assert without_positions((await run.describe()).why) == "waiting for message 'approve' (3 h so far)"


async def test_why_says_that_a_run_waits_for_any_message(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def listens(ctx: Context) -> None:
        await ctx.inbox.receive()

    run = await h.start(listens)
    await h.advance("3 hours")
    assert without_positions((await run.describe()).why) == "waiting for a message (3 h so far)"


async def test_why_names_the_linked_runs(app: Holdfast, h: Harness, waits: Any) -> None:
    @app.workflow
    async def listens(ctx: Context) -> None:
        await ctx.link("waits/a")
        await ctx.link("waits/b")
        await ctx.listen("approve").receive()

    await h.start(waits, id="a")
    await h.start(waits, id="b")
    run = await h.start(listens)
    await h.advance("3 hours")
    assert (
        without_positions((await run.describe()).why)
        == "waiting for message 'approve' (3 h so far); linked to waits/a, waits/b"
    )


async def test_why_names_the_ask_whose_reply_a_run_waits_for(app: Holdfast, h: Harness, waits: Any) -> None:
    @app.workflow
    async def asks(ctx: Context) -> None:
        await ctx.ask("waits/w", "price")

    await h.start(waits, id="w")
    run = await h.start(asks)
    await h.run_until_idle()
    assert without_positions((await run.describe()).why) == "waiting for the reply to price of waits/w"


async def test_why_names_the_run_whose_end_a_run_waits_for(app: Holdfast, h: Harness, waits: Any) -> None:
    @app.workflow
    async def watches(ctx: Context) -> None:
        await ctx.monitor("waits/w")
        await ctx.events.receive()

    await h.start(waits, id="w")
    run = await h.start(watches)
    await h.run_until_idle()
    why = (await run.describe()).why
    assert "no timer, event or other run can wake the code" not in why
    assert "waits/w" in why


async def test_why_names_the_cause_of_an_abnormal_end(app: Holdfast, h: Harness, waits: Any) -> None:
    @app.workflow
    async def parent(ctx: Context) -> None:
        await ctx.spawn(waits, id="linked", link=True)
        await ctx.sleep("a while", "30 days")

    run = await h.start(parent)
    await h.run_until_idle()
    await (await at(h, "waits/linked")).cancel("enough")
    await h.run_until_idle()
    assert (await (await at(h, "waits/linked")).describe()).why == "cancelled: CancelledError: enough"
    assert (await run.describe()).why == (
        "errored: LinkDownError: linked run waits/linked ended cancelled: CancelledError: enough"
    )


async def test_the_history_of_each_run_has_its_run_number(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def continuing(ctx: Context, n: int = 0) -> int:
        await ctx.do("step", str, n)
        if n < 1:
            raise ctx.continue_as_new(n + 1)
        return n

    run = await h.start(continuing)
    await h.run_until_idle()
    assert [step.run_number for n in (0, 1) for step in (await run.history(n)).steps] == [0, 1]
    assert (await run.history()).run_number == 1
    assert (await run.history(7)).steps == []


async def test_exit_and_cancel_events_have_senders(app: Holdfast, h: Harness, waits: Any) -> None:
    @app.workflow
    async def parent(ctx: Context) -> None:
        child = await ctx.spawn(waits, id="w")
        await ctx.cancel(child.pid, "enough")
        await ctx.events.receive()

    run = await h.start(parent, id="p")
    await h.run_until_idle()
    assert [(e.type, e.sender) for e in (await run.history()).events] == [("@exit", "waits/w")]
    assert [(e.type, e.sender) for e in (await (await at(h, "waits/w")).history()).events] == [("@cancel", "parent/p")]
