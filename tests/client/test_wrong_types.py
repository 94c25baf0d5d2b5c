"""Arguments of a wrong type are refused by name, before anything is written."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast import Context, Holdfast, InvalidOptionError, Start
from holdfast.testing import Harness


@pytest.fixture
def waiter(app: Holdfast) -> Any:
    app.limit("bank", concurrency=1)

    @app.workflow
    async def waiter(ctx: Context) -> None:
        await ctx.wait_for_event("go", type="go")

    return waiter


@pytest.mark.parametrize("entry", ["a", ("a", 1), None, {"id": "a"}])
async def test_a_batch_with_an_entry_that_is_no_start_starts_nothing(
    app: Holdfast, h: Harness, waiter: Any, entry: Any
) -> None:
    with pytest.raises(InvalidOptionError, match=r"list of Start\(id, params\)"):
        await app.start_many(waiter, [Start("first"), entry])
    assert (await app.list()).items == []


@pytest.mark.parametrize("queue", ["\ud800", "\x00", "a\nb", "", 3])
async def test_the_name_of_a_queue_is_printable_text(app: Holdfast, h: Harness, waiter: Any, queue: Any) -> None:
    with pytest.raises(InvalidOptionError, match="queue must be a name"):
        await app.start(waiter, queue=queue)
    with pytest.raises(InvalidOptionError, match="queue must be a name"):
        await app.pause_queue(queue)
    with pytest.raises(InvalidOptionError, match="queue must be a name"):
        await app.move_queue("default", queue)
    assert (await app.list()).items == []


@pytest.mark.parametrize("wrong", [None, "errored", {"status": "errored"}])
async def test_a_bulk_action_needs_a_filter(app: Holdfast, h: Harness, wrong: Any) -> None:
    with pytest.raises(InvalidOptionError, match="takes a Filter"):
        app.bulk(wrong)


@pytest.mark.parametrize("weights", [3, ["a"], "a"])
async def test_the_weights_of_a_limit_are_a_mapping(app: Holdfast, h: Harness, waiter: Any, weights: Any) -> None:
    with pytest.raises(InvalidOptionError, match="weights must map keys"):
        app.limit("other", weights=weights)
    with pytest.raises(InvalidOptionError, match="weights must map keys"):
        await app.set_limit("bank", weights=weights)


async def test_a_category_of_log_lines_and_the_id_of_an_event_are_text(app: Holdfast, h: Harness, waiter: Any) -> None:
    run = await h.start(waiter)
    wrong: Any = 3
    with pytest.raises(InvalidOptionError, match="category must be text"):
        await run.logs(category=wrong)
    with pytest.raises(InvalidOptionError, match="event_id must be text"):
        await run.reply(wrong)
