"""Apps: opening, closing, reopening, several in one process, and workflows that other apps implement."""

from __future__ import annotations

import asyncio
import gc
import threading
from pathlib import Path
from typing import Any

import pytest

from driving import until, until_status
from holdfast import AppClosedError, Context, Holdfast, InvalidUrlError, Start, WorkerConfig
from holdfast.errors import InvalidOptionError


def _define_count(app: Holdfast) -> Any:
    @app.workflow
    async def count(ctx: Context, n: int) -> int:
        first = await ctx.do("first", lambda: n)
        event = await ctx.wait_for_event("more", type="more", payload=int)
        return int(first) + event.payload

    return count


async def test_calls_of_an_app_that_is_not_open_raise_app_closed_error() -> None:
    app = Holdfast("sqlite://")
    count = _define_count(app)
    calls = (
        lambda: app.start(count, 1),
        lambda: app.get(count, "x"),
        lambda: app.list(),
        lambda: app.tick(),
        lambda: app.start_many(count, [Start("x", 1)]),
    )
    for call in calls:
        with pytest.raises(AppClosedError, match="not open") as caught:
            await call()
        assert caught.value.code == "APP_CLOSED"


async def test_an_open_app_cannot_be_opened_again() -> None:
    app = Holdfast("sqlite://")
    async with app:
        with pytest.raises(AppClosedError, match="open already"):
            async with app:
                pass
        assert await app.list() is not None


async def test_a_closed_app_can_be_opened_again_and_continues_its_runs(tmp_path: Path) -> None:
    app = Holdfast(f"sqlite:///{tmp_path}/app.db")
    count = _define_count(app)
    async with app:
        run = await app.start(count, 1, id="one")
        await until_status(run, "waiting")
    for _ in range(2):
        async with app:
            assert (await (await app.get(count, "one")).status()).status == "waiting"
    async with app:
        run = await app.get(count, "one")
        await run.send_event("more", 41)
        assert await run.result(timeout=60) == 42


async def test_two_apps_in_one_process_are_independent(tmp_path: Path) -> None:
    apps = [Holdfast(f"sqlite:///{tmp_path}/{n}.db") for n in range(2)]
    counts = [_define_count(app) for app in apps]
    async with apps[0], apps[1]:
        runs = [await app.start(count, n, id="same") for n, (app, count) in enumerate(zip(apps, counts, strict=True))]
        for n, run in enumerate(runs):
            await run.send_event("more", 10 * n)
        assert [await run.result(timeout=60) for run in runs] == [0, 11]


async def test_two_apps_on_one_file_share_the_work(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/shared.db"
    server, client = Holdfast(url, worker=WorkerConfig(poll="20 ms")), Holdfast(url)

    @server.workflow
    async def double(ctx: Context, n: int) -> int:
        return int(await ctx.do("double", lambda: 2 * n))

    remote = client.remote("double", params=int, result=int)
    async with server, client.connect():
        # Many runs, because a run may end between the read of its status and the wait for it.
        for n in range(60):
            run = await client.start(remote, n)
            assert await run.result(timeout=60) == 2 * n


async def test_a_remote_workflow_checks_params_and_decodes_results(tmp_path: Path) -> None:
    from holdfast import ParamsInvalidError

    app = Holdfast("sqlite://")
    remote = app.remote("elsewhere", params=int, result=str)
    async with app:
        with pytest.raises(ParamsInvalidError):
            await app.start(remote, "text")
        run = await app.start("elsewhere", 5)
        assert (await run.status()).status == "active"
        assert await app.tick() == 0


async def test_a_connected_app_runs_nothing_without_a_tick(tmp_path: Path) -> None:
    app = Holdfast(f"sqlite:///{tmp_path}/app.db", worker=WorkerConfig(poll="10 ms"))
    count = _define_count(app)
    async with app.connect():
        run = await app.start(count, 1, id="one")
        assert (await run.status()).status == "active"
        assert (await run.history()).steps == []
        await app.tick()
        assert (await run.status()).status == "waiting"


async def test_closing_an_app_ends_its_tasks_and_threads() -> None:
    app = Holdfast("sqlite://")
    count = _define_count(app)
    tasks, threads = len(asyncio.all_tasks()), threading.active_count()
    async with app:
        for n in range(10):
            await app.start(count, n)
    gc.collect()
    assert len(asyncio.all_tasks()) == tasks

    async def ended() -> bool:
        return threading.active_count() <= threads + 1

    await until(ended)  # threads end asynchronously


async def test_an_error_inside_the_block_closes_the_app() -> None:
    app = Holdfast("sqlite://")
    with pytest.raises(ZeroDivisionError):
        async with app:
            raise ZeroDivisionError
    async with app:
        pass


@pytest.mark.parametrize("url", ["mysql://x", "sqlite:/x.db", "", "shop.db", "sqlite:x.db"])
def test_a_bad_url_is_refused_at_once(url: str) -> None:
    with pytest.raises(InvalidUrlError):
        Holdfast(url)


def test_the_default_url_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_DATABASE_URL", "sqlite:///from-env.db")
    assert Holdfast().url == "sqlite:///from-env.db"
    monkeypatch.delenv("HOLDFAST_DATABASE_URL")
    assert Holdfast().url == "sqlite:///holdfast.db"


@pytest.mark.promise("no-secrets", store=None)
@pytest.mark.parametrize("bad", ["mysql://ann:secret@host/db", "ann:secret@host/db", "mysql://host/db?password=secret"])
def test_errors_and_the_repr_do_not_show_a_password(bad: str) -> None:
    with pytest.raises(InvalidUrlError) as caught:
        Holdfast(bad)
    assert "secret" not in str(caught.value)
    good = bad.replace("mysql", "postgresql") if "://" in bad else f"postgresql://{bad}"
    assert "secret" not in repr(Holdfast(good))


@pytest.mark.parametrize(
    "bad",
    [
        {"concurrency": 0}, {"concurrency": "many"}, {"cache": -1}, {"max_losses": 0}, {"lease": "0s"},
        {"poll": "never"}, {"poll": -1}, {"drain": -1}, {"queues": "default"}, {"queues": ("",)},
    ],
    ids=str,
)  # fmt: skip
def test_a_bad_worker_setting_is_refused_by_name(bad: dict[str, Any]) -> None:
    with pytest.raises(InvalidOptionError, match=next(iter(bad))):
        WorkerConfig(**bad)


@pytest.mark.parametrize(
    ("bad", "named"),
    [
        ({"worker": {"concurrency": 1}}, "worker must be a WorkerConfig"),
        ({"limits": {"result": 1}}, "limits must be a Limits"),
        ({"runtime": 5}, "runtime must be a Runtime"),
    ],
)
def test_an_option_of_another_type_is_refused_when_the_app_is_made(bad: dict[str, Any], named: str) -> None:
    with pytest.raises(InvalidOptionError, match=named):
        Holdfast("sqlite://", **bad)
