"""Encoding of values as JSON in UTF-8, and decoding: the form that every store keeps and every replay reads.

This module owns the bytes. ``lowering`` defines which types have a JSON form; ``typed`` turns plain values into typed
ones. A value that would be read back as a different value is refused. Text is written unescaped, except for characters
that UTF-8 or a JSON string cannot hold (lone surrogates, NUL and other control characters).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from itertools import accumulate
from json.encoder import encode_basestring
from typing import Any, NoReturn

from holdfast.core.envelope import SEALED_LIST, SPACE, UNREADABLE, unreadable, write
from holdfast.core.lowering import MAX_DEPTH, SURROGATE_PAIR, is_array, is_object, json_form, lower
from holdfast.core.secret import SECRET_KEY, hidden, plain_secrets
from holdfast.core.typed import decoder, untyped
from holdfast.errors import (
    DamagedRunError,
    ParamsInvalidError,
    PayloadError,
    PayloadTooLargeError,
    ResultInvalidError,
)

__all__ = ["check_result", "checked", "decoder", "displayed", "encode", "plain", "record", "roundtrip"]

_ESCAPE = "backslashreplace"
"""Error handler that writes lone surrogates, which UTF-8 cannot encode, as JSON escapes: ``\\ud800``."""
_SCALARS = frozenset({type(None), bool, int, float, str})
_CONSTANTS = {None: b"null", True: b"true", False: b"false"}
_TEXT = frozenset({str})
_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"')
_NOT_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_NESTING = {ord("["): 1, ord("{"): 1, ord("]"): -1, ord("}"): -1}


def encode(value: Any, *, what: str, limit: int | None = None) -> bytes:
    """Encode a value as JSON in UTF-8. ``what`` names the value in errors; ``limit`` is the maximum number of bytes.

    >>> encode({"id": "o-1", "total": 125}, what="params")
    b'{"id":"o-1","total":125}'
    """
    data = _encode_scalar(value) if type(value) in _SCALARS else _encode_fast(value)
    if data is None:
        data = _dumps(lower(value, what)).encode("utf-8", _ESCAPE)
    if limit is not None and len(data) > limit:
        raise PayloadTooLargeError(f"{what} takes {len(data)} bytes as JSON; at most {limit} are allowed")
    return data


def plain(data: bytes | None) -> Any:
    """Decode stored ``data`` to a plain JSON value. None stays None."""
    if data is None:
        return None
    try:
        # `raw_decode` does not accept the space that begins an envelope, and is faster than `decode`.
        text = data.decode("utf-8")
        value, end = _DECODER.raw_decode(text)
    except ValueError as error:
        if data.startswith(SPACE):
            raise unreadable(data) from None
        raise DamagedRunError(f"a stored value is not JSON: {error}") from error
    if end != len(text):
        raise DamagedRunError("a stored value is not JSON: extra data")
    if type(value) is list and data.startswith(SEALED_LIST):
        raise unreadable(write(value[0]))
    return value


def displayed(data: bytes | None) -> Any:
    """Decode stored ``data`` for display: secrets are hidden, a value that this process cannot read is named.

    Values that code receives are decoded by ``plain``, which raises ``PayloadError`` instead.
    """
    try:
        value = plain(data)
    except PayloadError as error:
        return {UNREADABLE: str(error)}
    return hidden(value) if data is not None and SECRET_KEY in data else value


def plain_object(data: bytes | None, what: str) -> dict[str, Any]:
    """Decode a stored JSON object. ``what`` names the value in the error."""
    content = plain(data)
    if type(content) is not dict:
        raise DamagedRunError(f"the stored {what} is not a JSON object")
    return content


def roundtrip(value: Any, encoded: bytes, decode: Callable[[Any], Any]) -> Any:
    """``value`` as a replay returns it. A scalar is not decoded from the bytes, because the result is the same."""
    return decode(value if type(value) in _SCALARS else plain(encoded))


def checked(value: Any, encoded: bytes, decode: Callable[[Any], Any], what: str) -> tuple[bytes, Any]:
    """The bytes to store for a value, and the value as ``roundtrip`` returns it.

    The bytes are ``encoded``, unless a secret in it is not marked: a client, or code without a type checker, may give
    the plain value.
    """
    before = plain_secrets()
    decoded = roundtrip(value, encoded, decode)
    return encoded if plain_secrets() == before else encode(decoded, what=what), decoded


def record(value: Any, decode: Callable[[Any], Any], limit: int, kind: str, key: str) -> tuple[bytes, Any]:
    """Encode the result of a step: the bytes, and the value as a replay returns it.

    ``kind`` and ``key`` name the step in errors. The name is made only for an error, because it would take as long as
    the encoding of a scalar.
    """
    data = _encode_scalar(value)
    if data is None or len(data) > limit:
        data = encode(value, what=f"result of {kind} {key!r}", limit=limit)
    try:
        return checked(value, data, decode, kind)
    except ParamsInvalidError as error:
        raise _misfit(f"result of {kind} {key!r}", error) from None


def check_result(what: str, value: Any, encoded: bytes, decode: Callable[[Any], Any]) -> bytes:
    """The bytes to store for a result that is not used in this process.

    Raises ``ResultInvalidError`` unless it fits its annotation.
    """
    if decode is untyped:
        return encoded
    try:
        return checked(value, encoded, decode, what)[0]
    except ParamsInvalidError as error:
        raise _misfit(what, error) from None


def _misfit(what: str, error: ParamsInvalidError) -> ResultInvalidError:
    return ResultInvalidError(f"{what} does not fit the return annotation of its function: {error}")


def _encode_scalar(value: Any) -> bytes | None:
    """Encode a scalar. Most results of steps are scalars, and the full encoder takes several times as long.

    None: the value is no scalar, or ``encode`` has to decide.
    """
    kind = type(value)
    if kind is int and -(10**18) < value < 10**18:
        return b"%d" % value
    if kind is str:
        return _utf8(encode_basestring(value))
    if kind is float or kind is int:
        return _encode_fast(value)
    return _CONSTANTS.get(value) if kind is bool or value is None else None


def _encode_fast(value: Any) -> bytes | None:
    """Encode with the standard encoder. None: ``lower`` has to decide (an error, keys other than text, surrogates)."""
    forms: list[Any] = [value]

    def to_form(unknown: Any) -> Any:
        form = json_form(unknown)
        forms.append(form)
        return form

    try:
        text = _dumps(value, to_form)
    except Exception:  # `lower` raises it again, with the path of the value
        return None
    data = _utf8(text)
    return None if data is None or _too_deep(data) or any(map(_has_other_keys, forms)) else data


def _utf8(text: str) -> bytes | None:
    """Encode JSON text. None: the text contains two surrogates that form a pair, which is refused."""
    try:
        return text.encode()
    except UnicodeEncodeError:
        return None if SURROGATE_PAIR.search(text) else text.encode("utf-8", _ESCAPE)


def _dumps(value: Any, default: Callable[[Any], Any] | None = None) -> str:
    encoder = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=default)
    return encoder.encode(value)


def _too_deep(data: bytes) -> bool:
    if data.count(b"[") + data.count(b"{") <= MAX_DEPTH:
        return False
    brackets = _STRING.sub(b"", data).translate(None, _NOT_BRACKETS)
    return max(accumulate(map(_NESTING.__getitem__, brackets)), default=0) > MAX_DEPTH


def _has_other_keys(value: Any) -> bool:
    """True if a dict in ``value`` has a key other than text, which may collide or have no JSON form."""
    children: Iterable[Any] = ()
    if is_object(value):
        if not _TEXT.issuperset(map(type, value)):
            return True
        children = value.values()
    elif is_array(value):
        children = value
    return any(_has_other_keys(child) for child in children if type(child) not in _SCALARS)


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


_DECODER = json.JSONDecoder(parse_constant=_no_constant)
