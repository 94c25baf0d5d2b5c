"""Request bodies: read within limits, parsed strictly, checked field by field.

``json.loads`` alone would take a second key of the same name, ``NaN``, and text in UTF-16.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any, NoReturn, TypeVar

from pydantic import TypeAdapter, ValidationError
from starlette.requests import ClientDisconnect, Request

from holdfast.http import answers, wire

T = TypeVar("T")

SECONDS = 30.0
"""A body has to be here by then: a slow one holds memory and a connection."""


async def read(request: Request, adapter: TypeAdapter[T], limit: int, *, needed: bool = True) -> T:
    """The body as ``adapter``'s type. Without ``needed``, no body is an empty object."""
    _check_type(request.headers.get("content-type"))
    data = await _bytes(request, limit)
    if not data and needed:
        raise _broken("a JSON body is needed, at least {}")
    value = parse(data) if data else {}
    try:
        return adapter.validate_python(value)
    except ValidationError as error:
        issues = answers.issues_of(error.errors(include_url=False, include_context=False, include_input=False))
        raise answers.invalid(answers.sentence(issues), issues) from None


def parse(data: bytes) -> Any:
    try:
        return _DECODER.decode(data.decode("utf-8"))
    except UnicodeDecodeError:
        raise _broken("the body is not UTF-8") from None
    except json.JSONDecodeError as error:
        raise _broken(f"the body is not JSON: {error.msg} at character {error.pos}") from None
    except RecursionError:
        raise _broken("the body is nested too deeply") from None
    except ValueError:  # an int of more digits than Python reads
        raise _broken("the body has a number that is too long") from None


async def _bytes(request: Request, limit: int) -> bytes:
    length = request.headers.get("content-length", "")
    if length.isdigit() and int(length[:20]) > limit:
        raise answers.too_large(limit)
    data = bytearray()
    try:
        async with asyncio.timeout(SECONDS):
            async for chunk in request.stream():
                data += chunk
                if len(data) > limit:
                    raise answers.too_large(limit)
    except TimeoutError:
        raise answers.too_slow(SECONDS) from None
    except ClientDisconnect:
        raise _broken("the body ended too early") from None
    return bytes(data)


def _check_type(content_type: str | None) -> None:
    """JSON or not said. Forms and plain text are what other sites can make a browser send."""
    if content_type is None:
        return
    kind = content_type.partition(";")[0].strip().lower()
    if kind != "application/json" and not (kind.startswith("application/") and kind.endswith("+json")):
        raise answers.Problem(415, answers.UNSUPPORTED_MEDIA_TYPE, "the body must be JSON (application/json)")


def _object(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise _broken("the body has the same key twice in one object")
    return found


def _no_constant(name: str) -> NoReturn:
    raise _broken(f"{name} is not JSON")


def _broken(message: str) -> answers.Problem:
    issue: wire.Issue = {"path": [], "message": message, "type": "json_invalid"}
    return answers.invalid(message, [issue])


_DECODER = json.JSONDecoder(object_pairs_hook=_object, parse_constant=_no_constant)
