"""``Context``: the API of workflow code. A thin, typed layer over the machine."""

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
from holdfast.core.model import from_ms, to_ms
from holdfast.core.names import check_event_type, check_step_name
from holdfast.core.retry import Retry
from holdfast.errors import InvalidDurationError, InvalidOptionError
from holdfast.kernel.attempt import StepTx, Transaction
from holdfast.kernel.requests import ChildOptions
from holdfast.kernel.startable import In, Out, Startable
from holdfast.store.protocol import Watch
from holdfast.workflow import guard
from holdfast.workflow.channels import Channel
from holdfast.workflow.children import Child
from holdfast.workflow.ending import ContinueAsNew
from holdfast.workflow.loop import current_loop
from holdfast.workflow.machine import Machine
from holdfast.workflow.mailbox import DecodedPayload
from holdfast.workflow.messages import Message
from holdfast.workflow.run_events import RunEvent
from holdfast.workflow.run_info import RunInfo
from holdfast.workflow.run_log import Logger
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
    """A registered workflow function, as ``app.start`` and ``ctx.run`` take it. ``fn`` is the plain function.

    ``Workflow[Order, str]`` takes an ``Order`` and returns a ``str``; ``Workflow[None, str]`` takes no input.
    """

    name: str
    fn: Callable[..., Coroutine[Any, Any, Out]] = field(repr=False)


class OptionalInput(Protocol[In, Out]):
    """A workflow function whose input has a default: ``async def fn(ctx, params=...)``."""

    def __call__(self, ctx: Context, params: In = ..., /) -> Coroutine[Any, Any, Out]: ...


class Context:
    """The first argument of a workflow function.

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
        self.log = Logger(machine.log, machine.loop, machine.limits, now)

    @property
    def _machine(self) -> Machine:
        """The machine. Raises outside its loop: so every method and property but ``log`` is guarded."""
        machine = self._unguarded
        if current_loop() is not machine.loop:
            raise guard.context_refusal(_used_member())
        return machine

    # --- steps

    # Type checkers check every argument of a call without options, and the positional ones of a call with options: a
    # ParamSpec allows no further keywords. The second four overloads are for functions whose first parameter is the
    # step's transaction.

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
        """Run a callable as a step whose key is ``name``. Another call with the name returns the recorded result."""
        machine = self._machine
        return machine.steps.call_named(name, spec_of(fn).with_options(retry, timeout, raises), args, kwargs)

    # --- time

    def now(self) -> datetime:
        """The time of the last result or event that the code received, in UTC: the same on every replay."""
        return from_ms(self._machine.position.now_ms)

    def sleep(self, name: str, duration: Duration) -> Coroutine[None, None, None]:
        """Sleep durably, up to 365 days. A sleeping run occupies no worker slot, thread or connection."""
        machine = self._machine
        ms = durations.to_ms(duration, f"sleep {name!r}")
        self._check_sleep(name, ms)
        return machine.waits.sleep(check_step_name(name, machine.limits), lambda: machine.position.now_ms + ms)

    def sleep_until(self, name: str, when: datetime) -> Coroutine[None, None, None]:
        """Sleep until a time (an aware ``datetime``). A time in the past ends the sleep at once."""
        if not isinstance(when, datetime) or when.tzinfo is None:
            raise InvalidDurationError(f"sleep_until {name!r} needs an aware datetime, not {when!r}")
        machine = self._machine
        due = to_ms(when.astimezone(UTC))
        self._check_sleep(name, due - machine.position.now_ms)
        return machine.waits.sleep(check_step_name(name, machine.limits), lambda: due)

    def after(self, duration: Duration) -> Channel[datetime]:
        """A channel, for ``select``, that receives the time once, after the duration."""
        return self.timer(duration)

    def timer(self, duration: Duration) -> Timer:
        """Like ``after``, with methods to stop the timer and to set it again."""
        return Timer(self._timer_seconds(duration), self.now, self._timer_seconds)

    def every(self, duration: Duration) -> AsyncIterator[datetime]:
        """Yield the time at intervals: ``async for now in ctx.every("1 hour")``. Missed ticks are merged into one."""
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
        """Wait for an event of a type and return the oldest one, also if it was sent before the wait.

        Raises ``WaitForEventTimeoutError`` if none was sent before the deadline. ``payload`` is the type to decode the
        payload to; the default is the type that the workflow declares for the event in ``events=``. An event whose
        payload does not match the type is consumed by this wait and raises ``EventInvalidError``; wait again under
        another name for the next one.
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
        return machine.waits.wait_for_event(check_step_name(name, machine.limits), type, ms, decode)

    # --- messages

    @property
    def inbox(self) -> Channel[Message]:
        """The channel of the messages to this run whose topic has no ``listen`` channel."""
        machine = self._machine
        return machine.mailbox.inbox(machine.processes.messages.message)

    @overload
    def listen(self, topic: str, *, messages: Literal[True]) -> Channel[Message]: ...

    @overload
    def listen(self, topic: str, *, messages: Literal[False] = ..., payload: type[T]) -> Channel[T]: ...

    @overload
    def listen(self, topic: str, *, messages: bool = ..., payload: Any = ...) -> Channel[Any]: ...

    def listen(self, topic: str, *, messages: bool = False, payload: Any = DECLARED) -> Channel[Any]:
        """The channel of messages to this run under a topic, with those sent before. Each call returns the same object.

        The channel returns payloads; with ``messages=True`` it returns ``Message`` objects, which name their sender
        and can be replied to. Payloads are decoded to the type ``payload``; the default is the type that the workflow
        declares in ``events=``, else plain JSON. A payload that does not match the type is consumed, and raises
        ``EventInvalidError`` when it is received.
        """
        machine = self._machine
        check_event_type(topic, machine.limits)
        if messages:
            if payload is not DECLARED:
                raise InvalidOptionError(f"listen({topic!r}): messages=True gives whole messages; leave out payload=")
            return machine.mailbox.listen(topic, machine.processes.messages.message)
        convert = machine.program.decode_payload if payload is DECLARED else DecodedPayload(payload)
        return machine.mailbox.listen(topic, convert)

    def unlisten(self, channel: Channel[Any]) -> None:
        """Close a channel of messages. Messages that were not received go to the next channel for their topic."""
        self._machine.mailbox.unlisten(channel)

    def send(self, pid: str, topic: str, payload: Any = None) -> Coroutine[None, None, None]:
        """Send a message to a run. Raises ``InstanceNotFoundError`` if the run has ended or does not exist."""
        return self._machine.processes.messages.send(pid, topic, payload)

    def ask(
        self, pid: str, topic: str, payload: Any = None, timeout: Duration | None = None
    ) -> Coroutine[None, None, Any]:
        """Send a message and wait for the reply.

        Raises ``Rejected`` if the message is rejected, ``TimeoutError`` if no reply comes within the timeout, and
        ``InstanceNotFoundError`` if the other run ends without a reply.
        """
        return self._machine.processes.messages.ask(pid, topic, payload, timeout)

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
        """Run another workflow as a child and wait for its result. Raises ``ChildError`` if it does not complete.

        If this call is cancelled, the child is cancelled too; with ``wait_for_cancellation`` the call then waits until
        the child has ended.
        """
        return self._machine.processes.children.run(child, params, **options)

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
        """Start another workflow as a child. The child is stored when this returns; its end is an ``Exit`` event."""
        return self._machine.processes.children.start(child, params, link=link, **options)

    # --- watching

    @property
    def events(self) -> Channel[RunEvent]:
        """The channel of ``Exit`` and ``LinkDown`` events of watched runs and ``Cancel`` requests to this run."""
        return self._machine.processes.events.channel

    @property
    def trap_links(self) -> bool:
        """True if the failure of a linked run is a ``LinkDown`` in ``ctx.events``; otherwise this run fails with it."""
        return self._machine.processes.watches.trap_links

    @trap_links.setter
    def trap_links(self, trap: bool) -> None:
        if not isinstance(trap, bool):
            raise InvalidOptionError(f"trap_links is True or False, not {trap!r}")
        self._machine.processes.watches.trap_links = trap

    def monitor(self, pid: str) -> Coroutine[None, None, None]:
        """Receive an ``Exit`` in ``ctx.events`` when a run ends; at once if it has ended already."""
        return self._machine.processes.watches.watch(pid, Watch.MONITOR)

    def unmonitor(self, pid: str) -> Coroutine[None, None, None]:
        return self._machine.processes.watches.unwatch(pid, Watch.MONITOR)

    def link(self, pid: str) -> Coroutine[None, None, None]:
        """Link this run and another: if one fails, the other fails too, unless it traps links."""
        return self._machine.processes.watches.watch(pid, Watch.LINK)

    def unlink(self, pid: str) -> Coroutine[None, None, None]:
        return self._machine.processes.watches.unwatch(pid, Watch.LINK)

    # --- control

    def cancel(
        self, pid: str, reason: str | None = None, deadline: Duration | None = None
    ) -> Coroutine[None, None, None]:
        """Request a run's cancellation. The run may clean up; at the deadline it is terminated."""
        return self._machine.processes.control.cancel(pid, reason, deadline)

    def terminate(self, pid: str, reason: str | None = None) -> Coroutine[None, None, None]:
        """End a run at once; its code does not clean up."""
        return self._machine.processes.control.terminate(pid, reason)

    def continue_as_new(self, params: Any = None) -> ContinueAsNew:
        """An exception to raise: it ends this run and starts its successor with these params and an empty history.

        The successor has the same id, and takes over messages that were not received, children and watches.
        """
        return ContinueAsNew(self._machine.program.encode_params(params))

    # --- attributes

    def set_search(self, **values: Any) -> None:
        """Set attributes by which ``app.list(search=...)`` finds this run."""
        self._machine.attributes.set_search(values)

    def set_memo(self, **values: Any) -> None:
        """Set notes that are shown with this run."""
        self._machine.attributes.set_memo(values)

    @property
    def values(self) -> Mapping[str, Any]:
        """The context that this run was started with. Its steps and children get it too."""
        return self._machine.values

    # --- changes

    def version(self, change_id: str, min_supported: int, max_supported: int) -> int:
        """The version of a change for this run.

        It is ``max_supported`` for a new run, and ``min_supported`` for a run that passed this place before the call
        was added. The version is recorded, and stays the same for the run, also if the code has other bounds later.
        """
        return self._machine.versions.choose(change_id, min_supported, max_supported)

    def saga(self) -> Saga:
        """Undo steps that run if a block fails: ``async with ctx.saga() as saga: saga.add(refund, payment)``."""
        return Saga(self._machine.steps)

    # --- information and chance

    @property
    def info(self) -> RunInfo:
        machine = self._machine
        return RunInfo.of(machine.run, machine.position)

    @property
    def random(self) -> Random:
        """A random generator seeded by the run: it returns the same numbers on every replay."""
        return self._machine.randomness.generator

    def uuid4(self) -> uuid.UUID:
        return uuid.UUID(bytes=self._machine.randomness.draw_bytes(16), version=4)

    def random_bytes(self, n: int) -> bytes:
        return self._machine.randomness.draw_bytes(n)


def _used_member() -> str:
    """The name of the context's method or property that user code called."""
    frame, name = inspect.currentframe(), ""
    while frame is not None and frame.f_code.co_filename == _used_member.__code__.co_filename:
        name, frame = frame.f_code.co_name, frame.f_back
    return name
