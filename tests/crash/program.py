"""The programs of the test processes: workers, clients, and a program that locks the database."""

from __future__ import annotations

import asyncio
import logging
import signal
import time
from importlib import import_module
from pathlib import Path
from typing import Any

import apsw

from holdfast import Holdfast, InstanceTerminalError, StoreFullError

from . import killer
from .killer import Counter
from .workload import Planned, SideFile, make_app, plan


def work(
    *,
    database: str,
    side: str,
    app: str = "workload:make_app",
    kill_at: str | None = None,
    kill_with: int = signal.SIGKILL,
    stop_before_results: bool = False,
    pages: int | None = None,
    copies: int = 0,
    count: str | None = None,
    **worker: Any,
) -> int:
    """A worker. It starts the runs of the plan with ``by_worker``, and works until its kill point or a signal."""
    logging.basicConfig(level=logging.WARNING)
    counter = Counter(kill_at, kill_with)
    counter.arm()
    if stop_before_results:
        killer.stop_before_results(SideFile(Path(side)))
    if pages is not None:
        killer.limit_pages(pages)
    module, _, make = app.partition(":")
    made = getattr(import_module(f"{__package__}.{module}"), make)(database, side, **worker)
    asyncio.run(_work(made, SideFile(Path(side)), [p for p in plan(copies) if p.by_worker]))
    if count is not None:
        Path(count).write_text(f"{counter.calls} {counter.transactions}")
    return 0


async def _work(app: Holdfast, side: SideFile, own: list[Planned]) -> None:
    stop = stop_on_signals()
    async with app:
        side.write({"open": True})
        starting = asyncio.create_task(_start_own(app, side, own))
        await stop.wait()
        starting.cancel()
        await asyncio.wait([starting])


async def _start_own(app: Holdfast, side: SideFile, own: list[Planned]) -> None:
    for planned in own:
        while True:
            try:
                run = await app.start(planned.workflow, planned.n, id=planned.id)
                side.write({"acknowledged": "start", "id": planned.id})
                await send_events(run, planned, side)
                break
            except StoreFullError:
                await asyncio.sleep(0.1)


def hold_lock(*, database: str, side: str, seconds: float) -> int:
    """A program without Holdfast that holds the write lock of the file for ``seconds``."""
    connection = apsw.Connection(database)
    connection.set_busy_timeout(20_000)
    connection.execute("BEGIN IMMEDIATE")
    SideFile(Path(side)).write({"locked": True})
    time.sleep(seconds)
    connection.execute("INSERT INTO ledger VALUES ('other', 'here'); DELETE FROM ledger WHERE run = 'other'; COMMIT")
    return 0


def start_and_send(*, database: str, side: str, copies: int, part: int, parts: int) -> int:
    """A client: starts every ``parts``-th run of the plan and sends its events."""
    app = make_app(database, side)
    mine = [p for p in plan(copies)[part::parts] if p.started_by is None]
    asyncio.run(_start_and_send(app, SideFile(Path(side)), mine))
    return 0


async def _start_and_send(app: Holdfast, side: SideFile, mine: list[Planned]) -> None:
    async def one(planned: Planned) -> None:
        run = await app.start(planned.workflow, planned.n, id=planned.id)
        side.write({"acknowledged": "start", "id": planned.id})
        await send_events(run, planned, side)
        assert await run.result(timeout=60) == planned.expected

    async with app.connect(), asyncio.TaskGroup() as group:
        for planned in mine:
            group.create_task(one(planned))
            await asyncio.sleep(0.002)


async def send_events(run: Any, planned: Planned, side: SideFile) -> None:
    """Send each event of a run twice with the same id: it must be stored once."""
    for number, (topic, payload) in enumerate(planned.events):
        for _ in range(2):
            try:
                await run.send_event(topic, payload, id=f"event-{number}")
            except InstanceTerminalError:
                return  # the run has received all its events and ended
            side.write({"acknowledged": "event", "id": planned.id, "event": f"event-{number}"})


def stop_on_signals() -> asyncio.Event:
    """Set the returned event at the first SIGTERM or SIGINT; the second signal has its default action."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()

    def asked(number: int) -> None:
        stop.set()
        loop.remove_signal_handler(number)
        signal.signal(number, signal.SIG_DFL)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, asked, number)
    return stop
