"""Large values in blob stores: written before their commits, read when needed, deleted with their runs."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from apps import MakeApp
from holdfast import Context, Holdfast, Limits
from holdfast.cli.transfer import Address, export_file, import_file
from holdfast.errors import PayloadError, PayloadTooLargeError, StoreError
from holdfast.payloads import Aes
from holdfast.payloads.blobs import Blobs, FileBlobs
from holdfast.payloads.sealing import BlobWrite
from holdfast.payloads.store import PayloadStore

LARGE = "large " * 3000


def define(app: Holdfast) -> None:
    @app.step
    async def make(text: str) -> str:
        return text.upper()

    @app.workflow
    async def large(ctx: Context, text: str) -> str:
        made = await make(text)
        event = await ctx.wait_for_event("go", type="go")
        return made + event.payload  # type: ignore[no-any-return]

    @app.workflow
    async def outer(ctx: Context, text: str) -> int:
        child = await ctx.spawn(large, text, id=f"{ctx.info.instance_id}-child")
        await ctx.send(child.pid, "go", text)
        return len(await child.result())


def payload_store(app: Holdfast) -> PayloadStore:
    store = app._opened().store
    assert isinstance(store, PayloadStore)
    return store


def blobs_of(app: Holdfast) -> Blobs:
    blobs = payload_store(app).blob_store
    assert blobs is not None
    return blobs


def files(folder: Path) -> list[Path]:
    return [*folder.glob("blobs/*/*")]


async def finished(app: Holdfast, id: str) -> Any:
    run = await app.start("large", LARGE, id=id)
    await run.send_event("go", LARGE)
    return await run.result()


@pytest.fixture(scope="module")
def s3() -> Iterator[None]:
    import boto3
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(port=0, verbose=False)
    server.start()
    _host, port = server.get_host_and_port()
    names = {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}", "AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b",
        "AWS_REGION": "us-east-1", "AWS_DEFAULT_REGION": "us-east-1", "AWS_ALLOW_HTTP": "true",
    }  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        for name, value in names.items():
            patch.setenv(name, value)
        boto3.client("s3").create_bucket(Bucket="runs")
        yield
    server.stop()


@pytest.mark.parametrize("kind", ["file", "database", "s3"])
async def test_large_values_go_through_the_blob_store_and_are_deleted_with_their_run(
    make_app: MakeApp, tmp_path: Path, kind: str, request: pytest.FixtureRequest
) -> None:
    if kind == "s3":
        request.getfixturevalue("s3")
    url = {"file": f"file://{tmp_path}/blobs", "s3": f"s3://runs/{os.urandom(4).hex()}", "database": "database"}[kind]
    app = make_app(blobs=url, blob_threshold="1 KiB", codec=Aes({"k": b"k" * 32}) if kind == "file" else None)
    define(app)

    async with app:
        result = await finished(app, "a")
        family = await (await app.start("outer", LARGE, id="b")).result()
        history = await (await app.get("large", "a")).history()
        kept = await blobs_of(app).collect()
        bulk = app.bulk(_everything())
        await bulk.delete()
        deleted = await blobs_of(app).collect()

    assert result == LARGE.upper() + LARGE
    assert family == 2 * len(LARGE)
    assert history.steps[0].result == LARGE.upper()
    assert kept == 0
    assert deleted >= 9
    assert files(tmp_path) == []


def _everything() -> Any:
    from holdfast import Filter

    return Filter(status="complete")


async def test_the_exit_of_a_child_keeps_the_blob_of_its_output(make_app: MakeApp, tmp_path: Path) -> None:
    app = make_app(blobs=f"file://{tmp_path}/blobs", blob_threshold="1 KiB")
    define(app)

    async with app:
        await (await app.start("outer", LARGE, id="a")).result()
        await (await app.get("large", "a-child")).delete()
        await blobs_of(app).collect()
        history = await (await app.get("outer", "a")).history()

    outputs = [step.result for step in history.steps if step.type == "child"]
    assert LARGE.upper() + LARGE in outputs


@pytest.mark.above_the_store
async def test_a_missing_or_changed_blob_affects_only_its_run(make_app: MakeApp, tmp_path: Path) -> None:
    app = make_app(blobs=f"file://{tmp_path}/blobs", blob_threshold="1 KiB")
    define(app)

    async with app:
        for name in ("a", "b"):
            await finished(app, name)
            if name == "a":
                for number, path in enumerate(files(tmp_path)):
                    path.write_bytes(b"changed") if number % 2 else path.unlink()
        with pytest.raises(PayloadError, match=r"missing|damaged"):
            await (await app.get("large", "a")).result()
        other = await (await app.get("large", "b")).result()
        page = await app.list("large")

    assert other == LARGE.upper() + LARGE
    assert {item.id for item in page.items} == {"a", "b"}


@pytest.mark.above_the_store
async def test_orphans_are_deleted_by_age_and_referenced_blobs_never(make_app: MakeApp, tmp_path: Path) -> None:
    app = make_app(blobs=f"file://{tmp_path}/blobs", blob_threshold="1 KiB")
    define(app)

    async with app:
        await finished(app, "a")
        referenced = {*files(tmp_path)}
        await blobs_of(app).write([BlobWrite("f" * 32, b"of a crash"), BlobWrite("e" * 32, b"in flight")])
        for path in [*referenced, tmp_path / "blobs" / "ff" / ("f" * 32)]:
            os.utime(path, (1, 1))
        deleted = await blobs_of(app).collect()

    assert deleted == 1
    assert {*files(tmp_path)} == {*referenced, tmp_path / "blobs" / "ee" / ("e" * 32)}


@pytest.mark.above_the_store
async def test_a_blob_is_written_before_the_commit_that_refers_to_it(
    make_app: MakeApp, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = make_app(blobs=f"file://{tmp_path}/blobs", blob_threshold="1 KiB")
    define(app)
    failing = True
    write = FileBlobs._write

    def write_later(blobs: FileBlobs, id: str, data: bytes) -> None:
        if failing:
            raise StoreError("the disk of the blobs is full")
        write(blobs, id, data)

    monkeypatch.setattr(FileBlobs, "_write", write_later)
    async with app:
        with pytest.raises(StoreError, match="full"):
            await app.start("large", LARGE, id="a")
        none = (await app.list("large")).items
        failing = False
        result = await finished(app, "a")

    assert none == []
    assert result == LARGE.upper() + LARGE


async def test_blobs_of_the_database_are_carried_by_an_export(make_app: MakeApp, tmp_path: Path) -> None:
    options = {"blobs": "database", "blob_threshold": "1 KiB", "codec": Aes({"k": b"k" * 32})}
    app = make_app(**options)
    define(app)
    async with app:
        await finished(app, "a")

    def transfer() -> None:
        export_file(Address(app.url, app.schema), tmp_path / "runs.jsonl", lambda _line: None, abort=False)
        import_file(tmp_path / "runs.jsonl", Address(f"sqlite:///{tmp_path}/copy.db", None), lambda _line: None)

    await asyncio.to_thread(transfer)
    copy = Holdfast(f"sqlite:///{tmp_path}/copy.db", **options)  # type: ignore[arg-type]
    define(copy)
    async with copy:
        result = await (await copy.get("large", "a")).result()
        await (await copy.get("large", "a")).delete()
        deleted = await blobs_of(copy).collect()

    assert result == LARGE.upper() + LARGE
    assert deleted >= 4


@pytest.mark.above_the_store
async def test_the_limit_of_blobs_replaces_those_of_payloads(make_app: MakeApp) -> None:
    app = make_app(blobs="database", limits=Limits(blob=3_000_000))
    define(app)

    async with app:
        with pytest.raises(PayloadTooLargeError):
            await app.start("large", "x" * 3_000_001)
        run = await app.start("large", "x" * 2_000_000)
        await run.send_event("go", "")

        assert await run.result() == "X" * 2_000_000
