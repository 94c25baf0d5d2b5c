"""The part of the context that receives events and sends messages."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, Literal, TypeVar, overload

from holdfast.core import codec, durations
from holdfast.core.durations import Duration
from holdfast.core.event import Event
from holdfast.core.names import check_event_type, check_step_name
from holdfast.errors import InvalidDurationError, InvalidOptionError
from holdfast.workflow.channels import Channel
from holdfast.workflow.context_base import ContextBase
from holdfast.workflow.mailbox import DecodedPayload

if TYPE_CHECKING:
    from holdfast.workflow.messages import Message

T = TypeVar("T")

DECLARED: Any = object()
"""Default of ``payload=``: the type that the workflow declares for the event, else plain JSON."""


class MessageContext(ContextBase):
    """Events and messages to this run, and messages to other runs."""

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
        """Wait for an event of a type and return the oldest one, even if it was sent before the wait.

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
        """The channel of messages under a topic, including earlier messages. Each call returns the same object.

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
