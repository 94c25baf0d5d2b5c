"""The external system that the simulated steps call."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any

from holdfast.errors import NonRetryableError
from holdfast.kernel.attempt import StepTx, Transaction
from holdfast.kernel.step_info import StepInfo, step_info
from simulation.programs.program import BROKEN

Effect = tuple[str, int, str]
"""A step as the external system identifies it: instance, run number, key."""
ANY_RUN = -1
"""The run number of an effect whose function does not know it."""
EFFECT_TABLE = "effect"
CREATE_EFFECT_TABLE = f"CREATE TABLE {EFFECT_TABLE} (instance TEXT, number INTEGER, key TEXT)"
"""The table into which steps write rows through their transactions."""


class ExternalSystem:
    """Counts the calls of each step.

    ``on_call`` is called at each call with the effect, the number of the call and the kind of the step. It returns a
    delay in seconds, or kills the calling process. ``result_seen`` is called when workflow code receives the result of
    a ``stamp`` step.
    """

    def __init__(
        self, on_call: Callable[[Effect, int, str], float], result_seen: Callable[[Effect, int], None]
    ) -> None:
        self.reset(on_call, result_seen)

    def reset(self, on_call: Callable[[Effect, int, str], float], result_seen: Callable[[Effect, int], None]) -> None:
        """Forget all calls."""
        self.effects: Counter[Effect] = Counter()
        """The number of calls of each step."""
        self.broken: Counter[tuple[str, str]] = Counter()
        """The number of calls of each step that is broken until it is repaired, by instance and key."""
        self.delivered: list[str] = []
        """The ids of outbound events in the order of their arrival, repetitions included."""
        self.undone: list[tuple[Effect, int]] = []
        """Undo calls of sagas in order, repetitions included: the saga, and the index of the step."""
        self.overtime: list[str] = []
        """Attempts that continued after their timeout."""
        self.features: dict[str, set[str]] = {}
        """For each instance: the features that its runs have reached."""
        self.common: tuple[str, ...] = ()
        """Features that all runs of the seed have."""
        self._on_call = on_call
        self._result_seen = result_seen

    def reached(self, instance: str, *features: str) -> None:
        """Record that a run of an instance uses features."""
        self.features.setdefault(instance, set()).update(features)

    async def work(self, effect: list[Any], value: Any, fails: int, ms: int, kind: str) -> Any:
        """Step function that raises in its first ``fails`` calls and takes ``ms`` milliseconds."""
        delay = self._call(effect, kind)
        number = self.effects[_as_effect(effect)]
        info = step_info()
        self.reached(info.instance_id, "heartbeats")
        await info.heartbeat(_progress(info))
        await asyncio.sleep(delay + ms / 1000)
        return _value_or_error(number, fails, value)

    async def write_items(self, effect: list[Any], n: int, fails: int, ms: int) -> Any:
        """Step function that writes ``n`` items to a stream, and raises after them in its first ``fails`` calls."""
        delay = self._call(effect, "step")
        number, info = self.effects[_as_effect(effect)], step_info()
        await info.heartbeat(_progress(info))
        out = info.stream("out")
        for item in range(n):
            await out.write([info.step_key, item])
            await asyncio.sleep((delay + ms / 1000) / n)
        return _value_or_error(number, fails, n)

    def plain(self, effect: list[Any], value: Any, fails: int) -> Any:
        """Step function that is not async and raises in its first ``fails`` calls."""
        self._call(effect, "plain")
        info = step_info()
        info.heartbeat(_progress(info))
        return _value_or_error(self.effects[_as_effect(effect)], fails, value)

    async def break_down(self, effect: list[Any], value: Any, times: int) -> Any:
        """Step function that raises a permanent error in its first ``times`` calls in all runs of an instance."""
        delay = self._call(effect, "broken")
        instance, _, key = _as_effect(effect)
        self.broken[instance, key] += 1
        await asyncio.sleep(delay)
        if self.broken[instance, key] <= times:
            raise NonRetryableError(BROKEN)
        return value

    async def stamp(self, effect: list[Any], ms: int) -> int:
        """Step function whose result is the number of its calls, so each call has a different result."""
        delay, stamp = self._call(effect, "step"), self.effects[_as_effect(effect)]
        await asyncio.sleep(delay + ms / 1000)
        return stamp

    def result_seen(self, effect: list[Any], stamp: int) -> None:
        instance, number, key = effect
        self._result_seen((instance, number, key), stamp)

    async def transact(self, tx: StepTx, effect: list[Any], value: Any, ms: int) -> Any:
        """Step function that writes a row through ``StepTx``."""
        await asyncio.sleep(self._call(effect, "tx") + ms / 1000)
        tx.execute("INSERT INTO effect VALUES (?, ?, ?)", *_as_effect(effect))
        return value

    async def read_and_write(self, tx: Transaction, effect: list[Any], value: Any, ms: int) -> Any:
        """Step function that writes a row in a live transaction, unless the row exists."""
        delay = self._call(effect, "live")
        row = _as_effect(effect)
        existing = await tx.fetch("SELECT key FROM effect WHERE instance = ? AND number = ? AND key = ?", *row)
        if existing:
            raise NonRetryableError(f"the row {row} exists already")
        await asyncio.sleep(delay + ms / 1000)
        await tx.execute("INSERT INTO effect VALUES (?, ?, ?)", *row)
        return value

    async def undo(self, effect: list[Any], step: int) -> None:
        self.undone.append((_as_effect(effect), step))

    def deliver(self, event: str) -> None:
        """Receive an outbound event."""
        if self._on_call((event, 0, "delivery"), 0, "delivery"):
            raise ConnectionError("simulated: the receiver does not answer")
        self.delivered.append(event)

    def _call(self, effect_parts: list[Any], kind: str) -> float:
        """Count a call, and return its delay in seconds."""
        effect = _as_effect(effect_parts)
        self.effects[effect] += 1
        return self._on_call(effect, self.effects[effect], kind)


def _as_effect(parts: list[Any]) -> Effect:
    """The effect with the number of the run that makes the call, which workflow code does not know after a retry."""
    instance, number, key = parts
    return instance, number if number == ANY_RUN else step_info().run_number, key


def _progress(info: StepInfo) -> list[Any]:
    """Return the progress that an attempt reports: its step and its number. ``step_infos.py`` compares these."""
    return [info.workflow, info.instance_id, info.run_number, info.step_key, info.attempt]


def _value_or_error(number: int, fails: int, value: Any) -> Any:
    if number <= fails:
        raise ValueError(f"failure {number} of {fails}")
    return value
