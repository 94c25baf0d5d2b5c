"""``holdfast export``, ``import`` and ``move``: carry all runs of a database to a file or to another database.

The source is fenced first: no process writes to it any more, and none can open it. A transfer that was interrupted is
resumed by the same command: the target has the position of the last batch in the transaction of that batch, and a file
has its last complete line. At the end the rows of both sides are counted and compared by a digest.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import IO, Any, NamedTuple

from holdfast.cli.errors import TransferError
from holdfast.core.model import Status
from holdfast.errors import StoreReadOnlyError
from holdfast.ports import Runtime
from holdfast.store.protocol import PruneRuns
from holdfast.store.protocol.transfer import (
    TABLES,
    Checksum,
    Fence,
    Row,
    TransferDatabase,
    TransferTable,
    decode_row,
    encode_row,
)
from holdfast.store_url import check_url, make_store, make_transfer, shown_url

Say = Callable[[str], None]
_BATCH = 1000
_FORMAT = 1
_NEVER_PARK = 2**31 - 1
MOVED = "it was moved to"


class Address(NamedTuple):
    url: str
    schema: str | None

    @property
    def shown(self) -> str:
        return shown_url(self.url)


class _Part(NamedTuple):
    """A page of rows of one table, and the position after it."""

    table: TransferTable
    rows: list[Row]
    position: str


# --- commands


def export_file(source: Address, file: Path, say: Say, *, abort: bool = False) -> None:
    asyncio.run(open_again(source, say) if abort else export_runs(source, file, say))


def import_file(file: Path, target: Address, say: Say) -> None:
    asyncio.run(import_runs(file, target, say))


def move(source: Address, target: Address, say: Say, *, abort: bool = False) -> None:
    asyncio.run(open_again(source, say) if abort else move_runs(source, target, say))


async def move_runs(source_address: Address, target_address: Address, say: Say) -> None:
    if source_address == target_address:
        raise TransferError("the source and the target are the same database")
    runtime = Runtime()
    await _prepare_target(target_address, runtime)
    async with _open(source_address, runtime) as source, _open(target_address, runtime) as target:
        reason = f"it is being moved to {target_address.shown}; repeat `holdfast move` to resume, or use --abort"
        token = await _close_source(source, source_address, runtime, reason)
        position = await _close_target(target, target_address, token)
        async for part in _pages(source, position):
            await target.write(part.table, part.rows, part.position)
        await target.finish(await source.last_id())
        checksum = await _checksum(source)
        _compare(checksum, await _checksum(target), source_address.shown, target_address.shown)
        await source.set_reason(f"{MOVED} {target_address.shown}")
        await target.release()
    _report(checksum, f"moved from {source_address.shown} to {target_address.shown}", say)


async def export_runs(source_address: Address, file: Path, say: Say) -> None:
    runtime = Runtime()
    async with _open(source_address, runtime) as source:
        resumed = _Resumed.read(file) if _has_content(file) else None
        if resumed is not None and resumed.complete:
            raise TransferError(f"{file} exists and is complete; name another file")
        fence = await source.fence()
        if resumed is not None and (fence is None or fence.token != resumed.token):
            raise TransferError(f"{file} exists and does not belong to an interrupted export of this database")
        reason = f"it is being exported to {file}; repeat `holdfast export` to resume, or use --abort"
        token = await _close_source(source, source_address, runtime, reason)
        checksum = Checksum() if resumed is None else resumed.checksum
        with file.open("ab") as out:
            if resumed is None:
                header = {"holdfast-export": _FORMAT, "token": token, "lastId": await source.last_id()}
                _write_line(out, json.dumps(header))
                out.flush()
            else:
                out.truncate(resumed.size)
            async for part in _pages(source, None if resumed is None else resumed.position):
                for row in part.rows:
                    line = encode_row(part.table, row)
                    checksum.add(part.table, line)
                    _write_line(out, line)
                out.flush()
            _write_line(out, json.dumps({"end": checksum.to_json()}))
        await source.release()
    _report(checksum, f"exported from {source_address.shown} to {file}", say)


async def import_runs(file: Path, target_address: Address, say: Say) -> None:
    runtime = Runtime()
    content = _Resumed.read(file)
    if not content.complete:
        raise TransferError(f"{file} is not complete; repeat the export")
    await _prepare_target(target_address, runtime)
    async with _open(target_address, runtime) as target:
        position = await _close_target(target, target_address, content.token)
        for part in _lines(file, 0 if position is None else int(position)):
            await target.write(part.table, part.rows, part.position)
        await target.finish(content.last_id)
        _compare(content.checksum, await _checksum(target), str(file), target_address.shown)
        await target.release()
    _report(content.checksum, f"imported from {file} to {target_address.shown}", say)


async def open_again(source_address: Address, say: Say) -> None:
    async with _open(source_address, Runtime()) as source:
        fence = await source.fence()
        if fence is None:
            raise TransferError(f"{source_address.shown} is not fenced")
        if fence.reason.startswith(MOVED):
            raise TransferError(f"{source_address.shown} cannot be used again: {fence.reason}")
        await source.release()
    say(f"{source_address.shown} can be used again; the incomplete target should be deleted")


# --- source and target


@asynccontextmanager
async def _open(address: Address, runtime: Runtime) -> AsyncIterator[TransferDatabase]:
    check_url(address.url, address.schema)
    database = make_transfer(address.url, address.schema, runtime)
    await database.open()
    try:
        yield database
    finally:
        await database.close()


async def _close_source(source: TransferDatabase, address: Address, runtime: Runtime, reason: str) -> str:
    """Fence the source; returns the token of the transfer. A fence of an interrupted transfer is used again."""
    fence = await source.fence()
    if fence is not None:
        if fence.reason.startswith(MOVED):
            raise TransferError(f"{address.shown} cannot be the source: {fence.reason}")
        await source.set_reason(reason)
        return fence.token
    await _settle(address, runtime)
    token = runtime.random.uuid4().hex
    refusal = await source.close_source(Fence(token, reason, None))
    if refusal is not None:
        raise TransferError(f"{address.shown} is in use: {refusal}. Stop all workers first")
    return token


async def _settle(address: Address, runtime: Runtime) -> None:
    """Release the tasks of workers that died, and finish the deletion of large runs."""
    store = make_store(address.url, address.schema, runtime)
    await store.open(migrate=False)
    try:
        await store.reap(_NEVER_PARK)
        while (await store.maintain(PruneRuns("", Status.COMPLETE, 0, limit=1))).next is not None:
            pass
    finally:
        await store.close()


async def _prepare_target(address: Address, runtime: Runtime) -> None:
    """Create or migrate the target. A target that is fenced has been prepared before."""
    check_url(address.url, address.schema)
    store = make_store(address.url, address.schema, runtime)
    with suppress(StoreReadOnlyError):
        await store.open()
    await store.close()


async def _close_target(target: TransferDatabase, address: Address, token: str) -> str | None:
    """Fence the target; returns the position of an interrupted transfer."""
    fence = await target.fence()
    if fence is not None and fence.token == token:
        return fence.position
    if fence is not None:
        raise TransferError(f"{address.shown} is the target of another transfer: {fence.reason}")
    reason = "a transfer into it is not complete; repeat the command to resume it"
    refusal = await target.close_target(Fence(token, reason, None))
    if refusal is not None:
        raise TransferError(f"{address.shown} cannot be the target: {refusal}. Name an empty database")
    return None


async def _pages(source: TransferDatabase, position: str | None, batch: int | None = None) -> AsyncIterator[_Part]:
    """All rows of the source after a position."""
    limit = _BATCH if batch is None else batch
    name, after = (TABLES[0].name, None) if position is None else json.loads(position)
    first = next(n for n, table in enumerate(TABLES) if table.name == name)
    for table in TABLES[first:]:
        while rows := await source.read(table, after, limit):
            after = table.key_of(rows[-1])
            yield _Part(table, rows, json.dumps([table.name, after]))
        after = None


async def _checksum(database: TransferDatabase) -> Checksum:
    checksum = Checksum()
    async for part in _pages(database, None):
        for row in part.rows:
            checksum.add(part.table, encode_row(part.table, row))
    return checksum


def _compare(source: Checksum, target: Checksum, source_name: str, target_name: str) -> None:
    differences = source.differences(target)
    if differences:
        raise TransferError(
            f"{target_name} differs from {source_name} after the transfer ({'; '.join(differences)}). It stays fenced"
        )


def _report(checksum: Checksum, what: str, say: Say) -> None:
    rows = sum(checksum.counts.values())
    say(f"{checksum.counts['run']} runs ({rows} rows) were {what}; counts and digests are equal")


# --- files


class _Resumed(NamedTuple):
    """The content of a file, up to its last complete line."""

    token: str
    last_id: int
    checksum: Checksum
    position: str | None
    size: int
    complete: bool

    @classmethod
    def read(cls, file: Path) -> _Resumed:
        checksum, position, size, complete = Checksum(), None, 0, False
        with file.open("rb") as lines:
            first = lines.readline()
            header = _header(first, file)
            size = len(first)
            for line in lines:
                if not line.endswith(b"\n"):
                    break
                record = json.loads(line)
                if "end" in record:
                    complete = True
                    if checksum.differences(Checksum.from_json(record["end"])):
                        raise TransferError(f"{file} is damaged: its rows do not have the digest at its end")
                    break
                table, row = decode_row(record)
                checksum.add(table, line.decode().rstrip("\n"))
                position = json.dumps([table.name, table.key_of(row)])
                size += len(line)
        return cls(header["token"], header["lastId"], checksum, position, size, complete)


def _has_content(file: Path) -> bool:
    """False also for an empty file: an export was interrupted before its first line was written."""
    return file.exists() and file.stat().st_size > 0


def _header(line: bytes, file: Path) -> dict[str, Any]:
    try:
        header = json.loads(line)
    except ValueError:
        header = None
    if not isinstance(header, dict) or header.get("holdfast-export") != _FORMAT:
        raise TransferError(f"{file} is not an export of this release of Holdfast")
    return header


def _lines(file: Path, skip: int) -> Iterator[_Part]:
    """The rows of a file after the first ``skip`` of them; a position is the number of rows before it."""
    with file.open("rb") as lines:
        lines.readline()
        rows: list[Row] = []
        current: TransferTable | None = None
        number = 0
        for line in lines:
            record = json.loads(line)
            table, row = (None, ()) if "end" in record else decode_row(record)
            if current is not None and rows and (table is not current or len(rows) >= _BATCH):
                yield _Part(current, rows, str(number))
                rows = []
            if table is None:
                return
            current, number = table, number + 1
            if number > skip:
                rows.append(row)


def _write_line(out: IO[bytes], line: str) -> None:
    out.write(line.encode() + b"\n")
