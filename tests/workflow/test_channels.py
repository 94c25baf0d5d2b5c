"""Channels and select: order, meeting, closing, and that nothing is lost or left behind."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import ChannelClosed, InvalidOptionError
from holdfast.workflow.channels import Channel, Selected, select


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


def spawn(coro: Any) -> asyncio.Task[Any]:
    return asyncio.ensure_future(coro)


def waiting(channel: Channel[Any]) -> int:
    return len(channel._receivers) + len(channel._senders)


async def test_a_send_without_capacity_meets_its_receiver() -> None:
    ch: Channel[int] = Channel()
    sending = spawn(ch.send(1))
    await settle()
    assert not sending.done()
    assert await ch.receive() == 1
    await sending


async def test_a_receiver_that_waits_is_met() -> None:
    ch: Channel[int] = Channel()
    receiving = spawn(ch.receive())
    await settle()
    await ch.send(1)
    assert await receiving == 1


async def test_a_send_within_the_capacity_does_not_wait() -> None:
    ch: Channel[int] = Channel(2)
    await ch.send(1)
    await ch.send(2)
    third = spawn(ch.send(3))
    await settle()
    assert (len(ch), third.done()) == (2, False)
    assert await ch.receive() == 1
    await third
    assert [await ch.receive(), await ch.receive()] == [2, 3]


async def test_receivers_are_served_in_the_order_they_came() -> None:
    ch: Channel[int] = Channel()
    tasks = [spawn(ch.receive()) for _ in range(3)]
    await settle()
    for n in range(3):
        await ch.send(n)
    assert [await task for task in tasks] == [0, 1, 2]


async def test_senders_are_served_in_the_order_they_came() -> None:
    ch: Channel[int] = Channel()
    tasks = [spawn(ch.send(n)) for n in range(3)]
    await settle()
    assert [await ch.receive() for _ in range(3)] == [0, 1, 2]
    await asyncio.gather(*tasks)


async def test_what_was_sent_before_the_close_is_still_received() -> None:
    ch: Channel[int] = Channel(3)
    await ch.send(1)
    await ch.send(2)
    ch.close()
    ch.close()
    assert [item async for item in ch] == [1, 2]
    with pytest.raises(ChannelClosed, match="received"):
        await ch.receive()


async def test_after_the_close_nothing_can_be_sent() -> None:
    ch: Channel[int] = Channel(3)
    ch.close()
    with pytest.raises(ChannelClosed, match="sent"):
        await ch.send(1)


async def test_whoever_waits_is_told_of_the_close() -> None:
    ch: Channel[int] = Channel()
    receiving = [spawn(ch.receive()), spawn(ch.receive())]
    other: Channel[int] = Channel()
    sending = spawn(other.send(1))
    await settle()
    ch.close()
    other.close()
    for task in (*receiving, sending):
        with pytest.raises(ChannelClosed):
            await task


async def test_none_is_a_value() -> None:
    ch: Channel[None] = Channel(1)
    await ch.send(None)
    assert await select(ch) == Selected(ch, None, ok=True)


@pytest.mark.parametrize("bad", [-1, 1.5, "1", None, True])
def test_a_bad_capacity_is_refused(bad: Any) -> None:
    with pytest.raises(InvalidOptionError, match="capacity"):
        Channel(bad)


# --- select


async def test_the_first_listed_of_those_that_are_ready_wins() -> None:
    one: Channel[int] = Channel(1)
    two: Channel[int] = Channel(1)
    await one.send(1)
    await two.send(2)
    assert await select(two, one) == Selected(two, 2, ok=True)
    assert await select(two, one) == Selected(one, 1, ok=True)


async def test_a_send_is_a_case_like_any_other() -> None:
    full: Channel[int] = Channel()
    free: Channel[int] = Channel(1)
    assert await select(full.sending(1), free.sending(2)) == Selected(free, None, ok=True)
    assert await free.receive() == 2


async def test_a_closed_channel_is_ready() -> None:
    closed: Channel[int] = Channel()
    closed.close()
    assert await select(Channel(), closed) == Selected(closed, None, ok=False)
    assert await select(Channel(), closed.sending(1)) == Selected(closed, None, ok=False)


async def test_with_a_default_it_does_not_wait() -> None:
    assert await select(Channel(), default=True) == Selected(None, None, ok=False)
    assert await select(default=True) == Selected(None, None, ok=False)


async def test_one_of_several_waits_wins_and_the_others_leave_nothing_behind() -> None:
    one: Channel[int] = Channel()
    two: Channel[int] = Channel()
    three: Channel[int] = Channel()
    choosing = spawn(select(one, two, three.sending(7)))
    await settle()
    await two.send(2)
    assert await choosing == Selected(two, 2, ok=True)
    assert waiting(one) == waiting(two) == waiting(three) == 0
    assert await select(three, default=True) == Selected(None, None, ok=False)


async def test_two_sends_in_one_moment_do_not_both_meet_one_select() -> None:
    one: Channel[int] = Channel()
    two: Channel[int] = Channel()
    choosing = spawn(select(one, two))
    await settle()
    first, second = spawn(one.send(1)), spawn(two.send(2))
    await settle()
    assert await choosing == Selected(one, 1, ok=True)
    assert (first.done(), second.done()) == (True, False)
    assert await two.receive() == 2
    await second


async def test_a_select_may_list_a_channel_twice() -> None:
    ch: Channel[int] = Channel()
    choosing = spawn(select(ch, ch))
    await settle()
    await ch.send(1)
    assert await choosing == Selected(ch, 1, ok=True)
    assert waiting(ch) == 0


async def test_a_select_can_send_to_another_select() -> None:
    ch: Channel[int] = Channel()
    choosing = spawn(select(ch.sending(5), Channel()))
    await settle()
    assert await select(ch) == Selected(ch, 5, ok=True)
    assert await choosing == Selected(ch, None, ok=True)


@pytest.mark.parametrize("bad", [1, None, "ch"])
async def test_what_is_no_case_is_refused(bad: Any) -> None:
    with pytest.raises(InvalidOptionError, match="select takes"):
        await select(bad)


async def test_to_wait_for_nothing_is_refused() -> None:
    with pytest.raises(InvalidOptionError, match="at least one"):
        await select()


# --- cancelling


async def test_a_receiver_that_is_cancelled_leaves_the_value_to_the_next() -> None:
    ch: Channel[int] = Channel()
    gone, stays = spawn(ch.receive()), spawn(ch.receive())
    await settle()
    gone.cancel()
    await settle()
    await ch.send(1)
    assert await stays == 1


async def test_a_value_handed_to_a_receiver_that_is_then_cancelled_is_not_lost() -> None:
    ch: Channel[Any] = Channel(3)
    receiving = spawn(ch.receive())
    await settle()
    await ch.send(None)
    await ch.send(2)
    receiving.cancel()  # it was given None, and has not run since
    with pytest.raises(asyncio.CancelledError):
        await receiving
    assert [await ch.receive(), await ch.receive()] == [None, 2]


async def test_a_sender_that_is_cancelled_sends_nothing() -> None:
    ch: Channel[int] = Channel()
    sending = spawn(ch.send(1))
    await settle()
    sending.cancel()
    await settle()
    assert await select(ch, default=True) == Selected(None, None, ok=False)
    assert waiting(ch) == 0


# --- against a model


@given(
    capacity=st.integers(0, 3),
    moves=st.lists(st.sampled_from(["send", "receive", "cancel send", "cancel receive"]), max_size=40),
)
def test_it_behaves_like_a_queue_with_a_line_at_both_ends(capacity: int, moves: list[str]) -> None:
    async def play() -> None:
        ch: Channel[int] = Channel(capacity)
        senders: deque[tuple[int, asyncio.Task[None]]] = deque()
        receivers: deque[asyncio.Task[int]] = deque()
        sent, received, cancelled = 0, list[int](), set[int]()
        for move in moves:
            if move == "send":
                senders.append((sent, spawn(ch.send(sent))))
                sent += 1
            elif move == "receive":
                receivers.append(spawn(ch.receive()))
            elif move == "cancel send" and senders and not senders[-1][1].done():
                number, task = senders.pop()
                task.cancel()
                cancelled.add(number)
            elif move == "cancel receive" and receivers and not receivers[-1].done():
                receivers.pop().cancel()
            await settle()
            received += [task.result() for task in receivers if task.done()]
            receivers = deque(task for task in receivers if not task.done())
            senders = deque(item for item in senders if not item[1].done())
            assert not (receivers and len(ch))
            assert not (senders and len(ch) < capacity)
            assert len(ch) <= capacity
        expected = [n for n in range(sent) if n not in cancelled]
        assert received == expected[: len(received)]
        assert len(received) + len(ch) + len(senders) == len(expected)
        for task in [*receivers, *(task for _, task in senders)]:
            task.cancel()

    asyncio.run(play())
