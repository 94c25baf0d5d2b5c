"""Step transactions: your own rows and the step's result in one commit, exactly once.

A first parameter annotated `StepTx` is the step's transaction. Its statements are executed after the function has
returned, in the transaction that records the result: both are committed, or neither.
Run it: python examples/step_transaction.py
"""

import asyncio
import sqlite3
import tempfile
from contextlib import closing
from pathlib import Path

from holdfast import Context, Holdfast, StepTx, UniqueConstraintError

folder = tempfile.TemporaryDirectory()
path = Path(folder.name) / "shop.db"
app = Holdfast(f"sqlite:///{path}")  # your tables live in the same file


@app.step
async def prepare(tx: StepTx) -> None:
    tx.execute("CREATE TABLE IF NOT EXISTS seat (number INTEGER PRIMARY KEY, guest TEXT NOT NULL) STRICT")


@app.step
async def book(tx: StepTx, seat: int, guest: str) -> str:
    # Nothing is written yet: if this function failed now, or the process died, the row would not exist.
    tx.execute("INSERT INTO seat (number, guest) VALUES (?, ?)", seat, guest)
    return f"seat {seat} for {guest}"


@app.workflow
async def booking(_ctx: Context, guest: str) -> str:
    await prepare()
    for seat in (1, 2):
        try:
            return await book(seat, guest)  # keys: book, book#2
        except UniqueConstraintError:  # the seat is taken: not retried, and no row was written
            continue
    return f"no seat for {guest}"


def seats() -> list[tuple[int, str]]:
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute("SELECT number, guest FROM seat ORDER BY number").fetchall()


async def main() -> None:
    async with app:
        for guest in ("ann", "bob", "cem"):
            print(await (await app.start(booking, guest, id=f"booking-{guest}")).result())
    print("rows:", seats())


if __name__ == "__main__":
    asyncio.run(main())
    folder.cleanup()
