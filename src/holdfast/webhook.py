"""Webhooks: delivery of outbound events as signed HTTP requests, and verification for the receiver.

Requests are signed by the Standard Webhooks convention (https://www.standardwebhooks.com): the header
``webhook-signature`` is ``v1,`` and the base64 of the HMAC-SHA256 of ``id.timestamp.body``, where id and timestamp are
the headers ``webhook-id`` and ``webhook-timestamp``.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import hmac
import ipaddress
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import SplitResult, urlsplit

from holdfast.core import codec
from holdfast.core.durations import Duration, to_ms
from holdfast.core.model import to_ms as time_ms
from holdfast.core.outbound import OutboundEvent
from holdfast.core.show import shown
from holdfast.errors import DamagedRunError, DeliveryError, InvalidOptionError, InvalidUrlError, SignatureError
from holdfast.ports import Clock, SystemClock

if TYPE_CHECKING:
    import ssl

_ID, _TIMESTAMP, _SIGNATURE = "webhook-id", "webhook-timestamp", "webhook-signature"
_PREFIX = "whsec_"
_SYSTEM_CLOCK = SystemClock()


class Webhook:
    """A handler for ``app.outbox`` that posts events to a URL.

    The URL must be ``https``, or ``http`` with a loopback address. ``secret``: text, or ``whsec_`` and base64. A
    response with a status of 200 to 299 means that the event was delivered; redirects are not followed.

    Example::

        app.outbox(Webhook("https://example.com/hooks", secret=os.environ["HOOK_SECRET"]))
    """

    def __init__(
        self,
        url: str,
        secret: str | bytes,
        *,
        timeout: Duration = "30 seconds",
        headers: Mapping[str, str] | None = None,
        clock: Clock = _SYSTEM_CLOCK,
    ) -> None:
        self._parts = _checked_url(url)
        self._url = url
        self._key = _key(secret)
        self._seconds = to_ms(timeout, "timeout") / 1000
        self._headers = _checked_headers(headers or {})
        self._clock = clock
        self._tls: ssl.SSLContext | None = None

    def __repr__(self) -> str:
        return f"<Webhook {self._target}>"

    @property
    def _target(self) -> str:
        """The URL for messages, without user, password and query, which may contain secrets."""
        parts = self._parts
        port = "" if parts.port is None else f":{parts.port}"
        return f"{parts.scheme}://{parts.hostname}{port}{parts.path}"

    async def __call__(self, event: OutboundEvent) -> None:
        import httpx

        body = _body(event)
        headers = {**self._headers, **self._signed(event.id, body), "content-type": "application/json"}
        _add_trace_context(headers)
        try:
            async with asyncio.timeout(self._seconds):
                status = await self._post(body, headers)
        except TimeoutError:
            raise DeliveryError(f"{self._target} did not answer within {self._seconds:g} s") from None
        except httpx.HTTPError as error:
            raise DeliveryError(f"{self._target} could not be reached: {type(error).__name__}") from None
        if not 200 <= status < 300:
            raise DeliveryError(f"{self._target} answered {status}", status)

    async def _post(self, body: bytes, headers: Mapping[str, str]) -> int:
        """Send the request; returns the status of the response, whose body is not read."""
        import httpx

        async with (
            httpx.AsyncClient(verify=self._context(), timeout=None) as client,  # noqa: S113  (the caller sets one)
            client.stream("POST", self._url, content=body, headers=dict(headers)) as response,
        ):
            return int(response.status_code)

    def _signed(self, id: str, body: bytes) -> dict[str, str]:
        timestamp = str(time_ms(self._clock.now()) // 1000)
        return {_ID: id, _TIMESTAMP: timestamp, _SIGNATURE: f"v1,{_signature(self._key, id, timestamp, body)}"}

    def _context(self) -> ssl.SSLContext | bool:
        """The TLS context. Created once, because it reads all certificates of the system."""
        if self._parts.scheme == "http":
            return False
        if self._tls is None:
            import ssl

            self._tls = ssl.create_default_context()
        return self._tls


def _add_trace_context(headers: dict[str, str]) -> None:
    """Add the headers of the current trace, if the program uses OpenTelemetry."""
    propagate = sys.modules.get("opentelemetry.propagate")
    if propagate is not None:
        carrier: dict[str, str] = {}
        propagate.inject(carrier)
        headers |= {name: value for name, value in carrier.items() if name not in headers}


def verify_webhook(
    secret: str | bytes,
    headers: Mapping[str, str],
    body: bytes | str,
    tolerance: Duration = "5 minutes",
    *,
    clock: Clock = _SYSTEM_CLOCK,
) -> Any:
    """Verify a received webhook and return its decoded content.

    Raises ``SignatureError`` unless the webhook was signed with this secret, within the last ``tolerance``. ``body``:
    exactly as it was received.
    """
    lower = {name.lower(): value for name, value in headers.items()}
    try:
        event_id, timestamp, signatures = lower[_ID], lower[_TIMESTAMP], lower[_SIGNATURE]
    except KeyError as missing:
        raise SignatureError(f"there is no header {missing.args[0]}") from None
    raw = body.encode() if isinstance(body, str) else body
    expected = _signature(_key(secret), event_id, timestamp, raw).encode()
    received = [signature.partition(",") for signature in signatures.split()]
    if not any(version == "v1" and hmac.compare_digest(value.encode(), expected) for version, _, value in received):
        raise SignatureError("the signature does not match the secret and the body")
    if not (timestamp.isascii() and timestamp.isdigit()):
        raise SignatureError("the timestamp is not a number")
    if abs(time_ms(clock.now()) - int(timestamp) * 1000) > to_ms(tolerance, "tolerance"):
        raise SignatureError("the webhook was signed too long ago, or the clocks differ")
    try:
        return codec.plain(raw)
    except DamagedRunError as error:
        raise SignatureError("the signed body is not JSON") from error


def _body(event: OutboundEvent) -> bytes:
    content = {
        "id": event.id,
        "type": event.type,
        "workflow": event.workflow,
        "instanceId": event.instance_id,
        "step": event.step,
        "timestamp": event.created_at.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "payload": event.payload,
    }
    return codec.encode(content, what="webhook")


def _signature(key: bytes, id: str, timestamp: str, body: bytes) -> str:
    signed = hmac.new(key, f"{id}.{timestamp}.".encode() + body, hashlib.sha256)
    return base64.b64encode(signed.digest()).decode()


def _key(secret: object) -> bytes:
    """The key of a secret. Error messages do not show the secret."""
    if isinstance(secret, str) and secret.startswith(_PREFIX):
        try:
            secret = base64.b64decode(secret.removeprefix(_PREFIX), validate=True)
        except binascii.Error:
            raise InvalidOptionError(f"secret: the text after {_PREFIX} must be base64") from None
    key = secret.encode() if isinstance(secret, str) else secret
    if not isinstance(key, bytes) or not key:
        raise InvalidOptionError("secret must be text or bytes, and not empty")
    return key


def _checked_url(url: object) -> SplitResult:
    try:
        parts = urlsplit(url) if isinstance(url, str) else None
        known = parts is not None and parts.hostname and (parts.port is None or parts.port)
    except ValueError:
        parts, known = None, False
    if parts is None or not known or not (parts.scheme == "https" or _is_local(parts)):
        raise InvalidUrlError("a webhook needs a URL with https, or with http to a loopback address")
    return parts


def _is_local(parts: SplitResult) -> bool:
    host = parts.hostname or ""
    if parts.scheme != "http":
        return False
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _checked_headers(headers: Mapping[str, str]) -> dict[str, str]:
    for name, value in headers.items():
        if not (isinstance(name, str) and isinstance(value, str)):
            raise InvalidOptionError(f"headers must be text, not {shown(name)}: …")
        if name.lower() in (_ID, _TIMESTAMP, _SIGNATURE, "content-type"):
            raise InvalidOptionError(f"the header {name} is set by the webhook and cannot be given")
    return dict(headers)
