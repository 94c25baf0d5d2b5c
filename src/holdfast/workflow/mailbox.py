"""The channels of a run, and the events that have arrived in them.

Events are delivered one at a time, each with a fact. So the channel that gets an event, and the content of a channel
when the code receives from it, are the same on every replay. An event is consumed when the code receives it. Until
then it stays in the stored mailbox, where the successor of ``continue_as_new`` finds it.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

from holdfast.core import codec
from holdfast.core.facts import ANY_TOPIC, StoredEvent
from holdfast.errors import ChannelClosed, InvalidOptionError
from holdfast.kernel.events import read_payload
from holdfast.workflow.channels import Channel

T = TypeVar("T")

_CHANNEL_CAPACITY = 1000
"""Maximum number of events in one channel; further events stay in the store."""

Consume = Callable[[StoredEvent, str], None]


class MailboxChannel(Channel[T]):
    """A channel of events. An event is converted by ``convert`` when it is received."""

    def __init__(self, mailbox: Mailbox, name: str, convert: Callable[[StoredEvent], T]) -> None:
        super().__init__()
        self._capacity = math.inf
        self._mailbox = mailbox
        self.convert = convert
        self.name = name

    def close(self) -> None:
        """Stop listening. Events that were not received go back to the mailbox."""
        self._check()
        self._mailbox.unlisten(self)

    async def _poll(self) -> bool:
        return await self._mailbox.poll()

    async def send(self, value: T) -> None:  # noqa: ARG002
        raise ChannelClosed(f"the channel of {self.name} is for receiving; use ctx.send to send to a run")

    def put(self, event: StoredEvent) -> None:
        self._try_send(event)

    def close_and_drain(self) -> list[StoredEvent]:
        """Close the channel and return the events that were not received."""
        events = [*self._buffer]
        self._buffer.clear()
        super().close()
        return events

    def buffered(self) -> Iterator[StoredEvent]:
        return iter(self._buffer)

    def remove(self, event: StoredEvent) -> None:
        self._buffer.remove(event)

    @property
    def full(self) -> bool:
        return len(self) >= _CHANNEL_CAPACITY

    def _on_received(self, value: Any) -> T:
        self._mailbox.consume(value, self.name)
        return self.convert(value)


class Mailbox:
    """The channels of a run by topic, and delivered events whose channel was closed."""

    def __init__(self, consume: Consume, poll: Callable[[], Awaitable[bool]]) -> None:
        self.consume = consume
        self.poll = poll
        self._listeners: dict[str, MailboxChannel[Any]] = {}
        self._inbox: MailboxChannel[Any] | None = None
        self._unrouted: dict[str, deque[StoredEvent]] = {}
        """Events by type that arrived in a channel which is closed now."""

    def inbox(self, convert: Callable[[StoredEvent], T]) -> Channel[T]:
        """The channel of events whose topic has no channel of its own."""
        if self._inbox is None:
            self._inbox = MailboxChannel(self, "inbox", convert)
            unrouted = sorted((event for events in self._unrouted.values() for event in events), key=_number)
            self._unrouted.clear()
            for event in unrouted:
                self.deliver(event)
        return self._inbox

    def listen(self, topic: str, convert: Callable[[StoredEvent], Any]) -> Channel[Any]:
        channel = self._listeners.get(topic)
        if channel is None:
            channel = self._listeners[topic] = MailboxChannel(self, f"listen {topic}", convert)
            for event in self._unrouted.pop(topic, ()):
                channel.put(event)
        elif channel.convert != convert:
            raise InvalidOptionError(
                f"{topic!r} is listened to already, with other values of messages= or payload=; "
                "call ctx.unlisten first, or pass the same values again"
            )
        return channel

    def unlisten(self, channel: Channel[Any]) -> None:
        inbox = self._inbox
        if inbox is not None and channel is inbox:
            self._inbox = None
            self._redeliver(inbox.close_and_drain())
            return
        for topic, listener in list(self._listeners.items()):
            if listener is channel:
                del self._listeners[topic]
                self._redeliver(listener.close_and_drain())

    def clear(self) -> None:
        """Drop all channels without closing them."""
        self._listeners.clear()
        self._inbox = None

    def deliver(self, event: StoredEvent) -> None:
        channel = self._channel(event.type)
        if channel is None:
            self._unrouted.setdefault(event.type, deque()).append(event)
        else:
            channel.put(event)

    def has_room(self, topic: str) -> bool:
        """True if an event of the topic can be delivered now."""
        channel = self._channel(topic)
        return channel is not None and not channel.full

    @property
    def awaited_topics(self) -> frozenset[str]:
        """Topics of the channels that code waits to receive from."""
        if not self._listeners and self._inbox is None:
            return _NO_TOPICS
        topics = {topic for topic, channel in self._listeners.items() if channel.awaited}
        if self._inbox is not None and self._inbox.awaited:
            topics.add(ANY_TOPIC)
        return frozenset(topics)

    def awaited_channels(self) -> list[tuple[str, list[asyncio.Future[Any]]]]:
        """Topics of the channels that code waits to receive from, each with the futures of the receivers."""
        channels = [*self._listeners.items(), *([] if self._inbox is None else [(ANY_TOPIC, self._inbox)])]
        return [(topic, channel.receiving()) for topic, channel in channels if channel.awaited]

    def oldest(self, topic: str) -> StoredEvent | None:
        """The oldest event of a topic that has arrived and was not received."""
        return next((event for event in self._candidates(topic) if event.type == topic), None)

    def remove(self, event: StoredEvent) -> None:
        """Remove an event that a wait consumes."""
        unrouted = self._unrouted.get(event.type)
        if unrouted and event in unrouted:
            unrouted.remove(event)
            return
        for channel in (*self._listeners.values(), self._inbox):
            if channel is not None and event in channel.buffered():
                channel.remove(event)

    def _candidates(self, topic: str) -> Iterator[StoredEvent]:
        yield from self._unrouted.get(topic, ())
        if topic in self._listeners:
            yield from self._listeners[topic].buffered()
        if self._inbox is not None:
            yield from self._inbox.buffered()

    def _channel(self, topic: str) -> MailboxChannel[Any] | None:
        channel = self._listeners.get(topic)
        return self._inbox if channel is None else channel  # not `or`: an empty channel is false

    def _redeliver(self, events: list[StoredEvent]) -> None:
        for event in events:
            self.deliver(event)


_NO_TOPICS: frozenset[str] = frozenset()


def _number(event: StoredEvent) -> int:
    return event.n


def plain_payload(event: StoredEvent) -> Any:
    return codec.plain(event.payload)


@dataclass(frozen=True, slots=True)
class DecodedPayload:
    """Decodes the payload of an event to a type. Instances are compared by type, as ``Mailbox.listen`` needs."""

    type: Any

    def __call__(self, event: StoredEvent) -> Any:
        return read_payload(event.type, event.payload, codec.decoder(self.type))
