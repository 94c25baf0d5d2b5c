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

Importing this package is cheap, because pytest loads the plugin in it: a name loads its module when it is first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
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

_MODULES = {
    "CrashMismatch": "holdfast.testing.harness",
    "Finding": "holdfast.testing.simulation.report",
    "FindingKind": "holdfast.testing.simulation.report",
    "Harness": "holdfast.testing.harness",
    "HarnessError": "holdfast.testing.driven_client",
    "SeededRandomness": "holdfast.testing.virtual",
    "SentEvent": "holdfast.testing.simulation.report",
    "SimulatedRun": "holdfast.testing.simulation.report",
    "SimulationError": "holdfast.testing.simulation.report",
    "SimulationFailed": "holdfast.testing.simulation.report",
    "SimulationReport": "holdfast.testing.simulation.report",
    "VirtualClock": "holdfast.testing.virtual",
    "replay_file": "holdfast.testing.exported_runs",
    "simulate": "holdfast.testing.simulation.simulate",
}
"""The module of each public name."""

if not TYPE_CHECKING:  # type checkers report unknown names only if there is no ``__getattr__``

    def __getattr__(name: str) -> object:
        """Load the module of a public name (PEP 562)."""
        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = globals()[name] = getattr(import_module(_MODULES[name]), name)
        return value

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__} - {"TYPE_CHECKING", "import_module"})
