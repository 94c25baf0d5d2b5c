"""Waits of pydantic-ai (2.68 and newer) for external events, such as ``RequestInput``, as durable waits of a run.

The framework hands a resume token to a function that asks a person. In a workflow this function is called in a step,
and the run waits for an event whose type is a part of the token.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any

from pydantic_core import to_jsonable_python

from holdfast.app import Holdfast
from holdfast.errors import InvalidOptionError, WaitForEventTimeoutError
from holdfast.ext.options import StepOptions
from holdfast.extras import extra
from holdfast.workflow.context import current_context

with extra("pydantic-ai", "holdfast.ext.external_events"):
    from pydantic_ai.durable_exec import ExternalEventError, ExternalEventWaiter, external_event_scope, replay_scope

__all__ = ["fail_external_event", "resolve_external_event"]


async def resolve_external_event(app: Holdfast, token: str, payload: Any) -> None:
    """End the wait that has a resume token with a payload. Of several answers to one token the first one counts.

    Example::

        decision = {"approvals": {"call-1": True}, "answered_by": {"call-1": "ann"}}
        await resolve_external_event(app, token, decision)
    """
    await _answer(app, token, {"payload": to_jsonable_python(payload)})


async def fail_external_event(app: Holdfast, token: str, reason: str) -> None:
    """End the wait that has a resume token without a payload: the agent receives the reason."""
    await _answer(app, token, {"failed": reason})


async def _answer(app: Holdfast, token: str, answer: dict[str, Any]) -> None:
    parts = token.split("/")
    if len(parts) != 3:
        raise InvalidOptionError(f"{token!r} is not a resume token of a run")
    workflow, instance, event = parts
    await (await app.get(workflow, instance)).send_event(event, answer, id=event)


@contextmanager
def durable_waits(agent: str, ask: StepOptions) -> Iterator[None]:
    """The scope of an agent's run in a workflow: waits are durable, and replayed work is left out of traces.

    ``ask``: the options of the steps that hand out tokens.
    """
    with external_event_scope(_Waiter(agent, ask)), replay_scope():
        yield


@dataclass(frozen=True, slots=True)
class _Waiter(ExternalEventWaiter):
    agent: str
    options: StepOptions

    async def wait(self, name: str, *, ask: Callable[[str], Awaitable[Any]], timeout: timedelta | None) -> Any:
        context = current_context()
        event = f"external.{context.uuid4().hex}"
        token = f"{context.info.workflow}/{context.info.instance_id}/{event}"
        step = f"{self.agent}__external_event.{name}"
        body = partial(_called, ask, token)
        answer = await context.call(f"{step}.ask", body, retry=self.options.retry, timeout=self.options.timeout)
        if answer is not None:
            return answer
        longest = context._machine.limits.event_wait_max  # noqa: SLF001  ("as long as the engine allows")
        waiting = context.wait_for_event(f"{step} {event[-8:]}", type=event, timeout=timeout or longest)
        try:
            found = (await waiting).payload
        except WaitForEventTimeoutError:
            raise ExternalEventError(f"no answer arrived within {timeout or longest}") from None
        if isinstance(found, dict) and "payload" in found:
            return found["payload"]
        raise ExternalEventError(found["failed"] if isinstance(found, dict) and "failed" in found else str(found))


async def _called(ask: Callable[[str], Awaitable[Any]], token: str) -> Any:
    return await ask(token)
