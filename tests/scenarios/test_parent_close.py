"""``parent_close`` decides what happens to running children when their parent ends."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from driving import lose_worker
from holdfast import ChildError, Context, Handle, Holdfast, Retry
from holdfast.testing import Harness

from .observations import at, cancel_once, observe_with_crashes, statuses

POLICIES = ["terminate", "abandon", "request_cancel"]
BECOMES = {"terminate": "terminated", "abandon": "waiting", "request_cancel": "cancelled"}


@pytest.fixture
def child(app: Holdfast) -> Any:
    @app.workflow
    async def child(ctx: Context) -> str:
        return str((await ctx.wait_for_event("go", type="go", timeout="30 days")).payload)

    return child


@pytest.fixture
def parent(app: Holdfast, child: Any) -> Any:
    """A workflow that starts a child with a policy and ends as its params say."""

    @app.workflow
    async def parent(ctx: Context, told: dict[str, str]) -> str:
        policy: Any = told["policy"]
        await ctx.spawn(child, id="c", parent_close=policy)
        if told["end"] == "complete":
            return "done"
        if told["end"] == "errored":
            raise ValueError("no")
        if told["end"] == "link down":
            await ctx.link("child/partner")
        await ctx.sleep("a while", "10 days")
        return "slept"

    return parent


async def _end(harness: Harness, run: Handle[Any], how: str) -> None:
    """End a waiting parent from outside."""
    match how:
        case "terminated":
            if (await run.status()).status == "waiting":
                await run.terminate()
        case "cancelled":
            await cancel_once(run)
        case "link down":
            partner = await at(harness, "child/partner")
            if (await partner.status()).status == "waiting":
                await partner.terminate()


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("how", ["complete", "errored", "terminated", "cancelled", "timed out", "deadline"])
async def test_the_policy_decides_for_the_child_however_the_parent_ends(
    h: Harness, parent: Any, policy: str, how: str
) -> None:
    async def drive(harness: Harness, run: Handle[Any]) -> None:
        if how == "deadline":
            await cancel_once(run, deadline="0 seconds")
        await _end(harness, run, how)

    async def observe(harness: Harness, run: Handle[Any]) -> Any:
        return (await run.status()).status, (await statuses(harness, "child/c"))["child/c"]

    options = {"run_timeout": "1 hour"} if how == "timed out" else {}
    told = {"policy": policy, "end": how}
    status, became = await observe_with_crashes(h, parent, told, observe=observe, drive=drive, **options)
    assert status in {"timed out": ("errored",), "deadline": ("cancelled", "terminated")}.get(how, (how,))
    assert became == BECOMES[policy]


@pytest.mark.parametrize("policy", POLICIES)
async def test_the_policy_applies_when_a_link_ends_the_parent(h: Harness, child: Any, parent: Any, policy: str) -> None:
    await h.start(child, id="partner")
    run = await h.start(parent, {"policy": policy, "end": "link down"})
    await h.run_until_idle()
    await _end(h, run, "link down")
    await h.run_until_idle()
    assert (await run.status()).status == "errored"
    assert await statuses(h, "child/c") == {"child/c": BECOMES[policy]}


@pytest.mark.parametrize("policy", POLICIES)
async def test_the_policy_applies_when_the_parent_is_restarted(
    app: Holdfast, h: Harness, child: Any, policy: Any
) -> None:
    @app.workflow
    async def again(ctx: Context) -> int:
        if ctx.info.run_number == 0:
            await ctx.spawn(child, id="c", parent_close=policy)
            await ctx.sleep("a while", "10 days")
        return ctx.info.run_number

    run = await h.start(again)
    await h.run_until_idle()
    await run.restart()
    await h.run_until_idle()
    assert await run.result(timeout=60) == 1
    assert await statuses(h, "child/c") == {"child/c": BECOMES[policy]}


@pytest.mark.parametrize("policy", POLICIES)
async def test_the_policy_applies_when_the_parent_is_replaced(h: Harness, child: Any, parent: Any, policy: str) -> None:
    await h.start(parent, {"policy": policy, "end": "never"}, id="p")
    await h.run_until_idle()
    await h.start(parent, {"policy": "abandon", "end": "errored"}, id="p", on_conflict="terminate_existing")
    await h.run_until_idle()
    assert await statuses(h, "child/c") == {"child/c": BECOMES[policy]}


@pytest.mark.parametrize("policy", POLICIES)
async def test_the_policy_applies_when_an_attempt_of_the_parent_fails(
    app: Holdfast, h: Harness, child: Any, policy: Any
) -> None:
    """Each attempt of a workflow is a separate run, so a failed attempt is the end of a parent."""

    @app.workflow
    async def flaky(ctx: Context) -> int:
        if ctx.info.attempt == 1:
            await ctx.spawn(child, id="c", parent_close=policy)
            raise ValueError("not yet")
        return ctx.info.attempt

    async def observe(harness: Harness, run: Handle[Any]) -> Any:
        return await run.result(timeout=60), (await statuses(harness, "child/c"))["child/c"]

    assert await observe_with_crashes(h, flaky, observe=observe, retry=Retry(3, "1 minute")) == (2, BECOMES[policy])


@pytest.mark.parametrize("policy", POLICIES)
async def test_children_are_carried_over_to_the_parents_successor(
    app: Holdfast, h: Harness, child: Any, policy: Any
) -> None:
    @app.workflow
    async def continuing(ctx: Context, n: int = 0) -> Any:
        if n == 0:
            await ctx.spawn(child, id="c", parent_close=policy)
        if n < 3:
            raise ctx.continue_as_new(n + 1)
        await ctx.send("child/c", "go", "still here")
        event: Any = await ctx.events.receive()
        return [event.pid, event.result]

    assert await h.crash_everywhere(continuing) == ["child/c", "still here"]


@pytest.mark.parametrize("policy", POLICIES)
async def test_children_of_a_continued_parent_end_with_its_last_run(
    app: Holdfast, h: Harness, child: Any, policy: Any
) -> None:
    @app.workflow
    async def continuing(ctx: Context, n: int = 0) -> int:
        if n == 0:
            await ctx.spawn(child, id="c", parent_close=policy)
        if n < 2:
            raise ctx.continue_as_new(n + 1)
        return n

    async def observe(harness: Harness, run: Handle[Any]) -> Any:
        return (await statuses(harness, "child/c"))["child/c"]

    assert await observe_with_crashes(h, continuing, observe=observe) == BECOMES[policy]


async def test_why_names_the_end_of_the_parent(h: Harness, parent: Any) -> None:
    await h.start(parent, {"policy": "terminate", "end": "complete"}, id="p")
    await h.run_until_idle()
    child = await (await at(h, "child/c")).describe()
    assert child.why == "terminated: its parent parent/p has ended"
    assert child.parent == "parent/p"


async def test_an_abandoned_child_continues(h: Harness, parent: Any) -> None:
    await h.start(parent, {"policy": "abandon", "end": "errored"})
    await h.run_until_idle()
    child = await at(h, "child/c")
    await child.send_event("go", "alone")
    await h.run_until_idle()
    assert await child.result(timeout=60) == "alone"


async def test_a_child_whose_cancellation_is_requested_can_clean_up(app: Holdfast, h: Harness) -> None:
    cleaned: list[str] = []

    @app.workflow
    async def tidy(ctx: Context) -> str:
        try:
            await ctx.sleep("a while", "10 days")
        except asyncio.CancelledError:
            await ctx.do("clean", cleaned.append, "up")
            return "tidied"
        return "slept"

    @app.workflow
    async def parent(ctx: Context) -> None:
        await ctx.spawn(tidy, id="t", parent_close="request_cancel")
        await ctx.sleep("until it is under way", "1 minute")

    async def observe(harness: Harness, run: Handle[Any]) -> Any:
        return await (await at(harness, "tidy/t")).result(timeout=60)

    assert await observe_with_crashes(h, parent, observe=observe) == "tidied"
    assert set(cleaned) == {"up"}


async def test_a_child_that_has_not_begun_never_begins(app: Holdfast, h: Harness) -> None:
    ran: list[str] = []

    @app.workflow
    async def late(ctx: Context, name: str) -> None:
        await ctx.do("run", ran.append, name)

    @app.workflow
    async def parent(ctx: Context) -> None:
        await ctx.spawn(late, "t", id="t", start_delay="1 hour")
        await ctx.spawn(late, "r", id="r", start_delay="1 hour", parent_close="request_cancel")
        await ctx.spawn(late, "a", id="a", start_delay="1 hour", parent_close="abandon")

    await h.start(parent)
    await h.advance("2 hours")
    assert await statuses(h, "late/t", "late/r", "late/a") == {
        "late/t": "terminated",
        "late/r": "cancelled",
        "late/a": "complete",
    }
    assert ran == ["a"]


async def test_a_paused_child_is_terminated(h: Harness, parent: Any) -> None:
    run = await h.start(parent, {"policy": "terminate", "end": "never"})
    await h.run_until_idle()
    await (await at(h, "child/c")).pause()
    await run.terminate()
    assert await statuses(h, "child/c") == {"child/c": "terminated"}


async def test_a_paused_child_is_cancelled_when_it_is_resumed(h: Harness, parent: Any) -> None:
    run = await h.start(parent, {"policy": "request_cancel", "end": "never"})
    await h.run_until_idle()
    child = await at(h, "child/c")
    await child.pause()
    await run.terminate()
    await h.run_until_idle()
    assert (await child.status()).status == "paused"
    await child.resume()
    await h.run_until_idle()
    assert (await child.status()).status == "cancelled"


async def test_an_ended_child_keeps_its_status(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def quick(ctx: Context) -> str:
        return "done"

    @app.workflow
    async def parent(ctx: Context) -> None:
        await ctx.run(quick, id="q")

    async def observe(harness: Harness, run: Handle[Any]) -> Any:
        return (await statuses(harness, "quick/q"))["quick/q"]

    assert await observe_with_crashes(h, parent, observe=observe) == "complete"


# --- trees


async def test_a_whole_tree_ends_with_its_root(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def node(ctx: Context, depth: int) -> None:
        if depth:
            for side in ("l", "r"):
                await ctx.spawn("node", depth - 1, id=f"{ctx.info.instance_id}{side}")
        await ctx.sleep("a while", "10 days")

    async def drive(harness: Harness, run: Handle[Any]) -> None:
        if (await run.status()).status == "waiting":
            await run.terminate("enough")

    async def observe(harness: Harness, run: Handle[Any]) -> Any:
        items = (await harness.app.list(node, limit=100)).items
        return len(items), {item.details.status for item in items}

    assert await observe_with_crashes(h, node, 2, observe=observe, drive=drive) == (7, {"terminated"})


async def test_a_deep_chain_of_children_ends_with_the_first_run(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def link_of_chain(ctx: Context, n: int) -> None:
        if n:
            await ctx.spawn("link_of_chain", n - 1, id=f"n{n - 1}")
        await ctx.sleep("a while", "10 days")

    run = await h.start(link_of_chain, 200)
    await h.run_until_idle()
    await run.terminate()
    ended, cursor = 0, None
    while True:
        page = await h.app.list(link_of_chain, status="terminated", limit=100, cursor=cursor)
        ended, cursor = ended + len(page.items), page.cursor
        if cursor is None:
            break
    assert ended == 201


async def test_each_subtree_ends_as_the_policy_of_its_root_says(app: Holdfast, h: Harness) -> None:
    """Descendants of an abandoned child continue; descendants of a terminated child end."""

    @app.workflow
    async def node(ctx: Context, tree: dict[str, Any]) -> None:
        for name, (policy, below) in tree.items():
            await ctx.spawn("node", below, id=name, parent_close=policy)
        await ctx.sleep("a while", "10 days")

    tree = {
        "a": ("abandon", {"a1": ("terminate", {}), "a2": ("request_cancel", {})}),
        "t": ("terminate", {"t1": ("terminate", {}), "t2": ("abandon", {}), "t3": ("request_cancel", {})}),
        "r": ("request_cancel", {"r1": ("terminate", {}), "r2": ("request_cancel", {"r3": ("terminate", {})})}),
    }
    run = await h.start(node, tree)
    await h.run_until_idle()
    await lose_worker(h)
    await run.terminate()
    await h.run_until_idle()
    found = await statuses(h, *(f"node/{n}" for n in ("a", "a1", "a2", "t", "t1", "t2", "t3", "r", "r1", "r2", "r3")))
    assert {pid.removeprefix("node/"): status for pid, status in found.items()} == {
        "a": "waiting", "a1": "waiting", "a2": "waiting",
        "t": "terminated", "t1": "terminated", "t2": "waiting", "t3": "cancelled",
        "r": "cancelled", "r1": "terminated", "r2": "cancelled", "r3": "terminated",
    }  # fmt: skip


# --- a cancelled ctx.run


@pytest.mark.parametrize("wait", [False, True])
async def test_cancelling_ctx_run_cancels_the_child(app: Holdfast, h: Harness, wait: bool) -> None:
    @app.workflow
    async def tidy(ctx: Context) -> None:
        try:
            await ctx.sleep("a while", "10 days")
        finally:
            await ctx.sleep("tidy up", "1 hour")

    @app.workflow
    async def parent(ctx: Context) -> float:
        began = ctx.now()
        try:
            async with asyncio.timeout(600):
                await ctx.run(tidy, id="t", wait_for_cancellation=wait, parent_close="abandon")
        except TimeoutError:
            pass
        return (ctx.now() - began).total_seconds() // 1200

    async def observe(harness: Harness, run: Handle[Any]) -> Any:
        while (await statuses(harness, "tidy/t"))["tidy/t"] == "waiting":
            await harness.advance("1 hour")
        return await run.result(timeout=60), (await statuses(harness, "tidy/t"))["tidy/t"]

    assert await observe_with_crashes(h, parent, observe=observe) == (3.0 if wait else 0.0, "cancelled")


async def test_cancelling_the_wait_for_a_spawned_child_does_not_cancel_the_child(
    app: Holdfast, h: Harness, child: Any
) -> None:
    @app.workflow
    async def parent(ctx: Context) -> Any:
        spawned = await ctx.spawn(child, id="c")
        try:
            await asyncio.wait_for(spawned.result(), 60)
        except TimeoutError:
            await ctx.send(spawned.pid, "go", "late")
        return await spawned.result()

    assert await h.crash_everywhere(parent) == "late"


async def test_a_cancelled_parent_waits_for_its_childs_cleanup(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def tidy(ctx: Context) -> None:
        try:
            await ctx.sleep("a while", "10 days")
        finally:
            await ctx.sleep("tidy up", "1 hour")

    @app.workflow
    async def parent(ctx: Context) -> None:
        await ctx.run(tidy, id="t", wait_for_cancellation=True)

    async def drive(harness: Harness, run: Handle[Any]) -> None:
        await cancel_once(run, "enough")

    async def observe(harness: Harness, run: Handle[Any]) -> Any:
        return (await run.status()).status, (await statuses(harness, "tidy/t"))["tidy/t"]

    assert await observe_with_crashes(h, parent, observe=observe, drive=drive) == ("cancelled", "cancelled")


async def test_the_result_of_a_child_that_ignores_the_cancellation_is_dropped(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def stubborn(ctx: Context) -> str:
        try:
            await ctx.sleep("a while", "10 days")
        except asyncio.CancelledError:
            return "went on"
        return "slept"

    @app.workflow
    async def parent(ctx: Context) -> str:
        try:
            return await asyncio.wait_for(ctx.run(stubborn, id="s", wait_for_cancellation=True), 60)
        except TimeoutError:
            return "gave up"
        except ChildError:
            return "failed"

    async def observe(harness: Harness, run: Handle[Any]) -> Any:
        return await run.result(timeout=60), await (await at(harness, "stubborn/s")).result(timeout=60)

    assert await observe_with_crashes(h, parent, observe=observe) == ("gave up", "went on")


async def test_a_child_that_was_never_started_is_not_cancelled(app: Holdfast, h: Harness, child: Any) -> None:
    @app.workflow
    async def parent(ctx: Context) -> str:
        task = asyncio.ensure_future(ctx.run(child, id="c"))
        await asyncio.sleep(0)
        task.cancel()
        try:
            await task
        except asyncio.CancelledError:
            return "cancelled"
        return "ran"

    async def observe(harness: Harness, run: Handle[Any]) -> Any:
        return await run.result(timeout=60), len((await harness.app.list(child)).items)

    assert await observe_with_crashes(h, parent, observe=observe) == ("cancelled", 0)
