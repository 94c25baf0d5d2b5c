"""The part of PostgreSQL's wire protocol that is needed to recognise a commit before it is forwarded.

A client sends *units*: one simple query, or a series of extended messages up to Sync. ``ConnectionState`` follows one
connection and tells for each unit which SQL it would commit.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field

# Codes of the untyped startup packets.
SSL_REQUEST = 80877103
GSS_REQUEST = 80877104
CANCEL_REQUEST = 80877102

# Extended messages have no lasting effect before the next Sync (or Flush), so they are buffered until then.
_BUFFERED = frozenset(b"PBEDC")
_ENDS_TRANSACTION = re.compile(r"\s*(commit|end)\b", re.IGNORECASE)
_WRITES = re.compile(
    r"\b(insert\s+into|update|delete\s+from|merge\s+into"
    r"|holdfast_(create|send|claim|commit|apply_following|heartbeat|reap|release|signals|pause|resume|cancel|terminate"
    r"|restart|advance|claim_units|outbox_[a-z]+|lock_for_operations)"
    r"(_one)?\s*\()",
    re.IGNORECASE,
)
_BEGINS_TRANSACTION = re.compile(r"\s*(begin|start\s+transaction)\b", re.IGNORECASE)
_IDLE = b"I"


class Splitter:
    """Splits a stream of bytes into typed messages."""

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
    """Messages that a client sends up to a Sync, or one simple query."""

    data: bytes
    statements: tuple[str, ...] = ()
    """The SQL that the unit executes."""


@dataclass(slots=True)
class ConnectionState:
    """The state of one connection: its prepared statements and its transaction."""

    _prepared: dict[bytes, str] = field(default_factory=dict)
    _buffered: list[bytes] = field(default_factory=list)
    _executed: list[str] = field(default_factory=list)
    _bound: str = ""
    _status: bytes = _IDLE
    _transaction: list[str] = field(default_factory=list)

    # --- messages of the client

    def client(self, message: bytes) -> Unit | None:
        """The unit that this message completes; None if it completes none."""
        self._buffered.append(message)
        kind = message[0]
        if kind in _BUFFERED:
            self._track(kind, message)
            return None
        if kind == ord("Q"):
            self._executed.append(_text(message[5:]))
        unit = Unit(b"".join(self._buffered), tuple(self._executed))
        self._buffered.clear()
        self._executed.clear()
        return unit

    def _track(self, kind: int, message: bytes) -> None:
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

    # --- messages of the server

    def is_ready(self, message: bytes) -> bool:
        """True if this message is ReadyForQuery: the server has processed the unit."""
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
