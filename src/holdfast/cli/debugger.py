"""The Python debugger in workflow code that is replayed: it stops where the code continues after a fact."""

from __future__ import annotations

import pdb
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

from holdfast.cli.errors import WrongUsageError
from holdfast.client.replaying import Replayer
from holdfast.client.run_file import StoredRun
from holdfast.core.tracebacks import package_of
from holdfast.kernel.inspection import Inspection

_SKIPPED = ["holdfast.*", "asyncio", "asyncio.*", "contextlib", "contextvars"]
"""Modules that ``step`` and ``next`` do not enter."""


def debug(replayer: Replayer, stored: StoredRun, until: int | None) -> None:
    """Replay to the fact before ``until``, and continue with that fact in the debugger.

    ``until`` 0: stop in the first line of the workflow. None: stop after the last fact. Steps return recorded results.
    """
    with replayer.open(stored) as inspection:
        total = len(inspection.facts)
        position = total if until is None else min(until, total)
        if not replayer.replays_code(stored.row):
            raise WrongUsageError(f"--pdb: {stored.row.pid} is a {stored.row.kind}, which has no code that is replayed")
        if position:
            inspection.replay_to(position - 1)
        if not _trace(inspection, position):
            return
        waits = ", ".join(map(str, inspection.pending())) or "nothing: the code has ended"
        sys.stdout.write(f"--- position {inspection.position} of {total}; the code waits for {waits}\n")


def _trace(inspection: Inspection, position: int) -> bool:
    """Deliver the remaining facts in the debugger, which stops at the first line of user code that runs.

    Returns False if the user has left the debugger.
    """
    debugger = pdb.Pdb(skip=_SKIPPED, nosigint=True)
    sys.settrace(_stop_in_user_code(debugger))
    try:
        for number in range(position, len(inspection.facts) + 1):
            inspection.replay_to(number)
            if debugger.quitting:
                return False
    finally:
        sys.settrace(None)
    return True


def _stop_in_user_code(debugger: pdb.Pdb) -> Callable[[FrameType, str, Any], Any]:
    """A trace function that passes control to the debugger at the first call, or continuation, of user code."""

    def trace(frame: FrameType, event: str, _argument: Any) -> Any:
        if event != "call" or package_of(frame.f_code.co_filename) is not None:
            return None
        debugger.reset()
        debugger.set_step()
        frame.f_trace = debugger.trace_dispatch
        sys.settrace(debugger.trace_dispatch)
        return debugger.trace_dispatch

    return trace
