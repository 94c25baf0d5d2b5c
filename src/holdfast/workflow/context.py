"""``Context``: everything workflow code can ask of the engine. A thin, typed face of the machine."""

from __future__ import annotations

import inspect
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from random import Random
from typing import Any, Generic, Literal, TypeVar, Unpack, overload

from holdfast.core import codec, durations
from holdfast.core.durations import Duration
from holdfast.core.event import Event
from holdfast.core.model import Level, from_ms, to_ms
from holdfast.core.names import check_event_type, check_step_name
from holdfast.core.retry import Retry
from holdfast.errors import InvalidDurationError, InvalidOptionError
from holdfast.kernel.definition import Startable
from holdfast.kernel.logger import StepLogger
from holdfast.kernel.requests import ChildOptions
from holdfast.store.protocol import Watch
from holdfast.workflow import guard
from holdfast.workflow.channels import Channel
from holdfast.workflow.ending import ContinueAsNew
from holdfast.workflow.loop import current_loop, running_loop
from holdfast.workflow.machine import Machine
from holdfast.workflow.mailbox import payload_of
from holdfast.workflow.processes import Child, Message, RunEvent
from holdfast.workflow.saga import Saga
from holdfast.workflow.steps import spec_of
from holdfast.workflow.timers import Timer, ticks

R = TypeVar("R")
T = TypeVar("T")
Out = TypeVar("Out", covariant=True)


@dataclass(eq=False)
class Workflow(Generic[Out]):
    """A registered workflow function: what ``app.start`` and ``ctx.run`` take. ``fn`` is the plain function."""

    name: str
    fn: Callable[..., Coroutine[Any, Any, Out]] = field(repr=False)


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

    @overload
    def do(
        self,
        name: str,
        fn: Callable[..., Awaitable[R]],
        *args: Any,
        retry: Retry | None = ...,
        timeout: Duration | None = ...,
        raises: tuple[type[BaseException], ...] | None = ...,
        **kwargs: Any,
    ) -> Coroutine[None, None, R]: ...

    @overload
    def do(
        self,
        name: str,
        fn: Callable[..., R],
        *args: Any,
        retry: Retry | None = ...,
        timeout: Duration | None = ...,
        raises: tuple[type[BaseException], ...] | None = ...,
        **kwargs: Any,
    ) -> Coroutine[None, None, R]: ...

    def do(
        self,
        name: str,
        fn: Callable[..., Any],
        *args: Any,
        retry: Retry | None = None,
        timeout: Duration | None = None,
        raises: tuple[type[BaseException], ...] | None = None,
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
        self, name: str, *, type: str, timeout: Duration = "24 hours", payload: Any = Any
    ) -> Coroutine[None, None, Event[Any]]:
        """Wait for an event of a type, oldest first, also one that came before the wait.

        Raises ``WaitForEventTimeoutError`` when none was sent until the deadline. ``payload`` is the type to decode
        it to.
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
        return machine.wait_for_event(check_step_name(name, machine.limits), type, ms, codec.decoder(payload))

    # --- messages

    @property
    def inbox(self) -> Channel[Message]:
        """The channel of all messages to this run whose topic nobody listens to."""
        machine = self._machine
        return machine.mailbox.inbox(machine.processes.message)

    @overload
    def listen(self, topic: str, *, messages: Literal[True]) -> Channel[Message]: ...

    @overload
    def listen(self, topic: str, *, messages: bool = ...) -> Channel[Any]: ...

    def listen(self, topic: str, *, messages: bool = False) -> Channel[Any]:
        """The channel of a topic: what is sent to this run under it, also before. The same object on each call.

        It gives out payloads; with ``messages=True``, messages, which say who sent them and can be answered.
        """
        machine = self._machine
        check_event_type(topic, machine.limits)
        return machine.mailbox.listen(topic, machine.processes.message if messages else payload_of)

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
        self, child: Workflow[R], params: Any = ..., **options: Unpack[ChildOptions]
    ) -> Coroutine[None, None, R]: ...

    @overload
    def run(
        self, child: Startable | str, params: Any = ..., **options: Unpack[ChildOptions]
    ) -> Coroutine[None, None, Any]: ...

    def run(
        self, child: Startable | str, params: Any = None, **options: Unpack[ChildOptions]
    ) -> Coroutine[None, None, Any]:
        """Run another workflow as a child and wait for its result. Raises ``ChildError`` if it does not end well.

        A child whose ``run`` is cancelled is cancelled too; with ``wait_for_cancellation`` this one goes on only when
        that one has ended.
        """
        return self._machine.processes.run(child, params, **options)

    @overload
    def spawn(
        self, child: Workflow[R], params: Any = ..., *, link: bool = ..., **options: Unpack[ChildOptions]
    ) -> Coroutine[None, None, Child[R]]: ...

    @overload
    def spawn(
        self, child: Startable | str, params: Any = ..., *, link: bool = ..., **options: Unpack[ChildOptions]
    ) -> Coroutine[None, None, Child[Any]]: ...

    def spawn(
        self, child: Startable | str, params: Any = None, *, link: bool = False, **options: Unpack[ChildOptions]
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
