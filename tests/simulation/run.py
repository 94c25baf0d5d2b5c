"""Runs one seed of the engine's simulation and reports its failures."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field

from holdfast.testing.simulation.engine_log import capture_errors
from holdfast.testing.simulation.loop import SimulatedLoop
from holdfast.testing.simulation.streams import stream
from holdfast.testing.simulation.trace import Entry, Trace
from simulation.checks.final_checks import broken_promises
from simulation.features.pairs import Pair
from simulation.system.faults import SeedFaults
from simulation.system.world import World

_MAX_CALLBACKS = 400_000


@dataclass(frozen=True, slots=True)
class Report:
    """The result of a seed. Without failures, every promise held."""

    seed: int
    failures: list[str]
    digest: str
    """Hash of the trace: equal for two runs of the same seed."""
    faults: list[str]
    """The names of the injected faults, in order."""
    counts: Counter[tuple[str, str]] = field(repr=False)
    """The number of injected faults by kind and operation."""
    pairs: set[Pair] = field(repr=False)
    """The pairs of features that met."""
    instances: list[str]
    seconds: float
    """Duration in virtual time."""
    trace: list[Entry] = field(repr=False)


def run_seed(seed: int, *, only: Collection[str] | None = None, without: Collection[str] = ()) -> Report:
    """Simulate a seed.

    ``only`` restricts the faults of the seed to these names. ``without`` names instances that are left out.
    """
    trace, faults = Trace(), SeedFaults(seed, only)
    loop = SimulatedLoop(stream(seed, "schedule"), _MAX_CALLBACKS)
    world = World(seed, loop, trace, faults, frozenset(without))
    collecting = gc.isenabled()
    gc.disable()  # finalizers would run at moments that the seed does not determine
    try:
        with capture_errors(loop.unhandled):
            failures = _run(world, loop)
            pairs = world.met_pairs()
    finally:
        ended = loop.time()
        with capture_errors([]):
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
        pairs,
        [*world.workload.instances],
        ended,
        trace.entries,
    )


def _run(world: World, loop: SimulatedLoop) -> list[str]:
    """Run the world to its end; return the failures."""
    try:
        loop.run_until_complete(world.run())
    except AssertionError as error:
        broken = [f"{type(error).__name__}: {error}"]
    else:
        broken = [*broken_promises(world)]
    return [*(f"unhandled: {error}" for error in loop.unhandled), *broken]
