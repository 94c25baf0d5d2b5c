"""The app of ``holdfast dev --example``: the shop of ``example_shop``, and fifty workflows with many runs.

``seed`` fills a new database with runs in all states, spread over the last two hours.
"""

# ruff: noqa: ARG001  (the engine passes every argument)

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from holdfast import Context, Holdfast, Retry, Start, WorkerConfig
from holdfast.cli.example_shop import Order, Payments, define_shop
from holdfast.ports import Runtime, SystemClock

LEASE_SECONDS = 3
OLD_VERSION, NEW_VERSION = "2026.11.15-4", "2026.11.16-2"
AREAS = ("invoice", "payment", "parcel", "refund", "customer", "stock", "price", "report", "mail", "image")
WORK = ("import", "check", "settle", "notify", "archive")
RUNS = 100
"""Seeded runs of each workflow."""
_BATCHES = 120
_MINUTES = 1
"""Minutes between the batches of the seed."""
_EVERY = 6
"""Each batch starts runs of one sixth of the workflows."""
_BROKEN = {"invoice.settle": "vat_id", "payment.check": "iban"}
"""Workflows that the second version broke, and the key of the table that their code does not find."""
_CHANGED = "price.import"
"""The workflow whose code the second version changed under its open runs."""
_UNREACHABLE = ("mail.notify", "stock.import")


@dataclass
class Job:
    n: int
    customer: str


class MovedClock(SystemClock):
    """A clock that is behind, so that seeded runs have a past."""

    def __init__(self, behind: timedelta) -> None:
        self.behind = behind

    def now(self) -> datetime:
        return datetime.now(UTC) - self.behind

    def now_ms(self) -> int:
        return super().now_ms() - self.behind // timedelta(milliseconds=1)


def make_app(url: str | None = None, *, version: str = NEW_VERSION, clock: SystemClock | None = None) -> Holdfast:
    runtime = Runtime() if clock is None else Runtime(time=clock)
    app = Holdfast(
        url, runtime=runtime, worker=WorkerConfig(lease=LEASE_SECONDS, poll="200 ms", drain="1 second", version=version)
    )
    app.program = "shop"
    define_shop(app)
    for number, name in enumerate(f"{area}.{work}" for area in AREAS for work in WORK):
        _add_workflow(app, name, number, new=version == NEW_VERSION)
    return app


def _add_workflow(app: Holdfast, name: str, number: int, *, new: bool) -> None:
    @app.step(name=f"{name}: load")
    async def load(job: Job) -> str:
        return f"{job.customer}-{job.n}"

    @app.step(name=f"{name}: write invoice", retry=Retry(limit=0))
    async def write_invoice(job: Job) -> int:
        return _RATES[_BROKEN[name]]

    @app.step(name=f"{name}: call gateway", retry=Retry(limit=8, delay="20 minutes", backoff="constant"))
    async def call(job: Job) -> str:
        if name in _UNREACHABLE and job.n % 9 == 3:
            raise ConnectionError("gateway.example does not answer")
        return "ok"

    @app.workflow(name=name)
    async def run(ctx: Context, job: Job) -> dict[str, Any]:
        ctx.set_search(customer=job.customer)
        loaded = await load(job)
        ctx.log.info("loaded", data={"reference": loaded})
        if new and name in _BROKEN and job.n % 3 == 1:
            await write_invoice(job)
        if new and name == _CHANGED:
            await ctx.sleep("approval", "1 second")  # the old code waits for an event under this name
        elif (job.n + number) % 10 == 4:
            await ctx.wait_for_event("approval", type="approval", timeout="30 days")
        if (job.n + number) % 20 == 9:
            await ctx.sleep("cool off", "12 hours")
        return {"reference": loaded, "answer": await call(job)}


_RATES: dict[str, int] = {}


async def seed(url: str, runs: int = RUNS, progress: Callable[[int], None] | None = None) -> int:
    """Fill a new database; returns the number of runs."""
    clock = MovedClock(timedelta(minutes=_MINUTES * _BATCHES))
    names = [f"{area}.{work}" for area in AREAS for work in WORK]
    for part, version in enumerate((OLD_VERSION, NEW_VERSION)):
        app = make_app(url, version=version, clock=clock)
        async with app.connect():
            for batch in range(part * _BATCHES // 2, (part + 1) * _BATCHES // 2):
                await _start_batch(app, names, batch, max(1, runs * _EVERY // _BATCHES))
                await _tell_story(app, batch)
                while await app.tick():
                    pass
                clock.behind -= timedelta(minutes=_MINUTES)
                if progress is not None:
                    progress((batch + 1) * 100 // _BATCHES)
    app = make_app(url)
    async with app.connect():
        await _control_some(app, names)
        for n in range(20):
            tenant = ("acme", "globex", "acme", "initech", "acme")[n % 5]
            await app.start("settlement", Payments(tenant), id=f"{tenant}-{n}")
        await app.start("order", Order("o-1"), id="o-1")
        return sum(sum(counts.values()) for counts in (await app.stats()).runs.values())


async def _start_batch(app: Holdfast, names: list[str], batch: int, size: int) -> None:
    for place, name in enumerate(names):
        if (batch + 5 * place) % _EVERY:
            continue
        jobs = [batch // _EVERY * size + n for n in range(size)]
        customers = ("acme", "globex", "initech", "umbrella")
        await app.start_many(name, [Start(f"{place}-{n}", Job(n, customers[n % 4])) for n in jobs])


async def _tell_story(app: Holdfast, batch: int) -> None:
    """The runs of the shop: an order with a child, a chain and a graph; runs that do not fit the new code."""
    if batch == 0:
        await app.start("fulfil", Order("o-20931", total=1280), id="o-20931")
    if batch == _BATCHES // 3:
        await app.start("shipping", {"id": "o-20871"}, id="o-20871")
    if batch == _BATCHES * 2 // 3:
        await (await app.get("fraud_check", "o-20931-fraud")).send_event("analyst", "no objection")
        await (await app.get("fulfil", "o-20931")).send_event("aproval", {"by": "ann"})  # no run waits for this type
    if batch == _BATCHES // 2:
        for item in (await app.list(_CHANGED, status="waiting", limit=4)).items:
            await (await app.get(_CHANGED, item.id)).send_event("approval", {"by": "ann"})  # their code has changed
    if batch == _BATCHES - 2:
        await app.start("catalogue", 120, id="2026-11-16-pm")


async def _control_some(app: Holdfast, names: list[str]) -> None:
    """Paused, cancelled and terminated runs, and runs in a queue that no worker serves."""
    with app.acting_as("example"):
        for name in names[:12]:
            waiting = (await app.list(name, status="waiting", limit=6)).items
            for item, action in zip(waiting, ("pause", "cancel", "terminate"), strict=False):
                await getattr(await app.get(name, item.id), action)()
    for n in range(20):
        await app.start("report.settle", Job(n, "acme"), id=f"night-{n}", queue="reports")


app = make_app()
