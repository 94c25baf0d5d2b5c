"""The HTTP API of a server, as the management commands use it: one request, its repeats, and what went wrong.

What may be repeated: a request that only reads, or whose second arrival changes nothing, after every trouble that may
pass (no connection, no answer, 5xx, 429). Any other request only when it certainly had no effect: there was no
connection, or the server refused it with 429.
"""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar
from urllib.parse import quote, urlencode, urlsplit

from holdfast.cli.safe import one_line
from holdfast.cli.wire import Fields
from holdfast.errors import HoldfastError

if TYPE_CHECKING:
    import httpx

T = TypeVar("T")
Understood: TypeAlias = "Callable[[httpx.Response, bytes], T | None]"
"""A good answer as what was wanted; None: it is something else."""

_LONGEST_PAUSE = 30.0
_LONGEST_RETRY_AFTER = 600.0
_SHORTEST_SECRET = 4
_FOR_GOOD = {HTTPStatus.NOT_IMPLEMENTED, HTTPStatus.HTTP_VERSION_NOT_SUPPORTED}
_ALREADY_DONE = {"INSTANCE_ID_ALREADY_EXISTS", "INSTANCE_TERMINAL"}


@dataclass(frozen=True, slots=True)
class Connection:
    """Where the server is and how to talk to it. Times are in seconds."""

    base_url: str
    headers: Sequence[tuple[str, str]]
    timeout: float
    retries: int
    retry_delay: float


class CommandFailedError(HoldfastError):
    """A command did not do what it was asked to; it ends with exit code 1."""

    code = "COMMAND_FAILED"


class RequestFailedError(CommandFailedError):
    """A request without a good answer. ``passing``: it may go better later. ``no_effect``: the server did nothing."""

    code = "REQUEST_FAILED"

    def __init__(
        self,
        reason: str,
        *,
        error_code: str = "",
        passing: bool = False,
        no_effect: bool = False,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(f"Request failed: {reason}")
        self.error_code = error_code
        self.passing = passing
        self.no_effect = no_effect
        self.retry_after = retry_after


class Remote:
    """Speaks to one server. Paths are given in parts, which are quoted."""

    def __init__(self, connection: Connection) -> None:
        import httpx  # noqa: PLC0415  (too heavy for `--help`)

        self._connection = connection
        self.shown_url = _without_user(connection.base_url)
        host = urlsplit(connection.base_url).hostname or ""
        self._client = httpx.Client(
            headers=[(name.encode(), value.encode()) for name, value in connection.headers],
            timeout=connection.timeout,
            trust_env=host not in ("localhost", "::1") and not host.startswith("127."),  # no proxy leads to ourselves
        )

    def __enter__(self) -> Remote:
        return self

    def __exit__(self, *_error: object) -> None:
        self._client.close()

    def get(self, *path: str, expect: str, query: Mapping[str, object] | None = None) -> Fields:
        """Read. ``expect`` names a field that the right answer has."""
        return self._repeat("GET", path, _with_field(expect), query=query)

    def get_text(self, *path: str) -> str:
        """Read what is no JSON but plain text."""
        return self._repeat("GET", path, _plain_text)

    def post(self, *path: str, expect: str, body: str | None = None, repeatable: bool) -> Fields:
        """Change something. ``repeatable``: a second arrival of the same request changes nothing more."""
        return self._repeat("POST", path, _with_field(expect), body=body, repeatable=repeatable)

    def pause_before(self, attempt: int, failure: RequestFailedError) -> float:
        """Seconds to wait before the next attempt: doubling, and never shorter than the server asks for."""
        pause = min(self._connection.retry_delay * 2.0 ** min(attempt, 10), _LONGEST_PAUSE)
        return max(pause, failure.retry_after or 0.0)

    def _repeat(
        self,
        method: str,
        path: Sequence[str],
        understood: Understood[T],
        *,
        query: Mapping[str, object] | None = None,
        body: str | None = None,
        repeatable: bool = True,
    ) -> T:
        url, perhaps_done = self._url(path, query), False
        for attempt in range(self._connection.retries + 1):
            try:
                return self._once(method, url, body, understood)
            except RequestFailedError as failure:
                if perhaps_done and failure.error_code in _ALREADY_DONE:
                    raise _explained(failure) from None
                if attempt == self._connection.retries or not _worth_repeating(failure, repeatable):
                    raise
                perhaps_done |= not failure.no_effect
                pause = self.pause_before(attempt, failure)
                say(f"{failure}; trying again in {pause:g} s")
                time.sleep(pause)
        raise AssertionError("the last attempt returns or raises")

    def _url(self, path: Sequence[str], query: Mapping[str, object] | None) -> str:
        given = {name: value for name, value in (query or {}).items() if value is not None}
        parts = "/".join(quote(part, safe="") for part in path)
        return f"{self._connection.base_url}/{parts}" + (f"?{urlencode(given, doseq=True)}" if given else "")

    def _once(self, method: str, url: str, body: str | None, understood: Understood[T]) -> T:
        import httpx  # noqa: PLC0415

        headers = {} if body is None else {"content-type": "application/json"}
        content = None if body is None else body.encode()
        try:
            with self._client.stream(method, url, content=content, headers=headers) as response:
                return self._answer(response, self._read(response), understood)
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            reason = f"no connection to {self.shown_url} ({self._cause(error)})"
            raise RequestFailedError(reason, passing=True, no_effect=True) from None
        except httpx.TimeoutException:
            raise self._too_slow() from None
        except httpx.TransportError as error:
            reason = f"{self.shown_url} gave no answer ({self._cause(error)})"
            raise RequestFailedError(reason, passing=True) from None
        except httpx.HTTPError as error:
            raise RequestFailedError(f"{self.shown_url}: {self._cause(error)}") from None

    def _read(self, response: httpx.Response) -> bytes:
        """The body. The time is checked here too: httpx bounds each read, not all of them together."""
        end, parts = time.monotonic() + self._connection.timeout, []
        for part in response.iter_bytes():
            parts.append(part)
            if time.monotonic() > end:
                raise self._too_slow()
        return b"".join(parts)

    def _too_slow(self) -> RequestFailedError:
        return RequestFailedError(
            f"no answer from {self.shown_url} within {self._connection.timeout:g} s", passing=True
        )

    def _answer(self, response: httpx.Response, body: bytes, understood: Understood[T]) -> T:
        if not response.is_success:
            raise self._refusal(response, Fields(_json(body)))
        answer = understood(response, body) if response.status_code == HTTPStatus.OK else None
        if answer is None:
            instead = f"{response.status_code}, but not with the answer of a Holdfast API"
            raise RequestFailedError(f"{instead}; is {self.shown_url} the full base of one?")
        return answer

    def _refusal(self, response: httpx.Response, fields: Fields) -> RequestFailedError:
        status, code = response.status_code, fields.text("code")
        message = fields.text("message") or _phrase(status)
        if code:
            message += f" ({code})"
        elif status < 500:
            message += f"; is {self.shown_url} the full base of a Holdfast API?"
        issues = [text for issue in fields.list("issues") if (text := _issue(issue)) and text not in message]
        reason = one_line("; ".join([f"{status} {message}", *issues]))
        return RequestFailedError(
            self._without_secrets(reason),
            error_code=code,
            passing=status == HTTPStatus.TOO_MANY_REQUESTS or (status >= 500 and status not in _FOR_GOOD),
            no_effect=status == HTTPStatus.TOO_MANY_REQUESTS,
            retry_after=_retry_after(response.headers.get("retry-after", "")),
        )

    def _cause(self, error: Exception) -> str:
        return self._without_secrets(one_line(str(error) or type(error).__name__))

    def _without_secrets(self, text: str) -> str:
        """A server may quote what it was sent; the values of headers are nobody's business."""
        values = {form for _, value in self._connection.headers for form in (value, *value.split()[1:])}
        for value in sorted(values, key=len, reverse=True):
            if len(value) >= _SHORTEST_SECRET:
                text = text.replace(value, "…")
        return text


def _with_field(name: str) -> Understood[Fields]:
    """JSON with a field that says it is the right one."""

    def understood(_response: httpx.Response, body: bytes) -> Fields | None:
        fields = Fields(_json(body))
        return fields if name in fields else None

    return understood


def _plain_text(response: httpx.Response, body: bytes) -> str | None:
    is_text = response.headers.get("content-type", "").startswith("text/plain")
    return body.decode(errors="replace") if is_text else None


def say(text: str) -> None:
    """A remark beside the result: only for a person who watches."""
    if sys.stderr.isatty():
        sys.stderr.write(f"{text}\n")


def _worth_repeating(failure: RequestFailedError, repeatable: bool) -> bool:
    if failure.retry_after is not None and failure.retry_after > _LONGEST_RETRY_AFTER:
        return False
    return failure.passing and (repeatable or failure.no_effect)


def _explained(failure: RequestFailedError) -> RequestFailedError:
    text = str(failure).removeprefix("Request failed: ")
    return RequestFailedError(f"{text}; an earlier attempt of this command may have done it: see `instances get`")


def _retry_after(value: str) -> float | None:
    """Seconds, from a number of them or from a date."""
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
    """One entry of ``issues``: where, and what is wrong there."""
    where = issue.any("path") or issue.any("loc")
    path = ".".join(map(str, where)) if isinstance(where, list) else str(where or "")
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
