"""Options of the steps that the adapters to agent frameworks make."""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.core.durations import Duration
from holdfast.core.retry import Retry


@dataclass(frozen=True, slots=True)
class StepOptions:
    """Retries and timeout of the steps of one kind; None: the defaults of a step."""

    retry: Retry | None = None
    timeout: Duration | None = None
