"""What one call of the processor came to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class Started:
    """These nodes were ready and run in this process now. None: all that is left is under way, or waits."""

    nodes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Finished:
    """The run has ended: every node has a result, or it was cancelled or timed out."""

    status: str


@dataclass(frozen=True, slots=True)
class Killed:
    """The run was killed or terminated: nothing starts any more."""

    reason: str | None


Advancement: TypeAlias = Started | Finished | Killed
