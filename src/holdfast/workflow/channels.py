"""Channels between tasks of one run, and ``select`` over several of them.

Channels need nothing of the engine but the guard: the workflow loop runs tasks in the same order on each replay, so
channels return the same values in the same order.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar, overload

from holdfast.core.checks import is_whole_number
from holdfast.errors import ChannelClosed, InvalidOptionError
from holdfast.workflow import guard
from holdfast.workflow.loop import running_loop

A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")
D = TypeVar("D")
T = TypeVar("T")
Value = TypeVar("Value", covariant=True)


class Selected(NamedTuple, Generic[T]):
    """The result of ``select``. ``channel`` is None for the default; ``ok`` is False if the channel was closed.

    ``value`` is the received value; None for a send, a closed channel and the default.
    """

    channel: Channel[Any] | None
    value: T
    ok: bool


class Case(Generic[Value]):
    """A case of ``select``: a channel to receive from, or a value to send. ``Value``: the type received."""


@dataclass(frozen=True)
class Sending(Case[None], Generic[T]):
    """A case of ``select`` that sends a value."""

    channel: Channel[T]
    value: T


class _Waiter:
    """One case of a waiting ``select``. All cases of the ``select`` share the future; the first ready case sets it."""

    __slots__ = ("case", "channel", "future")

    def __init__(self, case: AnyCase, future: asyncio.Future[_Won]) -> None:
        self.case = case
        self.channel: Channel[Any] = case if isinstance(case, Channel) else case.channel
        self.future = future

    @property
    def value(self) -> Any:
        return self.case.value if isinstance(self.case, Sending) else None

    def win(self, value: Any, ok: bool) -> None:
        self.future.set_result(_Won(self, value, ok))


class _Won(NamedTuple):
    waiter: _Waiter
    value: Any
    ok: bool


class Channel(Case[T], Generic[T]):
    """A queue between tasks. Without capacity, a send waits until a task receives the value.

    Example::

        work: Channel[int] = Channel(capacity=10)
        await work.send(1)
        work.close()
        async for item in work: ...
    """

    def __init__(self, capacity: int = 0) -> None:
        if not is_whole_number(capacity, 0):
            raise InvalidOptionError(f"a channel's capacity must be a whole number of at least 0, not {capacity!r}")
        self._capacity: float = capacity
        self._buffer: deque[Any] = deque()
        """Values that were sent; ``_on_received`` converts them."""
        self._receivers: dict[_Waiter, None] = {}  # a dict as an ordered set
        self._senders: dict[_Waiter, None] = {}
        self._closed = False
        self._loop = running_loop()
        """The loop of the workflow code that created the channel; None, and no guard, outside workflow code."""

    async def send(self, value: T) -> None:
        """Send a value. Waits while the channel is full.

        Raises ``ChannelClosed`` if the channel is closed, or is closed during the wait.
        """
        chosen = await select(self.sending(value))
        if not chosen.ok:
            raise ChannelClosed("the channel is closed; nothing can be sent any more")

    async def receive(self) -> T:
        """Wait for the next value and return it. Raises ``ChannelClosed`` if the channel is closed and empty."""
        chosen = await select(self)
        if not chosen.ok:
            raise ChannelClosed("the channel is closed, and all that was sent has been received")
        value: T = chosen.value
        return value

    def sending(self, value: T) -> Sending[T]:
        """A case for ``select`` that sends a value."""
        return Sending(self, value)

    def close(self) -> None:
        """Close the channel for sending. Values in it can still be received. A second call has no effect."""
        self._check()
        if self._closed:
            return
        self._closed = True
        for waiters in (self._receivers, self._senders):
            while (waiter := _next(waiters)) is not None:
                waiter.win(None, ok=False)

    @property
    def closed(self) -> bool:
        return self._closed

    def __len__(self) -> int:
        """Number of buffered values."""
        return len(self._buffer)

    async def __aiter__(self) -> AsyncIterator[T]:
        while (chosen := await select(self)).ok:
            yield chosen.value

    @property
    def awaited(self) -> bool:
        """True if a task waits to receive."""
        return any(not waiter.future.done() for waiter in self._receivers)

    def receiving(self) -> list[asyncio.Future[Any]]:
        """The futures of the tasks that wait to receive."""
        return [waiter.future for waiter in self._receivers if not waiter.future.done()]

    def _check(self) -> None:
        if self._loop is not None:
            guard.check(self._loop, "a channel of workflow code")

    # --- for select

    async def _poll(self) -> bool:
        """Deliver the events that are available for the channel. False: the channel gets no events."""
        return False

    def _on_received(self, value: Any) -> T:
        """Convert a received value to the value that ``receive`` returns."""
        received: T = value
        return received

    def _try_receive(self) -> Selected[Any] | None:
        if self._buffer:
            value = self._buffer.popleft()
            self._refill()
            return Selected(self, self._on_received(value), ok=True)
        sender = _next(self._senders)
        if sender is not None:
            sender.win(None, ok=True)
            return Selected(self, self._on_received(sender.value), ok=True)
        return Selected(self, None, ok=False) if self._closed else None

    def _try_send(self, value: Any) -> Selected[Any] | None:
        if self._closed:
            return Selected(self, None, ok=False)
        receiver = _next(self._receivers)
        if receiver is not None:
            receiver.win(value, ok=True)
        elif len(self._buffer) < self._capacity:
            self._buffer.append(value)
        else:
            return None
        return Selected(self, None, ok=True)

    def _refill(self) -> None:
        """Move values of waiting senders into the free places of the buffer."""
        while len(self._buffer) < self._capacity and (sender := _next(self._senders)) is not None:
            self._buffer.append(sender.value)
            sender.win(None, ok=True)

    def _put_back(self, value: T) -> None:
        """Pass a value whose receiver was cancelled to the next receiver, or put it first in the buffer."""
        receiver = _next(self._receivers)
        if receiver is not None:
            receiver.win(value, ok=True)
        else:
            self._buffer.appendleft(value)


AnyCase: TypeAlias = Channel[Any] | Sending[Any]


@overload
async def select(a: Case[A], /, *, default: bool = ...) -> Selected[A]: ...


@overload
async def select(a: Case[A], b: Case[B], /, *, default: bool = ...) -> Selected[A | B]: ...


@overload
async def select(a: Case[A], b: Case[B], c: Case[C], /, *, default: bool = ...) -> Selected[A | B | C]: ...


@overload
async def select(
    a: Case[A], b: Case[B], c: Case[C], d: Case[D], /, *, default: bool = ...
) -> Selected[A | B | C | D]: ...


@overload
async def select(*cases: Case[Any], default: bool = ...) -> Selected[Any]: ...


async def select(*cases: Any, default: bool = False) -> Selected[Any]:
    """Wait until a value can be received from one of the channels or one of the sends can be done, and do only that.

    If several cases are ready, the first in the argument list is chosen; a closed channel is always ready, with
    ``ok=False``. With ``default=True`` it does not wait: ``channel`` is None if no case was ready. The other cases have
    no effect.
    """
    for case in cases:
        if not isinstance(case, Channel | Sending):
            raise InvalidOptionError(f"select takes channels and channel.sending(value), not {case!r}")
        (case if isinstance(case, Channel) else case.channel)._check()
    if not cases and not default:
        raise InvalidOptionError("select needs at least one channel, or default=True")
    ready = _first_ready(cases)
    if ready is None and default:
        for case in cases:
            if isinstance(case, Channel) and await case._poll():
                ready = _first_ready(cases)
                break
        return ready or Selected(None, None, ok=False)
    return ready or await _wait_for_first(cases)


def _first_ready(cases: tuple[AnyCase, ...]) -> Selected[Any] | None:
    for case in cases:
        ready = case._try_receive() if isinstance(case, Channel) else case.channel._try_send(case.value)
        if ready is not None:
            return ready
    return None


async def _wait_for_first(cases: tuple[AnyCase, ...]) -> Selected[Any]:
    future: asyncio.Future[_Won] = asyncio.get_running_loop().create_future()
    waiters = [_add_waiter(case, future) for case in cases]
    try:
        won = await future
    except asyncio.CancelledError:
        if future.done() and not future.cancelled():
            _return_value(future.result())
        raise
    finally:
        for waiter in waiters:
            waiter.channel._receivers.pop(waiter, None)
            waiter.channel._senders.pop(waiter, None)
            del waiter.future  # its result refers to the waiter: a reference cycle
    channel = won.waiter.channel
    received = won.ok and isinstance(won.waiter.case, Channel)
    return Selected(channel, channel._on_received(won.value) if received else won.value, won.ok)


def _add_waiter(case: AnyCase, future: asyncio.Future[_Won]) -> _Waiter:
    waiter = _Waiter(case, future)
    waiters = case._receivers if isinstance(case, Channel) else case.channel._senders
    waiters[waiter] = None
    return waiter


def _return_value(won: _Won) -> None:
    """Return the value of a receiver that was cancelled after it won. A send that won has been received."""
    if won.ok and isinstance(won.waiter.case, Channel):
        won.waiter.channel._put_back(won.value)


def _next(waiters: dict[_Waiter, None]) -> _Waiter | None:
    """Remove and return the oldest waiter whose ``select`` is still waiting."""
    while waiters:
        waiter = next(iter(waiters))
        del waiters[waiter]
        if not waiter.future.done():
            return waiter
    return None
