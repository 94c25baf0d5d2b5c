"""Results that do not fit the return annotation fail the run, the step or the node, with a message about the result."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from driving import finish
from holdfast import Context, Holdfast, ResultInvalidError, Retry, RunFailedError
from holdfast.testing import Harness


@dataclass
class Receipt:
    total: int


async def failure_of(h: Harness, workflow: Any, params: Any = None) -> tuple[str, str]:
    run = await h.start(workflow, params)
    await h.run_until_idle()
    assert (await run.status()).status == "errored"
    with pytest.raises(RunFailedError) as caught:
        await run.result()
    return caught.value.error.name, caught.value.error.message


async def test_a_result_that_does_not_fit_its_annotation_fails_the_run(app: Holdfast, h: Harness) -> None:
    attempts: list[int] = []

    @app.workflow(retry=Retry(limit=3, delay=1))
    async def flow(_ctx: Context, total: Any) -> Receipt:
        attempts.append(1)
        return {"total": total}  # type: ignore[return-value]

    name, message = await failure_of(h, flow, "many")
    assert name == "ResultInvalidError"
    assert message.startswith("result of workflow 'flow' does not fit the return annotation of its function: ")
    assert "Receipt: total: Input should be a valid integer" in message
    assert attempts == [1]
    assert await finish(h, flow, 5) == Receipt(5)


@pytest.mark.above_the_store
async def test_a_result_of_a_workflow_annotated_with_none_fails_the_run(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def flow(_ctx: Context) -> None:
        return 5  # type: ignore[return-value]

    assert (await failure_of(h, flow))[0] == "ResultInvalidError"


@pytest.mark.above_the_store
async def test_a_result_without_an_annotation_may_be_any_json(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def anything(_ctx: Context) -> Any:
        return Receipt(5)

    @app.workflow
    async def not_annotated(_ctx: Context):  # type: ignore[no-untyped-def]
        return [1, "x"]

    assert await finish(h, anything) == {"total": 5}
    assert await finish(h, not_annotated) == [1, "x"]


@pytest.mark.above_the_store
async def test_a_child_result_that_does_not_fit_raises_child_error_in_the_parent(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def child(_ctx: Context) -> int:
        return "x"  # type: ignore[return-value]

    @app.workflow
    async def parent(ctx: Context) -> str:
        try:
            await ctx.run(child)
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        return "fits"

    assert "ChildError: result of workflow 'child' does not fit" in await finish(h, parent)


async def test_a_step_result_that_does_not_fit_its_annotation_fails_the_step_without_retries(
    app: Holdfast, h: Harness
) -> None:
    attempts: list[int] = []

    @app.step
    async def charge() -> Receipt:
        attempts.append(1)
        return {"total": "many"}  # type: ignore[return-value]

    @app.workflow
    async def flow(ctx: Context) -> str:
        try:
            await charge()
        except ResultInvalidError as error:
            await ctx.sleep("later", "1 hour")
            return f"{error.code} {error}"
        return "fits"

    run = await h.start(flow)
    await h.run_until_idle()
    await h.restart()
    await h.advance("1 hour")

    assert (await run.result()).startswith("RESULT_INVALID result of step 'charge' does not fit the return annotation")
    assert attempts == [1]


@pytest.mark.above_the_store
async def test_a_node_result_that_does_not_fit_its_annotation_fails_the_graph(app: Holdfast, h: Harness) -> None:
    graph = app.graph("etl")

    @graph.node
    async def one() -> Receipt:
        return "x"  # type: ignore[return-value]

    name, message = await failure_of(h, graph)
    assert name == "NodeFailedError"
    assert "ResultInvalidError: result of node 'one' does not fit the return annotation" in message
