"""``on_conflict`` and ``on_reuse``: starts whose id belongs to a run that has not ended, or has ended."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from apps import MakeApp
from driving import until_status
from holdfast import Context, Handle, Holdfast, InstanceExistsError, Workflow
from holdfast.testing import Harness
from scenarios.message_drives import crash_everywhere, number_of_instances

FINISHED = ("complete", "errored", "terminated", "cancelled")


@pytest.fixture
def order(app: Holdfast) -> Workflow[Any]:
    return _order(app)


def _order(app: Holdfast) -> Workflow[Any]:
    """A workflow that ends as its event says."""

    @app.workflow
    async def order(ctx: Context, params: str) -> list[Any]:
        if params == "errored":
            raise ValueError("broken")
        if params != "complete":
            await ctx.listen("end").receive()
        return [params, ctx.info.run_number]

    return order


async def ended(h: Harness, order: Workflow[Any], status: str) -> Handle[Any]:
    """Start a run with the id ``one`` and end it with this status."""
    run = await h.start(order, status, id="one")
    await h.run_until_idle()
    if status == "terminated":
        await run.terminate("for the test")
    if status == "cancelled":
        await run.cancel()
        await h.run_until_idle()
    assert (await run.status()).status == status
    return run


# --- the id of a run that has not ended


@pytest.mark.parametrize("on_reuse", ["use_existing", "allow", "allow_if_failed", "reject"])
async def test_use_existing_returns_the_run_that_has_not_ended(h: Harness, order: Workflow[Any], on_reuse: str) -> None:
    first = await h.start(order, "first", id="one")
    await h.run_until_idle()
    second = await h.start(order, "second", id="one", on_conflict="use_existing", on_reuse=on_reuse)
    await second.send_event("end")
    await h.run_until_idle()

    assert await first.result(timeout=60) == await second.result(timeout=60) == ["first", 0]
    assert await number_of_instances(h) == 1


async def test_use_existing_is_the_default(h: Harness, order: Workflow[Any]) -> None:
    await h.start(order, "first", id="one")
    run = await h.start(order, "second", id="one")
    assert (await run.describe()).params == "first"


@pytest.mark.parametrize("on_reuse", ["use_existing", "allow", "allow_if_failed", "reject"])
@pytest.mark.parametrize("begun", [False, True])
async def test_fail_refuses_while_a_run_has_not_ended(
    h: Harness, order: Workflow[Any], on_reuse: str, begun: bool
) -> None:
    run = await h.start(order, "first", id="one")
    if begun:
        await h.run_until_idle()

    with pytest.raises(InstanceExistsError, match="'one' of 'order'") as caught:
        await h.start(order, "second", id="one", on_conflict="fail", on_reuse=on_reuse, messages=[("end", 1)])

    assert caught.value.code == "INSTANCE_ID_ALREADY_EXISTS"
    assert (await run.describe()).params == "first"
    assert (await run.history()).events == []


@pytest.mark.parametrize("on_reuse", ["use_existing", "allow", "allow_if_failed", "reject"])
async def test_terminate_existing_terminates_the_run_and_starts_a_new_run(
    h: Harness, order: Workflow[Any], on_reuse: str
) -> None:
    await h.start(order, "first", id="one", memo={"of": "first"})
    await h.run_until_idle()
    run = await h.start(order, "second", id="one", on_conflict="terminate_existing", on_reuse=on_reuse)
    await h.run_until_idle()
    await run.send_event("end")
    await h.run_until_idle()

    assert await run.result(timeout=60) == ["second", 1]
    assert (await run.describe()).memo == {}
    assert await number_of_instances(h) == 1


async def test_the_terminated_run_stays_readable(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def flow(ctx: Context, n: int) -> int:
        await ctx.sleep(f"nap {n}", "1 hour")
        return n

    await h.start(flow, 1, id="one")
    await h.run_until_idle()
    run = await h.start(flow, 2, id="one", on_conflict="terminate_existing")
    await h.advance("2 hours")

    assert await run.result(timeout=60) == 2
    assert [s.step_key for s in (await run.history(0)).steps] == ["nap 1"]
    assert [s.step_key for s in (await run.history(1)).steps] == ["nap 2"]


async def test_a_paused_run_counts_as_not_ended(h: Harness, order: Workflow[Any]) -> None:
    run = await h.start(order, "first", id="one")
    await h.run_until_idle()
    await run.pause()
    assert (await run.status()).status == "paused"

    with pytest.raises(InstanceExistsError):
        await h.start(order, "second", id="one", on_conflict="fail", on_reuse="allow")


async def test_a_run_with_a_start_delay_counts_as_not_ended(h: Harness, order: Workflow[Any]) -> None:
    await h.start(order, "first", id="one", start_delay="1 hour")

    with pytest.raises(InstanceExistsError):
        await h.start(order, "second", id="one", on_conflict="fail", on_reuse="allow")


async def test_the_same_id_of_another_workflow_is_another_run(app: Holdfast, h: Harness, order: Workflow[Any]) -> None:
    @app.workflow
    async def other(ctx: Context) -> str:
        return "other"

    await h.start(order, "first", id="one")
    run = await h.start(other, id="one", on_conflict="fail", on_reuse="reject")
    await h.run_until_idle()

    assert await run.result(timeout=60) == "other"


# --- the id of a run that has ended


@pytest.mark.parametrize("status", FINISHED)
@pytest.mark.parametrize("on_conflict", ["use_existing", "fail", "terminate_existing"])
async def test_use_existing_returns_the_ended_run(
    h: Harness, order: Workflow[Any], status: str, on_conflict: str
) -> None:
    await ended(h, order, status)
    run = await h.start(order, "again", id="one", on_conflict=on_conflict, on_reuse="use_existing")
    await h.run_until_idle()

    assert (await run.status()).status == status
    assert (await run.describe()).run_number == 0


@pytest.mark.parametrize("status", FINISHED)
@pytest.mark.parametrize("on_conflict", ["use_existing", "fail", "terminate_existing"])
async def test_allow_starts_a_new_run_after_any_end(
    h: Harness, order: Workflow[Any], status: str, on_conflict: str
) -> None:
    await ended(h, order, status)
    run = await h.start(order, "complete", id="one", on_conflict=on_conflict, on_reuse="allow")
    await h.run_until_idle()

    assert await run.result(timeout=60) == ["complete", 1]
    assert await number_of_instances(h) == 1


@pytest.mark.parametrize("status", FINISHED)
@pytest.mark.parametrize("on_conflict", ["use_existing", "fail", "terminate_existing"])
async def test_reject_refuses_after_any_end(h: Harness, order: Workflow[Any], status: str, on_conflict: str) -> None:
    run = await ended(h, order, status)

    with pytest.raises(InstanceExistsError) as caught:
        await h.start(order, "again", id="one", on_conflict=on_conflict, on_reuse="reject")

    assert caught.value.code == "INSTANCE_ID_ALREADY_EXISTS"
    assert (await run.describe()).run_number == 0


@pytest.mark.parametrize("status", ["errored", "terminated", "cancelled"])
async def test_allow_if_failed_starts_a_new_run_after_a_failure(h: Harness, order: Workflow[Any], status: str) -> None:
    await ended(h, order, status)
    run = await h.start(order, "complete", id="one", on_reuse="allow_if_failed")
    await h.run_until_idle()

    assert await run.result(timeout=60) == ["complete", 1]


async def test_allow_if_failed_refuses_after_a_success(h: Harness, order: Workflow[Any]) -> None:
    run = await ended(h, order, "complete")

    with pytest.raises(InstanceExistsError) as caught:
        await h.start(order, "complete", id="one", on_reuse="allow_if_failed")

    assert caught.value.code == "INSTANCE_ID_ALREADY_EXISTS"
    assert await run.result(timeout=60) == ["complete", 0]


async def test_the_last_run_of_the_id_decides(h: Harness, order: Workflow[Any]) -> None:
    await ended(h, order, "errored")
    await h.start(order, "complete", id="one", on_reuse="allow_if_failed")
    await h.run_until_idle()

    with pytest.raises(InstanceExistsError):
        await h.start(order, "complete", id="one", on_reuse="allow_if_failed")


async def test_a_handle_follows_the_id_to_its_new_run(h: Harness, order: Workflow[Any]) -> None:
    old = await ended(h, order, "errored")
    await h.start(order, "complete", id="one", on_reuse="allow")
    await h.run_until_idle()

    assert await old.result(timeout=60) == ["complete", 1]


# --- starts of children


@pytest.mark.parametrize(
    ("on_conflict", "expected"),
    [
        ("use_existing", ["first", 0]),
        ("fail", "INSTANCE_ID_ALREADY_EXISTS"),
        ("terminate_existing", ["second", 1]),
    ],
)
async def test_children_have_the_same_policies_for_runs_that_have_not_ended(
    app: Holdfast, h: Harness, order: Workflow[Any], on_conflict: str, expected: Any
) -> None:
    @app.workflow
    async def parent(ctx: Context) -> Any:
        await ctx.spawn(order, "first", id="one")
        try:
            child = await ctx.spawn(order, "second", id="one", on_conflict=on_conflict)
        except InstanceExistsError as error:
            return error.code
        await ctx.send(child.pid, "end")
        return await child.result()

    assert await crash_everywhere(h, parent) == expected


@pytest.mark.parametrize(
    ("on_reuse", "expected"),
    [
        ("use_existing", ["complete", 0]),
        ("allow", ["complete", 1]),
        ("allow_if_failed", "INSTANCE_ID_ALREADY_EXISTS"),
        ("reject", "INSTANCE_ID_ALREADY_EXISTS"),
    ],
)
async def test_children_have_the_same_policies_for_runs_that_have_ended(
    app: Holdfast, h: Harness, order: Workflow[Any], on_reuse: str, expected: Any
) -> None:
    @app.workflow
    async def parent(ctx: Context) -> Any:
        await ctx.run(order, "complete", id="one")
        try:
            return await ctx.run(order, "complete", id="one", on_reuse=on_reuse)
        except InstanceExistsError as error:
            return error.code

    assert await crash_everywhere(h, parent) == expected


# --- concurrent starts


async def test_one_of_many_concurrent_starts_creates_the_run(make_app: MakeApp) -> None:
    app = make_app()
    order = _order(app)
    async with app:
        runs = await asyncio.gather(*(app.start(order, f"p{n}", id="one") for n in range(20)))
        await until_status(runs[0], "waiting")
        await runs[0].send_event("end")
        results = [await run.result(timeout=60) for run in runs]
        assert results == [results[0]] * 20
        assert len((await app.list()).items) == 1


async def test_all_but_one_of_many_concurrent_starts_with_fail_raise(make_app: MakeApp) -> None:
    app = make_app()
    order = _order(app)
    async with app:
        starts = (app.start(order, f"p{n}", id="one", on_conflict="fail", on_reuse="reject") for n in range(20))
        found = await asyncio.gather(*starts, return_exceptions=True)
        assert sum(isinstance(one, InstanceExistsError) for one in found) == 19
