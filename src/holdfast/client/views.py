"""Stack, replay and export of the runs in the store."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from holdfast.client.instances import Instances
from holdfast.client.replaying import Replayer
from holdfast.client.run_file import StoredRun, dumps, to_document
from holdfast.core.views import FactPosition, ReplayView, Stack
from holdfast.store.protocol import EventsQuery, LogsQuery, RunRecord, SnapshotQuery, Store


class Views:
    """Reads runs from the store and shows them on the code of this process."""

    def __init__(self, store: Store, instances: Instances, replayer: Replayer) -> None:
        self._store = store
        self._instances = instances
        self._replayer = replayer

    async def stack(self, workflow: str, id: str, *, all: bool = False) -> Stack:
        return self._replayer.stack(await self._load(await self._instances.find(workflow, id), logs=False), all=all)

    async def replay(
        self, workflow: str, id: str, until: int | None = None, *, run_number: int | None = None, all: bool = False
    ) -> ReplayView:
        row = await self._instances.find(workflow, id, run_number)
        return self._replayer.view(await self._load(row), until, all=all)

    async def fact_positions(self, workflow: str, id: str, *, run_number: int | None = None) -> list[FactPosition]:
        """The lines of code that the first facts of a run resumed."""
        row = await self._instances.find(workflow, id, run_number)
        return self._replayer.fact_positions(await self._load(row, logs=False))

    async def document(self, workflow: str, id: str, *, run_number: int | None = None) -> dict[str, Any]:
        """The run as a JSON document that replays on another machine."""
        row = await self._instances.find(workflow, id, run_number)
        events = await self._store.read(EventsQuery(row.run))
        return to_document(await self._load(row), [*events])

    async def export(self, workflow: str, id: str, path: str | Path, *, run_number: int | None = None) -> None:
        document: Mapping[str, Any] = await self.document(workflow, id, run_number=run_number)
        _write(Path(path), dumps(document))

    async def _load(self, row: RunRecord, *, logs: bool = True) -> StoredRun:
        """The row is read before the facts, so a run that ends meanwhile is shown as open, with all its facts."""
        snapshot = await self._store.read(SnapshotQuery(row.run))
        lines = [*await self._store.read(LogsQuery(row.run))] if logs else []
        return StoredRun(row, snapshot, lines)


def _write(path: Path, data: bytes) -> None:
    path.write_bytes(data)
