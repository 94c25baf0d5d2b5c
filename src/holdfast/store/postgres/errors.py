"""Meaning of PostgreSQL's errors. They are distinguished by class and SQLSTATE, never by their text."""

from __future__ import annotations

from enum import Enum

import asyncpg

from holdfast.errors import (
    HoldfastError,
    SchemaVersionError,
    StateError,
    StoreBusyError,
    StoreError,
    StoreFullError,
    StoreReadOnlyError,
    StoreUnavailableError,
)
from holdfast.store.postgres.tx import Connection

_BROKEN = (OSError, asyncpg.InternalClientError)
"""Errors of a broken connection. InternalClientError: a call used the connection after the server had ended it."""
DRIVER_ERRORS: tuple[type[Exception], ...] = (asyncpg.PostgresError, asyncpg.InterfaceError, *_BROKEN)
"""All errors that the driver raises. A TimeoutError is an OSError."""

UNIQUE = "23505"
NOT_CONSUMABLE = "HF001"
"""The store's own SQLSTATE: a delivery of an event that does not exist or was consumed before."""
STALE_RETRY = "HF002"
"""The store's own SQLSTATE: a repeated call whose receipt was used by a later call."""
PREDICTION_FAILED = "HF003"
"""The store's own SQLSTATE: a prediction does not hold (holdfast_send_predicted)."""
FENCED = "HF004"
"""The store's own SQLSTATE: a write to a database that is fenced for a transfer."""
FAILED_OVER = "HF005"
"""The store's own SQLSTATE: the server has another timeline than the store knows (holdfast_check_timeline)."""

_TRANSLATIONS: dict[str, tuple[type[HoldfastError], str]] = {
    "08": (StoreUnavailableError, "the connection to {where} broke. Check the network and the server"),
    "22": (StateError, "{where} cannot store a value of this call; nothing of this call was done"),
    "23": (StateError, "{where} cannot store a value of this call; nothing of this call was done"),
    "23505": (StateError, "the row is stored already and can be written only once; nothing of this call was done"),
    "25006": (
        StoreReadOnlyError,
        "{where} cannot be written: it is a standby, or set to read only. Name the primary server",
    ),
    "25P03": (StoreUnavailableError, "{where} ended a transaction that was idle for too long. Try again"),
    "28": (StoreUnavailableError, "{where} refused the login. Check the user and the password in the URL"),
    "3D000": (StoreUnavailableError, "{where} does not exist. Check the database's name in the URL, or create it"),
    "3F000": (SchemaVersionError, "the store's schema is gone from {where}. Restore it, or run `holdfast migrate`"),
    "40": (StoreBusyError, "other transactions kept changing the same rows in {where}; nothing was written. Try again"),
    "42501": (
        StoreUnavailableError,
        "this user lacks a right in {where}. Grant it, or run `holdfast migrate` as the owner of the schema",
    ),
    "42883": (SchemaVersionError, "{where} lacks a part of the store's schema. Run `holdfast migrate`"),
    "42P01": (SchemaVersionError, "{where} lacks a part of the store's schema. Run `holdfast migrate`"),
    "53": (StoreUnavailableError, "{where} is short of resources. Look at its log"),
    "53100": (StoreFullError, "{where} has no room left; nothing was written. Free disk space, then try again"),
    "53300": (
        StoreUnavailableError,
        "{where} has no connection left for this user. Raise the limit, or use a smaller pool (?pool_size=)",
    ),
    "55P03": (
        StoreBusyError,
        "other sessions held locks in {where} past lock_timeout; nothing was written. Look for a long transaction",
    ),
    "57014": (
        StoreBusyError,
        "{where} cancelled a statement after statement_timeout; nothing was written. Raise it, or see what is slow",
    ),
    "57P": (StoreUnavailableError, "{where} is shutting down or starting up. Try again"),
    "58": (StoreUnavailableError, "{where} failed to read or write its files. Look at its log and its disk"),
    "HF004": (StoreReadOnlyError, "{where} cannot be written; nothing was written"),
    "HF001": (StateError, "an event cannot be consumed: it does not exist or was consumed before"),
}

_TRANSIENT = ("40001", "40P01")
_UNAVAILABLE = ("08", "57P01", "57P02", "57P03", "57P05", "53300")
_ENVIRONMENT = ("08", "25006", "25P03", "40", "53", "57P", "58", "XX")


class Fault(Enum):
    TRANSIENT = 1
    """Rolled back because of a conflict with another transaction: a retry may succeed."""
    UNAVAILABLE = 2
    """The server or the connection to it is lost; whether the last statement was executed is not known."""
    OTHER = 3
    """A retry would fail in the same way."""


def classify(error: BaseException, connection: Connection | None) -> Fault:
    state = sqlstate(error)
    if state in _TRANSIENT:
        return Fault.TRANSIENT
    if state.startswith(_UNAVAILABLE) or isinstance(error, _BROKEN):
        return Fault.UNAVAILABLE
    if isinstance(error, asyncpg.InterfaceError) and connection is not None and is_gone(connection):
        return Fault.UNAVAILABLE
    return Fault.OTHER


def is_gone(connection: Connection) -> bool:
    try:
        return connection.is_closed()
    except asyncpg.InterfaceError:  # the driver's pool noticed the break and took the connection back
        return True


def sqlstate(error: BaseException) -> str:
    return str(getattr(error, "sqlstate", None) or "")


def is_unique_violation(error: BaseException) -> bool:
    return sqlstate(error) == UNIQUE


def is_environment(error: BaseException, connection: Connection) -> bool:
    """True if the error is not caused by the statement: any other transaction would fail as well."""
    return classify(error, connection) is not Fault.OTHER or sqlstate(error).startswith(_ENVIRONMENT)


def translate(error: BaseException, where: str) -> HoldfastError:
    """The Holdfast error for an error of the driver."""
    translated = _translated(error, where)
    translated.__cause__ = error
    return translated


def _translated(error: BaseException, where: str) -> HoldfastError:
    state = sqlstate(error)
    for length in (5, 3, 2):
        if len(state) >= length and state[:length] in _TRANSLATIONS:
            target, text = _TRANSLATIONS[state[:length]]
            return target(f"{text.format(where=where)} (PostgreSQL {state}: {error})")
    if isinstance(error, TimeoutError):
        return StoreUnavailableError(f"{where} did not answer in time. Check the network and the server")
    if isinstance(error, _BROKEN):
        return StoreUnavailableError(f"{where} cannot be reached ({error}). Check the URL, the network and the server")
    if isinstance(error, asyncpg.InterfaceError) and isinstance(error, ValueError):
        return StateError(f"{where} cannot store a value of this call; nothing of this call was done ({error})")
    return StoreError(f"{where} refused a statement; nothing of this call was done (PostgreSQL {state}: {error})")
