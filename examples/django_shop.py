"""Django: an order and its run are stored in one transaction, and a task of Django is executed by Holdfast.

A project has its settings in a module, its workflows in ``workflows.py`` of its apps, and its worker in another process
(``manage.py holdfast worker``). Here all is in one file, so that it can be run: ``python examples/django_shop.py``.
"""

import io
import tempfile
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import django
from django.conf import settings
from django.db import connection, transaction

folder = Path(tempfile.mkdtemp())
settings.configure(
    INSTALLED_APPS=["django.contrib.contenttypes", "django.contrib.auth", "holdfast.ext.django"],
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": str(folder / "shop.sqlite3")}},
    USE_TZ=True,
)
django.setup()

from django.core.management import call_command  # noqa: E402

from holdfast import Context  # noqa: E402
from holdfast.ext.django import app, client, send_event, start  # noqa: E402


@app.step
def pay(order: int) -> str:
    with connection.cursor() as cursor:  # a plain function runs in a thread, where the ORM works as in a view
        cursor.execute("UPDATE shop_order SET paid = 1 WHERE id = %s", [order])
    connection.close()
    return f"payment of order {order}"


@app.workflow
async def fulfil(ctx: Context, order: int) -> str:
    payment = await pay(order)
    await ctx.wait_for_event("shipped", type="shipped")
    return payment


def place_order(*, fail: bool) -> Any:
    """A view would do this: the order and its run exist together, or not at all."""
    with transaction.atomic():
        with connection.cursor() as cursor:
            cursor.execute("INSERT INTO shop_order (paid) VALUES (0) RETURNING id")
            [order] = cursor.fetchone()
        run = start(fulfil, order, id=f"order-{order}")
        if fail:
            raise ValueError("the card was refused")
    return run


def main() -> None:
    with redirect_stdout(io.StringIO()):  # it prints the name of the temporary file
        call_command("holdfast", "migrate")
    with connection.cursor() as cursor:
        cursor.execute("CREATE TABLE shop_order (id INTEGER PRIMARY KEY, paid INTEGER)")

    with app.sync(worker=True):  # in a project: manage.py holdfast worker
        try:
            place_order(fail=True)
        except ValueError as error:
            print(f"{error}; runs: {len(client().list('fulfil').items)}")
        run = place_order(fail=False)
        send_event(fulfil, run.id, "shipped")
        print(run.result(timeout=30))
        with connection.cursor() as cursor:
            cursor.execute("SELECT id, paid FROM shop_order")
            print(f"orders: {cursor.fetchall()}")


if __name__ == "__main__":
    main()
