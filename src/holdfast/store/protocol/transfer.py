"""The rows of a database in a form that all stores share, to carry them from one database to another.

A ``TransferTable`` lists the columns that both stores have. A neutral row is a tuple of Python values in this order:
free text is ``str``, values are ``bytes``, flags are ``bool``. Columns that a store computes, or that hold only while
a worker runs (owners, leases, receipts), are not carried.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple, Protocol

Row = tuple[Any, ...]
_MODULUS = 2**256


class Kind(Enum):
    INT = 1
    TEXT = 2
    FREE = 3
    """Text that may contain NUL and lone surrogates."""
    BYTES = 4
    FLAG = 5
    TERM = 6
    """The value of a search term: a text or a number."""


class TransferColumn(NamedTuple):
    name: str
    kind: Kind


class TransferTable(NamedTuple):
    name: str
    """Without the prefix ``holdfast_``."""
    key: tuple[str, ...]
    """The columns by which the rows are read in pages."""
    columns: tuple[TransferColumn, ...]

    @property
    def names(self) -> list[str]:
        return [column.name for column in self.columns]

    def key_of(self, row: Row) -> list[Any]:
        values = dict(zip(self.names, row, strict=True))
        return [values[name] for name in self.key]


def _table(name: str, key: str, **columns: str) -> TransferTable:
    """``columns``: the names of the columns of each kind. The columns of the key come first."""
    kinds = {column: Kind[kind.upper()] for kind, names in columns.items() for column in names.split()}
    ordered = [*key.split(), *(column for column in kinds if column not in key.split())]
    return TransferTable(name, tuple(key.split()), tuple(TransferColumn(column, kinds[column]) for column in ordered))


TABLES = (
    _table(
        "run",
        "id",
        int="id instance number priority created_at updated_at started_at completed_at seed parent_run attempt line "
        "forked_from",
        text="workflow instance_id kind status queue parent parent_close version",
        free="note",
        bytes="params output error options memo search origin",
        flag="current pinned retried",
    ),
    _table(
        "task",
        "run unit",
        int="run unit bucket kind priority run_at epoch losses signal expires_at missing held_at "
        "resume_at items",
        text="workflow queue topics expiry pin single gather",
        free="key",
        flag="lost has_tokens",
    ),
    _table(
        "fact",
        "run state key n",
        int="run state n at started_at seq attempts max_attempts timeout_ms wake_at event",
        text="kind event_type",
        free="key name",
        bytes="value",
        flag="ok",
    ),
    _table(
        "event",
        "run n",
        int="run n created_at delivered_at line",
        text="type trace",
        free="sender consumed_by dedup ask",
        bytes="payload reply",
        flag="reply_ok",
    ),
    _table("log", "run n", int="run n at attempt", text="level category", free="message step_key", bytes="data",
           flag="is_replay"),
    _table("stream", "run name", int="run items size code_items markers tail", text="name"),
    _table("chunk", "run name first", int="run first count unit epoch attempt start", text="name", free="step_key",
           bytes="data", flag="closes"),
    _table("watch", "target watcher", int="target watcher kind"),
    _table("term", "instance", int="instance", text="workflow", free="key", term="value"),
    _table(
        "outbox",
        "run n",
        int="run n created_at attempts run_at delivered_at parked_at",
        text="trace",
        free="step type error",
        bytes="payload",
    ),
    _table("audit", "n", int="n at", text="action target outcome", free="actor reason"),
    _table(
        "schedule",
        "name",
        int="created_at updated_at revision next_tick due_at seq result_n",
        text="name workflow declaration",
        free="note",
        bytes="content params result",
        flag="paused",
    ),
    _table("tick", "schedule n", int="n tick at", text="schedule cause overlap state workflow instance_id"),
    _table("limit", "name", int="concurrency rate_count rate_ms burst", text="name weights declared", flag="fair"),
    # The theoretical arrival times of rates. The use of a limit is counted from the permits.
    _table("limit_use", "name key", text="name key", int="tat"),
    # Permits that runs hold until their end. All others belong to tasks that a worker owns, or wait. ``limits``: JSON.
    _table("permit", "run unit step attempt", int="run unit attempt priority requested_at", free="step", text="limits"),
    _table("queue", "name", text="name", flag="paused declared"),
    _table("blob", "id", text="id", int="refs at", flag="used"),
    _table("blob_chunk", "id n", text="id", int="n", bytes="data"),
    _table("bulk", "id", text="id", int="created_at position upto ended_at", bytes="content progress"),
)  # fmt: skip
BY_NAME = {table.name: table for table in TABLES}


def encode_row(table: TransferTable, row: Row) -> str:
    """A line of JSON. Columns without a value are left out."""
    record = {"table": table.name}
    record |= {name: _encoded(value) for name, value in zip(table.names, row, strict=True) if value is not None}
    return json.dumps(record, sort_keys=True)


def decode_row(record: Mapping[str, Any]) -> tuple[TransferTable, Row]:
    table = BY_NAME[record["table"]]
    return table, tuple(_decoded(record.get(column.name), column.kind) for column in table.columns)


def _encoded(value: Any) -> Any:
    if not isinstance(value, bytes):
        return value
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(value).decode()}


def _decoded(value: Any, kind: Kind) -> Any:
    if kind is not Kind.BYTES or value is None:
        return value
    return base64.b64decode(value["base64"]) if isinstance(value, dict) else value.encode()


@dataclass(slots=True)
class Checksum:
    """The number of rows of each table, and a digest of them that does not depend on their order."""

    counts: dict[str, int] = field(default_factory=lambda: {table.name: 0 for table in TABLES})
    digests: dict[str, int] = field(default_factory=lambda: {table.name: 0 for table in TABLES})

    def add(self, table: TransferTable, line: str) -> None:
        self.counts[table.name] += 1
        digest = int.from_bytes(hashlib.sha256(line.encode()).digest())
        self.digests[table.name] = (self.digests[table.name] + digest) % _MODULUS

    def differences(self, other: Checksum) -> list[str]:
        """The tables in which the two databases differ, with the counts."""
        return [
            f"{name}: {count} and {other.counts[name]} rows"
            + ("" if count != other.counts[name] else " with different contents")
            for name, count in self.counts.items()
            if count != other.counts[name] or self.digests[name] != other.digests[name]
        ]

    def to_json(self) -> dict[str, Any]:
        return {"counts": self.counts, "digests": {name: f"{digest:064x}" for name, digest in self.digests.items()}}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Checksum:
        return cls(dict(value["counts"]), {name: int(text, 16) for name, text in value["digests"].items()})


class Fence(NamedTuple):
    """The row that closes a database to everything but a transfer."""

    token: str
    """Identifies the transfer, so that it can be resumed after an interruption."""
    reason: str
    position: str | None
    """In the target of a transfer: JSON of the last position that was written."""


class TransferDatabase(Protocol):
    """A database as the source or the target of a transfer. Used by one caller at a time."""

    async def open(self) -> None: ...

    async def close(self) -> None: ...

    async def fence(self) -> Fence | None: ...

    async def close_source(self, fence: Fence) -> str | None:
        """Close the database to all writers. Returns the reason if that is not possible: it is in use."""
        ...

    async def close_target(self, fence: Fence) -> str | None:
        """Close an empty database to all others. Returns the reason if that is not possible: it has runs."""
        ...

    async def set_reason(self, reason: str) -> None:
        """Change the reason of the fence."""
        ...

    async def release(self) -> None:
        """Remove the fence."""
        ...

    async def last_id(self) -> int:
        """The highest id that a run has had."""
        ...

    async def read(self, table: TransferTable, after: Sequence[Any] | None, limit: int) -> list[Row]:
        """A page of neutral rows with keys after ``after``, in the order of their keys.

        A page ends with the last row of a key, so it may be longer than ``limit``.
        """
        ...

    async def write(self, table: TransferTable, rows: Sequence[Row], position: str) -> None:
        """Insert rows and set the position, in one transaction."""
        ...

    async def replace(self, table: TransferTable, changes: Sequence[tuple[str, Sequence[Any], Any, Any]]) -> int:
        """Replace values in one transaction, each only if its row has not changed; returns their number.

        A change is the column, the key of the row, the value that was read, and the new value.
        """
        ...

    async def finish(self, last_id: int) -> None:
        """Compute the columns that were not carried; later runs get ids above ``last_id``."""
        ...
