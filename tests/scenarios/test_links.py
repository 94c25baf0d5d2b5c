"""Links: if one of two linked runs ends abnormally the other fails too, unless it traps links."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import pytest

from holdfast import ChildError, Context, Exit, Handle, Holdfast, LinkDown, Retry
from holdfast.testing import Harness

from .observations import at, end_of, observe_with_crashes, statuses


@pytest.fixture
def partner(app: Holdfast) -> Any:
    """A workflow that ends as the payload of its ``end`` event says."""

    @app.workflow
    async def partner(ctx: Context) -> Any:
        told = (await ctx.wait_for_event("end", type="end", timeout="30 days")).payload
        if told == "fail":
            raise ValueError("as told")
        return told

    return partner


@pytest.fixture
def member(app: Holdfast) -> Any:
    """A workflow that links to other runs and then waits for its ``end`` event."""

    @app.workflow
    async def member(ctx: Context, others: list[str]) -> Any:
        for pid in others:
            await ctx.link(pid)
        return (await ctx.wait_for_event("end", type="end", timeout="30 days")).payload

    return member


async def _bring_down(harness: Harness, pid: str, how: str) -> None:
    run = await at(harness, pid)
    if (await run.status()).status != "waiting":
        return
    match how:
        case "fail":
            await run.send_event("end", "fail", id="end")
        case "terminate":
            await run.terminate("enough")
        case "cancel":
            await run.cancel("enough")
        case "complete":
            await run.send_event("end", "fine", id="end")


DOWN = {
    "fail": "linked run partner/p ended errored: ValueError: as told",
    "terminate": "linked run partner/p ended terminated: Terminated: the run was terminated (enough)",
    "cancel": "linked run partner/p ended cancelled: CancelledError: enough",
}


@pytest.mark.parametrize("how", DOWN)
async def test_a_linked_run_that_ends_abnormally_fails_the_run(
    app: Holdfast, h: Harness, partner: Any, how: str
) -> None:
    @app.workflow
    async def linked(ctx: Context) -> None:
        await ctx.spawn(partner, id="p", link=True)
        await ctx.sleep("a while", "30 days")

    async def drive(harness: Harness, run: Handle[Any]) -> None:
        await _bring_down(harness, "partner/p", how)

    expected = ("errored", None, "LinkDownError", DOWN[how])
    assert await observe_with_crashes(h, linked, observe=end_of, drive=drive) == expected


async def test_a_linked_run_that_completes_does_not_affect_the_run(app: Holdfast, h: Harness, partner: Any) -> None:
    @app.workflow
    async def linked(ctx: Context) -> list[Any]:
        child = await ctx.spawn(partner, id="p", link=True)
        await ctx.send(child.pid, "end", "fine")
        result = await child.result()
        await ctx.sleep("a while", "1 hour")
        return [result, [type(await ctx.events.receive()).__name__ for _ in range(len(ctx.events))]]

    assert await h.crash_everywhere(linked) == ["fine", ["Exit"]]


async def test_a_failed_attempt_of_a_linked_run_does_not_affect_the_run(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def flaky(ctx: Context) -> int:
        if ctx.info.attempt < 3:
            raise ValueError("not yet")
        return ctx.info.attempt

    @app.workflow
    async def linked(ctx: Context) -> int:
        child = await ctx.spawn(flaky, link=True, retry=Retry(5, "1 minute", "constant"))
        return await child.result()

    assert await h.crash_everywhere(linked) == 3


@pytest.mark.parametrize("how", DOWN)
async def test_a_link_works_in_both_directions(h: Harness, partner: Any, member: Any, how: str) -> None:
    """A run fails if a run that linked to it ends abnormally."""
    await h.start(partner, id="p")
    await h.start(member, ["partner/p"], id="m")
    await h.run_until_idle()
    await _bring_down(h, "member/m", how)
    await h.run_until_idle()
    if how == "fail":  # ``member`` completes with "fail" as its result
        assert await statuses(h, "member/m", "partner/p") == {"member/m": "complete", "partner/p": "waiting"}
    else:
        assert await end_of(h, await at(h, "partner/p")) == (
            "errored", None, "LinkDownError", DOWN[how].replace("partner/p", "member/m"),
        )  # fmt: skip


@pytest.mark.parametrize("settable", [False, True])
async def test_a_run_that_traps_links_receives_an_event(
    app: Holdfast, h: Harness, partner: Any, settable: bool
) -> None:
    @app.workflow(trap_links=not settable)
    async def traps(ctx: Context) -> list[Any]:
        assert ctx.trap_links is not settable
        ctx.trap_links = True
        await ctx.run(starter)
        await ctx.link("partner/p")
        await ctx.terminate("partner/p", "enough")
        event = await ctx.events.receive()
        assert isinstance(event, LinkDown)
        return [event.pid, event.error.status, event.error.message]

    @app.workflow
    async def starter(ctx: Context) -> None:
        await ctx.spawn(partner, id="p", parent_close="abandon")

    assert await h.crash_everywhere(traps) == ["partner/p", "terminated", "the run was terminated (enough)"]


async def test_a_run_that_stops_trapping_links_fails_with_the_next_one(app: Holdfast, h: Harness, partner: Any) -> None:
    @app.workflow(trap_links=True)
    async def traps(ctx: Context) -> Any:
        await ctx.spawn(partner, id="a", link=True)
        await ctx.spawn(partner, id="b", link=True)
        await ctx.terminate("partner/a")
        await ctx.events.receive()
        ctx.trap_links = False
        await ctx.terminate("partner/b")
        await ctx.sleep("a while", "1 day")
        return "still here"

    status, _, name, _ = await observe_with_crashes(h, traps, observe=end_of)
    assert (status, name) == ("errored", "LinkDownError")


async def test_the_end_of_a_linked_child_is_an_exit_and_a_link_down_event(
    app: Holdfast, h: Harness, partner: Any
) -> None:
    @app.workflow(trap_links=True)
    async def traps(ctx: Context) -> list[Any]:
        child = await ctx.spawn(partner, id="p", link=True)
        await ctx.send(child.pid, "end", "fail")
        both: list[Any] = [await ctx.events.receive(), await ctx.events.receive()]
        return sorted([type(event).__name__, event.error.type] for event in both)

    assert await h.crash_everywhere(traps) == [["Exit", "ValueError"], ["LinkDown", "ValueError"]]


async def test_a_linked_child_that_fails_at_once_fails_its_parent(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def broken(ctx: Context) -> None:
        raise ValueError("at once")

    @app.workflow
    async def linked(ctx: Context) -> str:
        await ctx.spawn(broken, id="b", link=True)
        await ctx.sleep("a while", "1 day")
        return "still here"

    assert await observe_with_crashes(h, linked, observe=end_of) == (
        "errored", None, "LinkDownError", "linked run broken/b ended errored: ValueError: at once",
    )  # fmt: skip


@pytest.mark.parametrize("told", ["fine", "fail"])
async def test_linking_to_an_ended_run_fails_the_run_if_that_run_failed(
    app: Holdfast, h: Harness, partner: Any, told: str
) -> None:
    @app.workflow
    async def links(ctx: Context) -> str:
        await ctx.link("partner/p")
        await ctx.sleep("a while", "1 hour")
        return "still here"

    @app.workflow
    async def first(ctx: Context, told: str) -> str:
        with suppress(ChildError):
            await ctx.run(partner, id="p", messages=[("end", told)])
        try:
            return await ctx.run(links)
        except Exception as error:
            return getattr(error, "type", "")

    assert await h.crash_everywhere(first, told) == {"fine": "still here", "fail": "LinkDownError"}[told]


async def test_linking_to_a_failed_run_is_an_event_for_a_run_that_traps_links(
    app: Holdfast, h: Harness, partner: Any
) -> None:
    @app.workflow(trap_links=True)
    async def links(ctx: Context) -> Any:
        child = await ctx.spawn(partner, id="p", messages=[("end", "fail")])
        await ctx.events.receive()
        await ctx.link(child.pid)
        event = await ctx.events.receive()
        assert isinstance(event, LinkDown)
        return [event.pid, event.error.type, event.error.message]

    assert await h.crash_everywhere(links) == ["partner/p", "ValueError", "as told"]


async def test_an_unlinked_run_does_not_affect_the_run(app: Holdfast, h: Harness, partner: Any) -> None:
    @app.workflow
    async def linked(ctx: Context) -> list[str]:
        child = await ctx.spawn(partner, id="p", link=True)
        await ctx.unlink(child.pid)
        await ctx.terminate(child.pid)
        await ctx.sleep("a while", "1 hour")
        return [type(await ctx.events.receive()).__name__ for _ in range(len(ctx.events))]

    assert await h.crash_everywhere(linked) == ["Exit"]


async def test_either_side_can_remove_a_link(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def leaves(ctx: Context, parent: str) -> None:
        await ctx.wait_for_event("go", type="go")
        await ctx.unlink(parent)
        raise ValueError("free to fail")

    @app.workflow
    async def parent(ctx: Context) -> str:
        child = await ctx.spawn(leaves, ctx.info.pid, link=True)
        await ctx.send(child.pid, "go")
        await ctx.sleep("a while", "1 hour")
        return "still here"

    assert await h.crash_everywhere(parent) == "still here"


async def test_a_removed_link_can_be_set_again(app: Holdfast, h: Harness, partner: Any) -> None:
    @app.workflow
    async def linked(ctx: Context) -> str:
        child = await ctx.spawn(partner, id="p", link=True)
        await ctx.unlink(child.pid)
        await ctx.link(child.pid)
        await ctx.link(child.pid)
        await ctx.terminate(child.pid, "enough")
        await ctx.sleep("a while", "1 hour")
        return "still here"

    expected = ("errored", None, "LinkDownError", DOWN["terminate"])
    assert await observe_with_crashes(h, linked, observe=end_of) == expected


async def test_a_link_to_itself_has_no_effect(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def alone(ctx: Context, fail: bool) -> str:
        await ctx.link(ctx.info.pid)
        if fail:
            raise ValueError("by itself")
        return "fine"

    assert await h.crash_everywhere(alone, params=False) == "fine"
    assert await observe_with_crashes(h, alone, True, observe=end_of) == ("errored", None, "ValueError", "by itself")


# --- cascades


async def _tied(h: Harness, member: Any, ties: dict[str, list[str]]) -> None:
    """Start all members, then link them, because the links may form cycles."""
    for name, others in ties.items():
        await h.start(member, [f"member/{other}" for other in others], id=name)
        await h.run_until_idle()


async def _after_a_fall(h: Harness, first: str, names: list[str]) -> dict[str, str]:
    await h.restart()
    await (await at(h, f"member/{first}")).terminate("the first to fall")
    await h.run_until_idle()
    found = await statuses(h, *(f"member/{name}" for name in names))
    return {pid.removeprefix("member/"): status for pid, status in found.items()}


@pytest.mark.parametrize("first", [0, 25, 49])
async def test_a_chain_of_links_fails_from_any_member(h: Harness, member: Any, first: int) -> None:
    names = [f"m{n}" for n in range(50)]
    await _tied(h, member, {name: names[n - 1 : n] if n else [] for n, name in enumerate(names)})
    found = await _after_a_fall(h, names[first], names)
    assert found.pop(names[first]) == "terminated"
    assert set(found.values()) == {"errored"}


@pytest.mark.parametrize("first", ["hub", "m7"])
async def test_a_star_of_links_fails_as_a_whole(h: Harness, member: Any, first: str) -> None:
    names = [f"m{n}" for n in range(30)]
    await _tied(h, member, {"hub": [], **{name: ["hub"] for name in names}})
    found = await _after_a_fall(h, first, ["hub", *names])
    assert found.pop(first) == "terminated"
    assert set(found.values()) == {"errored"}


@pytest.mark.parametrize("first", ["t", "tlr"])
async def test_a_tree_of_links_fails_as_a_whole(h: Harness, member: Any, first: str) -> None:
    names = ["t"]
    for name in names[:]:
        names += [name + side for side in "lr"]
    names += [a + b for a in names[1:3] for b in "lr"]
    await _tied(h, member, {name: [name[:-1]] if len(name) > 1 else [] for name in names})
    found = await _after_a_fall(h, first, names)
    assert found.pop(first) == "terminated"
    assert set(found.values()) == {"errored"}


async def test_each_run_of_a_cycle_of_links_fails_once(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def in_a_ring(ctx: Context) -> None:
        await ctx.link(str((await ctx.wait_for_event("next", type="next")).payload))
        await ctx.wait_for_event("end", type="end", timeout="30 days")

    ring = [await h.start(in_a_ring, id=f"r{n}") for n in range(6)]
    await h.run_until_idle()
    for n, run in enumerate(ring):
        await run.send_event("next", ring[(n + 1) % 6].pid)
    await h.run_until_idle()
    await ring[2].terminate()
    await h.run_until_idle()
    assert [(await run.status()).status for run in ring] == ["errored"] * 2 + ["terminated"] + ["errored"] * 3


async def test_a_cascade_stops_at_a_run_that_traps_links(app: Holdfast, h: Harness, member: Any) -> None:
    @app.workflow(trap_links=True)
    async def guard(ctx: Context, others: list[str]) -> Any:
        for pid in others:
            await ctx.link(pid)
        event = await ctx.events.receive()
        assert isinstance(event, LinkDown)
        return [event.pid, event.error.type]

    await _tied(h, member, {"a": [], "b": ["a"]})
    guarding = await h.start(guard, ["member/b"], id="g")
    await h.run_until_idle()
    await h.start(member, ["guard/g"], id="c")
    await h.run_until_idle()
    await (await at(h, "member/a")).terminate()
    await h.run_until_idle()
    assert await guarding.result(timeout=60) == ["member/b", "LinkDownError"]
    assert await statuses(h, "member/b", "member/c") == {"member/b": "errored", "member/c": "waiting"}


async def test_a_cascade_survives_a_crash_at_any_commit(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def line(ctx: Context, n: int) -> None:
        if n:
            await ctx.spawn("line", n - 1, id=f"l{n - 1}", link=True, parent_close="abandon")
            await ctx.sleep("a while", "30 days")
        raise ValueError("the last")

    async def observe(harness: Harness, run: Handle[Any]) -> Any:
        return (await end_of(harness, run))[2], await statuses(harness, "line/l2", "line/l1", "line/l0")

    name, found = await observe_with_crashes(h, line, 3, observe=observe)
    assert name == "LinkDownError"
    assert set(found.values()) == {"errored"}


async def test_children_of_a_run_that_a_link_ended_end_as_their_policies_say(
    app: Holdfast, h: Harness, partner: Any
) -> None:
    @app.workflow
    async def linked(ctx: Context) -> None:
        await ctx.spawn(partner, id="t")
        await ctx.spawn(partner, id="a", parent_close="abandon")
        await ctx.spawn(partner, id="c", parent_close="request_cancel")
        child = await ctx.spawn(partner, id="p", link=True)
        await ctx.send(child.pid, "end", "fail")
        await ctx.sleep("a while", "1 day")

    async def observe(harness: Harness, run: Handle[Any]) -> Any:
        return (await end_of(harness, run))[2], await statuses(
            harness, "partner/t", "partner/a", "partner/c", "partner/p"
        )

    assert await observe_with_crashes(h, linked, observe=observe) == (
        "LinkDownError",
        {"partner/t": "terminated", "partner/a": "waiting", "partner/c": "cancelled", "partner/p": "errored"},
    )


# --- durability


async def test_links_survive_a_worker_restart(h: Harness, partner: Any, member: Any) -> None:
    await h.start(partner, id="p")
    run = await h.start(member, ["partner/p"], id="m")
    await h.run_until_idle()
    await h.restart()
    await (await at(h, "partner/p")).send_event("end", "fail")
    await h.run_until_idle()
    assert await end_of(h, run) == ("errored", None, "LinkDownError", DOWN["fail"])


async def test_links_are_carried_over_to_the_successor(app: Holdfast, h: Harness, partner: Any) -> None:
    @app.workflow
    async def continuing(ctx: Context, n: int = 0) -> str:
        if n == 0:
            await ctx.spawn(partner, id="p", link=True)
        if n < 3:
            raise ctx.continue_as_new(n + 1)
        await ctx.send("partner/p", "end", "fail")
        await ctx.sleep("a while", "1 hour")
        return "still here"

    expected = ("errored", None, "LinkDownError", DOWN["fail"])
    assert await observe_with_crashes(h, continuing, observe=end_of) == expected


async def test_a_failing_successor_fails_the_linked_run(app: Holdfast, h: Harness, partner: Any) -> None:
    @app.workflow
    async def continuing(ctx: Context, n: int = 0) -> str:
        if n == 0:
            await ctx.spawn(partner, id="p", link=True, parent_close="abandon")
        if n < 3:
            raise ctx.continue_as_new(n + 1)
        raise ValueError("at last")

    async def observe(harness: Harness, run: Handle[Any]) -> Any:
        return (await end_of(harness, run))[2], (await end_of(harness, await at(harness, "partner/p")))[2]

    assert await observe_with_crashes(h, continuing, observe=observe) == ("ValueError", "LinkDownError")


async def test_a_paused_run_fails_by_its_link_when_it_is_resumed(h: Harness, partner: Any, member: Any) -> None:
    await h.start(partner, id="p")
    run = await h.start(member, ["partner/p"], id="m")
    await h.run_until_idle()
    await run.pause()
    await (await at(h, "partner/p")).terminate("enough")
    await h.run_until_idle()
    assert (await run.status()).status == "paused"
    await run.resume()
    await h.run_until_idle()
    assert await end_of(h, run) == ("errored", None, "LinkDownError", DOWN["terminate"])


async def test_a_link_does_not_change_an_ended_run(app: Holdfast, h: Harness, partner: Any) -> None:
    @app.workflow
    async def quick(ctx: Context) -> str:
        await ctx.link("partner/p")
        return "done"

    other = await h.start(partner, id="p")
    run = await h.start(quick)
    await h.run_until_idle()
    await other.terminate()
    await h.run_until_idle()
    assert await end_of(h, run) == ("complete", "done", None, None)
    assert (await other.status()).status == "terminated"


async def test_no_code_of_the_run_runs_after_a_link_ended_it(app: Holdfast, h: Harness, partner: Any) -> None:
    """Unlike a cancellation, a broken link ends the run without executing its ``finally`` blocks."""
    ran: list[str] = []

    @app.workflow
    async def linked(ctx: Context) -> None:
        await ctx.spawn(partner, id="p", link=True)
        try:
            await ctx.sleep("a while", "30 days")
        except asyncio.CancelledError:
            await ctx.do("clean up", ran.append, "cleaned")
            raise

    run = await h.start(linked)
    await h.run_until_idle()
    await (await at(h, "partner/p")).terminate("enough")
    await h.run_until_idle()
    assert await end_of(h, run) == ("errored", None, "LinkDownError", DOWN["terminate"])
    assert ran == []


async def test_a_workflow_with_retries_is_retried_after_a_link_ended_it(
    app: Holdfast, h: Harness, partner: Any
) -> None:
    @app.workflow
    async def linked(ctx: Context) -> int:
        if ctx.info.attempt == 1:
            child = await ctx.spawn(partner, id="p", link=True)
            await ctx.send(child.pid, "end", "fail")
            await ctx.sleep("a while", "1 day")
        return ctx.info.attempt

    @app.workflow
    async def root(ctx: Context) -> int:
        return await ctx.run(linked, retry=Retry(3, "1 minute"))

    assert await h.crash_everywhere(root) == 2


@pytest.mark.above_the_store
async def test_exit_events_are_compared_by_value(app: Holdfast, h: Harness) -> None:
    assert Exit("a/b", 1) == Exit("a/b", 1, None)
    assert Exit("a/b").error is None
