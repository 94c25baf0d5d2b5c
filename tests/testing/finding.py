"""Fakes and defaults of the tests that expect findings."""

from __future__ import annotations

from typing import Any

from holdfast.testing import SimulationReport, simulate

_SEEDS = 10


class World:
    """A fake of the outside, which records the effects of steps."""

    done: list[Any]

    def fresh(self) -> list[Any]:
        """Forget the effects of the run before."""
        self.done = []
        return self.done


async def find(*args: Any, **options: Any) -> SimulationReport:
    """Simulate with few seeds, and return the findings instead of raising."""
    return await simulate(*args, **{"seeds": _SEEDS, "fail": False, **options})
