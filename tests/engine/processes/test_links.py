"""Links: runs that are tied together. If one does not end well the other goes down with it, unless it traps links."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import pytest

from holdfast import ChildError, Context, Exit, Handle, Holdfast, LinkDown, Retry
from holdfast.testing import Harness

from .surviving import at, end_of, everywhere, statuses


@pytest.fixture
def partner(app: Holdfast) -> Any:
    """Ends as it is told to."""

    @app.workflow
    async def partner(ctx: Context) -> Any:
        told = (await ctx.wait_for_event("end", type="end", timeout="30 days")).payload
        if told == "fail":
            raise ValueError("as told")
        return told

    return partner


@pytest.fixture
def member(app: Holdfast) -> Any:
    """Links to others, and then waits for its own end."""

    @app.workflow
    async def member(ctx: Context, others: list[str]) -> Any:
        for pid in others:
            await ctx.link(pid)
        return (await ctx.wait_for_event("end", type="end", timeout="30 days")).payload

    return member


async def _bring_down(one: Harness, pid: str, how: str) -> None:
    run = await at(one, pid)
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
    "terminate": "linked run partner/p ended terminated: Terminated: it was terminated (enough)",
    "cancel": "linked run partner/p ended cancelled: CancelledError: enough",
}


@pytest.mark.parametrize("how", DOWN)
async def test_a_partner_that_does_not_end_well_takes_the_run_down(
    app: Holdfast, h: Harness, partner: Any, how: str
) -> None:
    @app.workflow
    async def linked(ctx: Context) -> None:
        await ctx.spawn(partner, id="p", link=True)
        await ctx.sleep("a while", "30 days")

    async def drive(one: Harness, run: Handle[Any]) -> None:
        await _bring_down(one, "partner/p", how)

    expected = ("errored", None, "LinkDownError", DOWN[how])
    assert await everywhere(h, linked, look=end_of, drive=drive) == expected


async def test_a_normal_end_does_nothing(app: Holdfast, h: Harness, partner: Any) -> None:
    @app.workflow
    async def linked(ctx: Context) -> list[Any]:
        child = await ctx.spawn(partner, id="p", link=True)
        await ctx.send(child.pid, "end", "fine")
        result = await child.result()
        await ctx.sleep("a while", "1 hour")
        return [result, [type(await ctx.events.receive()).__name__ for _ in range(len(ctx.events))]]

    assert await h.crash_everywhere(linked) == ["fine", ["Exit"]]


async def test_a_partner_that_is_tried_again_has_not_failed_yet(app: Holdfast, h: Harness) -> None:
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
async def test_a_link_goes_both_ways(h: Harness, partner: Any, member: Any, how: str) -> None:
    """The one that was linked to falls with the one that linked."""
    await h.start(partner, id="p")
    await h.start(member, ["partner/p"], id="m")
    await h.run_until_idle()
    await _bring_down(h, "member/m", how)
    await h.run_until_idle()
    if how == "fail":  # this one takes the word for its result
        assert await statuses(h, "member/m", "partner/p") == {"member/m": "complete", "partner/p": "waiting"}
    else:
        assert await end_of(h, await at(h, "partner/p")) == (
            "errored", None, "LinkDownError", DOWN[how].replace("partner/p", "member/m"),
        )  # fmt: skip


@pytest.mark.parametrize("settable", [False, True])
async def test_who_traps_links_is_told(app: Holdfast, h: Harness, partner: Any, settable: bool) -> None:
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

    assert await h.crash_everywhere(traps) == ["partner/p", "terminated", "it was terminated (enough)"]


async def test_to_stop_trapping_links(app: Holdfast, h: Harness, partner: Any) -> None:
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

    status, _, name, _ = await everywhere(h, traps, look=end_of)
    assert (status, name) == ("errored", "LinkDownError")


async def test_a_linked_child_is_told_of_by_both_events(app: Holdfast, h: Harness, partner: Any) -> None:
    @app.workflow(trap_links=True)
    async def traps(ctx: Context) -> list[Any]:
        child = await ctx.spawn(partner, id="p", link=True)
        await ctx.send(child.pid, "end", "fail")
        both: list[Any] = [await ctx.events.receive(), await ctx.events.receive()]
        return sorted([type(event).__name__, event.error.type] for event in both)

    assert await h.crash_everywhere(traps) == [["Exit", "ValueError"], ["LinkDown", "ValueError"]]


async def test_a_child_that_fails_at_once_fells_its_parent_too(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def broken(ctx: Context) -> None:
        raise ValueError("at once")

    @app.workflow
    async def linked(ctx: Context) -> str:
        await ctx.spawn(broken, id="b", link=True)
        await ctx.sleep("a while", "1 day")
        return "still here"

    assert await everywhere(h, linked, look=end_of) == (
        "errored", None, "LinkDownError", "linked run broken/b ended errored: ValueError: at once",
    )  # fmt: skip


@pytest.mark.parametrize("told", ["fine", "fail"])
async def test_a_link_to_a_run_that_has_ended_already(app: Holdfast, h: Harness, partner: Any, told: str) -> None:
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


async def test_an_ended_partner_that_is_trapped(app: Holdfast, h: Harness, partner: Any) -> None:
    @app.workflow(trap_links=True)
    async def links(ctx: Context) -> Any:
        child = await ctx.spawn(partner, id="p", messages=[("end", "fail")])
        await ctx.events.receive()
        await ctx.link(child.pid)
        event = await ctx.events.receive()
        assert isinstance(event, LinkDown)
        return [event.pid, event.error.type, event.error.message]

    assert await h.crash_everywhere(links) == ["partner/p", "ValueError", "as told"]


async def test_unlinked_runs_are_free(app: Holdfast, h: Harness, partner: Any) -> None:
    @app.workflow
    async def linked(ctx: Context) -> list[str]:
        child = await ctx.spawn(partner, id="p", link=True)
        await ctx.unlink(child.pid)
        await ctx.terminate(child.pid)
        await ctx.sleep("a while", "1 hour")
        return [type(await ctx.events.receive()).__name__ for _ in range(len(ctx.events))]

    assert await h.crash_everywhere(linked) == ["Exit"]


async def test_unlinked_by_the_other_side(app: Holdfast, h: Harness) -> None:
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


async def test_linked_again(app: Holdfast, h: Harness, partner: Any) -> None:
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
    assert await everywhere(h, linked, look=end_of) == expected


async def test_a_run_linked_to_itself_ends_as_it_does(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def alone(ctx: Context, fail: bool) -> str:
        await ctx.link(ctx.info.pid)
        if fail:
            raise ValueError("by itself")
        return "fine"

    assert await h.crash_everywhere(alone, params=False) == "fine"
    assert await everywhere(h, alone, True, look=end_of) == ("errored", None, "ValueError", "by itself")


# --- cascades


async def _tied(h: Harness, member: Any, ties: dict[str, list[str]]) -> None:
    """Start members that are linked to each other as said. First all, then the links: they may form cycles."""
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
async def test_a_chain_falls_from_any_place(h: Harness, member: Any, first: int) -> None:
    names = [f"m{n}" for n in range(50)]
    await _tied(h, member, {name: names[n - 1 : n] if n else [] for n, name in enumerate(names)})
    found = await _after_a_fall(h, names[first], names)
    assert found.pop(names[first]) == "terminated"
    assert set(found.values()) == {"errored"}


@pytest.mark.parametrize("first", ["hub", "m7"])
async def test_a_star_falls_as_a_whole(h: Harness, member: Any, first: str) -> None:
    names = [f"m{n}" for n in range(30)]
    await _tied(h, member, {"hub": [], **{name: ["hub"] for name in names}})
    found = await _after_a_fall(h, first, ["hub", *names])
    assert found.pop(first) == "terminated"
    assert set(found.values()) == {"errored"}


@pytest.mark.parametrize("first", ["t", "tlr"])
async def test_a_tree_falls_as_a_whole(h: Harness, member: Any, first: str) -> None:
    names = ["t"]
    for name in names[:]:
        names += [name + side for side in "lr"]
    names += [a + b for a in names[1:3] for b in "lr"]
    await _tied(h, member, {name: [name[:-1]] if len(name) > 1 else [] for name in names})
    found = await _after_a_fall(h, first, names)
    assert found.pop(first) == "terminated"
    assert set(found.values()) == {"errored"}


async def test_a_cycle_falls_once(app: Holdfast, h: Harness) -> None:
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


async def test_a_cascade_stops_at_who_traps(app: Holdfast, h: Harness, member: Any) -> None:
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
    assert await guarding.result(timeout=5) == ["member/b", "LinkDownError"]
    assert await statuses(h, "member/b", "member/c") == {"member/b": "errored", "member/c": "waiting"}


async def test_a_cascade_survives_every_crash(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def line(ctx: Context, n: int) -> None:
        if n:
            await ctx.spawn("line", n - 1, id=f"l{n - 1}", link=True, parent_close="abandon")
            await ctx.sleep("a while", "30 days")
        raise ValueError("the last")

    async def look(one: Harness, run: Handle[Any]) -> Any:
        return (await end_of(one, run))[2], await statuses(one, "line/l2", "line/l1", "line/l0")

    name, found = await everywhere(h, line, 3, look=look)
    assert name == "LinkDownError"
    assert set(found.values()) == {"errored"}


async def test_children_of_a_run_that_falls_are_treated_as_agreed(app: Holdfast, h: Harness, partner: Any) -> None:
    @app.workflow
    async def linked(ctx: Context) -> None:
        await ctx.spawn(partner, id="t")
        await ctx.spawn(partner, id="a", parent_close="abandon")
        await ctx.spawn(partner, id="c", parent_close="request_cancel")
        child = await ctx.spawn(partner, id="p", link=True)
        await ctx.send(child.pid, "end", "fail")
        await ctx.sleep("a while", "1 day")

    async def look(one: Harness, run: Handle[Any]) -> Any:
        return (await end_of(one, run))[2], await statuses(one, "partner/t", "partner/a", "partner/c", "partner/p")

    assert await everywhere(h, linked, look=look) == (
        "LinkDownError",
        {"partner/t": "terminated", "partner/a": "waiting", "partner/c": "cancelled", "partner/p": "errored"},
    )


# --- lasting


async def test_links_outlast_the_worker(h: Harness, partner: Any, member: Any) -> None:
    await h.start(partner, id="p")
    run = await h.start(member, ["partner/p"], id="m")
    await h.run_until_idle()
    await h.restart()
    await (await at(h, "partner/p")).send_event("end", "fail")
    await h.run_until_idle()
    assert await end_of(h, run) == ("errored", None, "LinkDownError", DOWN["fail"])


async def test_links_go_along_when_a_run_continues(app: Holdfast, h: Harness, partner: Any) -> None:
    @app.workflow
    async def goes_on(ctx: Context, n: int = 0) -> str:
        if n == 0:
            await ctx.spawn(partner, id="p", link=True)
        if n < 3:
            raise ctx.continue_as_new(n + 1)
        await ctx.send("partner/p", "end", "fail")
        await ctx.sleep("a while", "1 hour")
        return "still here"

    expected = ("errored", None, "LinkDownError", DOWN["fail"])
    assert await everywhere(h, goes_on, look=end_of) == expected


async def test_a_continued_run_still_takes_its_partner_down(app: Holdfast, h: Harness, partner: Any) -> None:
    @app.workflow
    async def goes_on(ctx: Context, n: int = 0) -> str:
        if n == 0:
            await ctx.spawn(partner, id="p", link=True, parent_close="abandon")
        if n < 3:
            raise ctx.continue_as_new(n + 1)
        raise ValueError("at last")

    async def look(one: Harness, run: Handle[Any]) -> Any:
        return (await end_of(one, run))[2], (await end_of(one, await at(one, "partner/p")))[2]

    assert await everywhere(h, goes_on, look=look) == ("ValueError", "LinkDownError")


async def test_a_paused_run_falls_when_it_goes_on(h: Harness, partner: Any, member: Any) -> None:
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


async def test_an_ended_run_does_not_fall(app: Holdfast, h: Harness, partner: Any) -> None:
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


async def test_no_code_runs_after_a_link_fell(app: Holdfast, h: Harness, partner: Any) -> None:
    """It is a fall, not a cancellation: no ``finally`` of the run does anything any more."""
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


async def test_a_workflow_with_retries_is_tried_again_after_a_fall(app: Holdfast, h: Harness, partner: Any) -> None:
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
async def test_exit_and_link_down_are_values(app: Holdfast, h: Harness) -> None:
    assert Exit("a/b", 1) == Exit("a/b", 1, None)
    assert Exit("a/b").error is None
