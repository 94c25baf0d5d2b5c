"""Free text as bytes: PostgreSQL's TEXT cannot hold NUL, and UTF-8 cannot encode lone surrogates."""

from __future__ import annotations

from typing import Any, overload


@overload
def encode_text(text: str) -> bytes: ...


@overload
def encode_text(text: str | None) -> bytes | None: ...


def encode_text(text: str | None) -> bytes | None:
    return None if text is None else text.encode("utf-8", "surrogatepass")


def decode_text(text: bytes | None) -> Any:
    """The opposite of ``encode_text``. Bytes that ``encode_text`` does not make become ``\ufffd``."""
    if text is None:
        return None
    try:
        return text.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        return text.decode("utf-8", "replace")
