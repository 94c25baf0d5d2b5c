"""Trimmed tracebacks, and the stored form of failures."""

from __future__ import annotations

import asyncio
import json
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast import StepError
from holdfast.core import tracebacks
from holdfast.core.failure import Failure


def raised(act: Callable[[], Any]) -> BaseException:
    try:
        act()
    except BaseException as error:
        return error
    raise AssertionError("nothing was raised")


def text_of(act: Callable[[], Any]) -> str:
    text = tracebacks.trimmed_traceback(raised(act))
    assert text is not None
    return text


def parse() -> None:
    json.loads("{bad")


def test_user_frames_are_shown_with_their_source() -> None:
    lines = text_of(parse).splitlines()

    assert lines[0] == "Traceback (most recent call last):"
    assert any(line.endswith("in parse") for line in lines)
    assert '    json.loads("{bad")' in lines
    assert lines[-1].startswith("json.decoder.JSONDecodeError: ")


def test_library_frames_are_folded_into_one_line() -> None:
    folded = [line for line in text_of(parse).splitlines() if line.startswith("  ...")]

    assert len(folded) == 1
    assert folded[0].startswith("  ... 3 frames of json (decoder.py, line ")


def test_a_library_function_that_is_called_directly_is_shown() -> None:
    error = raised(lambda: json.loads("{bad"))
    outer = error.__traceback__
    assert outer is not None
    assert outer.tb_next is not None
    text = tracebacks.trimmed_traceback(error.with_traceback(outer.tb_next.tb_next))

    assert text is not None
    assert "in raw_decode" in text
    assert "..." not in text


@pytest.mark.parametrize(
    ("filename", "package"),
    [
        (str(Path(sysconfig.get_path("stdlib")) / "asyncio" / "tasks.py"), "asyncio"),
        (str(Path(sysconfig.get_path("purelib")) / "httpx" / "_client.py"), "httpx"),
        ("/srv/venv/lib/python3.12/site-packages/shop/steps.py", "shop"),
        (sys.modules["holdfast"].__file__ or "", "holdfast"),
        ("<frozen importlib._bootstrap>", "importlib"),
        ("/srv/shop/steps.py", None),
        ("<stdin>", None),
    ],
)
def test_a_source_file_belongs_to_a_package_or_is_user_code(filename: str, package: str | None) -> None:
    assert tracebacks.package_of(filename) == package


def test_a_traceback_contains_causes_and_contexts() -> None:
    def chained() -> None:
        try:
            try:
                parse()
            except ValueError as error:
                raise LookupError("no settings") from error
        except LookupError:
            raise RuntimeError("cannot start")  # noqa: B904  (the context is under test)

    text = text_of(chained)

    assert text.index("JSONDecodeError") < text.index("LookupError: no settings") < text.index("RuntimeError: cannot")
    assert "direct cause" in text
    assert "During handling" in text


def test_a_traceback_contains_the_exceptions_of_a_group() -> None:
    async def main() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(asyncio.to_thread(parse))

    text = text_of(lambda: asyncio.run(main()))

    assert "ExceptionGroup: unhandled errors in a TaskGroup (1 sub-exception)" in text
    assert '    json.loads("{bad")' in text.replace("|", "")


@pytest.mark.parametrize("message", ["x" * 100_000, "ü" * 50_000, "\ud800" * 20_000])
def test_a_traceback_has_at_most_16_kib(message: str) -> None:
    def loud() -> None:
        raise ValueError(message)

    text = text_of(loud)

    assert len(text.encode("utf-8", "surrogatepass")) <= tracebacks.MAX_BYTES
    assert "in loud" in text
    assert "bytes are left out" in text


def test_the_traceback_of_a_deep_recursion_is_short() -> None:
    def deeper(n: int) -> None:
        deeper(n + 1)

    assert len(text_of(lambda: deeper(0))) < 2000


def test_a_long_chain_of_exceptions_is_cut_off() -> None:
    def long() -> None:
        error: BaseException | None = None
        for n in range(200):
            try:
                raise ValueError(n) from error
            except ValueError as caught:
                error = caught
        assert error is not None
        raise error

    text = text_of(long)

    assert "ValueError: 199" in text
    assert "ValueError: 150" not in text


def test_an_exception_without_frames_has_no_traceback() -> None:
    assert tracebacks.trimmed_traceback(ValueError("never raised")) is None


def test_an_exception_whose_attributes_raise_is_converted() -> None:
    class Broken(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no text")

        def __getattribute__(self, name: str) -> Any:
            if name == "__notes__":
                raise RuntimeError("no notes")
            return super().__getattribute__(name)

    def breaks() -> None:
        raise Broken

    assert Failure.of(raised(breaks)).name == "Broken"


def test_a_cycle_of_causes_is_cut_off() -> None:
    first, second = ValueError("first"), ValueError("second")
    first.__cause__, second.__cause__ = second, first

    def cycle() -> None:
        raise first

    assert "ValueError: first" in text_of(cycle)


def test_the_stored_traceback_of_a_failed_step_follows_its_error() -> None:
    def step_failed() -> None:
        raise StepError("no", step="charge", type="KeyError", attempts=3, traceback="Traceback of the step")

    assert text_of(step_failed).endswith("The error came from step 'charge', attempt 3:\n  Traceback of the step")


# --- stored failures


def test_a_failure_is_equal_after_encoding_and_decoding() -> None:
    def group() -> None:
        raise ExceptionGroup("many", [KeyError("a"), ExceptionGroup("inner", [ValueError("b")])])

    failed = Failure.of(raised(group))

    assert Failure.decode(failed.encode()) == failed
    assert failed.message == "many (2 sub-exceptions): KeyError: 'a'"
    assert [cause.name for cause in failed.info.causes] == ["KeyError", "ExceptionGroup"]
    assert [cause.message for cause in failed.info.causes[1].causes] == ["b"]


def test_a_large_group_is_cut_off_and_its_message_has_the_count() -> None:
    def group() -> None:
        raise ExceptionGroup("many", [ValueError(n) for n in range(1000)])

    failed = Failure.of(raised(group))

    assert len(failed.exceptions) == 20
    assert failed.message == "many (1000 sub-exceptions): ValueError: 0"


def test_the_message_of_a_nested_group_names_its_first_exception_once() -> None:
    def group() -> None:
        raise ExceptionGroup("outer", [ExceptionGroup("inner", [KeyError("k"), ValueError(1)]), OSError()])

    assert Failure.of(raised(group)).message == "outer (2 sub-exceptions): KeyError: 'k'"


def test_a_failure_without_traceback_and_causes_has_no_extra_fields() -> None:
    assert set(Failure("KeyError", "'k'").content()) == {"name", "message", "kind"}


def test_the_equality_of_errors_ignores_tracebacks() -> None:
    one, other = (Failure("KeyError", "'k'", traceback=text).info for text in ("here", "there"))

    assert one == other
    assert hash(one) == hash(other)
