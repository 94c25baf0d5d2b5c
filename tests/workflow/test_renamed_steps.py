"""Steps that are renamed or removed under open runs: what the machine warns of, and what it takes for the same step."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest

from holdfast import Context, DefinitionError, Holdfast, Step
from holdfast.store.protocol import Park
from holdfast.workflow.driver import Manners

from .machine_bench import Bench, Workflow


def _work() -> Any: ...


def _app(*names: str, **renamed: str | tuple[str, ...]) -> tuple[Holdfast, dict[str, Step[..., Any]]]:
    """A release with these steps; ``new=old``: with the names that they had before."""
    app = Holdfast("sqlite://")
    steps = {name: app.step(name=name)(_work) for name in names}
    steps |= {new: app.step(name=new, renamed_from=old)(_work) for new, old in renamed.items()}
    return app, steps


def _charged(*, then: str = "ship") -> Bench:
    """An open run that has charged and waits for an event, as the first release left it."""
    app, steps = _app("charge", then)

    async def old(ctx: Context) -> Any:
        paid = await steps["charge"]()
        await ctx.wait_for_event("go", type="go")
        return [paid, await steps[then]()]

    bench = Bench(old)
    bench.code(old, app=app)
    bench.go()
    bench.finish("charge", "paid")
    return bench


def _code(steps: dict[str, Step[..., Any]], *names: str) -> Workflow:
    """Code that calls these steps, and waits for an event after the first."""

    async def new(ctx: Context) -> Any:
        results = [await steps[names[0]]()]
        await ctx.wait_for_event("go", type="go")
        return results + [await steps[name]() for name in names[1:]]

    return new


def _warnings(bench: Bench) -> list[str]:
    return [log.message for log in bench.logs if log.category == "system" and log.level == "warn"]


def test_a_step_without_a_record_is_warned_of_if_a_recorded_one_is_not_registered_any_more() -> None:
    bench = _charged()
    app, steps = _app("charge_card", "ship")
    bench.code(_code(steps, "charge_card", "ship"), app=app)
    bench.cold()
    [warning] = _warnings(bench)
    assert "'charge_card'" in warning
    assert "'charge'" in warning
    assert list(bench.calls) == ["charge_card"]


def test_a_replay_does_not_repeat_the_warning() -> None:
    bench = _charged()
    app, steps = _app("charge_card", "ship")
    bench.code(_code(steps, "charge_card", "ship"), app=app)
    for lost in (False, False, True):  # the step has no record yet at the second time
        bench.cold(lost=lost)
    assert len(_warnings(bench)) == 1


def test_the_same_pair_of_names_is_warned_of_once() -> None:
    bench = _charged()
    app, steps = _app("charge_card")
    bench.code(_code(steps, "charge_card", "charge_card", "charge_card"), app=app)
    bench.cold()
    bench.finish("charge_card")
    bench.send("go")
    bench.finish("charge_card#2")
    bench.finish("charge_card#3")
    assert len(_warnings(bench)) == 1


def test_a_new_step_before_recorded_ones_that_are_registered_is_not_warned_of() -> None:
    bench = _charged()
    app, steps = _app("charge", "check", "ship")
    bench.code(_code(steps, "check", "charge", "ship"), app=app)
    bench.cold()
    bench.finish("check", "checked")
    bench.send("go")
    bench.finish("ship", "shipped")
    assert bench.result == ["checked", "paid", "shipped"]
    assert _warnings(bench) == []


def test_names_given_to_do_are_not_registered_and_not_warned_of() -> None:
    async def old(ctx: Context) -> None:
        await ctx.do("first", _work)
        await ctx.do("second", _work)

    async def new(ctx: Context) -> None:
        await ctx.do("zeroth", _work)
        await ctx.do("first", _work)

    bench = Bench(old)
    bench.go()
    bench.finish("first")
    bench.code(new, manners=Manners(replay="strict"))
    bench.cold()
    assert list(bench.calls) == ["zeroth"]
    assert _warnings(bench) == []


def test_a_plain_function_of_a_saga_is_not_taken_for_a_step_that_is_gone() -> None:
    def undo() -> None: ...

    app, steps = _app("check")

    async def old(ctx: Context) -> None:
        with suppress(ValueError):
            async with ctx.saga() as saga:
                saga.add(undo)
                raise ValueError("no")
        await ctx.wait_for_event("go", type="go")

    async def new(ctx: Context) -> None:
        await steps["check"]()

    bench = Bench(old)
    bench.go()
    bench.finish("undo")
    bench.code(new, app=app, manners=Manners(replay="strict"))
    bench.cold()
    assert list(bench.calls) == ["check"]


def test_a_retired_step_is_not_warned_of() -> None:
    bench = _charged()
    app, steps = _app("invoice", "ship")
    app.retired_steps("charge")
    bench.code(_code(steps, "invoice", "ship"), app=app, manners=Manners(replay="strict"))
    bench.cold()
    assert list(bench.calls) == ["invoice"]
    assert _warnings(bench) == []


def test_strict_replay_parks_the_run_before_the_call_and_goes_on_when_the_code_fits() -> None:
    bench = _charged()
    app, steps = _app("charge_card", "ship")
    bench.code(_code(steps, "charge_card", "ship"), app=app, manners=Manners(replay="strict"))
    bench.cold()
    assert isinstance(bench.end, Park)
    for text in ("NON_DETERMINISTIC", "'charge'", "'charge_card'"):
        assert text in bench.end.note
        assert text in bench.logs[-1].message
    assert bench.calls == {}

    app, steps = _app("ship", charge_card="charge")
    bench.code(_code(steps, "charge_card", "ship"), app=app, manners=Manners(replay="strict"))
    bench.cold()
    bench.send("go")
    bench.finish("ship", "shipped")
    assert bench.result == ["paid", "shipped"]


def test_a_strict_worker_parks_runs_of_lenient_workflows() -> None:
    bench = _charged()
    app, steps = _app("charge_card", "ship")
    bench.code(_code(steps, "charge_card", "ship"), app=app)
    bench.strict = True
    bench.cold()
    assert isinstance(bench.end, Park)


def test_a_renamed_step_has_the_results_that_were_recorded_under_its_old_names() -> None:
    app, steps = _app("charge")

    async def old(ctx: Context) -> None:
        await steps["charge"]()
        await steps["charge"]()
        await ctx.wait_for_event("go", type="go")

    bench = Bench(old)
    bench.code(old, app=app)
    bench.go()
    bench.finish("charge", 1)
    bench.finish("charge#2", 2)

    app, steps = _app(charge_card=("bill", "charge"))

    async def new(ctx: Context) -> Any:
        results = [await steps["charge_card"](), await steps["charge_card"]()]
        await ctx.wait_for_event("go", type="go")
        return [*results, await steps["charge_card"]()]

    bench.code(new, app=app)
    bench.cold()
    bench.send("go")
    assert list(bench.calls) == ["charge_card#3"]
    bench.finish("charge_card#3", 3)
    assert bench.result == [1, 2, 3]
    bench.cold()
    assert bench.result == [1, 2, 3]
    assert _warnings(bench) == []


def test_a_step_renamed_between_two_attempts_goes_on_counting_under_its_first_key() -> None:
    app, steps = _app("charge")

    async def old(_ctx: Context) -> Any:
        return await steps["charge"]()

    bench = Bench(old)
    bench.code(old, app=app)
    bench.go()
    bench.fail("charge", RuntimeError("gateway down"))

    app, steps = _app(charge_card="charge")

    async def new(_ctx: Context) -> Any:
        return await steps["charge_card"]()

    bench.code(new, app=app)
    bench.cold()
    bench.sleep(60)
    assert bench.calls["charge"].attempt == 2
    bench.cold(lost=True)
    assert bench.calls["charge"].attempt == 3
    bench.finish("charge", "paid")
    assert bench.result == "paid"


def test_a_renamed_step_has_the_result_recorded_under_a_name_given_to_do() -> None:
    async def old(ctx: Context) -> None:
        await ctx.do("charge", _work)
        await ctx.wait_for_event("go", type="go")

    bench = Bench(old)
    bench.go()
    bench.finish("charge", "paid")
    app, steps = _app("ship", charge_card="charge")
    bench.code(_code(steps, "charge_card", "ship"), app=app)
    bench.cold()
    assert bench.calls == {}


def test_a_result_under_the_new_name_is_preferred_to_one_under_the_old() -> None:
    bench = _charged()
    app, steps = _app("charge_card", "ship")
    bench.code(_code(steps, "charge_card", "ship"), app=app)
    bench.cold()
    bench.finish("charge_card", "paid again")
    app, steps = _app("ship", charge_card="charge")
    bench.code(_code(steps, "charge_card", "ship"), app=app, manners=Manners(replay="strict"))
    bench.cold()
    bench.send("go")
    bench.finish("ship", "shipped")
    assert bench.result == ["paid again", "shipped"]


def test_a_step_of_another_kind_with_the_old_name_is_not_a_renamed_step() -> None:
    async def old(ctx: Context) -> None:
        await ctx.sleep("charge", "1 hour")

    bench = Bench(old)
    bench.go()
    app, steps = _app(charge_card="charge")

    async def new(ctx: Context) -> None:
        await ctx.sleep("charge", "1 hour")
        await steps["charge_card"]()

    bench.code(new, app=app)
    bench.cold()
    bench.sleep(3600)
    assert list(bench.calls) == ["charge_card"]


def test_a_renamed_step_cannot_have_the_name_of_a_registered_one() -> None:
    with pytest.raises(DefinitionError, match="'charge'"):
        _app("charge", charge_card="charge")
    app, _ = _app(charge_card="charge")
    with pytest.raises(DefinitionError, match="'charge'"):
        app.step(name="charge")(_work)
    with pytest.raises(DefinitionError, match="'charge'"):
        app.step(name="bill", renamed_from="charge")(_work)
    with pytest.raises(DefinitionError, match="'ship'"):
        app.step(name="ship", renamed_from="ship")(_work)
