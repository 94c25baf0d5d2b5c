"""The session of a request that a cookie authorizes, for the routes of the API."""

from __future__ import annotations

from collections.abc import MutableMapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from starlette.requests import Request

_KEY = "holdfast.session"


@dataclass(slots=True)
class SessionInfo:
    expires_at: datetime
    csrf_token: str = field(repr=False)
    ended: bool = False
    """True after the sign-out, for streams that are still open."""

    def attach(self, connection: MutableMapping[str, Any]) -> None:
        """Put the session into the ASGI scope of a request."""
        connection[_KEY] = self


def session_of(request: Request) -> SessionInfo | None:
    """The session that authorizes this request; None if no cookie does."""
    found = request.scope.get(_KEY)
    return found if isinstance(found, SessionInfo) else None
