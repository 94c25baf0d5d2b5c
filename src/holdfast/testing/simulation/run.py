"""Runs one seed, and says what came of it."""

from __future__ import annotations

import gc
import logging
from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from holdfast.testing.simulation.checker import broken_promises
from holdfast.testing.simulation.faults import Faults
from holdfast.testing.simulation.loop import SimulatedLoop
from holdfast.testing.simulation.streams import stream
from holdfast.testing.simulation.trace import Entry, Trace
from holdfast.testing.simulation.world import World

_MOST_CALLBACKS = 400_000


@dataclass(frozen=True, slots=True)
class Report:
    """What came of a seed. No failures: every promise held."""

    seed: int
    failures: list[str]
    digest: str
    """Of all that happened: the same for the same seed."""
    faults: list[str]
    """The names of those that happened, in order."""
    counts: Counter[tuple[str, str]] = field(repr=False)
    instances: list[str]
    seconds: float
    """Of virtual time."""
    story: list[Entry] = field(repr=False)


def run_seed(seed: int, *, only: Collection[str] | None = None, without: Collection[str] = ()) -> Report:
    """Simulate a seed. ``only``: of its faults, none but these; ``without``: instances that are left out."""
    trace, faults = Trace(), Faults(seed, only)
    loop = SimulatedLoop(stream(seed, "schedule"), _MOST_CALLBACKS)
    world = World(seed, loop, trace, faults, frozenset(without))
    collecting = gc.isenabled()
    gc.disable()  # what it finalizes, and when, is no part of the seed
    try:
        with listening(loop.unhandled):
            failures = _run(world, loop)
    finally:
        ended = loop.time()
        with listening([]):
            loop.end()
            world.end()
        if collecting:
            gc.enable()
    return Report(
        seed,
        [*trace.violations, *failures],
        trace.digest(),
        faults.happened,
        faults.counts,
        [*world.workload.instances],
        ended,
        trace.entries,
    )


class _Listener(logging.Handler):
    """Hears of errors that the engine did not expect: it goes on after them, and nobody would know."""

    def __init__(self, heard: list[str]) -> None:
        super().__init__(logging.ERROR)
        self._heard = heard

    def emit(self, record: logging.LogRecord) -> None:
        if record.name == "holdfast.runs":
            return  # a run's own failure
        error = record.exc_info[1] if record.exc_info else None
        self._heard.append(f"{record.getMessage()} {error!r}")


@contextmanager
def listening(heard: list[str]) -> Iterator[None]:
    log, listener = logging.getLogger("holdfast"), _Listener(heard)
    before = log.handlers, log.propagate
    log.handlers, log.propagate = [listener], False
    try:
        yield
    finally:
        log.handlers, log.propagate = before


def _run(world: World, loop: SimulatedLoop) -> list[str]:
    try:
        loop.run_until_complete(world.run())
    except AssertionError as error:
        broken = [f"{type(error).__name__}: {error}"]
    else:
        broken = [*broken_promises(world)]
    return [*(f"unhandled: {error}" for error in loop.unhandled), *broken]
