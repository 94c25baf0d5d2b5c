"""The replay machine: history in, commands out.

Everything the code can observe (a step's result, a timer, an event) is a RESULT fact with a sequence number. The
machine delivers them one at a time and runs the code to rest between two deliveries, live exactly as on replay; so
whatever the code does in between, races included, comes out the same each time. A recorded result that the code has
not asked for yet waits until it does, which is why code may gain and lose steps while runs are open.

Time here is the time of the last delivered fact. There is no I/O and no clock.
"""

from __future__ import annotations

import asyncio
import hashlib
import inspect
import itertools
from collections.abc import Callable, Coroutine, Mapping, Sequence
from random import Random
from types import MappingProxyType
from typing import Any, Protocol

from holdfast.core import codec, durations, failure
from holdfast.core.event import Event
from holdfast.core.failure import Failure
from holdfast.core.limits import Limits
from holdfast.core.model import Level, StepType, from_ms
from holdfast.core.names import check_step_name
from holdfast.errors import (
    DuplicateStepError,
    EventInvalidError,
    InvalidNameError,
    MaxStepsExceededError,
    ParamsInvalidError,
    StepTypeMismatchError,
    VersionUnsupportedError,
    WaitForEventTimeoutError,
    WorkflowStuckError,
)
from holdfast.kernel.attempt import NO_VALUES
from holdfast.kernel.driver import Call, Outcome, Rest
from holdfast.kernel.events import Decode, read_payload
from holdfast.kernel.options import NO_OPTIONS, RunOptions
from holdfast.kernel.requests import Requests
from holdfast.store.protocol import (
    CANCEL,
    Act,
    Answer,
    Deed,
    Delivery,
    Fact,
    FactState,
    Finish,
    Follows,
    Log,
    Mail,
    Park,
    RunRecord,
    Snapshot,
)
from holdfast.workflow import guard, naming, repeats
from holdfast.workflow.agenda import Agenda
from holdfast.workflow.asked import Asked, AskedAct, AskedStep, AskedTimer, AskedWait, News, taken
from holdfast.workflow.ending import ContinueAsNew, Ending
from holdfast.workflow.guard import WorkflowRandom
from holdfast.workflow.loop import Nobody, WorkflowLoop, WorkflowTimer
from holdfast.workflow.mailbox import Mailbox
from holdfast.workflow.naming import Leftovers, StepNames
from holdfast.workflow.past import Past
from holdfast.workflow.portrait import Portrait
from holdfast.workflow.post import MORE, Place, Post
from holdfast.workflow.processes import Processes
from holdfast.workflow.repeats import Given
from holdfast.workflow.steps import StepSpec
from holdfast.workflow.tries import Tries

_ANONYMOUS = "#"
"""Keys of timers without a name begin with it. No key of a step does: a name before ``#2`` is never empty."""


class Program(Protocol):
    """The workflow code and how its values are read and written."""

    name: str
    raises_cancel: bool
    """Whether a cancellation is raised in the code, and not only told of."""
    trap_links: bool
    step_names: StepNames

    def main(self, machine: Machine) -> Coroutine[Any, Any, Any]: ...

    def event_decoder(self, type: str) -> Decode:
        """The decoder for payloads of an event type: of the declared type, if there is one."""
        ...

    def encode_params(self, value: Any) -> bytes | None: ...

    def encode_output(self, value: Any) -> bytes: ...


class Machine:
    """One run of replayed code in memory."""

    def __init__(
        self,
        program: Program,
        run: RunRecord,
        snapshot: Snapshot | None,
        limits: Limits,
        requests: Requests,
        *,
        strict: bool = False,
    ) -> None:
        """``strict``: park the run where a warning would be written about a step that may have been renamed."""
        self.program = program
        self.run = run
        self.limits = limits
        self.options = NO_OPTIONS if run.options is None else RunOptions.decode(run.options)
        self.values = MappingProxyType(self.options.context) if self.options.context else NO_VALUES
        self.portrait = Portrait(self.options, run, limits)
        self._requests = requests
        self.loop = WorkflowLoop(self, run.seed)  # type: ignore[abstract]  # what it lacks is made by its module
        self.now_ms = self.started_ms = run.started_at or 0
        self.history_length = self.history_size = 0
        self._random: Random | None = None
        self._draws = 0

        self._past = Past(snapshot)
        self._aliases = program.step_names.aliases(self._past.kinds)
        self._leftovers = Leftovers(program.step_names)
        self._strict = strict
        self._agenda = Agenda()

        # What the code has seen and asked.
        self._position = 0
        self._settled: dict[str, Fact] = {}
        self._begun: dict[str, Fact] = {}
        """Acts from which something comes back under the same key."""
        self._live: dict[str, Any] = {}
        self._asked: dict[str, Asked] = {}
        self._kinds: dict[str, StepType] = {}
        self._asks: dict[str, int] = {}
        self._calls: dict[str, int] = {}
        self._given: dict[str, Given] = {}
        """What the first ``ctx.do`` of each name in this execution was given."""
        self._unstarted: dict[str, Coroutine[Any, Any, Any]] = {}
        self._steps = 0
        self._lines = 0
        self._unsent: list[AskedAct] = []
        self._acting: list[Act] = []
        """Written with the last commit; what came of them is not known yet."""
        self._post = Post(self._agenda, self._make_mailbox, self._make_processes)

        self._wall_ms = 0
        self._news = News()
        self._tries = Tries(self._past, self._agenda, self._news.facts, run.seed)
        self._main: asyncio.Task[Any] | None = None
        self._ended = False
        self._closed = False
        self._fatal: BaseException | None = None
        self._cancelled_for: str | None = None
        """The reason, once it was asked to cancel."""
        self._diverged: str | None = None
        self._holding = False
        self._new = run.started_at is None
        self._replaying = False
        """What the code does now it has done before."""

    # --- driven by the runner

    def advance(
        self,
        now_ms: int,
        outcomes: Sequence[Outcome] = (),
        mail: Sequence[Mail] = (),
        *,
        acted: Sequence[Answer] = (),
        lost: bool = False,
    ) -> Rest:
        self._wall_ms = now_ms
        for item in mail:
            self._agenda.receive(item)
        started_at = self._begin(now_ms)
        if lost:
            self._count_losses(now_ms)
        if acted:
            self._take_answers(acted)
        for outcome in outcomes:
            self._take(outcome)
        if not self._holding:
            self._deliver_due(now_ms)
        return self._rest(now_ms, started_at)

    def seal(self, acts: Sequence[Act]) -> None:
        for place, act in enumerate(acts, self._position + len(self._acting) + 1):
            act.fact = act.fact._replace(seq=place)
        self._acting += acts

    def hold(self) -> None:
        """From now on only write down what becomes known; no more code runs. The machine is of no use afterwards."""
        self._holding = True

    def close(self) -> None:
        if self._closed:
            return
        self._ended = self._closed = True
        self.loop.close_coroutines()
        for coro in self._unstarted.values():
            coro.close()
        # Nothing but the garbage collector would find its way through these circles.
        self._main = None
        self.loop.host = Nobody()
        self._asked.clear()
        self._given.clear()
        self._agenda.dissolve()
        self._post.dissolve()
        del self._post

    # --- asked by workflow code

    def call(
        self,
        name: str,
        spec: StepSpec,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        *,
        registered: bool = True,
    ) -> Coroutine[Any, Any, Any]:
        """A step function called directly: its key is its name, then name#2, name#3 in the order of the calls."""
        spec.check_arguments(name, args, kwargs)
        count = self._calls[name] = self._calls.get(name, 0) + 1
        key = name if count == 1 else f"{name}#{count}"
        if self._aliases:
            key = self._aliases.get(key, key)
        coro = self.do(key, name if registered else None, spec, args, kwargs)
        self._unstarted[key] = coro
        return coro

    def call_named(
        self, name: str, spec: StepSpec, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Coroutine[Any, Any, Any]:
        key = check_step_name(name, self.limits)
        spec.check_arguments(name, args, kwargs)
        if self._aliases:
            key = self._aliases.get(key, key)
        given = Given(spec.function, args, kwargs)
        first = self._given.setdefault(key, given)
        if first is not given:
            self._compare_calls(key, first, given)
        coro = self.do(key, None, spec, args, kwargs)
        if key not in self._unstarted:
            self._unstarted[key] = coro
        return coro

    def _compare_calls(self, key: str, first: Given, again: Given) -> None:
        how = repeats.difference(first, again)
        if how is not None:
            self._warn_once(f"repeated {key}", repeats.warning(key, how))

    async def do(
        self, key: str, name: str | None, spec: StepSpec, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Any:
        self._unstarted.pop(key, None)
        settled = self._ask(key, StepType.DO)
        if settled is not None:
            return self._outcome_of(settled, spec)
        future: asyncio.Future[Any] = asyncio.Future(loop=self.loop)
        asked = AskedStep(key, name, future, self.now_ms, spec)
        asked.args, asked.kwargs, asked.limit, asked.values = args, kwargs, self.limits.result, self.values
        self._asked[key] = asked
        if key in self._past.kinds:
            self._tries.resume(asked)
        self._agenda.ready.append(asked)
        try:
            return await future
        except asyncio.CancelledError:
            self._cancelled(asked)
            raise
        finally:
            del asked, future  # an error's traceback leads here, and must not lead back to the error

    async def sleep(self, key: str, due: Callable[[], int]) -> None:
        if self._ask(key, StepType.SLEEP) is None:
            await self._until(self._open_wait(key, StepType.SLEEP, due(), None))

    async def wait_for_event(self, key: str, event_type: str, timeout_ms: int, decode: Decode) -> Event[Any]:
        settled = self._ask(key, StepType.WAIT)
        if settled is None:
            wait = self._open_wait(key, StepType.WAIT, self.now_ms + timeout_ms, event_type)
            wait.decode = decode
            await self._until(wait)
            if wait.event is not None:
                return wait.event
            settled = self._settled[key]
        if not settled.ok:
            raise _wait_error(settled)
        mail = self._live.get(key) or self._past.mail[settled.event or 0]
        try:
            payload = read_payload(mail.type, mail.payload, decode)
        except EventInvalidError as error:
            text = f"the event that {key!r} has received does not fit the code any more: {error}"
            never: Event[Any] = await self.diverge(text)
            return never
        return Event(mail.type, payload, from_ms(mail.created_at), mail.sender)

    def version(self, change_id: str, least: int, most: int) -> int:
        """The version of a change that this run goes by: the newest, unless its history passed the change before."""
        key = f"{_ANONYMOUS}version {change_id}"
        chosen = self._past.versions.get(key)
        if chosen is None:
            chosen = self._past.versions[key] = least if self._replaying else most
            fact = Fact(
                FactState.RESULT, key, 0, StepType.VERSION, self.now_ms, self.now_ms,
                value=str(chosen).encode(), name=change_id,
            )  # fmt: skip
            self._news.facts.append(fact)  # chosen once, also if a pause leaves out what follows
        if not least <= chosen <= most:
            raise VersionUnsupportedError(
                f"this run goes by version {chosen} of {change_id!r}, and the code supports {least} to {most}; "
                "run it with code that still has that version"
            )
        return chosen

    def log(self, level: Level, category: str, message: str, data: bytes | None) -> None:
        if self._ended:
            return
        self._lines += 1
        line = Log(level, category, message, data, self._wall_ms, is_replay=self._lines <= self._past.logged)
        self._news.logs.append(line)

    def diverge(self, message: str) -> asyncio.Future[Any]:
        """History and code do not fit: the run parks, and the code that found out never goes on."""
        self._note_divergence(message)
        return self.loop.create_future()

    @property
    def random(self) -> Random:
        if self._random is None:
            self._random = WorkflowRandom(f"{self.run.seed}/{self.run.number}", self.loop)
        return self._random

    def random_bytes(self, n: int) -> bytes:
        self._draws += 1
        return hashlib.shake_256(f"{self.run.seed}/{self.run.number}/{self._draws}".encode()).digest(n)

    # --- other runs

    @property
    def mailbox(self) -> Mailbox:
        return self._post.mailbox

    @property
    def processes(self) -> Processes:
        return self._post.processes

    def _make_mailbox(self) -> Mailbox:
        return Mailbox(self._consume, self.look)

    def _make_processes(self) -> Processes:
        program = self.program
        return Processes(
            self, self._requests, self._consume, trap_links=program.trap_links, raises=program.raises_cancel
        )

    def payload_of(self, mail: Mail) -> Any:
        """The payload of a message, of its declared type if it has one."""
        return read_payload(mail.type, mail.payload, self.program.event_decoder(mail.type))

    def recorded(self, key: str) -> bool:
        return key in self._past.kinds

    def numbered(self, kind: StepType, name: str) -> str:
        guard.check(self.loop, name)
        base = f"{_ANONYMOUS}{kind} {name}"
        count = self._calls[base] = self._calls.get(base, 0) + 1
        return base if count == 1 else f"{base}#{count}"

    async def act(self, key: str, kind: StepType, name: str, deed: Deed, *, opens: bool = False) -> Answer:
        fact = (self._begun if opens else self._settled).get(key)
        if fact is None:
            asked = self._ask_act(key, (kind, name, deed))
            asked.state = FactState.START if opens else FactState.RESULT
            fact = await self._until(asked)
        return Answer(codec.plain(fact.value))

    def act_soon(self, key: str, kind: StepType, name: str, deed: Deed) -> None:
        if key not in self._settled:
            self._ask_act(key, (kind, name, deed))

    def _ask_act(self, key: str, act: tuple[StepType, str, Deed]) -> AskedAct:
        asked = AskedAct(key, asyncio.Future(loop=self.loop), self.now_ms, act)
        self._asked[key] = asked
        self._unsent.append(asked)
        return asked

    def expect(self) -> asyncio.Future[Any]:
        guard.check(self.loop, "what a run waits for")
        return asyncio.Future(loop=self.loop)

    async def look(self) -> bool:
        """Let the mail arrive that is there. That there was no more is a fact too: a timer that is due at once."""
        looked = self.expect()
        self.loop.call_with_fact(self._wall_ms, _set, looked)
        await looked
        return True

    def fail(self, error: Exception) -> None:
        self._fatal = self._fatal or error

    def cancel_main(self, reason: str | None) -> None:
        self._cancelled_for = reason or ""
        if self._main is not None:
            self._main.cancel()

    def continue_as_new(self, params: Any) -> ContinueAsNew:
        return ContinueAsNew(self.program.encode_params(params))

    # --- asked by the loop

    def open_timer(self, handle: WorkflowTimer, due_ms: int) -> None:
        asked = AskedTimer(f"{_ANONYMOUS}{handle.number}", handle, self.now_ms, due_ms)
        self._asked[asked.key] = asked
        self._agenda.wait_until(due_ms, asked)

    def close_timer(self, handle: WorkflowTimer) -> None:
        asked = self._asked.pop(f"{_ANONYMOUS}{handle.number}", None)
        if asked is not None:
            asked.closed = True

    def report(self, context: dict[str, Any]) -> None:
        """An exception that nobody awaited."""
        error = context.get("exception")
        text = context.get("message", "unhandled error")
        self._say(Level.ERROR, f"{text}: {error!r}" if error is not None else text)

    # --- asking and settling

    def _ask(self, key: str, kind: StepType) -> Fact | None:
        """Register the wish for a key; the fact if it is settled already."""
        guard.check(self.loop, key)
        if key.startswith(_ANONYMOUS):
            raise InvalidNameError(f"step name {key!r} begins with {_ANONYMOUS!r}, as only the engine's own keys do")
        known = self._kinds.get(key)
        if known is not None and known is not kind:
            raise StepTypeMismatchError(
                f"{key!r} is used for a {known} and for a {kind} in the same run; give one of them another name"
            )
        recorded = self._past.kinds.get(key)
        if recorded is not None and recorded != kind:
            self._note_divergence(f"the history has {key!r} recorded as {recorded}, the code asks for it as {kind}")
            kind = StepType(recorded)
        if known is None:
            self._kinds[key] = kind
            self._count_step(kind)
        if key in self._asked:
            raise DuplicateStepError(f"{key!r} is running already; a name can be awaited once at a time")
        if self._leftovers:
            self._leftovers.asked(key)
        return self._settled.get(key)

    def _count_step(self, kind: StepType) -> None:
        if kind is StepType.DO:
            self._steps += 1
            if self._steps > self.limits.steps:
                raise MaxStepsExceededError(
                    f"this run asked for more than {self.limits.steps} steps; "
                    "split it into several runs, or raise Limits(steps=)"
                )

    async def _until(self, asked: Asked) -> Any:
        try:
            return await asked.future
        except asyncio.CancelledError:
            self._cancelled(asked)
            raise

    def _cancelled(self, asked: Asked) -> None:
        if asked.future.cancelled() or not asked.future.done():
            self._abandon(asked)

    def _abandon(self, asked: Asked) -> None:
        """The code does not want it any more. What it waited for goes to whoever asks next."""
        if self._ended or self._asked.get(asked.key) is not asked:
            return
        del self._asked[asked.key]
        asked.closed = True
        if isinstance(asked, AskedStep) and asked.running:
            self._news.cancelled.append(asked.key)
            self._tries.cancelled(asked, self._wall_ms)
        elif isinstance(asked, AskedWait) and (asked.key, asked.n) in self._past.starts:
            self._note_cancelled_wait(asked)

    def _note_cancelled_wait(self, wait: AskedWait) -> None:
        last = self._past.failures.get(wait.key)
        if last is not None and last.n > wait.n:
            return  # noted before this replay
        fact = Fact(
            FactState.FAILURE, wait.key, wait.n + 1, wait.kind, self._wall_ms, wait.started_at,
            ok=False, value=failure.cancelled(wait.key).encode(), event_type=wait.event_type,
        )  # fmt: skip
        self._past.failures[wait.key] = fact
        self._news.opened.append(fact)

    def _open_wait(self, key: str, kind: StepType, due: int, event_type: str | None) -> AskedWait:
        n = self._asks.get(key, 0)
        self._asks[key] = n + 1
        start = self._past.starts.get((key, n))
        if start is not None and start.wake_at is not None:
            due = start.wake_at  # what was promised stands, whatever the code says now
        asked = AskedWait(key, kind, asyncio.Future(loop=self.loop), self.now_ms, due)
        asked.event_type, asked.n = event_type, n
        self._asked[key] = asked
        self._agenda.wait_until(due, asked)
        if event_type is not None:
            self._agenda.wait_for(event_type, asked)
        if start is None:
            fact = Fact(FactState.START, key, n, kind, self.now_ms, self.now_ms, wake_at=due, event_type=event_type)
            self._news.opened.append(fact)
        return asked

    def _outcome_of(self, fact: Fact, spec: StepSpec) -> Any:
        if fact.ok:
            return self._decoded(fact, spec)
        raise Failure.decode(fact.value or b"{}").as_exception(fact.key, fact.attempts, spec.raises)

    def _decoded(self, fact: Fact, spec: StepSpec) -> Any:
        try:
            return spec.decode(codec.plain(fact.value))
        except ParamsInvalidError as error:
            self._note_divergence(
                f"the recorded result of {fact.key!r} does not fit the function's return annotation any more: {error}"
            )
            return None

    def _note_divergence(self, message: str) -> None:
        self._diverged = self._diverged or message

    # --- observing

    def _begin(self, now_ms: int) -> int | None:
        """Start the code and replay what is recorded; the time of the start if this is the first time ever."""
        if self._main is not None:
            return None
        started_at = None
        if self._new:
            if self._stillborn():
                return None
            started_at = self.now_ms = self.started_ms = now_ms
        self._main = self.loop.create_task(self.program.main(self), name="main")
        self._replaying = not self._new
        self._run()
        while self._past.results and not self._ended:
            self._deliver(self._past.results.popleft(), None)
        self._replaying = False
        return started_at

    def _stillborn(self) -> bool:
        """It was cancelled before any of its code ran; so none does."""
        mail = self._agenda.first(CANCEL) if self.program.raises_cancel else None
        if mail is None:
            return False
        self._cancelled_for = codec.plain(mail.payload)["reason"] or ""
        self._consume(mail, CANCEL)
        self._ended = True
        return True

    def _take_answers(self, answers: Sequence[Answer]) -> None:
        """What came of the acts of the last commit, which has written it down already."""
        acts, self._acting = self._acting, []
        for act, answer in zip(acts, answers, strict=True):  # in the order in which they were sealed
            if self._ended or self._holding:
                return
            self._deliver(act.fact._replace(ok=answer.ok, value=codec.encode(answer, what="answer")), None)

    def _take(self, outcome: Outcome) -> None:
        """An attempt has come to an end."""
        asked = self._asked.get(outcome.key)
        over = self._ended and not self._holding
        if over or not isinstance(asked, AskedStep) or asked.failures + 1 != outcome.attempt:
            if outcome.logs and asked is None and outcome.key not in self._settled:
                self._news.outcomes.append(outcome.failed(failure.cancelled(outcome.key)))  # for its log lines
            return  # cancelled meanwhile: a late result is discarded
        if outcome.logs or outcome.transactional:
            self._news.outcomes.append(outcome)
        fact: Fact | None
        if outcome.failure is None:
            fact = asked.fact(
                FactState.RESULT, 0, outcome.at, outcome.started_at,
                seq=self._position + 1, value=outcome.value, attempts=outcome.attempt,
            )  # fmt: skip
        else:
            fact = self._tries.failed(asked, outcome, outcome.failure, self._position + 1)
        del asked  # as in _deliver
        if fact is not None:
            self._observe(fact, outcome.live)

    def _count_losses(self, now_ms: int) -> None:
        """Attempts that were under way when the last worker was lost count as attempts."""
        for asked in list(self._asked.values()):
            if isinstance(asked, AskedStep) and asked.not_before <= now_ms:
                self._tries.lost(asked, now_ms)

    def _deliver_due(self, now_ms: int) -> None:
        """Deliver timers and events in the order of their times: a deadline beats every event that came after it."""
        agenda = self._agenda
        while not self._ended and not self._diverged:
            if agenda.ready and (refused := agenda.used_up()):
                self._observe(self._tries.refused(refused, now_ms, self._position + 1), None)
                continue
            asked = agenda.due_wait(now_ms)
            mail = self._post.wanted()
            if mail is not None and (asked is None or mail.created_at <= asked.due):
                self._deliver_mail(mail, None if asked is None else asked.due)
            elif asked is not None:
                self._deliver_time(asked, now_ms)
            else:
                return

    def _deliver_mail(self, mail: Mail, due: int | None) -> None:
        wait = self._agenda.hand_over(mail)
        if wait is None:
            self._deliver_arrival(mail, due)
            return
        self._live[wait.key] = mail
        self._news.deliveries.append(Delivery(mail.n, wait.key, self._wall_ms))
        self._observe(wait.received(mail, self._position + 1, self._wall_ms), None)

    def _deliver_arrival(self, mail: Mail, due: int | None) -> None:
        """Mail comes to a channel. What is there at the same time comes along before the code looks."""
        fact = self._post.arrival(mail, Place(self._position + 1, self._wall_ms), self._begun)
        self._reach(fact)
        self._post.arrive(mail)
        if self._post.goes_on(mail, due):
            self._news.facts.append(fact._replace(attempts=MORE))
        else:
            self._news.facts.append(fact)
            self._run()

    def _consume(self, mail: Mail, by: str) -> None:
        self.history_length += 1
        self.history_size += len(mail.payload or b"")
        if mail.delivered_at is None:  # else it was, before this replay
            self._news.deliveries.append(Delivery(mail.n, by, self._wall_ms))

    def _deliver_time(self, asked: AskedWait | AskedTimer, now_ms: int) -> None:
        if isinstance(asked, AskedTimer):
            fact = asked.result(self._position + 1, now_ms)
        else:
            fact = asked.result(self._position + 1, now_ms, ok=asked.kind is StepType.SLEEP)
        self._observe(fact, None)

    def _observe(self, fact: Fact, live: Any) -> None:
        """A new fact: write it down and deliver it."""
        self._news.facts.append(fact)
        if self._holding:
            self._position = fact.seq or self._position
            self._asked.pop(fact.key, None)
        else:
            self._deliver(fact, live)

    def _deliver(self, fact: Fact, live: Any) -> None:
        self._reach(fact)
        if fact.event is not None and fact.kind != StepType.WAIT:
            self._agenda.arrived(fact.event)
            self._post.arrive(self._past.mail[fact.event])
            if fact.attempts != MORE:
                self._run()
            return
        self.history_length += 1
        self.history_size += len(fact.value or b"")
        (self._begun if fact.state == FactState.START else self._settled)[fact.key] = fact
        if fact.event is not None:
            self._post.taken(self._live.get(fact.key) or self._past.mail[fact.event])
        asked = self._asked.pop(fact.key, None)
        if asked is None:
            self._leftovers.add(fact)
            return  # not asked for yet: it waits until it is
        asked.closed = True
        self._resolve(asked, fact, live)
        del asked  # the traceback of an error leads here, and must not lead back to the error
        self._run()

    def _reach(self, fact: Fact) -> None:
        self._position = fact.seq or self._position
        self.now_ms = max(self.now_ms, fact.at)

    def _resolve(self, asked: Asked, fact: Fact, live: Any) -> None:
        if isinstance(asked, AskedTimer):
            self.loop.fire(asked.timer)
        elif asked.future.done():
            return  # cancelled in this very moment
        elif isinstance(asked, AskedStep):
            self._resolve_step(asked, fact, live)
        elif isinstance(asked, AskedAct):
            asked.future.set_result(fact)
        else:
            asked.future.set_result(None)

    def _resolve_step(self, asked: AskedStep, fact: Fact, live: Any) -> None:
        if live is not None:
            asked.future.set_result(live)
            return
        try:
            asked.future.set_result(self._outcome_of(fact, asked.spec))
        except BaseException as error:
            # Without its traceback, which leads to this very future: a circle.
            asked.future.set_exception(error.with_traceback(None))

    def _run(self) -> None:
        try:
            self.loop.run_to_rest()
        except (SystemExit, KeyboardInterrupt, WorkflowStuckError) as error:
            # Tasks let the first two through to stop the program. Here they are the run's own failure.
            self._fatal = error
        self._ended = self._ended or self._fatal is not None or (self._main is not None and self._main.done())

    # --- resting

    def _rest(self, now_ms: int, started_at: int | None) -> Rest:
        halted = self._ended or self._diverged is not None or self._holding
        calls = self._due_calls(now_ms) if self._agenda.ready and not halted else ()
        end = self._end() if not self._holding else None
        wake_at, retrying = self._agenda.next_due()
        news = self._news
        if end is not None:
            news.cancelled += [a.key for a in self._asked.values() if isinstance(a, AskedStep) and a.running]
        return Rest(
            observed=news.observed(),
            follows=Follows(
                self._opened(taken(news.opened)),
                taken(news.logs),
                None if self._holding else self.portrait.news(),
                self._due_acts() if self._unsent and not self._holding else (),
            ),
            calls=calls,
            cancelled=taken(news.cancelled),
            wake_at=wake_at,
            retrying=retrying,
            topics=self._post.topics,
            end=end,
            started_at=started_at,
        )

    def _opened(self, facts: Sequence[Fact]) -> Sequence[Fact]:
        """The waits that are still open: those that were over at once need no START fact."""
        if not facts:
            return ()
        opened = [f for f in facts if f.state != FactState.START or f.key in self._asked]
        self._past.starts.update({(f.key, f.n): f for f in opened if f.state == FactState.START})
        return opened

    def _due_calls(self, now_ms: int) -> Sequence[Call]:
        if self._leftovers:
            self._compare_names(now_ms)
            if self._diverged is not None:
                return ()
        calls = self._agenda.due_steps(now_ms)
        for asked in calls:
            asked.running = True
            if asked.failures:
                asked.started_at = now_ms
        return calls

    def _compare_names(self, now_ms: int) -> None:
        """Before steps without a record are called: they may be recorded under names that the app no longer has."""
        new = [asked.name or asked.key for asked in self._agenda.new_steps(now_ms, self._past.kinds)]
        for name, old in itertools.product(dict.fromkeys(new), self._leftovers.names()):
            if self._strict:
                self._note_divergence(naming.divergence(name, old))
            else:
                self._warn_once(f"renamed {old} {name}", naming.warning(name, old))

    def _due_acts(self) -> Sequence[Act]:
        """What is to be done to others. What nobody wants any more is not."""
        unsent, self._unsent = self._unsent, []
        if self._fatal is not None or self._diverged is not None:
            return ()
        return [asked.act(self.now_ms) for asked in unsent if not asked.closed]

    def _end(self) -> Finish | Park | None:
        if self._diverged is not None:
            self._say(Level.ERROR, f"NON_DETERMINISTIC: {self._diverged}")
            return Park(f"NON_DETERMINISTIC: {self._diverged}")
        if self._ended:
            end = self._ending().of(self._main, self._fatal)
            if end.next is not None and end.next.continues:
                self.loop.run_inside(self._post.pass_on)
            self.loop.report_unseen()
            self._report_unstarted()
            return end
        if self._stuck_with_history():
            keys = ", ".join(map(repr, self._unasked()))
            text = f"the history has results for {keys} which the code never asked for, and the code waits for nothing"
            self._say(Level.ERROR, f"NON_DETERMINISTIC: {text}")
            return Park(f"NON_DETERMINISTIC: {text}")
        return None

    def _stuck_with_history(self) -> bool:
        """The code waits for nothing that can ever happen, and there are results it did not ask for."""
        return not self._asked and bool(self._unasked()) and not self._post.awaited

    def _unasked(self) -> list[str]:
        return [key for key in self._settled if key not in self._kinds and not key.startswith(_ANONYMOUS)]

    def _ending(self) -> Ending:
        return Ending(
            self.run, self.options, self.portrait, self._wall_ms, self.program.encode_output, self._cancelled_for
        )

    def _report_unstarted(self) -> None:
        for key, coro in self._unstarted.items():
            if inspect.getcoroutinestate(coro) == inspect.CORO_CREATED:
                coro.close()
                self._say(
                    Level.WARN,
                    f"step call {key!r} was never awaited, so it did not run; write `await {key}(...)`",
                )
        self._unstarted.clear()

    def _warn_once(self, what: str, message: str) -> None:
        """A warning in the run's log that no replay writes again: a fact goes with it."""
        key = f"{_ANONYMOUS}{StepType.NOTE} {what}"
        if key in self._past.kinds:
            return
        self._past.kinds[key] = StepType.NOTE
        self._news.opened.append(Fact(FactState.RESULT, key, 0, StepType.NOTE, self._wall_ms, self._wall_ms))
        self._say(Level.WARN, message)

    def _say(self, level: Level, message: str) -> None:
        """A system log line."""
        message = message[: self.limits.log_message]
        self._news.logs.append(Log(level, "system", message, None, self._wall_ms))


def _set(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _wait_error(fact: Fact) -> BaseException:
    """The error of a wait that failed: no event came in time, or the payload of its event does not fit."""
    if fact.event is not None:
        return Failure.decode(fact.value or b"{}").as_cause()
    return WaitForEventTimeoutError(
        f"no event of type {fact.event_type!r} came for {fact.key!r} within {durations.describe(_waited(fact))}"
    )


def _waited(fact: Fact) -> int:
    return max(0, (fact.wake_at or fact.at) - fact.started_at)
