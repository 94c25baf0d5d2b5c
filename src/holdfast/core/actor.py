"""The person or program on whose behalf control requests are made, for their audit records.

The actor belongs to the context of the running task, as in ``with app.acting_as("ann"):``. The HTTP API sets it to the
actor that an authorization hook names.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from holdfast.core.show import shown
from holdfast.errors import InvalidOptionError

_MAX_LENGTH = 200
current_actor: ContextVar[str | None] = ContextVar("holdfast_actor", default=None)


def check_actor(actor: object) -> str:
    if not isinstance(actor, str) or not 0 < len(actor) <= _MAX_LENGTH:
        raise InvalidOptionError(f"an actor is text of 1 to {_MAX_LENGTH} characters, not {shown(actor)}")
    return actor


@contextmanager
def acting_as(actor: str) -> Iterator[None]:
    token = current_actor.set(check_actor(actor))
    try:
        yield
    finally:
        current_actor.reset(token)
