"""Codecs with streams, and with debounced and batched starts: items are sealed one by one."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from apps import MakeApp
from holdfast import Batch, Context, Debounce, Holdfast, step_info
from holdfast.cli.reencryption import reencrypt_values
from holdfast.payloads import Aes, Zstd
from holdfast.store.protocol.streams import PruneStreams

from .test_blobs import blobs_of, files, payload_store
from .test_values_in_the_database import CANARY, NEW, OLD, stored_bytes


def define(app: Holdfast) -> None:
    @app.step
    async def speak(words: int) -> None:
        out = step_info().stream("tokens")
        for n in range(words):
            await out.write(f"{CANARY} {n}")

    @app.workflow
    async def talk(ctx: Context, words: int) -> None:
        await ctx.stream("tokens").write({"begin": CANARY})
        await speak(words)

    @app.workflow(batch=Batch(size=3, wait="1 hour"))
    async def together(ctx: Context, items: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return items

    @app.workflow
    async def latest(ctx: Context, text: str) -> str:
        return text


async def test_items_of_streams_are_encrypted_in_the_database_and_plain_for_readers(make_app: MakeApp) -> None:
    app = make_app(codec=[Zstd(), Aes({"k": NEW})])
    define(app)
    async with app:
        run = await app.start("talk", 3)
        await run.result()
        items = [item.value async for item in run.stream("tokens")]
        stored = await stored_bytes(app)

    assert items == [{"begin": CANARY}, *(f"{CANARY} {n}" for n in range(3))]
    assert CANARY.encode() not in stored


async def test_a_batch_of_encrypted_items_and_debounced_params_reach_the_run(make_app: MakeApp) -> None:
    app = make_app(codec=Aes({"k": NEW}))
    define(app)
    async with app:
        batch = [await app.start("together", {"text": CANARY, "n": n}) for n in range(3)]
        for n in range(3):
            last = await app.start("latest", f"{CANARY} {n}", debounce=Debounce("10 ms"))
        results = await asyncio.gather(batch[0].result(), last.result())
        stored = await stored_bytes(app)

    assert {run.id for run in batch} == {batch[0].id}
    assert results == [[{"text": CANARY, "n": n} for n in range(3)], f"{CANARY} 2"]
    assert CANARY.encode() not in stored


async def test_a_worker_without_a_codec_parks_a_batch_of_encrypted_items(make_app: MakeApp) -> None:
    sender, worker = make_app(codec=Aes({"k": NEW})), make_app()
    define(sender)
    define(worker)
    async with sender.connect():
        for n in range(3):
            run = await sender.start("together", {"text": CANARY, "n": n})
    async with worker:
        parked = await worker.get("together", run.id)
        while (await parked.status()).status != "paused":
            await asyncio.sleep(0.01)
        why = (await parked.describe()).why
    async with sender:
        run = await sender.get("together", run.id)
        await run.resume()
        result = await run.result(timeout="10 seconds")

    assert "PAYLOAD_UNREADABLE" in why
    assert result == [{"text": CANARY, "n": n} for n in range(3)]


async def test_a_new_key_encrypts_batches_and_streams_again(make_app: MakeApp) -> None:
    app = make_app(codec=Aes({"k1": OLD}))
    define(app)
    async with app:
        await (await app.start("talk", 2, id="t")).result()
        batch = [await app.start("together", {"text": CANARY, "n": n}) for n in range(2)]

    await reencrypt_values(make_app(codec=Aes({"k2": NEW, "k1": OLD})), lambda _line: None)

    app = make_app(codec=Aes({"k2": NEW}))
    define(app)
    async with app:
        await app.start("together", {"text": CANARY, "n": 2})
        assert await (await app.get("together", batch[0].id)).result() == [{"text": CANARY, "n": n} for n in range(3)]
        items = [item.value async for item in (await app.get("talk", "t")).stream("tokens")]
    assert items == [{"begin": CANARY}, *(f"{CANARY} {n}" for n in range(2))]


LARGE = "large " * 500


VALUES = ["a", LARGE, LARGE + "b", "c", {"blobs": ["not an id"]}, "d", LARGE]


def define_talk(app: Holdfast) -> None:
    @app.step
    async def say() -> None:
        out = step_info().stream("out")
        for value in VALUES:
            await out.write(value)

    @app.workflow
    async def talk(ctx: Context) -> None:
        await ctx.stream("out").write(LARGE)
        await ctx.stream("out").write("short")
        await say()
        await ctx.stream("out").write("end")


async def test_large_items_of_streams_are_blobs_in_rows_of_their_own_and_deleted_with_the_stream(
    make_app: MakeApp, tmp_path: Path
) -> None:
    options: dict[str, Any] = {"blobs": f"file://{tmp_path}/blobs", "blob_threshold": 1000}
    app = make_app(codec=Aes({"k1": OLD}), **options)
    define_talk(app)
    async with app:
        await blobs_of(app).collect()  # of earlier tests in the same schema
        run = await app.start("talk", id="a")
        await run.result()
        read = [item.value async for item in run.stream("out")]
        kept = await blobs_of(app).collect()
        after = [item.value async for item in run.stream("out", after=4)]
        written = len(files(tmp_path))
    await reencrypt_values(make_app(codec=Aes({"k2": NEW, "k1": OLD}), **options), lambda _line: None)
    app = make_app(codec=Aes({"k2": NEW}), **options)
    define_talk(app)
    async with app:
        run = await app.get("talk", "a")
        again = [item.value async for item in run.stream("out")]
        replaced = await blobs_of(app).collect()
        await run.delete()
        deleted = await blobs_of(app).collect()

    assert read == again == [LARGE, "short", *VALUES, "end"]
    assert after == read[4:]
    assert (written, kept, replaced, deleted) == (4, 0, 4, 4)
    assert files(tmp_path) == []


async def test_plain_items_that_look_like_references_are_stored_as_they_are(make_app: MakeApp) -> None:
    app = make_app(blobs="database", blob_threshold=1000)
    values = [{"blobs": ["0" * 32]}, '  {"blobs":["', LARGE, {"a": {"blobs": [1]}}, 7]

    @app.step
    async def speak() -> None:
        out = step_info().stream("out")
        for value in values:
            await out.write(value)

    @app.workflow
    async def talk(ctx: Context) -> None:
        await speak()

    async with app:
        run = await app.start(talk, id="a")
        await run.result()
        assert [item.value async for item in run.stream("out")] == values
        await run.delete()


async def test_retention_of_streams_deletes_the_blobs_of_their_items(make_app: MakeApp, tmp_path: Path) -> None:
    app = make_app(blobs=f"file://{tmp_path}/blobs", blob_threshold=1000)

    @app.workflow
    async def talk(ctx: Context) -> None:
        await ctx.stream("out").write(LARGE)

    async with app:
        run = await app.start(talk, id="a")
        await run.result()
        assert len(files(tmp_path)) == 1
        await payload_store(app).maintain(PruneStreams("talk", 0))
        await blobs_of(app).collect()
        assert [item async for item in run.stream("out")] == []
    assert files(tmp_path) == []
