"""Size limits count bytes of UTF-8; the output of a run has a separate limit."""

from __future__ import annotations

from typing import Any

import pytest

from apps import MakeApp
from driving import finish
from holdfast import ChainTask, Context, Holdfast, Limits, PayloadTooLargeError, RunFailedError
from holdfast.store.protocol import RunByName
from holdfast.store.sqlite import SqliteStore
from holdfast.testing import Harness

MIB = 1024 * 1024
TWO_BYTES = "я"
FITS = TWO_BYTES * (MIB // 2 - 1)
"""Text whose JSON form, with its two quotes, has exactly one MiB."""


async def test_one_mebibyte_of_cyrillic_text_is_within_all_limits(app: Holdfast, h: Harness) -> None:
    @app.step
    async def echo(text: str) -> str:
        return text

    @app.workflow
    async def flow(ctx: Context, text: str) -> str:
        ctx.log.info("large", text)
        event = await ctx.wait_for_event("go", type="go", payload=str)
        return await echo(event.payload)

    run = await h.start(flow, FITS)
    await run.send_event("go", FITS)
    await h.run_until_idle()

    assert await run.result() == FITS
    assert [line.data for line in await run.logs(category="workflow")] == [FITS]
    with pytest.raises(PayloadTooLargeError, match=f"{MIB + 2} bytes"):
        await h.start(flow, FITS + TWO_BYTES)


@pytest.mark.above_the_store
@pytest.mark.parametrize("nested", [False, True])
async def test_text_is_stored_as_utf8_with_escapes_only_where_needed(make_app: MakeApp, nested: bool) -> None:
    app = make_app()

    @app.workflow
    async def flow(_ctx: Context, text: Any) -> Any:
        return text

    text = "naïve café 😀 \ud800 \0 \n"
    value = [text, {text: text}] if nested else text
    async with app:
        run = await app.start(flow, value, id="a")
        assert await run.result(timeout=60) == value
        store = app._opened().store
        assert isinstance(store, SqliteStore)
        [row] = await store.read(RunByName("flow", "a"))
    stored = '"naïve café 😀 \\ud800 \\u0000 \\n"'
    assert row.params == row.output == (f"[{stored},{{{stored}:{stored}}}]" if nested else stored).encode()


async def test_an_output_may_be_larger_than_a_step_result(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def flow(_ctx: Context, size: int) -> str:
        return TWO_BYTES * (size // 2 - 1)

    @app.workflow
    async def parent(ctx: Context) -> int:
        return len(await ctx.run(flow, 2 * MIB))

    assert len(await finish(h, flow, 8 * MIB)) == 4 * MIB - 1
    assert await finish(h, parent) == MIB - 1
    with pytest.raises(RunFailedError) as caught:
        await finish(h, flow, 8 * MIB + 2)
    assert caught.value.error.name == "PayloadTooLargeError"
    assert "result of workflow 'flow'" in caught.value.error.message


@pytest.mark.above_the_store
async def test_the_limit_of_the_output_can_be_set() -> None:
    app = Holdfast("sqlite://", limits=Limits(output=100))

    @app.workflow
    async def flow(_ctx: Context, size: int) -> str:
        return "x" * size

    async with Harness(app) as h:
        assert await finish(h, flow, 98) == "x" * 98
        with pytest.raises(RunFailedError, match="at most 100 are allowed"):
            await finish(h, flow, 99)


async def test_the_last_step_of_a_chain_has_the_size_limit_of_an_output(app: Holdfast, h: Harness) -> None:
    chain = app.chain("packages")

    @chain.step("PACK", max_attempts=1)
    async def pack(task: ChainTask) -> Any:
        return "x" * task.params[0]

    @chain.step("SEND", max_attempts=1)
    async def send(task: ChainTask) -> Any:
        return "x" * task.params[1]

    assert len(await finish(h, chain, [10, 2 * MIB])) == 2 * MIB
    for sizes in ([2 * MIB, 10], [10, 9 * MIB]):
        with pytest.raises(RunFailedError, match="bytes as JSON"):
            await finish(h, chain, sizes)


async def test_the_results_of_a_graph_have_the_size_limit_of_an_output(app: Holdfast, h: Harness) -> None:
    graph = app.graph("etl")

    @graph.node
    async def first(params: int) -> str:
        return "x" * params

    @graph.node
    async def second(params: int) -> str:
        return "y" * params

    output = await finish(h, graph, MIB - 2)
    assert [len(output["first"]), len(output["second"])] == [MIB - 2, MIB - 2]
