"""One run as a JSON document: its row, facts, events and log lines, for a replay on another machine.

Values are embedded as JSON, so that the document can be read and compared. A value whose stored bytes are not those
that the codec writes today is embedded as text (``...Text``), because the size of values is visible to workflow code.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from holdfast._version import __version__
from holdfast.core import codec
from holdfast.core.facts import Fact, FactState, Log, StoredEvent, StoredLog
from holdfast.core.model import Status
from holdfast.core.secret import SECRET_KEY, hidden
from holdfast.errors import InvalidOptionError
from holdfast.store.protocol import RunRecord, Snapshot

FORMAT = 1
"""Version of the document."""

_ROW = {
    "workflow", "instance_id", "number", "kind", "status", "params", "output", "error", "queue", "priority",
    "created_at", "updated_at", "started_at", "completed_at", "seed", "note", "parent", "attempt", "options",
    "memo", "search", "version", "pinned",
}  # fmt: skip
"""Fields of the row that are exported: not those of the task, and not the ids of the database."""
_TEXT = "Text"


@dataclass(frozen=True, slots=True)
class StoredRun:
    """A run as it is stored, with everything that a replay needs."""

    row: RunRecord
    snapshot: Snapshot
    logs: list[StoredLog]


def to_document(stored: StoredRun, events: list[StoredEvent]) -> dict[str, Any]:
    """``events``: all events of the run, delivered or not."""
    row = {name: getattr(stored.row, name) for name in (field.name for field in fields(RunRecord)) if name in _ROW}
    facts = sorted(stored.snapshot.facts, key=lambda fact: (fact.at, fact.seq or 0, fact.state))
    return {
        "format": FORMAT,
        "holdfast": __version__,
        "run": _content(row),
        "facts": [
            {**_content(fact._asdict(), Fact._field_defaults), "state": FactState(fact.state).name} for fact in facts
        ],
        "events": [_content(event._asdict(), StoredEvent._field_defaults) for event in events],
        "logs": [{"n": line.n, **_content(line.log._asdict(), Log._field_defaults)} for line in stored.logs],
        "logCount": stored.snapshot.log_count,
    }


def without_secrets(content: Any) -> Any:
    """A document in which secrets are hidden. A replay of it decodes a hidden ``Secret[str]``."""
    if isinstance(content, Mapping):
        return hidden({**dict(map(_without_secret, content.items()))})
    return [without_secrets(part) for part in content] if isinstance(content, list) else content


def _without_secret(field: tuple[str, Any]) -> tuple[str, Any]:
    name, value = field
    if name.endswith(_TEXT) and isinstance(value, str) and SECRET_KEY.decode() in value:
        return name.removesuffix(_TEXT), hidden(codec.plain(value.encode()))
    return name, without_secrets(value)


def from_document(document: Any) -> StoredRun:
    """The run in a document. Raises ``InvalidOptionError`` if the document is not an exported run."""
    if not isinstance(document, Mapping) or "format" not in document or "run" not in document:
        raise InvalidOptionError(
            "this is not an exported run: write one with run.export() or holdfast instances export"
        )
    if document["format"] != FORMAT:
        raise InvalidOptionError(
            f"this run was exported in format {document['format']!r}, and this version of Holdfast reads {FORMAT}"
        )
    try:
        return _stored_run(document)
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidOptionError(f"the exported run is damaged: {type(error).__name__}: {error}") from None


def _stored_run(document: Mapping[str, Any]) -> StoredRun:
    row = _fields(document["run"])
    events = [StoredEvent(**_fields(event)) for event in document["events"]]
    facts = [Fact(**{**_fields(fact), "state": FactState[fact["state"]]}) for fact in document["facts"]]
    logs = [_log(_fields(line)) for line in document["logs"]]
    run = RunRecord(**{**row, "run": 0, "instance": 0, "status": Status(row["status"])})
    return StoredRun(run, Snapshot(facts, {event.n: event for event in events}, document["logCount"]), logs)


def _log(line: dict[str, Any]) -> StoredLog:
    return StoredLog(line.pop("n"), Log(**line))


def dumps(document: Mapping[str, Any]) -> bytes:
    return json.dumps(document, indent=1, ensure_ascii=False).encode("utf-8", "backslashreplace") + b"\n"


def loads(data: bytes) -> StoredRun:
    try:
        document = json.loads(data)
    except ValueError as error:
        raise InvalidOptionError(f"this is not an exported run, because it is not JSON: {error}") from None
    return from_document(document)


# --- fields


_ENCODED = {"params", "output", "error", "options", "memo", "search", "value", "payload", "data"}
"""Fields that hold JSON in bytes."""


def _content(values: Mapping[str, Any], defaults: Mapping[str, Any] | None = None) -> dict[str, Any]:
    content: dict[str, Any] = {}
    for name, value in values.items():
        if name in _ENCODED:
            content |= _encoded(_camel(name), value)
        elif defaults is None or name not in defaults or value != defaults[name]:
            content[_camel(name)] = value
    return content


def _encoded(name: str, data: bytes | None) -> dict[str, Any]:
    if data is None:
        return {}
    value = codec.plain(data)
    return {name: value} if codec.encode(value, what=name) == data else {name + _TEXT: data.decode()}


def _fields(content: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {"params": None, "output": None, "error": None} if "instanceId" in content else {}
    if "payload" in _missing(content):
        found["payload"] = None
    if "data" in _missing(content):
        found["data"] = None
    for key, value in content.items():
        name = _snake(key.removesuffix(_TEXT))
        if name in _ENCODED:
            found[name] = value.encode() if key.endswith(_TEXT) else codec.encode(value, what=name)
        else:
            found[name] = value
    return found


def _missing(content: Mapping[str, Any]) -> set[str]:
    """Required fields without a default that are absent because they are None."""
    if "message" in content:
        return {"data"} - {*content}
    return {"payload"} - {*content} if "type" in content and "state" not in content else set()


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(part.capitalize() for part in rest)


def _snake(name: str) -> str:
    return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name)
