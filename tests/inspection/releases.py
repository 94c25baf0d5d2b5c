"""Two releases of a program: runs begin on the old release; the new one is checked, and then deployed."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from holdfast import Context, Handle, Holdfast, Step
from holdfast.checking import Checker, CheckOptions, CheckReport
from holdfast.client.replaying import Replayer
from holdfast.testing import Harness

Code = Callable[..., Coroutine[Any, Any, Any]]


class Release:
    """An app whose steps return their own names and record that they were called."""

    def __init__(self, names: Sequence[str] = (), renamed: Mapping[str, str] | None = None) -> None:
        self.app = Holdfast("sqlite://")
        self.calls: list[str] = []
        self.steps: dict[str, Step[..., Any]] = {}
        for name in names:
            self.steps[name] = self.app.step(name=name)(self._function(name))
        for new, old in (renamed or {}).items():
            self.steps[new] = self.app.step(name=new, renamed_from=old)(self._function(new))

    def _function(self, name: str) -> Callable[..., Any]:
        async def work(*_args: Any) -> str:
            self.calls.append(name)
            return name

        return work

    def child(self, name: str) -> Any:
        """A child workflow that returns its own name."""

        async def child(ctx: Context) -> str:
            result: str = await ctx.do("work", self.function(name))
            return result

        return self.app.workflow(name=name)(child)

    def __getattr__(self, name: str) -> Step[..., Any]:
        return self.steps[name]

    def function(self, name: str) -> Callable[..., Any]:
        """A function for ``ctx.do``."""
        return self._function(name)

    def workflow(self, code: Code, **options: Any) -> Any:
        """Register code that takes the context and this release; its result is a list of the values it received."""

        async def order(ctx: Context) -> list[Any]:
            found: list[Any] = await code(ctx, self)
            return found

        return self.app.workflow(name="order", **options)(order)


async def go(ctx: Context) -> None:
    await ctx.wait_for_event("go", type="go", timeout="10 days")


def checker(h: Harness, app: Holdfast) -> Checker:
    """A checker of the harness's runs on the code of an app."""
    client = h._opened().client
    requests = type(client._requests)(app.registry, app.limits, h._own_app.runtime, h._own_app.runtime.time)
    replayer = Replayer(app.registry, requests, lambda: round(h.now().timestamp() * 1000))
    return Checker(h._opened().store, replayer, app.worker_config.version)


async def check(h: Harness, app: Holdfast, **options: Any) -> CheckReport:
    return await checker(h, app).check(CheckOptions(**options))


def install(h: Harness, app: Holdfast) -> None:
    """Give the harness the definitions of an app."""
    registry = h._own_app.registry
    registry._by_name = dict(app.registry._by_name)
    registry._runnable = app.registry._runnable


async def deploy(h: Harness, app: Holdfast) -> None:
    """Replace the worker by one with another release."""
    install(h, app)
    await h.restart()


async def wake(h: Harness, run: Handle[Any]) -> None:
    """Let the run have one turn, without an event and without a due timer."""
    await run.pause()
    await h.run_until_idle()
    await run.resume()
    await h.run_until_idle()


@dataclass
class Observed:
    """The behaviour of a run on the new release."""

    kind: str
    details: Any = field(default=None)


async def observe(
    h: Harness, run: Handle[Any], release: Release, recorded: set[str], events: Sequence[str]
) -> Observed:
    """Deploy a release, let the run continue, and return its behaviour in the terms of ``DifferenceKind``."""
    await deploy(h, release.app)
    if await _is_woken_by_none(h, run, events):
        return Observed("wait")
    await wake(h, run)
    called = [*release.calls]
    status = await run.status()
    if status.status == "paused":
        why = (await run.describe()).why
        assert "NON_DETERMINISTIC" in why
        return Observed("value" if "fit" in why else "parked", why)
    if status.status == "errored":
        return Observed("failed", status.error)
    for _ in range(3):
        for event in (*events, "go"):
            if (await run.status()).status != "complete":
                await run.send_event(event)
                await h.run_until_idle()
        await h.advance("11 days")
    status = await run.status()
    assert status.status == "complete", (status, (await run.describe()).why)
    repeated = recorded & {*release.calls}
    assert not repeated, f"{repeated} were called again under their own names"
    received = [str(value) for value in status.output]
    unused = recorded - {*received}
    if unused:
        return Observed("step" if called else "unused", unused)
    late = {value for value in recorded if any(received.index(new) < received.index(value) for new in called)}
    if late:
        return Observed("step", f"{called} were called before {late} were used")
    return Observed("fit")


async def _is_woken_by_none(h: Harness, run: Handle[Any], events: Sequence[str]) -> bool:
    """True if none of the events that the new code waits for wakes the run."""
    if not events:
        return False
    before = len((await run.history()).steps)
    for event in events:
        await run.send_event(event)
        await h.run_until_idle()
    return len((await run.history()).steps) == before and (await run.status()).status == "waiting"
