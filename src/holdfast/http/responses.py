"""Responses: JSON encoding, the status of each error, and which part of an error is shown to the caller."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fastapi.exceptions import RequestValidationError
from starlette.requests import Request
from starlette.responses import Response

from holdfast.errors import (
    AppClosedError,
    DamagedRunError,
    EventInvalidError,
    HoldfastError,
    InputError,
    InstanceExistsError,
    InstanceNotFoundError,
    InstanceTerminalError,
    LimitNotFoundError,
    LimitReachedError,
    ParamsInvalidError,
    PayloadError,
    PayloadTooLargeError,
    ScheduleNotFoundError,
    StateError,
    StoreError,
    WorkerNotFoundError,
    WorkflowNotFoundError,
)
from holdfast.http import wire
from holdfast.http.hiding import without_secrets

_log = logging.getLogger("holdfast.http")

VALIDATION_ERROR = "VALIDATION_ERROR"
NOT_FOUND = "NOT_FOUND"
METHOD_NOT_ALLOWED = "METHOD_NOT_ALLOWED"
FORBIDDEN = "FORBIDDEN"
REQUEST_TIMEOUT = "REQUEST_TIMEOUT"
UNSUPPORTED_MEDIA_TYPE = "UNSUPPORTED_MEDIA_TYPE"
AUTHORIZATION_TIMEOUT = "AUTHORIZATION_TIMEOUT"
RUNNER_TICK_DISABLED = "RUNNER_TICK_DISABLED"
DEBUG_DISABLED = "DEBUG_DISABLED"
INTERNAL_ERROR = "INTERNAL_ERROR"

DRAWING = "text/plain"
"""Media type of Mermaid drawings. Starlette adds ``charset=utf-8``."""

# The first matching class counts. Errors that are not listed are internal errors: 500.
_STATUS: Sequence[tuple[type[HoldfastError], int]] = (
    (WorkflowNotFoundError, 404),
    (InstanceNotFoundError, 404),
    (ScheduleNotFoundError, 404),
    (LimitNotFoundError, 404),
    (WorkerNotFoundError, 404),
    (LimitReachedError, 429),
    (InstanceExistsError, 409),
    (InstanceTerminalError, 409),
    (PayloadTooLargeError, 413),
    (PayloadError, 409),
    (InputError, 400),
    (AppClosedError, 503),
    (StateError, 409),
    (StoreError, 503),
)

MAX_DISCARDED_BYTES = 32 * 1024 * 1024
"""Maximum size of the rest of a body that is read and discarded after the response."""
_MAX_MESSAGE_LENGTH = 1000
_CLOSE = {"connection": "close"}
_encoder = json.JSONEncoder(ensure_ascii=True, allow_nan=False, separators=(",", ":"))


class Problem(Exception):
    """An error response. The API raises it directly for errors that no ``HoldfastError`` represents."""

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        *,
        issues: Sequence[wire.Issue] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.issues = issues
        self.headers = headers

    def response(self) -> Response:
        body: wire.Error = {"message": _short(self.message), "code": self.code}
        if self.issues is not None:
            body["issues"] = list(self.issues)
        return reply(body, self.status, self.headers)


def reply(body: Mapping[str, Any], status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Return a JSON response in ASCII: escapes preserve every text, including lone surrogates."""
    return Response(encoded(body), status, headers, media_type="application/json")


def encoded(body: Mapping[str, Any]) -> str:
    """A body as JSON, without the values that the server hides."""
    return _encoder.encode(without_secrets(body))


def drawing(text: str) -> Response:
    return Response(text, media_type=DRAWING)


def invalid(message: str, issues: Sequence[wire.Issue]) -> Problem:
    return Problem(400, VALIDATION_ERROR, message, issues=issues)


def too_large(limit: int, announced: int = 0) -> Problem:
    """Response to an oversized body. ``announced``: its length, if the request states it.

    The connection stays open, so that the server discards the rest of the body. A server that closes a connection with
    unread data resets it, and a client that is still sending loses the response.
    """
    return Problem(
        413,
        PayloadTooLargeError.code,
        f"the body has more than {limit} bytes, which is the maximum",
        headers=_CLOSE if announced > MAX_DISCARDED_BYTES else None,
    )


def too_slow(seconds: float) -> Problem:
    return Problem(408, REQUEST_TIMEOUT, f"the body did not arrive within {seconds:g} seconds", headers=_CLOSE)


def authorization_timeout() -> Problem:
    return Problem(503, AUTHORIZATION_TIMEOUT, "the request could not be authorized in time; try again later")


def issues_of(errors: Iterable[Mapping[str, Any]]) -> list[wire.Issue]:
    """Pydantic's errors without the input values, which may be secret or large."""
    return [{"path": [*error["loc"]], "message": error["msg"], "type": error["type"]} for error in errors]


def problem_of(error: Exception) -> Problem:
    """Convert an error to its response. Errors that the caller did not cause are logged and not shown."""
    if isinstance(error, Problem):
        return error
    if isinstance(error, RequestValidationError):
        issues = issues_of(error.errors())
        return invalid(sentence(issues), issues)
    status = next((status for cls, status in _STATUS if isinstance(error, cls)), 500)
    if status < 500 and isinstance(error, HoldfastError):
        value_issues = issues_of_value(error) if isinstance(error, ParamsInvalidError | EventInvalidError) else None
        return Problem(status, error.code, error.message, issues=value_issues)
    if isinstance(error, DamagedRunError):  # the message names the run, as its ``why`` does
        _log.error("a request failed because of a damaged run: %s", error)
        return Problem(500, error.code, error.message)
    if isinstance(error, AppClosedError):
        return Problem(503, error.code, "the app is not open: the server is starting or stopping; try again later")
    if status == 503 and isinstance(error, HoldfastError):
        _log.error("a request failed because of the store (%s): %s", error.code, error)
        return Problem(503, error.code, "the server cannot reach its database now; try again later")
    _log.error("a request failed", exc_info=error)
    return Problem(500, INTERNAL_ERROR, "internal server error; the server's log has the details")


def issues_of_value(error: ParamsInvalidError | EventInvalidError) -> list[wire.Issue]:
    return [{"path": [*issue["path"]], "message": issue["message"], "type": issue["type"]} for issue in error.issues]


def sentence(issues: Sequence[wire.Issue]) -> str:
    """The first issue as one line of text, with the number of further issues."""
    first, more = issues[0], len(issues) - 1
    field = ".".join(map(str, first["path"]))
    return f"{field}: {first['message']}" + (f" (and {more} more)" if more else "")


async def error_response(_request: Request, error: Exception) -> Response:
    """Exception handler with the signature that FastAPI expects."""
    return problem_of(error).response()


def _short(message: str) -> str:
    return message if len(message) <= _MAX_MESSAGE_LENGTH else message[: _MAX_MESSAGE_LENGTH - 1] + "…"
