"""The app and the blocking client of a Django project, made from its settings.

``HOLDFAST`` in the settings may have ``DATABASE`` (an alias of ``DATABASES``, ``"default"`` if not given), ``URL`` (a
database of its own instead), ``SCHEMA`` and ``OPTIONS`` (arguments of ``Holdfast``).
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
from functools import cache
from typing import Any
from urllib.parse import quote, urlencode

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.db import connections

from holdfast.app import Holdfast
from holdfast.errors import AppClosedError, HoldfastError
from holdfast.sync_client import SyncClient, SyncHandle

_log = logging.getLogger("holdfast")

_SQLITE, _POSTGRESQL = "sqlite", "postgresql"
_opening = threading.RLock()
_clients: dict[int, SyncClient] = {}
"""The open client by process: a client that was opened before a fork cannot be used after it."""


@cache
def project_app() -> Holdfast:
    """The app of this project."""
    given = _settings()
    return Holdfast(database_url(), schema=given.get("SCHEMA"), **given.get("OPTIONS", {}))


def client() -> SyncClient:
    """The blocking client of this process, opened at its first use. It has no worker.

    It is an app beside ``app``, with the same workflows, so that steps can use it in a worker's process.
    """
    process = os.getpid()
    with _opening:
        if process not in _clients:
            _refuse_own_lock()
            app = project_app()
            beside = Holdfast(app.url, schema=app.schema, limits=app.limits, telemetry=app.telemetry)
            beside.registry, beside.program, beside.payloads = app.registry, app.program, app.payloads
            opened = beside.sync()
            opened.open()
            _clients[process] = opened
            atexit.register(close_client)
        return _clients[process]


def _refuse_own_lock() -> None:
    connection = _open_transaction()
    if connection is not None and connection.vendor == _SQLITE:
        raise AppClosedError(
            "Holdfast's client was not open when this transaction began, and cannot be opened beside it: SQLite has "
            "one write lock. Run `manage.py holdfast migrate` before the server starts, or call client() once "
            "outside of transaction.atomic()"
        )


def close_client() -> None:
    """Close the client of this process; the next use opens another one."""
    with _opening:
        opened = _clients.pop(os.getpid(), None)
    if opened is not None:
        opened.close()


def start(workflow: Any, params: Any = None, **options: Any) -> SyncHandle[Any]:
    """Start a run. Inside ``transaction.atomic()`` it is stored with your own rows, or not at all.

    Options as in ``app.start``.

    Example::

        with transaction.atomic():
            order = Order.objects.create(total=125)
            start(fulfil, order.pk, id=f"order-{order.pk}")
    """
    return client().start(workflow, params, connection=_open_transaction(), **options)


def send_event(workflow: Any, id: str, type: str, payload: Any = None, *, event_id: str | None = None) -> None:
    """Send an event to an instance, in the transaction of ``transaction.atomic()`` if one is open."""
    client().get(workflow, id).send_event(type, payload, id=event_id, connection=_open_transaction())


def _open_transaction() -> Any:
    """Django's connection if it has an open transaction in this thread."""
    if "URL" in _settings():
        return None
    connection = connections[_alias()]
    return connection if connection.in_atomic_block or not connection.get_autocommit() else None


def open_beside(sender: Any, connection: Any, **_: Any) -> None:
    """Open the client when Django opens its first connection to an SQLite file with Holdfast's tables.

    Opening takes SQLite's write lock for a moment. A first ``start`` inside ``transaction.atomic()`` would wait for
    the lock of its own thread.
    """
    del sender
    if connection.vendor != _SQLITE or connection.alias != _alias() or "URL" in _settings() or _is_open_here():
        return
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1 FROM sqlite_master WHERE name = 'holdfast_run'")
        migrated = cursor.fetchone() is not None
    if migrated:
        try:
            client()
        except HoldfastError as error:  # such as tables of a newer release: Django's own queries continue
            _log.warning("Holdfast's client could not be opened beside Django's connection: %s", error)


def _is_open_here() -> bool:
    return os.getpid() in _clients


def database_url() -> str:
    """The URL of the database in the settings."""
    given = _settings()
    if "URL" in given:
        return str(given["URL"])
    alias = _alias()
    if alias not in settings.DATABASES:
        raise ImproperlyConfigured(f"HOLDFAST['DATABASE'] is {alias!r}, which DATABASES does not have")
    database = connections[alias].settings_dict
    vendor = connections[alias].vendor
    if vendor == _SQLITE:
        return _sqlite_url(str(database["NAME"]))
    if vendor == _POSTGRESQL:
        return _postgresql_url(database)
    raise ImproperlyConfigured(f"Holdfast needs PostgreSQL or SQLite, and {alias!r} is {vendor}; set HOLDFAST['URL']")


def _sqlite_url(name: str) -> str:
    if ":memory:" in name or "mode=memory" in name:
        raise ImproperlyConfigured(
            "Holdfast cannot share a SQLite database in memory. Name a file; for tests: DATABASES['default']['TEST'] = "
            "{'NAME': 'test.sqlite3'}"
        )
    # Python's own sqlite3, as Django: two copies of SQLite in one process damage the file.
    return f"sqlite:///{name}?driver=sqlite3"


def _postgresql_url(database: dict[str, Any]) -> str:
    query = {"host": database["HOST"]} if database.get("HOST", "").startswith("/") else {}
    host = "" if query else database.get("HOST") or "localhost"
    user = ":".join(quote(str(database[key]), safe="") for key in ("USER", "PASSWORD") if database.get(key))
    port = f":{database['PORT']}" if database.get("PORT") else ""
    if query and port:
        query["port"], port = str(database["PORT"]), ""
    sslmode = database.get("OPTIONS", {}).get("sslmode")
    text = urlencode(query | ({"sslmode": sslmode} if sslmode else {}), safe="/")
    name = quote(str(database["NAME"]), safe="")
    return f"postgresql://{user}{'@' if user else ''}{host}{port}/{name}{'?' if text else ''}{text}"


def _settings() -> dict[str, Any]:
    found: dict[str, Any] = getattr(settings, "HOLDFAST", {})
    return found


def _alias() -> str:
    return str(_settings().get("DATABASE", "default"))
