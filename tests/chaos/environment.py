"""The environment of a test that provokes one fault: a database, a proxy before it, and a checker."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from crash.workload import Planned
from holdfast import Holdfast

from .checker import Checker
from .processes import Child
from .program import work
from .proxy import Proxy
from .server import Server
from .waiting import until
from .workload import TABLES, make_app, plan

WORKER = {"lease": 2, "poll": 0.2, "drain": 5, "max_losses": 1_000_000}
BY_WORKFLOW = {planned.workflow: planned for planned in plan(1)}


class Environment:
    def __init__(self, server: Server, database: str, proxy: Proxy, folder: Path) -> None:
        self.server = server
        self.database = database
        self.proxy = proxy
        self.side = folder / "side.jsonl"
        self.checker = Checker(server, database, self.side, [])
        self._folder = folder
        self._children: list[Child] = []

    async def prepare(self) -> None:
        """Create the engine's schema, the user's tables and the guard triggers."""
        async with self.app(direct=True).connect():
            pass
        await self.checker.prepare(TABLES)

    async def close(self) -> None:
        for child in self._children:
            child.send(signal.SIGKILL)
        await self.checker.close()

    # --- apps and workers

    def url(
        self, *, direct: bool = False, connect_timeout: float = 10, user: str = "postgres", proxy: Proxy | None = None
    ) -> str:
        sockets = None if direct else (proxy or self.proxy).sockets
        return f"{self.server.url(self.database, sockets=sockets, user=user)}&connect_timeout={connect_timeout}"

    def app(
        self, *, direct: bool = False, connect_timeout: float = 10, user: str = "postgres", **worker: Any
    ) -> Holdfast:
        """An app that connects through the proxy, or with ``direct`` to the server."""
        return make_app(
            self.url(direct=direct, connect_timeout=connect_timeout, user=user), self.side, **{**WORKER, **worker}
        )

    def work(self, *, direct: bool = False, **spec: Any) -> Child:
        """Start a worker process."""
        url = self.url(direct=direct)
        child = Child(
            self._folder / f"worker-{len(self._children)}.log", work, url=url, side=str(self.side), **WORKER, **spec
        )
        self._children.append(child)
        return child

    # --- facts

    def expect(self, *planned: Planned) -> None:
        """Add runs that must be complete at the end."""
        self.checker.expect(planned)

    async def complete(self, seconds: float = 60) -> None:
        """Wait until all expected runs are complete."""
        try:
            await until(self.checker.complete, "not all runs are complete", seconds)
        except AssertionError as error:
            error.add_note(await self.checker.describe())
            error.add_note("\n".join(child.log_text()[-2000:] for child in self._children))
            raise

    async def complete_and_check(self) -> None:
        """Wait until all expected runs are complete, and check the outcome."""
        await self.complete()
        await self.checker.check_at_end()

    def executions(self) -> Counter[tuple[str, str]]:
        """Number of executions of each step."""
        return Counter((run, key) for run, key, _ in self.checker.ran())

    async def status(self, run: str) -> str | None:
        rows = await self.checker.rows("SELECT status FROM holdfast.holdfast_run WHERE instance_id = $1", run)
        return rows[0][0] if rows else None


def run_and_children(workflow: str) -> Iterable[Planned]:
    """A run of the plan and the runs that it starts."""
    first = BY_WORKFLOW[workflow]
    return [first, *(planned for planned in BY_WORKFLOW.values() if planned.started_by == first.id)]
