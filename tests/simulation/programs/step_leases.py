"""A chain whose steps have their own leases and timeouts.

The lease of a step is shorter or longer than that of most workers. Attempts are shorter or much longer than the lease,
so heartbeats have to renew it. ``LeaseWatch`` compares every lease that the database grants with the declared one.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from random import Random
from typing import Any, NamedTuple

from holdfast.app import Holdfast
from holdfast.chain.values import ChainTask
from simulation.programs.external_system import ExternalSystem
from simulation.programs.names import CHAIN_WITH_LEASES
from simulation.programs.retries import MAX_ATTEMPTS

_TIMEOUT_MS = 150
_SLOW_MS = 400
"""Duration of an attempt that exceeds its timeout."""


class _Options(NamedTuple):
    lease_ms: int | None = None
    timeout_ms: int | None = None


_STEPS = {
    "SHORT": _Options(lease_ms=300),
    "LONG": _Options(lease_ms=3000),
    "TIMED": _Options(timeout_ms=_TIMEOUT_MS),
    "BOTH": _Options(lease_ms=500, timeout_ms=_TIMEOUT_MS),
    "NEITHER": _Options(),
}


def lease_ms_of(step: str) -> int | None:
    """Return the lease that a step declares; None if it has the lease of the worker."""
    return _STEPS[step].lease_ms


def chain_with_leases_params(draw: Random) -> list[Any]:
    """For each step: its value, the number of attempts that raise, the number that exceed the timeout, its duration."""
    return [_step_params(draw, options) for options in _STEPS.values()]


def _step_params(draw: Random, options: _Options) -> list[int]:
    value, fails = draw.randrange(100), draw.choice([0, 0, 0, 1])
    if options.timeout_ms is not None:
        return [value, fails, draw.choice([0, 0, 1, 2]), draw.choice([0, 20])]
    return [value, fails, 0, draw.choice([0, 20, 1200])]


def fits_chain_with_leases(params: list[Any], result: Any) -> bool:
    return bool(result == [value for value, *_ in params])


def register_chain_with_leases(app: Holdfast, external: ExternalSystem) -> None:
    chain = app.chain(CHAIN_WITH_LEASES)
    for step, (lease_ms, timeout_ms) in _STEPS.items():
        lease, timeout = (None if ms is None else ms / 1000 for ms in (lease_ms, timeout_ms))
        chain.step(step, max_attempts=MAX_ATTEMPTS, lease=lease, timeout=timeout)(_handler(external))


def _handler(external: ExternalSystem) -> Callable[[ChainTask], Coroutine[Any, Any, Any]]:
    async def handle(task: ChainTask) -> Any:
        value, fails, slow, ms = task.params[task.step_seq]
        external.reached(task.instance_id, "chain_leases")
        effect = task.instance_id, task.run_number, task.step_type
        too_slow = external.effects[effect] < slow
        await external.work([*effect], value, 0 if too_slow else slow + fails, _SLOW_MS if too_slow else ms, "leased")
        if too_slow:
            external.overtime.append(
                f"attempt {task.attempt} of {effect} continued after its timeout of {_TIMEOUT_MS} ms"
            )
        last = task.step_seq == len(_STEPS) - 1
        return [*task.outputs.values(), value] if last else value

    return handle
