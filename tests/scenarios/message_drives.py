"""Drives that send messages to a run, and a workflow that starts a child with options."""

from __future__ import annotations

from typing import Any

from holdfast import ChildError, Context, Handle, Holdfast, Workflow
from holdfast.testing import Harness
from holdfast.testing.harness import Drive

TopicAndPayload = tuple[str, Any]

MIB = 1024 * 1024
ENDED = ("complete", "errored", "terminated", "cancelled")


async def crash_everywhere(h: Harness, workflow: Any, params: Any = None, *messages: TopicAndPayload) -> Any:
    """Return the result of a run that receives these messages, checked to be the same with a crash at any commit."""
    return await h.crash_everywhere(workflow, params, drive=send_at_once(*messages) if messages else None)


def send_at_once(*messages: TopicAndPayload) -> Drive:
    """A drive that sends all messages, each once, when the run first waits."""

    async def drive(_h: Harness, run: Handle[Any]) -> None:
        for n, (topic, payload) in enumerate(messages):
            await run.send_event(topic, payload, id=f"message-{n}")

    return drive


def send_one_by_one(*messages: TopicAndPayload) -> Drive:
    """A drive that sends the next message whenever the run waits."""

    async def drive(h: Harness, run: Handle[Any]) -> None:
        while not h._store.dropped and (await run.status()).status not in ENDED:
            sent = sum(event.sender is None for event in (await run.history()).events)
            if sent == len(messages):
                return
            topic, payload = messages[sent]
            await run.send_event(topic, payload, id=f"message-{sent}")
            await h.run_until_idle()

    return drive


def launcher(app: Holdfast, workflow: Any, **options: Any) -> Workflow[Any]:
    """A workflow that runs another one as a child with options, and returns its result or its error."""

    @app.workflow(name="launcher")
    async def launch(ctx: Context, params: Any = None) -> Any:
        try:
            return await ctx.run(workflow, params, **options)
        except ChildError as error:
            return [error.status, error.type, error.message]

    return launch


async def number_of_instances(h: Harness) -> int:
    return len((await h.app.list(limit=100)).items)
