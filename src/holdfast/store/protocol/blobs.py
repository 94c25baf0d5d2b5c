"""Blobs: references of stored values to large values outside of their rows, and blobs that the database itself holds.

An envelope with ``"blobs": [id]`` refers to a blob. Once an app with a blob store has written to a database, triggers
count the references of each blob in ``holdfast_blob``, in the transactions that insert, change and delete rows. A blob
without references is garbage if it has had some, or if it was written long ago. A commit follows its blobs within
minutes, so no reference is written to a deleted blob.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

REFERRING = (
    ("run", ("params", "output")),
    ("fact", ("value",)),
    ("event", ("payload", "reply")),
    ("outbox", ("payload",)),
    ("schedule", ("params", "result")),
    ("chunk", ("data",)),
)
"""Tables, and their columns whose values may be in blobs. A chunk with a reference has one item only."""


class CountReferences(NamedTuple):
    """Create the triggers that count references. The database needs them before the first reference is written."""


class WriteChunk(NamedTuple):
    """Write a chunk of a blob that the database holds. Repeating the request has no effect."""

    id: str
    n: int
    data: bytes


class ReadChunk(NamedTuple):
    id: str
    n: int


class RenewBlobs(NamedTuple):
    """Set the age of unreferenced blobs of the database to 0."""

    ids: Sequence[str]


class KnownBlobs(NamedTuple):
    """The blobs among ``ids`` that have, or had, references."""

    ids: Sequence[str]


class GarbageBlobs(NamedTuple):
    """Blobs without references that had some, or that were written to the database at least ``age_ms`` ago."""

    age_ms: int
    limit: int = 100


class ForgetBlobs(NamedTuple):
    """Delete the counts and chunks of blobs without references."""

    ids: Sequence[str]


BlobRequest = CountReferences | WriteChunk | ReadChunk | RenewBlobs | KnownBlobs | GarbageBlobs | ForgetBlobs
