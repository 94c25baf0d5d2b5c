"""SQLAlchemy on both sides of a run: a start in the transaction of a blocking session, and a session in a step.

The order and its run are stored together, or not at all. The step changes the stock in the transaction that records its
result.
Run it: python examples/sqlalchemy_orders.py
"""

import tempfile
from pathlib import Path

from sqlalchemy import create_engine, select, update
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from holdfast import Context, Holdfast, Transaction
from holdfast.ext.sqlalchemy import session

folder = tempfile.TemporaryDirectory()
path = Path(folder.name) / "shop.db"
app = Holdfast(f"sqlite:///{path}?driver=sqlite3")  # the SQLite that SQLAlchemy uses, too


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "shop_order"
    id: Mapped[int] = mapped_column(primary_key=True)
    item: Mapped[str]


class Stock(Base):
    __tablename__ = "stock"
    item: Mapped[str] = mapped_column(primary_key=True)
    left: Mapped[int]


@app.step
async def reserve(tx: Transaction, item: str) -> int:
    async with session(tx) as orm:
        changed = update(Stock).where(Stock.item == item).values(left=Stock.left - 1).returning(Stock.left)
        return (await orm.scalars(changed)).one()


@app.workflow
async def fulfil(_ctx: Context, item: str) -> str:
    return f"{await reserve(item)} {item} left"


def main() -> None:
    engine = create_engine(f"sqlite:///{path}")
    with app.sync(worker=True) as client:
        Base.metadata.create_all(engine)
        with Session(engine) as orm, orm.begin():
            orm.add(Stock(item="bolt", left=5))
        for item, fails in (("bolt", False), ("bolt", True)):
            try:
                with Session(engine) as orm, orm.begin():
                    orm.add(order := Order(item=item))
                    orm.flush()
                    client.start(fulfil, item, id=f"order-{order.id}", connection=orm)
                    if fails:
                        raise RuntimeError("the card was refused")
            except RuntimeError as error:
                print(f"{error}: neither the order nor its run is stored")
        print(client.get(fulfil, "order-1").result(timeout="30 seconds"))
        with Session(engine) as orm:
            print("orders:", len(orm.scalars(select(Order)).all()), "runs:", len(client.list(fulfil).items))
    engine.dispose()


if __name__ == "__main__":
    main()
    folder.cleanup()
