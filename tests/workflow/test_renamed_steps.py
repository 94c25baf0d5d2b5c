"""Steps that are renamed or removed while runs are open: warnings, parked runs, and results found by old names."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest

from apps import MakeApp
from driving import until_status
from holdfast import Context, DefinitionError, Holdfast, Step, WorkerConfig
from holdfast.store.protocol import Park
from holdfast.workflow.driver import WorkflowOptions

from .machine_bench import Bench, Workflow


def _work() -> Any: ...


def _release(*names: str, **renamed: str | tuple[str, ...]) -> tuple[Holdfast, dict[str, Step[..., Any]]]:
    """An app with these steps; ``new=old`` declares a renamed step."""
    app = Holdfast("sqlite://")
    steps = {name: app.step(name=name)(_work) for name in names}
    steps |= {new: app.step(name=new, renamed_from=old)(_work) for new, old in renamed.items()}
    return app, steps


def _run_after_charge(*, then: str = "ship") -> Bench:
    """An open run of the first release that has called ``charge`` and waits for an event."""
    app, steps = _release("charge", then)

    async def old(ctx: Context) -> Any:
        paid = await steps["charge"]()
        await ctx.wait_for_event("go", type="go")
        return [paid, await steps[then]()]

    bench = Bench(old)
    bench.deploy(old, app=app)
    bench.advance()
    bench.finish("charge", "paid")
    return bench


def _workflow_calling(steps: dict[str, Step[..., Any]], *names: str) -> Workflow:
    """A workflow that calls these steps, and waits for an event after the first."""

    async def new(ctx: Context) -> Any:
        results = [await steps[names[0]]()]
        await ctx.wait_for_event("go", type="go")
        return results + [await steps[name]() for name in names[1:]]

    return new


def _warnings(bench: Bench) -> list[str]:
    return [log.message for log in bench.logs if log.category == "system" and log.level == "warn"]


def test_calling_an_unrecorded_step_logs_a_warning_if_a_recorded_step_is_not_registered() -> None:
    bench = _run_after_charge()
    app, steps = _release("charge_card", "ship")
    bench.deploy(_workflow_calling(steps, "charge_card", "ship"), app=app)
    bench.replay()
    [warning] = _warnings(bench)
    assert "'charge_card'" in warning
    assert "'charge'" in warning
    assert list(bench.calls) == ["charge_card"]


def test_a_replay_does_not_repeat_the_warning() -> None:
    bench = _run_after_charge()
    app, steps = _release("charge_card", "ship")
    bench.deploy(_workflow_calling(steps, "charge_card", "ship"), app=app)
    for lost in (False, False, True):  # at the second replay the step still has no record
        bench.replay(lost=lost)
    assert len(_warnings(bench)) == 1


def test_the_warning_is_logged_once_per_pair_of_names() -> None:
    bench = _run_after_charge()
    app, steps = _release("charge_card")
    bench.deploy(_workflow_calling(steps, "charge_card", "charge_card", "charge_card"), app=app)
    bench.replay()
    bench.finish("charge_card")
    bench.send("go")
    bench.finish("charge_card#2")
    bench.finish("charge_card#3")
    assert len(_warnings(bench)) == 1


def test_a_new_step_before_recorded_steps_that_are_registered_logs_no_warning() -> None:
    bench = _run_after_charge()
    app, steps = _release("charge", "check", "ship")
    bench.deploy(_workflow_calling(steps, "check", "charge", "ship"), app=app)
    bench.replay()
    bench.finish("check", "checked")
    bench.send("go")
    bench.finish("ship", "shipped")
    assert bench.result == ["checked", "paid", "shipped"]
    assert _warnings(bench) == []


def test_names_passed_to_ctx_do_log_no_warning() -> None:
    async def old(ctx: Context) -> None:
        await ctx.do("first", _work)
        await ctx.do("second", _work)

    async def new(ctx: Context) -> None:
        await ctx.do("zeroth", _work)
        await ctx.do("first", _work)

    bench = Bench(old)
    bench.advance()
    bench.finish("first")
    bench.deploy(new, options=WorkflowOptions(replay="strict"))
    bench.replay()
    assert list(bench.calls) == ["zeroth"]
    assert _warnings(bench) == []


def test_a_plain_function_of_a_saga_is_not_taken_for_an_unregistered_step() -> None:
    def undo() -> None: ...

    app, steps = _release("check")

    async def old(ctx: Context) -> None:
        with suppress(ValueError):
            async with ctx.saga() as saga:
                saga.add(undo)
                raise ValueError("no")
        await ctx.wait_for_event("go", type="go")

    async def new(ctx: Context) -> None:
        await steps["check"]()

    bench = Bench(old)
    bench.advance()
    bench.finish("undo")
    bench.deploy(new, app=app, options=WorkflowOptions(replay="strict"))
    bench.replay()
    assert list(bench.calls) == ["check"]


def test_a_retired_step_logs_no_warning() -> None:
    bench = _run_after_charge()
    app, steps = _release("invoice", "ship")
    app.retired_steps("charge")
    bench.deploy(_workflow_calling(steps, "invoice", "ship"), app=app, options=WorkflowOptions(replay="strict"))
    bench.replay()
    assert list(bench.calls) == ["invoice"]
    assert _warnings(bench) == []


def test_strict_replay_parks_the_run_before_the_call_and_continues_with_matching_code() -> None:
    bench = _run_after_charge()
    app, steps = _release("charge_card", "ship")
    bench.deploy(_workflow_calling(steps, "charge_card", "ship"), app=app, options=WorkflowOptions(replay="strict"))
    bench.replay()
    assert isinstance(bench.end, Park)
    for text in ("NON_DETERMINISTIC", "'charge'", "'charge_card'"):
        assert text in bench.end.note
        assert text in bench.logs[-1].message
    assert bench.calls == {}

    app, steps = _release("ship", charge_card="charge")
    bench.deploy(_workflow_calling(steps, "charge_card", "ship"), app=app, options=WorkflowOptions(replay="strict"))
    bench.replay()
    bench.send("go")
    bench.finish("ship", "shipped")
    assert bench.result == ["paid", "shipped"]


def test_a_strict_worker_parks_runs_of_lenient_workflows() -> None:
    bench = _run_after_charge()
    app, steps = _release("charge_card", "ship")
    bench.deploy(_workflow_calling(steps, "charge_card", "ship"), app=app)
    bench.strict = True
    bench.replay()
    assert isinstance(bench.end, Park)


@pytest.mark.above_the_store
async def test_the_setting_of_a_strict_worker_parks_a_run_of_an_earlier_release(make_app: MakeApp) -> None:
    def release(step: str, **options: Any) -> Holdfast:
        app = make_app(**options)

        @app.step(name=step)
        async def charge() -> str:
            return step

        @app.workflow
        async def flow(ctx: Context) -> str:
            paid = await charge()
            await ctx.wait_for_event("go", type="go")
            return paid

        return app

    async with release("charge") as app:
        await until_status(await app.start("flow", id="a"), "waiting")
    async with release("charge_card", worker=WorkerConfig(replay="strict")) as app:
        run = await app.get("flow", "a")
        await run.send_event("go")
        await until_status(run, "paused")
        assert "NON_DETERMINISTIC: the code requests step 'charge_card'" in (await run.describe()).why


def test_a_renamed_step_has_the_results_that_were_recorded_under_its_old_names() -> None:
    app, steps = _release("charge")

    async def old(ctx: Context) -> None:
        await steps["charge"]()
        await steps["charge"]()
        await ctx.wait_for_event("go", type="go")

    bench = Bench(old)
    bench.deploy(old, app=app)
    bench.advance()
    bench.finish("charge", 1)
    bench.finish("charge#2", 2)

    app, steps = _release(charge_card=("bill", "charge"))

    async def new(ctx: Context) -> Any:
        results = [await steps["charge_card"](), await steps["charge_card"]()]
        await ctx.wait_for_event("go", type="go")
        return [*results, await steps["charge_card"]()]

    bench.deploy(new, app=app)
    bench.replay()
    bench.send("go")
    assert list(bench.calls) == ["charge_card#3"]
    bench.finish("charge_card#3", 3)
    assert bench.result == [1, 2, 3]
    bench.replay()
    assert bench.result == [1, 2, 3]
    assert _warnings(bench) == []


def test_a_step_renamed_between_two_attempts_keeps_its_key_and_its_attempt_count() -> None:
    app, steps = _release("charge")

    async def old(_ctx: Context) -> Any:
        return await steps["charge"]()

    bench = Bench(old)
    bench.deploy(old, app=app)
    bench.advance()
    bench.fail("charge", RuntimeError("gateway down"))

    app, steps = _release(charge_card="charge")

    async def new(_ctx: Context) -> Any:
        return await steps["charge_card"]()

    bench.deploy(new, app=app)
    bench.replay()
    bench.sleep(60)
    assert bench.calls["charge"].attempt == 2
    bench.replay(lost=True)
    assert bench.calls["charge"].attempt == 3
    bench.finish("charge", "paid")
    assert bench.result == "paid"


def test_a_renamed_step_has_the_result_recorded_under_a_name_passed_to_ctx_do() -> None:
    async def old(ctx: Context) -> None:
        await ctx.do("charge", _work)
        await ctx.wait_for_event("go", type="go")

    bench = Bench(old)
    bench.advance()
    bench.finish("charge", "paid")
    app, steps = _release("ship", charge_card="charge")
    bench.deploy(_workflow_calling(steps, "charge_card", "ship"), app=app)
    bench.replay()
    assert bench.calls == {}


def test_a_result_under_the_new_name_is_preferred_to_one_under_the_old() -> None:
    bench = _run_after_charge()
    app, steps = _release("charge_card", "ship")
    bench.deploy(_workflow_calling(steps, "charge_card", "ship"), app=app)
    bench.replay()
    bench.finish("charge_card", "paid again")
    app, steps = _release("ship", charge_card="charge")
    bench.deploy(_workflow_calling(steps, "charge_card", "ship"), app=app, options=WorkflowOptions(replay="strict"))
    bench.replay()
    bench.send("go")
    bench.finish("ship", "shipped")
    assert bench.result == ["paid again", "shipped"]


def test_a_step_of_another_kind_with_the_old_name_is_not_a_renamed_step() -> None:
    async def old(ctx: Context) -> None:
        await ctx.sleep("charge", "1 hour")

    bench = Bench(old)
    bench.advance()
    app, steps = _release(charge_card="charge")

    async def new(ctx: Context) -> None:
        await ctx.sleep("charge", "1 hour")
        await steps["charge_card"]()

    bench.deploy(new, app=app)
    bench.replay()
    bench.sleep(3600)
    assert list(bench.calls) == ["charge_card"]


def test_renamed_from_refuses_names_that_are_registered_or_renamed_already() -> None:
    with pytest.raises(DefinitionError, match="'charge'"):
        _release("charge", charge_card="charge")
    app, _ = _release(charge_card="charge")
    with pytest.raises(DefinitionError, match="'charge'"):
        app.step(name="charge")(_work)
    with pytest.raises(DefinitionError, match="'charge'"):
        app.step(name="bill", renamed_from="charge")(_work)
    with pytest.raises(DefinitionError, match="'ship'"):
        app.step(name="ship", renamed_from="ship")(_work)
