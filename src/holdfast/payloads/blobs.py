"""Blob stores for large values: files, an S3-compatible service, or the database itself.

A blob is immutable: it is written once under a random id, and deleted when no row refers to it. ``Blobs`` combines a
blob store with the counts of references in the database (``store/protocol/blobs.py``).
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from itertools import takewhile
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, Protocol
from urllib.parse import unquote, urlsplit

from holdfast.core.checks import is_whole_number
from holdfast.core.durations import to_ms
from holdfast.errors import InvalidOptionError, PayloadError, StoreUnavailableError
from holdfast.extras import extra
from holdfast.payloads.sealing import BlobWrite
from holdfast.ports import in_thread
from holdfast.store.protocol import Store
from holdfast.store.protocol.blobs import (
    CountReferences,
    ForgetBlobs,
    GarbageBlobs,
    KnownBlobs,
    ReadChunk,
    RenewBlobs,
    WriteChunk,
)

GRACE_MS = to_ms("24 hours")
"""Age at which a blob without a reference is an orphan. Commits follow their blobs within minutes."""
CHUNK = 512 * 1024
_ID = re.compile(r"[0-9a-f]{32}")
_SIZE = re.compile(r"(\d+)\s*(B|KiB|MiB|GiB)?")
_UNITS = {None: 1, "B": 1, "KiB": 1024, "MiB": 1024**2, "GiB": 1024**3}


class StoredBlob(NamedTuple):
    id: str
    age_ms: int


class BlobWriter(Protocol):
    async def write(self, data: bytes, /) -> Any: ...


class BlobStore(Protocol):
    """Storage of blobs. ``write`` returns when the blob is durable; ``delete`` ignores blobs that do not exist."""

    async def write(self, id: str, data: bytes) -> None: ...

    async def read(self, id: str) -> bytes:
        """Raises ``PayloadError`` if there is no such blob."""
        ...

    def writer(self, id: str) -> AbstractAsyncContextManager[BlobWriter]:
        """Write a blob in parts. The blob is durable when the context is left; after an error nothing is kept."""
        ...

    def parts(self, id: str) -> AsyncIterator[bytes]:
        """Read a blob in parts. Raises ``PayloadError`` if there is no such blob."""
        ...

    async def renew(self, ids: Sequence[str]) -> None:
        """Set the age of blobs to 0."""
        ...

    async def delete(self, ids: Sequence[str]) -> None: ...

    async def list(self, min_age_ms: int) -> list[StoredBlob]:
        """Blobs of at least this age that may be orphans."""
        ...


def _missing(id: str, where: str) -> PayloadError:
    return PayloadError(f"the blob {id} is missing in {where}")


class FileBlobs:
    """Blobs as files in a folder, which all processes of the app share. Files and folder are synced to the disk."""

    def __init__(self, folder: Path, now: Callable[[], float]) -> None:
        """``now``: seconds since the epoch, to which the times of files are compared."""
        self._folder = folder
        self._now = now
        self._made = False

    def __str__(self) -> str:
        return f"file://{self._folder}"

    async def write(self, id: str, data: bytes) -> None:
        await in_thread(self._write, id, data)

    def _write(self, id: str, data: bytes) -> None:
        try:
            with self._opened(id) as file:
                file.write(data)
                self._finish(id, file)
        except OSError as error:
            raise self._not_written(error) from error

    def _opened(self, id: str) -> BinaryIO:
        """Open a temporary file, which ``_finish`` renames when the blob is complete."""
        part = self._path(id).with_suffix(".part")
        if not self._made:
            _make_folder(self._folder)
            self._made = True
        part.parent.mkdir(exist_ok=True, mode=0o700)
        return os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb")

    def _finish(self, id: str, file: BinaryIO) -> None:
        """Make a complete blob durable under its name."""
        path = self._path(id)
        file.flush()
        os.fsync(file.fileno())
        path.with_suffix(".part").rename(path)
        for folder in (path.parent, self._folder):
            _sync(folder)

    def _not_written(self, error: OSError) -> StoreUnavailableError:
        return StoreUnavailableError(f"a blob cannot be written to {self}: {error}")

    @asynccontextmanager
    async def writer(self, id: str) -> AsyncIterator[BlobWriter]:
        try:
            file = await in_thread(self._opened, id)
        except OSError as error:
            raise self._not_written(error) from error
        try:
            yield _FileWriter(file, self._not_written)
            try:
                await in_thread(self._finish, id, file)
            except OSError as error:
                raise self._not_written(error) from error
        finally:
            file.close()
            self._path(id).with_suffix(".part").unlink(missing_ok=True)

    async def parts(self, id: str) -> AsyncIterator[bytes]:
        try:
            with await in_thread(lambda: self._path(id).open("rb")) as file:
                while data := await in_thread(file.read, CHUNK):
                    yield data
        except FileNotFoundError:
            raise _missing(id, str(self)) from None
        except OSError as error:
            raise StoreUnavailableError(f"a blob cannot be read from {self}: {error}") from error

    async def read(self, id: str) -> bytes:
        try:
            return await in_thread(self._path(id).read_bytes)
        except FileNotFoundError:
            raise _missing(id, str(self)) from None
        except OSError as error:
            raise StoreUnavailableError(f"a blob cannot be read from {self}: {error}") from error

    async def renew(self, ids: Sequence[str]) -> None:
        for blob in ids:
            with contextlib.suppress(FileNotFoundError):
                os.utime(self._path(blob))

    async def delete(self, ids: Sequence[str]) -> None:
        def remove() -> None:
            for blob in ids:
                self._path(blob).unlink(missing_ok=True)

        await in_thread(remove)

    async def list(self, min_age_ms: int) -> list[StoredBlob]:
        return await in_thread(lambda: [*self._found(min_age_ms)])

    def _found(self, min_age_ms: int) -> Iterable[StoredBlob]:
        now = self._now()
        for path in self._folder.glob("??/*"):
            with contextlib.suppress(FileNotFoundError):
                age_ms = int((now - path.stat().st_mtime) * 1000)
                if age_ms < min_age_ms:
                    continue
                if path.suffix == ".part":  # left by a process that died while writing
                    path.unlink()
                elif _ID.fullmatch(path.name):
                    yield StoredBlob(path.name, age_ms)

    def _path(self, id: str) -> Path:
        if not _ID.fullmatch(id):
            raise PayloadError(f"{id!r} is not the id of a blob")
        return self._folder / id[:2] / id


class _FileWriter:
    def __init__(self, file: BinaryIO, failed: Callable[[OSError], Exception]) -> None:
        self._file = file
        self._failed = failed

    async def write(self, data: bytes, /) -> None:
        try:
            await in_thread(self._file.write, data)
        except OSError as error:
            raise self._failed(error) from error


def _make_folder(folder: Path) -> None:
    """Create a folder and its missing parents, and sync their entries, also if another process created them."""
    created = [folder, *takewhile(lambda parent: not parent.exists(), folder.parents)]
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    for each in created:
        with contextlib.suppress(PermissionError):  # the parent of a folder that exists may belong to another user
            _sync(each.parent)


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class S3Blobs:
    """Blobs as objects of an S3-compatible service. The environment has the credentials and the endpoint (AWS_…)."""

    def __init__(self, url: str, now: Callable[[], float]) -> None:
        with extra("s3", "An s3:// blob store"):
            import obstore  # noqa: PLC0415  (an extra)
            from obstore.store import S3Store  # noqa: PLC0415
        self._module: Any = obstore
        self._url = url
        self._now = now
        http = os.environ.get("AWS_ENDPOINT_URL", "").startswith("http://")
        self._store: Any = S3Store.from_url(url, client_options={"allow_http": http})

    def __str__(self) -> str:
        return self._url

    async def write(self, id: str, data: bytes) -> None:
        await self._call(self._module.put_async(self._store, id, data), "written")

    async def read(self, id: str) -> bytes:
        try:
            found = await self._call(self._module.get_async(self._store, id), "read")
        except FileNotFoundError:
            raise _missing(id, str(self)) from None
        return bytes(await self._call(found.bytes_async(), "read"))

    @asynccontextmanager
    async def writer(self, id: str) -> AsyncIterator[BlobWriter]:
        """After an error the upload is not completed; the service deletes it by its rule for incomplete uploads."""
        file = self._module.open_writer_async(self._store, id, buffer_size=16 * CHUNK, max_concurrency=2)
        yield _S3Writer(file, self._call)
        await self._call(file.close(), "written")

    async def parts(self, id: str) -> AsyncIterator[bytes]:
        try:
            found = await self._call(self._module.get_async(self._store, id), "read")
        except FileNotFoundError:
            raise _missing(id, str(self)) from None
        stream = aiter(found.stream(min_chunk_size=CHUNK))
        while (data := await self._call(anext(stream, None), "read")) is not None:
            yield bytes(data)

    async def renew(self, ids: Sequence[str]) -> None:
        for blob in ids:
            await self.write(blob, await self.read(blob))  # a copy of an object to itself is refused

    async def delete(self, ids: Sequence[str]) -> None:
        for blob in ids:
            with contextlib.suppress(FileNotFoundError):
                await self._call(self._module.delete_async(self._store, blob), "deleted")

    async def list(self, min_age_ms: int) -> list[StoredBlob]:
        found: list[StoredBlob] = []
        async for page in self._module.list(self._store):
            for item in page:
                age_ms = int((self._now() - item["last_modified"].timestamp()) * 1000)
                if age_ms >= min_age_ms and _ID.fullmatch(item["path"]):
                    found.append(StoredBlob(item["path"], age_ms))
        return found

    async def _call(self, call: Any, verb: str) -> Any:
        try:
            return await call
        except FileNotFoundError:
            raise
        except Exception as error:  # obstore has one class for each failure of the service
            raise StoreUnavailableError(f"a blob cannot be {verb}: {type(error).__name__} of {self}") from error


class _S3Writer:
    def __init__(self, file: Any, call: Callable[[Any, str], Any]) -> None:
        self._file = file
        self._call = call

    async def write(self, data: bytes, /) -> None:
        await self._call(self._file.write(data), "written")


class DatabaseBlobs:
    """Blobs as chunks in the database of the app. Orphans are found by their rows."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def __str__(self) -> str:
        return "the database"

    async def write(self, id: str, data: bytes) -> None:
        for n, start in enumerate(range(0, len(data), CHUNK)):
            await self._store.blobs(WriteChunk(id, n, data[start : start + CHUNK]))

    async def read(self, id: str) -> bytes:
        chunks: list[bytes] = []
        while chunk := await self._store.blobs(ReadChunk(id, len(chunks))):
            chunks += chunk
        if not chunks:
            raise _missing(id, str(self))
        return b"".join(chunks)

    @asynccontextmanager
    async def writer(self, id: str) -> AsyncIterator[BlobWriter]:
        """After an error the chunks are orphans, which are deleted by their age."""
        writer = _ChunkWriter(id, self._store)
        yield writer
        await writer.flush()

    async def parts(self, id: str) -> AsyncIterator[bytes]:
        n = 0
        while chunk := await self._store.blobs(ReadChunk(id, n)):
            n += 1
            yield chunk[0]
        if not n:
            raise _missing(id, str(self))

    async def renew(self, ids: Sequence[str]) -> None:
        await self._store.blobs(RenewBlobs(ids))

    async def delete(self, ids: Sequence[str]) -> None:
        """``ForgetBlobs`` deletes the chunks too."""

    async def list(self, min_age_ms: int) -> list[StoredBlob]:  # noqa: ARG002  (the rows of orphans are enough)
        return []


class _ChunkWriter:
    def __init__(self, id: str, store: Store) -> None:
        self._id = id
        self._store = store
        self._written = 0
        self._buffer = bytearray()

    async def write(self, data: bytes, /) -> None:
        self._buffer += data
        while len(self._buffer) >= CHUNK:
            await self._write(bytes(self._buffer[:CHUNK]))
            del self._buffer[:CHUNK]

    async def flush(self) -> None:
        if self._buffer or not self._written:
            await self._write(bytes(self._buffer))
        await self._store.blobs(RenewBlobs([self._id]))  # the age of a blob is that of its first chunk

    async def _write(self, chunk: bytes) -> None:
        await self._store.blobs(WriteChunk(self._id, self._written, chunk))
        self._written += 1


class Blobs:
    """The blob store of an app, and the references to its blobs."""

    def __init__(self, blob_store: BlobStore, store: Store, *, grace_ms: int = GRACE_MS) -> None:
        self.blob_store = blob_store
        self._store = store
        self._grace_ms = grace_ms
        self._counting = False

    async def write(self, writes: Sequence[BlobWrite]) -> None:
        """Write blobs. They are durable when this returns; the commit that refers to them follows."""
        await self.prepare()
        for write in writes:
            await self.blob_store.write(write.id, write.data)

    async def prepare(self) -> None:
        """Let the database count references, which it has to do before the first reference is written."""
        if not self._counting:
            await self._store.blobs(CountReferences())
            self._counting = True

    async def renew(self, ids: Sequence[str]) -> None:
        """Call before a commit is repeated: its blobs may have been written long ago."""
        if ids:
            await self.blob_store.renew(ids)

    async def read(self, ids: Sequence[str]) -> dict[str, bytes | PayloadError]:
        """Read blobs. The error of a missing blob belongs to the one value that refers to it."""
        found: dict[str, bytes | PayloadError] = {}
        for blob in ids:
            try:
                found[blob] = await self.blob_store.read(blob)
            except PayloadError as error:
                found[blob] = error
        return found

    async def collect(self) -> int:
        """Delete blobs of deleted runs, and orphans of commits that never happened; returns their number."""
        deleted = 0
        while garbage := await self._store.blobs(GarbageBlobs(self._grace_ms)):
            await self.blob_store.delete(garbage)
            await self._store.blobs(ForgetBlobs(garbage))
            deleted += len(garbage)
        old = [blob.id for blob in await self.blob_store.list(self._grace_ms)]
        for start in range(0, len(old), 1000):
            part = old[start : start + 1000]
            known = {*await self._store.blobs(KnownBlobs(part))}
            orphans = [blob for blob in part if blob not in known]
            await self.blob_store.delete(orphans)
            deleted += len(orphans)
        return deleted


def check_blobs(url: Any) -> str | None:
    """Check the option ``blobs=``."""
    if url is None or url == "database":
        return None if url is None else "database"
    if not isinstance(url, str) or not re.match(r"file:///[^/]|s3://[^/]", url):
        raise InvalidOptionError(f"blobs={url!r}: use 'file:///folder', 's3://bucket/prefix' or 'database'")
    return url


def parse_size(value: int | str) -> int:
    """The number of bytes of ``65536`` or ``"64 KiB"``."""
    if is_whole_number(value, 0):
        return value
    match = _SIZE.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None:
        raise InvalidOptionError(f"blob_threshold={value!r}: give a number of bytes, or text such as '64 KiB'")
    return int(match[1]) * _UNITS[match[2]]


def make_blobs(url: str, store: Store, now: Callable[[], float]) -> Blobs:
    """The blob store that a URL names, for the database of ``store``."""
    if url == "database":
        return Blobs(DatabaseBlobs(store), store)
    if url.startswith("s3://"):
        return Blobs(S3Blobs(url, now), store)
    return Blobs(FileBlobs(Path(unquote(urlsplit(url).path)), now), store)
