"""Request bodies: read within limits, parsed strictly, checked field by field.

``json.loads`` alone would accept a repeated key, ``NaN``, and text in UTF-16.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any, NoReturn, TypeVar

from pydantic import TypeAdapter, ValidationError
from starlette.requests import ClientDisconnect, Request

from holdfast.http import responses, wire

T = TypeVar("T")

TIMEOUT_S = 30.0
"""Time limit for receiving a body. A slow body occupies memory and a connection."""


async def read(request: Request, adapter: TypeAdapter[T], limit: int, *, required: bool = True) -> T:
    """Return the body as ``adapter``'s type. If not ``required``, a missing body is read as an empty object."""
    _check_type(request.headers.get("content-type"))
    data = await _bytes(request, limit)
    if not data and required:
        raise _invalid_json("a JSON body is needed, at least {}")
    value = parse(data) if data else {}
    return check(adapter, value)


def check(adapter: TypeAdapter[T], value: Any, *, path: Sequence[str] = ()) -> T:
    """Return the value as ``adapter``'s type. ``path``: its place in the body, for the issues of a refusal."""
    try:
        return adapter.validate_python(value)
    except ValidationError as error:
        issues = responses.issues_of(error.errors(include_url=False, include_context=False, include_input=False))
        for issue in issues:
            issue["path"] = [*path, *issue["path"]]
        raise responses.invalid(responses.sentence(issues), issues) from None


def parse(data: bytes) -> Any:
    try:
        return _DECODER.decode(data.decode("utf-8"))
    except UnicodeDecodeError:
        raise _invalid_json("the body is not UTF-8") from None
    except json.JSONDecodeError as error:
        raise _invalid_json(f"the body is not JSON: {error.msg} at character {error.pos}") from None
    except RecursionError:
        raise _invalid_json("the body is nested too deeply") from None
    except ValueError:  # an integer with more digits than Python converts
        raise _invalid_json("the body has a number that is too long") from None


async def _bytes(request: Request, limit: int) -> bytes:
    length = request.headers.get("content-length", "")
    if length.isdigit() and int(length[:20]) > limit:
        raise responses.too_large(limit, int(length[:20]))
    data = bytearray()
    try:
        async with asyncio.timeout(TIMEOUT_S):
            async for chunk in request.stream():
                data += chunk
                if len(data) > limit:
                    raise responses.too_large(limit)
    except TimeoutError:
        raise responses.too_slow(TIMEOUT_S) from None
    except ClientDisconnect:
        raise _invalid_json("the body ended too early") from None
    return bytes(data)


def _check_type(content_type: str | None) -> None:
    """Accept JSON or no content type. A page of another site can make a browser send forms and plain text."""
    if content_type is None:
        return
    media_type = content_type.partition(";")[0].strip().lower()
    if media_type != "application/json" and not (
        media_type.startswith("application/") and media_type.endswith("+json")
    ):
        raise responses.Problem(415, responses.UNSUPPORTED_MEDIA_TYPE, "the body must be JSON (application/json)")


def _object(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise _invalid_json("the body has the same key twice in one object")
    return members


def _reject_constant(name: str) -> NoReturn:
    raise _invalid_json(f"{name} is not JSON")


def _invalid_json(message: str) -> responses.Problem:
    issue: wire.Issue = {"path": [], "message": message, "type": "json_invalid"}
    return responses.invalid(message, [issue])


_DECODER = json.JSONDecoder(object_pairs_hook=_object, parse_constant=_reject_constant)
