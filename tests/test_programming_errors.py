"""Programming errors are refused at the definition or at the call, and never retried."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from driving import finish
from holdfast import (
    Context,
    DefinitionError,
    Holdfast,
    InvalidNameError,
    RunFailedError,
    StepTx,
)
from holdfast.testing import Harness

pytestmark = pytest.mark.above_the_store


# --- arguments of a step


@pytest.fixture
def calls() -> list[Any]:
    return []


@pytest.fixture
def flow(app: Holdfast, calls: list[Any]) -> Any:
    """A workflow that makes the named call, and returns the result or the error."""

    @app.step
    async def charge(order: str, amount: int = 1, *, currency: str = "EUR") -> str:
        calls.append(order)
        return f"{order} {amount} {currency}"

    @app.step
    def buffered(tx: StepTx, order: str) -> str:
        calls.append(order)
        return order

    def plain(order: str, *, currency: str) -> str:
        calls.append(order)
        return f"{order} {currency}"

    def variadic(*orders: str, **more: str) -> str:
        return " ".join(orders)

    @app.workflow
    async def flow(ctx: Context, which: str) -> Any:
        wrong: dict[str, Any] = {
            "missing": lambda: charge(),  # type: ignore[call-arg]
            "too many": lambda: charge("a", 1, 2),  # type: ignore[call-arg]
            "unexpected": lambda: charge("a", when=5),  # type: ignore[call-arg]
            "twice": lambda: charge("a", order="b"),  # type: ignore[misc]
            "tx missing": lambda: buffered(),  # type: ignore[call-arg]
            "tx too many": lambda: buffered("a", "b"),  # type: ignore[call-arg]
            "do missing": lambda: ctx.do("pay", plain, currency="EUR"),
            "do keyword": lambda: ctx.do("pay", plain, "a"),
            "do too many": lambda: ctx.do("pay", plain, "a", "b", currency="EUR"),
            "do unbound": lambda: ctx.do("pay", Shop.charge, "a"),
        }
        right: dict[str, Any] = {
            "positional": lambda: charge("a"),
            "all": lambda: charge("a", 2, currency="USD"),
            "by name": lambda: charge(amount=3, order="a"),
            "tx": lambda: buffered("a"),
            "tx by name": lambda: buffered(order="a"),
            "do": lambda: ctx.do("pay", plain, "a", currency="EUR"),
            "variadic": lambda: ctx.do("pay", variadic, "a", "b", c="d"),
            "builtin": lambda: ctx.do("pay", str, 5),
            "partial": lambda: ctx.do("pay", functools.partial(plain, "a"), currency="EUR"),
            "bound": lambda: ctx.do("pay", Shop().charge, "a"),
            "explicit self": lambda: ctx.do("pay", Shop.charge, Shop(), "a"),
            "wrapped": lambda: ctx.do("pay", with_session(needs_session), "a"),
        }
        if which in right:
            return await right[which]()
        try:
            wrong[which]()  # not awaited: the call itself is refused
        except TypeError as error:
            return str(error)

    return flow


class Shop:
    def charge(self, order: str) -> str:
        return f"{order} charged"


def needs_session(session: str, order: str) -> str:
    return f"{order} in {session}"


def with_session(function: Any) -> Any:
    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return function("session", *args, **kwargs)

    return wrapper


@pytest.mark.parametrize(
    ("which", "message"),
    [
        ("missing", "step 'charge': missing a required argument: 'order'"),
        ("too many", "step 'charge': too many positional arguments"),
        ("unexpected", "step 'charge': got an unexpected keyword argument 'when'"),
        ("twice", "step 'charge': multiple values for argument 'order'"),
        ("tx missing", "step 'buffered': missing a required argument: 'order'"),
        ("tx too many", "step 'buffered': too many positional arguments"),
        ("do missing", "step 'pay': missing a required argument: 'order'"),
        ("do keyword", "step 'pay': missing a required"),
        ("do too many", "step 'pay': too many positional arguments"),
        ("do unbound", "step 'pay': missing a required argument: 'order'"),
    ],
)
async def test_a_call_with_wrong_arguments_raises_type_error_and_records_nothing(
    h: Harness, flow: Any, calls: list[Any], which: str, message: str
) -> None:
    run = await h.start(flow, which)
    await h.run_until_idle()

    assert (await run.result()).startswith(message)
    assert (await run.history()).steps == []
    assert calls == []


@pytest.mark.parametrize(
    ("which", "result"),
    [
        ("positional", "a 1 EUR"),
        ("all", "a 2 USD"),
        ("by name", "a 3 EUR"),
        ("tx", "a"),
        ("tx by name", "a"),
        ("do", "a EUR"),
        ("variadic", "a b"),
        ("builtin", "5"),
        ("partial", "a EUR"),
        ("bound", "a charged"),
        ("explicit self", "a charged"),
        ("wrapped", "a in session"),
    ],
)
async def test_a_call_with_valid_arguments_runs(h: Harness, flow: Any, which: str, result: str) -> None:
    assert await finish(h, flow, which) == result


async def test_an_uncaught_wrong_call_fails_the_run_at_once(app: Holdfast, h: Harness) -> None:
    @app.step
    async def charge(order: str) -> None: ...

    @app.workflow
    async def flow(ctx: Context) -> None:
        await charge()  # type: ignore[call-arg]

    run = await h.start(flow)
    await h.run_until_idle()
    with pytest.raises(RunFailedError, match="missing a required argument: 'order'") as caught:
        await run.result()
    assert caught.value.error.name == "TypeError"


async def test_an_undo_step_with_wrong_arguments_is_refused_when_it_is_added(app: Holdfast, h: Harness) -> None:
    @app.step
    async def refund(payment: str) -> None: ...

    @app.workflow
    async def flow(ctx: Context) -> str:
        async with ctx.saga() as saga:
            try:
                saga.add(refund)
            except TypeError as error:
                return str(error)
        return "added"

    assert await finish(h, flow) == "step 'refund': missing a required argument: 'payment'"


# --- definitions


async def streams(task: Any) -> AsyncIterator[int]:
    yield 1


def yields(task: Any) -> Iterator[int]:
    yield 1


class Streams:
    async def __call__(self, task: Any) -> AsyncIterator[int]:
        yield 1


def ways_to_define(app: Holdfast, function: Any) -> dict[str, Any]:
    graph, chain = app.graph("graph"), app.chain("chain")

    async def node() -> None: ...

    return {
        "workflow": lambda: app.workflow(name="w")(function),
        "step": lambda: app.step(name="s")(function),
        "chain": lambda: chain.step("S")(function),
        "node": lambda: graph.node(name="n")(function),
        "when": lambda: graph.node(when=function)(node),
        "input": lambda: graph.node(run="graph", name="child", input=function),
        "outbox": lambda: app.outbox(function),
    }


WAYS = ["workflow", "step", "chain", "node", "when", "input", "outbox"]


@pytest.mark.parametrize(
    "function", [streams, yields, Streams(), functools.partial(streams)], ids=["async", "sync", "object", "partial"]
)
@pytest.mark.parametrize("way", WAYS)
def test_a_generator_function_is_refused(app: Holdfast, way: str, function: Any) -> None:
    with pytest.raises(DefinitionError, match="is a generator function"):
        ways_to_define(app, function)[way]()


async def test_a_generator_function_passed_to_do_is_refused_at_the_call(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def flow(ctx: Context) -> Any:
        try:
            ctx.do("stream", streams, 1)
        except DefinitionError as error:
            return str(error)

    assert "is a generator function" in await finish(h, flow)


class Methods:
    async def method(self, task: Any) -> None: ...

    async def on_class(cls, task: Any) -> None: ...

    @staticmethod
    async def static(task: Any) -> int:
        return 5


@pytest.mark.parametrize("function", [Methods.method, Methods.on_class])
@pytest.mark.parametrize("way", ["workflow", "step", "chain", "node", "outbox"])
def test_a_method_without_its_object_is_refused(app: Holdfast, way: str, function: Any) -> None:
    with pytest.raises(DefinitionError, match=r"is a method, and the engine does not pass its '(self|cls)'"):
        ways_to_define(app, function)[way]()


@pytest.mark.parametrize("function", [Methods().method, Methods.static], ids=["bound", "static"])
@pytest.mark.parametrize("way", ["step", "chain", "outbox"])
def test_bound_and_static_methods_are_accepted(app: Holdfast, way: str, function: Any) -> None:
    ways_to_define(app, function)[way]()


async def no_argument() -> None: ...


async def two_arguments(one: Any, two: Any) -> None: ...


async def keyword(*, task: Any) -> None: ...


@pytest.mark.parametrize("function", [no_argument, two_arguments, keyword])
@pytest.mark.parametrize("way", ["chain", "outbox"])
def test_a_handler_that_does_not_take_one_argument_is_refused(app: Holdfast, way: str, function: Any) -> None:
    with pytest.raises(DefinitionError, match="must accept one positional argument"):
        ways_to_define(app, function)[way]()


async def three(ctx: Context, one: Any, two: Any) -> None: ...


@pytest.mark.parametrize("function", [no_argument, three, keyword])
def test_a_workflow_with_the_wrong_number_of_parameters_is_refused(app: Holdfast, function: Any) -> None:
    with pytest.raises(DefinitionError, match="must take the context and at most one input value"):
        app.workflow(function)


@pytest.mark.parametrize("way", ["when", "input"])
def test_an_async_when_or_input_function_is_refused(app: Holdfast, way: str) -> None:
    """The coroutine that an async condition returns would count as true."""
    with pytest.raises(DefinitionError, match="must be a plain function"):
        ways_to_define(app, no_argument)[way]()


def test_two_steps_with_one_name_are_refused(app: Holdfast) -> None:
    app.step(no_argument)
    with pytest.raises(DefinitionError, match="a step named 'no_argument' is registered already"):
        app.step(no_argument)
    app.step(name="another")(no_argument)
    Holdfast("sqlite://").step(no_argument)


@pytest.mark.parametrize("way", ["workflow", "step", "node", "child", "chain step", "chain", "graph", "remote"])
def test_an_empty_name_is_refused(app: Holdfast, way: str) -> None:
    async def function(ctx: Any) -> None: ...

    graph = app.graph("g")
    definitions: dict[str, Any] = {
        "workflow": lambda: app.workflow(name="")(function),
        "step": lambda: app.step(name="")(function),
        "node": lambda: graph.node(name="")(no_argument),
        "child": lambda: graph.node(run="g", name=""),
        "chain step": lambda: app.chain("c").step(""),
        "chain": lambda: app.chain(""),
        "graph": lambda: app.graph(""),
        "remote": lambda: app.remote(""),
    }
    with pytest.raises(InvalidNameError, match="has 0 characters"):
        definitions[way]()


async def test_an_empty_name_of_a_step_call_is_refused(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def flow(ctx: Context) -> Any:
        try:
            await ctx.do("", str, 5)
        except InvalidNameError as error:
            return str(error)

    assert "has 0 characters" in await finish(h, flow)
