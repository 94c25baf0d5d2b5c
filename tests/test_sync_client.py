"""The blocking client: the methods of the app and its handles as plain calls, from any number of threads."""

from __future__ import annotations

import inspect
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast import AppClosedError, Bulk, Context, Filter, Holdfast, RunFailedError, Start, Started
from holdfast.client import Handle
from holdfast.client.schedules import Schedules
from holdfast.sync_client import SyncBulk, SyncClient, SyncHandle, SyncSchedules

HANDLE_METHODS = [
    name for name, member in inspect.getmembers(Handle, inspect.iscoroutinefunction) if not name.startswith("_")
]

APP_METHODS = [
    name for name, member in inspect.getmembers(Holdfast, inspect.iscoroutinefunction) if not name.startswith("_")
]

BULK_METHODS = [
    name for name, member in inspect.getmembers(Bulk, inspect.iscoroutinefunction) if not name.startswith("_")
]

SCHEDULE_METHODS = [
    name for name, member in inspect.getmembers(Schedules, inspect.iscoroutinefunction) if not name.startswith("_")
]


def _app(tmp_path: Path) -> Holdfast:
    app = Holdfast(f"sqlite:///{tmp_path}/sync.db")

    @app.workflow
    async def double(ctx: Context, n: int) -> int:
        ctx.log.info("doubling")
        return await ctx.do("multiply", lambda: 2 * n)

    @app.workflow
    async def approve(ctx: Context) -> str:
        event = await ctx.wait_for_event("approval", type="approval", payload=str)
        return event.payload

    @app.workflow
    async def broken(ctx: Context) -> None:
        raise KeyError("missing")

    return app


@pytest.fixture
def client(tmp_path: Path) -> Iterator[SyncClient]:
    with _app(tmp_path).sync(worker=True) as client:
        yield client


def test_a_run_is_started_and_awaited_without_an_event_loop(client: SyncClient) -> None:
    run = client.start("double", 21, id="one")

    assert run.result(timeout="30 seconds") == 42
    assert (run.id, run.workflow, run.pid) == ("one", "double", "double/one")
    assert client.get("double", "one").status().output == 42
    assert [item.id for item in client.list("double").items] == ["one"]
    assert [line.message for line in run.follow_logs()] == ["doubling"]


def test_a_run_is_controlled_without_an_event_loop(client: SyncClient) -> None:
    run = client.start("approve")
    run.send_event("approval", "ann")
    assert run.result() == "ann"

    run.restart()
    run.terminate("not needed")
    assert run.status().status == "terminated"
    assert [record.action for record in client.audit().items] == ["terminate", "restart"]


def test_errors_of_a_run_are_raised_in_the_calling_thread(client: SyncClient) -> None:
    with pytest.raises(RunFailedError, match="KeyError"):
        client.start("broken").result()


def test_many_threads_use_one_client_at_the_same_time(client: SyncClient) -> None:
    results: dict[int, int] = {}

    def use(n: int) -> None:
        results[n] = client.start("double", n).result()

    threads = [threading.Thread(target=use, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert results == {n: 2 * n for n in range(8)}


def test_a_batch_of_starts_leaves_out_ids_that_exist(client: SyncClient) -> None:
    client.start("double", 1, id="a")
    started = client.start_many("double", [Start("a", 1), Start("b", 2)])
    assert [run.id for run in started] == ["b"]


def test_the_actor_of_the_calling_thread_is_recorded(tmp_path: Path) -> None:
    app = _app(tmp_path)
    with app.sync() as client:
        run = client.start("approve")
        with app.acting_as("ann"):
            run.terminate()
        assert client.audit().items[0].actor == "ann"


def test_a_client_without_a_worker_runs_nothing(tmp_path: Path) -> None:
    with _app(tmp_path).sync() as client:
        run = client.start("double", 1)
        with pytest.raises(TimeoutError, match=r"double/.* has not ended"):
            run.result(timeout=0.05)


def test_a_closed_client_refuses_calls_and_can_be_opened_again(tmp_path: Path) -> None:
    client = _app(tmp_path).sync()
    with pytest.raises(AppClosedError, match="closed"):
        client.list()
    client.open()
    with pytest.raises(AppClosedError, match="open already"):
        client.open()
    run = client.start("double", 1)
    client.close()
    client.close()
    with pytest.raises(AppClosedError, match="closed"):
        run.status()

    with client:
        assert client.get("double", run.id).status().status == "active"


def test_a_client_that_cannot_open_its_database_leaves_no_thread(tmp_path: Path) -> None:
    before = set(threading.enumerate())
    client = Holdfast(f"sqlite:///{tmp_path}/missing/folder/x.db").sync()
    with pytest.raises(Exception, match="missing"):
        client.open()
    assert "holdfast-sync" not in {thread.name for thread in set(threading.enumerate()) - before}


def test_a_client_that_was_opened_before_a_fork_is_refused_in_the_child(
    client: SyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    child = os.getpid() + 1
    with monkeypatch.context() as patch:
        patch.setattr(os, "getpid", lambda: child)
        with pytest.raises(AppClosedError, match="fork"):
            client.list()


@pytest.mark.parametrize("name", HANDLE_METHODS)
def test_every_method_of_a_handle_has_a_blocking_form_with_the_same_parameters(name: str) -> None:
    blocking = getattr(SyncHandle, name)
    if name == "fork":  # it returns another handle
        return
    assert [*inspect.signature(blocking).parameters] == [*inspect.signature(getattr(Handle, name)).parameters]


def test_a_schedule_is_created_triggered_and_deleted_without_an_event_loop(client: SyncClient) -> None:
    client.schedules.create("nightly", "double", params=4, cron="0 3 * * *")

    assert client.schedules.trigger("nightly").result(timeout="30 seconds") == 8
    client.schedules.pause("nightly", "the warehouse moves")
    [paused] = client.schedules.list()
    assert (paused.name, paused.paused, paused.note) == ("nightly", True, "the warehouse moves")
    assert [run.outcome for run in client.schedules.get("nightly").last_runs] == ["complete"]
    client.schedules.delete("nightly")
    assert client.schedules.list() == []


@pytest.mark.parametrize("name", SCHEDULE_METHODS)
def test_every_method_of_schedules_has_a_blocking_form_with_the_same_parameters(name: str) -> None:
    blocking = getattr(SyncSchedules, name)
    assert [*inspect.signature(blocking).parameters] == [*inspect.signature(getattr(Schedules, name)).parameters]


@pytest.mark.parametrize("name", [*APP_METHODS, "bulk", "acting_as"])
def test_every_method_of_an_app_has_a_blocking_form_with_the_same_parameters(name: str) -> None:
    blocking = getattr(SyncClient, name)
    parameters = [one for one in inspect.signature(getattr(Holdfast, name)).parameters if one != "connection"]
    assert [*inspect.signature(blocking).parameters] == parameters


@pytest.mark.parametrize("name", BULK_METHODS)
def test_every_method_of_bulk_actions_has_a_blocking_form_with_the_same_parameters(name: str) -> None:
    blocking = getattr(SyncBulk, name)
    assert [*inspect.signature(blocking).parameters] == [*inspect.signature(getattr(Bulk, name)).parameters]


def test_a_bulk_action_is_applied_without_an_event_loop(client: SyncClient) -> None:
    runs = [client.start("approve") for _ in range(3)]
    waiting = client.bulk(Filter(workflow="approve"))

    assert waiting.count() == len(waiting.sample(10)) == 3
    with client.acting_as("ann"):
        assert waiting.terminate(reason="a test").done == 3
    assert {run.status().status for run in runs} == {"terminated"}
    assert {(record.actor, record.reason) for record in client.audit().items} == {("ann", "a test")}


def test_a_limit_is_changed_without_an_event_loop(tmp_path: Path) -> None:
    app = _app(tmp_path)
    app.limit("bank", concurrency=2)
    with app.sync(worker=True) as client:
        assert client.set_limit("bank", concurrency=5).concurrency == 5
        assert [limit.concurrency for limit in client.list_limits()] == [5]


def test_a_client_without_a_worker_runs_due_instances_and_nodes_on_request(tmp_path: Path) -> None:
    app = _app(tmp_path)
    graph = app.graph("graph")

    @graph.node
    async def first(params: int) -> int:
        return params

    with app.sync() as client:
        run = client.start("double", 4)
        assert client.tick(max_instances=1) == 1
        assert run.status().output == 8
        assert client.advance(client.start(graph, 1)) == Started(("first",))


def test_a_blocking_call_in_workflow_code_is_refused(tmp_path: Path) -> None:
    app = _app(tmp_path)

    @app.workflow
    async def flow(ctx: Context) -> None:
        client.start("double", 1)

    with app.sync(worker=True) as client:
        with pytest.raises(RunFailedError, match="SyncClient was used in workflow code"):
            client.start(flow).result(timeout="30 seconds")
        assert client.list("double").items == []
