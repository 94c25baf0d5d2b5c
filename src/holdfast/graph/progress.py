"""Results of ``app.advance``, which starts the ready nodes of a run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class Started:
    """The nodes that were ready and now run in this process. Empty: all remaining nodes are running or waiting."""

    nodes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Finished:
    """The run has ended: every node has a result, or the run was cancelled or timed out."""

    status: str


@dataclass(frozen=True, slots=True)
class Killed:
    """The run was killed or terminated; no node is started any more."""

    reason: str | None


Advancement: TypeAlias = Started | Finished | Killed
