"""What a file must hold after a power cut: all that was acknowledged before, and nothing by halves."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import apsw

from holdfast.store.sqlite import opening
from holdfast.store.sqlite.guard import Guard

from .workload import Planned

FILE = "work.db"

_ENTRIES = {"pay": ("in", "out"), "enter": ("child",), "move": ("live",), "later": ("later",)}
"""What a step writes into the ledger, together with its result."""
_OUTBOUND = {"PAY": "asked", "SHIP": "shipped"}
"""Which outbound event is written with which step of a chain."""

_RUNS = "SELECT instance_id, status, output FROM holdfast_run"
_EVENTS = "SELECT r.instance_id, e.dedup FROM holdfast_event AS e JOIN holdfast_run AS r ON r.id = e.run"
_FACTS = (
    "SELECT r.instance_id, f.key, f.ok FROM holdfast_fact AS f JOIN holdfast_run AS r ON r.id = f.run WHERE f.state"
)
_RESULTS = f"{_FACTS} = 0"
_WAITS = f"{_FACTS} = 1 AND f.key = 'PAY'"
_OUTBOX = "SELECT r.instance_id, o.type FROM holdfast_outbox AS o JOIN holdfast_run AS r ON r.id = o.run"
_TASKS = "SELECT count(*) FROM holdfast_task"


@dataclass(slots=True)
class Promises:
    """What was said to the outside, which a cut must not take back."""

    opened: bool = False
    starts: set[str] = field(default_factory=set)
    events: set[tuple[str, str]] = field(default_factory=set)
    ended: set[str] = field(default_factory=set)
    results: set[tuple[str, str]] = field(default_factory=set)
    """Of steps that others, which have begun, come after."""
    delivered: set[tuple[str, str]] = field(default_factory=set)

    def record(self, line: dict[str, Any]) -> None:
        self.opened |= "open" in line
        self.results |= {(line["run"], key) for key in line.get("needs", ())}
        if "delivered" in line:
            self.delivered.add((line["id"], line["delivered"]))
        said = line.get("acknowledged")
        if said == "start":
            self.starts.add(line["id"])
        elif said == "event":
            self.events.add((line["id"], line["event"]))
        elif said == "result":
            self.ended.add(line["id"])

    def copy(self) -> Promises:
        return Promises(
            self.opened, set(self.starts), set(self.events), set(self.ended), set(self.results), set(self.delivered)
        )


def check(connection: apsw.Connection, promises: Promises, plan: dict[str, Planned]) -> None:
    """The file is whole, what was promised is there, and what belongs together is there together or not at all."""
    whole = connection.execute("PRAGMA integrity_check").get
    assert whole == "ok", whole
    if not promises.opened:
        return
    runs = {run: (status, output) for run, status, output in connection.execute(_RUNS)}
    _check_present("starts", promises.starts, runs.keys())
    events = Counter(connection.execute(_EVENTS))
    _check_present("events", promises.events, events.keys())
    assert not [event for event, times in events.items() if times > 1 and event[1] is not None], "an event came twice"
    for run in promises.ended:
        status, output = runs[run]
        assert (status, json.loads(output)) == ("complete", plan[run].expected), f"{run}: {status} {output!r}"
    results = {(run, key): ok for run, key, ok in connection.execute(_RESULTS)}
    _check_present("results", promises.results, results.keys())
    done = {result for result, ok in results.items() if ok}
    _check_ledger(connection, done)
    _check_outbox(connection, promises, done)


def check_end(connection: apsw.Connection, plan: dict[str, Planned]) -> None:
    """All is done, once."""
    found = {run: (status, output and json.loads(output)) for run, status, output in connection.execute(_RUNS)}
    expected = {run: ("complete", planned.expected) for run, planned in plan.items()}
    wrong = {run: found.get(run) for run, end in expected.items() if found.get(run) != end}
    assert not wrong, f"not as planned: {wrong}"
    assert found.keys() == expected.keys()
    ledger = Counter((planned.id, entry) for planned in plan.values() for entry in planned.ledger)
    assert Counter(connection.execute("SELECT run, entry FROM ledger")) == ledger
    assert connection.execute(_TASKS).get == 0
    left = connection.execute(f"{_OUTBOX} WHERE o.delivered_at IS NULL").fetchall()
    assert not left, f"not delivered: {left}"


def _check_present(what: str, promised: set[Any], found: Any) -> None:
    lost = promised - found
    assert not lost, f"{what} that were acknowledged are lost: {sorted(lost)[:5]}"


def _check_ledger(connection: apsw.Connection, results: set[tuple[str, str]]) -> None:
    expected = Counter((run, entry) for run, key in results for entry in _ENTRIES.get(key, ()))
    found = Counter(connection.execute("SELECT run, entry FROM ledger"))
    assert found == expected, f"rows without results, or the other way round: {found - expected or expected - found}"


def _check_outbox(connection: apsw.Connection, promises: Promises, results: set[tuple[str, str]]) -> None:
    waits = {(run, key) for run, key, _ in connection.execute(_WAITS)}
    expected = {(run, _OUTBOUND[key]) for run, key in results | waits if key in _OUTBOUND}
    found = set(connection.execute(_OUTBOX))
    assert found == expected, f"outbound events without their steps, or the other way round: {found ^ expected}"
    _check_present("deliveries", promises.delivered, found)


def opened(folder: Path, *, as_store: bool) -> apsw.Connection:
    """Open it as any program does, or with all that the store does before it uses a file."""
    path = str(folder / FILE)
    if not as_store:
        return apsw.Connection(path, apsw.SQLITE_OPEN_READWRITE)
    opening.prepare(path, create=False)
    connection = opening.writer(path, Guard())
    opening.check(connection, path, migrating=True)
    return connection


def by_id(plan: Sequence[Planned]) -> dict[str, Planned]:
    return {planned.id: planned for planned in plan}
