"""Codec and blob store of the seeds that have them: a codec without randomness, and small values as blobs.

The checks of the simulation read the database without the engine; ``opened_value`` opens what they read.
"""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Callable, Iterator
from typing import Any

from holdfast.core import envelope
from holdfast.payloads.codecs import CodecChain
from holdfast.payloads.config import PayloadConfig
from holdfast.store.protocol.blobs import REFERRING
from holdfast.testing.simulation.streams import stream

Rows = Callable[..., list[tuple[Any, ...]]]

_SHARE = 0.1


class Inverted:
    """Inverts all bits: a value that is not decoded is noticed, and the same value is always encoded alike."""

    encrypts = True

    def encode(self, data: bytes, bound_to: bytes) -> tuple[str, bytes] | None:
        return "inverted", data.translate(_INVERTED)

    def decode(self, tag: str, data: bytes, bound_to: bytes) -> bytes | None:
        return data.translate(_INVERTED) if tag == "inverted" else None


_INVERTED = bytes(255 - n for n in range(256))
PAYLOADS = PayloadConfig(CodecChain([Inverted()]), "database", 24)


def with_payloads(seed: int) -> bool:
    """True if the processes of a seed have a codec and a blob store."""
    return stream(seed, "codec").random() < _SHARE


def opened_value(connection: Any, value: Any) -> Any:
    """A stored value as the engine sees it. A blob that is missing is shown as such, and fails the check."""
    if not isinstance(value, bytes) or not value.startswith(b" {"):
        return value
    content = envelope.read(value)
    if "blobs" not in content:
        return b64decode(content["data"]).translate(_INVERTED)
    [blob] = content["blobs"]
    chunks = connection.execute("SELECT data FROM holdfast_blob_chunk WHERE id = ? ORDER BY n", (blob,)).fetchall()
    if not chunks:
        return b'"the blob is missing"'
    return b"".join(chunk for (chunk,) in chunks).translate(_INVERTED)


def missing_blobs(rows: Rows) -> Iterator[str]:
    """Check that every blob to which a row refers exists, and that the counts of references are right."""
    referring = " UNION ALL ".join(
        f"SELECT {column} AS value FROM holdfast_{table}" for table, columns in REFERRING for column in columns
    )
    for blob, refs, actual, stored in rows(
        "SELECT b.id, b.refs, (SELECT count(*) FROM (" + referring + ") WHERE instr(value, CAST(b.id AS BLOB)) > 0), "
        "EXISTS (SELECT 1 FROM holdfast_blob_chunk AS c WHERE c.id = b.id) FROM holdfast_blob AS b ORDER BY b.id"
    ):
        if refs != actual:
            yield f"the blob {blob} has {actual} references, and {refs} are counted"
        if actual and not stored:
            yield f"rows refer to the blob {blob}, which does not exist"
