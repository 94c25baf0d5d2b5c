"""``HoldfastSaver``: checkpoints of LangGraph in the app's database."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Iterator, Sequence
from typing import Any, TypeVar

from holdfast.app import Holdfast
from holdfast.ext.langgraph.database import Row, Statement, database
from holdfast.extras import extra

with extra("langgraph", "holdfast.ext.langgraph"):
    from langchain_core.runnables import RunnableConfig
    from langgraph.checkpoint.base import (
        WRITES_IDX_MAP,
        BaseCheckpointSaver,
        ChannelVersions,
        Checkpoint,
        CheckpointMetadata,
        CheckpointTuple,
        PendingWrite,
        get_checkpoint_id,
        get_checkpoint_metadata,
    )
    from langgraph.checkpoint.serde.base import SerializerProtocol

T = TypeVar("T")

_COLUMNS = "thread_id, namespace, checkpoint_id, parent_id, checkpoint_type, checkpoint, metadata_type, metadata"
_PUT = """INSERT INTO {checkpoint} (thread_id, namespace, checkpoint_id, parent_id, run_id, checkpoint_type, checkpoint,
        metadata_type, metadata)
    VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)
    ON CONFLICT (thread_id, namespace, checkpoint_id) DO UPDATE SET parent_id = excluded.parent_id,
        run_id = excluded.run_id, checkpoint_type = excluded.checkpoint_type, checkpoint = excluded.checkpoint,
        metadata_type = excluded.metadata_type, metadata = excluded.metadata"""
_PUT_WRITE = """INSERT INTO {write} (thread_id, namespace, checkpoint_id, task_path, task_id, idx, channel, value_type,
        value)
    VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)
    ON CONFLICT (thread_id, namespace, checkpoint_id, task_id, idx) DO """
_KEEP_WRITE = _PUT_WRITE + "NOTHING"
_REPLACE_WRITE = _PUT_WRITE + (
    "UPDATE SET task_path = excluded.task_path, channel = excluded.channel, value_type = excluded.value_type, "
    "value = excluded.value"
)
_WRITES = """SELECT task_id, channel, value_type, value FROM {write}
    WHERE thread_id = $1 AND namespace = $2 AND checkpoint_id = $3 ORDER BY task_path, task_id, idx"""
_DELETE_THREAD = ("DELETE FROM {write} WHERE thread_id = $1", "DELETE FROM {checkpoint} WHERE thread_id = $1")
_DELETE_RUN = (
    """DELETE FROM {write} WHERE EXISTS (SELECT 1 FROM {checkpoint} c WHERE c.run_id = $1
        AND c.thread_id = {write}.thread_id AND c.namespace = {write}.namespace
        AND c.checkpoint_id = {write}.checkpoint_id)""",
    "DELETE FROM {checkpoint} WHERE run_id = $1",
)
_DELETE_ONE = (
    "DELETE FROM {write} WHERE thread_id = $1 AND namespace = $2 AND checkpoint_id = $3",
    "DELETE FROM {checkpoint} WHERE thread_id = $1 AND namespace = $2 AND checkpoint_id = $3",
)
_COPY = (
    """INSERT INTO {checkpoint} SELECT CAST($1 AS TEXT), namespace, checkpoint_id, parent_id, run_id, checkpoint_type,
        checkpoint, metadata_type, metadata FROM {checkpoint} WHERE thread_id = $2 ON CONFLICT DO NOTHING""",
    """INSERT INTO {write} SELECT CAST($1 AS TEXT), namespace, checkpoint_id, task_path, task_id, idx, channel,
        value_type, value FROM {write} WHERE thread_id = $2 ON CONFLICT DO NOTHING""",
)


class HoldfastSaver(BaseCheckpointSaver[int]):
    """A checkpointer of LangGraph that stores checkpoints in the app's database, in two tables of its own.

    The asynchronous methods belong to the event loop that opened the saver. The others may be called in any other
    thread, so that ``graph.invoke`` works in a thread.

    Example::

        async with HoldfastSaver(app) as saver:
            graph = builder.compile(checkpointer=saver)
            await graph.ainvoke({"question": "why?"}, {"configurable": {"thread_id": "thread-1"}})
    """

    def __init__(self, app: Holdfast, *, serde: SerializerProtocol | None = None) -> None:
        super().__init__(serde=serde)
        self._database = database(app.url, app.schema)
        self._loop: asyncio.AbstractEventLoop | None = None

    async def __aenter__(self) -> HoldfastSaver:
        await self._database.open()
        self._loop = asyncio.get_running_loop()
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self._database.close()

    # --- reading

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        thread_id, namespace = _thread(config), _namespace(config)
        conditions, args = "thread_id = $1 AND namespace = $2", [thread_id, namespace]
        if (checkpoint_id := get_checkpoint_id(config)) is not None:
            conditions += " AND checkpoint_id = $3"
            args.append(checkpoint_id)
        rows = await self._rows(conditions, args, limit=1)
        return await self._tuple(rows[0]) if rows else None

    async def alist(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
        conditions, args = _selection(config, before)
        left = limit
        for row in await self._rows(conditions, args, limit=None if filter else limit):
            if left is not None and left <= 0:
                return
            found = await self._tuple(row)
            if all(found.metadata.get(key) == value for key, value in (filter or {}).items()):
                left = None if left is None else left - 1
                yield found

    async def _rows(self, conditions: str, args: Sequence[Any], *, limit: int | None) -> list[Row]:
        sql = f"SELECT {_COLUMNS} FROM {{checkpoint}} WHERE {conditions} ORDER BY checkpoint_id DESC"  # noqa: S608
        if limit is not None:
            sql += f" LIMIT {int(limit)}"
        return await self._database.fetch(sql, *args)

    async def _tuple(self, row: Row) -> CheckpointTuple:
        thread_id, namespace, checkpoint_id, parent_id, *stored = row
        return CheckpointTuple(
            _config(thread_id, namespace, checkpoint_id),
            self.serde.loads_typed((stored[0], stored[1])),
            self.serde.loads_typed((stored[2], stored[3])),
            None if parent_id is None else _config(thread_id, namespace, parent_id),
            await self._writes(thread_id, namespace, checkpoint_id),
        )

    async def _writes(self, thread_id: str, namespace: str, checkpoint_id: str) -> list[PendingWrite]:
        rows = await self._database.fetch(_WRITES, thread_id, namespace, checkpoint_id)
        return [(task_id, channel, self.serde.loads_typed((kind, value))) for task_id, channel, kind, value in rows]

    # --- writing

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        thread_id, namespace = _thread(config), _namespace(config)
        complete = get_checkpoint_metadata(config, metadata)
        args = (
            *(thread_id, namespace, checkpoint["id"], get_checkpoint_id(config), complete.get("run_id")),
            *self.serde.dumps_typed(checkpoint),
            *self.serde.dumps_typed(complete),
        )
        await self._database.execute((_PUT, args))
        return _config(thread_id, namespace, checkpoint["id"])

    async def aput_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        place = (_thread(config), _namespace(config), get_checkpoint_id(config), task_path, task_id)
        await self._database.execute(
            *[self._write(place, n, channel, value) for n, (channel, value) in enumerate(writes)]
        )

    def _write(self, place: tuple[Any, ...], number: int, channel: str, value: Any) -> Statement:
        """Ordinary writes of a task are kept as they were written first; its error or interrupt is replaced."""
        idx = WRITES_IDX_MAP.get(channel, number)
        sql = _KEEP_WRITE if idx >= 0 else _REPLACE_WRITE
        return sql, (*place, idx, channel, *self.serde.dumps_typed(value))

    # --- deleting and copying

    async def adelete_thread(self, thread_id: str) -> None:
        await self._database.execute(*[(sql, [thread_id]) for sql in _DELETE_THREAD])

    async def adelete_for_runs(self, run_ids: Sequence[str]) -> None:
        await self._database.execute(*[(sql, [run_id]) for run_id in run_ids for sql in _DELETE_RUN])

    async def acopy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        await self._database.execute(*[(sql, [target_thread_id, source_thread_id]) for sql in _COPY])

    async def aprune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        if strategy not in ("keep_latest", "delete"):
            raise ValueError(f"strategy must be 'keep_latest' or 'delete', not {strategy!r}")
        for thread_id in thread_ids:
            if strategy == "delete":
                await self.adelete_thread(thread_id)
            else:
                await self._keep_latest(thread_id)

    async def _keep_latest(self, thread_id: str) -> None:
        rows = await self._database.fetch(
            "SELECT namespace, checkpoint_id FROM {checkpoint} WHERE thread_id = $1", thread_id
        )
        kept = {place for namespace in {row[0] for row in rows} for place in await _needed(self, thread_id, namespace)}
        surplus = [(row[0], row[1]) for row in rows if (row[0], row[1]) not in kept]
        await self._database.execute(*[(sql, [thread_id, *place]) for place in surplus for sql in _DELETE_ONE])

    # --- the same methods for other threads

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        return self._wait(self.aget_tuple(config))

    def list(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> Iterator[CheckpointTuple]:
        async def collected() -> tuple[CheckpointTuple, ...]:
            return tuple([found async for found in self.alist(config, filter=filter, before=before, limit=limit)])

        yield from self._wait(collected())

    def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        return self._wait(self.aput(config, checkpoint, metadata, new_versions))

    def put_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        self._wait(self.aput_writes(config, writes, task_id, task_path))

    def delete_thread(self, thread_id: str) -> None:
        self._wait(self.adelete_thread(thread_id))

    def delete_for_runs(self, run_ids: Sequence[str]) -> None:
        self._wait(self.adelete_for_runs(run_ids))

    def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        self._wait(self.acopy_thread(source_thread_id, target_thread_id))

    def prune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        self._wait(self.aprune(thread_ids, strategy=strategy))

    def _wait(self, call: Coroutine[Any, Any, T]) -> T:
        """The result of a call that the loop of the saver executes."""
        loop = self._loop
        if loop is None or asyncio._get_running_loop() is loop:  # noqa: SLF001  (None outside a loop, no exception)
            call.close()
            raise RuntimeError("call this method in a thread while the saver is open; on its event loop use ainvoke")
        return asyncio.run_coroutine_threadsafe(call, loop).result()


def _thread(config: RunnableConfig) -> str:
    return str(configurable(config)["thread_id"])


def _namespace(config: RunnableConfig) -> str:
    return str(configurable(config).get("checkpoint_ns", ""))


def _config(thread_id: str, namespace: str, checkpoint_id: str) -> RunnableConfig:
    return {"configurable": {"thread_id": thread_id, "checkpoint_ns": namespace, "checkpoint_id": checkpoint_id}}


def _selection(config: RunnableConfig | None, before: RunnableConfig | None) -> tuple[str, list[Any]]:
    """The condition of a list, and its arguments."""
    wanted: dict[str, Any] = {}
    if config is not None:
        wanted["thread_id ="] = _thread(config)
        wanted["namespace ="] = configurable(config).get("checkpoint_ns")
        wanted["checkpoint_id ="] = get_checkpoint_id(config)
    if before is not None:
        wanted["checkpoint_id <"] = get_checkpoint_id(before)
    given = {condition: value for condition, value in wanted.items() if value is not None}
    terms = [f"{condition} ${number}" for number, condition in enumerate(given, 1)]
    return " AND ".join(terms) or "TRUE", [*given.values()]


def configurable(config: RunnableConfig) -> dict[str, Any]:
    """The values of a configuration that LangGraph and its callers set."""
    return config.get("configurable", {})


async def _needed(saver: HoldfastSaver, thread_id: str, namespace: str) -> list[tuple[str, str]]:
    """The latest checkpoint, and the ancestors from which LangGraph computes the values of its delta channels."""
    needed: list[tuple[str, str]] = []
    found = await saver.aget_tuple({"configurable": {"thread_id": thread_id, "checkpoint_ns": namespace}})
    missing = set(found.metadata.get("counters_since_delta_snapshot") or ()) if found else set()
    while found is not None:
        needed.append((namespace, found.checkpoint["id"]))
        missing -= set(found.checkpoint["channel_values"])
        parent = found.parent_config
        found = await saver.aget_tuple(parent) if missing and parent is not None else None
    return needed
