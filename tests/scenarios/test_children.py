"""Children: runs that a run starts durably, once, and whose results it awaits."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import pytest

from apps import MakeApp
from driving import finish, until_status
from holdfast import (
    Context,
    Handle,
    Holdfast,
    InstanceExistsError,
    InstanceTerminalError,
    InvalidOptionError,
    ParamsInvalidError,
    Retry,
    WorkflowError,
    WorkflowNotFoundError,
)
from holdfast.store.protocol import NewRun
from holdfast.testing import Harness

from .observations import at, observe_with_crashes


@dataclass
class Parcel:
    name: str
    weight: int


@pytest.fixture
def double(app: Holdfast) -> Any:
    @app.workflow
    async def double(ctx: Context, n: int) -> int:
        return 2 * n

    return double


@pytest.fixture
def patient(app: Holdfast) -> Any:
    """A child that waits for ``go`` and returns its payload."""

    @app.workflow
    async def patient(ctx: Context, n: int = 0) -> Any:
        return (await ctx.wait_for_event("go", type="go")).payload

    return patient


# --- results


async def test_run_returns_the_childs_result(app: Holdfast, h: Harness, double: Any) -> None:
    @app.workflow
    async def parent(ctx: Context) -> int:
        result: int = await ctx.run(double, 21)
        return result

    assert await h.crash_everywhere(parent) == 42


@pytest.mark.above_the_store
async def test_a_result_is_decoded_by_the_childs_annotation(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def pack(ctx: Context, parcel: Parcel) -> Parcel:
        return Parcel(parcel.name, parcel.weight + 1)

    @app.workflow
    async def parent(ctx: Context) -> list[Any]:
        ran = await ctx.run(pack, Parcel("book", 1))
        spawned = await (await ctx.spawn(pack, Parcel("pen", 2))).result()
        named = await ctx.run("pack", Parcel("cup", 3))
        return [isinstance(p, Parcel) and [p.name, p.weight] for p in (ran, spawned, named)]

    assert await h.crash_everywhere(parent) == [["book", 2], ["pen", 3], ["cup", 4]]


async def test_spawn_returns_before_the_child_ends(app: Holdfast, h: Harness, patient: Any) -> None:
    @app.workflow
    async def parent(ctx: Context) -> Any:
        child = await ctx.spawn(patient, id="slow")
        await ctx.send(child.pid, "go", "said by the parent")
        return [child.pid, child.id, await child.result()]

    assert await h.crash_everywhere(parent) == ["patient/slow", "slow", "said by the parent"]


@pytest.mark.above_the_store
async def test_a_childs_result_can_be_read_again_and_by_several_tasks(app: Holdfast, h: Harness, double: Any) -> None:
    @app.workflow
    async def parent(ctx: Context) -> list[int]:
        child = await ctx.spawn(double, 4)
        together = await asyncio.gather(child.result(), child.result())
        return [*together, await child.result()]

    assert await h.crash_everywhere(parent) == [8, 8, 8]


async def test_a_child_can_have_children(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def generation(ctx: Context, depth: int) -> list[Any]:
        below = await ctx.run("generation", depth - 1, id=f"level-{depth - 1}") if depth else []
        return [[ctx.info.pid, ctx.info.parent], *below]

    assert await h.crash_everywhere(generation, 3) == [
        ["generation/crash-everywhere", None],
        ["generation/level-2", "generation/crash-everywhere"],
        ["generation/level-1", "generation/level-2"],
        ["generation/level-0", "generation/level-1"],
    ]


@pytest.mark.above_the_store
async def test_a_workflow_can_be_its_own_child(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def factorial(ctx: Context, n: int) -> int:
        return 1 if n <= 1 else n * int(await ctx.run("factorial", n - 1))

    assert await h.crash_everywhere(factorial, 4) == 24


async def test_five_hundred_children_are_awaited(app: Holdfast, h: Harness, double: Any) -> None:
    @app.workflow
    async def parent(ctx: Context, n: int) -> int:
        return sum(await asyncio.gather(*(ctx.run(double, i) for i in range(n))))

    assert await finish(h, parent, 500) == 2 * sum(range(500))


async def test_five_hundred_children_survive_a_worker_restart(app: Holdfast, h: Harness, patient: Any) -> None:
    @app.workflow
    async def parent(ctx: Context, n: int) -> int:
        children = await asyncio.gather(*(ctx.spawn(patient, id=f"c{i}") for i in range(n)))
        return sum(await asyncio.gather(*(child.result() for child in children)))

    run = await h.start(parent, 500)
    await h.run_until_idle()
    await h.restart()
    for i in range(500):
        await (await at(h, f"patient/c{i}")).send_event("go", i)
        if i == 250:
            await h.run_until_idle()
            await h.restart()
    await h.run_until_idle()
    assert await run.result(timeout=60) == sum(range(500))


async def test_concurrent_children_survive_a_crash_at_any_commit(app: Holdfast, h: Harness, double: Any) -> None:
    @app.workflow
    async def parent(ctx: Context) -> list[int]:
        return list(await asyncio.gather(*(ctx.run(double, i) for i in range(8))))

    assert await h.crash_everywhere(parent) == [0, 2, 4, 6, 8, 10, 12, 14]


@pytest.mark.above_the_store
async def test_the_first_child_to_end_wins_a_race(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def sleeper(ctx: Context, minutes: int) -> int:
        await ctx.sleep("nap", f"{minutes} minutes")
        return minutes

    @app.workflow
    async def parent(ctx: Context) -> list[int]:
        tasks = [asyncio.ensure_future(ctx.run(sleeper, m)) for m in (30, 10, 20)]
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        first = [task.result() for task in done]
        return first + [await task for task in tasks]

    assert await h.crash_everywhere(parent) == [10, 30, 10, 20]


async def test_a_child_that_continues_as_new_gives_its_last_result(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def countdown(ctx: Context, n: int) -> str:
        if n:
            raise ctx.continue_as_new(n - 1)
        return f"run {ctx.info.run_number}, child of {ctx.info.parent}"

    @app.workflow
    async def parent(ctx: Context) -> str:
        return await ctx.run(countdown, 3)

    assert await h.crash_everywhere(parent) == "run 3, child of parent/crash-everywhere"


async def test_a_child_that_is_retried_gives_its_last_result(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def flaky(ctx: Context) -> int:
        if ctx.info.attempt < 3:
            raise WorkflowError("not yet")
        return ctx.info.attempt

    @app.workflow
    async def parent(ctx: Context) -> int:
        return await ctx.run(flaky, retry=Retry(limit=5, delay="1 minute", backoff="constant"))

    assert await h.crash_everywhere(parent) == 3


async def test_a_child_restarted_by_a_client_keeps_its_parent(app: Holdfast, h: Harness, patient: Any) -> None:
    @app.workflow
    async def parent(ctx: Context) -> Any:
        return await ctx.run(patient, id="c")

    async def drive(harness: Harness, run: Handle[Any]) -> None:
        child = await at(harness, "patient/c")
        if (await child.describe()).run_number == 0:
            await child.restart()
            await harness.run_until_idle()
        await child.send_event("go", "second", id="go")

    assert await h.crash_everywhere(parent, drive=drive) == "second"


# --- durable, and once


async def test_a_child_is_started_once_whichever_commit_the_worker_is_lost_after(
    app: Holdfast, h: Harness, double: Any
) -> None:
    @app.workflow
    async def parent(ctx: Context) -> int:
        child = await ctx.spawn(double, 1)
        other = await ctx.run(double, 2)
        return int(other + await child.result())

    async def observe(harness: Harness, run: Handle[Any]) -> Any:
        found = [
            await (await harness.app.get("double", item.id)).describe()
            for item in (await harness.app.list(double)).items
        ]
        return sorted((child.params, child.run_number, child.status) for child in found)

    assert await observe_with_crashes(h, parent, observe=observe) == [(1, 0, "complete"), (2, 0, "complete")]


async def test_a_childs_start_is_durable_before_the_parent_continues(app: Holdfast, h: Harness, double: Any) -> None:
    seen: list[str] = []

    async def observe(id: str) -> None:
        seen.append((await (await h.app.get("double", id)).status()).status)

    @app.workflow
    async def parent(ctx: Context) -> None:
        child = await ctx.spawn(double, 1, start_delay="1 hour")
        await ctx.do("look", observe, child.id)

    await finish(h, parent)
    assert seen == ["waiting"]


@pytest.mark.above_the_store
async def test_generated_child_ids_are_the_same_on_every_replay(app: Holdfast, h: Harness, double: Any) -> None:
    @app.workflow
    async def parent(ctx: Context) -> list[str]:
        first, second = await ctx.spawn(double, 1), await ctx.spawn(double, 1)
        await ctx.sleep("nap", "1 minute")
        return [first.id, second.id]

    first, second = await h.crash_everywhere(parent)
    assert first != second
    assert await finish_after(h, parent, "1 minute") != [
        first,
        second,
    ]  # generated ids of children differ between parents


async def finish_after(h: Harness, workflow: Any, duration: str) -> Any:
    run = await h.start(workflow, id="another")
    await h.start(workflow, id="one-more")
    await h.advance(duration)
    other = await h.app.get(workflow, "one-more")
    mine, theirs = await run.result(timeout=60), await other.result(timeout=60)
    assert not set(mine) & set(theirs)
    return theirs


async def test_a_restarted_parent_has_new_children(app: Holdfast, h: Harness, double: Any) -> None:
    @app.workflow
    async def parent(ctx: Context) -> str:
        return (await ctx.spawn(double, 1)).id

    run = await h.start(parent)
    await h.run_until_idle()
    first = await run.result(timeout=60)
    await run.restart()
    await h.run_until_idle()
    assert await run.result(timeout=60) != first


# --- ids that are taken


async def test_on_conflict_fail_refuses_a_child_whose_id_is_taken(app: Holdfast, h: Harness, patient: Any) -> None:
    @app.workflow
    async def parent(ctx: Context) -> Any:
        await ctx.spawn(patient, id="c")
        try:
            await ctx.spawn(patient, id="c", on_conflict="fail")
        except InstanceExistsError as error:
            return error.code
        return "started"

    assert await h.crash_everywhere(parent) == "INSTANCE_ID_ALREADY_EXISTS"


async def test_a_child_whose_id_is_taken_is_the_existing_run(app: Holdfast, h: Harness, patient: Any) -> None:
    @app.workflow
    async def parent(ctx: Context) -> Any:
        first = await ctx.spawn(patient, 1, id="c")
        second = await ctx.spawn(patient, 2, id="c", messages=[("go", "hello")])
        return [first.pid == second.pid, await first.result(), await second.result()]

    async def observe(harness: Harness, run: Handle[Any]) -> Any:
        child = await (await at(harness, "patient/c")).describe()
        return await run.result(timeout=60), child.params, child.run_number

    assert await observe_with_crashes(h, parent, observe=observe) == ([True, "hello", "hello"], 1, 0)


async def test_a_run_without_a_parent_can_be_awaited_as_a_child(app: Holdfast, h: Harness, patient: Any) -> None:
    """``use_existing`` awaits a run by its id without making it a child."""

    @app.workflow
    async def parent(ctx: Context) -> Any:
        return await ctx.run(patient, id="mine")

    other = await h.start(patient, id="mine")
    run = await h.start(parent)
    await h.run_until_idle()
    await other.send_event("go", "done")
    await h.run_until_idle()
    assert await run.result(timeout=60) == "done"
    assert (await other.describe()).parent is None


async def test_a_child_replaces_a_run_that_has_not_ended(app: Holdfast, h: Harness, patient: Any) -> None:
    @app.workflow
    async def parent(ctx: Context) -> Any:
        await ctx.spawn(patient, 1, id="c")
        second = await ctx.spawn(patient, 2, id="c", on_conflict="terminate_existing", messages=[("go", "second")])
        return await second.result()

    async def observe(harness: Harness, run: Handle[Any]) -> Any:
        child = await (await at(harness, "patient/c")).describe()
        return await run.result(timeout=60), child.params, child.run_number

    assert await observe_with_crashes(h, parent, observe=observe) == ("second", 2, 1)


@pytest.mark.parametrize(
    ("on_reuse", "expected"),
    [
        ("use_existing", [2, 2, 0]),
        ("allow", [2, 10, 1]),
        ("allow_if_failed", [2, "INSTANCE_ID_ALREADY_EXISTS", 0]),
        ("reject", [2, "INSTANCE_ID_ALREADY_EXISTS", 0]),
    ],
)
async def test_on_reuse_decides_for_the_id_of_a_complete_child(
    app: Holdfast, h: Harness, double: Any, on_reuse: str, expected: list[Any]
) -> None:
    @app.workflow
    async def parent(ctx: Context) -> list[Any]:
        found: list[Any] = [await ctx.run(double, 1, id="c")]
        try:
            found.append(await ctx.run(double, 5, id="c", on_reuse=on_reuse))
        except InstanceExistsError as error:
            found.append(error.code)
        return found

    async def observe(harness: Harness, run: Handle[Any]) -> Any:
        return [*await run.result(timeout=60), (await (await at(harness, "double/c")).describe()).run_number]

    assert await observe_with_crashes(h, parent, observe=observe) == expected


@pytest.mark.parametrize(
    ("on_reuse", "second"),
    [("use_existing", "ValueError"), ("allow", 1), ("allow_if_failed", 1), ("reject", "INSTANCE_ID_ALREADY_EXISTS")],
)
async def test_on_reuse_decides_for_the_id_of_a_failed_child(
    app: Holdfast, h: Harness, on_reuse: str, second: Any
) -> None:
    @app.workflow
    async def once(ctx: Context) -> int:
        if ctx.info.run_number == 0:
            raise ValueError("the first never works")
        return ctx.info.run_number

    @app.workflow
    async def parent(ctx: Context) -> list[Any]:
        found: list[Any] = []
        for policy in ("use_existing", on_reuse):
            try:
                found.append(await ctx.run(once, id="c", on_reuse=policy))
            except InstanceExistsError as error:
                found.append(error.code)
            except WorkflowError as error:
                found.append(getattr(error, "type", None))
        return found

    assert await h.crash_everywhere(parent) == ["ValueError", second]


async def test_the_end_of_an_earlier_run_does_not_end_the_wait_for_a_later_run(
    app: Holdfast, h: Harness, patient: Any
) -> None:
    """The first child ends just before the second start, and the parent has not received its end yet."""

    @app.workflow
    async def parent(ctx: Context) -> Any:
        await ctx.spawn(patient, id="c")
        await ctx.wait_for_event("next", type="next")
        second = await ctx.spawn(patient, id="c", on_reuse="allow", messages=[("go", "second")])
        return await second.result()

    run = await h.start(parent)
    await h.run_until_idle()
    commit = h._store.commit

    async def end_the_first(commits: Any) -> Any:
        h._store.commit = commit  # type: ignore[method-assign]
        await (await at(h, "patient/c")).terminate("just before")
        return await commit(commits)

    async def before_the_second(commits: Any) -> Any:
        starts = any(isinstance(act.operation, NewRun) for one in commits for act in one.following.operations)
        return await (end_the_first if starts else commit)(commits)

    h._store.commit = before_the_second  # type: ignore[method-assign]
    await run.send_event("next")
    await h.run_until_idle()
    assert await run.result(timeout=60) == "second"


async def test_messages_for_an_ended_child_are_refused(app: Holdfast, h: Harness, double: Any) -> None:
    @app.workflow
    async def parent(ctx: Context) -> Any:
        await ctx.run(double, 1, id="c")
        try:
            await ctx.run(double, 1, id="c", messages=[("go", 1)])
        except InstanceTerminalError as error:
            return error.code
        return "sent"

    assert await h.crash_everywhere(parent) == "INSTANCE_TERMINAL"


# --- options


async def test_messages_of_a_child_start_name_the_parent_as_sender(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def reads(ctx: Context) -> list[Any]:
        inbox = ctx.inbox
        return [[m.topic, m.payload, m.sender] for m in [await inbox.receive() for _ in range(3)]]

    @app.workflow
    async def parent(ctx: Context) -> Any:
        child = await ctx.spawn(reads, messages=[("a", 1), ("b", {"x": 2})])
        await ctx.send(child.pid, "c", 3)
        return await child.result()

    me = "parent/crash-everywhere"
    assert await h.crash_everywhere(parent) == [["a", 1, me], ["b", {"x": 2}, me], ["c", 3, me]]


@pytest.mark.above_the_store
async def test_a_childs_context_is_merged_over_the_parents(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def values(ctx: Context, depth: int) -> list[Any]:
        below = await ctx.run("values", depth - 1, context={"level": depth - 1}) if depth else []
        return [dict(ctx.values), *below]

    @app.workflow
    async def parent(ctx: Context) -> Any:
        return await ctx.run(values, 2, context={"tenant": "t-1", "level": 2})

    assert await h.crash_everywhere(parent) == [
        {"tenant": "t-1", "level": 2},
        {"tenant": "t-1", "level": 1},
        {"tenant": "t-1", "level": 0},
    ]


async def test_a_child_has_its_own_attributes_queue_and_priority(app: Holdfast, h: Harness, patient: Any) -> None:
    @app.workflow
    async def parent(ctx: Context) -> None:
        await ctx.spawn(
            patient, id="c", queue="slow", priority=3, memo={"note": "x"}, search={"customer": "c-1"},
            summary="waits", eager=False, parent_close="abandon",
        )  # fmt: skip

    await finish(h, parent, id="p")
    child = await (await at(h, "patient/c")).describe()
    assert (child.memo, child.search, child.summary, child.parent) == (
        {"note": "x"}, {"customer": "c-1"}, "waits", "parent/p",
    )  # fmt: skip
    assert child.why == "due, and waiting for a worker of queue 'slow'"
    assert [item.id for item in (await h.app.list(patient, search={"customer": "c-1"})).items] == ["c"]


async def test_a_childs_start_can_be_delayed(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def late(ctx: Context) -> str:
        return ctx.now().isoformat()

    @app.workflow
    async def parent(ctx: Context) -> bool:
        began = ctx.now()
        ended = await ctx.run(late, start_delay="10 minutes")
        return ended >= began.isoformat() and (ctx.now() - began).total_seconds() >= 600

    assert await h.crash_everywhere(parent) is True


@pytest.mark.above_the_store
@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"parent_close": "nope"}, "parent_close"),
        ({"parent_close": None}, "parent_close"),
        ({"link": "yes"}, "link"),
        ({"eager": 1}, "eager"),
        ({"on_conflict": "maybe"}, "on_conflict"),
        ({"on_reuse": 3}, "on_reuse"),
        ({"queue": ""}, "queue"),
        ({"priority": "high"}, "priority"),
        ({"retry": 3}, "retry"),
        ({"run_timeout": 0}, "run_timeout"),
        ({"start_delay": "soon"}, "start_delay"),
        ({"context": [1]}, "context"),
        ({"messages": "go"}, "messages"),
    ],
)
async def test_a_wrong_option_is_named_and_nothing_is_started(
    app: Holdfast, h: Harness, double: Any, options: dict[str, Any], named: str
) -> None:
    @app.workflow
    async def parent(ctx: Context) -> str:
        try:
            await ctx.spawn(double, 1, **options)
        except InvalidOptionError as error:
            return str(error)
        return "started"

    assert named in await h.crash_everywhere(parent)
    assert (await h.app.list(double)).items == []


@pytest.mark.above_the_store
async def test_an_unknown_option_is_a_type_error(app: Holdfast, h: Harness, double: Any) -> None:
    @app.workflow
    async def parent(ctx: Context) -> list[str]:
        found = []
        for start in (ctx.run, ctx.spawn):
            options: Any = {"colour": "red"}
            try:
                await start(double, 1, **options)
            except TypeError as error:
                found.append(str(error))
        return found

    found = await h.crash_everywhere(parent)
    assert ["colour" in text for text in found] == [True, True]


@pytest.mark.above_the_store
async def test_wait_for_cancellation_must_be_a_boolean(app: Holdfast, h: Harness, double: Any) -> None:
    @app.workflow
    async def parent(ctx: Context) -> str:
        wrong: Any = "yes"
        try:
            await ctx.run(double, 1, wait_for_cancellation=wrong)
        except InvalidOptionError as error:
            return str(error)
        return "ran"

    assert "wait_for_cancellation" in await h.crash_everywhere(parent)


@pytest.mark.above_the_store
async def test_params_that_do_not_fit_the_child_are_refused(app: Holdfast, h: Harness, double: Any) -> None:
    @app.workflow
    async def parent(ctx: Context) -> str:
        try:
            await ctx.run(double, "many")
        except ParamsInvalidError as error:
            return error.code
        return "ran"

    await h.crash_everywhere(parent)
    assert (await h.app.list(double)).items == []


@pytest.mark.above_the_store
@pytest.mark.parametrize("unknown", ["nowhere", None, 5])
async def test_starting_a_child_of_an_unknown_workflow_raises(app: Holdfast, h: Harness, unknown: Any) -> None:
    @app.workflow
    async def parent(ctx: Context) -> list[str]:
        found = []
        for start in (ctx.run, ctx.spawn):
            try:
                await start(unknown)
            except WorkflowNotFoundError as error:
                found.append(error.code)
        return found

    assert await h.crash_everywhere(parent) == ["WORKFLOW_NOT_FOUND", "WORKFLOW_NOT_FOUND"]


@pytest.mark.above_the_store
async def test_an_uncaught_error_for_an_unknown_child_workflow_fails_the_parent(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def parent(ctx: Context) -> None:
        await ctx.run("nowhere")

    run = await h.start(parent)
    await h.run_until_idle()
    status = await run.status()
    assert status.status == "errored"
    assert status.error is not None
    assert status.error.name == "WorkflowNotFoundError"


async def test_a_child_can_be_implemented_by_another_app(make_app: MakeApp) -> None:
    here, there = make_app(), make_app()
    remote = here.remote("far", params=int, result=Parcel)

    @here.workflow
    async def parent(ctx: Context) -> list[Any]:
        parcel = await ctx.run(remote, 7)
        return [isinstance(parcel, Parcel), parcel.weight]

    @there.workflow
    async def far(ctx: Context, n: int) -> Parcel:
        return Parcel("from afar", n)

    async with here:
        run = await here.start(parent)
        await until_status(run, "waiting")
        async with there:
            assert await run.result(timeout=60) == [True, 7]


async def test_a_hundred_children_complete_with_a_real_worker(make_app: MakeApp) -> None:
    app = make_app()

    @app.workflow
    async def square(ctx: Context, n: int) -> int:
        return n * n

    @app.workflow
    async def parent(ctx: Context) -> int:
        return sum(await asyncio.gather(*(ctx.run(square, i) for i in range(100))))

    async with app:
        run = await app.start(parent)
        assert await run.result(timeout=60) == sum(i * i for i in range(100))


@pytest.mark.above_the_store
async def test_children_of_two_workflows_get_their_own_results_on_replay(
    app: Holdfast, h: Harness, double: Any
) -> None:
    @app.workflow
    async def half(ctx: Context, n: int) -> float:
        return n / 2

    @app.workflow
    async def parent(ctx: Context) -> list[float]:
        return [
            await ctx.run(double, 4),
            await ctx.run(half, 4),
            *await asyncio.gather(ctx.run(half, 10), ctx.run(double, 10), ctx.run(half, 20)),
        ]

    assert await h.crash_everywhere(parent) == [8, 2.0, 5.0, 20, 10.0]
