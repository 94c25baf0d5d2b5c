"""HTTP client of the management commands: requests, retries and error messages.

A request that only reads, or that is idempotent, is repeated after every transient failure: no connection, no
response, 5xx, 429. Any other request is repeated only if it certainly had no effect: there was no connection, or the
server refused the request with 429.
"""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar
from urllib.parse import quote, urlencode, urlsplit

from holdfast.cli.response_fields import Fields
from holdfast.cli.terminal_text import one_line
from holdfast.errors import HoldfastError

if TYPE_CHECKING:
    import httpx

T = TypeVar("T")
ResponseParser: TypeAlias = "Callable[[httpx.Response, bytes], T | None]"
"""Converts a successful response to a value; None if the response is not one of a Holdfast API."""

_MAX_PAUSE = 30.0
_MAX_RETRY_AFTER = 600.0
_MIN_SECRET_LENGTH = 4
_PERMANENT = {HTTPStatus.NOT_IMPLEMENTED, HTTPStatus.HTTP_VERSION_NOT_SUPPORTED}
_APPLIED_CODES = {"INSTANCE_ID_ALREADY_EXISTS", "INSTANCE_TERMINAL"}
"""Error codes that a retry receives if an earlier attempt of the same request took effect."""


@dataclass(frozen=True, slots=True)
class Connection:
    """The server and the options of requests to it. Times are in seconds."""

    base_url: str
    headers: Sequence[tuple[str, str]]
    timeout: float
    retries: int
    retry_delay: float


class CommandFailedError(HoldfastError):
    """A command failed; it ends with exit code 1."""

    code = "COMMAND_FAILED"


class RequestFailedError(CommandFailedError):
    """A failed request.

    ``transient``: a later attempt may succeed. ``no_effect``: the server certainly did not process the request.
    """

    code = "REQUEST_FAILED"

    def __init__(
        self,
        reason: str,
        *,
        error_code: str = "",
        transient: bool = False,
        no_effect: bool = False,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(f"Request failed: {reason}")
        self.error_code = error_code
        self.transient = transient
        self.no_effect = no_effect
        self.retry_after = retry_after


_SILENCE_S = 60.0
"""Time after which a stream counts as broken: the server sends a ping every 15 seconds."""


class Remote:
    """Client of one server. Paths are given in segments, which are quoted."""

    def __init__(self, connection: Connection) -> None:
        import httpx

        self._connection = connection
        self.shown_url = _without_user(connection.base_url)
        url = urlsplit(connection.base_url)
        host = url.hostname or ""
        self._client = httpx.Client(
            headers=[(name.encode(), value.encode()) for name, value in connection.headers],
            timeout=connection.timeout,
            verify=url.scheme != "http",  # the certificate authorities take 30 ms to read
            trust_env=host not in ("localhost", "::1") and not host.startswith("127."),  # no proxy for this machine
        )

    def __enter__(self) -> Remote:
        return self

    def __exit__(self, *_error: object) -> None:
        self._client.close()

    def get(self, *path: str, expect: str, query: Mapping[str, object] | None = None) -> Fields:
        """Read JSON. ``expect`` names a field that every valid response has."""
        return self._send_with_retries("GET", path, _with_field(expect), query=query)

    def get_text(self, *path: str) -> str:
        """Read plain text."""
        return self._send_with_retries("GET", path, _plain_text)

    def post(self, *path: str, expect: str, body: str | None = None, repeatable: bool) -> Fields:
        """Send a request that changes state. ``repeatable``: the request is idempotent."""
        return self._send_with_retries("POST", path, _with_field(expect), body=body, repeatable=repeatable)

    def put(self, *path: str, expect: str, body: str) -> Fields:
        """Set fields. The request is idempotent."""
        return self._send_with_retries("PUT", path, _with_field(expect), body=body)

    def patch(self, *path: str, expect: str, body: str) -> Fields:
        """Replace some fields. The request is idempotent."""
        return self._send_with_retries("PATCH", path, _with_field(expect), body=body)

    def delete(self, *path: str, expect: str, body: str | None = None) -> Fields:
        return self._send_with_retries("DELETE", path, _with_field(expect), body=body, repeatable=False)

    def lines(self, *path: str, query: Mapping[str, object] | None = None) -> Iterator[str]:
        """The lines of a response that ends when the server has nothing more to send."""
        import httpx

        timeout = httpx.Timeout(self._connection.timeout, read=_SILENCE_S)
        try:
            with self._client.stream("GET", self._url(path, query), timeout=timeout) as response:
                if not response.is_success:
                    raise self._failure_of(response, Fields(_json(self._read(response))))
                yield from response.iter_lines()
        except httpx.TransportError as error:
            reason = f"no response from {self.shown_url} ({self._cause(error)})"
            raise RequestFailedError(reason, transient=True) from None

    def pause_before(self, attempt: int, failure: RequestFailedError) -> float:
        """Seconds to wait before the next attempt: they double, and are at least the server's Retry-After."""
        pause = min(self._connection.retry_delay * 2.0 ** min(attempt, 10), _MAX_PAUSE)
        return max(pause, failure.retry_after or 0.0)

    def _send_with_retries(
        self,
        method: str,
        path: Sequence[str],
        parse: ResponseParser[T],
        *,
        query: Mapping[str, object] | None = None,
        body: str | None = None,
        repeatable: bool = True,
    ) -> T:
        url, possibly_applied = self._url(path, query), False
        for attempt in range(self._connection.retries + 1):
            try:
                return self._send(method, url, body, parse)
            except RequestFailedError as failure:
                if possibly_applied and failure.error_code in _APPLIED_CODES:
                    raise _with_hint(failure) from None
                if attempt == self._connection.retries or not _should_retry(failure, repeatable):
                    raise
                possibly_applied |= not failure.no_effect
                pause = self.pause_before(attempt, failure)
                print_note(f"{failure}; trying again in {pause:g} s")
                time.sleep(pause)
        raise AssertionError("the last attempt returns or raises")

    def _url(self, path: Sequence[str], query: Mapping[str, object] | None) -> str:
        parameters = {name: value for name, value in (query or {}).items() if value is not None}
        segments = "/".join(quote(segment, safe="") for segment in path)
        url = f"{self._connection.base_url}/{segments}"
        return f"{url}?{urlencode(parameters, doseq=True)}" if parameters else url

    def _send(self, method: str, url: str, body: str | None, parse: ResponseParser[T]) -> T:
        import httpx

        headers = {} if body is None else {"content-type": "application/json"}
        content = None if body is None else body.encode()
        try:
            with self._client.stream(method, url, content=content, headers=headers) as response:
                return self._value_of(response, self._read(response), parse)
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            reason = f"no connection to {self.shown_url} ({self._cause(error)})"
            raise RequestFailedError(reason, transient=True, no_effect=True) from None
        except httpx.TimeoutException:
            raise self._too_slow() from None
        except httpx.TransportError as error:
            reason = f"no response from {self.shown_url} ({self._cause(error)})"
            raise RequestFailedError(reason, transient=True) from None
        except httpx.HTTPError as error:
            raise RequestFailedError(f"{self.shown_url}: {self._cause(error)}") from None

    def _read(self, response: httpx.Response) -> bytes:
        """Read the body within the timeout. The timeout of httpx limits each read, not their sum."""
        end, parts = time.monotonic() + self._connection.timeout, []
        for part in response.iter_bytes():
            parts.append(part)
            if time.monotonic() > end:
                raise self._too_slow()
        return b"".join(parts)

    def _too_slow(self) -> RequestFailedError:
        return RequestFailedError(
            f"no response from {self.shown_url} within {self._connection.timeout:g} s", transient=True
        )

    def _value_of(self, response: httpx.Response, body: bytes, parse: ResponseParser[T]) -> T:
        if not response.is_success:
            raise self._failure_of(response, Fields(_json(body)))
        value = parse(response, body) if response.status_code == HTTPStatus.OK else None
        if value is None:
            problem = f"{response.status_code}, but the response is not one of a Holdfast API"
            raise RequestFailedError(f"{problem}; is {self.shown_url} its full base URL?")
        return value

    def _failure_of(self, response: httpx.Response, fields: Fields) -> RequestFailedError:
        status, code = response.status_code, fields.text("code")
        message = fields.text("message") or _phrase(status)
        if code:
            message += f" ({code})"
        elif status < 500:
            message += f"; is {self.shown_url} the full base URL of a Holdfast API?"
        issues = [text for issue in fields.list("issues") if (text := _issue(issue)) and text not in message]
        reason = one_line("; ".join([f"{status} {message}", *issues]))
        return RequestFailedError(
            self._without_secrets(reason),
            error_code=code,
            transient=status == HTTPStatus.TOO_MANY_REQUESTS or (status >= 500 and status not in _PERMANENT),
            no_effect=status == HTTPStatus.TOO_MANY_REQUESTS,
            retry_after=_retry_after(response.headers.get("retry-after", "")),
        )

    def _cause(self, error: Exception) -> str:
        return self._without_secrets(one_line(str(error) or type(error).__name__))

    def _without_secrets(self, text: str) -> str:
        """Remove the values of headers, which may be secret: a server may quote what it was sent."""
        values = {form for _, value in self._connection.headers for form in (value, *value.split()[1:])}
        for value in sorted(values, key=len, reverse=True):
            if len(value) >= _MIN_SECRET_LENGTH:
                text = text.replace(value, "…")
        return text


def _with_field(name: str) -> ResponseParser[Fields]:
    """Parser of a JSON object that has the field ``name``."""

    def parse(_response: httpx.Response, body: bytes) -> Fields | None:
        fields = Fields(_json(body))
        return fields if name in fields else None

    return parse


def _plain_text(response: httpx.Response, body: bytes) -> str | None:
    is_text = response.headers.get("content-type", "").startswith("text/plain")
    return body.decode(errors="replace") if is_text else None


def print_note(text: str) -> None:
    """Print a note to standard error, if that is a terminal."""
    if sys.stderr.isatty():
        sys.stderr.write(f"{text}\n")


def _should_retry(failure: RequestFailedError, repeatable: bool) -> bool:
    if failure.retry_after is not None and failure.retry_after > _MAX_RETRY_AFTER:
        return False
    return failure.transient and (repeatable or failure.no_effect)


def _with_hint(failure: RequestFailedError) -> RequestFailedError:
    text = str(failure).removeprefix("Request failed: ")
    return RequestFailedError(f"{text}; an earlier attempt of this command may have succeeded: see `instances get`")


def _retry_after(value: str) -> float | None:
    """Seconds in a Retry-After header, which has a number of seconds or a date."""
    if re.fullmatch(r"[0-9]{1,9}", value.strip()):
        return float(value)
    try:
        until = parsedate_to_datetime(value)
    except ValueError:
        return None
    if until.tzinfo is None:
        until = until.replace(tzinfo=UTC)
    return max((until - datetime.now(UTC)).total_seconds(), 0.0)


def _issue(issue: Fields) -> str:
    """One entry of ``issues``: the path of the field, and what is wrong with it."""
    location = issue.any("path") or issue.any("loc")
    path = ".".join(map(str, location)) if isinstance(location, list) else str(location or "")
    message = issue.text("message") or issue.text("msg")
    return f"{path}: {message}" if path and message else message


def _json(body: bytes) -> Any:
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return None


def _phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return "unknown status"


def _without_user(url: str) -> str:
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
