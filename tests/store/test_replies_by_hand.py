"""Replies by hand: an operator replies to an ask in place of the code of the run that was asked."""

from __future__ import annotations

import json

import pytest

from holdfast.store.protocol import (
    Audit,
    AuditQuery,
    Claim,
    ControlResult,
    RepliesQuery,
    Reply,
    ReplyByHand,
    ReplyQuery,
    ReplyToEvent,
)
from store.world import FLOW, World, pid, waiting

SEVEN = Reply(True, b"7")


async def _asking_pair(world: World) -> tuple[Claim, Claim]:
    """Run a, which asked run b, and has no owner; run b with event 1, an ask."""
    a, b = await world.start_claimed("a"), await world.start_claimed("b")
    await world.commit(a, then=waiting("something else", run_at=world.now() + 10**6))
    await world.send("ask", "b", payload=b"1", dedup="k", sender=pid("a"), ask="q1")
    return a, b


async def _reply(
    world: World, reply: Reply = SEVEN, *, id: str = "b", number: int = 0, event: int = 1
) -> ControlResult:
    return await world.store.control(ReplyByHand(FLOW, id, number, event, reply), Audit("reply", "ann", "by phone"))


@pytest.mark.parametrize("reply", [SEVEN, Reply(False, b'"no"'), Reply(True, None)])
async def test_a_reply_by_hand_is_stored_with_the_ask_and_wakes_the_asking_run(world: World, reply: Reply) -> None:
    a, b = await _asking_pair(world)
    assert await world.store.read(RepliesQuery(b.run, (1,))) == {}

    answer = await _reply(world, reply)

    assert (answer.refused, answer.affected.woken, answer.affected.work) == (False, [a.run], True)
    assert await world.store.read(ReplyQuery(b.run, "k")) == reply
    assert await world.store.read(RepliesQuery(b.run, (1, 2))) == {1: reply}
    [event] = await world.undelivered(a.run)
    value = None if reply.value is None else json.loads(reply.value)
    assert (event.type, event.sender) == ("@reply", pid("b"))
    assert json.loads(event.payload or b"") == {"ask": "q1", "ok": reply.ok, "value": value}
    [record] = await world.store.read(AuditQuery())
    assert (record.action, record.target, record.reason, record.outcome) == ("reply", pid("b"), "by phone", "done")


async def test_the_first_reply_stays(world: World) -> None:
    a, b = await _asking_pair(world)
    await _reply(world)

    again, other = await _reply(world), await _reply(world, Reply(True, b"8"))
    await world.operate(b, ReplyToEvent(1, Reply(True, b"9")))

    assert (again.refused, other.refused) == (False, True)  # a repeated call is the call itself
    assert await world.store.read(ReplyQuery(b.run, "k")) == SEVEN
    assert len(await world.undelivered(a.run)) == 1


async def test_only_an_ask_of_the_current_run_that_is_open_gets_a_reply(world: World) -> None:
    a, b = await _asking_pair(world)
    await world.send("plain", "b")

    assert (await _reply(world, id="nobody")).run is None
    for refused in (await _reply(world, event=2), await _reply(world, event=3), await _reply(world, number=1)):
        assert refused.refused
    await world.finish(b)
    assert (await _reply(world)).refused

    assert await world.undelivered(a.run) == []
    assert await world.store.read(RepliesQuery(b.run, (1, 2, 3))) == {}
