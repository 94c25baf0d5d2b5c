"""Short words for runs that deal with others: what drives them, and one that starts another with options."""

from __future__ import annotations

from typing import Any

from holdfast import ChildError, Context, Handle, Holdfast, Workflow
from holdfast.testing import Harness
from holdfast.testing.harness import Drive

Sent = tuple[str, Any]

MIB = 1024 * 1024
ENDED = ("complete", "errored", "terminated", "cancelled")


async def everywhere(h: Harness, workflow: Any, params: Any = None, *sent: Sent) -> Any:
    """The result of a run that is sent these messages, the same with the worker dropped after any commit."""
    return await h.crash_everywhere(workflow, params, drive=sending(*sent) if sent else None)


def sending(*sent: Sent) -> Drive:
    """Send them all, each once, when the run rests for the first time."""

    async def drive(_h: Harness, run: Handle[Any]) -> None:
        for n, (topic, payload) in enumerate(sent):
            await run.send_event(topic, payload, id=f"message-{n}")

    return drive


def one_by_one(*sent: Sent) -> Drive:
    """Send one whenever the run rests."""

    async def drive(h: Harness, run: Handle[Any]) -> None:
        while not h._store.dropped and (await run.status()).status not in ENDED:
            here = sum(event.sender is None for event in (await run.history()).events)
            if here == len(sent):
                return
            topic, payload = sent[here]
            await run.send_event(topic, payload, id=f"message-{here}")
            await h.run_until_idle()

    return drive


def launcher(app: Holdfast, workflow: Any, **options: Any) -> Workflow[Any]:
    """A workflow that runs another one with options, and tells how that ended."""

    @app.workflow(name="launcher")
    async def launch(ctx: Context, params: Any = None) -> Any:
        try:
            return await ctx.run(workflow, params, **options)
        except ChildError as error:
            return [error.status, error.type, error.message]

    return launch


async def number_of_instances(h: Harness) -> int:
    return len((await h.app.list(limit=100)).items)
