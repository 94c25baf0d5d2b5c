"""Webhooks: signatures by the Standard Webhooks convention, checks of URLs, and hidden secrets."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from holdfast import (
    ChainTask,
    Completed,
    DeliveryError,
    Holdfast,
    InvalidDurationError,
    InvalidOptionError,
    InvalidUrlError,
    Outbound,
    OutboundEvent,
    SignatureError,
    Webhook,
    verify_webhook,
)
from holdfast.testing import Harness

SECRET = "whsec_" + base64.b64encode(b"a key of bytes").decode()
WHEN = datetime(2030, 1, 1, tzinfo=UTC)
EVENT = OutboundEvent("orders/o-1/0/1", "paid", {"total": 5}, "orders", "o-1", "PAY", WHEN, 1)


class FixedClock:
    """A clock that always returns one time."""

    def __init__(self, when: datetime) -> None:
        self.when = when

    def now(self) -> datetime:
        return self.when

    def monotonic(self) -> float:
        return 0.0


class Receiver:
    """An HTTP server on a loopback address."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, dict[str, str], bytes]] = []
        self.answers: list[str] = []
        self.silent = False
        self.url = ""

    async def serve(self) -> AsyncIterator[Receiver]:
        server = await asyncio.start_server(self._answer, "127.0.0.1", 0)
        host, port = server.sockets[0].getsockname()
        self.url = f"http://{host}:{port}/hooks"
        try:
            yield self
        finally:
            server.close()
            await server.wait_closed()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
            headers = {k.lower(): v for k, _, v in (line.partition(": ") for line in head[1:] if line)}
            body = await reader.readexactly(int(headers["content-length"]))
            self.requests.append((head[0], headers, body))
            if self.silent:
                await reader.read()
            answer = self.answers.pop(0) if self.answers else "204 No Content"
            writer.write(f"HTTP/1.1 {answer}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".encode())
            await writer.drain()
        finally:
            writer.close()


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    async for server in Receiver().serve():
        yield server


async def test_an_event_is_posted_with_a_standard_signature(receiver: Receiver) -> None:
    await Webhook(receiver.url, SECRET, headers={"x-tenant": "t"}, clock=FixedClock(WHEN))(EVENT)
    [(line, headers, body)] = receiver.requests
    assert line == "POST /hooks HTTP/1.1"
    assert json.loads(body) == {
        "id": "orders/o-1/0/1",
        "type": "paid",
        "workflow": "orders",
        "instanceId": "o-1",
        "step": "PAY",
        "timestamp": "2030-01-01T00:00:00.000Z",
        "payload": {"total": 5},
    }
    stamp = str(int(WHEN.timestamp()))
    signed = hmac.new(b"a key of bytes", f"orders/o-1/0/1.{stamp}.".encode() + body, hashlib.sha256).digest()
    assert headers["webhook-id"] == "orders/o-1/0/1"
    assert headers["webhook-timestamp"] == stamp
    assert headers["webhook-signature"] == "v1," + base64.b64encode(signed).decode()
    assert (headers["content-type"], headers["x-tenant"]) == ("application/json", "t")


@pytest.mark.parametrize("secret", [SECRET, "plain text", b"bytes"])
async def test_a_receiver_can_verify_the_signature(receiver: Receiver, secret: Any) -> None:
    await Webhook(receiver.url, secret)(EVENT)
    [(_, headers, body)] = receiver.requests
    assert verify_webhook(secret, headers, body)["payload"] == {"total": 5}
    assert verify_webhook(secret, {k.title(): v for k, v in headers.items()}, body.decode())["type"] == "paid"


async def signed(receiver: Receiver) -> tuple[dict[str, str], bytes]:
    await Webhook(receiver.url, SECRET, clock=FixedClock(WHEN))(EVENT)
    [(_, headers, body)] = receiver.requests
    return headers, body


async def test_a_request_with_any_changed_part_is_refused(receiver: Receiver) -> None:
    headers, body = await signed(receiver)
    good = verify_webhook(SECRET, headers, body, clock=FixedClock(WHEN))
    assert good["id"] == EVENT.id
    other = str(int(WHEN.timestamp()) + 1)
    changed: list[tuple[Any, dict[str, str], bytes]] = [
        ("another", headers, body),
        (SECRET, headers, body + b" "),
        (SECRET, headers | {"webhook-id": "x"}, body),
        (SECRET, headers | {"webhook-timestamp": other}, body),
        (SECRET, headers | {"webhook-timestamp": "now"}, body),
        (SECRET, headers | {"webhook-signature": "v1,"}, body),
        (SECRET, headers | {"webhook-signature": ""}, body),
        (SECRET, headers | {"webhook-signature": headers["webhook-signature"].replace("v1,", "v2,")}, body),
        (SECRET, headers | {"webhook-signature": "v1,ä"}, body),
        (SECRET, {k: v for k, v in headers.items() if k != "webhook-id"}, body),
    ]
    for secret, some_headers, some_body in changed:
        with pytest.raises(SignatureError):
            verify_webhook(secret, some_headers, some_body, clock=FixedClock(WHEN))


async def test_one_valid_signature_among_several_is_enough(receiver: Receiver) -> None:
    headers, body = await signed(receiver)
    headers["webhook-signature"] = f"v1a,x v1,eHh4 {headers['webhook-signature']}"
    assert verify_webhook(SECRET, headers, body, clock=FixedClock(WHEN))


@pytest.mark.parametrize("minutes", [-6, 6])
async def test_a_request_outside_the_tolerance_is_refused(receiver: Receiver, minutes: int) -> None:
    headers, body = await signed(receiver)
    clock = FixedClock(WHEN + timedelta(minutes=minutes))
    with pytest.raises(SignatureError, match="too long ago"):
        verify_webhook(SECRET, headers, body, clock=clock)
    assert verify_webhook(SECRET, headers, body, "7 minutes", clock=clock)


@pytest.mark.parametrize("answer", ["500 No", "404 No", "302 Found\r\nLocation: http://127.0.0.1:1/", "301 Moved"])
async def test_a_response_other_than_2xx_is_a_failed_delivery(receiver: Receiver, answer: str) -> None:
    receiver.answers = [answer]
    with pytest.raises(DeliveryError, match=answer[:3]) as caught:
        await Webhook(receiver.url, SECRET)(EVENT)
    assert caught.value.status == int(answer[:3])
    assert len(receiver.requests) == 1


async def test_an_unreachable_or_silent_server_is_a_failed_delivery(receiver: Receiver) -> None:
    with pytest.raises(DeliveryError, match="could not be reached"):
        await Webhook("http://127.0.0.1:1/", SECRET)(EVENT)
    receiver.silent = True
    with pytest.raises(DeliveryError, match=r"did not answer within 0\.05 s"):
        await Webhook(receiver.url, SECRET, timeout="50 ms")(EVENT)


@pytest.mark.parametrize(
    "url",
    [
        "http://example.com/", "ftp://127.0.0.1/", "https://", "example.com", "", None, 5, "http://127.0.0.1.evil.com/",
        "http://localhost.evil.com/", "http://0.0.0.0/", "http://169.254.169.254/", "https://x:99999/", "file:///etc",
    ],
)  # fmt: skip
def test_unsafe_urls_are_refused(url: Any) -> None:
    with pytest.raises(InvalidUrlError):
        Webhook(url, SECRET)


@pytest.mark.parametrize("url", ["https://example.com/", "http://localhost:8/", "http://127.0.0.9/", "http://[::1]:8/"])
def test_https_and_loopback_urls_are_accepted(url: str) -> None:
    assert Webhook(url, SECRET)


@pytest.mark.parametrize("secret", ["", b"", None, 5, "whsec_", "whsec_not base64!"])
def test_an_invalid_secret_is_refused(secret: Any) -> None:
    with pytest.raises(InvalidOptionError, match="secret"):
        Webhook("https://example.com", secret)


def test_invalid_options_of_a_webhook_are_refused() -> None:
    with pytest.raises(InvalidDurationError):
        Webhook("https://example.com", SECRET, timeout="soon")
    for headers in ({"Webhook-Id": "x"}, {"content-type": "x"}, {"a": 5}):
        with pytest.raises(InvalidOptionError):
            Webhook("https://example.com", SECRET, headers=headers)  # type: ignore[arg-type]


@pytest.mark.promise("no-secrets", store=None)
async def test_secrets_are_never_shown(caplog: pytest.LogCaptureFixture) -> None:
    hook = Webhook("http://user:pass@127.0.0.1:1/a?token=hidden", "s3cret", headers={"authorization": "h1dden"})
    assert repr(hook) == "<Webhook http://127.0.0.1:1/a>"
    with pytest.raises(DeliveryError) as caught:
        await hook(EVENT)
    shown = f"{caught.value!r} {caught.value.__cause__!r} {caplog.text} {hook!r}"
    assert not any(word in shown for word in ("s3cret", "pass", "hidden", "h1dden"))


async def test_a_chain_delivers_its_events_to_a_server(receiver: Receiver, h: Harness, app: Holdfast) -> None:
    chain = app.chain("notifies")

    @chain.step("ONLY")
    async def only(task: ChainTask) -> Any:
        return Completed(1, [Outbound("first", {"n": 1}), Outbound("second")])

    app.outbox(Webhook(receiver.url, SECRET))
    receiver.answers = ["503 Later"]
    run = await h.start(chain, id="one")
    await h.run_until_idle()
    [first, _] = await run.outbox()
    assert (first.state, first.error) == ("pending", f"DeliveryError: {receiver.url} answered 503")
    await h.advance("10 seconds")
    assert [record.state for record in await run.outbox()] == ["delivered", "delivered"]
    ids = [headers["webhook-id"] for _, headers, _ in receiver.requests]
    assert ids == ["notifies/one/0/1", "notifies/one/0/1", "notifies/one/0/2"]
    for _, headers, body in receiver.requests:
        assert verify_webhook(SECRET, headers, body)["workflow"] == "notifies"
