"""Values to bytes of JSON in UTF-8 and back: what every store keeps and every replay reads.

Owns the bytes. Which types have a JSON form is in ``lowering``, how a plain value becomes a typed one
again is in ``typed``. Encoding never changes what it can read back: what would not survive is refused. Text is written
as it is; only what UTF-8 or a JSON string cannot hold (lone surrogates, NUL and other control characters) is escaped.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from itertools import accumulate
from json.encoder import encode_basestring
from typing import Any, NoReturn

from holdfast.core.lowering import MAX_DEPTH, SURROGATE_PAIR, is_array, is_object, json_form, lower
from holdfast.core.typed import decoder, untyped
from holdfast.errors import NotSerializableError, ParamsInvalidError, PayloadTooLargeError, ResultInvalidError

__all__ = ["check_result", "decoder", "encode", "plain", "recorded", "roundtrip"]

_ESCAPE = "backslashreplace"
"""Writes what UTF-8 cannot encode, lone surrogates, as JSON does: ``\\ud800``."""
_SCALARS = frozenset({type(None), bool, int, float, str})
_TEXT = frozenset({str})
_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"')
_NOT_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_NESTING = {ord("["): 1, ord("{"): 1, ord("]"): -1, ord("}"): -1}


def encode(value: Any, *, what: str, limit: int | None = None) -> bytes:
    """``value`` as JSON in UTF-8; ``what`` is its name in errors, ``limit`` the most bytes it may take.

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
    """The JSON value in ``data``; nothing stored is ``None``."""
    return None if data is None else _DECODER.decode(data.decode("utf-8"))


def roundtrip(value: Any, encoded: bytes, decode: Callable[[Any], Any]) -> Any:
    """What a replay will give for ``value``, without reading the bytes again where that is sure to agree."""
    return decode(value if type(value) in _SCALARS else plain(encoded))


def recorded(what: str, value: Any, encoded: bytes, decode: Callable[[Any], Any]) -> Any:
    """A result as a replay will give it; raises ``ResultInvalidError`` if it does not fit its annotation."""
    try:
        return roundtrip(value, encoded, decode)
    except ParamsInvalidError as error:
        raise ResultInvalidError(f"{what} does not fit the return annotation of its function: {error}") from None


def check_result(what: str, value: Any, encoded: bytes, decode: Callable[[Any], Any]) -> None:
    """Raise ``ResultInvalidError`` unless a result that nobody reads here fits its annotation."""
    if decode is not untyped:
        recorded(what, value, encoded, decode)


def _encode_scalar(value: Any) -> bytes | None:
    """Most results of steps are one of these; the full encoder costs several times as much."""
    kind = type(value)
    if kind is str:
        return _utf8(encode_basestring(value))
    if kind is int and -(10**18) < value < 10**18:
        return b"%d" % value
    if kind is float or kind is int:
        return _encode_fast(value)
    return b"null" if value is None else b"true" if value else b"false"


def _encode_fast(value: Any) -> bytes | None:
    """The bytes, or ``None`` where only the careful way can tell: an error, odd keys, suspicious text."""
    forms: list[Any] = [value]

    def simpler(one: Any) -> Any:
        form = json_form(one)
        forms.append(form)
        return form

    try:
        text = _dumps(value, simpler)
    except Exception:  # whatever it was, the careful way meets it again and says where
        return None
    data = _utf8(text)
    return None if data is None or _too_deep(data) or any(map(_has_odd_keys, forms)) else data


def _utf8(text: str) -> bytes | None:
    """JSON text as bytes; ``None`` if two surrogates in it form a pair, which is refused."""
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


def _has_odd_keys(value: Any) -> bool:
    """Whether a dict in ``value`` has a key other than text: it may collide, or not be a JSON key."""
    children: Iterable[Any] = ()
    if is_object(value):
        if not _TEXT.issuperset(map(type, value)):
            return True
        children = value.values()
    elif is_array(value):
        children = value
    return any(_has_odd_keys(one) for one in children if type(one) not in _SCALARS)


def _no_constant(name: str) -> NoReturn:
    raise NotSerializableError(f"{name} is not JSON")


_DECODER = json.JSONDecoder(parse_constant=_no_constant)
