"""Arguments of a wrong type or form: the error names the argument, on both stores."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from holdfast import ChainTask, Context, Handle, Holdfast
from holdfast.errors import InputError, InvalidLogError
from holdfast.testing import Harness

Call = Callable[[Harness, Handle[Any]], Awaitable[Any]]
FAR_EAST = timezone(timedelta(hours=14))
AFTER_ALL_TIMES = datetime.max.replace(tzinfo=timezone(timedelta(hours=-5)))
WRONG: Any = [1]
CALLS: dict[str, tuple[str, Call]] = {
    "history": ("run_number", lambda h, run: run.history("last")),  # type: ignore[arg-type]
    "outbox": ("run_number", lambda h, run: run.outbox(WRONG)),
    "redeliver": ("run_number", lambda h, run: run.redeliver(WRONG)),
    "streams": ("run_number", lambda h, run: run.streams(run_number=WRONG)),
    "logs": ("category", lambda h, run: run.logs(category=WRONG)),
    "facts": ("prefix", lambda h, run: run.facts(WRONG)),
    "resolve": ("step_key", lambda h, run: run.resolve(WRONG, result=1)),
    "fork": ("before", lambda h, run: run.fork(before=WRONG)),
    "outputs": ("outputs", lambda h, run: run.fork(before="node", outputs=WRONG)),
    "reply": ("event_id", lambda h, run: run.reply(WRONG)),
    "large event id": ("event_id", lambda h, run: run.reply("1:99999999999999999999")),
    "audit": ("handle", lambda h, run: h.app.audit(WRONG)),
    "limit": ("name", lambda h, run: h.app.set_limit(WRONG, concurrency=1)),
    "queue": ("queue", lambda h, run: h.app.pause_queue("a\0b")),
    "start": ("queue", lambda h, run: h.start(run.workflow, queue="\ud800")),
    "search": ("'at'", lambda h, run: h.start(run.workflow, search={"at": datetime(1, 1, 1, tzinfo=FAR_EAST)})),
    "schedule": (
        "end",
        lambda h, run: h.app.schedules.create("s", run.workflow, every="1 hour", end=AFTER_ALL_TIMES),
    ),
}


@pytest.mark.parametrize("call", CALLS)
async def test_a_wrong_argument_is_named(app: Holdfast, h: Harness, call: str) -> None:
    graph = app.graph("g")

    @graph.node
    async def node() -> int:
        return 1

    run = await h.start(graph)
    name, make = CALLS[call]

    with pytest.raises(InputError, match=name):
        await make(h, run)


async def test_bulk_takes_a_filter(app: Holdfast, h: Harness) -> None:
    with pytest.raises(InputError, match="Filter"):
        h.app.bulk(WRONG)


@pytest.mark.parametrize("category", ["\ud800", "a\0b"])
async def test_a_log_category_that_cannot_be_stored_is_refused(app: Holdfast, h: Harness, category: str) -> None:
    chain = app.chain("chain")

    @chain.step("STEP", max_attempts=1)
    async def step(task: ChainTask) -> None:
        task.log.info("hello", category=category)

    @app.workflow
    async def flow(ctx: Context) -> str:
        try:
            ctx.log.info("hello", category=category)
        except InvalidLogError as error:
            return str(error)
        return "accepted"

    run = await h.start(chain)
    result = await h.run(flow)

    assert "printable" in result
    assert await run.logs(category=category) == []
    assert "InvalidLogError" in (await run.describe()).why


async def test_code_cannot_set_a_search_attribute_that_cannot_be_stored(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def flow(ctx: Context) -> str:
        try:
            ctx.set_search(name="\ud83d\ude00")
        except InputError as error:
            return str(error)
        return "accepted"

    assert "'name'" in await h.run(flow)
