"""Channels and ``select``: order, waiting, closing and cancellation, without lost values or leftover waiters."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import ChannelClosed, InvalidOptionError
from holdfast.workflow.channels import Channel, Selected, select


async def run_ready_tasks() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


def spawn(coro: Any) -> asyncio.Task[Any]:
    return asyncio.ensure_future(coro)


def waiter_count(channel: Channel[Any]) -> int:
    return len(channel._receivers) + len(channel._senders)


async def test_a_send_without_capacity_waits_for_its_receiver() -> None:
    channel: Channel[int] = Channel()
    sending = spawn(channel.send(1))
    await run_ready_tasks()
    assert not sending.done()
    assert await channel.receive() == 1
    await sending


async def test_a_waiting_receiver_gets_the_next_value() -> None:
    channel: Channel[int] = Channel()
    receiving = spawn(channel.receive())
    await run_ready_tasks()
    await channel.send(1)
    assert await receiving == 1


async def test_a_send_within_the_capacity_does_not_wait() -> None:
    channel: Channel[int] = Channel(2)
    await channel.send(1)
    await channel.send(2)
    third = spawn(channel.send(3))
    await run_ready_tasks()
    assert (len(channel), third.done()) == (2, False)
    assert await channel.receive() == 1
    await third
    assert [await channel.receive(), await channel.receive()] == [2, 3]


async def test_receivers_are_served_in_the_order_they_came() -> None:
    channel: Channel[int] = Channel()
    tasks = [spawn(channel.receive()) for _ in range(3)]
    await run_ready_tasks()
    for n in range(3):
        await channel.send(n)
    assert [await task for task in tasks] == [0, 1, 2]


async def test_senders_are_served_in_the_order_they_came() -> None:
    channel: Channel[int] = Channel()
    tasks = [spawn(channel.send(n)) for n in range(3)]
    await run_ready_tasks()
    assert [await channel.receive() for _ in range(3)] == [0, 1, 2]
    await asyncio.gather(*tasks)


async def test_values_sent_before_the_close_are_still_received() -> None:
    channel: Channel[int] = Channel(3)
    await channel.send(1)
    await channel.send(2)
    channel.close()
    channel.close()
    assert [item async for item in channel] == [1, 2]
    with pytest.raises(ChannelClosed, match="received"):
        await channel.receive()


async def test_a_send_to_a_closed_channel_is_refused() -> None:
    channel: Channel[int] = Channel(3)
    channel.close()
    with pytest.raises(ChannelClosed, match="sent"):
        await channel.send(1)


async def test_a_close_raises_channel_closed_in_waiting_senders_and_receivers() -> None:
    channel: Channel[int] = Channel()
    receiving = [spawn(channel.receive()), spawn(channel.receive())]
    other: Channel[int] = Channel()
    sending = spawn(other.send(1))
    await run_ready_tasks()
    channel.close()
    other.close()
    for task in (*receiving, sending):
        with pytest.raises(ChannelClosed):
            await task


async def test_none_can_be_sent_and_received() -> None:
    channel: Channel[None] = Channel(1)
    await channel.send(None)
    assert await select(channel) == Selected(channel, None, ok=True)


@pytest.mark.parametrize("bad", [-1, 1.5, "1", None, True])
def test_a_bad_capacity_is_refused(bad: Any) -> None:
    with pytest.raises(InvalidOptionError, match="capacity"):
        Channel(bad)


# --- select


async def test_select_chooses_the_first_ready_case_in_the_argument_list() -> None:
    one: Channel[int] = Channel(1)
    two: Channel[int] = Channel(1)
    await one.send(1)
    await two.send(2)
    assert await select(two, one) == Selected(two, 2, ok=True)
    assert await select(two, one) == Selected(one, 1, ok=True)


async def test_select_accepts_a_send_as_a_case() -> None:
    full: Channel[int] = Channel()
    free: Channel[int] = Channel(1)
    assert await select(full.sending(1), free.sending(2)) == Selected(free, None, ok=True)
    assert await free.receive() == 2


async def test_a_closed_channel_is_always_ready() -> None:
    closed: Channel[int] = Channel()
    closed.close()
    assert await select(Channel(), closed) == Selected(closed, None, ok=False)
    assert await select(Channel(), closed.sending(1)) == Selected(closed, None, ok=False)


async def test_select_with_a_default_does_not_wait() -> None:
    assert await select(Channel(), default=True) == Selected(None, None, ok=False)
    assert await select(default=True) == Selected(None, None, ok=False)


async def test_a_select_that_waited_removes_its_other_waiters() -> None:
    one: Channel[int] = Channel()
    two: Channel[int] = Channel()
    three: Channel[int] = Channel()
    choosing = spawn(select(one, two, three.sending(7)))
    await run_ready_tasks()
    await two.send(2)
    assert await choosing == Selected(two, 2, ok=True)
    assert waiter_count(one) == waiter_count(two) == waiter_count(three) == 0
    assert await select(three, default=True) == Selected(None, None, ok=False)


async def test_a_select_takes_only_one_of_two_simultaneous_sends() -> None:
    one: Channel[int] = Channel()
    two: Channel[int] = Channel()
    choosing = spawn(select(one, two))
    await run_ready_tasks()
    first, second = spawn(one.send(1)), spawn(two.send(2))
    await run_ready_tasks()
    assert await choosing == Selected(one, 1, ok=True)
    assert (first.done(), second.done()) == (True, False)
    assert await two.receive() == 2
    await second


async def test_a_select_may_list_a_channel_twice() -> None:
    channel: Channel[int] = Channel()
    choosing = spawn(select(channel, channel))
    await run_ready_tasks()
    await channel.send(1)
    assert await choosing == Selected(channel, 1, ok=True)
    assert waiter_count(channel) == 0


async def test_a_select_can_send_to_another_select() -> None:
    channel: Channel[int] = Channel()
    choosing = spawn(select(channel.sending(5), Channel()))
    await run_ready_tasks()
    assert await select(channel) == Selected(channel, 5, ok=True)
    assert await choosing == Selected(channel, None, ok=True)


@pytest.mark.parametrize("bad", [1, None, "text"])
async def test_select_refuses_values_that_are_no_case(bad: Any) -> None:
    with pytest.raises(InvalidOptionError, match="select takes"):
        await select(bad)


async def test_select_without_cases_and_default_is_refused() -> None:
    with pytest.raises(InvalidOptionError, match="at least one"):
        await select()


# --- cancelling


async def test_a_receiver_that_is_cancelled_leaves_the_value_to_the_next_receiver() -> None:
    channel: Channel[int] = Channel()
    gone, stays = spawn(channel.receive()), spawn(channel.receive())
    await run_ready_tasks()
    gone.cancel()
    await run_ready_tasks()
    await channel.send(1)
    assert await stays == 1


async def test_a_value_given_to_a_receiver_that_is_then_cancelled_is_not_lost() -> None:
    channel: Channel[Any] = Channel(3)
    receiving = spawn(channel.receive())
    await run_ready_tasks()
    await channel.send(None)
    await channel.send(2)
    receiving.cancel()  # it was given None, and has not run since
    with pytest.raises(asyncio.CancelledError):
        await receiving
    assert [await channel.receive(), await channel.receive()] == [None, 2]


async def test_a_sender_that_is_cancelled_sends_nothing() -> None:
    channel: Channel[int] = Channel()
    sending = spawn(channel.send(1))
    await run_ready_tasks()
    sending.cancel()
    await run_ready_tasks()
    assert await select(channel, default=True) == Selected(None, None, ok=False)
    assert waiter_count(channel) == 0


# --- against a model


@given(
    capacity=st.integers(0, 3),
    moves=st.lists(st.sampled_from(["send", "receive", "cancel send", "cancel receive"]), max_size=40),
)
def test_a_channel_behaves_like_a_queue_with_waiting_senders_and_receivers(capacity: int, moves: list[str]) -> None:
    async def play() -> None:
        channel: Channel[int] = Channel(capacity)
        senders: deque[tuple[int, asyncio.Task[None]]] = deque()
        receivers: deque[asyncio.Task[int]] = deque()
        sent, received, cancelled = 0, list[int](), set[int]()
        for move in moves:
            if move == "send":
                senders.append((sent, spawn(channel.send(sent))))
                sent += 1
            elif move == "receive":
                receivers.append(spawn(channel.receive()))
            elif move == "cancel send" and senders and not senders[-1][1].done():
                number, task = senders.pop()
                task.cancel()
                cancelled.add(number)
            elif move == "cancel receive" and receivers and not receivers[-1].done():
                receivers.pop().cancel()
            await run_ready_tasks()
            received += [task.result() for task in receivers if task.done()]
            receivers = deque(task for task in receivers if not task.done())
            senders = deque(item for item in senders if not item[1].done())
            assert not (receivers and len(channel))
            assert not (senders and len(channel) < capacity)
            assert len(channel) <= capacity
        expected = [n for n in range(sent) if n not in cancelled]
        assert received == expected[: len(received)]
        assert len(received) + len(channel) + len(senders) == len(expected)
        for task in [*receivers, *(task for _, task in senders)]:
            task.cancel()

    asyncio.run(play())
