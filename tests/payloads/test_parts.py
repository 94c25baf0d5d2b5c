"""Blobs that a program writes and reads in parts: references in values, deletion with the run, damage, memory."""

from __future__ import annotations

import asyncio
import hashlib
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from apps import MakeApp
from holdfast import Batch, Context, Holdfast, Limits, Retry, RunFailedError, Transaction
from holdfast.errors import InvalidOptionError, PayloadError, PayloadTooLargeError
from holdfast.payloads import Aes, Blob, Zstd
from holdfast.payloads.parts import PART
from payloads.test_blobs import blobs_of, files, s3

__all__ = ["s3"]

CONTENT = os.urandom(PART) + b"compressible " * 200_000
KEYS = {"k2": b"2" * 32, "k1": b"1" * 32}


def define(app: Holdfast) -> None:
    @app.step
    async def make(content: Blob) -> Blob:
        return await app.blobs.write(upper(app.blobs.read(content)))

    @app.workflow
    async def shout(ctx: Context, content: Blob) -> dict[str, Any]:
        return {"made": await make(content), "again": [1, content]}

    @app.workflow
    async def keep(ctx: Context, content: Blob) -> Blob:
        await ctx.wait_for_event("go", type="go")
        return content


async def upper(parts: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    async for part in parts:
        yield part.upper()


def pieces(content: bytes = CONTENT, size: int = 70_000) -> Iterator[bytes]:
    return (content[start : start + size] for start in range(0, len(content), size))


async def content_of(app: Holdfast, blob: Blob) -> bytes:
    return b"".join([part async for part in app.blobs.read(blob)])


def reference(value: Any) -> Blob:
    """The reference in a value without an annotation."""
    from pydantic import TypeAdapter

    return TypeAdapter(Blob).validate_python(value)


@pytest.mark.parametrize("kind", ["file", "database", "s3"])
@pytest.mark.parametrize("codec", [None, [Zstd(), Aes(KEYS)]], ids=["plain", "encrypted"])
async def test_a_result_of_any_size_is_written_and_read_in_parts_and_deleted_with_its_run(
    make_app: MakeApp, tmp_path: Path, kind: str, codec: Any, request: pytest.FixtureRequest
) -> None:
    if kind == "s3":
        request.getfixturevalue("s3")
    url = {"file": f"file://{tmp_path}/blobs", "s3": f"s3://runs/{os.urandom(4).hex()}", "database": "database"}[kind]
    app = make_app(blobs=url, codec=codec)
    define(app)

    async with app:
        await blobs_of(app).collect()  # of earlier tests in the same schema
        given = await app.blobs.write(pieces())
        run = await app.start("shout", given, id="a")
        result = await run.result()
        made, again = reference(result["made"]), reference(result["again"][1])
        kept = await blobs_of(app).collect()
        contents = [await content_of(app, blob) for blob in (given, made, again)]
        stored = b"".join(path.read_bytes() for path in files(tmp_path))
        await run.delete()
        deleted = await blobs_of(app).collect()
        with pytest.raises(PayloadError, match="missing"):
            await content_of(app, made)

    assert contents == [CONTENT, CONTENT.upper(), CONTENT]
    assert (given.size, given.sha256) == (len(CONTENT), hashlib.sha256(CONTENT).hexdigest())
    assert again == given
    assert (kept, deleted) == (0, 2)
    assert (given.key is not None) == (codec is not None)
    if kind == "file":
        assert (b"compressible" in stored) == (codec is None)


async def test_a_blob_is_kept_while_any_run_refers_to_it(make_app: MakeApp, tmp_path: Path) -> None:
    app = make_app(blobs=f"file://{tmp_path}/blobs")
    define(app)

    async with app:
        given = await app.blobs.write([b"content"])
        first, second = await app.start("keep", given, id="a"), await app.start("keep", given, id="b")
        await first.send_event("go")
        assert await first.result() == given
        await first.delete()
        assert await blobs_of(app).collect() == 0
        await second.send_event("go")
        forked = await second.fork(before="go", id="c")
        await second.result()
        await second.delete()
        await blobs_of(app).collect()

        assert await content_of(app, given) == b"content"
        await forked.terminate()
        await forked.delete()
        assert await blobs_of(app).collect() == 1


async def test_a_large_value_that_refers_to_a_blob_keeps_both_blobs(make_app: MakeApp, tmp_path: Path) -> None:
    app = make_app(blobs=f"file://{tmp_path}/blobs", blob_threshold=100)

    @app.workflow
    async def mixed(ctx: Context, params: dict[str, Any]) -> dict[str, Any]:
        return params

    async with app:
        given = await app.blobs.write([b"content"])
        run = await app.start("mixed", {"blob": given, "text": "x" * 500}, id="a")
        result = await run.result()
        assert await blobs_of(app).collect() == 0
        assert await content_of(app, reference(result["blob"])) == b"content"
        await run.delete()
        assert await blobs_of(app).collect() == 3  # two values and the content

    assert files(tmp_path) == []


@pytest.mark.above_the_store
@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data[:-1],
        lambda data: data[:200] + bytes([data[200] ^ 1]) + data[201:],
        lambda data: b"\xff" * 6 + data,
        lambda data: b"",
    ],
    ids=["cut", "changed", "length", "empty"],
)
@pytest.mark.parametrize("codec", [None, Aes(KEYS)], ids=["plain", "encrypted"])
async def test_damaged_content_is_reported(
    make_app: MakeApp, tmp_path: Path, damage: Callable[[bytes], bytes], codec: Any
) -> None:
    app = make_app(blobs=f"file://{tmp_path}/blobs", codec=codec)
    async with app:
        blob = await app.blobs.write(pieces(CONTENT[: PART + 5]))
        [path] = files(tmp_path)
        path.write_bytes(damage(path.read_bytes()))
        with pytest.raises(PayloadError, match=r"damaged|belongs"):
            await content_of(app, blob)


@pytest.mark.above_the_store
async def test_parts_of_another_blob_or_in_another_order_do_not_fit(make_app: MakeApp, tmp_path: Path) -> None:
    app = make_app(blobs=f"file://{tmp_path}/blobs", codec=Aes(KEYS))
    async with app:
        blob = await app.blobs.write([b"a" * PART, b"b" * PART])
        [path] = files(tmp_path)
        data = path.read_bytes()
        path.write_bytes(data[len(data) // 2 :] + data[: len(data) // 2])
        with pytest.raises(PayloadError, match="does not fit key 'blob'"):
            await content_of(app, blob)


@pytest.mark.above_the_store
async def test_a_failed_write_leaves_no_blob_and_wrong_content_is_refused(make_app: MakeApp, tmp_path: Path) -> None:
    async def failing() -> AsyncIterator[bytes]:
        yield b"x" * PART
        raise ConnectionError("the source is gone")

    app = make_app(blobs=f"file://{tmp_path}/blobs", limits=Limits(blob=2 * PART))
    async with app:
        with pytest.raises(ConnectionError):
            await app.blobs.write(failing())
        with pytest.raises(PayloadTooLargeError, match=r"Limits\.blob"):
            await app.blobs.write([b"x" * PART] * 3)
        with pytest.raises(TypeError, match=r"\[data\]"):
            await app.blobs.write(b"data")  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="not str"):
            await app.blobs.write(["text"])  # type: ignore[list-item]
        with pytest.raises(TypeError, match="annotate"):
            await content_of(app, {"$blob": {}})  # type: ignore[arg-type]
        empty = await app.blobs.write([])
        assert await content_of(app, empty) == b""
    assert [path.name for path in files(tmp_path)] == [empty.id]


@pytest.mark.above_the_store
async def test_a_batched_start_with_a_blob_is_refused(make_app: MakeApp) -> None:
    app = make_app(blobs="database")

    @app.workflow(batch=Batch(size=2, wait="1 hour"))
    async def together(ctx: Context, items: list[Blob]) -> int:
        return len(items)

    async with app:
        blob = await app.blobs.write([b"content"])
        with pytest.raises(InvalidOptionError, match="cannot contain a Blob"):
            await app.start(together, blob)


@pytest.mark.above_the_store
async def test_a_step_with_a_transaction_cannot_write_blobs_to_the_database(make_app: MakeApp) -> None:
    app = make_app(blobs="database")

    @app.step(retry=Retry(limit=0))
    async def live(tx: Transaction) -> Blob:
        return await app.blobs.write([b"content"])

    @app.workflow
    async def store(ctx: Context) -> Blob:
        return await live()

    async with app:
        run = await app.start(store)
        with pytest.raises(RunFailedError, match="step 'live' has a Transaction, so it cannot write blobs"):
            await run.result(timeout=60)


@pytest.mark.above_the_store
async def test_blobs_of_an_app_without_a_blob_store_are_refused(make_app: MakeApp) -> None:
    app = make_app()
    async with app:
        with pytest.raises(InvalidOptionError, match="blobs="):
            _ = app.blobs


@pytest.mark.above_the_store
async def test_the_key_of_a_blob_is_encrypted_with_its_reference_and_hidden(make_app: MakeApp, tmp_path: Path) -> None:
    app = make_app(blobs=f"file://{tmp_path}/blobs", codec=Aes(KEYS))
    define(app)
    async with app:
        given = await app.blobs.write([b"content"])
        run = await app.start("keep", given, id="a")
        described = await run.describe()
        assert "key" not in repr(given)
        assert described.params["$blob"]["key"] == "[secret]"
        await run.send_event("go")
        assert await content_of(app, await run.result()) == b"content"


_MEMORY = """
import asyncio, sys
from holdfast import Context, Holdfast
from holdfast.payloads import Aes, Blob

size, folder = int(sys.argv[1]), sys.argv[2]
app = Holdfast(f"sqlite:///{folder}/app.db", blobs=sys.argv[3], codec=Aes({"k": b"k" * 32}))


async def rows():
    for n in range(size // 65536):
        yield n.to_bytes(8) * 8192


@app.step
async def make() -> Blob:
    return await app.blobs.write(rows())


@app.workflow
async def report(ctx: Context) -> Blob:
    return await make()


async def main():
    async with app:
        blob = await (await app.start(report)).result()
        read = 0
        async for part in app.blobs.read(blob):
            read += len(part)
    assert read == blob.size == size, (read, blob.size)
    # Not ru_maxrss, which includes the memory of the process that started this one, before it became this program.
    print(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")))


asyncio.run(main())
"""


def memory_kib(size: int, folder: Path, url: str) -> int:
    """Peak memory of a process with a workflow whose result has ``size`` bytes."""
    done = subprocess.run(
        [sys.executable, "-c", _MEMORY, str(size), str(folder), url], capture_output=True, text=True, timeout=600,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


@pytest.mark.above_the_store
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
async def test_the_memory_does_not_grow_with_the_size_of_a_result(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    size = 1024**3 if request.config.getoption("--long") else 64 * 1024**2
    small = await asyncio.to_thread(memory_kib, 1024**2, tmp_path, f"file://{tmp_path}/blobs")
    large = await asyncio.to_thread(memory_kib, size, tmp_path, f"file://{tmp_path}/blobs")

    print(f"peak memory: {small / 1024:.0f} MiB for 1 MiB, {large / 1024:.0f} MiB for {size / 1024**2:.0f} MiB")
    assert large - small < 24 * 1024
