"""The jitter of a retry, drawn from the run's seed."""

from __future__ import annotations

from random import Random


def retry_jitter(seed: int, key: str, attempt: int) -> float:
    """A fraction below 1 that spreads retries. It depends only on the seed, the key and the number of the attempt.

    ``key``: the key of the step, empty for the retry of a run.
    """
    return Random(f"{seed}/{key}/{attempt}").random()  # noqa: S311  (not a secret)
