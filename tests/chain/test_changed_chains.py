"""A run follows the plan stored at its start, also after its chain was changed."""

from __future__ import annotations

from typing import Any

from holdfast import ChainTask, Handle, Holdfast
from holdfast.testing import Harness


def chain_of(app: Holdfast, version: int, *steps: str, attempts: int = 5) -> Any:
    """A chain whose steps return the version and their type."""
    chain = app.chain("changing", version)
    for step in steps:

        @chain.step(step, max_attempts=attempts)
        async def handler(task: ChainTask) -> Any:
            return f"{version}:{task.step_type}"

    return chain


async def deploy(h: Harness, *definition: Any) -> None:
    """Replace the worker by one with another version of the chain. ``definition``: arguments of ``chain_of``."""
    other = Holdfast("sqlite://")
    chain_of(other, *definition)
    h._own_app.registry = other.registry
    h._opened()._app.registry = other.registry
    await h.restart()


async def results(run: Handle[Any]) -> list[tuple[str, str | None, Any]]:
    return [(s.name, s.state, s.result) for s in (await run.history()).steps]


async def started(h: Harness, app: Holdfast, *steps: str) -> Handle[Any]:
    return await h.start(chain_of(app, 1, *steps), start_delay="1 second", id="one")


async def test_a_newer_chain_follows_the_stored_plan(h: Harness, app: Holdfast) -> None:
    run = await started(h, app, "A", "B", "C")
    await deploy(h, 2, "NEW", "C", "B", "A", "LAST")
    await h.advance("1 second")
    assert await results(run) == [("A", "DONE", "2:A"), ("B", "DONE", "2:B"), ("C", "DONE", "2:C")]
    assert (await run.status()).output == "2:C"
    assert (await run.describe()).workflow_version == 1


async def test_an_older_chain_follows_the_stored_plan(h: Harness, app: Holdfast) -> None:
    run = await started(h, app, "A", "B")
    await deploy(h, 1, "B", "A", "OLD")
    await h.advance("1 second")
    assert [name for name, _, _ in await results(run)] == ["A", "B"]
    assert (await run.status()).status == "complete"


async def test_max_attempts_of_a_step_is_fixed_at_the_start(h: Harness, app: Holdfast) -> None:
    chain = app.chain("changing")
    attempts = []

    def fail(task: ChainTask) -> Any:
        attempts.append(task.attempt)
        raise ValueError("no")

    chain.step("A", max_attempts=2)(fail)
    run = await h.start(chain, start_delay="1 second")
    other = Holdfast("sqlite://")
    other.chain("changing").step("A", max_attempts=9)(fail)
    h._own_app.registry = h._opened()._app.registry = other.registry
    await h.restart()
    await h.advance("1 hour")
    assert (attempts, (await run.status()).status) == ([1, 2], "errored")


async def test_a_step_without_a_handler_is_left_to_other_workers_at_first(h: Harness, app: Holdfast) -> None:
    run = await started(h, app, "A", "B")
    await deploy(h, 2, "A")
    await h.advance("2 seconds")
    assert await results(run) == [("A", "DONE", "2:A"), ("B", "READY", None)]
    assert (await run.status()).status == "waiting"
    await deploy(h, 3, "B")
    await h.advance("1 minute")
    assert await run.result(timeout=60) == "3:B"


async def test_why_states_that_no_worker_has_a_handler_for_a_step(h: Harness, app: Holdfast) -> None:
    run = await started(h, app, "A", "B")
    await deploy(h, 2, "A")
    await h.advance("5 seconds")
    sentence = "the last worker had no handler for step 'B' of chain 'changing'; the run waits until 2030-01-01 "
    why = (await run.describe()).why
    assert why.startswith(sentence)
    assert why.endswith(" s)")


async def test_why_states_a_missing_handler_also_after_a_failed_attempt(h: Harness, app: Holdfast) -> None:
    chain = app.chain("changing")

    @chain.step("A")
    async def a(task: ChainTask) -> Any:
        raise ValueError("no")

    run = await h.start(chain)
    await h.run_until_idle()
    assert (await run.describe()).why.startswith("waiting to retry step 'A' after failed attempt 1")
    await deploy(h, 2, "B")
    await h.advance("2 seconds")
    assert (await run.describe()).why.startswith("the last worker had no handler for step 'A'")


async def test_a_step_without_a_handler_parks_the_run_after_a_time(h: Harness, app: Holdfast) -> None:
    run = await started(h, app, "A", "B")
    await deploy(h, 2, "A")
    await h.advance("1 hour")
    described = await run.describe()
    assert described.status == "paused"
    assert "this process has no handler for step 'B'" in described.why
    lines = [line for line in await run.logs() if line.category == "system"]
    assert [line.level for line in lines[-2:]] == ["warn", "error"]
    assert len(lines) < 20
    await deploy(h, 3, "B")
    await run.resume()
    await h.run_until_idle()
    assert await run.result(timeout=60) == "3:B"


async def test_a_restarted_run_has_the_plan_of_the_previous_run(h: Harness, app: Holdfast) -> None:
    run = await started(h, app, "A", "B")
    await deploy(h, 2, "B", "A", "NEW")
    await h.advance("1 second")
    await run.restart()
    await h.run_until_idle()
    assert [name for name, _, _ in await results(run)] == ["A", "B"]
    assert (await run.describe()).run_number == 1


async def test_params_that_do_not_fit_any_more_park_the_run(h: Harness, app: Holdfast) -> None:
    chain = app.chain("typed")
    chain.step("A")(lambda task: task.params)
    run = await h.start(chain, "text", start_delay="1 second")
    other = Holdfast("sqlite://")
    other.chain("typed", params=int).step("A")(lambda task: task.params)
    h._own_app.registry = h._opened()._app.registry = other.registry
    await h.restart()
    await h.advance("1 second")
    described = await run.describe()
    assert (described.status, "do not fit" in described.why) == ("paused", True)
