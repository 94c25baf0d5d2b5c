"""Two releases of a program on one database, the second with a renamed step."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from apps import MakeApp
from driving import until, until_status
from holdfast import Context, Holdfast, InvalidNameError, InvalidOptionError, WorkerConfig


class Release:
    """A release of the program whose payment step has this name."""

    def __init__(self, app: Holdfast, step: str, *, persist: Any = "step", **options: Any) -> None:
        self.app = app
        self.charged: list[str] = []
        self.may_charge = asyncio.Event()
        self.may_charge.set()

        @app.step(name=step, **options)
        async def charge(order: str) -> str:
            self.charged.append(step)
            await self.may_charge.wait()
            return f"{order} paid by {step}"

        @app.workflow(name="order", persist=persist)
        async def order(ctx: Context) -> str:
            paid = await charge("o-1")
            await ctx.wait_for_event("go", type="go")
            return paid

        self.order = order


async def leave_run_open(release: Release) -> None:
    """Start a run, which pays and then waits for an event, and close the app."""
    async with release.app as app:
        run = await app.start(release.order, id="o-1")
        await until_status(run, "waiting")
    assert release.charged == ["charge"]


async def warnings_of(run: Any) -> list[str]:
    return [line.message for line in await run.logs(level="warn", category="system")]


@pytest.mark.parametrize("persist", ["step", "task"])
async def test_the_warning_is_in_both_logs_before_the_step_is_called(
    make_app: MakeApp, caplog: pytest.LogCaptureFixture, persist: str
) -> None:
    await leave_run_open(Release(make_app(), "charge", persist=persist))
    new = Release(make_app(), "charge_card", persist=persist)
    new.may_charge.clear()
    async with new.app as app:
        run = await app.get(new.order, "o-1")
        with caplog.at_level(logging.WARNING, "holdfast"):
            await run.send_event("go")
            await until(lambda: _async_bool(new.charged))
        [warning] = await warnings_of(run)
        new.may_charge.set()
        assert "'charge'" in warning
        assert "'charge_card'" in warning
        assert [r.getMessage() for r in caplog.records if warning in r.getMessage()] == [
            f"order/o-1 (run 0): {warning}"
        ]
        assert await run.result(timeout=60) == "o-1 paid by charge_card"
        assert await warnings_of(run) == [warning]


async def _async_bool(value: Any) -> bool:
    return bool(value)


@pytest.mark.promise("exact-replay")
async def test_a_strict_worker_parks_the_run_until_the_code_matches_the_history(make_app: MakeApp) -> None:
    await leave_run_open(Release(make_app(), "charge"))
    new = Release(make_app(worker=WorkerConfig(replay="strict")), "charge_card")
    async with new.app as app:
        run = await app.get(new.order, "o-1")
        await run.send_event("go")
        await until_status(run, "paused")
        why = (await run.describe()).why
        assert "NON_DETERMINISTIC" in why
        assert "'charge'" in why
        assert "'charge_card'" in why
        await run.resume()
        await until_status(run, "paused")
    assert new.charged == []

    fixed = Release(make_app(worker=WorkerConfig(replay="strict")), "charge_card", renamed_from="charge")
    async with fixed.app as app:
        run = await app.get(fixed.order, "o-1")
        await run.resume()
        assert await run.result(timeout=60) == "o-1 paid by charge"
        assert await warnings_of(run) == []
    assert fixed.charged == []


@pytest.mark.above_the_store
async def test_recorded_warnings_are_not_shown_as_steps(make_app: MakeApp) -> None:
    await leave_run_open(Release(make_app(), "charge"))
    new = Release(make_app(), "charge_card")
    async with new.app as app:
        run = await app.get(new.order, "o-1")
        await run.send_event("go")
        await run.result(timeout=60)
        assert [step.step_key for step in (await run.history()).steps] == ["charge", "go", "charge_card"]


@pytest.mark.above_the_store
def test_names_and_modes_are_checked_at_definition(make_app: MakeApp) -> None:
    app = make_app()
    with pytest.raises(InvalidOptionError, match="replay"):
        app.workflow(replay="loose")  # type: ignore[call-overload]
    with pytest.raises(InvalidOptionError, match="replay"):
        WorkerConfig(replay="loose")  # type: ignore[arg-type]
    with pytest.raises(InvalidNameError):
        app.retired_steps("")
    with pytest.raises(InvalidNameError):
        app.step(renamed_from=("",))
