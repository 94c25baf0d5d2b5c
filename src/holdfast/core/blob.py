"""``Blob``: a reference to bytes in the blob store that a program writes and reads in parts.

This module owns the type, its JSON form and the search for references in an encoded value. ``holdfast.payloads`` writes
and reads the bytes.
"""

from __future__ import annotations

import json
import re
from base64 import b64decode, b64encode
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

from holdfast.core.lowering import add_form
from holdfast.core.secret import MARK as SECRET

if TYPE_CHECKING:
    from collections.abc import Callable

MARK = "$blob"
_MARK_KEY = b'"$blob"'
"""The mark as it is encoded; a value without these bytes contains no reference."""
_ID = re.compile(r"[0-9a-f]{32}")


@dataclass(frozen=True, slots=True)
class Blob:
    """A reference to bytes in the blob store: ``app.blobs.write`` returns it, ``app.blobs.read`` reads the bytes.

    It may be part of an input, a result or the payload of an event. The bytes are deleted with the last run that refers
    to them.

    Example::

        @app.step
        async def report() -> Blob:
            return await app.blobs.write(rows())  # an async iterator of bytes
    """

    id: str
    size: int
    """Number of bytes."""
    sha256: str
    """Hash of the bytes, in hexadecimal digits."""
    key: bytes | None = field(default=None, repr=False)
    """The key of the bytes; None: they are not encrypted."""

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Callable[[Any], Any]) -> Any:
        from pydantic_core import core_schema

        return core_schema.no_info_plain_validator_function(_decode)


def blob_form(blob: Blob) -> dict[str, Any]:
    """The JSON form of a reference. Its key is a secret, and hidden wherever secrets are."""
    content: dict[str, Any] = {"id": blob.id, "size": blob.size, "sha256": blob.sha256}
    if blob.key is not None:
        content["key"] = {SECRET: b64encode(blob.key).decode("ascii")}
    return {MARK: content}


add_form(Blob, blob_form)


def _decode(value: Any) -> Blob:
    if isinstance(value, Blob):
        return value
    try:
        content = value[MARK]
        key = content.get("key")
        blob = Blob(content["id"], content["size"], content["sha256"], None if key is None else b64decode(key[SECRET]))
    except (AttributeError, KeyError, TypeError, ValueError):
        raise ValueError("a reference to a blob is an object with the key '$blob'") from None
    if not (isinstance(blob.id, str) and _ID.fullmatch(blob.id) and isinstance(blob.size, int)):
        raise ValueError("a reference to a blob has an id of 32 hexadecimal digits, a size and a hash")
    return blob


def references(data: bytes) -> list[str]:
    """Ids of the blobs to which an encoded value refers, each one once."""
    if _MARK_KEY not in data:
        return []
    return [*dict.fromkeys(_ids(json.loads(data)))]


def _ids(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        content = cast("dict[str, Any]", value)
        inner = content.get(MARK)
        blob = inner.get("id") if isinstance(inner, dict) and len(content) == 1 else None
        if isinstance(blob, str) and _ID.fullmatch(blob):
            yield blob
        for part in content.values():
            yield from _ids(part)
    elif isinstance(value, list):
        for part in value:
            yield from _ids(part)
