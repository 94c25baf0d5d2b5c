"""Retry policies of the simulated steps."""

from __future__ import annotations

import math

from holdfast.core.retry import Retry

UNLIMITED = Retry(limit=math.inf, delay="40 ms", backoff="constant")
"""For steps that succeed in the end: the number of attempts that faults cost is not limited."""
TWO_ATTEMPTS = Retry(limit=1, delay="20 ms", backoff="constant")
MAX_ATTEMPTS = 1_000_000
"""As UNLIMITED, for chain steps and the outbox, which need a number."""
