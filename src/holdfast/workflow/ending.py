"""The end of a run: its status, its output or error, and its successor."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from holdfast.core.failure import Failure
from holdfast.core.jitter import retry_jitter
from holdfast.core.model import Status
from holdfast.kernel.options import NO_OPTIONS, RunOptions
from holdfast.store.protocol import Finish, RunRecord
from holdfast.workflow.continue_as_new import ContinueAsNew
from holdfast.workflow.run_attributes import RunAttributes


@dataclass(slots=True, eq=False)
class Ending:
    """Computes the end of a run from the state of its main task."""

    run: RunRecord
    options: RunOptions
    attributes: RunAttributes
    now: int
    encode_output: Callable[[Any], bytes]
    cancel_reason: str | None
    """The reason of the cancel request, if there was one; empty if it gave none."""

    def finish(self, main: asyncio.Task[Any] | None, fatal: BaseException | None) -> Finish:
        """The end of a run whose code has ended, or (``main`` is None) never started."""
        if fatal is not None or main is None:
            return self._failed(fatal) if fatal is not None else self._cancelled()
        if main.cancelled():
            own_cancellation = asyncio.CancelledError("workflow code was cancelled")
            return self._cancelled() if self.cancel_reason is not None else self._failed(own_cancellation)
        error = main.exception()
        if isinstance(error, ContinueAsNew):
            return self._continued(error.params)
        return self._returned(main.result()) if error is None else self._failed(error)

    def _returned(self, value: Any) -> Finish:
        try:
            output = self.encode_output(value)
        except Exception as error:
            return self._failed(error)
        return self._with_next(Finish(Status.COMPLETE, output=output))

    def _failed(self, error: BaseException) -> Finish:
        failed, retry = Failure.of_run(error), self.options.retry
        finish = Finish(Status.ERRORED, error=failed.encode())
        if failed.retryable is False or retry is None or not retry.retries(failed.lineage or (failed.name,)):
            return self._with_next(finish)
        return self._with_next(finish, retryable=True)

    def _with_next(self, finish: Finish, *, retryable: bool = False) -> Finish:
        if self.options is NO_OPTIONS:
            return finish
        chance = retry_jitter(self.run.seed, "", self.run.attempt)
        following = self.options.successor(self.run, finish, retryable=retryable, now=self.now, chance=chance)
        return replace(finish, next=following)

    def _cancelled(self) -> Finish:
        error = Failure("CancelledError", self.cancel_reason or "no reason given", kind="Cancelled", retryable=False)
        return Finish(Status.CANCELLED, error=error.encode())

    def _continued(self, params: bytes | None) -> Finish:
        options = self.attributes.options()
        following = replace(options.continuation(params, self.now), options=options.encode())
        return Finish(Status.COMPLETE, note=f"continued as run {self.run.number + 1}", next=following)
