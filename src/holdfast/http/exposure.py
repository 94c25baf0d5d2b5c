"""The addresses on which an app without authorization hooks may be served."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from functools import lru_cache

from starlette.types import Scope as Connection

from holdfast.http.auth import Authorize


@dataclass(frozen=True, slots=True)
class Exposure:
    """Without hooks every caller may do everything, so only callers on the same machine are served."""

    authorize: Authorize
    insecure: bool = False
    """True: every address is allowed."""

    def allows(self, connection: Connection) -> bool:
        return self.insecure or not self.authorize.open or on_loopback(connection)


def on_loopback(connection: Connection) -> bool:
    """True if the connection was accepted on a loopback address."""
    server = connection.get("server")
    return _is_loopback(server[0] if server else "")


@lru_cache(maxsize=64)
def _is_loopback(host: str) -> bool:
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return bool(host == "localhost")
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return (mapped or address).is_loopback
