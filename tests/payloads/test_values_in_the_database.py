"""Codecs from the code to the database: the stored form of values, reads with and without the key, re-encryption."""

from __future__ import annotations

import asyncio
import json
import os
import sqlite3
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import apsw
import pytest

from apps import MakeApp
from holdfast import ChainTask, Completed, Context, Holdfast, Outbound, Retry, Waiting
from holdfast.cli.reencryption import reencrypt_values
from holdfast.core import codec as json_codec
from holdfast.errors import ChildError, DefinitionError, InvalidOptionError, PayloadError, RunFailedError
from holdfast.payloads import Aes, Secret, Zstd
from holdfast.payloads import store as payload_store
from holdfast.ports import Runtime
from holdfast.store_url import make_doctor

OLD, NEW = b"o" * 32, b"n" * 32
CANARY = "canary-5f1c"


@dataclass
class Login:
    user: str
    password: Secret[str]


def define(app: Holdfast) -> None:
    @app.step
    async def use(text: str) -> str:
        return text + CANARY

    @app.workflow
    async def child(ctx: Context, text: str) -> str:
        return text * 40

    @app.workflow
    async def parent(ctx: Context, text: str) -> dict[str, Any]:
        ctx.log.info(f"the text is {text}", {"text": text})
        ctx.set_memo(note=CANARY)
        used = await use(text)
        if used.startswith("fail"):
            raise ValueError(f"wrong {CANARY}")
        made = await ctx.run(child, text, id=f"{ctx.info.instance_id}-child")
        event = await ctx.wait_for_event("go", type="go")
        return {"used": used, "made": len(made), "event": event.payload}

    @app.workflow
    async def again(ctx: Context, rounds: int) -> str:
        if rounds:
            raise ctx.continue_as_new(rounds - 1)
        return CANARY

    chain = app.chain("links")

    @chain.step("FIRST")
    async def first(task: ChainTask) -> Any:
        if task.kind == "RUN":
            return Waiting("go", timeout="1 hour", outbound=[Outbound("asked", {"for": CANARY})])
        return Completed({"event": task.event.payload, "params": task.params})  # type: ignore[union-attr]

    graph = app.graph("nodes")

    @graph.node
    async def made(params: list[str]) -> list[str]:
        return [CANARY + text for text in params]

    @graph.node(map=made)
    async def lengths(made: str) -> int:
        return len(made)

    @graph.node(after=[lengths])
    async def total(lengths: list[int]) -> dict[str, Any]:
        return {"total": sum(lengths), CANARY: True}


async def stored_bytes(app: Holdfast) -> bytes:
    """All values of the database."""
    if app.url.startswith("sqlite"):
        folder = Path(app.url.removeprefix("sqlite:///")).parent
        return b"".join(path.read_bytes() for path in folder.glob("app.db*"))
    import asyncpg

    connection = await asyncpg.connect(app.url)
    tables = "run", "fact", "event", "log", "outbox", "schedule", "blob_chunk", "chunk"
    found = [await connection.fetch(f'SELECT * FROM "{app.schema}".holdfast_{table}') for table in tables]
    await connection.close()
    return b"".join(
        v if isinstance(v, bytes) else str(v).encode() for rows in found for row in rows for v in row.values()
    )


@pytest.mark.parametrize("blobs", [None, "database"])
async def test_no_value_of_any_model_is_stored_as_plain_text(make_app: MakeApp, blobs: str | None) -> None:
    app = make_app(codec=[Zstd(), Aes({"k": NEW})], blobs=blobs, blob_threshold=100)
    define(app)
    delivered: list[Any] = []

    @app.outbox
    async def deliver(event: Any) -> None:
        delivered.append(event.payload)

    async with app:
        runs = [
            await app.start("parent", CANARY, id="a"),
            await app.start("again", 2, id="b"),
            await app.start("links", {"text": CANARY}, id="c"),
            await app.start("nodes", [CANARY, "x"], id="d"),
        ]
        await runs[0].send_event("go", {"text": CANARY})
        await runs[2].send_event("go", [CANARY])
        results = [await run.result() for run in runs]
        with pytest.raises(Exception, match="wrong"):
            await (await app.start("parent", f"fail {CANARY}", id="e")).result()
        async with asyncio.timeout(60):
            while not delivered:
                await asyncio.sleep(0.01)
        stored = await stored_bytes(app)
        lines = await runs[0].logs()

    assert results[0] == {"used": CANARY * 2, "made": len(CANARY) * 40, "event": {"text": CANARY}}
    assert results[1:3] == [CANARY, {"event": [CANARY], "params": {"text": CANARY}}]
    assert results[3]["total"] == {"total": 3 * len(CANARY) + 1, CANARY: True}
    assert delivered == [{"for": CANARY}]
    assert [line.message for line in lines if not line.is_replay] == [f"the text is {CANARY}"]
    assert CANARY.encode() not in stored


async def test_values_from_before_a_codec_and_of_an_old_key_stay_readable(make_app: MakeApp) -> None:
    for options, name in (({}, "plain"), ({"codec": Zstd()}, "packed"), ({"codec": Aes({"k1": OLD})}, "old")):
        app = make_app(**options)
        define(app)
        async with app:
            await (await app.start("again", 0, id=name)).result()

    app = make_app(codec=[Zstd(), Aes({"k2": NEW, "k1": OLD})])
    define(app)
    async with app:
        results = [await (await app.get("again", name)).result() for name in ("plain", "packed", "old")]

    assert results == [CANARY] * 3


async def test_a_run_without_its_key_is_parked_and_continues_once_the_key_is_configured(make_app: MakeApp) -> None:
    app = make_app(codec=Aes({"k1": OLD}))
    define(app)
    async with app:
        run = await app.start("parent", "text", id="a")
        while (await run.status()).status != "waiting":
            await asyncio.sleep(0.01)

    keyless = make_app(codec=Aes({"k2": NEW}))
    define(keyless)
    async with keyless:
        run = await keyless.get("parent", "a")
        await run.send_event("go", 1)
        while (await run.status()).status != "paused":
            await asyncio.sleep(0.01)
        other = await (await keyless.start("again", 0)).result()
        shown = await run.describe()

    app = make_app(codec=Aes({"k2": NEW, "k1": OLD}))
    define(app)
    async with app:
        run = await app.get("parent", "a")
        await run.resume()
        result = await run.result()

    assert other == CANARY
    assert "key 'k1'" in shown.why
    assert "key 'k1'" in str(shown.params)
    assert result["event"] == 1


async def test_a_process_without_keys_shows_placeholders_and_raises_for_results(make_app: MakeApp) -> None:
    app = make_app(codec=Aes({"k1": OLD}))
    define(app)
    async with app:
        await (await app.start("again", 0, id="a")).result()
        with pytest.raises(Exception, match="wrong"):
            await (await app.start("parent", "fail", id="b")).result()

    keyless = make_app()
    define(keyless)
    async with keyless.connect():
        run = await keyless.get("again", "a")
        described = await run.describe()
        failed = await (await keyless.get("parent", "b")).describe()
        page = await keyless.list("parent", error="ValueError")
        history = await (await keyless.get("parent", "b")).history()
        with pytest.raises(PayloadError, match="aes:k1"):
            await run.result()

    assert "aes:k1" in described.output["$unreadable"]
    assert failed.error is not None
    assert failed.error.name == "ValueError"
    assert CANARY not in failed.error.message
    assert [item.id for item in page.items] == ["b"]
    assert "$unreadable" in history.steps[0].result


@pytest.mark.above_the_store
async def test_a_value_that_was_moved_or_changed_is_refused(make_app: MakeApp) -> None:
    import apsw

    app = make_app(codec=Aes({"k1": OLD}))
    define(app)
    async with app:
        for name in ("a", "b", "c"):
            await (await app.start("again", 0, id=name)).result()
    connection = apsw.Connection(app.url.removeprefix("sqlite:///"))
    output = "(SELECT output FROM holdfast_run WHERE instance_id = 'a')"
    connection.execute(f"UPDATE holdfast_run SET output = {output} WHERE instance_id = 'b'")
    content = json.loads(connection.execute("SELECT output FROM holdfast_run WHERE instance_id = 'c'").get)
    content["data"] = content["data"][:-4] + ("AAAA" if content["data"][-4:] != "AAAA" else "BBBB")
    connection.execute(
        "UPDATE holdfast_run SET output = ? WHERE instance_id = 'c'", ((" " + json.dumps(content)).encode(),)
    )
    connection.close()

    async with app:
        assert await (await app.get("again", "a")).result() == CANARY
        with pytest.raises(PayloadError, match="belongs to again/a"):
            await (await app.get("again", "b")).result()
        with pytest.raises(PayloadError, match="damaged"):
            await (await app.get("again", "c")).result()


async def test_a_reply_by_hand_is_encrypted_and_read_by_the_run_that_asked(make_app: MakeApp) -> None:
    app = make_app(codec=[Zstd(), Aes({"k": NEW})], blobs="database", blob_threshold=50)

    @app.workflow
    async def busy(ctx: Context) -> None:
        await ctx.wait_for_event("go", type="go")

    @app.workflow
    async def asking(ctx: Context) -> list[str]:
        return [await ctx.ask("busy/b", "question", n) for n in range(2)]

    async with app:
        answering, run = await app.start(busy, id="b"), await app.start(asking, id="a")
        for number, value in enumerate((CANARY, CANARY * 20)):  # in its row, and as a blob
            async with asyncio.timeout(60):
                while len(found := (await answering.history()).events) <= number:
                    await asyncio.sleep(0.01)
            await answering.reply(found[-1].id, value)
        results = await run.result(timeout=60)
        stored = await stored_bytes(app)

    assert results == [CANARY, CANARY * 20]
    assert CANARY.encode() not in stored


async def test_a_retry_and_a_fork_read_the_values_of_their_origin(make_app: MakeApp) -> None:
    app = make_app(codec=[Zstd(), Aes({"k1": OLD})], blobs="database", blob_threshold=50)
    failing = True

    @app.step
    async def first(text: str) -> str:
        return text

    @app.step
    async def second() -> str:
        if failing:
            raise RuntimeError("not yet")
        return "second"

    @app.workflow
    async def both(ctx: Context, text: str) -> list[Any]:
        event = await ctx.wait_for_event("go", type="go")
        result = await first(text)
        return [result, event.payload, await ctx.do("second", second.fn, retry=Retry(limit=0))]

    async with app:
        run = await app.start(both, CANARY * 20, id="a", memo={"note": CANARY})
        await run.send_event("go", CANARY * 30)
        with pytest.raises(Exception, match="not yet"):
            await run.result()
        failing = False
        fork = await run.fork(before="second", id="forked")
        forked = await fork.result()
        await run.retry()
        retried = await run.result()
        described = await fork.describe()

    assert forked == retried == [CANARY * 20, CANARY * 30, "second"]
    assert described.memo == {"note": CANARY}


@pytest.mark.above_the_store
async def test_a_secret_is_hidden_wherever_a_run_is_shown(make_app: MakeApp, caplog: pytest.LogCaptureFixture) -> None:
    app = make_app(codec=Aes({"k1": OLD}))

    @app.workflow
    async def enter(ctx: Context, login: Login) -> Secret[str]:
        ctx.log.info(f"login {login}")
        await ctx.wait_for_event("go", type="go")
        return Secret(login.password.reveal() + "!")

    async with app:
        run = await app.start(enter, {"user": "ann", "password": CANARY}, id="a")  # type: ignore[arg-type]
        while (await run.status()).status != "waiting":
            await asyncio.sleep(0.01)
        shown = [await run.describe(), await run.stack(), await run.logs(), await run.history()]
        await run.send_event("go")
        result = await run.result()
        shown += [await run.describe(), await run.status()]

    assert result.reveal() == CANARY + "!"
    assert CANARY not in str(shown) + caplog.text
    assert CANARY.encode() not in await stored_bytes(app)


@pytest.mark.above_the_store
async def test_a_secret_without_a_key_is_refused_when_the_app_opens(make_app: MakeApp) -> None:
    app = make_app(codec=Zstd())

    @app.step
    async def enter(login: Login) -> None: ...

    with pytest.raises(DefinitionError, match="step enter has a Secret"):
        async with app:
            pass


@pytest.mark.above_the_store
def test_wrong_codecs_are_refused() -> None:
    for wrong in (lambda: Aes({}), lambda: Aes({"k": b"short"}), lambda: Zstd(99)):
        with pytest.raises(InvalidOptionError):
            wrong()
    with pytest.raises(InvalidOptionError, match="encryption comes last"):
        Holdfast("sqlite://", codec=[Aes({"k": OLD}), Zstd()])
    for url in ("ftp://x", "s3://", "s3:///prefix", "file:///", "file://folder"):
        with pytest.raises(InvalidOptionError, match="blobs="):
            Holdfast("sqlite://", blobs=url)
    for codec in (Zstd, [Zstd(), Aes]):  # classes have the methods, too
        with pytest.raises(InvalidOptionError, match="is not a codec"):
            Holdfast("sqlite://", codec=codec)  # type: ignore[arg-type]


@pytest.mark.above_the_store
def test_nonces_do_not_repeat() -> None:
    aes = Aes({"k": OLD})

    nonces = {encoded[1][:12] for _ in range(20_000) if (encoded := aes.encode(b"x", b"place"))}

    assert len(nonces) == 20_000


@pytest.mark.above_the_store
def test_compression_is_used_only_where_it_makes_the_value_smaller() -> None:
    zstd = Zstd()

    assert zstd.encode(os.urandom(1000), b"") is None
    packed = zstd.encode(b"a" * 1000, b"")
    assert packed is not None
    assert len(packed[1]) < 100
    assert zstd.decode(*packed, b"") == b"a" * 1000
    with pytest.raises(PayloadError, match="damaged"):
        zstd.decode("zstd", b"not zstd", b"")


@pytest.mark.above_the_store
def test_a_user_value_is_never_taken_for_an_envelope() -> None:
    for value in (" {", {"payload": 1, "codec": ["aes:k"]}, ' {"payload":1}'):
        data = json_codec.encode(value, what="value")
        assert not data.startswith(b" ")
        assert json_codec.plain(data) == value


async def test_values_are_encrypted_again_with_the_first_key(make_app: MakeApp) -> None:
    for options in ({}, {"codec": [Zstd(), Aes({"k1": OLD})], "blobs": "database", "blob_threshold": 100}):
        app = make_app(**options)
        define(app)
        async with app:
            run = await app.start("parent", CANARY, id=f"a{len(options)}", memo={"note": CANARY})
            await run.send_event("go", CANARY)
            await run.result()
    rotated: dict[str, Any] = {"blobs": "database", "blob_threshold": 100}

    app = make_app(codec=[Zstd(), Aes({"k2": NEW, "k1": OLD})], **rotated)
    said: list[str] = []
    complete = await reencrypt_values(app, said.append)
    again: list[str] = []
    await reencrypt_values(app, again.append)

    app = make_app(codec=[Zstd(), Aes({"k2": NEW})], **rotated)
    define(app)
    async with app:
        results = [await (await app.get("parent", name)).result() for name in ("a0", "a3")]
        histories = [await (await app.get("parent", name)).history() for name in ("a0", "a3")]
    assert complete
    assert again[-1] == "0 values were encrypted again"
    assert [result["event"] for result in results] == [CANARY] * 2
    assert "$unreadable" not in str(histories)
    stored = await stored_bytes(app)
    assert b"aes:k1" not in stored or app.url.startswith("sqlite")


def _with_secret_workflow(app: Holdfast, keys: dict[str, bytes]) -> Holdfast:
    @app.workflow(codec=[Aes(keys)])
    async def secret(ctx: Context, text: str) -> str:
        return text

    @app.workflow
    async def plain(ctx: Context, text: str) -> str:
        return text

    return app


async def test_values_of_a_workflow_with_a_codec_of_its_own_are_encrypted_again(make_app: MakeApp) -> None:
    async with _with_secret_workflow(make_app(), {"k1": OLD}) as app:
        for name in ("secret", "plain"):
            await (await app.start(name, CANARY, id="a")).result()

    said: list[str] = []
    assert await reencrypt_values(_with_secret_workflow(make_app(), {"k2": NEW, "k1": OLD}), said.append)

    async with _with_secret_workflow(make_app(), {"k2": NEW}) as app:
        results = [await (await app.get(name, "a")).result() for name in ("secret", "plain")]
    assert said[-1] == "2 values were encrypted again"
    assert results == [CANARY, CANARY]


async def test_values_of_an_app_without_any_key_are_not_encrypted_again(make_app: MakeApp) -> None:
    with pytest.raises(InvalidOptionError, match="no key"):
        await reencrypt_values(make_app(codec=Zstd()), lambda _line: None)


async def test_an_event_or_a_node_without_its_key_parks_the_run_and_is_processed_after_the_resume(
    make_app: MakeApp,
) -> None:
    def release(**keys: bytes) -> Holdfast:
        app = make_app(codec=Aes(keys))

        @app.workflow
        async def waiter(ctx: Context) -> str:
            return str((await ctx.wait_for_event("go", type="go", payload=str)).payload)

        @app.workflow
        async def listener(ctx: Context) -> str:
            async with asyncio.TaskGroup() as group:
                received = group.create_task(ctx.listen("go", payload=str).receive())
            return received.result()

        graph = app.graph("graph")

        @graph.node
        async def node(params: str) -> str:
            return params

        return app

    inputs = {"waiter": None, "listener": None, "graph": "in"}
    async with release(k1=OLD).connect() as app:
        for workflow, params in inputs.items():
            await app.start(workflow, params, id="a")
    async with release(k2=NEW).connect() as app:
        for workflow in ("waiter", "listener"):
            await (await app.get(workflow, "a")).send_event("go", "sent")
    async with release(k3=CANARY.encode().ljust(32)[:32]) as app:
        for workflow in inputs:
            run = await app.get(workflow, "a")
            while (await run.status()).status != "paused":
                await asyncio.sleep(0.01)
            assert "PAYLOAD_UNREADABLE: " in (await run.describe()).why
    async with release(k1=OLD, k2=NEW) as app:
        results = []
        for workflow in inputs:
            run = await app.get(workflow, "a")
            await run.resume()
            results.append(await run.result(timeout=60))

    assert results == ["sent", "sent", {"node": "in"}]


async def test_values_of_more_runs_than_the_store_remembers_are_readable(
    make_app: MakeApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(payload_store, "_KNOWN_RUNS", 1)
    app = make_app(codec=Aes({"k": NEW}))
    define(app)
    async with app:
        runs = [await app.start("again", 0, id=f"a{n}") for n in range(8)]
        results = [await run.result() for run in runs]
    define(again := make_app(codec=Aes({"k": NEW})))
    async with again.connect():
        stored = [await (await again.get("again", f"a{n}")).result() for n in range(8)]

    assert results == stored == [CANARY] * 8


async def _values_in_rows(app: Holdfast) -> bytes:
    """All values of the rows. Unlike ``stored_bytes`` without the free pages of a file, which keep replaced values."""
    if not app.url.startswith("sqlite"):
        return await stored_bytes(app)
    with closing(sqlite3.connect(app.url.removeprefix("sqlite:///"))) as connection:
        tables = "run", "fact", "event", "log", "outbox", "schedule", "blob_chunk", "chunk"
        rows = [row for table in tables for row in connection.execute(f"SELECT * FROM holdfast_{table}")]
    return b"".join(value if isinstance(value, bytes) else str(value).encode() for row in rows for value in row)


def _family(app: Holdfast) -> Holdfast:
    """A parent that receives the output, the error and the reply of other runs before there is a codec."""

    @app.workflow
    async def worker(ctx: Context, text: str) -> dict[str, str]:
        if text.startswith("fail"):
            raise ValueError(f"wrong {text}")
        return {"output": CANARY, "error": CANARY, "value": CANARY}

    @app.workflow
    async def server(ctx: Context) -> None:
        question = await ctx.listen("add", messages=True).receive()
        await question.reply({"value": CANARY, "output": {"payload": 1}})

    @app.workflow
    async def family(ctx: Context, text: str) -> dict[str, Any]:
        ctx.log.info(f"message {text}")
        good = await ctx.spawn(worker, text, id="good")
        bad = await ctx.spawn(worker, f"fail {text}", id="bad")
        asked = asyncio.create_task(ctx.ask("server/s", "add", text))
        await ctx.wait_for_event("go", type="go")
        with pytest.raises(ChildError) as failed:
            await bad.result()
        return {"good": await good.result(), "bad": str(failed.value), "answer": await asked}

    return app


async def test_values_from_before_the_codec_that_other_runs_received_are_encrypted(make_app: MakeApp) -> None:
    async with _family(make_app()) as app:
        server = await app.start("server", id="s")
        family = await app.start("family", CANARY, id="f")
        await server.result(timeout=60)
        while (await family.status()).status != "waiting":
            await asyncio.sleep(0.01)
        await (await app.get("worker", "good")).result(timeout=60)
        with pytest.raises(RunFailedError):
            await (await app.get("worker", "bad")).result(timeout=60)
    assert CANARY.encode() in await _values_in_rows(app)

    encrypted = make_app(codec=[Zstd(), Aes({"k": NEW})])
    said: list[str] = []
    assert await reencrypt_values(_family(encrypted), said.append)
    stored = await _values_in_rows(encrypted)
    again: list[str] = []
    await reencrypt_values(_family(make_app(codec=[Zstd(), Aes({"k": NEW})])), again.append)

    assert CANARY.encode() not in stored
    assert again[-1] == "0 values were encrypted again"
    async with _family(make_app(codec=[Zstd(), Aes({"k": NEW})])) as app:
        run = await app.get("family", "f")
        await run.send_event("go")
        result = await run.result(timeout=60)
        failed = await app.list(workflow="worker", error="ValueError")
        lines = await run.logs()
    assert result["good"] == {"output": CANARY, "error": CANARY, "value": CANARY}
    assert f"wrong fail {CANARY}" in result["bad"]
    assert result["answer"] == {"value": CANARY, "output": {"payload": 1}}
    assert [item.id for item in failed.items] == ["bad"]
    assert f"message {CANARY}" in [line.message for line in lines]


@pytest.mark.above_the_store
async def test_commands_on_a_file_of_sqlite3_do_not_open_it_with_apsw(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process with two copies of SQLite on one file loses commits: the app itself has the file open."""

    def refuse(*_arguments: Any, **_options: Any) -> None:
        raise AssertionError("opened with apsw")

    monkeypatch.setattr(apsw, "Connection", refuse)
    app = _family(Holdfast(f"sqlite:///{tmp_path}/app.db?driver=sqlite3"))
    async with app:
        await (await app.start("worker", CANARY, id="w")).result(timeout=60)

    encrypted = Holdfast(app.url, codec=[Aes({"k": NEW})])
    assert await reencrypt_values(_family(encrypted), lambda _line: None)
    doctor = make_doctor(app.url, None, Runtime())
    assert await doctor.open() is None
    findings = await doctor.settings(1000)
    await doctor.close()
    assert f"SQLite {sqlite3.sqlite_version}," in findings[0].text
    async with _family(Holdfast(app.url, codec=[Aes({"k": NEW})])) as app:
        assert (await (await app.get("worker", "w")).result())["output"] == CANARY
