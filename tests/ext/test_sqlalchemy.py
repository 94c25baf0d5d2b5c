"""Sessions of SQLAlchemy on the transaction of a step: written once, with the result of the step, on both stores."""

from __future__ import annotations

import sqlite3
from datetime import datetime
from pathlib import Path
from typing import Any

import apsw
import pytest
from sqlalchemy import JSON, DateTime, ForeignKey, String, func, select, text, update
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, relationship, selectinload
from sqlalchemy.schema import CreateTable

from apps import MakeApp
from holdfast import Context, Holdfast, Retry, StepError, Transaction
from holdfast.errors import InputError
from holdfast.ext import sqlalchemy as adapter
from holdfast.ext.sqlalchemy import session

AT = datetime(2030, 1, 2, 3, 4, 5)  # noqa: DTZ001  (a column without a time zone)


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "ext_order"

    id: Mapped[int] = mapped_column(primary_key=True)
    customer: Mapped[str] = mapped_column(String(50), unique=True)
    total: Mapped[int]
    note: Mapped[Any] = mapped_column(JSON)
    at: Mapped[datetime] = mapped_column(DateTime)
    lines: Mapped[list[Line]] = relationship(back_populates="order")


class Line(Base):
    __tablename__ = "ext_line"

    id: Mapped[int] = mapped_column(primary_key=True)
    order_id: Mapped[int] = mapped_column(ForeignKey("ext_order.id"))
    item: Mapped[str]
    order: Mapped[Order] = relationship(back_populates="lines")


def place(orm: AsyncSession, customer: str) -> Order:
    order = Order(customer=customer, total=1250, note={"gift": [True, None]}, at=AT)
    order.lines = [Line(item="bolt"), Line(item="nut")]
    orm.add(order)
    return order


async def create_tables(tx: Transaction) -> None:
    dialect = await adapter._dialect_of(tx._live)
    for table in ("ext_line", "ext_order"):
        await tx.execute(f"DROP TABLE IF EXISTS {table}")
    for made in (Order, Line):
        await tx.execute(str(CreateTable(made.__table__).compile(dialect=dialect)))  # type: ignore[arg-type]


@pytest.fixture
def shop(make_app: MakeApp) -> Holdfast:
    app = make_app()
    app.workflow(name="setup")(_setup)
    return app


async def _setup(ctx: Context) -> None:
    await ctx.do("tables", create_tables)


async def run(app: Holdfast, step: Any) -> Any:
    """The result of a workflow that calls one step, on fresh tables."""

    @app.workflow
    async def work(ctx: Context) -> Any:
        return await ctx.do("step", step, retry=Retry(limit=0))

    async with app:
        await (await app.start("setup", id="setup")).result()
        return await (await app.start(work, id="work")).result()


async def test_objects_are_written_read_and_changed_in_the_transaction_of_the_step(shop: Holdfast) -> None:
    async def step(tx: Transaction) -> list[Any]:
        async with session(tx) as orm:
            placed = place(orm, "ann")
            await orm.flush()
            found = await orm.scalar(select(Order).options(selectinload(Order.lines)).where(Order.customer == "ann"))
            assert found is placed
            found.total += 1
        async with session(tx) as orm:
            again = await orm.get_one(Order, placed.id)
            missing = await orm.scalar(select(Order).where(Order.customer == "ben"))
            count = await orm.scalar(select(func.count()).select_from(Line))
            changed = (await orm.execute(update(Line).where(Line.item == "nut").values(item="washer"))).rowcount  # type: ignore[attr-defined]
            items = [*await orm.scalars(select(Line.item).order_by(Line.item))]
            plain = (await orm.execute(text("SELECT customer FROM ext_order"))).all()
        values = [again.total, again.note, again.at.isoformat(), again.customer]
        return [values, missing, count, changed, items, [tuple(row) for row in plain]]

    result = await run(shop, step)

    assert result == [
        [1251, {"gift": [True, None]}, AT.isoformat(), "ann"], None, 2, 1, ["bolt", "washer"], [["ann"]],
    ]  # fmt: skip


async def test_a_failed_step_writes_nothing(shop: Holdfast) -> None:
    attempts: list[int] = []

    async def failing(tx: Transaction) -> None:
        attempts.append(1)
        async with session(tx) as orm:
            place(orm, "ann")
            await orm.flush()
            if len(attempts) == 1:
                raise ConnectionError("no answer")

    async def count(tx: Transaction) -> int:
        async with session(tx) as orm:
            return int(await orm.scalar(select(func.count()).select_from(Order)) or 0)

    @shop.workflow
    async def work(ctx: Context) -> list[int]:
        counts = []
        for n in range(2):
            try:
                await ctx.do(f"place {n}", failing, retry=Retry(limit=0), raises=(ConnectionError,))
            except ConnectionError:
                counts.append(-1)
            counts.append(await ctx.do(f"count {n}", count))
        return counts

    async with shop:
        await (await shop.start("setup", id="setup")).result()
        assert await (await shop.start(work, id="work")).result() == [-1, 0, 1]


async def test_a_session_cannot_be_rolled_back_and_constraints_fail_the_attempt(shop: Holdfast) -> None:
    async def rolled_back(tx: Transaction) -> None:
        async with session(tx) as orm:
            place(orm, "ann")
            await orm.flush()
            await orm.rollback()

    async def twice(tx: Transaction) -> None:
        for _ in range(2):
            async with session(tx) as orm:
                place(orm, "ann")

    @shop.workflow
    async def work(ctx: Context) -> list[str]:
        errors = []
        for name, step in (("rollback", rolled_back), ("twice", twice)):
            try:
                await ctx.do(name, step, retry=Retry(limit=0))
            except (StepError, InputError) as error:
                errors.append(getattr(error, "type", type(error).__name__))
        return errors

    async with shop:
        await (await shop.start("setup", id="setup")).result()
        assert await (await shop.start(work, id="work")).result() == ["InputError", "UniqueConstraintError"]


async def test_another_value_than_the_transaction_of_a_step_is_refused() -> None:
    with pytest.raises(InputError, match="takes the Transaction of a step, not str"):
        async with session("sqlite://"):  # type: ignore[arg-type]
            pass


@pytest.mark.parametrize(
    ("driver", "version"), [("apsw", apsw.sqlite_lib_version()), ("sqlite3", sqlite3.sqlite_version)]
)
async def test_the_dialect_has_the_version_of_the_sqlite_that_executes_its_statements(
    driver: str, version: str, tmp_path: Path
) -> None:
    """The dialect uses the features of this version, and apsw and Python have copies of SQLite of their own."""
    app = Holdfast(f"sqlite:///{tmp_path}/app.db?driver={driver}")

    @app.step
    async def versions(tx: Transaction) -> list[Any]:
        async with session(tx) as orm:
            dialect: Any = orm.get_bind().dialect
            return [await orm.scalar(text("SELECT sqlite_version()")), dialect.dbapi.sqlite_version_info]

    @app.workflow
    async def ask(ctx: Context) -> list[Any]:
        return await versions()

    async with app:
        found = await (await app.start(ask)).result(timeout=60)

    assert found == [version, [*map(int, version.split("."))]]
