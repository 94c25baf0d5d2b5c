"""``app.stats()`` and ``app.queues()``."""

from __future__ import annotations

from apps import MakeApp
from holdfast import Context, Holdfast, NonRetryableError, QueueInfo
from holdfast.testing import Harness


async def test_stats_count_runs_and_show_due_tasks_errors_and_steps(app: Holdfast, h: Harness) -> None:
    @app.step
    async def charge() -> int:
        return 1

    @app.workflow
    async def order(ctx: Context, fail: bool) -> None:
        await charge()
        if fail:
            raise NonRetryableError("no")

    await h.start(order, True)
    await h.start(order, False)
    await h.run_until_idle()
    began = h.now()
    await h.start(order, False)

    stats = await h.app.stats()

    assert stats.runs == {"order": {"active": 1, "complete": 1, "errored": 1}}
    assert (stats.started_per_minute, stats.ended_per_minute, stats.started_last_hour, stats.ended_last_hour) == (
        3, 2, 3, 2,
    )  # fmt: skip
    assert (stats.due, stats.oldest_due, stats.workers) == (1, began, 0)
    assert stats.errors == {"NonRetryableError": 1}
    [step] = stats.slowest_steps
    assert (step.workflow, step.step, step.count) == ("order", "charge", 2)
    assert 0 <= step.p50 <= step.p95 <= step.max
    assert [*stats.step_p95] == ["order"]
    assert await h.app.queues() == [QueueInfo("default", 1, began, 0, 0)]


async def test_a_queue_without_tasks_is_shown_while_a_worker_serves_it(make_app: MakeApp) -> None:
    app = make_app()

    async with app:
        while not await app.workers():
            pass
        assert await app.queues() == [QueueInfo("default", 0, None, 0, 1)]
        assert (await app.stats()).workers == 1
