"""The refusal of calls that workflow code may not make, because a replay would repeat them."""

from __future__ import annotations

import sys
from asyncio.events import _get_running_loop

from holdfast.errors import IOInWorkflowError


class WorkflowCodeLoop:
    """Marks an event loop that runs workflow code."""


def refuse_in_workflow_code(owner: str) -> None:
    """Raise if the running loop runs workflow code. The message names the calling method of ``owner``.

    The database answers on the event loop of the worker, so workflow code would wait for the answer forever.
    """
    if isinstance(_get_running_loop(), WorkflowCodeLoop):
        method = sys._getframe(2).f_code.co_name
        raise IOInWorkflowError(
            f"{owner}.{method} was used in workflow code: workflow code is replayed, so each replay would repeat the "
            "call. Use the context (ctx.run or ctx.spawn to start a run, ctx.send, ctx.ask, ctx.cancel), or put the "
            "call into a step: `await ctx.do(name, function, ...)` or a function decorated with `@app.step`."
        )
