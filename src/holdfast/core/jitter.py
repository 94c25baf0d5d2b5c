"""The jitter of a retry, drawn from the run's seed."""

from __future__ import annotations

from random import Random


def retry_jitter(seed: int, key: str, attempt: int) -> float:
    """A fraction below 1 that spreads retries; the same whenever it is computed for this attempt of this key.

    ``key``: the key of the step, empty for the retry of a run.
    """
    return Random(f"{seed}/{key}/{attempt}").random()  # noqa: S311  (not a secret)
