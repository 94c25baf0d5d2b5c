"""Query parameters of lists, checked and converted to a filter. An error names the invalid parameter."""

from __future__ import annotations

from collections import Counter
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from starlette.requests import Request

from holdfast.core.attributes import conditions
from holdfast.core.condition_text import is_number, parse_condition
from holdfast.core.durations import to_ms
from holdfast.core.filters import Filter
from holdfast.errors import InvalidDurationError, InvalidOptionError
from holdfast.http import responses, wire, wire_requests

MAX_SEARCH_FILTERS = 100  # no run has more attributes
MAX_WAIT_MS = 60_000
"""Longest wait of one request. Many proxies close a connection that is silent for longer."""
_SEARCH_PREFIX = "search."
P = TypeVar("P", bound=BaseModel)


def list_filter(request: Request) -> Filter:
    """The filter in the query of a list of one workflow."""
    query = _checked(request, wire_requests.ListParams)
    return Filter(status=query.status, search=_search(request), id_prefix=query.idPrefix)


def all_filter(request: Request) -> Filter:
    """The filter in the query of a list of all instances."""
    query = _checked(request, wire_requests.AllParams)
    return Filter(
        workflow=query.workflow,
        status=query.status,
        search=_search(request),
        error=query.error,
        created_after=query.createdAfter,
        created_before=query.createdBefore,
        ended_after=query.endedAfter,
        ended_before=query.endedBefore,
        id_prefix=query.idPrefix,
        version=query.version,
        queue=query.queue,
    )


def _checked(request: Request, params: type[P]) -> P:
    try:
        query = params.model_validate(dict(request.query_params))
    except ValidationError as error:
        issues = responses.issues_of(error.errors(include_url=False, include_context=False, include_input=False))
        raise _invalid([{**issue, "path": ["query", *issue["path"]]} for issue in issues]) from None
    check_query(request, query)
    return query


def check_query(request: Request, query: BaseModel) -> None:
    """Refuse a parameter that occurs more than once, because it is ambiguous. Unknown parameters are ignored."""
    known = type(query).model_fields
    names = Counter(name for name, _ in request.query_params.multi_items() if name in known)
    issues: list[wire.Issue] = [
        {"path": ["query", name], "message": "is given more than once", "type": "repeated"}
        for name, count in names.items()
        if count > 1
    ]
    if issues:
        raise _invalid(issues)


def check_at_most(path: list[str | int], count: int, limit: int) -> None:
    if count > limit:
        raise _invalid([{"path": path, "message": f"at most {limit} are allowed", "type": "too_many"}])


def check_length(path: list[str | int], text: str, limit: int) -> None:
    if len(text) > limit:
        raise _invalid([{"path": path, "message": f"has more than {limit} characters", "type": "string_too_long"}])


def wait_seconds(text: str) -> float:
    """The time that a request waits for the end of a run."""
    problem = f"at most {MAX_WAIT_MS // 1000}s are allowed"
    try:
        ms = to_ms(float(text) if is_number(text) else text, "wait")
    except InvalidDurationError as error:
        ms, problem = MAX_WAIT_MS + 1, str(error)
    if ms > MAX_WAIT_MS:
        raise _invalid([{"path": ["query", "wait"], "message": problem, "type": "duration_invalid"}])
    return ms / 1000


def _invalid(issues: list[wire.Issue]) -> responses.Problem:
    return responses.invalid(responses.sentence(issues), issues)


def _search(request: Request) -> dict[str, Any]:
    """The conditions on search attributes in a query, by attribute name."""
    search: dict[str, list[Any]] = {}
    issues: list[wire.Issue] = []
    for name, text in request.query_params.multi_items():
        if name.startswith(_SEARCH_PREFIX):
            key, condition = name[len(_SEARCH_PREFIX) :], parse_condition(text)
            try:
                conditions(key, condition)
            except InvalidOptionError as error:
                issues.append({"path": ["query", name], "message": error.message, "type": "search_invalid"})
            search.setdefault(key, []).append(condition)
    if issues:
        raise _invalid(issues)
    check_at_most(["query", "search"], sum(map(len, search.values())), MAX_SEARCH_FILTERS)
    return {key: values[0] if len(values) == 1 else values for key, values in search.items()}
