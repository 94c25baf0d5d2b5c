"""Mail that has arrived in a run, and the channels it comes out of.

Mail arrives one piece at a time, each time as a fact; so which channel it goes to, and what is in a channel when the
code looks, is the same on every replay. It is consumed when somebody receives it. Until then it stays in the run's
mailbox, where the next run finds it after ``continue_as_new``.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

from holdfast.core import codec
from holdfast.errors import ChannelClosed, InvalidOptionError
from holdfast.kernel.events import read_payload
from holdfast.store.protocol import ANY_TOPIC, Mail
from holdfast.workflow.channels import Channel

T = TypeVar("T")

_ROOM = 1000
"""How many pieces of mail wait in one channel; the rest waits in the store."""

Consume = Callable[[Mail, str], None]


class MailChannel(Channel[T]):
    """A channel that mail comes out of. Holds mail until it is received, and makes of it what ``shape`` says."""

    def __init__(self, mailbox: Mailbox, name: str, shape: Callable[[Mail], T]) -> None:
        super().__init__()
        self._capacity = math.inf
        self._mailbox = mailbox
        self.shape = shape
        self.name = name

    def close(self) -> None:
        """Stop listening; what was not received goes back to the mailbox."""
        self._check()
        self._mailbox.unlisten(self)

    async def _look(self) -> bool:
        return await self._mailbox.look()

    async def send(self, value: T) -> None:  # noqa: ARG002
        raise ChannelClosed(f"the channel of {self.name} gives out what others send; use ctx.send to send to a run")

    def put(self, mail: Mail) -> None:
        self._try_send(mail)  # type: ignore[arg-type]  # shaped when it is received

    def take_back(self) -> list[Mail]:
        """Close it, and give back what is in it."""
        left: list[Mail] = [*self._buffer]  # type: ignore[list-item]
        self._buffer.clear()
        super().close()
        return left

    def waiting(self) -> Iterator[Mail]:
        return iter(self._buffer)  # type: ignore[arg-type]

    def remove(self, mail: Mail) -> None:
        self._buffer.remove(mail)  # type: ignore[arg-type]

    @property
    def full(self) -> bool:
        return len(self) >= _ROOM

    def _received(self, value: Any) -> T:
        self._mailbox.consume(value, self.name)
        return self.shape(value)


class Mailbox:
    """Who listens to what, and what nobody listens to any more."""

    def __init__(self, consume: Consume, look: Callable[[], Awaitable[bool]]) -> None:
        self.consume = consume
        self.look = look
        self._listeners: dict[str, MailChannel[Any]] = {}
        self._inbox: MailChannel[Any] | None = None
        self._left: dict[str, deque[Mail]] = {}
        """Arrived for somebody who does not listen any more."""

    def inbox(self, shape: Callable[[Mail], T]) -> Channel[T]:
        """The channel of all that nobody listens to."""
        if self._inbox is None:
            self._inbox = MailChannel(self, "inbox", shape)
            left = sorted((mail for box in self._left.values() for mail in box), key=_number)
            self._left.clear()
            for mail in left:
                self.arrive(mail)
        return self._inbox

    def listen(self, topic: str, shape: Callable[[Mail], Any]) -> Channel[Any]:
        channel = self._listeners.get(topic)
        if channel is None:
            channel = self._listeners[topic] = MailChannel(self, f"listen {topic}", shape)
            for mail in self._left.pop(topic, ()):
                channel.put(mail)
        elif channel.shape != shape:
            raise InvalidOptionError(
                f"{topic!r} is listened to already, with other values of messages= or payload=; "
                "unlisten first, or ask for the same again"
            )
        return channel

    def unlisten(self, channel: Channel[Any]) -> None:
        inbox = self._inbox
        if inbox is not None and channel is inbox:
            self._inbox = None
            self._keep(inbox.take_back())
            return
        for topic, listener in list(self._listeners.items()):
            if listener is channel:
                del self._listeners[topic]
                self._keep(listener.take_back())

    def dissolve(self) -> None:
        """Nobody listens any more, and nobody hears of it."""
        self._listeners.clear()
        self._inbox = None

    def arrive(self, mail: Mail) -> None:
        channel = self._channel(mail.type)
        if channel is None:
            self._left.setdefault(mail.type, deque()).append(mail)
        else:
            channel.put(mail)

    def has_room(self, topic: str) -> bool:
        """Whether mail of a topic may arrive now."""
        channel = self._channel(topic)
        return channel is not None and not channel.full

    @property
    def awaited(self) -> frozenset[str]:
        """The topics that somebody waits for at this moment."""
        if not self._listeners and self._inbox is None:
            return _NONE
        topics = {topic for topic, channel in self._listeners.items() if channel.awaited}
        if self._inbox is not None and self._inbox.awaited:
            topics.add(ANY_TOPIC)
        return frozenset(topics)

    def oldest(self, topic: str) -> Mail | None:
        """What has arrived of a topic and was not received."""
        return next((mail for mail in self._waiting(topic) if mail.type == topic), None)

    def take(self, mail: Mail) -> None:
        """Somebody else gets it: a wait for an event."""
        left = self._left.get(mail.type)
        if left and mail in left:
            left.remove(mail)
            return
        for channel in (*self._listeners.values(), self._inbox):
            if channel is not None and mail in channel.waiting():
                channel.remove(mail)

    def _waiting(self, topic: str) -> Iterator[Mail]:
        yield from self._left.get(topic, ())
        if topic in self._listeners:
            yield from self._listeners[topic].waiting()
        if self._inbox is not None:
            yield from self._inbox.waiting()

    def _channel(self, topic: str) -> MailChannel[Any] | None:
        channel = self._listeners.get(topic)
        return self._inbox if channel is None else channel  # an empty channel is false

    def _keep(self, mail: list[Mail]) -> None:
        for one in mail:
            self.arrive(one)


_NONE: frozenset[str] = frozenset()


def _number(mail: Mail) -> int:
    return mail.n


def payload_of(mail: Mail) -> Any:
    return codec.plain(mail.payload)


@dataclass(frozen=True, slots=True)
class DecodedPayload:
    """Decodes the payload of mail to a type. Two with the same type are equal: they shape a channel alike."""

    type: Any

    def __call__(self, mail: Mail) -> Any:
        return read_payload(mail.type, mail.payload, codec.decoder(self.type))
