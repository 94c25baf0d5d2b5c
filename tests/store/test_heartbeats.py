"""Heartbeats of attempts: the latest one of each, under the fence of the claim."""

from __future__ import annotations

from holdfast.store.protocol import Fact, FactState, Heartbeat
from store.world import World


def beat(key: str, attempt: int, at: int, value: bytes | None) -> Fact:
    return Fact(
        FactState.HEARTBEAT, key, attempt, "do", at, 1, value=value, attempts=attempt, max_attempts=6, timeout_ms=900
    )


async def test_the_latest_heartbeat_of_an_attempt_replaces_the_one_before(world: World) -> None:
    task = await world.begin("a")
    first, second, other = beat("s", 1, 5, b"1"), beat("s", 1, 6, b"2"), beat("s", 2, 7, None)

    await world.store.record_heartbeats([Heartbeat(task, first)])
    await world.store.record_heartbeats([Heartbeat(task, second), Heartbeat(task, other)])

    assert await world.store.facts(task.run, FactState.HEARTBEAT) == [second, other]


async def test_of_two_heartbeats_of_one_attempt_in_a_batch_the_later_is_kept(world: World) -> None:
    task = await world.begin("a")

    await world.store.record_heartbeats(
        [Heartbeat(task, beat("s", 1, 5, b"1")), Heartbeat(task, beat("s", 1, 6, b"2"))]
    )

    assert [fact.value for fact in await world.store.facts(task.run)] == [b"2"]


async def test_heartbeats_of_a_lost_claim_are_passed_over(world: World) -> None:
    task, held = await world.begin("a"), await world.begin("b")
    stale = task._replace(epoch=task.epoch + 1), task._replace(owner="another")

    await world.store.record_heartbeats([Heartbeat(one, beat("s", 1, 5, b"1")) for one in (*stale, held)])

    assert await world.store.facts(task.run) == []
    assert len(await world.store.facts(held.run)) == 1


async def test_nothing_to_record_is_nothing(world: World) -> None:
    await world.store.record_heartbeats([])


async def test_keys_may_be_any_text(world: World) -> None:
    task = await world.begin("a")
    odd = beat("s\0\ud800é", 1, 5, b'"x"')

    await world.store.record_heartbeats([Heartbeat(task, odd)])

    assert await world.store.facts(task.run, FactState.HEARTBEAT, [odd.key]) == [odd]
