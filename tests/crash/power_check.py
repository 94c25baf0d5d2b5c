"""Checks a file after a power cut: acknowledged data is stored, and rows of one transaction are all stored or none."""

from __future__ import annotations

import hashlib
import json
from base64 import b64decode
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import apsw

from holdfast.core import envelope
from holdfast.payloads.codecs import CodecChain
from holdfast.store.protocol.blobs import REFERRING
from holdfast.store.protocol.streams import unpack
from holdfast.store.sqlite import opening
from holdfast.store.sqlite.guard import Guard

from .power_models import CODECS
from .workload import Planned

FILE = "work.db"
BLOBS = "blobs"
"""The folder of blobs in files."""

_ENTRIES = {"pay": ("in", "out"), "enter": ("child",), "move": ("live",), "later": ("later",)}
"""Rows that a step writes to the ledger, in the transaction of its result."""
_OUTBOUND = {"PAY": "asked", "SHIP": "shipped"}
"""The outbound event that is written with the outcome of a chain's step."""

_RUNS = "SELECT instance_id, status, output FROM holdfast_run"
_EVENTS = "SELECT r.instance_id, e.dedup FROM holdfast_event AS e JOIN holdfast_run AS r ON r.id = e.run"
_FACTS = (
    "SELECT r.instance_id, f.key, f.ok FROM holdfast_fact AS f JOIN holdfast_run AS r ON r.id = f.run WHERE f.state"
)
_RESULTS = f"{_FACTS} = 0"
_WAITS = f"{_FACTS} = 1 AND f.key = 'PAY'"
_OUTBOX = "SELECT r.instance_id, o.type FROM holdfast_outbox AS o JOIN holdfast_run AS r ON r.id = o.run"
_CHUNKS = "SELECT r.instance_id, c.first, c.data FROM holdfast_chunk AS c JOIN holdfast_run AS r ON r.id = c.run"
_TASKS = "SELECT count(*) FROM holdfast_task"


@dataclass(slots=True)
class AcknowledgedData:
    """Everything that was acknowledged before a cut, and must be stored after it."""

    opened: bool = False
    starts: set[str] = field(default_factory=set)
    events: set[tuple[str, str]] = field(default_factory=set)
    ended: set[str] = field(default_factory=set)
    results: set[tuple[str, str]] = field(default_factory=set)
    """Results of steps that a later step, which has begun, depends on."""
    delivered: set[tuple[str, str]] = field(default_factory=set)
    read: set[tuple[str, int, str]] = field(default_factory=set)
    """Items of streams that a reader has seen: run, offset and value."""

    def record(self, line: dict[str, Any]) -> None:
        self.opened |= "open" in line
        self.results |= {(line["run"], key) for key in line.get("needs", ())}
        if "delivered" in line:
            self.delivered.add((line["id"], line["delivered"]))
        if "read" in line:
            self.read.add((line["read"], line["offset"], line["value"]))
        said = line.get("acknowledged")
        if said == "start":
            self.starts.add(line["id"])
        elif said == "event":
            self.events.add((line["id"], line["event"]))
        elif said == "result":
            self.ended.add(line["id"])

    def copy(self) -> AcknowledgedData:
        return AcknowledgedData(
            self.opened, set(self.starts), set(self.events), set(self.ended), set(self.results), set(self.delivered),
            set(self.read),
        )  # fmt: skip


def check(connection: apsw.Connection, acknowledged: AcknowledgedData, plan: dict[str, Planned]) -> None:
    """Check that the file is not damaged, acknowledged data is stored, and rows of steps have their results."""
    whole = connection.execute("PRAGMA integrity_check").get
    assert whole == "ok", whole
    if not acknowledged.opened:
        return
    runs = {run: (status, output) for run, status, output in connection.execute(_RUNS)}
    _check_present("starts", acknowledged.starts, runs.keys())
    events = Counter(connection.execute(_EVENTS))
    _check_present("events", acknowledged.events, events.keys())
    assert not [event for event, times in events.items() if times > 1 and event[1] is not None], (
        "an event is stored twice"
    )
    for run in acknowledged.ended:
        status, output = runs[run]
        found = status, _plain(connection, output, "output")
        assert found == ("complete", plan[run].expected), f"{run}: {found}"
    results = {(run, key): ok for run, key, ok in connection.execute(_RESULTS)}
    _check_present("results", acknowledged.results, results.keys())
    done = {result for result, ok in results.items() if ok}
    _check_ledger(connection, done)
    _check_outbox(connection, acknowledged, done)
    _check_blobs(connection)
    _check_present("items of streams", acknowledged.read, {*_items(connection)})


def check_end(connection: apsw.Connection, plan: dict[str, Planned]) -> None:
    """Check that every run has completed, and that its rows and outbound events are stored once."""
    found = {
        run: (status, output and _plain(connection, output, "output"))
        for run, status, output in connection.execute(_RUNS)
    }
    expected = {run: ("complete", planned.expected) for run, planned in plan.items()}
    wrong = {run: found.get(run) for run, end in expected.items() if found.get(run) != end}
    assert not wrong, f"other ends than expected: {wrong}"
    assert found.keys() == expected.keys()
    ledger = Counter((planned.id, entry) for planned in plan.values() for entry in planned.ledger)
    assert Counter(connection.execute("SELECT run, entry FROM ledger")) == ledger
    assert connection.execute(_TASKS).get == 0
    left = connection.execute(f"{_OUTBOX} WHERE o.delivered_at IS NULL").fetchall()
    assert not left, f"not delivered: {left}"


def _check_present(what: str, required: set[Any], found: Any) -> None:
    lost = required - found
    assert not lost, f"{what} that were acknowledged are lost: {sorted(lost)[:5]}"


def _check_ledger(connection: apsw.Connection, results: set[tuple[str, str]]) -> None:
    expected = Counter((run, entry) for run, key in results for entry in _ENTRIES.get(key, ()))
    found = Counter(connection.execute("SELECT run, entry FROM ledger"))
    assert found == expected, f"rows without results, or results without rows: {found - expected or expected - found}"


def _check_outbox(connection: apsw.Connection, acknowledged: AcknowledgedData, results: set[tuple[str, str]]) -> None:
    waits = {(run, key) for run, key, _ in connection.execute(_WAITS)}
    expected = {(run, _OUTBOUND[key]) for run, key in results | waits if key in _OUTBOUND}
    found = set(connection.execute(_OUTBOX))
    assert found == expected, (
        f"outbound events without outcomes, or outcomes without outbound events: {found ^ expected}"
    )
    _check_present("deliveries", acknowledged.delivered, found)


def _check_blobs(connection: apsw.Connection) -> None:
    """Check that every blob to which a row refers is stored: no commit was written before its blobs."""
    for table, columns in REFERRING:
        for column in columns if table != "chunk" else ():
            for (value,) in connection.execute(f"SELECT {column} FROM holdfast_{table} WHERE {column} IS NOT NULL"):
                if envelope.is_envelope(value):
                    _encoded(connection, envelope.read(value))


def _items(connection: apsw.Connection) -> Iterator[tuple[str, int, str]]:
    """Run, offset and value of each item of a stream."""
    for run, first, data in connection.execute(_CHUNKS).fetchall():
        for offset, (_, value) in enumerate(unpack(data), first):
            yield run, offset, _plain(connection, value, "stream:out")


def _plain(connection: apsw.Connection, value: bytes, role: str) -> Any:
    """A stored value, decoded."""
    if not envelope.is_envelope(value):
        return json.loads(value)
    content = envelope.read(value)
    bound_to = f"{content['home']}\0{role}".encode()
    return json.loads(CodecChain(CODECS).decode(content["codec"], _encoded(connection, content), bound_to))


def _encoded(connection: apsw.Connection, content: Any) -> bytes:
    """The encoded value of an envelope, which may be a blob in the database or in a file beside it."""
    if "sha256" not in content:
        return b64decode(content["data"])
    name = content["blobs"][0]
    chunks = connection.execute("SELECT data FROM holdfast_blob_chunk WHERE id = ? ORDER BY n", (name,))
    file = Path(connection.filename).parent / BLOBS / name[:2] / name
    blob = file.read_bytes() if file.exists() else b"".join(data for (data,) in chunks)
    assert hashlib.sha256(blob).hexdigest() == content["sha256"], f"the blob {name} is missing or damaged"
    return blob


def opened(folder: Path, *, as_store: bool) -> apsw.Connection:
    """Open the database: with ``as_store`` by the procedure of the store, else by SQLite alone."""
    path = str(folder / FILE)
    if not as_store:
        return apsw.Connection(path, apsw.SQLITE_OPEN_READWRITE)
    opening.prepare(path, create=False)
    connection = opening.writer(path, Guard())
    opening.check(connection, path, migrating=True)
    return connection


def by_id(plan: Sequence[Planned]) -> dict[str, Planned]:
    return {planned.id: planned for planned in plan}
