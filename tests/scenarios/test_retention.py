"""Retention: finished runs are deleted when they are old enough, and no others."""

from __future__ import annotations

from typing import Any

import pytest

from apps import MakeApp
from holdfast import Context, Holdfast, InstanceNotFoundError, InvalidOptionError, Retention
from holdfast.ports import SystemRandomness
from holdfast.runner import retention
from holdfast.runner.retention import RetentionLoop
from holdfast.testing import Harness


@pytest.fixture
def app() -> Holdfast:
    app = Holdfast("sqlite://", retention=Retention(complete="30 days", errored="90 days"))

    @app.workflow
    async def work(ctx: Context, name: str = "") -> str:
        if name == "fail":
            raise ValueError("no")
        return name

    @app.workflow(retention=Retention(complete="1 hour", keep=1))
    async def short(ctx: Context) -> None: ...

    @app.workflow(retention=Retention())
    async def kept(ctx: Context) -> None: ...

    @app.workflow
    async def parent(ctx: Context) -> str:
        result = await ctx.run("work", "child", id="child")
        await ctx.sleep("long", "40 days")
        again = await ctx.run("work", "child", id="child")
        return f"{result} {again}"

    return app


async def _ids(h: Harness) -> set[str]:
    return {item.id for item in (await h.app.list(limit=100)).items}


async def test_finished_runs_are_deleted_by_their_age_and_status(h: Harness) -> None:
    await h.start("work", "fine", id="complete")
    await h.start("work", "fail", id="errored")
    await h.start("work", "later", id="open", start_delay="365 days")

    await h.advance("29 days")
    assert await _ids(h) == {"complete", "errored", "open"}
    await h.advance("2 days")
    assert await _ids(h) == {"errored", "open"}
    await h.advance("60 days")

    assert await _ids(h) == {"open"}
    with pytest.raises(InstanceNotFoundError):
        await h.app.get("work", "complete")


async def test_a_workflow_can_have_its_own_retention_and_keep_the_newest(h: Harness) -> None:
    for name in ("a", "b", "c"):
        await h.start("short", id=name)
        await h.start("kept", id=name)
        await h.advance("1 minute")

    await h.advance("400 days")

    assert [item.id for item in (await h.app.list("short")).items] == ["c"]
    assert len((await h.app.list("kept")).items) == 3


async def test_a_parent_keeps_its_child_and_replays_after_the_child_could_be_deleted(h: Harness) -> None:
    run = await h.start("parent", id="p")
    await h.advance("35 days")
    assert "child" in await _ids(h)

    await h.restart()
    await h.advance("10 days")

    assert await run.result() == "child child"
    assert "child" not in await _ids(h)


async def test_ticks_of_a_schedule_are_deleted_while_the_schedule_continues(h: Harness) -> None:
    run = await h.start("short", id="tick", cron="0 * * * *")
    for _ in range(5):
        await h.advance("1 hour")

    description = await run.describe()

    assert description.status == "waiting"
    assert description.run_number == 5
    assert (await run.history(run_number=0)).steps == []
    assert await h.app._opened().store.read(_numbered("tick", 0)) == []


def _numbered(instance: str, number: int) -> Any:
    from holdfast.store.protocol import RunByName

    return RunByName("short", instance, number)


@pytest.mark.above_the_store
@pytest.mark.parametrize(
    "options", [{"complete": "soon"}, {"errored": -1}, {"keep": -1}, {"keep": True}, {"terminated": "1 parsec"}]
)
def test_retention_refuses_values_that_are_no_durations(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidOptionError, match=r"Retention\("):
        Retention(**options)


@pytest.mark.above_the_store
def test_retention_must_be_a_retention() -> None:
    with pytest.raises(InvalidOptionError, match="Retention"):
        Holdfast("sqlite://", retention="30 days")  # type: ignore[arg-type]


async def test_an_app_without_retention_warns_once_when_the_database_has_many_runs(
    make_app: MakeApp, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(retention, "MANY_RUNS", 3)
    app = make_app()

    @app.workflow
    async def work(ctx: Context) -> None: ...

    async with app.connect():
        loop = RetentionLoop(app._opened().store, app.registry, SystemRandomness())
        warnings = []
        for count in (2, 3, 4):
            while len((await app.list()).items) < count:
                await app.start(work)
            await loop._step()
            await loop._step()  # the first step only chooses the time of the first pass
            warnings.append(sum("finished runs are kept for ever" in line for line in caplog.messages))

    assert warnings == [0, 1, 1]
