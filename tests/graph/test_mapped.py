"""Mapped nodes with failed items: every item ends, and the node fails or collects the errors."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from apps import MakeApp
from driving import finish, lose_worker, until_status
from holdfast import (
    Context,
    DefinitionError,
    ErrorInfo,
    Failed,
    Graph,
    Handle,
    Holdfast,
    InvalidOptionError,
    NonRetryableError,
    Ok,
    Retry,
    RunFailedError,
    WorkerConfig,
)
from holdfast.core import codec
from holdfast.testing import Harness

NO_RETRY = Retry(limit=0)


def inverses(app: Holdfast, retry: Retry = NO_RETRY, **options: Any) -> Graph:
    """A graph with a mapped node that fails for each 0 in its input."""
    g = app.graph("g")

    @g.node
    async def numbers(params: list[int]) -> list[int]:
        return params

    @g.node(map=numbers, retry=retry, **options)
    async def inverse(numbers: int) -> float:
        return 1 / numbers

    return g


async def states(run: Handle[Any]) -> dict[str, str | None]:
    return {step.step_key: step.state for step in (await run.history()).steps}


async def failure_of(run: Handle[Any]) -> str:
    with pytest.raises(RunFailedError) as raised:
        await run.result(timeout=60)
    return raised.value.error.message


# --- map_errors="fail"


async def test_every_item_is_recorded_even_if_one_fails(app: Holdfast, h: Harness) -> None:
    run = await h.start(inverses(app), [1, 0, 4])
    await h.run_until_idle()
    assert await states(run) == {
        "numbers": "ok",
        "inverse": "error",
        "inverse[0]": "ok",
        "inverse[1]": "error",
        "inverse[2]": "ok",
    }
    items = await run.facts("item/")
    assert {key: item["status"] for key, item in items.items()} == {
        "item/inverse/0": "ok",
        "item/inverse/1": "error",
        "item/inverse/2": "ok",
    }
    assert items["item/inverse/2"]["data"] == 0.25
    assert items["item/inverse/1"]["data"] == {"name": "ZeroDivisionError", "message": "division by zero"}
    assert await failure_of(run) == "node 'inverse' failed: ZeroDivisionError: item 1: division by zero"


async def test_running_items_end_after_another_item_has_failed(app: Holdfast, h: Harness) -> None:
    g, go = app.graph("g"), asyncio.Event()

    @g.node
    async def numbers() -> list[int]:
        return [0, 1]

    @g.node(map=numbers, retry=NO_RETRY)
    async def work(numbers: int) -> int:
        if numbers == 0:
            raise ValueError("zero")
        await go.wait()
        return numbers

    run = await h.start(g)
    await h.run_until_idle()
    assert await states(run) == {"numbers": "ok", "work": "started", "work[0]": "error", "work[1]": "started"}
    go.set()
    await h.run_until_idle()
    assert await states(run) == {"numbers": "ok", "work": "error", "work[0]": "error", "work[1]": "ok"}
    assert (await run.status()).status == "errored"


async def test_an_item_is_retried_after_another_has_failed_permanently(app: Holdfast, h: Harness) -> None:
    g, seen = app.graph("g"), []

    @g.node
    async def numbers() -> list[int]:
        return [0, 1]

    @g.node(map=numbers, retry=Retry(limit=1, delay="1 hour"))
    async def work(numbers: int) -> int:
        seen.append(numbers)
        if numbers == 1:
            raise NonRetryableError("no")
        if seen.count(0) == 1:
            raise OSError("not now")
        return 7

    run = await h.start(g)
    await h.run_until_idle()
    assert (await states(run))["work[0]"] == "retrying"
    await h.advance("1 hour")
    assert sorted(seen) == [0, 0, 1]
    assert await states(run) == {"numbers": "ok", "work": "error", "work[0]": "ok", "work[1]": "error"}


async def test_the_error_lists_all_failed_items(app: Holdfast, h: Harness) -> None:
    run = await h.start(inverses(app), [0, 1, 0])
    await h.run_until_idle()
    assert await failure_of(run) == (
        "node 'inverse' failed: ZeroDivisionError: 2 of 3 items failed: "
        "item 0: ZeroDivisionError: division by zero; item 2: ZeroDivisionError: division by zero"
    )


@pytest.mark.promise("bounded-resources")
async def test_the_list_of_failed_items_in_an_error_is_bounded(app: Holdfast, h: Harness) -> None:
    g = app.graph("g")

    @g.node
    async def numbers() -> list[int]:
        return list(range(50))

    @g.node(map=numbers, retry=NO_RETRY)
    async def work(numbers: int) -> None:
        raise ValueError("x" * 10_000)

    run = await h.start(g)
    await h.run_until_idle()
    message = await failure_of(run)
    assert message.startswith("node 'work' failed: ValueError: 50 of 50 items failed: item 0: ValueError: xxx")
    assert message.endswith("…; and 30 more")
    assert len(message) < 20 * 250


async def test_a_run_is_not_retried_if_the_error_of_an_item_is_not_retryable(app: Holdfast, h: Harness) -> None:
    g = app.graph("g")

    @g.node
    async def numbers() -> list[int]:
        return [0, 1]

    @g.node(map=numbers, retry=NO_RETRY)
    async def work(numbers: int) -> None:
        raise OSError("not now") if numbers == 0 else NonRetryableError("no")

    run = await h.start(g, retry=Retry(limit=3, delay=0))
    await h.run_until_idle()
    status = await run.status()
    assert (status.status, (await run.describe()).run_number) == ("errored", 0)


@pytest.mark.parametrize("map_errors", ["fail", "collect"])
async def test_a_node_mapped_over_an_empty_list_returns_an_empty_list(
    app: Holdfast, h: Harness, map_errors: str
) -> None:
    assert (await finish(h, inverses(app, map_errors=map_errors), []))["inverse"] == []


# --- map_errors="collect"


async def test_collected_items_are_passed_to_the_next_node(app: Holdfast, h: Harness) -> None:
    g = inverses(app, map_errors="collect")
    seen: list[Any] = []

    @g.node(after=["inverse"], when=lambda inverse: len(inverse) == 3)
    async def report(inverse: list[Ok[float] | Failed]) -> list[float]:
        seen.extend(inverse)
        return [item.value for item in inverse if isinstance(item, Ok)]

    run = await h.start(g, [2, 0, 4])
    await h.run_until_idle()
    failed = Failed(ErrorInfo("ZeroDivisionError", "division by zero"))
    assert seen == [Ok(0.5), failed, Ok(0.25)]
    assert await states(run) == {
        "numbers": "ok",
        "inverse": "ok",
        "inverse[0]": "ok",
        "inverse[1]": "error",
        "inverse[2]": "ok",
        "report": "ok",
    }
    results = await run.results()
    assert results["report"] == [0.5, 0.25]
    assert codec.decoder(list[Ok[float] | Failed])(results["inverse"]) == seen
    stored = [{"value": 0.5}, {"error": {"name": "ZeroDivisionError", "message": "division by zero"}}, {"value": 0.25}]
    assert results["inverse"] == stored
    assert (await run.facts("result/inverse"))["result/inverse"]["data"] == stored
    assert (await run.status()).status == "complete"


async def test_collected_items_can_be_mapped_over(app: Holdfast, h: Harness) -> None:
    g = inverses(app, map_errors="collect")

    @g.node(map="inverse")
    async def text(inverse: Ok[float] | Failed) -> str:
        return str(inverse.value) if isinstance(inverse, Ok) else inverse.error.name

    assert (await finish(h, g, [2, 0]))["text"] == ["0.5", "ZeroDivisionError"]


@pytest.mark.above_the_store
@pytest.mark.parametrize("annotation", [list[Ok[int] | Failed], list[Ok | Failed], list[Failed | Ok[int]]])
def test_collected_items_are_decoded_from_both_stored_forms(annotation: Any) -> None:
    items = [Ok(1), Failed(ErrorInfo("E", "m"))]
    encoded = codec.encode(items, what="items")
    stored = b'[{"value":1},{"error":{"name":"E","message":"m"}}]'
    for data in (encoded, stored):
        assert codec.decoder(annotation)(codec.plain(data)) == items


async def test_items_are_retried_before_they_are_collected(app: Holdfast, h: Harness) -> None:
    run = await h.start(inverses(app, Retry(limit=2, delay="1 minute"), map_errors="collect"), [0, 1])
    await h.advance("1 hour")
    attempts = {step.step_key: step.attempts for step in (await run.history()).steps}
    assert (attempts["inverse[0]"], attempts["inverse[1]"]) == (3, 1)
    assert (await run.status()).status == "complete"


async def test_failed_children_of_items_fail_or_are_collected(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def child(ctx: Context, n: int) -> int:
        await ctx.sleep("pause", f"{n + 1} seconds")
        if n % 2:
            raise NonRetryableError(f"odd {n}")
        return n * n

    g = app.graph("g")

    @g.node
    async def numbers(params: list[int]) -> list[int]:
        return params

    g.node(run=child, name="strict", map=numbers)
    g.node(run=child, name="lenient", map=numbers, map_errors="collect")
    run = await h.start(g, [1, 2, 3])
    await h.advance("1 minute")
    items = (await run.results())["lenient"]
    assert [item.get("value", item.get("error", {}).get("name")) for item in items] == ["ChildError", 4, "ChildError"]
    message = await failure_of(run)
    assert "node 'strict' failed: ChildError: 2 of 3 items failed: item 0: " in message
    assert "odd 1; item 2: " in message
    assert "started" not in (await states(run)).values()


# --- lost workers and control requests


@pytest.mark.parametrize("map_errors", ["fail", "collect"])
async def test_items_of_a_lost_worker_are_run_again(app: Holdfast, h: Harness, map_errors: str) -> None:
    g, stuck = app.graph("g"), [True]

    @g.node
    async def numbers() -> list[int]:
        return [0, 1, 2]

    @g.node(map=numbers, map_errors=map_errors, retry=Retry(limit=1, delay=0))  # type: ignore[call-overload,untyped-decorator]
    async def work(numbers: int) -> int:
        if numbers == 0:
            raise NonRetryableError("zero")
        if numbers == 1 and stuck:
            await asyncio.Event().wait()
        return numbers

    run = await h.start(g)
    await h.run_until_idle()
    stuck.clear()
    await lose_worker(h)
    await h.run_until_idle()
    assert (await run.status()).status == ("errored" if map_errors == "fail" else "complete")
    item_statuses = {key: item["status"] for key, item in (await run.facts("item/")).items()}
    assert item_statuses == {"item/work/0": "error", "item/work/1": "ok", "item/work/2": "ok"}


@pytest.mark.promise("exact-replay")
async def test_a_map_with_failed_items_has_the_same_result_wherever_its_worker_is_lost(
    app: Holdfast, h: Harness
) -> None:
    g = inverses(app, Retry(limit=20, delay=0, non_retryable=["ZeroDivisionError"]), map_errors="collect")

    @g.node(after=["inverse"])
    async def ok(inverse: list[Ok[float] | Failed]) -> list[bool]:
        return [isinstance(item, Ok) for item in inverse]

    assert (await h.crash_everywhere(g, [2, 0, 4]))["ok"] == [True, False, True]


@pytest.mark.parametrize("request_name", ["kill", "cancel", "terminate"])
async def test_a_run_can_be_ended_while_items_run(app: Holdfast, h: Harness, request_name: str) -> None:
    g = app.graph("g")

    @g.node
    async def numbers() -> list[int]:
        return [0, 1, 2]

    @g.node(map=numbers, retry=NO_RETRY, timeout="1 day")
    async def work(numbers: int) -> int:
        if numbers == 0:
            raise ValueError("zero")
        if numbers == 1:
            await asyncio.Event().wait()
        return numbers

    run = await h.start(g)
    await h.run_until_idle()
    await getattr(run, request_name)()
    await h.run_until_idle()
    assert (await run.status()).status == ("cancelled" if request_name == "cancel" else "terminated")
    assert sorted(await run.facts("item/")) == ["item/work/0", "item/work/2"]
    await run.restart()
    await h.run_until_idle()
    assert (await states(run))["work[0]"] == "error"


async def test_a_paused_map_continues_after_the_resume(app: Holdfast, h: Harness) -> None:
    run = await h.start(inverses(app, Retry(limit=1, delay="1 minute")), [1, 0])
    await h.run_until_idle()
    await run.pause()
    await h.advance("1 hour")
    assert (await states(run))["inverse[1]"] == "retrying"
    await run.resume()
    await h.run_until_idle()
    await h.restart()
    await h.advance("1 hour")
    assert (await states(run))["inverse[1]"] == "error"
    assert (await run.status()).status == "errored"


async def test_a_worker_collects_many_items_with_failures(make_app: MakeApp) -> None:
    app = make_app(worker=WorkerConfig(concurrency=20))
    g = inverses(app, map_errors="collect")
    async with app:
        run = await app.start(g, [n % 10 for n in range(200)])
        assert await until_status(run, "complete", "errored") == "complete"
        items = (await run.results())["inverse"]
    assert sum("error" in item for item in items) == 20
    assert len(items) == 200


# --- definitions


@pytest.mark.above_the_store
def test_invalid_options_of_a_map_are_refused(app: Holdfast) -> None:
    g = app.graph("g")

    @g.node
    async def numbers() -> list[int]:
        return []

    with pytest.raises(InvalidOptionError, match='map_errors must be "fail" or "collect", not \'ignore\''):
        g.node(name="a", map=numbers, map_errors="ignore")(lambda numbers: numbers)  # type: ignore[call-overload]
    with pytest.raises(InvalidOptionError, match="map_errors= is for a node with map="):
        g.node(name="b", after=[numbers], map_errors="collect")(lambda numbers: numbers)
    with pytest.raises(InvalidOptionError, match="map_errors= is for a node with map="):
        g.node(run="child", map_errors="collect")


@pytest.mark.above_the_store
def test_a_parameter_of_plain_values_does_not_fit_collected_items(app: Holdfast) -> None:
    g = inverses(app, map_errors="collect")

    async def total(inverse: list[float]) -> float:
        return sum(inverse)

    with pytest.raises(DefinitionError, match="takes inverse: list"):
        g.node(after=["inverse"])(total)


async def test_map_errors_of_a_run_is_fixed_at_its_start(app: Holdfast, h: Harness) -> None:
    run = await h.start(inverses(app, Retry(limit=1, delay="1 hour"), map_errors="collect"), [0])
    await h.run_until_idle()
    nodes = (await run.facts("meta"))["meta"]["nodes"]
    assert nodes[1] == {"name": "inverse", "after": ["numbers"], "map": "numbers", "map_errors": "collect"}
    h.app.registry.get("g").unit_driver._graph.specs["inverse"].collects = False  # type: ignore[union-attr]
    await h.restart()
    await h.advance("1 hour")
    assert (await run.status()).status == "complete"
