"""Heartbeats of attempts: the latest of each attempt is kept, under the fence of the claim."""

from __future__ import annotations

from holdfast.store.protocol import Fact, FactState, Heartbeat
from store.world import World


def heartbeat(key: str, attempt: int, at: int, value: bytes | None) -> Fact:
    return Fact(
        FactState.HEARTBEAT, key, attempt, "do", at, 1, value=value, attempts=attempt, max_attempts=6, timeout_ms=900
    )


async def test_a_heartbeat_of_an_attempt_replaces_the_previous_one(world: World) -> None:
    task = await world.start_claimed("a")
    first, second, other = heartbeat("s", 1, 5, b"1"), heartbeat("s", 1, 6, b"2"), heartbeat("s", 2, 7, None)

    await world.store.record_heartbeats([Heartbeat(task, first)])
    await world.store.record_heartbeats([Heartbeat(task, second), Heartbeat(task, other)])

    assert await world.facts(task.run, FactState.HEARTBEAT) == [second, other]


async def test_the_later_of_two_heartbeats_in_a_batch_is_kept(world: World) -> None:
    task = await world.start_claimed("a")

    await world.store.record_heartbeats(
        [Heartbeat(task, heartbeat("s", 1, 5, b"1")), Heartbeat(task, heartbeat("s", 1, 6, b"2"))]
    )

    assert [fact.value for fact in await world.facts(task.run)] == [b"2"]


async def test_heartbeats_of_a_lost_claim_are_ignored(world: World) -> None:
    task, owned = await world.start_claimed("a"), await world.start_claimed("b")
    stale = task._replace(epoch=task.epoch + 1), task._replace(owner="another")

    await world.store.record_heartbeats([Heartbeat(one, heartbeat("s", 1, 5, b"1")) for one in (*stale, owned)])

    assert await world.facts(task.run) == []
    assert len(await world.facts(owned.run)) == 1


async def test_recording_no_heartbeats_changes_nothing(world: World) -> None:
    await world.store.record_heartbeats([])


async def test_a_heartbeat_key_can_be_any_text(world: World) -> None:
    task = await world.start_claimed("a")
    odd = heartbeat("s\0\ud800é", 1, 5, b'"x"')

    await world.store.record_heartbeats([Heartbeat(task, odd)])

    assert await world.facts(task.run, FactState.HEARTBEAT, [odd.key]) == [odd]
