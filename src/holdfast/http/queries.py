"""The query of a list as a filter, checked field by field; an error names the parameter that is wrong."""

from __future__ import annotations

import json
import re
from collections import Counter
from contextlib import suppress
from typing import Any

from pydantic import BaseModel, ValidationError
from starlette.requests import Request

from holdfast.core.attributes import conditions
from holdfast.core.filters import Filter
from holdfast.errors import InvalidOptionError
from holdfast.http import answers, wire

MOST_FILTERS = 100  # no run has more attributes
_SEARCH = "search."
_NUMBER = re.compile(r"-?\d+(\.\d+)?([eE][+-]?\d+)?", re.ASCII)


def list_filter(request: Request) -> Filter:
    """What a list asks for."""
    try:
        query = wire.ListParams.model_validate(dict(request.query_params))
    except ValidationError as error:
        found = answers.issues_of(error.errors(include_url=False, include_context=False, include_input=False))
        raise _invalid([{**issue, "path": ["query", *issue["path"]]} for issue in found]) from None
    check_query(request, query)
    return Filter(status=query.status, search=_search(request), id_prefix=query.idPrefix)


def check_query(request: Request, query: BaseModel) -> None:
    """Of two values for one name nobody can say which was meant. Names that mean nothing here are no matter."""
    known = type(query).model_fields
    names = Counter(name for name, _ in request.query_params.multi_items() if name in known)
    issues: list[wire.Issue] = [
        {"path": ["query", name], "message": "is given more than once", "type": "repeated"}
        for name, count in names.items()
        if count > 1
    ]
    if issues:
        raise _invalid(issues)


def check_at_most(path: list[str | int], count: int, most: int) -> None:
    if count > most:
        raise _invalid([{"path": path, "message": f"at most {most} are allowed", "type": "too_many"}])


def check_length(path: list[str | int], text: str, most: int) -> None:
    if len(text) > most:
        raise _invalid([{"path": path, "message": f"has more than {most} characters", "type": "string_too_long"}])


def _invalid(issues: list[wire.Issue]) -> answers.Problem:
    return answers.invalid(answers.sentence(issues), issues)


def _search(request: Request) -> dict[str, Any]:
    """The attributes that a query asks for; an error names the one that is wrong."""
    found: dict[str, list[Any]] = {}
    issues: list[wire.Issue] = []
    for name, text in request.query_params.multi_items():
        if name.startswith(_SEARCH):
            key, asked = name[len(_SEARCH) :], _compared(text)
            try:
                conditions(key, asked)
            except InvalidOptionError as error:
                issues.append({"path": ["query", name], "message": error.message, "type": "search_invalid"})
            found.setdefault(key, []).append(asked)
    if issues:
        raise _invalid(issues)
    check_at_most(["query", "search"], sum(map(len, found.values())), MOST_FILTERS)
    return {key: asked[0] if len(asked) == 1 else asked for key, asked in found.items()}


def _compared(text: str) -> Any:
    for op in ("<=", ">=", "<", ">"):
        if text.startswith(op):
            return op, _scalar(text[len(op) :])
    return _scalar(text)


def _scalar(text: str) -> Any:
    """What a value means: JSON if it is a number, a truth value or text in quotes, else the text itself."""
    if text.startswith('"') or _NUMBER.fullmatch(text) or text in ("true", "false"):
        with suppress(ValueError):
            return json.loads(text, parse_int=_whole)
    return text


def _whole(text: str) -> int | float:
    """A number is the same however it is spelt: digits beyond what a double has exactly are read as ``1e17`` is."""
    number = float(text)
    return int(number) if abs(number) <= 2**53 else number
