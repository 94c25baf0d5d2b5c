"""The values in the requests and replies of a store: the fields that are sealed, and the place of each value.

``Seal`` encodes the values in requests of the engine, ``Open`` decodes the values in replies of the database. Both do
no I/O. Ids, types of events, names of steps, search attributes, plans, notes, reasons, and the start options other than
the memo and the last result of a schedule are not sealed: the database or other processes need them.
"""

from __future__ import annotations

import json
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from holdfast.core import codec, envelope
from holdfast.core.blob import references
from holdfast.core.facts import EXIT, REPLY, Fact, FactState, Log, MailboxPage, StoredEvent, StoredLog
from holdfast.core.scheduled_start import LAST_RESULT, MEMO, SEALED
from holdfast.errors import InvalidOptionError
from holdfast.payloads.sealing import Place, Sealer
from holdfast.store.protocol import (
    Advance,
    Attributes,
    BatchedStart,
    Commit,
    ContinueRun,
    DebouncedStart,
    Finish,
    Following,
    NewEvent,
    NewRun,
    Observed,
    Outbound,
    OutboxRow,
    RecordedOperation,
    Reply,
    ReplyByHand,
    ReplyToEvent,
    ResolveStep,
    ResolveUnit,
    RestartRun,
    RunRecord,
    ScheduleRow,
    SendEvent,
    StartEvent,
)
from holdfast.store.protocol.streams import StreamPage, StreamWrite, pack, unpack

_DECODER = json.JSONDecoder()
_PLAIN_STATES = frozenset({FactState.PLAN, FactState.TOMBSTONE})
_EMBEDDED = {EXIT: ((b'"output": {', "output"), (b'"error": {', "error")), REPLY: ((b'"value": {', "reply"),)}
"""Beginnings and roles of the envelopes that the payloads of the engine's events contain: values of the sending run.

No other bytes of a payload look like this: JSON is stored without spaces, and the quotes of text are escaped.
"""
_MEMBERS = {EXIT: ((b',"output":', "output"), (b',"error":', "error")), REPLY: ((b',"value":', "reply"),)}
"""The members of these payloads that are such values, in their order. They follow ids, numbers and statuses."""
ENGINE_EVENTS = frozenset(_EMBEDDED)
SEALED_OPTIONS = frozenset({MEMO, LAST_RESULT})
"""Start options that are values. They are sealed together, as one member of the stored options."""


def embedded(type_: str, payload: bytes) -> Iterator[tuple[str, int, int]]:
    """The role, start and end of each envelope in the payload of an event of the engine."""
    for head, role in _EMBEDDED[type_]:
        start = payload.find(head)
        if start >= 0:
            start += len(head) - 2
            text = payload[start + 1 :].decode()
            _, length = _DECODER.raw_decode(text)
            yield role, start, start + 1 + len(text[:length].encode())


def members(type_: str, payload: bytes) -> Iterator[tuple[str, int, int]]:
    """The role, start and end of each value of the sending run in the payload of an engine's event, sealed or not."""
    position = 0
    for head, role in _MEMBERS[type_]:
        start = payload.index(head, position) + len(head)
        sealed = envelope.is_envelope(payload[start : start + 1])
        text = payload[start + sealed :].decode()
        _, length = _DECODER.raw_decode(text)
        position = start + sealed + len(text[:length].encode())
        yield role, start, position


def pid_of(workflow: str, instance_id: str) -> str:
    return f"{workflow}/{instance_id}"


def is_sealed_list(data: bytes | None) -> bool:
    """True for the params of a batch whose items are sealed."""
    return data is not None and data.startswith(envelope.SEALED_LIST)


def sealed_items(data: bytes) -> Iterator[bytes]:
    """The envelopes in the params of a batch."""
    text, position = data.decode(), 1
    while position < len(text):
        _, end = _DECODER.raw_decode(text, position + 1)  # after the space of the envelope
        yield text[position:end].encode()
        position = end + 1  # after the comma, or the bracket


def _without(content: Mapping[str, Any], names: Container[str]) -> dict[str, Any]:
    return {name: value for name, value in content.items() if name not in names}


class Seal:
    """Maps requests. Each method returns a copy; the engine keeps its own objects with plain values."""

    def __init__(self, sealer: Sealer) -> None:
        self._seal = sealer.seal

    def value(self, data: bytes | None, home: str, role: str, *, inline: bool = False) -> bytes | None:
        return None if data is None else self._seal(data, Place(home, role), inline=inline)

    def error(self, data: bytes | None, home: str) -> bytes | None:
        if data is None:
            return None
        name = json.loads(data).get("name")
        return self._seal(data, Place(home, "error"), inline=True, name=name)

    def fact(self, fact: Fact, home: str) -> Fact:
        if fact.value is None or fact.state in _PLAIN_STATES:
            return fact
        inline = not fact.ok or fact.state not in (FactState.RESULT, FactState.ITEM)
        return fact._replace(value=self.value(fact.value, home, f"fact:{fact.key}", inline=inline))

    def facts(self, facts: Sequence[Fact], home: str) -> Sequence[Fact]:
        return [self.fact(fact, home) for fact in facts] if facts else facts

    def log(self, log: Log, home: str) -> Log:
        sealed = self.value(json.dumps(log.message).encode(), home, "log", inline=True)
        message = log.message if sealed is None or not envelope.is_envelope(sealed) else sealed.decode()
        return log._replace(message=message, data=self.value(log.data, home, "log", inline=True))

    def logs(self, logs: Sequence[Log], home: str) -> Sequence[Log]:
        return [self.log(log, home) for log in logs] if logs else logs

    def attributes(self, attributes: Attributes | None, workflow: str) -> Attributes | None:
        if attributes is None or attributes.memo is None:
            return attributes
        return replace(attributes, memo=self.value(attributes.memo, workflow, "memo", inline=True))

    def options(self, data: bytes | None, workflow: str) -> bytes | None:
        """Seal the values in the stored options of a run."""
        if data is None or not any(f'"{name}":'.encode() in data for name in SEALED_OPTIONS):
            return data
        sealed = self.sealed_options(codec.plain_object(data, "value of the options"), workflow)
        return codec.encode(sealed, what="options")

    def sealed_options(self, content: Mapping[str, Any], workflow: str) -> Mapping[str, Any]:
        """Options in their stored form with the values sealed. The values belong to the workflow, as a memo does."""
        values = {name: value for name, value in content.items() if name in SEALED_OPTIONS}
        if not values:
            return content
        sealed = self._seal(codec.encode(values, what="options"), Place(workflow, "options"), inline=True)
        if not envelope.is_envelope(sealed):
            return content
        return {**_without(content, SEALED_OPTIONS), SEALED: sealed.decode()}

    def params_of_start(self, new: NewRun) -> bytes | None:
        """Seal the params of a start.

        The params of a debounced start may become those of another instance, and the item of a batched start a part of
        them, so both belong to the workflow. The database appends items, so each item is sealed on its own.
        """
        match new.policy:
            case DebouncedStart():
                return self.value(new.params, new.workflow, "params")
            case BatchedStart() if new.params is not None:
                if references(new.params):  # the rows of a batch are not counted
                    raise InvalidOptionError(
                        f"starts of workflow {new.workflow} are collected in batches: params cannot contain a Blob"
                    )
                return b"[" + self._seal(new.params[1:-1], Place(new.workflow, "params"), inline=True) + b"]"
            case _:
                return self.value(new.params, pid_of(new.workflow, new.instance_id), "params")

    def new_run(self, new: NewRun) -> NewRun:
        home = pid_of(new.workflow, new.instance_id)
        return replace(
            new,
            params=self.params_of_start(new),
            options=self.options(new.options, new.workflow),
            attributes=self.attributes(new.attributes, new.workflow),
            start_events=[
                StartEvent(event.type, self.value(event.payload, home, f"event:{event.type}"))
                for event in new.start_events
            ],
        )

    def new_event(self, event: NewEvent) -> NewEvent:
        home = pid_of(event.workflow, event.instance_id)
        prediction = event.prediction
        if prediction is not None:
            prediction = replace(prediction, commit=self.commit(prediction.commit, home))
        payload = self.value(event.payload, home, f"event:{event.type}")
        return replace(event, payload=payload, prediction=prediction)

    def commit(self, commit: Commit, home: str) -> Commit:
        return replace(
            commit, observed=self.observed(commit.observed, home), following=self.following(commit.following, home)
        )

    def observed(self, observed: Observed, home: str) -> Observed:
        return replace(
            observed,
            facts=self.facts(observed.facts, home),
            logs=self.logs(observed.logs, home),
            starts=[self.new_run(new) for new in observed.starts],
            sends=[self.new_event(event) for event in observed.sends],
            outbox=[self.outbound(event, home) for event in observed.outbox],
        )

    def outbound(self, event: Outbound, home: str) -> Outbound:
        return event._replace(payload=self.value(event.payload, home, "outbox"))

    def following(self, following: Following, home: str) -> Following:
        next_ = following.next
        if isinstance(next_, Finish):
            next_ = self.finish(next_, home)
        workflow = home.partition("/")[0]
        return Following(
            self.facts(following.facts, home),
            self.logs(following.logs, home),
            self.attributes(following.attributes, workflow),
            [self.operation(recorded, home) for recorded in following.operations],
            next_,
            [self.stream_write(write, home) for write in following.streams],
        )

    def stream_write(self, write: StreamWrite, home: str) -> StreamWrite:
        place = Place(home, f"stream:{write.name}")
        items = [pack(at, self._seal(value, place)) for item in write.items for at, value in unpack(item)]
        return write._replace(items=items)

    def finish(self, finish: Finish, home: str) -> Finish:
        successor = finish.next
        if successor is not None:
            options = self.options(successor.options, home.partition("/")[0])
            successor = replace(successor, params=self.value(successor.params, home, "params"), options=options)
        output = self.value(finish.output, home, "output")
        return replace(finish, output=output, error=self.error(finish.error, home), next=successor)

    def operation(self, recorded: RecordedOperation, home: str) -> RecordedOperation:
        match recorded.operation:
            case NewRun() as new:
                return RecordedOperation(self.new_run(new), recorded.fact)
            case NewEvent() as event:
                return RecordedOperation(self.new_event(event), recorded.fact)
            case ReplyToEvent(n, reply, trace):
                sealed = Reply(reply.ok, self.value(reply.value, home, "reply"))
                return RecordedOperation(ReplyToEvent(n, sealed, trace), recorded.fact)
            case _:
                return recorded

    def advance(self, advance: Advance, home: str) -> Advance:
        return replace(
            advance,
            facts=self.facts(advance.facts, home),
            results=self.facts(advance.results, home),
            logs=self.logs(advance.logs, home),
        )

    def control(self, request: Any) -> Any:
        match request:
            case ContinueRun():
                home = pid_of(request.workflow, request.fork_id or request.instance_id)
                params = self.value(request.params, home, "params")
                options = self.options(request.options, request.workflow)
                return replace(request, facts=self.facts(request.facts, home), params=params, options=options)
            case RestartRun():
                return replace(request, options=self.options(request.options, request.workflow))
            case ResolveStep():
                home = pid_of(request.workflow, request.instance_id)
                return replace(request, payload=self._seal(request.payload, Place(home, "event:@resolve")))
            case ReplyByHand():
                home = pid_of(request.workflow, request.instance_id)
                sealed = Reply(request.reply.ok, self.value(request.reply.value, home, "reply"))
                return replace(request, reply=sealed)
            case SendEvent(event):
                return SendEvent(self.new_event(event))
            case ResolveUnit():
                home = pid_of(request.workflow, request.instance_id)
                return replace(request, advance=self.advance(request.advance, home))
            case _:
                return request

    def schedule(self, row: ScheduleRow) -> ScheduleRow:
        home = f"{row.workflow}/@{row.name}"
        params, result = self.value(row.params, home, "params"), self.value(row.result, home, "result")
        content = codec.plain_object(row.content, "schedule")
        options = self.sealed_options(content["options"], row.workflow)
        sealed = codec.encode({**content, "options": options}, what="schedule")
        return replace(row, params=params, result=result, content=sealed)


class Open:
    """Maps replies. ``forks`` has the ids of the runs that are forks."""

    def __init__(self, sealer: Sealer, forks: set[int]) -> None:
        self._open = sealer.open
        self._forks = forks

    def value(self, data: bytes | None, home: str, role: str, *, forked: bool = False) -> bytes | None:
        if data is None or not envelope.is_envelope(data):
            return data
        return self._open(data, Place(home, role), forked=forked)

    def run(self, run: RunRecord) -> RunRecord:
        """Open the values of a record, in place: a store makes a new record for each reply."""
        home = run.pid
        run.params = self.params(run.params, home)
        run.output = self.value(run.output, home, "output")
        run.error = self.value(run.error, home, "error")
        run.memo = self.value(run.memo, run.workflow, "memo")
        run.options = self.options(run.options, run.workflow)
        return run

    def options(self, data: bytes | None, workflow: str) -> bytes | None:
        if data is None or f'"{SEALED}":'.encode() not in data:
            return data
        opened = self.opened_options(codec.plain_object(data, "value of the options"), workflow)
        return codec.encode(opened, what="options")

    def opened_options(self, content: Mapping[str, Any], workflow: str) -> Mapping[str, Any]:
        """Options in their stored form with the values opened. Values that cannot be opened stay sealed."""
        if SEALED not in content:
            return content
        opened = self.value(content[SEALED].encode(), workflow, "options") or b"{}"
        if envelope.is_envelope(opened):
            return content
        return {**_without(content, {SEALED}), **codec.plain_object(opened, "value of the options")}

    def params(self, data: bytes | None, home: str) -> bytes | None:
        if data is None or not is_sealed_list(data):
            return self.value(data, home, "params")
        items: list[bytes] = []
        for sealed in sealed_items(data):
            opened = self._open(sealed, Place(home, "params"))
            if envelope.is_envelope(opened):
                return opened  # the whole list is unreadable without one of its items
            items.append(opened)
        return b"[" + b",".join(items) + b"]"

    def stream_page(self, page: StreamPage, home: str, name: str) -> StreamPage:
        place = Place(home, f"stream:{name}")

        def opened(value: bytes) -> bytes:
            return self._open(value, place) if envelope.is_envelope(value) else value

        chunks = [
            chunk._replace(data=b"".join(pack(at, opened(value)) for at, value in unpack(chunk.data)))
            for chunk in page.chunks
        ]
        return page._replace(chunks=chunks)

    def fact(self, fact: Fact, home: str) -> Fact:
        if not envelope.is_envelope(fact.value):
            return fact
        return fact._replace(value=self.value(fact.value, home, f"fact:{fact.key}"))

    def facts(self, facts: Iterable[Fact], home: str) -> list[Fact]:
        return [self.fact(fact, home) for fact in facts]

    def event(self, event: StoredEvent, home: str, run: int | None = None) -> StoredEvent:
        if event.type in ENGINE_EVENTS and event.payload is not None:
            payload = self._embedded(event.type, event.payload, event.sender or "")
            return event if payload is event.payload else event._replace(payload=payload)
        if not envelope.is_envelope(event.payload):
            return event
        forked = run in self._forks
        return event._replace(payload=self.value(event.payload, home, f"event:{event.type}", forked=forked))

    def events(self, events: Iterable[StoredEvent], home: str, run: int) -> list[StoredEvent]:
        return [self.event(event, home, run) for event in events]

    def page(self, page: MailboxPage, home: str, run: int) -> MailboxPage:
        return replace(page, events=self.events(page.events, home, run)) if page.events else page

    def _embedded(self, type_: str, payload: bytes, sender: str) -> bytes:
        """Open the envelopes that the payload of an engine's event contains: values of the sending run."""
        for role, start, end in reversed([*embedded(type_, payload)]):
            opened = self.value(payload[start:end], sender, role) or b"null"
            if envelope.is_envelope(opened):  # cannot be opened: the use of the event raises the error
                return opened
            payload = payload[:start] + opened + payload[end:]
        return payload

    def log(self, stored: StoredLog, home: str) -> StoredLog:
        log = stored.log
        data = self.value(log.data, home, "log")
        message = log.message
        if message.startswith(' {"payload":'):
            opened = self.value(message.encode(), home, "log")
            message = "(encoded)" if opened is None or envelope.is_envelope(opened) else json.loads(opened)
        return StoredLog(stored.n, log._replace(message=message, data=data))

    def outbox_row(self, row: OutboxRow) -> OutboxRow:
        return replace(row, payload=self.value(row.payload, pid_of(row.workflow, row.instance_id), "outbox"))

    def schedule(self, row: ScheduleRow) -> ScheduleRow:
        home = f"{row.workflow}/@{row.name}"
        ticks = [
            replace(tick, output=self.value(tick.output, pid_of(tick.workflow, tick.instance_id), "output"))
            for tick in row.ticks
        ]
        params, result = self.value(row.params, home, "params"), self.value(row.result, home, "result")
        return replace(row, params=params, result=result, content=self.content(row.content, row.workflow), ticks=ticks)

    def content(self, data: bytes, workflow: str) -> bytes:
        """The content of a schedule with its options opened."""
        if f'"{SEALED}":'.encode() not in data:
            return data
        content = codec.plain_object(data, "schedule")
        options = self.opened_options(content["options"], workflow)
        return codec.encode({**content, "options": options}, what="schedule")
