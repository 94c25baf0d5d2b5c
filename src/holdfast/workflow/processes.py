"""What a run does to others, and what it is told of them: messages, children, watching, control.

Everything done to others is an act of the machine, which the store carries out with the commit that records it.
Everything that comes back is mail with a topic of the engine's own. Both are facts, so all of it replays.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, Generic, Protocol, TypeVar

from holdfast.core import durations
from holdfast.core.durations import Duration
from holdfast.core.failure import Failure
from holdfast.core.model import Status, StepType, from_ms
from holdfast.core.show import shown
from holdfast.errors import (
    ChildError,
    EventInvalidError,
    InstanceExistsError,
    InstanceNotFoundError,
    InstanceTerminalError,
    InvalidOptionError,
    LinkDownError,
    NotAskedError,
    Rejected,
)
from holdfast.kernel.definition import Definition
from holdfast.kernel.requests import CHILD_OPTIONS, Requests, check_known
from holdfast.store.protocol import (
    Answer,
    AnswerEvent,
    CancelRun,
    Deed,
    Mail,
    NewEvent,
    NewRun,
    ParentClose,
    Reply,
    RunRecord,
    TerminateRun,
    UnwatchRun,
    Watch,
    WatchRun,
)
from holdfast.workflow.channels import Channel
from holdfast.workflow.libraries import shielded
from holdfast.workflow.mailbox import payload_of

R = TypeVar("R", covariant=True)

_FOREVER = "365 days"


@dataclass(frozen=True, slots=True)
class Exit:
    """A run that was monitored has ended. ``error`` is None when it ended well."""

    pid: str
    result: Any = None
    error: ChildError | None = None


@dataclass(frozen=True, slots=True)
class LinkDown:
    """A run that this one is linked to did not end well."""

    pid: str
    error: ChildError


@dataclass(frozen=True, slots=True)
class Cancel:
    """This run was asked to cancel; at the deadline it is terminated."""

    reason: str | None
    deadline: datetime | None


RunEvent = Exit | LinkDown | Cancel


@dataclass(frozen=True, slots=True)
class Message:
    """What somebody sent to this run. ``sender`` is the pid of a run, or None: from outside."""

    id: str
    topic: str
    payload: Any
    sender: str | None
    sent_at: datetime
    _processes: Processes = field(repr=False, compare=False)
    _mail: Mail = field(repr=False, compare=False)

    async def reply(self, payload: Any = None) -> None:
        """Answer who asked. Raises ``NotAskedError`` when nobody did, or it was answered already."""
        await self._processes.answer(self._mail, payload, ok=True)

    async def reject(self, reason: Any = None) -> None:
        """Refuse what was asked: it raises ``Rejected`` there."""
        await self._processes.answer(self._mail, reason, ok=False)


class Child(Generic[R]):
    """A child that was started. It is always monitored: ``ctx.events`` tells of its end."""

    def __init__(self, processes: Processes, pid: str, definition: Definition) -> None:
        self.pid = pid
        self._processes = processes
        self._definition = definition

    def __repr__(self) -> str:
        return f"<Child {self.pid}>"

    @property
    def id(self) -> str:
        return self.pid.partition("/")[2]

    async def result(self) -> R:
        """Wait for its end; its result, or ``ChildError``."""
        end = await self._processes.end_of(self.pid)
        try:
            if end.error is not None:
                raise end.error
            return self._definition.decode_output(end.output)  # type: ignore[no-any-return]
        finally:
            del end  # an error's traceback leads here, and must not lead back to the error


@dataclass(frozen=True, slots=True)
class _End:
    """How a run ended; its output is plain JSON."""

    output: Any
    error: ChildError | None


class Host(Protocol):
    """What processes need of the machine."""

    run: RunRecord

    @property
    def now_ms(self) -> int: ...

    @property
    def values(self) -> Mapping[str, Any]: ...

    def numbered(self, kind: StepType, name: str) -> str:
        """The next key of acts of a kind and name."""
        ...

    def payload_of(self, mail: Mail) -> Any:
        """The payload of a message, of its declared type; raises ``EventInvalidError`` if it does not fit."""
        ...

    def recorded(self, key: str) -> bool:
        """True if the history of the run has a fact under this key."""
        ...

    def act(
        self, key: str, kind: StepType, name: str, deed: Deed, *, opens: bool = False
    ) -> Coroutine[Any, Any, Answer]:
        """Do something to another run; what came of it. ``opens``: something will come back under the key."""
        ...

    def act_soon(self, key: str, kind: StepType, name: str, deed: Deed) -> None:
        """As ``act``, and nobody waits for the answer."""
        ...

    def expect(self) -> asyncio.Future[Any]:
        """A future that mail will bring about."""
        ...

    def look(self) -> Coroutine[Any, Any, bool]:
        """Let the mail arrive that is there."""
        ...

    def fail(self, error: Exception) -> None:
        """The run ends here and now."""
        ...

    def cancel_main(self, reason: str | None) -> None: ...


class EventChannel(Channel[RunEvent]):
    """``ctx.events``. Holds events with the mail they came by, which is consumed with them."""

    def __init__(self, processes: Processes) -> None:
        super().__init__()
        self._capacity = float("inf")
        self._processes = processes

    async def _look(self) -> bool:
        return await self._processes.look()

    def put(self, event: RunEvent, mail: Mail | None) -> None:
        self._try_send((event, mail))  # type: ignore[arg-type]

    def _received(self, value: Any) -> RunEvent:
        event, mail = value
        if mail is not None:
            self._processes.consume(mail)
        received: RunEvent = event
        return received


class Processes:
    """The dealings of one run with others."""

    def __init__(self, host: Host, requests: Requests, consume: Any, *, trap_links: bool, raises: bool) -> None:
        self.trap_links = trap_links
        self._host = host
        self._requests = requests
        self._consume = consume
        self._raises = raises
        self._events: EventChannel | None = None
        self._early: list[tuple[RunEvent, Mail | None]] = []
        """What happened before anybody asked for ``ctx.events``."""
        self._keys: dict[str, str] = {}
        """Under which key a child was started, by its pid; empty: that key has its result already."""
        self._quiet: set[str] = set()
        """Those whose end is no event."""
        self._ends: dict[str, _End] = {}
        self._awaited: dict[str, list[asyncio.Future[Any]]] = {}
        """Who waits for an end (by pid) or for an answer (by key)."""
        self._asked: dict[str, dict[str, None]] = {}
        """The keys under which a run was asked and has not answered, by its pid."""
        self._answered: set[int] = set()
        self._cancelled = False

    @property
    def pid(self) -> str:
        return f"{self._host.run.workflow}/{self._host.run.instance_id}"

    @property
    def waiting(self) -> bool:
        """Somebody waits for a run to end or to answer."""
        return any(self._awaited.values()) or (self._events is not None and self._events.awaited)

    def consume(self, mail: Mail) -> None:
        self._consume(mail, mail.type)

    async def look(self) -> bool:
        return await self._host.look()

    # --- messages

    def message(self, mail: Mail) -> Message:
        place = f"{self._host.run.number}:{mail.n}"
        return Message(place, mail.type, self._payload_of(mail), mail.sender, from_ms(mail.created_at), self, mail)

    def _payload_of(self, mail: Mail) -> Any:
        try:
            return self._host.payload_of(mail)
        except EventInvalidError as error:
            if mail.ask is not None:  # the code never gets the message, so it cannot answer
                deed = AnswerEvent(mail.n, Reply(False, self._requests.payload(error.message)))
                self._act_soon(StepType.REPLY, f"{mail.type} from {mail.sender or 'outside'}", deed)
            raise

    def _event(self, key: str, pid: str, topic: str, payload: Any) -> NewEvent:
        """The event to be sent under a key. One that does not fit is refused before anything is recorded."""
        recorded = self._host.recorded(key)
        return self._requests.event_to(pid, topic, payload, sender=self.pid, recorded=recorded)

    async def send(self, pid: str, topic: str, payload: Any) -> None:
        name = f"{topic} to {pid}"
        key = self._host.numbered(StepType.SEND, name)
        event = self._event(key, pid, topic, payload)
        self._check_reached(await self._host.act(key, StepType.SEND, name, event), pid)

    async def ask(self, pid: str, topic: str, payload: Any, timeout: Duration | None) -> Any:
        name = f"{topic} of {pid}"
        key = self._host.numbered(StepType.ASK, name)
        event = replace(self._event(key, pid, topic, payload), ask=f"{self._host.run.number}/{key}")
        seconds = durations.to_ms(_FOREVER if timeout is None else timeout, "timeout") / 1000
        self._hear_of_end(pid)
        self._check_reached(await self._host.act(key, StepType.ASK, name, event, opens=True), pid)
        self._asked.setdefault(pid, {})[key] = None
        try:
            async with asyncio.timeout(seconds):
                answer = await self._await(key)
        except TimeoutError:
            raise TimeoutError(f"{pid} did not answer {topic!r} in time") from None
        finally:
            self._asked.get(pid, {}).pop(key, None)
        if answer is None:
            raise InstanceNotFoundError(f"run {pid} has ended without an answer to {topic!r}")
        ok, value = answer
        if not ok:
            raise Rejected(f"{pid} rejected {topic!r}: {shown(value)}", value)
        return value

    def _hear_of_end(self, pid: str) -> None:
        """Who ends cannot answer any more. Once for each run that is asked."""
        if pid not in self._asked:
            self._asked[pid] = {}
            deed = WatchRun(*self._requests.address(pid), Watch.ASK)
            self._host.act_soon(self._host.numbered(StepType.WATCH, pid), StepType.WATCH, pid, deed)

    async def answer(self, mail: Mail, payload: Any, *, ok: bool) -> None:
        if mail.ask is None:
            raise NotAskedError(f"the sender of message {mail.type!r} does not wait for an answer")
        if mail.n in self._answered:
            raise NotAskedError(f"message {mail.type!r} was answered already")
        deed = AnswerEvent(mail.n, Reply(ok, self._requests.payload(payload)))
        name = f"{mail.type} from {mail.sender or 'outside'}"
        key = self._host.numbered(StepType.REPLY, name)
        self._answered.add(mail.n)
        await self._host.act(key, StepType.REPLY, name, deed)

    def replied(self, mail: Mail) -> None:
        """An answer has come."""
        key = self.asked_under(mail)
        self.consume(mail)
        if key is not None:
            content = payload_of(mail)
            self._settle(key, (content["ok"], content["value"]))

    def asked_under(self, mail: Mail) -> str | None:
        """The key under which this run asked what is answered; None: an earlier run of the instance asked."""
        number, _, key = payload_of(mail)["ask"].partition("/")
        return key if number == str(self._host.run.number) else None

    # --- children

    async def start(
        self,
        workflow: Any,
        params: Any,
        *,
        link: bool = False,
        quiet: bool = False,
        parent_close: str = "terminate",
        context: Mapping[str, Any] | None = None,
        eager: bool = True,
        **options: Any,
    ) -> Child[Any]:
        if not isinstance(link, bool):
            raise InvalidOptionError(f"link must be True or False, not {shown(link)}")
        definition = self._requests.definition(workflow)
        key = self._host.numbered(StepType.CHILD, definition.name)
        if options.get("id") is None:
            options["id"] = self._child_id(key)
        if context is not None and not isinstance(context, Mapping):
            raise InvalidOptionError(f"context must be a mapping with text as keys, not {shown(context)}")
        values = {**self._host.values, **(context or {})}
        check_known(options, CHILD_OPTIONS)
        new = self._requests.new_run(definition.name, params, context=values or None, **options)
        self._as_child(new, parent_close, eager=eager)
        pid = f"{new.workflow}/{new.instance_id}"
        opens = pid not in self._keys or pid in self._ends  # else its end comes under the key it was started with
        answer = await self._host.act(key, StepType.CHILD, pid, new, opens=opens)
        self._check_started(answer, pid)
        if opens or pid in self._ends:
            self._keys[pid] = key if opens else ""  # the one before has ended meanwhile, under its own key
        self._ends.pop(pid, None)
        (self._quiet.add if quiet else self._quiet.discard)(pid)
        if answer is Answer.EXISTING:
            await self._watch(pid, Watch.MONITOR)
        if link:
            await self._watch(pid, Watch.LINK)
        return Child(self, pid, definition)

    def _child_id(self, key: str) -> str:
        """Of a child that was given none: another one for each run and place in its code, the same on every replay."""
        run = self._host.run
        return hashlib.sha256(f"{run.seed}/{self.pid}/{run.number}/{key}".encode()).hexdigest()[:32]

    def _as_child(self, new: NewRun, parent_close: str, *, eager: bool) -> None:
        if not isinstance(eager, bool):
            raise InvalidOptionError(f"eager must be True or False, not {shown(eager)}")
        try:
            new.parent_close = ParentClose(parent_close)
        except ValueError:
            allowed = ", ".join(ParentClose)
            raise InvalidOptionError(f"parent_close must be one of {allowed}, not {shown(parent_close)}") from None
        new.parent, new.parent_run, new.sender = self.pid, self._host.run.run, self.pid
        new.eager = eager

    async def run(self, workflow: Any, params: Any, *, wait_for_cancellation: bool = False, **options: Any) -> Any:
        """Start a child and wait for its end. If the wait is cancelled, so is the child."""
        if not isinstance(wait_for_cancellation, bool):
            raise InvalidOptionError(f"wait_for_cancellation must be True or False, not {shown(wait_for_cancellation)}")
        child = await self.start(workflow, params, quiet=True, **options)
        try:
            return await child.result()
        except asyncio.CancelledError:
            if child.pid not in self._ends:
                self._cancel_soon(child.pid, "the run that awaited it was cancelled")
                if wait_for_cancellation:
                    with shielded():
                        await self.end_of(child.pid)
            raise

    async def end_of(self, pid: str) -> _End:
        end = self._ends.get(pid)
        if end is None:
            end = await self._await(pid)
        return end

    def key_of(self, mail: Mail) -> str | None:
        """Under which key a child was started that has ended."""
        return None if mail.sender in self._ends else self._keys.get(mail.sender or "") or None

    def exited(self, mail: Mail) -> None:
        """A run that is watched has ended."""
        pid, content = mail.sender or "", payload_of(mail)
        end = _End(content["output"], _child_error(pid, content))
        watch = Watch(content["watch"])
        mine = pid in self._keys
        if mine:
            self._ends[pid] = end
            self._settle(pid, end)
        if watch & Watch.ASK:
            for key in list(self._asked.pop(pid, ())):
                self._settle(key, None)
        told = False
        if watch & Watch.LINK and end.error is not None:
            told = self._link_fell(pid, end.error, mail)
        if watch & Watch.MONITOR and pid not in self._quiet:
            told = self._tell(Exit(pid, self._result(pid, end), end.error), None if told else mail) or told
        if not told:
            self.consume(mail)

    def _result(self, pid: str, end: _End) -> Any:
        if end.error is not None:
            return None
        try:
            return self._requests.definition(pid.partition("/")[0]).decode_output(end.output)
        except Exception:  # of a workflow that is not known here, or known by another shape
            return end.output

    # --- watching

    @property
    def events(self) -> Channel[RunEvent]:
        if self._events is None:
            self._events = EventChannel(self)
            for event, mail in self._early:
                self._events.put(event, mail)
            self._early.clear()
        return self._events

    async def watch(self, pid: str, watch: Watch) -> None:
        if watch is Watch.MONITOR:
            quiet = pid in self._quiet
            self._quiet.discard(pid)
            if pid in self._keys and (end := self._ends.get(pid)) is not None:
                if quiet:
                    self._tell(Exit(pid, self._result(pid, end), end.error), None)
                return
        await self._watch(pid, watch)

    async def _watch(self, pid: str, watch: Watch) -> None:
        kind = StepType.LINK if watch is Watch.LINK else StepType.MONITOR
        deed = WatchRun(*self._requests.address(pid), watch)
        self._check_reached(await self._host.act(self._host.numbered(kind, pid), kind, pid, deed), pid, ended=False)

    async def unwatch(self, pid: str, watch: Watch) -> None:
        kind = StepType.UNLINK if watch is Watch.LINK else StepType.UNMONITOR
        workflow, instance_id = self._requests.address(pid)
        if watch is Watch.MONITOR:
            self._quiet.add(pid)
            if pid in self._keys:
                return  # its result may still be awaited; only no event comes of it
        deed = UnwatchRun(workflow, instance_id, watch)
        await self._host.act(self._host.numbered(kind, pid), kind, pid, deed)

    def _link_fell(self, pid: str, error: ChildError, mail: Mail) -> bool:
        if self.trap_links:
            return self._tell(LinkDown(pid, error), mail)
        if error.type == LinkDownError.__name__:
            why = error.message  # of the one that fell first
        else:
            why = f"linked run {pid} ended {error.status}: {error.type}: {error.message}"
        self._host.fail(LinkDownError(why))
        return False

    def _tell(self, event: RunEvent, mail: Mail | None) -> bool:
        """Put an event where ``ctx.events`` finds it; whether its mail is consumed only when it is received."""
        if self._events is None:
            mail = mail if isinstance(event, Cancel) else None  # the others can be asked for again: see pass_on
            self._early.append((event, mail))
        else:
            self._events.put(event, mail)
        return mail is not None

    def dissolve(self) -> None:
        self._events = None
        self._ends.clear()  # an error's traceback leads to whoever it was raised to

    def pass_on(self) -> None:
        """The run continues as a new one, which is to be told of what nobody has looked at here."""
        for event, _ in self._early:
            if isinstance(event, Exit | LinkDown):
                watch = Watch.MONITOR if isinstance(event, Exit) else Watch.LINK
                self._act_soon(StepType.WATCH, event.pid, WatchRun(*self._requests.address(event.pid), watch))
        for pid in self._keys:
            if pid in self._quiet and pid not in self._ends:  # the next one shall not hear of it either
                self._act_soon(StepType.WATCH, pid, UnwatchRun(*self._requests.address(pid), Watch.MONITOR))

    def _act_soon(self, kind: StepType, name: str, deed: Deed) -> None:
        self._host.act_soon(self._host.numbered(kind, name), kind, name, deed)

    # --- control

    async def cancel(self, pid: str, reason: str | None, deadline: Duration | None) -> None:
        workflow, instance_id = self._requests.address(pid)
        deed = CancelRun(workflow, instance_id, *self._requests.cancellation(reason, deadline))
        kind = StepType.CANCEL
        self._check_steered(await self._host.act(self._host.numbered(kind, pid), kind, pid, deed), pid, "cancelled")

    def _cancel_soon(self, pid: str, reason: str) -> None:
        workflow, instance_id = self._requests.address(pid)
        self._act_soon(
            StepType.CANCEL, pid, CancelRun(workflow, instance_id, *self._requests.cancellation(reason, None))
        )

    async def terminate(self, pid: str, reason: str | None) -> None:
        if reason is not None and not isinstance(reason, str):
            raise InvalidOptionError(f"reason must be text, not {shown(reason)}")
        deed = TerminateRun(*self._requests.address(pid), reason)
        kind = StepType.TERMINATE
        self._check_steered(await self._host.act(self._host.numbered(kind, pid), kind, pid, deed), pid, "terminated")

    def cancel_asked(self, mail: Mail) -> None:
        """This run is to cancel."""
        content = payload_of(mail)
        reason, deadline_ms = content["reason"], content["deadlineMs"]
        deadline = None
        if deadline_ms is not None:
            deadline = from_ms(mail.created_at) + timedelta(milliseconds=deadline_ms)
        # What was raised is done with: a run that continues nevertheless is not cancelled once more.
        if not self._tell(Cancel(reason, deadline), None if self._raises else mail):
            self.consume(mail)
        if self._raises and not self._cancelled:
            self._cancelled = True
            self._host.cancel_main(reason)

    # --- waiting and answers

    async def _await(self, what: str) -> Any:
        future = self._host.expect()
        self._awaited.setdefault(what, []).append(future)
        try:
            return await future
        finally:
            waiting = self._awaited.get(what)
            if waiting and future in waiting:
                waiting.remove(future)

    def _settle(self, what: str, value: Any) -> None:
        for future in self._awaited.pop(what, ()):
            if not future.done():
                future.set_result(value)

    def _check_reached(self, answer: Answer, pid: str, *, ended: bool = True) -> None:
        if answer is Answer.MISSING or (ended and answer is Answer.ENDED):
            what = "has ended" if answer is Answer.ENDED else "does not exist"
            raise InstanceNotFoundError(f"run {pid} {what}")

    def _check_steered(self, answer: Answer, pid: str, what: str) -> None:
        if answer is Answer.ENDED:
            raise InstanceTerminalError(f"run {pid} has ended and cannot be {what}")
        self._check_reached(answer, pid)

    def _check_started(self, answer: Answer, pid: str) -> None:
        if answer is Answer.EXISTS:
            raise InstanceExistsError(f"run {pid} exists already")
        if answer is Answer.ENDED:
            raise InstanceTerminalError(f"run {pid} has ended, so the messages for it have nowhere to go")


def _child_error(pid: str, content: Mapping[str, Any]) -> ChildError | None:
    status, note = content["status"], content.get("note")
    if status == Status.COMPLETE:
        return None
    if content["error"] is not None:
        return Failure.from_content(content["error"]).as_child_error(pid, status)
    reason = note or "no reason given"
    return Failure("Terminated", f"it was terminated ({reason})", kind="Terminated", retryable=False).as_child_error(
        pid, status
    )
