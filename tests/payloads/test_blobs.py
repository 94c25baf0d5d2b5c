"""Large values in blob stores: written before their commits, read when needed, deleted with their runs."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import apsw
import pytest

from apps import MakeApp
from holdfast import Context, Holdfast, Limits
from holdfast.cli.transfer import Address, export_file, import_file
from holdfast.errors import InstanceNotFoundError, PayloadError, PayloadTooLargeError, StoreError
from holdfast.payloads import Aes
from holdfast.payloads import blobs as payload_blobs
from holdfast.payloads.blobs import Blobs, FileBlobs
from holdfast.payloads.sealing import BlobWrite
from holdfast.payloads.store import PayloadStore
from holdfast.store.protocol.blobs import KnownBlobs

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


async def test_a_run_that_is_deleted_while_it_is_read_is_not_found(
    make_app: MakeApp, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = make_app(blobs=f"file://{tmp_path}/blobs", blob_threshold="1 KiB")
    define(app)

    async with app:
        await finished(app, "a")
        run, blobs = await app.get("large", "a"), blobs_of(app)
        read = blobs.read

        async def delete_and_read(ids: Sequence[str]) -> Any:
            monkeypatch.setattr(blobs, "read", read)
            await run.delete()
            await blobs.blob_store.delete(ids)
            return await read(ids)

        monkeypatch.setattr(blobs, "read", delete_and_read)
        with pytest.raises(InstanceNotFoundError):
            await run.result()


@pytest.mark.above_the_store
async def test_orphans_are_deleted_by_age_and_referenced_blobs_are_kept(make_app: MakeApp, tmp_path: Path) -> None:
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


@pytest.mark.above_the_store
async def test_the_folders_of_a_blob_are_synced_up_to_one_that_existed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[Path] = []
    sync = payload_blobs._sync

    def noted(folder: Path) -> None:
        synced.append(folder)
        sync(folder)

    monkeypatch.setattr(payload_blobs, "_sync", noted)
    for n in range(2):
        await FileBlobs(tmp_path / "srv" / "blobs", lambda: 0.0).write(f"{n}" * 32, b"data")

    blobs = tmp_path / "srv" / "blobs"
    assert {tmp_path, tmp_path / "srv", blobs, blobs / "00", blobs / "11"} == {*synced}
    assert synced[-1] == blobs  # the entry of the folder of the second blob


LIKE_REFERENCES = [{"blobs": [None]}, {"blobs": ["x"]}, {"blobs": 1, "b": {"blobs": [1]}}, {"value": {"blobs": ["y"]}}]


async def test_values_of_other_runs_that_look_like_references_are_not_counted(
    make_app: MakeApp, tmp_path: Path
) -> None:
    app = make_app(blobs=f"file://{tmp_path}/blobs", blob_threshold="1 KiB")

    @app.workflow
    async def child(ctx: Context, value: Any) -> Any:
        asked = await ctx.inbox.receive()
        await asked.reply(value)
        return value

    @app.workflow
    async def parent(ctx: Context, values: list[Any]) -> list[Any]:
        found = []
        for n, value in enumerate(values):
            spawned = await ctx.spawn(child, value, id=f"child-{n}")
            found += [await ctx.ask(spawned.pid, "value"), await spawned.result()]
        return found

    async with app:
        run = await app.start(parent, [*LIKE_REFERENCES, LARGE], id="p")
        found = await run.result(timeout=60)
        await app.bulk(_everything()).delete()
        await blobs_of(app).collect()
        left = await payload_store(app).inner.blobs(KnownBlobs(["x", "y", "1"]))

    assert found == [value for value in [*LIKE_REFERENCES, LARGE] for _ in range(2)]
    assert left == []
    assert files(tmp_path) == []


@pytest.mark.above_the_store
async def test_triggers_of_another_release_are_replaced(tmp_path: Path) -> None:
    app = Holdfast(f"sqlite:///{tmp_path}/app.db", blobs="database", blob_threshold="1 KiB")
    define(app)
    async with app:
        await finished(app, "a")
    with contextlib.closing(apsw.Connection(f"{tmp_path}/app.db")) as connection:
        name = "holdfast_blob_fact_value_insert"
        connection.execute(f"DROP TRIGGER {name}")
        connection.execute(f"CREATE TRIGGER {name} AFTER INSERT ON holdfast_fact BEGIN SELECT 1; END")

    async with app:
        await finished(app, "b")
    with contextlib.closing(apsw.Connection(f"{tmp_path}/app.db")) as connection:
        assert connection.execute("SELECT count(*) FROM holdfast_blob WHERE refs = 0").get == 0


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


@pytest.mark.parametrize("kind", ["file", "database"])
async def test_a_large_value_may_be_started_and_sent_in_a_transaction_of_the_caller(tmp_path: Path, kind: str) -> None:
    """The caller's transaction has the write lock of SQLite: a blob cannot be written to the database beside it."""
    blobs = f"file://{tmp_path}/blobs" if kind == "file" else "database"
    app = Holdfast(f"sqlite:///{tmp_path}/app.db?driver=sqlite3", blobs=blobs, blob_threshold="1 KiB")
    define(app)
    async with app, asyncio.timeout(60):
        with contextlib.closing(sqlite3.connect(tmp_path / "app.db", isolation_level=None)) as connection:
            connection.execute("BEGIN IMMEDIATE")
            run = await app.start("large", LARGE, id="a", connection=connection)
            await run.send_event("go", LARGE, connection=connection)
            connection.execute("COMMIT")
        result = await run.result()

    assert result == LARGE.upper() + LARGE
    assert len(files(tmp_path)) == (0 if kind == "database" else 4)


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
