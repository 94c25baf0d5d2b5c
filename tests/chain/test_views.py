"""The SQL views of chains agree with the history."""

from __future__ import annotations

from typing import Any

import asyncpg
import pytest

from apps import MakeApp
from holdfast import ChainTask, Completed, Dead, Handle, Holdfast, RetryStep, Waiting

STEP = "step_seq, step_type, status, attempts, max_attempts, next_run_at, locked_by, waiting_event_type, last_error"


async def rows(app: Holdfast, sql: str) -> list[tuple[Any, ...]]:
    if app.schema is None:
        import apsw

        connection = apsw.Connection(app.url.removeprefix("sqlite:///"), flags=apsw.SQLITE_OPEN_READONLY)
        try:
            return list(connection.execute(sql))
        finally:
            connection.close()
    server = await asyncpg.connect(app.url, server_settings={"search_path": app.schema})
    try:
        return [tuple(row) for row in await server.fetch(sql)]
    finally:
        await server.close()


async def checked_view(app: Holdfast, run: Handle[Any]) -> list[tuple[Any, ...]]:
    """The steps of the view, after a check that the history has the same steps."""
    view = await rows(app, f"SELECT {STEP} FROM holdfast_chain_step WHERE instance_id = '{run.id}' ORDER BY step_seq")
    steps = (await run.history()).steps
    assert [row[:5] for row in view] == [(s.step_seq, s.name, s.state, s.attempts, s.max_attempts) for s in steps]
    return [(row[2], row[5] is not None, row[6] is not None, *row[7:]) for row in view]


def chain_of(app: Holdfast, answer: Any, **options: Any) -> Any:
    chain = app.chain("seen", version=3)

    @chain.step("A")
    async def a(task: ChainTask) -> Any:
        return 1

    @chain.step("B", **options)
    async def b(task: ChainTask) -> Any:
        return answer

    @chain.step("C")
    async def c(task: ChainTask) -> Any:
        return 3

    return chain


DONE = ("DONE", False, False, None, None)
PENDING = ("PENDING", False, False, None, None)


@pytest.mark.parametrize(
    ("answer", "expected", "status"),
    [
        pytest.param(Completed(2), [DONE, DONE, DONE], "COMPLETED", id="done"),
        pytest.param(
            Waiting("go", "1 hour"), [DONE, ("WAITING", False, False, "go", None), PENDING], "RUNNING", id="waiting"
        ),
        pytest.param(
            RetryStep("1 hour", "busy"), [DONE, ("READY", True, False, None, "busy"), PENDING], "RUNNING", id="ready"
        ),
        pytest.param(
            Dead("stolen"),
            [DONE, ("DEAD", False, False, None, "stolen"), PENDING],
            "FAILED",
            id="dead",
        ),
    ],
)
async def test_the_views_show_a_chain_between_turns(
    make_app: MakeApp, answer: Any, expected: list[Any], status: str
) -> None:
    app = make_app()
    async with app.connect():
        run = await app.start(chain_of(app, answer), id="one")
        assert (await checked_view(app, run))[0] == ("READY", True, False, None, None)
        await app.tick()
        assert await checked_view(app, run) == expected
        [instance] = await rows(
            app,
            "SELECT workflow_type, workflow_version, status, current_step_seq, current_step_type "
            "FROM holdfast_chain_instance",
        )
        current = (await run.describe()).current_step
        assert current is not None
        assert instance == ("seen", 3, status, current.step_seq, current.name)
        assert (await run.status()).native_status == status


async def test_the_views_show_a_running_step(make_app: MakeApp) -> None:
    app = make_app()
    chain, view = app.chain("seen"), []

    @chain.step("ONLY")
    async def only(task: ChainTask) -> Any:
        view.extend(await checked_view(app, await app.get(chain, task.instance_id)))

    async with app.connect():
        await app.start(chain, id="one")
        await app.tick()
    assert view == [("RUNNING", False, True, None, None)]


async def test_the_views_show_a_cancelled_chain(make_app: MakeApp) -> None:
    app = make_app()
    async with app.connect():
        run = await app.start(chain_of(app, Waiting("go", "1 hour")), id="one")
        await app.tick()
        await run.cancel()
        await app.tick()
        assert await rows(app, "SELECT status FROM holdfast_chain_instance") == [("CANCELED",)]
