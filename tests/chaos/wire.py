"""As much of PostgreSQL's wire protocol as it takes to see a commit coming.

A client speaks in *units*: one simple query, or a series of extended messages up to Sync. ``Talk`` follows one
connection and says of each unit what it would do to the database.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field

# What a client says before it speaks in typed messages.
SSL_REQUEST = 80877103
GSS_REQUEST = 80877104
CANCEL_REQUEST = 80877102

# Extended messages do nothing that lasts before the Sync (or Flush) behind them: they are held back until it comes.
_HELD = frozenset(b"PBEDC")
_ENDS_TRANSACTION = re.compile(r"\s*(commit|end)\b", re.IGNORECASE)
_WRITES = re.compile(
    r"\b(insert\s+into|update|delete\s+from|merge\s+into"
    r"|holdfast_(create|send|claim|commit|follow|heartbeat|reap|release|signals|pause|resume|cancel|terminate|restart"
    r"|advance|claim_units|outbox_[a-z]+|reach)"
    r"(_one)?\s*\()",
    re.IGNORECASE,
)
_BEGINS_TRANSACTION = re.compile(r"\s*(begin|start\s+transaction)\b", re.IGNORECASE)
_IDLE = b"I"


class Splitter:
    """Cuts a stream of bytes into typed messages."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> Iterator[bytes]:
        data = self._rest + data if self._rest else data
        at, size = 0, len(data)
        while size - at >= 5:
            end = at + 1 + int.from_bytes(data[at + 1 : at + 5], "big")
            if end > size:
                break
            yield data[at:end]
            at = end
        self._rest = data[at:]


@dataclass(slots=True)
class Unit:
    """What a client sends in one go."""

    data: bytes
    statements: tuple[str, ...] = ()
    """The SQL that is executed by it."""


@dataclass(slots=True)
class Talk:
    """One connection: its prepared statements, and where its transaction stands."""

    _prepared: dict[bytes, str] = field(default_factory=dict)
    _held: list[bytes] = field(default_factory=list)
    _executed: list[str] = field(default_factory=list)
    _bound: str = ""
    _status: bytes = _IDLE
    _transaction: list[str] = field(default_factory=list)

    # --- what the client says

    def client(self, message: bytes) -> Unit | None:
        """The unit that this message completes, if it does."""
        self._held.append(message)
        kind = message[0]
        if kind in _HELD:
            self._note(kind, message)
            return None
        if kind == ord("Q"):
            self._executed.append(_text(message[5:]))
        unit = Unit(b"".join(self._held), tuple(self._executed))
        self._held.clear()
        self._executed.clear()
        return unit

    def _note(self, kind: int, message: bytes) -> None:
        if kind == ord("P"):
            name, _, rest = message[5:].partition(b"\0")
            self._prepared[name] = _text(rest)
        elif kind == ord("B"):
            _, _, rest = message[5:].partition(b"\0")
            self._bound = self._prepared.get(rest.partition(b"\0")[0], "")
        elif kind == ord("E"):
            self._executed.append(self._bound)

    def commits(self, unit: Unit) -> str | None:
        """The SQL that becomes durable with this unit; None if nothing does."""
        if self._status == _IDLE:
            self._transaction.clear()
        self._transaction.extend(unit.statements)
        if self._status == _IDLE:
            stays_open = any(_BEGINS_TRANSACTION.match(sql) for sql in unit.statements)
        else:
            stays_open = not any(_ENDS_TRANSACTION.match(sql) for sql in unit.statements)
        written = "\n".join(self._transaction)
        return None if stays_open or not _WRITES.search(written) else written

    # --- what the server says

    def ready(self, message: bytes) -> bool:
        """Whether the server has done all it was asked to."""
        if message[0] != ord("Z"):
            return False
        self._status = message[5:6]
        return True

    @property
    def idle(self) -> bool:
        return self._status == _IDLE


def startup_code(packet: bytes) -> int:
    code: int = struct.unpack_from("!i", packet, 4)[0]
    return code


def _text(data: bytes) -> str:
    return data.partition(b"\0")[0].decode(errors="replace")
