"""``holdfast check`` predicts the behaviour of chains, graphs and unknown workflows after a deployment."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast import ChainTask, Context, Holdfast, Outcome, Retry, Waiting, WorkerConfig
from holdfast.checking import CheckOptions, CheckReport
from holdfast.store.protocol import SnapshotQuery
from holdfast.testing import Harness

from .releases import check, checker, deploy, install


def _chain(version: int, *steps: str, params: Any = Any) -> Holdfast:
    app = Holdfast("sqlite://")
    chain = app.chain("orders", version, params=params)
    for step in steps:

        @chain.step(step)
        async def handler(task: ChainTask) -> Outcome:
            if task.step_type == "B" and task.event is None:
                return Waiting("go", timeout="10 days")
            return f"{version}:{task.step_type}"

    return app


CHAINS = {
    "the same chain": (("A", "B", "C"), Any, None),
    "a step added": (("A", "B", "C", "D"), Any, None),
    "reordered steps": (("C", "B", "A"), Any, None),
    "a step that is done is removed": (("B", "C"), Any, None),
    "a step that is not done is removed": (("A", "B"), Any, "parked"),
    "the current step is renamed": (("A", "BB", "C"), Any, "parked"),
    "params of another type": (("A", "B", "C"), int, "value"),
}


@pytest.mark.parametrize("name", CHAINS)
async def test_a_changed_chain_has_the_predicted_effect(h: Harness, app: Holdfast, name: str) -> None:
    steps, params, expected = CHAINS[name]
    install(h, _chain(1, "A", "B", "C"))
    run = await h.start("orders", {"total": 5}, id="o-1")
    await h.run_until_idle()
    new = _chain(2, *steps, params=params)
    report = (await check(h, new)).of("orders")
    assert [str(kind) for kind in report.counts] == ([] if expected is None else [expected])

    await deploy(h, new)
    await run.send_event("go")
    await h.advance("1 hour")
    described = await run.describe()
    if expected is None:
        assert described.status == "complete"
    else:
        assert described.status == "paused"
        assert ("do not fit" in described.why) == (expected == "value")


def _graph(**nodes: Any) -> Holdfast:
    """A graph whose node ``extract`` is done, and whose node ``gate`` fails until it is released."""
    app = Holdfast("sqlite://")
    graph = app.graph("etl")

    @graph.node
    async def extract() -> Any:
        return [1, 2]

    @graph.node(after=[extract], retry=Retry(limit=1, delay="1 hour"))
    async def gate() -> int:
        if nodes["closed"]:
            raise OSError("closed")
        return 1

    if nodes.get("mapped"):

        @graph.node(map=extract, after=[gate], name="load")
        async def load_each(extract: int) -> int:
            return extract
    elif nodes.get("load", True):
        item = nodes.get("item", list[int])

        async def load(extract: Any) -> int:
            return 3

        load.__annotations__["extract"] = item
        graph.node(after=[extract, gate])(load)
    if nodes.get("more"):

        @graph.node(after=[extract])
        async def more(extract: list[int]) -> int:
            return 4

    return app


GRAPHS: dict[str, tuple[dict[str, Any], str | None]] = {
    "the same graph": ({}, None),
    "a node added": ({"more": True}, None),
    "a node that is not done is removed": ({"load": False}, "parked"),
    "a node that became mapped": ({"mapped": True}, "parked"),
    "a parameter of another type": ({"item": list[dict[str, int]]}, "value"),
}


@pytest.mark.parametrize("name", GRAPHS)
async def test_a_changed_graph_has_the_predicted_effect(h: Harness, app: Holdfast, name: str) -> None:
    options, expected = GRAPHS[name]
    install(h, _graph(closed=True))
    run = await h.start("etl", id="g-1")
    await h.run_until_idle()
    new = _graph(closed=False, **options)
    report = (await check(h, new)).of("etl")
    assert [str(kind) for kind in report.counts] == ([] if expected is None else [expected]), report.examples

    await deploy(h, new)
    await h.advance("2 hours")
    described = await run.describe()
    if expected is None:
        assert described.status == "complete"
    elif expected == "parked":
        assert described.status == "paused", described.why
    else:
        assert (described.status, "ParamsInvalidError" in described.why) == ("errored", True)


async def test_a_run_of_a_workflow_that_the_app_does_not_have_is_unknown(h: Harness, app: Holdfast) -> None:
    @app.workflow
    async def old(ctx: Context) -> None:
        await ctx.sleep("nap", "1 hour")

    run = await h.start(old, id="one")
    await h.run_until_idle()
    new = Holdfast("sqlite://")
    report = await check(h, new)
    assert [str(kind) for kind in report.of("old").counts] == ["unknown"]
    assert not report.ok

    await deploy(h, new)
    await h.advance("2 hours")
    assert (await h._opened().client.instances.find("old", run.id)).status == "waiting"


async def test_a_run_that_has_not_started_is_checked_by_its_input(h: Harness, app: Holdfast) -> None:
    @app.workflow
    async def order(ctx: Context, params: str) -> str:
        return params

    run = await h.start(order, "text", start_delay="1 hour")
    new = Holdfast("sqlite://")

    @new.workflow(name="order")
    async def changed(ctx: Context, params: int) -> int:
        return params

    assert [str(kind) for kind in (await check(h, new)).of("order").counts] == ["value"]
    assert (await check(h, app)).ok
    await deploy(h, new)
    await h.advance("1 hour")
    assert (await run.status()).status == "paused"


async def test_runs_are_chosen_by_workflow_sample_and_part(h: Harness, app: Holdfast) -> None:
    @app.workflow
    async def order(ctx: Context) -> None:
        await ctx.sleep("nap", "1 hour")

    @app.workflow
    async def other(ctx: Context) -> None:
        if ctx.info.instance_id != "done":
            await ctx.sleep("nap", "1 hour")

    for n in range(7):
        await h.start(order, id=f"o-{n}")
    paused = await h.start(other, id="paused")
    await h.start(other, id="done")
    await h.run_until_idle()
    await paused.pause()
    await h.run_until_idle()

    everything = await check(h, app)
    assert {name: one.checked for name, one in everything.workflows.items()} == {"order": 7, "other": 1}
    assert (everything.ok, everything.checked) == (True, 8)
    assert (await check(h, app, workflow="order")).checked == 7
    assert (await check(h, app, sample=3)).checked == 4
    parts = [(await check(h, app, part=part, parts=3)).checked for part in range(3)]
    assert sum(parts) == 8
    assert max(parts) < 8


@pytest.mark.parametrize("deleted", [False, True])
async def test_a_run_that_ends_or_is_deleted_during_the_check_is_left_out(
    h: Harness, monkeypatch: pytest.MonkeyPatch, *, deleted: bool
) -> None:
    app = _chain(1, "A", "B", "C")
    install(h, app)
    run = await h.start("orders", {"total": 5}, id="o-1")
    await h.run_until_idle()
    checked = checker(h, app)
    read = checked._store.read

    async def after_the_end(query: Any) -> Any:
        if isinstance(query, SnapshotQuery):
            await run.terminate()
            if deleted:
                await run.delete()
        return await read(query)

    monkeypatch.setattr(checked._store, "read", after_the_end)

    report = await checked.check(CheckOptions())

    assert (report.of("orders").checked, report.of("orders").counts) == (0, {})


def _pinned(version: str | None, event: str) -> Holdfast:
    app = Holdfast("sqlite://", worker=WorkerConfig(version=version))

    @app.workflow(name="invoice", pinned=True)
    async def invoice(ctx: Context) -> str:
        await ctx.do("write", lambda: 1) if event == "signed" else await ctx.sleep("write", "1 hour")
        return str((await ctx.wait_for_event("go", type=event)).payload)

    return app


async def test_runs_that_are_pinned_to_another_version_do_not_fail_the_check() -> None:
    async with Harness(_pinned("1", "signed")) as h:
        run = await h.start("invoice", id="i-1")
        await h.run_until_idle()
        assert (await run.describe()).status == "waiting"

        for version, expected in (("2", True), ("1", False), (None, False)):
            report = await check(h, _pinned(version, "approved"))
            assert report.ok is expected, report.text()
        unchanged, changed = await check(h, _pinned("2", "signed")), await check(h, _pinned("2", "approved"))

    what = "invoice: 0 runs checked, 0 fit\n  1 run pinned to another version, not counted; {} would fit if moved"
    assert unchanged.text().startswith(what.format(1))
    assert changed.text() == what.format(0) + "\nall open runs are pinned to other versions"
    merged = CheckReport()
    merged.merge(changed)
    merged.merge(unchanged)
    assert (merged.workflows["invoice"].pinned, merged.workflows["invoice"].pinned_fits) == (2, 1)
