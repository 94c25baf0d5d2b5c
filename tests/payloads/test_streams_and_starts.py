"""Codecs with streams and with starts that the database gathers: items are sealed one by one."""

from __future__ import annotations

import asyncio
from typing import Any

from apps import MakeApp
from holdfast import Batch, Context, Debounce, Holdfast, step_info
from holdfast.cli.reencryption import reencrypt_values
from holdfast.payloads import Aes, Zstd

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
