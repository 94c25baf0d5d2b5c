"""Codecs and the stored options of runs and schedules, which contain a memo and the last result of a schedule."""

from __future__ import annotations

import asyncio

from apps import MakeApp
from holdfast import Context, Holdfast
from holdfast.cli.reencryption import reencrypt_values
from holdfast.payloads import Aes
from payloads.test_values_in_the_database import CANARY, NEW, OLD, stored_bytes


def define(app: Holdfast) -> Holdfast:
    @app.workflow
    async def noted(ctx: Context, rounds: int) -> str:
        if rounds:
            raise ctx.continue_as_new(rounds - 1)
        await ctx.run("scheduled", id="child", memo={"child": CANARY})
        await ctx.wait_for_event("go", type="go")
        return CANARY

    @app.workflow
    async def scheduled(ctx: Context) -> list[object]:
        return [ctx.info.last_result, CANARY]

    return app


async def started(app: Holdfast) -> None:
    """A run with a memo that waits, and a schedule one of whose runs has the result of an earlier one."""
    run = await app.start("noted", 1, id="a", memo={"note": CANARY})
    while (await run.status()).status != "waiting":
        await asyncio.sleep(0.01)
    await app.schedules.create("s", "scheduled", every="1 second", memo={"tick": CANARY})
    while await last_result(app) is None:
        await asyncio.sleep(0.05)
    await app.schedules.pause("s")


async def last_result(app: Holdfast) -> object:
    """The last result that the newest completed run of the schedule received."""
    runs = await app.list("scheduled", id_prefix="s-", status="complete")
    return None if not runs.items else (await (await app.get("scheduled", runs.items[0].id)).result())[0]


async def test_a_memo_and_a_last_result_are_not_stored_as_plain_text(make_app: MakeApp) -> None:
    async with define(make_app(codec=Aes({"k": NEW}))) as app:
        await started(app)
        tick = await app.schedules.trigger("s")
        await tick.result()
        memos = [
            (await (await app.get(*pid)).describe()).memo
            for pid in (("noted", "a"), ("scheduled", "child"), ("scheduled", tick.id))
        ]
        run = await app.get("noted", "a")
        await run.restart()
        restarted = await (await app.get("noted", "a")).describe()
        await app.schedules.update("s", every="2 hours")
        stored = await stored_bytes(app)

    assert memos == [{"note": CANARY}, {"child": CANARY}, {"tick": CANARY}]
    assert restarted.memo == {"note": CANARY}
    assert CANARY.encode() not in stored


async def test_values_in_options_are_encrypted_again_with_the_first_key(make_app: MakeApp) -> None:
    async with define(make_app()) as app:  # without a codec: the values are plain text
        await started(app)
    for key, keys in ((b"k1", {"k1": OLD}), (b"k2", {"k2": NEW, "k1": OLD})):
        app = make_app(codec=Aes(keys))
        await reencrypt_values(app, lambda _line: None)
        stored = await stored_bytes(app)
        plain = b'"memo":{' in stored or b'"lastResult":' in stored
        assert not plain or app.url.startswith("sqlite")  # free pages of the file keep old bytes
        assert b"aes:" + key in stored

    async with define(make_app(codec=Aes({"k2": NEW}))) as app:
        run = await app.get("noted", "a")
        await run.send_event("go")
        assert await run.result() == CANARY
        assert (await run.describe()).memo == {"note": CANARY}
        assert (await (await app.schedules.trigger("s")).result())[1] == CANARY


async def test_a_run_whose_options_cannot_be_decoded_is_parked_and_keeps_them(make_app: MakeApp) -> None:
    async with define(make_app(codec=Aes({"k1": OLD}))).connect() as app:
        await app.start("noted", 0, id="a", memo={"note": CANARY})
    async with define(make_app(codec=Aes({"k2": NEW}))) as app:
        run = await app.get("noted", "a")
        while (await run.status()).status != "paused":
            await asyncio.sleep(0.01)
        assert "PAYLOAD_UNREADABLE: " in (await run.describe()).why
        await run.restart()  # by a process without the key
        run = await app.get("noted", "a")
        while (await run.status()).status != "paused":
            await asyncio.sleep(0.01)
    async with define(make_app(codec=Aes({"k1": OLD, "k2": NEW}))) as app:
        run = await app.get("noted", "a")
        await run.resume()
        await run.send_event("go")
        assert await run.result() == CANARY
        assert (await run.describe()).memo == {"note": CANARY}
