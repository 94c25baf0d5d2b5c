"""Annotations that decode values are resolved when the app opens; an unknown name is refused by name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from driving import finish
from holdfast import Context, DefinitionError, Holdfast, RunFailedError
from holdfast.testing import Harness

if TYPE_CHECKING:
    from decimal import Decimal as Price

    from holdfast import Context as HiddenContext
    from holdfast import StepTx, Transaction

pytestmark = pytest.mark.above_the_store


async def opening_error(app: Holdfast) -> DefinitionError:
    """Return the error of an app that cannot be opened, in any of the ways to open it."""
    with pytest.raises(DefinitionError) as caught:
        async with app:
            pass
    with pytest.raises(DefinitionError):
        async with app.connect():
            pass
    with pytest.raises(DefinitionError):
        async with Harness(app):
            pass
    return caught.value


async def test_params_of_an_unknown_type_are_refused_when_the_app_opens(app: Holdfast) -> None:
    @app.workflow
    async def flow(_ctx: Context, price: Price) -> None: ...

    error = await opening_error(app)
    assert error.code == "INVALID_DEFINITION"
    assert "annotation Price of 'price' of test_annotations" in str(error)
    assert "name 'Price' is not defined" in str(error)
    assert "TYPE_CHECKING" in str(error)


async def test_a_result_of_an_unknown_type_is_refused_when_the_app_opens(app: Holdfast) -> None:
    @app.workflow
    async def flow(_ctx: Context) -> list[Price]: ...

    assert "annotation list[Price] of the result of" in str(await opening_error(app))


async def test_a_step_result_of_an_unknown_type_is_refused_when_the_app_opens(app: Holdfast) -> None:
    @app.step
    async def charge(price: int) -> Price: ...

    assert "annotation Price of the result of" in str(await opening_error(app))


@pytest.mark.parametrize("where", ["parameter", "result", "when", "input"])
async def test_a_node_with_an_unknown_type_is_refused_when_the_app_opens(app: Holdfast, where: str) -> None:
    graph = app.graph("etl")

    def takes(params: Price) -> Any: ...

    def returns() -> Price: ...

    async def plain() -> int: ...

    if where in ("parameter", "result"):
        graph.node(takes if where == "parameter" else returns)
    elif where == "when":
        graph.node(when=takes)(plain)
    else:
        graph.node(run="etl", name="child", input=takes)

    assert "annotation Price" in str(await opening_error(app))


async def test_a_function_passed_to_do_with_an_unknown_result_type_is_refused_at_the_call(
    app: Holdfast, h: Harness
) -> None:
    def charge(price: int) -> Price: ...

    @app.workflow
    async def flow(ctx: Context) -> None:
        await ctx.do("charge", charge, 5)

    with pytest.raises(RunFailedError) as caught:
        await finish(h, flow)
    assert caught.value.error.name == "DefinitionError"
    assert "annotation Price of the result of" in caught.value.error.message
    assert (await (await h.start(flow)).history()).steps == []


async def test_a_workflow_registered_while_the_app_is_open_is_refused_when_it_is_started(
    app: Holdfast, h: Harness
) -> None:
    @app.workflow
    async def flow(_ctx: Context, price: Price) -> None: ...

    with pytest.raises(DefinitionError, match="annotation Price"):
        await h.start(flow, 5)


@pytest.mark.parametrize("hidden", ["StepTx", "Transaction"])
def test_a_transaction_imported_for_type_checkers_only_is_refused(app: Holdfast, hidden: str) -> None:
    async def buffered(tx: StepTx) -> None: ...

    async def live(tx: Transaction) -> None: ...

    with pytest.raises(DefinitionError, match=f"annotation {hidden} of 'tx'"):
        app.step(buffered if hidden == "StepTx" else live)


async def test_annotations_that_decode_nothing_may_be_unknown(app: Holdfast, h: Harness) -> None:
    @app.step
    async def charge(price: Price) -> int:
        return int(price)

    @app.workflow
    async def flow(_ctx: HiddenContext, price: int) -> int:
        return await charge(price)  # type: ignore[arg-type]

    async with Harness(app):
        assert await finish(h, flow, 5) == 5


def app_with_forward_references() -> Holdfast:
    """An app whose functions name a class that does not exist yet."""
    app = Holdfast("sqlite://")

    @app.step
    async def echo(total: int) -> list[Later]:
        return [Later(total)]

    @app.workflow(name="early")
    async def early(_ctx: Context, order: Later) -> Later:
        [later] = await echo(order.total)
        assert (type(order), type(later)) == (Later, Later)
        return later

    graph = app.graph("graph")

    @graph.node
    async def one(params: Later) -> Later:
        assert type(params) is Later
        return params

    @graph.node(after=[one])
    async def two(one: Later) -> int:
        return one.total

    return app


APP_WITH_FORWARD_REFERENCES = app_with_forward_references()


@dataclass
class Later:
    total: int


async def test_forward_references_are_resolved_when_the_app_opens() -> None:
    async with Harness(APP_WITH_FORWARD_REFERENCES) as h:
        assert await finish(h, "early", {"total": 5}) == Later(5)
        assert await finish(h, "graph", {"total": 5}) == {"one": {"total": 5}, "two": 5}


@dataclass
class Bill:
    price: Price


@pytest.mark.parametrize("kind", ["params", "events", "chain", "remote"])
def test_a_type_with_an_unknown_field_type_is_refused_by_name(app: Holdfast, kind: str) -> None:
    async def flow(_ctx: Context, bill: Bill) -> None: ...

    definitions: dict[str, Any] = {
        "params": lambda: app.workflow(flow),
        "events": lambda: app.workflow(events={"bill": Bill}),
        "chain": lambda: app.chain("c", params=Bill),
        "remote": lambda: app.remote("r", result=Bill),
    }
    with pytest.raises(DefinitionError, match="Bill cannot be read back from JSON: name 'Price' is not defined"):
        definitions[kind]()
