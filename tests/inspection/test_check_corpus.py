"""``holdfast check`` predicts the behaviour of open runs after a deployment: a corpus of code changes.

Each change has an open run of the old code. The check predicts what the run does on the new code; then the new code is
deployed, the run continues, and its behaviour is observed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from holdfast import Context, Holdfast
from holdfast.kernel.inspection import DifferenceKind
from holdfast.testing import Harness

from .releases import Code, Release, check, deploy, go, install, observe, wake

FIT = "fit"


@dataclass(frozen=True)
class Change:
    name: str
    expected: str
    old: Code
    new: Code
    recorded: set[str]
    """Values that the run has recorded on the old code."""
    steps: Sequence[str] = ("charge", "ship", "mail")
    new_steps: Sequence[str] | None = None
    renamed: Mapping[str, str] = field(default_factory=dict)
    retired: Sequence[str] = ()
    events: Sequence[str] = ()
    """Events that only the new code waits for."""
    options: Mapping[str, Any] = field(default_factory=dict)
    children: Sequence[str] = ()
    before: Sequence[str] = ()
    """Events that the run receives on the old code."""
    advance: str | None = None


CHANGES: list[Change] = []


def change(name: str, expected: str, recorded: Sequence[str] = ("charge",), **options: Any) -> Any:
    """Register the functions ``old`` and ``new`` of a class as a change."""

    def add(cls: Any) -> Any:
        CHANGES.append(Change(name, expected, cls.old, cls.new, {*recorded}, **options))
        return cls

    return add


class Base:
    """The old code of most changes: it has recorded ``charge`` and waits for an event."""

    @staticmethod
    async def old(ctx: Context, s: Release) -> list[Any]:
        used = [await s.charge()]
        await go(ctx)
        return [*used, await s.ship()]


@change("unchanged code", FIT)
class Unchanged(Base):
    new = Base.old


# --- names


@change("a renamed step", "step", new_steps=("charge_card", "ship"))
class Renamed(Base):
    @staticmethod
    async def new(ctx: Context, s: Release) -> list[Any]:
        used = [await s.charge_card()]
        await go(ctx)
        return [*used, await s.ship()]


@change("a renamed step with renamed_from", FIT, new_steps=("ship",), renamed={"charge_card": "charge"})
class RenamedAndDeclared(Renamed):
    pass


@change("a renamed step under strict replay", "parked", new_steps=("charge_card", "ship"), options={"replay": "strict"})
class RenamedStrictly(Renamed):
    pass


@change("another name in ctx.do", "step", ("feed",))
class RenamedDo:
    @staticmethod
    async def old(ctx: Context, s: Release) -> list[Any]:
        used = [await ctx.do("feed", s.function("feed"))]
        await go(ctx)
        return used

    @staticmethod
    async def new(ctx: Context, s: Release) -> list[Any]:
        used = [await ctx.do("prices", s.function("prices"))]
        await go(ctx)
        return used


@change("another function under the same name", FIT)
class OtherFunction(Base):
    @staticmethod
    async def new(ctx: Context, s: Release) -> list[Any]:
        used = [await ctx.do("charge", s.function("something else"))]
        await go(ctx)
        return [*used, await s.ship()]


# --- added steps


@change("a step added after the history", FIT)
class AddedAfter(Base):
    @staticmethod
    async def new(ctx: Context, s: Release) -> list[Any]:
        used = [await s.charge()]
        await go(ctx)
        return [*used, await s.mail(), await s.ship()]


@change("a step added before the open wait", FIT)
class AddedBeforeWait(Base):
    @staticmethod
    async def new(ctx: Context, s: Release) -> list[Any]:
        used = [await s.charge(), await s.mail()]
        await go(ctx)
        return [*used, await s.ship()]


@change("a step added before a recorded one", "step")
class AddedBeforeRecorded(Base):
    @staticmethod
    async def new(ctx: Context, s: Release) -> list[Any]:
        used = [await s.mail(), await s.charge()]
        await go(ctx)
        return [*used, await s.ship()]


@change("a parallel step added beside a recorded one", FIT)
class AddedParallel(Base):
    @staticmethod
    async def new(ctx: Context, s: Release) -> list[Any]:
        used = [*await asyncio.gather(s.charge(), s.mail())]
        await go(ctx)
        return [*used, await s.ship()]


# --- removed and moved steps


@change("a removed step", "unused")
class Removed(Base):
    @staticmethod
    async def new(ctx: Context, s: Release) -> list[Any]:
        await go(ctx)
        return [await s.ship()]


@change("a step removed after the history", FIT)
class RemovedAfter(Base):
    @staticmethod
    async def new(ctx: Context, s: Release) -> list[Any]:
        used = [await s.charge()]
        await go(ctx)
        return used


@change("a removed step and wait, followed by a new step", "step")
class RemovedAndNew(Base):
    @staticmethod
    async def new(ctx: Context, s: Release) -> list[Any]:
        return [await s.mail()]


@change("a removed step before the end", "unused")
class RemovedAndEnded(Base):
    @staticmethod
    async def new(ctx: Context, s: Release) -> list[Any]:
        return []


@change("reordered steps", FIT, ("charge", "mail"))
class Reordered:
    @staticmethod
    async def old(ctx: Context, s: Release) -> list[Any]:
        used = [await s.charge(), await s.mail()]
        await go(ctx)
        return used

    @staticmethod
    async def new(ctx: Context, s: Release) -> list[Any]:
        used = [await s.mail(), await s.charge()]
        await go(ctx)
        return used


@change("sequential steps made parallel", FIT, ("charge", "mail"))
class MadeParallel(Reordered):
    @staticmethod
    async def new(ctx: Context, s: Release) -> list[Any]:
        used = [*await asyncio.gather(s.mail(), s.charge())]
        await go(ctx)
        return used


@change("code moved into a helper", FIT)
class Extracted(Base):
    @staticmethod
    async def new(ctx: Context, s: Release) -> list[Any]:
        async def pay() -> str:
            paid: str = await s.charge()
            return paid

        used = [await pay()]
        await go(ctx)
        return [*used, await s.ship()]


# --- branches


@change("a branch that takes another step", "step")
class OtherBranch(Base):
    @staticmethod
    async def new(ctx: Context, s: Release) -> list[Any]:
        used = [await (s.mail() if ctx.info.attempt == 1 else s.charge())]
        await go(ctx)
        return [*used, await s.ship()]


@change("a branch that skips a step", "unused")
class SkippingBranch(Base):
    @staticmethod
    async def new(ctx: Context, s: Release) -> list[Any]:
        used = [await s.charge()] if ctx.info.attempt > 1 else []
        await go(ctx)
        return [*used, await s.ship()]


@change("a loop with more repetitions", FIT, ("charge", "charge"))
class LongerLoop:
    @staticmethod
    async def old(ctx: Context, s: Release) -> list[Any]:
        used = [await s.charge(), await s.charge()]
        await go(ctx)
        return used

    @staticmethod
    async def new(ctx: Context, s: Release) -> list[Any]:
        used = [await s.charge(), await s.charge()]
        await go(ctx)
        return [*used, *[await ctx.do(f"more {n}", s.function(f"more {n}")) for n in range(3)]]


@change("a loop with fewer repetitions", "unused", ("one", "two"))
class ShorterLoop:
    @staticmethod
    async def old(ctx: Context, s: Release) -> list[Any]:
        used = [await ctx.do(name, s.function(name)) for name in ("one", "two")]
        await go(ctx)
        return used

    @staticmethod
    async def new(ctx: Context, s: Release) -> list[Any]:
        used = [await ctx.do(name, s.function(name)) for name in ("one",)]
        await go(ctx)
        return used


# --- kinds


@change("a step that became a sleep", "parked")
class StepToSleep(Base):
    @staticmethod
    async def new(ctx: Context, s: Release) -> list[Any]:
        await ctx.sleep("charge", "1 hour")
        return []


@change("a step that became a wait", "parked")
class StepToWait(Base):
    @staticmethod
    async def new(ctx: Context, s: Release) -> list[Any]:
        await ctx.wait_for_event("charge", type="charge")
        return []


@change("an open wait that became a step", "parked")
class WaitToStep(Base):
    @staticmethod
    async def new(ctx: Context, s: Release) -> list[Any]:
        return [await s.charge(), await ctx.do("go", s.function("go"))]


@change("one name for two kinds", "failed")
class TwoKinds(Base):
    @staticmethod
    async def new(ctx: Context, s: Release) -> list[Any]:
        used = [await s.charge()]
        await ctx.sleep("charge", 1)
        return used


@change("new code that raises", "failed")
class Raises(Base):
    @staticmethod
    async def new(ctx: Context, s: Release) -> list[Any]:
        used = [await s.charge()]
        raise ValueError(f"a bug of the new code: {used}")


@change("a wait for nothing", "parked")
class WaitForNothing(Base):
    @staticmethod
    async def new(ctx: Context, s: Release) -> list[Any]:
        await asyncio.Event().wait()
        return []


# --- values


@change("another result type that fits", FIT)
class TypeFits(Base):
    @staticmethod
    async def new(ctx: Context, s: Release) -> list[Any]:
        async def charge() -> str | None: ...

        used = [await ctx.do("charge", charge)]
        await go(ctx)
        return [*used, await s.ship()]


@change("another result type that does not fit", "value")
class TypeDoesNotFit(Base):
    @staticmethod
    async def new(ctx: Context, s: Release) -> list[Any]:
        async def charge() -> int: ...

        return [await ctx.do("charge", charge)]


@change("an event payload that does not fit", "value", ("charge",), before=("approval",))
class PayloadDoesNotFit:
    @staticmethod
    async def old(ctx: Context, s: Release) -> list[Any]:
        used = [await s.charge()]
        await ctx.wait_for_event("approval", type="approval")
        await go(ctx)
        return used

    @staticmethod
    async def new(ctx: Context, s: Release) -> list[Any]:
        used = [await s.charge()]
        await ctx.wait_for_event("approval", type="approval", payload=dict[str, int])
        await go(ctx)
        return used


# --- timers


class _Napping:
    @staticmethod
    async def old(ctx: Context, s: Release) -> list[Any]:
        used = [await s.charge()]
        await ctx.sleep("nap", "1 hour")
        await go(ctx)
        return used


@change("a longer sleep that has ended", FIT, advance="2 hours")
class LongerSleep(_Napping):
    @staticmethod
    async def new(ctx: Context, s: Release) -> list[Any]:
        used = [await s.charge()]
        await ctx.sleep("nap", "300 days")
        await go(ctx)
        return used


@change("a shorter sleep that is open", FIT)
class ShorterSleep(_Napping):
    @staticmethod
    async def new(ctx: Context, s: Release) -> list[Any]:
        used = [await s.charge()]
        await ctx.sleep("nap", "1 second")
        await go(ctx)
        return used


@change("an anonymous timer added", FIT)
class AddedTimer(Base):
    @staticmethod
    async def new(ctx: Context, s: Release) -> list[Any]:
        used = [await s.charge()]
        async with asyncio.timeout(3600 * 24 * 300):
            await go(ctx)
        return [*used, await s.ship()]


@change("an anonymous timer removed", FIT, advance="2 minutes")
class RemovedTimer:
    @staticmethod
    async def old(ctx: Context, s: Release) -> list[Any]:
        used = [await s.charge()]
        await asyncio.sleep(60)
        await go(ctx)
        return used

    @staticmethod
    async def new(ctx: Context, s: Release) -> list[Any]:
        used = [await s.charge()]
        await go(ctx)
        return used


# --- event waits


@change("a wait with a longer timeout", FIT)
class LongerTimeout(Base):
    @staticmethod
    async def new(ctx: Context, s: Release) -> list[Any]:
        used = [await s.charge()]
        await ctx.wait_for_event("go", type="go", timeout="300 days")
        return [*used, await s.ship()]


@change("an open wait under another name", "wait", events=("signoff",))
class RenamedWait(Base):
    @staticmethod
    async def new(ctx: Context, s: Release) -> list[Any]:
        used = [await s.charge()]
        await ctx.wait_for_event("signoff", type="signoff")
        return [*used, await s.ship()]


@change("an open wait for another event type", "wait", events=("started",))
class OtherEventType(Base):
    @staticmethod
    async def new(ctx: Context, s: Release) -> list[Any]:
        used = [await s.charge()]
        await ctx.wait_for_event("go", type="started")
        return [*used, await s.ship()]


@change("a removed open wait", FIT)
class RemovedWait(Base):
    @staticmethod
    async def new(ctx: Context, s: Release) -> list[Any]:
        return [await s.charge(), await s.ship()]


@change("a wait added after the open one", FIT)
class AddedWait(Base):
    @staticmethod
    async def new(ctx: Context, s: Release) -> list[Any]:
        used = [await s.charge()]
        await go(ctx)
        await ctx.sleep("pause", "1 hour")
        return [*used, await s.ship()]


# --- children


class _Parent:
    @staticmethod
    async def old(ctx: Context, s: Release) -> list[Any]:
        used = [await ctx.run("pay")]
        await go(ctx)
        return used


@change("unchanged code with a child", FIT, ("pay",), children=("pay",))
class UnchangedParent(_Parent):
    new = _Parent.old


@change("a removed child", "unused", ("pay",), children=("pay",))
class RemovedChild(_Parent):
    @staticmethod
    async def new(ctx: Context, s: Release) -> list[Any]:
        await go(ctx)
        return []


@change("a removed child with retired_steps", FIT, (), children=("pay",), retired=("pay",))
class RetiredChild(RemovedChild):
    pass


@change("another child", "step", ("pay",), children=("pay", "bill"))
class OtherChild(_Parent):
    @staticmethod
    async def new(ctx: Context, s: Release) -> list[Any]:
        used = [await ctx.run("bill")]
        await go(ctx)
        return used


@change("a child added after the history", FIT, ("pay",), children=("pay", "bill"))
class AddedChild(_Parent):
    @staticmethod
    async def new(ctx: Context, s: Release) -> list[Any]:
        used = [await ctx.run("pay")]
        await go(ctx)
        return [*used, await ctx.run("bill")]


# --- declared changes


@change("a removed step with retired_steps", FIT, (), retired=("charge",), new_steps=("ship",))
class Retired(Base):
    @staticmethod
    async def new(ctx: Context, s: Release) -> list[Any]:
        await go(ctx)
        return [await s.ship()]


@change("a version for new runs only", FIT)
class Versioned(Base):
    @staticmethod
    async def new(ctx: Context, s: Release) -> list[Any]:
        first = s.charge if ctx.version("mail-first", 1, 2) == 1 else s.mail
        used = [await first()]
        await go(ctx)
        return [*used, await s.ship()]


@change("a version that is no longer supported", "failed")
class Unsupported:
    @staticmethod
    async def old(ctx: Context, s: Release) -> list[Any]:
        assert ctx.version("pay", 1, 1) == 1
        used = [await s.charge()]
        await go(ctx)
        return used

    @staticmethod
    async def new(ctx: Context, s: Release) -> list[Any]:
        assert ctx.version("pay", 2, 3) == 3
        used = [await s.charge()]
        await go(ctx)
        return used


@pytest.mark.above_the_store
@pytest.mark.parametrize("one", CHANGES, ids=lambda one: one.name)
async def test_a_change_has_the_predicted_effect(one: Change, app: Holdfast, h: Harness) -> None:
    old = Release(one.steps)
    for name in one.children:
        old.child(name)
    flow = old.workflow(one.old)
    install(h, old.app)
    run = await h.start(flow, id="o-1")
    await h.run_until_idle()
    for event in one.before:
        await run.send_event(event, "text")
        await h.run_until_idle()
    if one.advance is not None:
        await h.advance(one.advance)
    new = Release(one.steps if one.new_steps is None else one.new_steps, one.renamed)
    new.workflow(one.new, **one.options)
    for name in one.children:
        new.child(name)
    new.app.retired_steps(*one.retired)

    report = (await check(h, new.app)).of("order")
    assert report.checked == 1
    predicted = next(iter(report.counts), FIT)
    observed = await observe(h, run, new, one.recorded, one.events)

    assert (str(predicted), observed.kind) == (one.expected, one.expected), report.examples


async def test_a_run_whose_open_wait_was_renamed_waits_anew_after_a_pause_and_a_resume(
    app: Holdfast, h: Harness
) -> None:
    [renamed] = [one for one in CHANGES if one.name == "an open wait under another name"]
    old, new = Release(renamed.steps), Release(renamed.steps)
    flow = old.workflow(renamed.old)
    install(h, old.app)
    run = await h.start(flow, id="o-1")
    await h.run_until_idle()
    new.workflow(renamed.new)
    [example] = (await check(h, new.app)).of("order").examples[DifferenceKind.WAIT]

    await deploy(h, new.app)
    await run.send_event("signoff")
    await h.run_until_idle()
    assert (await run.status()).status == "waiting"
    await wake(h, run)

    assert (await run.status()).status == "complete"
    assert "pause and resume the run" in str(example)


def test_the_corpus_has_at_least_30_changes_with_unique_names() -> None:
    assert len({one.name for one in CHANGES}) == len(CHANGES) >= 30
