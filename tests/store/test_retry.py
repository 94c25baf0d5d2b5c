"""Retries of store calls."""

from __future__ import annotations

from holdfast.errors import StoreBusyError, StoreError
from holdfast.ports import SystemRandomness
from holdfast.store.retry import backoff, call_with_retry


async def test_a_call_is_repeated_until_it_succeeds() -> None:
    failures: list[int] = []

    async def call() -> str:
        if len(failures) < 3:
            raise StoreBusyError("busy")
        return "done"

    def pause_after(_error: StoreError, count: int, _deadline: float) -> float:
        failures.append(count)
        return 0

    assert await call_with_retry(call, StoreError, pause_after) == "done"
    assert failures == [1, 2, 3]


def test_the_backoff_doubles_up_to_its_maximum() -> None:
    random = SystemRandomness()
    for failures, seconds in ((1, 0.05), (2, 0.1), (3, 0.2), (8, 5.0), (1000, 5.0)):
        assert seconds * 0.5 <= backoff(failures, random) <= seconds * 1.5
