"""``Context``: everything workflow code can ask of the engine. A thin, typed face of the machine."""

from __future__ import annotations

import inspect
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from random import Random
from typing import Any, Concatenate, Literal, ParamSpec, Protocol, TypeAlias, TypeVar, TypeVarTuple, Unpack, overload

from holdfast.core import codec, durations
from holdfast.core.durations import Duration
from holdfast.core.event import Event
from holdfast.core.model import Level, from_ms, to_ms
from holdfast.core.names import check_event_type, check_step_name
from holdfast.core.retry import Retry
from holdfast.errors import InvalidDurationError, InvalidOptionError
from holdfast.kernel.attempt import StepTx, Transaction
from holdfast.kernel.logger import StepLogger
from holdfast.kernel.requests import ChildOptions
from holdfast.kernel.startable import In, Out, Startable
from holdfast.store.protocol import Watch
from holdfast.workflow import guard
from holdfast.workflow.channels import Channel
from holdfast.workflow.ending import ContinueAsNew
from holdfast.workflow.loop import current_loop, running_loop
from holdfast.workflow.machine import Machine
from holdfast.workflow.mailbox import DecodedPayload
from holdfast.workflow.processes import Child, Message, RunEvent
from holdfast.workflow.saga import Saga
from holdfast.workflow.steps import spec_of
from holdfast.workflow.timers import Timer, ticks

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
Ts = TypeVarTuple("Ts")
Raises: TypeAlias = tuple[type[BaseException], ...] | None

DECLARED: Any = object()
"""Default of ``payload=``: the type that the workflow declares for the event, else plain JSON."""


@dataclass(eq=False)
class Workflow(Startable[In, Out]):
    """A registered workflow function: what ``app.start`` and ``ctx.run`` take. ``fn`` is the plain function.

    ``Workflow[Order, str]`` takes an ``Order`` and returns a ``str``; ``Workflow[None, str]`` takes no input.
    """

    name: str
    fn: Callable[..., Coroutine[Any, Any, Out]] = field(repr=False)


class OptionalInput(Protocol[In, Out]):
    """A workflow function whose input has a default: ``async def fn(ctx, params=...)``."""

    def __call__(self, ctx: Context, params: In = ..., /) -> Coroutine[Any, Any, Out]: ...


@dataclass(frozen=True, slots=True)
class RunInfo:
    """Facts about the run that are the same on every replay."""

    workflow: str
    instance_id: str
    run_number: int
    queue: str
    attempt: int
    history_length: int
    """How many results the code has seen so far."""
    history_size: int
    """Their size in bytes."""
    started_at: datetime
    parent: str | None
    pid: str


class Context:
    """Handed to a workflow function as its first argument.

    Example::

        @app.workflow
        async def fulfil(ctx: Context, order: Order) -> str:
            payment = await charge(order)
            await ctx.sleep("cool off", "1 hour")
            approval = await ctx.wait_for_event("approval", type="approval")
            return await ctx.do("note", write_note, payment, approval.payload)
    """

    def __init__(self, machine: Machine, now: Callable[[], datetime]) -> None:
        self._unguarded = machine
        self.log = Logger(machine, now)

    @property
    def _machine(self) -> Machine:
        """The machine, for code that runs on its loop: the guard of every method and property here but ``log``."""
        machine = self._unguarded
        if current_loop() is not machine.loop:
            raise guard.of_context(_used_member())
        return machine

    # --- steps

    # Without options every argument is checked. With options the positional ones are: a ParamSpec leaves no room for
    # keywords of one's own. The second four are for functions whose first parameter gets the step's transaction.

    @overload
    def do(
        self, name: str, fn: Callable[P, Awaitable[R]], /, *args: P.args, **kwargs: P.kwargs
    ) -> Coroutine[None, None, R]: ...

    @overload
    def do(self, name: str, fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Coroutine[None, None, R]: ...

    @overload
    def do(
        self, name: str, fn: Callable[[Unpack[Ts]], Awaitable[R]], /, *args: *Ts,
        retry: Retry | None = ..., timeout: Duration | None = ..., raises: Raises = ..., **kwargs: Any,
    ) -> Coroutine[None, None, R]: ...  # fmt: skip

    @overload
    def do(
        self, name: str, fn: Callable[[Unpack[Ts]], R], /, *args: *Ts,
        retry: Retry | None = ..., timeout: Duration | None = ..., raises: Raises = ..., **kwargs: Any,
    ) -> Coroutine[None, None, R]: ...  # fmt: skip

    @overload
    def do(
        self,
        name: str,
        fn: Callable[Concatenate[StepTx, P], Awaitable[R]] | Callable[Concatenate[Transaction, P], Awaitable[R]],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> Coroutine[None, None, R]: ...

    @overload
    def do(
        self, name: str, fn: Callable[Concatenate[StepTx, P], R], /, *args: P.args, **kwargs: P.kwargs
    ) -> Coroutine[None, None, R]: ...

    @overload
    def do(
        self, name: str,
        fn: Callable[[StepTx, Unpack[Ts]], Awaitable[R]] | Callable[[Transaction, Unpack[Ts]], Awaitable[R]],
        /, *args: *Ts,
        retry: Retry | None = ..., timeout: Duration | None = ..., raises: Raises = ..., **kwargs: Any,
    ) -> Coroutine[None, None, R]: ...  # fmt: skip

    @overload
    def do(
        self, name: str, fn: Callable[[StepTx, Unpack[Ts]], R], /, *args: *Ts,
        retry: Retry | None = ..., timeout: Duration | None = ..., raises: Raises = ..., **kwargs: Any,
    ) -> Coroutine[None, None, R]: ...  # fmt: skip

    def do(  # type: ignore[misc]  # mypy: the keywords of a ParamSpec may have the names of the options
        self,
        name: str,
        fn: Callable[..., Any],
        /,
        *args: Any,
        retry: Retry | None = None,
        timeout: Duration | None = None,
        raises: Raises = None,
        **kwargs: Any,
    ) -> Coroutine[None, None, Any]:
        """Run any callable as a step whose key is ``name``; the same name again returns the recorded result."""
        machine = self._machine
        return machine.call_named(name, spec_of(fn).with_options(retry, timeout, raises), args, kwargs)

    # --- time

    def now(self) -> datetime:
        """The time of the last thing that happened in this run, in UTC: the same on every replay."""
        return from_ms(self._machine.now_ms)

    def sleep(self, name: str, duration: Duration) -> Coroutine[None, None, None]:
        """Sleep durably, up to 365 days. Holds no task, thread or connection meanwhile."""
        machine = self._machine
        ms = durations.to_ms(duration, f"sleep {name!r}")
        self._check_sleep(name, ms)
        return machine.sleep(check_step_name(name, machine.limits), lambda: machine.now_ms + ms)

    def sleep_until(self, name: str, when: datetime) -> Coroutine[None, None, None]:
        """Sleep until a moment (an aware ``datetime``); one that is past already is over at once."""
        if not isinstance(when, datetime) or when.tzinfo is None:
            raise InvalidDurationError(f"sleep_until {name!r} needs an aware datetime, not {when!r}")
        machine = self._machine
        due = to_ms(when.astimezone(UTC))
        self._check_sleep(name, due - machine.now_ms)
        return machine.sleep(check_step_name(name, machine.limits), lambda: due)

    def after(self, duration: Duration) -> Channel[datetime]:
        """A channel that gets the time, once, after the duration. For ``select``."""
        return self.timer(duration)

    def timer(self, duration: Duration) -> Timer:
        """As ``after``, and it can be stopped and set again."""
        return Timer(self._timer_seconds(duration), self.now, self._timer_seconds)

    def every(self, duration: Duration) -> AsyncIterator[datetime]:
        """The time, every so often: ``async for now in ctx.every("1 hour")``. Ticks that were missed are one tick."""
        seconds = self._timer_seconds(duration)
        if seconds <= 0:
            raise InvalidDurationError(f"every needs a duration longer than nothing, not {duration!r}")
        return ticks(seconds, self.now)

    def _timer_seconds(self, duration: Duration) -> float:
        ms = durations.to_ms(duration, "timer")
        self._check_sleep("timer", ms)
        return ms / 1000

    def _check_sleep(self, name: str, ms: int) -> None:
        longest = durations.to_ms(self._machine.limits.sleep)
        if ms > longest:
            raise InvalidDurationError(
                f"sleep {name!r} of {durations.describe(ms)} is longer than the limit of {durations.describe(longest)}"
            )

    # --- events

    @overload
    def wait_for_event(
        self, name: str, *, type: str, timeout: Duration = ..., payload: type[T]
    ) -> Coroutine[None, None, Event[T]]: ...

    @overload
    def wait_for_event(
        self, name: str, *, type: str, timeout: Duration = ..., payload: Any = ...
    ) -> Coroutine[None, None, Event[Any]]: ...

    def wait_for_event(
        self, name: str, *, type: str, timeout: Duration = "24 hours", payload: Any = DECLARED
    ) -> Coroutine[None, None, Event[Any]]:
        """Wait for an event of a type, oldest first, also one that came before the wait.

        Raises ``WaitForEventTimeoutError`` when none was sent until the deadline. ``payload`` is the type to decode
        it to; without it, the type that the workflow declares for the event in ``events=``. An event that does not fit
        is consumed by this wait and raises ``EventInvalidError``; wait again under another name for the next one.
        """
        machine = self._machine
        check_event_type(type, machine.limits)
        ms = durations.to_ms(timeout, f"timeout of {name!r}")
        shortest = durations.to_ms(machine.limits.event_wait_min)
        longest = durations.to_ms(machine.limits.event_wait_max)
        if not shortest <= ms <= longest:
            raise InvalidDurationError(
                f"the timeout of {name!r} must be between {durations.describe(shortest)} and "
                f"{durations.describe(longest)}, not {durations.describe(ms)}"
            )
        decode = machine.program.event_decoder(type) if payload is DECLARED else codec.decoder(payload)
        return machine.wait_for_event(check_step_name(name, machine.limits), type, ms, decode)

    # --- messages

    @property
    def inbox(self) -> Channel[Message]:
        """The channel of all messages to this run whose topic nobody listens to."""
        machine = self._machine
        return machine.mailbox.inbox(machine.processes.message)

    @overload
    def listen(self, topic: str, *, messages: Literal[True]) -> Channel[Message]: ...

    @overload
    def listen(self, topic: str, *, messages: Literal[False] = ..., payload: type[T]) -> Channel[T]: ...

    @overload
    def listen(self, topic: str, *, messages: bool = ..., payload: Any = ...) -> Channel[Any]: ...

    def listen(self, topic: str, *, messages: bool = False, payload: Any = DECLARED) -> Channel[Any]:
        """The channel of a topic: what is sent to this run under it, also before. The same object on each call.

        It gives out payloads; with ``messages=True``, messages, which say who sent them and can be answered. Payloads
        have the type ``payload``; without it, the type that the workflow declares in ``events=``, else plain JSON. A
        payload that does not fit is consumed, and raises ``EventInvalidError`` where it is received.
        """
        machine = self._machine
        check_event_type(topic, machine.limits)
        if messages:
            if payload is not DECLARED:
                raise InvalidOptionError(f"listen({topic!r}): messages=True gives whole messages; leave out payload=")
            return machine.mailbox.listen(topic, machine.processes.message)
        return machine.mailbox.listen(topic, machine.payload_of if payload is DECLARED else DecodedPayload(payload))

    def unlisten(self, channel: Channel[Any]) -> None:
        """Close a channel of messages. What was not received goes back, to whoever listens next."""
        self._machine.mailbox.unlisten(channel)

    def send(self, pid: str, topic: str, payload: Any = None) -> Coroutine[None, None, None]:
        """Send a message to a run. Raises ``InstanceNotFoundError`` if it has ended or never was."""
        return self._machine.processes.send(pid, topic, payload)

    def ask(
        self, pid: str, topic: str, payload: Any = None, timeout: Duration | None = None
    ) -> Coroutine[None, None, Any]:
        """Send a message and wait for its answer.

        Raises ``Rejected`` if it is refused, ``TimeoutError`` if none comes in time.
        """
        return self._machine.processes.ask(pid, topic, payload, timeout)

    # --- children

    @overload
    def run(
        self, child: Startable[None, R], params: None = ..., **options: Unpack[ChildOptions]
    ) -> Coroutine[None, None, R]: ...

    @overload
    def run(self, child: Startable[T, R], params: T, **options: Unpack[ChildOptions]) -> Coroutine[None, None, R]: ...

    @overload
    def run(self, child: str, params: Any = ..., **options: Unpack[ChildOptions]) -> Coroutine[None, None, Any]: ...

    def run(
        self, child: Startable[Any, Any] | str, params: Any = None, **options: Unpack[ChildOptions]
    ) -> Coroutine[None, None, Any]:
        """Run another workflow as a child and wait for its result. Raises ``ChildError`` if it does not end well.

        A child whose ``run`` is cancelled is cancelled too; with ``wait_for_cancellation`` this one goes on only when
        that one has ended.
        """
        return self._machine.processes.run(child, params, **options)

    @overload
    def spawn(
        self, child: Startable[None, R], params: None = ..., *, link: bool = ..., **options: Unpack[ChildOptions]
    ) -> Coroutine[None, None, Child[R]]: ...

    @overload
    def spawn(
        self, child: Startable[T, R], params: T, *, link: bool = ..., **options: Unpack[ChildOptions]
    ) -> Coroutine[None, None, Child[R]]: ...

    @overload
    def spawn(
        self, child: str, params: Any = ..., *, link: bool = ..., **options: Unpack[ChildOptions]
    ) -> Coroutine[None, None, Child[Any]]: ...

    def spawn(
        self,
        child: Startable[Any, Any] | str,
        params: Any = None,
        *,
        link: bool = False,
        **options: Unpack[ChildOptions],
    ) -> Coroutine[None, None, Child[Any]]:
        """Start another workflow as a child; it is durable when this returns. ``ctx.events`` tells of its end."""
        return self._machine.processes.start(child, params, link=link, **options)

    # --- watching

    @property
    def events(self) -> Channel[RunEvent]:
        """The channel of what happens to this run and to those it watches: ``Exit``, ``LinkDown``, ``Cancel``."""
        return self._machine.processes.events

    @property
    def trap_links(self) -> bool:
        """Whether a linked run that fails is told of as ``LinkDown``; otherwise this run fails with it."""
        return self._machine.processes.trap_links

    @trap_links.setter
    def trap_links(self, trap: bool) -> None:
        if not isinstance(trap, bool):
            raise InvalidOptionError(f"trap_links is True or False, not {trap!r}")
        self._machine.processes.trap_links = trap

    def monitor(self, pid: str) -> Coroutine[None, None, None]:
        """Be told of the end of a run by ``Exit``; of one that has ended already, at once."""
        return self._machine.processes.watch(pid, Watch.MONITOR)

    def unmonitor(self, pid: str) -> Coroutine[None, None, None]:
        return self._machine.processes.unwatch(pid, Watch.MONITOR)

    def link(self, pid: str) -> Coroutine[None, None, None]:
        """Tie this run and another together: if one fails so does the other, unless it traps links."""
        return self._machine.processes.watch(pid, Watch.LINK)

    def unlink(self, pid: str) -> Coroutine[None, None, None]:
        return self._machine.processes.unwatch(pid, Watch.LINK)

    # --- control

    def cancel(
        self, pid: str, reason: str | None = None, deadline: Duration | None = None
    ) -> Coroutine[None, None, None]:
        """Ask a run to cancel. It may clean up; at the deadline it is terminated."""
        return self._machine.processes.cancel(pid, reason, deadline)

    def terminate(self, pid: str, reason: str | None = None) -> Coroutine[None, None, None]:
        """End a run at once."""
        return self._machine.processes.terminate(pid, reason)

    def continue_as_new(self, params: Any = None) -> ContinueAsNew:
        """To be raised: end here and begin anew under the same id, with these params and an empty history.

        Messages that were not received, children and watches go along.
        """
        return self._machine.continue_as_new(params)

    # --- attributes

    def set_search(self, **values: Any) -> None:
        """Set attributes under which ``app.list(search=...)`` finds this run."""
        self._machine.portrait.set_search(values)

    def set_memo(self, **values: Any) -> None:
        """Set notes that are shown with this run."""
        self._machine.portrait.set_memo(values)

    @property
    def values(self) -> Mapping[str, Any]:
        """The context this run was started with. Its steps and children have it too."""
        return self._machine.values

    # --- changes

    def version(self, change_id: str, min_supported: int, max_supported: int) -> int:
        """Which version of a change this run goes by.

        A new run goes by ``max_supported``, and one whose history had passed this place before the call was written by
        ``min_supported``. Either is recorded: it stays the same for the run, whatever the code says later.
        """
        if not isinstance(change_id, str) or not 0 < len(change_id) <= self._machine.limits.step_name - 10:
            raise InvalidOptionError(f"a change needs an id of 1 or more characters, and not {change_id!r}")
        for bound in (min_supported, max_supported):
            if not isinstance(bound, int) or isinstance(bound, bool) or abs(bound) > 2**31:
                raise InvalidOptionError(f"the versions of {change_id!r} are whole numbers, not {bound!r}")
        if min_supported > max_supported:
            raise InvalidOptionError(f"version {change_id!r}: {min_supported} is more than {max_supported}")
        return self._machine.version(change_id, min_supported, max_supported)

    def saga(self) -> Saga:
        """Undo steps for when the rest fails: ``async with ctx.saga() as saga: saga.add(refund, payment)``."""
        return Saga(self._machine)

    # --- information and chance

    @property
    def info(self) -> RunInfo:
        machine = self._machine
        run = machine.run
        return RunInfo(
            workflow=run.workflow,
            instance_id=run.instance_id,
            run_number=run.number,
            queue=run.queue,
            attempt=run.attempt,
            history_length=machine.history_length,
            history_size=machine.history_size,
            started_at=from_ms(machine.started_ms),
            parent=run.parent,
            pid=f"{run.workflow}/{run.instance_id}",
        )

    @property
    def random(self) -> Random:
        """A generator seeded by the run: the same numbers on every replay."""
        return self._machine.random

    def uuid4(self) -> uuid.UUID:
        return uuid.UUID(bytes=self._machine.random_bytes(16), version=4)

    def random_bytes(self, n: int) -> bytes:
        return self._machine.random_bytes(n)


def _used_member() -> str:
    """The name of the context's method or property that user code has called."""
    frame, name = inspect.currentframe(), ""
    while frame is not None and frame.f_code.co_filename == _used_member.__code__.co_filename:
        name, frame = frame.f_code.co_name, frame.f_back
    return name


class Logger(StepLogger):
    """Durable log lines. Plain calls, in workflow code and inside steps (then with the step's key and attempt)."""

    def __init__(self, machine: Machine, now: Callable[[], datetime]) -> None:
        super().__init__(machine.limits, now)
        self._machine = machine

    def _put(self, level: Level, category: str, text: str, data: bytes | None) -> None:
        if running_loop() is self._machine.loop:
            self._machine.log(level, category, text, data)
        else:
            super()._put(level, category, text, data)
