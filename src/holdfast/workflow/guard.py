"""The guard of workflow code: objects of a run's code are usable only on that run's loop.

A step runs on the worker's loop or in a thread, and is not replayed. If a step drew a random number, sent a message or
called a step through the context, a replay would not repeat it.
"""

from __future__ import annotations

from random import Random

from holdfast.errors import WorkflowCodeError
from holdfast.kernel.attempt import current_attempt
from holdfast.workflow.loop import WorkflowLoop, current_loop

_IN_WORKFLOW_CODE = "do it in workflow code, before or after the step"
_INSTEAD = {
    "info": "use holdfast.step_info()",
    "values": "use holdfast.context_values()",
    "now": "use datetime.now(UTC)",
    "uuid4": "use uuid.uuid4(), or step_info().idempotency_key for a value that is the same in every attempt",
    "random": "use the random module",
    "random_bytes": "use os.urandom()",
    "do": "call the function itself",
    "call": "call the function itself",
    "sleep": "use asyncio.sleep() or time.sleep(), or sleep in workflow code",
    "sleep_until": "use asyncio.sleep() or time.sleep(), or sleep in workflow code",
    "stream": "use holdfast.step_info().stream()",
    "send": "annotate a parameter with StepTx and use tx.send()",
    "run": "annotate a parameter with StepTx and use tx.start(), or run the child in workflow code",
    "spawn": "annotate a parameter with StepTx and use tx.start(), or start the child in workflow code",
}


def check(loop: WorkflowLoop, what: str) -> None:
    """Raise unless the calling code runs on this loop; ``what`` names the guarded object in the message."""
    if current_loop() is not loop:
        raise refusal(what, _IN_WORKFLOW_CODE)


def context_refusal(name: str) -> WorkflowCodeError:
    """The error for a method or property of the context that is used outside its loop."""
    return refusal(f"ctx.{name}", _INSTEAD.get(name, _IN_WORKFLOW_CODE))


def refusal(what: str, instead: str) -> WorkflowCodeError:
    attempt = current_attempt.get()
    if attempt is None:
        return WorkflowCodeError(
            f"{what} was used outside the workflow code that it belongs to: after the end of its run, in another run, "
            "or in a thread; use it only in the code of its own run, before the run ends"
        )
    return WorkflowCodeError(
        f"{what} was used inside step {attempt.key!r} of {attempt.pid}; it belongs to workflow code, which is "
        f"replayed; a step is not replayed. Instead, {instead}"
    )


class WorkflowRandom(Random):
    """The random generator of a run. A number drawn outside workflow code would be missing from the next replay."""

    def __init__(self, seed: str, loop: WorkflowLoop) -> None:
        self._loop = loop
        super().__init__(seed)

    def random(self) -> float:
        check(self._loop, "ctx.random")
        return super().random()

    def getrandbits(self, k: int, /) -> int:
        check(self._loop, "ctx.random")
        return super().getrandbits(k)
