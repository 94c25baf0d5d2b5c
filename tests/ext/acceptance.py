"""The acceptance of an agent adapter: the worker is lost after every commit of a run.

The run has parallel tools, an approval and a tool that fails once. Each model and tool notes the key of its step when
it is called. A step whose result was recorded when the worker was lost must not be called again.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from holdfast import Handle, Holdfast, step_info
from holdfast.testing.crashing_harness import CrashingHarness
from postgres_harness import CleanStore

Drive = Callable[[CrashingHarness, Handle[Any]], Awaitable[None]]


@dataclass
class Calls:
    """The calls of models and tools in one execution."""

    keys: list[str] = field(default_factory=list)
    recorded: set[str] = field(default_factory=set)
    """Steps whose results were recorded when the worker was lost."""
    before: int = 0
    """Number of calls before the worker was lost."""

    def note(self) -> str:
        """Note a call in the step that makes it; returns the key of the step."""
        info = step_info()
        self.keys.append(info.step_key)
        return info.step_key

    @property
    def repeated(self) -> set[str]:
        return self.recorded & {*self.keys[self.before :]}


def _without_times(value: Any) -> Any:
    """The value without times, which are later after a crash: another worker waits for the lease to expire."""
    if isinstance(value, dict):
        return {key: _without_times(part) for key, part in value.items() if key not in ("timestamp", "created_at")}
    return [_without_times(part) for part in value] if isinstance(value, list) else value


class ObservedHarness(CrashingHarness):
    calls: Calls

    async def _lose_worker(self) -> None:
        for item in (await self.app.list()).items:
            steps = (await (await self.app.get(item.workflow_name, item.id)).history()).steps
            self.calls.recorded |= {step.step_key for step in steps if step.status == "completed"}
        self.calls.before = len(self.calls.keys)
        await super()._lose_worker()


@dataclass(frozen=True)
class Acceptance:
    """``make`` makes the app for one execution, ``drive`` brings the run of ``workflow`` to its end."""

    make: Callable[[Calls], Holdfast]
    drive: Drive
    workflow: str
    stream: str
    parallel: bool = False
    """Steps that run at the same time write to the stream: a crash may change the order of their items."""

    async def execute(self, crash_after: int | None, store: str) -> tuple[Any, list[Any], int, Calls]:
        """The result, the items of the stream, the number of commits and the calls."""
        calls = Calls()
        kind = CleanStore if store == "postgres" else None
        async with ObservedHarness(self.make(calls), store=kind) as h:
            h.calls = calls
            h.crash_after(crash_after)
            run = await h.start(self.workflow, "order")
            await self.drive(h, run)
            result = await run.result(timeout=60)
            items = [_without_times(item.value) async for item in run.stream(self.stream)]
            assert h.crashed == (crash_after is not None)
            return result, items, h.commits, calls

    def _comparable(self, items: list[Any]) -> list[str]:
        return sorted(map(repr, items)) if self.parallel else [*map(repr, items)]

    async def check(self, store: str, *, all_commits: bool) -> list[Any]:
        """Compare an execution for each commit after which the worker is lost with one without a crash."""
        expected, items, commits, _ = await self.execute(None, store)
        assert items
        for after in range(1, commits + 1, 1 if all_commits else 4):
            result, streamed, _, calls = await self.execute(after, store)
            assert calls.repeated == set(), f"called again after commit {after} of {commits}"
            assert result == expected, f"after commit {after} of {commits}"
            assert self._comparable(streamed) == self._comparable(items), f"after commit {after} of {commits}"
        return [expected, items]
