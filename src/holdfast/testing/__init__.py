"""Tests of workflows in virtual time, with seeded randomness and crashes on demand, without a server or real sleeps.

Example::

    async with Harness(app, seed=7) as h:
        run = await h.start(fulfil, Order("o-1", 125))
        await h.run_until_idle()
        await h.advance("1 hour")
        await run.send_event("approval", {"by": "ann"})
        await h.run_until_idle()
        assert (await run.status()).status == "complete"

    await simulate(app, fulfil, Order("o-1", 125), events=[("approval", {"by": "ann"})])  # under 200 seeds of faults
"""

from holdfast.testing.driven_client import HarnessError
from holdfast.testing.exported_runs import replay_file
from holdfast.testing.harness import CrashMismatch, Harness
from holdfast.testing.simulation.report import (
    Finding,
    FindingKind,
    SentEvent,
    SimulatedRun,
    SimulationError,
    SimulationFailed,
    SimulationReport,
)
from holdfast.testing.simulation.simulate import simulate
from holdfast.testing.virtual import SeededRandomness, VirtualClock

__all__ = [
    "CrashMismatch",
    "Finding",
    "FindingKind",
    "Harness",
    "HarnessError",
    "SeededRandomness",
    "SentEvent",
    "SimulatedRun",
    "SimulationError",
    "SimulationFailed",
    "SimulationReport",
    "VirtualClock",
    "replay_file",
    "simulate",
]
