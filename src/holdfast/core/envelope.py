"""Envelopes: stored values that a codec encoded, or that refer to a blob.

A stored value is JSON without leading white space. An envelope is a JSON object after one space, so that no value of a
program can be taken for an envelope, and tools that read JSON can still read the column. This module recognises and
parses envelopes; ``holdfast.payloads`` makes and opens them.

An envelope has ``payload`` (the version of the form), ``codec`` (the codecs in the order in which they encoded),
``home`` (the pid, or the workflow, that the value belongs to) and ``data`` (base64), or ``size`` and ``sha256`` of the
blob that is the value. ``blobs`` has the id of that blob, and the ids of the blobs to which the value refers; the
database counts these references. The envelope of an error also has the error's ``name``, by which runs are found.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from holdfast.errors import PayloadError

SPACE = b" "
SEALED_LIST = b'[ {"payload":'
"""The beginning of the params of a batch whose items are envelopes."""
UNREADABLE = "$unreadable"
"""Key of the placeholder that is shown for a value that this process cannot decode."""
_PROBLEM = "problem"


def is_envelope(data: bytes | None) -> bool:
    return data is not None and data.startswith(SPACE)


def write(content: Mapping[str, Any]) -> bytes:
    return SPACE + json.dumps(content, separators=(",", ":")).encode()


def read(data: bytes) -> dict[str, Any]:
    """Parse an envelope. Raises ``PayloadError`` if it has another form."""
    try:
        content = json.loads(data)
    except ValueError as error:
        raise PayloadError(f"the envelope of a stored value is damaged: {error}") from None
    if not isinstance(content, dict) or "payload" not in content:
        raise PayloadError("the envelope of a stored value is damaged: it has another form than expected")
    return content


def problem(data: bytes, error: PayloadError) -> bytes:
    """An envelope with the error because of which another one cannot be opened. It is never stored."""
    name = data.startswith(b' {"name"') and read(data).get("name")
    return write(({"name": name} if name else {}) | {"payload": 1, _PROBLEM: str(error)})


def unreadable(data: bytes) -> PayloadError:
    """The error for the use of a value that was not decoded when it was read."""
    try:
        content = read(data)
    except PayloadError as error:
        return error
    if _PROBLEM in content:
        return PayloadError(content[_PROBLEM])
    if "blobs" in content and not content.get("codec"):
        return PayloadError("the value is in a blob store; this app has no blobs=")
    used = ", ".join(map(str, content.get("codec", ())))
    return PayloadError(f"the value was encoded by a codec ({used}); this app has no codec= for it")


def error_name(data: bytes) -> str | None:
    """The name of an error in an envelope."""
    try:
        name = read(data).get("name")
    except PayloadError:
        return None
    return name if isinstance(name, str) else None


def check_decoded(value: Any) -> None:
    """Raise ``PayloadError`` if a plain value is an envelope: the app that read the event has no codec."""
    if type(value) is dict and value.keys() >= {"payload", "codec", "home"}:
        raise unreadable(write(value))
