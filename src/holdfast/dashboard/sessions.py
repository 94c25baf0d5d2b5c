"""Sessions of the dashboard: a token becomes a cookie that scripts cannot read.

A session exists in the memory of one server process, and ends with it. The cookie holds a random id; the token stays on
the server, and requests with the cookie reach the hooks with the header ``Authorization: Bearer TOKEN``. Requests that
write need the session's CSRF token in a header: a page of another site can make a browser send the cookie of a session
in some browsers, but cannot read the CSRF token.

The cookie has no ``Path``: the browser then limits it to the directory of the request that set it, which is the API of
the dashboard also behind a proxy that changes paths.
"""

from __future__ import annotations

import hashlib
import hmac
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from holdfast.http.session import SessionInfo
from holdfast.ports import Runtime

COOKIE = "holdfast_session"
LIFETIME = timedelta(hours=12)
IDLE = timedelta(hours=2)
"""A session without requests for this time ends."""
MAX_SESSIONS = 10_000
"""At more sessions, the one that was unused for the longest time ends."""
_ID_BYTES = 32


@dataclass(slots=True)
class _Session:
    authorization: str = field(repr=False)
    info: SessionInfo
    used_at: datetime


class Sessions:
    """The sessions of one server process."""

    def __init__(self, runtime: Runtime) -> None:
        self._now: Callable[[], datetime] = runtime.time.now
        self._bytes = runtime.random.bytes
        self._by_digest: OrderedDict[bytes, _Session] = OrderedDict()  # the least recently used first

    def begin(self, token: str) -> tuple[str, SessionInfo]:
        """Begin a session with this token; returns the value of its cookie."""
        key, now = self._bytes(_ID_BYTES).hex(), self._now()
        info = SessionInfo(now + LIFETIME, self._bytes(_ID_BYTES).hex())
        while len(self._by_digest) >= MAX_SESSIONS:
            self._by_digest.popitem(last=False)
        self._by_digest[_digest(key)] = _Session(f"Bearer {token}", info, now)
        return key, info

    def find(self, key: str) -> tuple[str, SessionInfo] | None:
        """The value of the Authorization header for a session, and its data; None: it does not exist, or has ended."""
        digest, now = _digest(key), self._now()
        session = self._by_digest.get(digest)
        if session is None:
            return None
        if now >= session.info.expires_at or now >= session.used_at + IDLE:
            del self._by_digest[digest]
            return None
        session.used_at = now
        self._by_digest.move_to_end(digest)
        return session.authorization, session.info

    def end(self, key: str) -> None:
        session = self._by_digest.pop(_digest(key), None)
        if session is not None:
            session.info.ended = True


def is_csrf_token(session: SessionInfo, given: str) -> bool:
    return hmac.compare_digest(session.csrf_token.encode(), given.encode("utf-8", "surrogateescape"))


def _digest(key: str) -> bytes:
    """The key of a session in memory. The duration of a lookup depends on the digest only, and so reveals no id."""
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()
