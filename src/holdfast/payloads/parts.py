"""Blobs that a program writes and reads in parts: ``app.blobs``.

The bytes are stored as frames of about ``PART`` bytes, each one encoded on its own, so that writing and reading need
the memory of a few frames, whatever the size. The frames of an encrypted blob have a key of their own, which is part of
the reference and is encrypted with the value that contains the reference, so a new key of the app needs no new frames.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Sequence
from typing import Any

from holdfast.core.blob import Blob
from holdfast.errors import InvalidOptionError, PayloadError, PayloadTooLargeError, StateError
from holdfast.kernel.attempt import Transaction, current_attempt
from holdfast.payloads.blobs import Blobs, DatabaseBlobs
from holdfast.payloads.codecs import Aes, CodecChain
from holdfast.payloads.store import PayloadStore
from holdfast.ports import SystemRandomness

PART = 1024 * 1024
_HEAD = struct.Struct(">IH")
"""The length of a frame's content, and of the names of its codecs."""
_MAX_FRAME = 2 * PART
_KEY = "blob"
_RANDOM = SystemRandomness()


class BlobParts:
    """The blobs of an open app."""

    def __init__(self, store: Any) -> None:
        if not isinstance(store, PayloadStore) or store.blob_store is None:
            raise InvalidOptionError("the app has no blob store: give it blobs=, such as Holdfast(blobs='database')")
        self._blobs: Blobs = store.blob_store
        self._settings = store.settings

    async def write(self, parts: AsyncIterable[bytes] | Iterable[bytes]) -> Blob:
        """Write the bytes of an iterator of any kind, and return a reference to them.

        The bytes are durable when this returns. They are kept while a value of a run refers to them; bytes to which no
        value refers within a day are deleted.
        """
        if isinstance(parts, str | bytes | bytearray | memoryview):
            raise TypeError("app.blobs.write takes an iterator of bytes; for a single value give [data]")
        self._check_transaction()
        blob = _RANDOM.uuid4().hex
        key = _RANDOM.bytes(32) if self._encrypts() else None
        frames, digest, size = _Frames(blob, self._chain(key)), hashlib.sha256(), 0
        await self._blobs.prepare()
        async with self._blobs.blob_store.writer(blob) as out:
            async for part in _parts(parts):
                size += len(part)
                if size > self._settings.max_blob:
                    raise PayloadTooLargeError(f"a blob has more than {self._settings.max_blob} bytes (Limits.blob)")
                digest.update(part)
                await out.write(frames.encode(part))
        return Blob(blob, size, digest.hexdigest(), key)

    def _check_transaction(self) -> None:
        attempt = current_attempt.get()
        in_database = isinstance(self._blobs.blob_store, DatabaseBlobs)
        if in_database and attempt is not None and attempt.call.wants_tx is Transaction:
            raise StateError(
                f"step {attempt.key!r} has a Transaction, so it cannot write blobs to the database: the write would"
                " wait for the end of the transaction. Write blobs in another step, or use StepTx"
            )

    async def read(self, blob: Blob) -> AsyncIterator[bytes]:
        """Iterate over the bytes of a blob. Raises ``PayloadError`` if they are missing or damaged.

        The hash of all bytes is checked after the last part.
        """
        if not isinstance(blob, Blob):
            raise TypeError(f"app.blobs.read takes a Blob, not {type(blob).__name__}; annotate the value with Blob")
        frames, digest = _Frames(blob.id, self._chain(blob.key)), hashlib.sha256()
        async for data in self._blobs.blob_store.parts(blob.id):
            for part in frames.decode(data):
                digest.update(part)
                yield part
        if frames.rest or digest.hexdigest() != blob.sha256:
            raise PayloadError(f"the blob {blob.id} is damaged: its hash differs from the stored one")

    def _encrypts(self) -> bool:
        attempt = current_attempt.get()
        chain = self._settings.chain if attempt is None else self._settings.chain_of(attempt.run.workflow)
        return chain is not None and chain.encrypts

    def _chain(self, key: bytes | None) -> CodecChain:
        """The codecs of the app that do not encrypt, and the key of the blob."""
        chain = self._settings.chain
        codecs: list[Any] = [] if chain is None else [codec for codec in chain.codecs if not codec.encrypts]
        return CodecChain([*codecs, *([] if key is None else [Aes({_KEY: key})])])


class _Frames:
    """Encodes and decodes the frames of one blob. A frame is bound to the blob and to its number."""

    def __init__(self, blob: str, chain: CodecChain) -> None:
        self._blob = blob
        self._chain = chain
        self._number = 0
        self.rest = b""
        """The beginning of a frame whose end was not read yet."""

    def encode(self, part: bytes) -> bytes:
        tags, data = self._chain.encode(part, self._place())
        names = json.dumps(tags).encode()
        return _HEAD.pack(len(data), len(names)) + names + data

    def decode(self, data: bytes) -> Sequence[bytes]:
        """The parts of the frames that end in ``data``."""
        data, position, parts = self.rest + data, 0, []
        while len(data) - position >= _HEAD.size:
            length, names = _HEAD.unpack_from(data, position)
            if length > _MAX_FRAME:
                raise PayloadError(f"the blob {self._blob} is damaged: a part has an impossible length")
            begin = position + _HEAD.size + names
            if len(data) < begin + length:
                break
            tags = self._tags(data[begin - names : begin])
            parts.append(self._chain.decode(tags, data[begin : begin + length], self._place()))
            position = begin + length
        self.rest = data[position:]
        return parts

    def _tags(self, names: bytes) -> list[str]:
        try:
            return [str(tag) for tag in json.loads(names)]
        except (ValueError, TypeError):
            raise PayloadError(f"the blob {self._blob} is damaged: a part has no codecs") from None

    def _place(self) -> bytes:
        self._number += 1
        return f"{self._blob}\0{self._number}".encode()


async def _parts(source: AsyncIterable[bytes] | Iterable[bytes]) -> AsyncIterator[bytes]:
    """The same bytes in parts of ``PART`` bytes; the last one may be shorter."""
    buffer = bytearray()
    async for data in _pieces(source):
        if not isinstance(data, bytes | bytearray | memoryview):
            raise TypeError(f"a blob is made of bytes, not {type(data).__name__}")
        buffer += data
        while len(buffer) >= PART:
            yield bytes(buffer[:PART])
            del buffer[:PART]
    if buffer:
        yield bytes(buffer)


async def _pieces(source: AsyncIterable[bytes] | Iterable[bytes]) -> AsyncIterator[bytes]:
    if isinstance(source, AsyncIterable):
        async for data in source:
            yield data
        return
    for data in source:
        yield data
