"""Correct workflows have no findings, with any number of seeds."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

import pytest

from holdfast import (
    ChainTask,
    Completed,
    Context,
    Holdfast,
    NonRetryableError,
    Outbound,
    OutboundEvent,
    Retry,
    Secret,
    StepTx,
    Transaction,
    WaitForEventTimeoutError,
    Waiting,
)
from holdfast.payloads import Aes
from holdfast.testing import SentEvent, SimulatedRun, simulate


@pytest.fixture
def seeds(request: pytest.FixtureRequest) -> int:
    return 200 if request.config.getoption("--long") else 10


@dataclass
class Shop:
    """A fake of an external service: a payment that is requested twice with one key is made once."""

    paid: dict[str, int] = field(default_factory=dict)
    reserved: set[str] = field(default_factory=set)
    calls: int = 0

    async def pay(self, key: str, amount: int) -> str:
        self.calls += 1
        await asyncio.sleep(0.02)
        self.paid.setdefault(key, amount)
        await asyncio.sleep(0.02)
        return f"receipt {key}"


class World:
    shop = Shop()

    def fresh(self) -> Shop:
        self.shop = Shop()
        return self.shop


def view(shop: Shop) -> Any:
    return shop.paid, shop.reserved


async def test_a_payment_with_an_idempotency_key_has_no_findings(seeds: int) -> None:
    app, world = Holdfast("sqlite://"), World()

    @app.step
    async def pay(key: str, amount: int) -> str:
        return await world.shop.pay(key, amount)

    @app.workflow
    async def order(ctx: Context, amount: int) -> str:
        return await pay(str(ctx.uuid4()), amount)

    report = await simulate(app, order, 5, seeds=seeds, world=world.fresh, view=view)

    assert report.seeds == seeds
    assert report.endings.total() == seeds
    assert {"dies_after", "fails_after", "crash_after", "slow"} <= {*report.faults}


async def test_a_wait_for_an_approval_has_no_findings(seeds: int) -> None:
    app = Holdfast("sqlite://")

    @app.step
    def remind(who: str) -> str:
        return f"reminded {who}"

    @app.workflow
    async def approved(ctx: Context) -> list[Any]:
        await ctx.sleep("a while", "200 days")
        told = await remind("ann")
        try:
            event = await ctx.wait_for_event("approval", type="approval", timeout="1 minute")
        except WaitForEventTimeoutError:
            return [told, "nobody"]
        note = await ctx.wait_for_event("note", type="note", timeout="24 hours")
        return [told, event.payload, note.payload]

    sent = [SentEvent("note", "hello", id="n-1"), SentEvent("approval", "ann", id="a-1")]
    report = await simulate(app, approved, seeds=seeds, events=sent)

    assert [*report.endings] == ["returned ['reminded ann', 'ann', 'hello']"]
    assert {"early", "late", "twice"} <= {*report.faults}


async def test_children_in_parallel_have_no_findings(seeds: int) -> None:
    app, world = Holdfast("sqlite://"), World()

    @app.step
    async def pay(key: str, amount: int) -> str:
        return await world.shop.pay(key, amount)

    @app.workflow
    async def part(ctx: Context, amount: int) -> str:
        return await pay(ctx.info.instance_id, amount)

    @app.workflow
    async def whole(ctx: Context, amounts: list[int]) -> list[str]:
        parts = [ctx.run(part, amount, id=f"part-{n}") for n, amount in enumerate(amounts)]
        return list(await asyncio.gather(*parts))

    await simulate(app, whole, [1, 2, 3], seeds=seeds, world=world.fresh, view=view)


async def test_a_saga_has_no_findings(seeds: int) -> None:
    app, world = Holdfast("sqlite://"), World()

    @app.step
    async def reserve(item: str) -> str:
        world.shop.reserved.add(item)
        return item

    @app.step
    async def release(item: str) -> None:
        world.shop.reserved.discard(item)

    @app.step
    async def pay(_item: str) -> None:
        raise NonRetryableError("card declined")

    @app.workflow
    async def order(ctx: Context, items: list[str]) -> str:
        try:
            async with ctx.saga() as saga:
                for item in items:
                    await ctx.do(f"reserve {item}", reserve, item)
                    saga.add(release, item)
                await pay(items[0])
        except NonRetryableError as error:
            return str(error)
        return "paid"

    await simulate(app, order, ["tea", "cup"], seeds=seeds, world=world.fresh, view=view)


async def test_a_service_that_fails_at_first_has_no_findings(seeds: int) -> None:
    """The step needs both of its retries, so the simulation must not use up an attempt by a fault."""
    app, world = Holdfast("sqlite://"), World()

    @app.step(retry=Retry(limit=2, delay="1 minute"))
    async def pay(key: str) -> str:
        world.shop.calls += 1
        if world.shop.calls < 3:
            raise ConnectionError("busy")
        return await world.shop.pay(key, 1)

    @app.workflow
    async def order(ctx: Context) -> str:
        return await pay(ctx.info.instance_id)

    report = await simulate(app, order, seeds=seeds, world=world.fresh, view=view)
    assert [*report.endings] == ["returned 'receipt simulated'"]


async def test_a_race_whose_results_are_all_allowed_has_no_findings(seeds: int) -> None:
    app = Holdfast("sqlite://")

    @app.step
    async def ask(who: str) -> str:
        return who

    @app.workflow
    async def first(ctx: Context) -> str:
        tasks = [asyncio.ensure_future(ctx.do(who, ask, who)) for who in ("near", "far")]
        done, others = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for other in others:
            other.cancel()
        return next(task for task in tasks if task in done).result()

    report = await simulate(app, first, seeds=seeds, allow=["near", "far"])
    assert {*report.endings} == {"returned 'near'", "returned 'far'"}

    def either(run: SimulatedRun) -> bool:
        return run.result in ("near", "far")

    assert (await simulate(app, first, seeds=10, allow=either)).ok


async def test_a_chain_with_an_outbox_has_no_findings(seeds: int) -> None:
    app = Holdfast("sqlite://")
    told: set[str] = set()
    chain = app.chain("shipping")

    @chain.step("ASK", max_attempts=3)
    async def ask(_task: ChainTask) -> Any:
        return Completed("asked", outbound=[Outbound("asked", 1)])

    @chain.step("WAIT")
    async def wait(task: ChainTask) -> Any:
        return Waiting("answer", "1 hour") if task.event is None else Completed(task.event.payload)

    @app.outbox
    async def deliver(event: OutboundEvent) -> None:
        told.add(event.id)

    def fresh() -> set[str]:
        told.clear()
        return told

    report = await simulate(app, chain, seeds=seeds, world=fresh, events=[("answer", 42)])
    assert [*report.endings] == ["returned 42"]


async def test_a_graph_has_no_findings(seeds: int) -> None:
    app, world = Holdfast("sqlite://"), World()
    graph = app.graph("bills", params=list[int])

    @graph.node
    async def amounts(params: list[int]) -> list[int]:
        return params

    @graph.node(map=amounts)
    async def pay(amounts: int) -> str:
        return await world.shop.pay(f"bill {amounts}", amounts)

    @graph.node(after=[pay])
    def total(pay: list[str]) -> int:
        return len(pay)

    report = await simulate(app, graph, [3, 4, 5], seeds=seeds, world=world.fresh, view=view)
    assert report.endings.total() == seeds
    assert "'total': 3" in next(iter(report.endings))


async def test_rows_written_through_a_step_tx_have_no_findings(seeds: int) -> None:
    app = Holdfast("sqlite://")

    @app.step
    async def book(tx: StepTx, seat: int) -> int:
        tx.execute("INSERT INTO booking VALUES (?)", seat)
        return seat

    @app.workflow
    async def journey(ctx: Context) -> list[int]:
        return [await ctx.do(f"seat {n}", book, n) for n in range(3)]

    report = await simulate(app, journey, seeds=seeds, tables="CREATE TABLE booking (seat INTEGER)")
    assert [*report.endings] == ["returned [0, 1, 2]"]


async def test_rows_written_in_a_live_transaction_have_no_findings(seeds: int) -> None:
    app = Holdfast("sqlite://")

    @app.step
    async def take(tx: Transaction, item: str) -> int:
        [row] = await tx.fetch("SELECT left FROM stock WHERE item = ?", item)
        await asyncio.sleep(0.01)
        await tx.execute("UPDATE stock SET left = left - 1 WHERE item = ?", item)
        return int(row["left"]) - 1

    @app.workflow
    async def order(ctx: Context) -> list[int]:
        return [await ctx.do(f"tea {n}", take, "tea") for n in range(3)]

    tables = ["CREATE TABLE stock (item TEXT, left INTEGER)", "INSERT INTO stock VALUES ('tea', 9)"]
    report = await simulate(app, order, seeds=seeds, tables=tables)
    assert [*report.endings] == ["returned [8, 7, 6]"]


async def test_messages_and_continue_as_new_have_no_findings(seeds: int) -> None:
    app = Holdfast("sqlite://")

    @app.workflow
    async def account(ctx: Context, balance: int = 0) -> int:
        deposits = ctx.listen("deposit")
        for _ in range(2):
            amount = await deposits.receive()
            if amount == 0:
                return balance
            balance += amount
        raise ctx.continue_as_new(balance)

    sent = [SentEvent("deposit", amount, id=f"d{n}") for n, amount in enumerate([5, 6, 7, 0])]
    report = await simulate(app, account, seeds=seeds, events=sent)
    assert [*report.endings] == ["returned 18"]


@dataclass
class Login:
    user: str
    password: Secret[str]


async def test_an_app_with_codecs_blobs_and_secrets_is_simulated(seeds: int) -> None:
    app = Holdfast("sqlite://", codec=Aes({"k1": b"k" * 32}), blobs="database", blob_threshold=10)

    @app.step
    async def check(login: Login) -> Login:
        return login

    @app.workflow(events={"again": Login})
    async def enter(ctx: Context, login: Login) -> Login:
        await check(login)
        return await check((await ctx.wait_for_event("again", type="again")).payload)

    login: Any = {"user": "ann", "password": "p" * 50}
    report = await simulate(app, enter, login, seeds=seeds, events=[("again", login)])

    assert report.ok
