"""The refusal of calls that workflow code may not make, because a replay would repeat them."""

from __future__ import annotations

import sys
from asyncio.events import _get_running_loop

from holdfast.errors import IOInWorkflowError


def refuse_in_workflow_code(owner: str, depth: int = 2) -> None:
    """Raise if the running loop runs workflow code.

    The database answers on the event loop of the worker, so workflow code would wait for the answer forever. The
    message names the method of ``owner`` whose frame is ``depth`` frames above; 0: no method.
    """
    if getattr(_get_running_loop(), "runs_workflow_code", False):
        method = f".{sys._getframe(depth).f_code.co_name}" if depth else ""  # noqa: SLF001  (documented)
        raise IOInWorkflowError(
            f"{owner}{method} was used in workflow code: workflow code is replayed, so each replay would repeat the "
            "call. Use the context (ctx.run or ctx.spawn to start a run, ctx.send, ctx.ask, ctx.cancel), or put the "
            "call into a step: `await ctx.do(name, function, ...)` or a function decorated with `@app.step`."
        )
