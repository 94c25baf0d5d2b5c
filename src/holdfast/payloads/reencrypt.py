"""Re-encryption: rewrite stored values that the first key of the app did not encrypt, while workers run.

Rows are read in pages. A value is replaced only if its row still has the value that was read; otherwise the row is left
for the next pass. Values that are current are skipped, so a command that was interrupted can be repeated.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from holdfast.core import codec, envelope
from holdfast.core.facts import FactState
from holdfast.core.scheduled_start import SEALED
from holdfast.errors import InvalidOptionError, PayloadError
from holdfast.payloads.codecs import CodecChain
from holdfast.payloads.places import ENGINE_EVENTS, SEALED_OPTIONS, is_sealed_list, members, sealed_items
from holdfast.payloads.sealing import Place
from holdfast.payloads.store import PayloadStore
from holdfast.store.protocol.reads import RunsById
from holdfast.store.protocol.streams import holds_blob, pack, unpack
from holdfast.store.protocol.transfer import BY_NAME, TransferDatabase, TransferTable

_PAGE = 500
_RESULTS = (FactState.RESULT, FactState.ITEM)
_COLUMNS = {
    "run": ("params", "output", "error", "memo", "options"),
    "fact": ("value",),
    "event": ("payload", "reply"),
    "log": ("data", "message"),
    "outbox": ("payload",),
    "schedule": ("params", "result", "content"),
    "chunk": ("data",),
}


class Replacement(NamedTuple):
    """A value to replace: the column and the key of its row, the value that was read, and the new one."""

    column: str
    key: list[Any]
    old: Any
    new: Any


class Progress(NamedTuple):
    table: str
    rewritten: int
    unreadable: int
    """Values that this process cannot decode; they stay as they are."""


class Reencryption:
    """The re-encryption of a database. ``database`` is that of ``store``, opened for reading and replacing rows."""

    def __init__(self, store: PayloadStore, database: TransferDatabase) -> None:
        self._store = store
        self._database = database
        self._unreadable = 0

    async def run(self, report: Callable[[Progress], None]) -> int:
        """Rewrite all values; returns the number of rewritten ones. ``report`` is called after each table."""
        if not self._store.settings.encrypts:
            raise InvalidOptionError("the app has no key: give it codec=[Aes(keys)]")
        total = 0
        for name in _COLUMNS:
            self._unreadable = 0
            rewritten = await self._table(BY_NAME[name])
            report(Progress(name, rewritten, self._unreadable))
            total += rewritten
        return total

    async def _table(self, table: TransferTable) -> int:
        rewritten, after = 0, None
        while rows := await self._database.read(table, after, _PAGE):
            records = [dict(zip(table.names, row, strict=True)) for row in rows]
            homes = await self._homes(table, records)
            changes: list[Replacement] = []
            for record, row in zip(records, rows, strict=True):
                for column, place, data in _values(table.name, record, homes):
                    if column == "payload" and record.get("type") in ENGINE_EVENTS:
                        new = await self._event(record)
                    elif column in ("options", "content"):
                        new = await self._options(column, data, place.workflow)
                    elif table.name == "chunk":
                        new = await self._chunk(data, place)
                    elif is_sealed_list(data):
                        new = await self._items(data, place)
                    else:
                        new = await self._rewritten(data, place, inline=_inline(table.name, column, record))
                    if new is not None:
                        text = column == "message"
                        key = table.key_of(row)
                        old = record[column]
                        changes.append(Replacement(column, key, old, new.decode() if text else new))
            rewritten += await self._database.replace(table, changes)
            after = table.key_of(rows[-1])
        return rewritten

    async def _homes(self, table: TransferTable, records: list[dict[str, Any]]) -> dict[int, str]:
        if table.name in ("run", "schedule"):
            return {}
        runs = [*{record["run"] for record in records}]
        return {run.run: run.pid for run in await self._store.inner.read(RunsById(runs))}

    async def _event(self, record: dict[str, Any]) -> bytes | None:
        """An exit or a reply with the values of the sending run under the first key; None: nothing changed."""
        payload: bytes = record["payload"]
        changed = False
        for role, start, end in reversed([*members(record["type"], payload)]):
            value = payload[start:end]
            if value == b"null":
                continue  # there is no value
            new = await self._rewritten(value, Place(record["sender"] or "", role), inline=role == "error")
            if new is not None:
                payload, changed = payload[:start] + new + payload[end:], True
        return payload if changed else None

    async def _options(self, column: str, data: bytes, workflow: str) -> bytes | None:
        """The options of a run, or the content of a schedule, with the values in its options under the first key."""
        content = codec.plain_object(data, column)
        options = content if column == "options" else content["options"]
        sealed = options.get(SEALED)
        values = {name: value for name, value in options.items() if name in SEALED_OPTIONS}
        if sealed is None and not values:
            return None
        old = codec.encode(values, what="options") if sealed is None else sealed.encode()
        new = await self._rewritten(old, Place(workflow, "options"), inline=True)
        if new is None:
            return None
        options = {name: value for name, value in options.items() if name not in SEALED_OPTIONS}
        options[SEALED] = new.decode()
        return codec.encode(options if column == "options" else {**content, "options": options}, what=column)

    async def _items(self, data: bytes, place: Place) -> bytes | None:
        """The params of a batch, whose items are sealed one by one."""
        items = [*sealed_items(data)]
        new = [await self._rewritten(item, place, inline=True) for item in items]
        if not any(new):
            return None
        return b"[" + b",".join(item if one is None else one for item, one in zip(items, new, strict=True)) + b"]"

    async def _chunk(self, data: bytes, place: Place) -> bytes | None:
        """A chunk of a stream, whose items are sealed one by one."""
        items = [*unpack(data)]
        # An item in a blob is alone in its chunk, and stays so; one that shares its chunk stays in the row.
        new = [await self._rewritten(value, place, inline=not holds_blob(pack(at, value))) for at, value in items]
        if not any(new):
            return None
        return b"".join(pack(at, value if one is None else one) for (at, value), one in zip(items, new, strict=True))

    async def _rewritten(self, data: bytes, place: Place, *, inline: bool) -> bytes | None:
        """The value under the first key; None: it is current, or cannot be read here."""
        chain = self._store.settings.chain_of(place.workflow)
        if not chain.encrypts or _is_current(data, chain):
            return None
        name = None
        if place.role == "error" and not envelope.is_envelope(data):
            name = json.loads(data).get("name")  # must stay readable: runs are found by it
        if envelope.is_envelope(data):
            content = envelope.read(data)
            place, name = Place(content.get("home", place.home), place.role), content.get("name")
            data = await self._store.decode_value(data, place.home, place.role)
            if envelope.is_envelope(data):
                self._unreadable += 1
                return None
        return await self._store.seal_value(data, place, inline=inline, name=name)


def _values(table: str, record: dict[str, Any], homes: dict[int, str]) -> Iterator[tuple[str, Place, bytes]]:
    for column in _COLUMNS[table]:
        value = record[column]
        if value is None:
            continue
        if column == "message":  # the text itself, or the envelope of its JSON
            text = value if value.startswith(' {"payload":') else json.dumps(value)
            yield column, Place(homes.get(record["run"], ""), "log"), text.encode()
            continue
        place = _place(table, column, record, homes)
        if place is not None:
            yield column, place, value


def _place(table: str, column: str, record: dict[str, Any], homes: dict[int, str]) -> Place | None:
    """The place of a value; None: the value is not encoded, such as a plan."""
    match table:
        case "run" if column in ("memo", "options"):
            return Place(record["workflow"], column)
        case "run":
            return Place(f"{record['workflow']}/{record['instance_id']}", column)
        case "schedule":
            return Place(
                record["workflow"] if column == "content" else f"{record['workflow']}/@{record['name']}", column
            )
        case "fact" if record["state"] in (FactState.PLAN, FactState.TOMBSTONE, FactState.START):
            return None
    home = homes.get(record["run"])
    if home is None:
        return None
    roles = {
        "fact": f"fact:{record.get('key')}",
        "log": "log",
        "outbox": "outbox",
        "chunk": f"stream:{record.get('name')}",
    }
    role = roles.get(table) or ("reply" if column == "reply" else f"event:{record['type']}")
    return Place(home, role)


def _inline(table: str, column: str, record: dict[str, Any]) -> bool:
    if table == "fact":
        return not record["ok"] or record["state"] not in _RESULTS
    return table == "log" or column in ("error", "memo")


def _is_current(data: bytes, chain: CodecChain) -> bool:
    if not envelope.is_envelope(data):
        return False
    try:
        tags = envelope.read(data).get("codec") or [""]
    except PayloadError:
        return False
    return tags[-1] in {getattr(codec, "current_tag", None) for codec in chain.codecs}
