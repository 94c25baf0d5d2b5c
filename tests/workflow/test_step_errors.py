"""A failed step raises the same error, with the same content, live and on every replay."""

from __future__ import annotations

from typing import Any

import pytest

from driving import finish, warm_and_cold
from holdfast import Context, Holdfast, NonRetryableError, Retry, RunFailedError, StepError, WorkflowError
from holdfast.testing import Harness

NO_RETRY = Retry(limit=0)


class CardDeclined(Exception):
    """A user's error with a custom constructor."""

    def __init__(self, card: str, *, limit: int) -> None:
        super().__init__(f"card {card} is over {limit}")
        self.card = card


class Expired(CardDeclined):
    pass


class QuotaError(WorkflowError):
    pass


class TwoArguments(Exception):
    def __init__(self, a: int, b: str) -> None:
        super().__init__(a, b)
        self.a = a


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


def _fields_of(error: BaseException) -> dict[str, Any]:
    """Return all fields of an error that workflow code can read."""
    cause = error.__cause__ if not isinstance(error, StepError) else error
    fields = {name: getattr(error, name, None) for name in ("kind", "retryable", "details", "name", "args")}
    fields["args"] = list(error.args)
    if isinstance(cause, StepError):
        fields["step"] = [cause.step, cause.type, cause.message, cause.kind, cause.retryable, cause.attempts]
    return {"class": type(error).__name__, "text": str(error), **fields}


async def _fields_live_and_replayed(
    app: Holdfast, h: Harness, error: Any, *raises: type[BaseException], retry: Retry = NO_RETRY
) -> Any:
    """Return the fields of the error, which must be equal live, from the recorded result, and after a cold replay."""

    def breaks() -> None:
        raise error

    @app.workflow
    async def flow(ctx: Context) -> list[Any]:
        seen = []
        for turn in range(3):
            if turn == 2:
                await ctx.sleep("nap", "1 hour")
            try:
                await ctx.do("breaks", breaks, retry=retry, raises=raises)
            except Exception as caught:
                seen.append(_fields_of(caught))
        return seen

    warm, cold = await warm_and_cold(h, flow)
    assert warm == cold
    assert all(fields == warm[0] for fields in warm), warm
    return warm[0]


async def test_a_users_exception_becomes_a_step_error_with_its_name(app: Holdfast, h: Harness) -> None:
    seen = await _fields_live_and_replayed(app, h, CardDeclined("4711", limit=5))
    assert seen["class"] == "StepError"
    assert seen["text"] == "card 4711 is over 5"
    assert seen["step"] == ["breaks", "CardDeclined", "card 4711 is over 5", "Internal", None, 1]


async def test_an_exception_of_a_class_named_in_raises_keeps_its_class(app: Holdfast, h: Harness) -> None:
    seen = await _fields_live_and_replayed(app, h, CardDeclined("4711", limit=5), CardDeclined)
    assert (seen["class"], seen["text"]) == ("CardDeclined", "card 4711 is over 5")
    assert seen["step"][:2] == ["breaks", "CardDeclined"]


async def test_an_exception_of_a_subclass_of_a_class_named_in_raises_keeps_its_class(app: Holdfast, h: Harness) -> None:
    seen = await _fields_live_and_replayed(app, h, Expired("4711", limit=5), CardDeclined)
    assert seen["class"] == "Expired"


async def test_an_exception_keeps_its_arguments(app: Holdfast, h: Harness) -> None:
    seen = await _fields_live_and_replayed(app, h, TwoArguments(1, "b"), TwoArguments)
    assert (seen["class"], seen["args"]) == ("TwoArguments", [1, "b"])


@pytest.mark.parametrize(
    "error",
    [ValueError("bad", 3), KeyError("k"), ZeroDivisionError("x"), TimeoutError("t"), OSError(2, "gone")],
    ids=lambda e: type(e).__name__,
)
async def test_builtin_exceptions_keep_their_class(app: Holdfast, h: Harness, error: Exception) -> None:
    seen = await _fields_live_and_replayed(app, h, error)
    assert (seen["class"], seen["text"]) == (type(error).__name__, str(error))
    assert seen["step"][1] == type(error).__name__


async def test_a_unicode_error_keeps_its_text(app: Holdfast, h: Harness) -> None:
    error = UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte")
    seen = await _fields_live_and_replayed(app, h, error)
    assert "invalid start byte" in seen["text"]


async def test_a_non_retryable_error_stops_retries_and_keeps_its_fields(app: Holdfast, h: Harness) -> None:
    error = NonRetryableError("card stolen", "CardStolen", kind="Payment", details={"card": [1, 2]})
    seen = await _fields_live_and_replayed(app, h, error, retry=Retry(limit=5))
    assert (seen["class"], seen["name"], seen["text"]) == ("NonRetryableError", "CardStolen", "card stolen")
    assert (seen["kind"], seen["details"], seen["retryable"]) == ("Payment", {"card": [1, 2]}, False)
    assert seen["step"] == ["breaks", "CardStolen", "card stolen", "Payment", False, 1]


async def test_a_structured_error_keeps_kind_retryable_and_details(app: Holdfast, h: Harness) -> None:
    error = QuotaError("too much", kind="Quota", retryable=False, details={"left": 0})
    seen = await _fields_live_and_replayed(app, h, error, QuotaError, retry=Retry(limit=5))
    assert (seen["class"], seen["text"]) == ("QuotaError", "too much")
    assert (seen["kind"], seen["retryable"], seen["details"]) == ("Quota", False, {"left": 0})


async def test_an_undeclared_structured_error_becomes_a_step_error_with_its_fields(app: Holdfast, h: Harness) -> None:
    seen = await _fields_live_and_replayed(app, h, QuotaError("too much", kind="Quota", retryable=False, details=[1]))
    assert (seen["class"], seen["kind"], seen["retryable"], seen["details"]) == ("StepError", "Quota", False, [1])


async def test_details_that_cannot_be_stored_are_left_out(app: Holdfast, h: Harness) -> None:
    seen = await _fields_live_and_replayed(app, h, QuotaError("too much", details={1, 2}), QuotaError)
    assert (seen["text"], seen["details"]) == ("too much", None)


async def test_an_error_without_a_text_is_shown_by_its_name(app: Holdfast, h: Harness) -> None:
    seen = await _fields_live_and_replayed(app, h, Unprintable())
    assert "Unprintable" in seen["text"]


async def test_a_failed_step_without_a_handler_fails_the_run_with_the_users_name(app: Holdfast, h: Harness) -> None:
    def breaks() -> None:
        raise CardDeclined("4711", limit=5)

    @app.workflow
    async def flow(ctx: Context) -> None:
        await ctx.do("breaks", breaks, retry=NO_RETRY)

    with pytest.raises(RunFailedError) as caught:
        await finish(h, flow)
    assert (caught.value.error.name, caught.value.error.message) == ("CardDeclined", "card 4711 is over 5")
    assert caught.value.code == "RUN_FAILED"


async def test_an_error_of_the_workflow_code_itself_fails_the_run_without_retries(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def flow(ctx: Context) -> None:
        raise CardDeclined("1", limit=2)

    run = await h.start(flow)
    await h.run_until_idle()
    status = await run.status()
    assert status.status == "errored"
    assert status.error is not None
    assert (status.error.name, status.error.message) == ("CardDeclined", "card 1 is over 2")


async def test_attempts_are_counted_in_the_error(app: Holdfast, h: Harness) -> None:
    seen = await _fields_live_and_replayed(app, h, CardDeclined("1", limit=1), retry=Retry(2, "1s", "constant"))
    assert seen["step"][-1] == 3


@pytest.mark.parametrize("kind", ["gather", "group"])
async def test_an_error_in_a_parallel_branch_is_caught_as_in_any_asyncio_code(
    app: Holdfast, h: Harness, kind: str
) -> None:
    import asyncio

    def breaks() -> None:
        raise ValueError("broken branch")

    @app.workflow
    async def flow(ctx: Context) -> list[str]:
        seen: list[str] = []
        try:
            if kind == "gather":
                await asyncio.gather(ctx.do("a", breaks, retry=NO_RETRY), ctx.sleep("b", 5))
            else:
                async with asyncio.TaskGroup() as group:
                    group.create_task(ctx.do("a", breaks, retry=NO_RETRY))
                    group.create_task(ctx.sleep("b", 5))
        except* ValueError as caught:
            seen.append(str(caught.exceptions[0]))
        return seen

    warm, cold = await warm_and_cold(h, flow)
    assert warm == cold == ["broken branch"]


class ForgetfulError(WorkflowError):
    def __init__(self) -> None:
        pass  # the attributes of the base class are missing


class BadArgumentsError(Exception):
    args = property(lambda self: 1 / 0)


@pytest.mark.parametrize("where", ["step", "code", "chain", "node"])
@pytest.mark.parametrize("error", [ForgetfulError, BadArgumentsError])
async def test_an_exception_whose_attributes_cannot_be_read_fails_its_step(
    app: Holdfast, h: Harness, error: type[Exception], where: str
) -> None:
    chain, graph = app.chain("chain"), app.graph("graph")

    @app.step(retry=Retry(limit=0))
    async def step() -> None:
        raise error

    @chain.step("STEP", max_attempts=1)
    async def handler(task: Any) -> None:
        raise error

    @graph.node(retry=Retry(limit=0))
    async def node() -> None:
        raise error

    @app.workflow
    async def flow(ctx: Context) -> None:
        if where == "step":
            await step()
        raise error

    run = await h.start({"chain": chain, "node": graph}.get(where, flow))
    await h.run_until_idle()

    assert error.__name__ in (await run.describe()).why
    assert (await run.status()).status == "errored"


async def test_a_pair_of_surrogates_in_a_message_becomes_the_character_that_it_encodes(
    app: Holdfast, h: Harness
) -> None:
    @app.step(retry=Retry(limit=0))
    async def step() -> None:
        raise ValueError("\ud83d\ude00 \ud83d")

    @app.workflow
    async def flow(ctx: Context) -> str:
        try:
            await step()
        except ValueError as error:
            await ctx.sleep("a while", "1 minute")
            return str(error)
        return "no error"

    run = await h.start(flow)
    await h.run_until_idle()
    await h.restart()
    await h.advance("1 minute")

    assert await run.result(timeout=60) == "\U0001f600 \ud83d"
