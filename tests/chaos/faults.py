"""The plan of a storm: which fault, when, on which worker. It depends only on the seed and the size."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    KILL = "worker killed"
    STALL = "worker stopped past its lease"
    CUT_BEFORE = "connection cut before a commit"
    CUT_AFTER = "connection cut after a commit"
    CUT_ALL = "all connections of a worker cut"
    BLACK_HOLE = "no messages forwarded to a worker"
    SLOW = "slow connections"
    FAST = "server restarted, fast"
    IMMEDIATE = "server restarted, immediate"
    CRASH = "postmaster killed"


# Weights of the draw. A restart of the server affects all workers, so it is rarer.
_WEIGHTS = {
    Kind.CUT_BEFORE: 22,
    Kind.CUT_AFTER: 30,
    Kind.CUT_ALL: 6,
    Kind.KILL: 14,
    Kind.STALL: 8,
    Kind.BLACK_HOLE: 4,
    Kind.SLOW: 4,
    Kind.FAST: 5,
    Kind.IMMEDIATE: 5,
    Kind.CRASH: 2,
}
# The kinds that every plan has, however short.
_IN_EVERY_PLAN = (Kind.CUT_BEFORE, Kind.CUT_AFTER, Kind.KILL, Kind.STALL, Kind.FAST, Kind.IMMEDIATE)
# Patterns of the commits to cut. Most statements are heartbeats and claims; these are the commits that matter.
STATEMENTS = "INSERT INTO ledger.*COMMIT"
_WORKERS_COMMITS = ("holdfast_commit", STATEMENTS, STATEMENTS, "holdfast_claim", "")
_CLIENTS_COMMITS = ("holdfast_create", "holdfast_send")
SERVER = frozenset({Kind.FAST, Kind.IMMEDIATE, Kind.CRASH})


@dataclass(frozen=True, slots=True)
class Fault:
    at: float
    """Seconds after the start."""
    kind: Kind
    victim: int
    """The index of the worker; the number of workers means the client. Unused for faults of the server."""
    nth: int = 1
    """For a cut: which matching commit after ``at`` is cut, from 1."""
    matching: str = ""
    """For a cut: the pattern that the SQL of the commit must match."""
    seconds: float = 0
    """Duration of a fault that lasts."""


def make_plan(seed: int, *, count: int, seconds: float, workers: int, lease: float, spared: int = 0) -> list[Fault]:
    """``count`` faults, spread over ``seconds``. The first ``spared`` workers are not killed."""
    rng = random.Random(seed)
    drawn = rng.choices(list(_WEIGHTS), list(_WEIGHTS.values()), k=max(0, count - len(_IN_EVERY_PLAN)))
    kinds = [*_IN_EVERY_PLAN[:count], *drawn]
    rng.shuffle(kinds)
    times = sorted(rng.uniform(0, seconds) for _ in kinds)
    return [_fault(rng, at, kind, workers, lease, spared) for at, kind in zip(times, kinds, strict=True)]


def _fault(rng: random.Random, at: float, kind: Kind, workers: int, lease: float, spared: int) -> Fault:
    cuttable = kind in (Kind.CUT_BEFORE, Kind.CUT_AFTER, Kind.CUT_ALL)
    first = spared if kind is Kind.KILL else 0
    victim = rng.randrange(first, workers + 1 if cuttable else workers)
    matching = rng.choice(_WORKERS_COMMITS if victim < workers else _CLIENTS_COMMITS)
    longer = lease * rng.uniform(1.2, 1.6)
    seconds = {Kind.STALL: longer, Kind.BLACK_HOLE: longer, Kind.SLOW: 1.0}.get(kind, rng.uniform(0, 0.5))
    return Fault(round(at, 3), kind, victim, rng.randint(1, 4), matching, round(seconds, 3))


def summary(faults: Sequence[Fault]) -> dict[str, int]:
    counts = Counter(fault.kind.value for fault in faults)
    return {kind.value: counts[kind.value] for kind in Kind if counts[kind.value]}
