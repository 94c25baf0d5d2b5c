"""Parts of a program that call steps."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from holdfast.core.retry import Retry
from holdfast.errors import StepError, StepTimeoutError
from holdfast.workflow.context import Context
from simulation.programs.external_system import ExternalSystem
from simulation.programs.program import FAILED, LATE
from simulation.programs.retries import TWO_ATTEMPTS, UNLIMITED

PartKinds = dict[str, Callable[..., Coroutine[Any, Any, Any]]]
"""Functions that execute parts of a program, by the kind of the part. Their parameters are those of the part."""
_TIMEOUT = "100 ms"
_TOO_LONG_MS = 400
_ALWAYS = 1_000_000


class StepParts:
    """The parts that call steps. ``version`` is the version of the code."""

    def __init__(self, ctx: Context, external: ExternalSystem, version: int) -> None:
        self._ctx = ctx
        self._external = external
        self._version_of_code = version

    @property
    def kinds(self) -> PartKinds:
        return {
            "step": self.step,
            "retries": self.step,
            "plain": self._plain,
            "stream": self._stream,
            "tx": self._tx,
            "live": self._live,
            "poison": self._poison,
            "gives_up": self._gives_up,
            "broken": self._broken,
            "too_slow": self._too_slow,
            "saga": self._saga,
            "version": self._version,
            "stamp": self._stamp,
        }

    async def step(self, key: str, value: Any, fails: int, ms: int) -> Any:
        return await self._work(key, value, fails, ms, "step", UNLIMITED)

    async def _plain(self, key: str, value: Any, fails: int) -> Any:
        return await self._ctx.do(key, self._external.plain, self._effect(key), value, fails, retry=UNLIMITED)

    async def _stream(self, key: str, n: int, fails: int, ms: int) -> Any:
        await self._ctx.stream("code").write([key, "begin"])
        args = (self._effect(key), n, fails, ms)
        written = await self._ctx.do(key, self._external.write_items, *args, retry=UNLIMITED)
        await self._ctx.stream("code").write([key, "end"])
        return written

    async def _tx(self, key: str, value: Any, ms: int) -> Any:
        return await self._ctx.do(key, self._external.transact, self._effect(key), value, ms, retry=UNLIMITED)

    async def _live(self, key: str, value: Any, ms: int) -> Any:
        return await self._ctx.do(key, self._external.read_and_write, self._effect(key), value, ms, retry=UNLIMITED)

    async def _poison(self, key: str, value: Any) -> Any:
        return await self._work(key, value, 0, 0, "poison", UNLIMITED)

    async def _gives_up(self, key: str) -> Any:
        return await _result_or_failure(self._work(key, 0, _ALWAYS, 0, "step", TWO_ATTEMPTS))

    async def _broken(self, key: str, value: Any, times: int) -> Any:
        return await self._ctx.do(key, self._external.break_down, self._effect(key), value, times, retry=TWO_ATTEMPTS)

    async def _too_slow(self, key: str) -> Any:
        return await _result_or_failure(self._work(key, 0, 0, _TOO_LONG_MS, "step", TWO_ATTEMPTS, timeout=_TIMEOUT))

    async def _saga(self, key: str, n: int, fails: bool) -> Any:
        values = []
        try:
            async with self._ctx.saga() as saga:
                for step in range(n):
                    saga.add(self._external.undo, self._effect(key), step)
                    values.append(await self.step(f"{key}.{step}", step, 0, 0))
                if fails:
                    await self._work(f"{key}.x", 0, _ALWAYS, 0, "step", TWO_ATTEMPTS)
        except (StepError, ValueError):
            return FAILED
        return values

    async def _version(self, key: str, value: Any) -> Any:
        version = self._ctx.version(key, 1, self._version_of_code)
        return await self.step(f"{key}.{version}", [version, value], 0, 0)

    async def _stamp(self, key: str, ms: int) -> int:
        stamp: int = await self._ctx.do(key, self._external.stamp, self._effect(key), ms, retry=UNLIMITED)
        self._external.result_seen(self._effect(key), stamp)
        return stamp

    def _work(self, key: str, value: Any, fails: int, ms: int, kind: str, retry: Retry, **options: Any) -> Any:
        args = (self._effect(key), value, fails, ms, kind)
        return self._ctx.do(key, self._external.work, *args, retry=retry, **options)

    def _effect(self, key: str) -> list[Any]:
        return [self._ctx.info.instance_id, self._ctx.info.run_number, key]


async def _result_or_failure(step: Any) -> Any:
    """Return the result of a step, or ``LATE`` or ``FAILED``."""
    try:
        return await step
    except StepTimeoutError:
        return LATE
    except (StepError, ValueError):  # a builtin error is raised with its own type
        return FAILED
