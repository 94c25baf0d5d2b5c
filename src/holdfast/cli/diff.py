"""The differences between two exported runs: input, steps and their order, results, log lines, end."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from difflib import SequenceMatcher
from typing import Any

from holdfast.cli.errors import WrongUsageError

_HIDDEN = ("note", "watch")
"""Kinds of facts that are not shown."""
_MAX_VALUE = 200


def difference_lines(first: Any, second: Any, name_of_first: str, name_of_second: str) -> list[str]:
    """One line for each difference, prefixed ``-`` for the first run and ``+`` for the second. Empty: no difference."""
    for document, name in ((first, name_of_first), (second, name_of_second)):
        if not isinstance(document, Mapping) or not {"run", "facts", "logs"} <= {*document}:
            raise WrongUsageError(f"{name} is not an exported run")
    lines = [*_of_fields(first["run"], second["run"]), *_of_facts(first, second), *_of_logs(first, second)]
    return [f"--- {name_of_first}", f"+++ {name_of_second}", *lines] if lines else []


def _of_fields(first: Mapping[str, Any], second: Mapping[str, Any]) -> Iterator[str]:
    for field in ("workflow", "params", "status", "output", "error", "attempt", "version"):
        before, after = _content(first.get(field)), _content(second.get(field))
        if before != after:
            yield f"@@ {field}"
            yield f"- {_text(before)}"
            yield f"+ {_text(after)}"


def _of_facts(first: Mapping[str, Any], second: Mapping[str, Any]) -> Iterator[str]:
    """Steps in the order of their results. A step that both runs have is compared by its result."""
    before, after = _facts(first), _facts(second)
    yield from _of_lists("steps", [_step(fact) for fact in before], [_step(fact) for fact in after])
    results = {fact["key"]: fact for fact in before if fact["state"] == "RESULT"}
    for fact in after:
        other = results.get(fact["key"])
        if fact["state"] != "RESULT" or other is None or _result(first, other) == _result(second, fact):
            continue
        yield f"@@ result of {fact['key']!r}"
        yield f"- {_text(_result(first, other))}"
        yield f"+ {_text(_result(second, fact))}"


def _facts(document: Mapping[str, Any]) -> list[Any]:
    facts = [f for f in document["facts"] if f["state"] in ("RESULT", "ITEM", "WOKEN") and f["kind"] not in _HIDDEN]
    return sorted(facts, key=lambda fact: (fact.get("seq") or 0, fact["at"]))


def _step(fact: Mapping[str, Any]) -> str:
    item = f"[{fact['n']}]" if fact["state"] == "ITEM" else ""
    outcome = "completed" if fact.get("ok", True) else "failed"
    attempts = f" on attempt {fact['attempts']}" if fact.get("attempts", 0) > 1 else ""
    return f"{fact['key']}{item} ({fact['kind']}) {outcome}{attempts}"


def _result(document: Mapping[str, Any], fact: Mapping[str, Any]) -> Any:
    """The result of a fact: its value, or the payload of the event that it refers to."""
    if fact.get("event") is not None:
        return next((event.get("payload") for event in document["events"] if event["n"] == fact["event"]), None)
    return _content(fact.get("value", fact.get("valueText")))


def _content(value: Any) -> Any:
    """A value without the traceback of an error, which names lines of code."""
    if isinstance(value, Mapping) and {"name", "message"} <= {*value}:
        return {"name": value["name"], "message": value["message"]}
    return value


def _of_logs(first: Mapping[str, Any], second: Mapping[str, Any]) -> Iterator[str]:
    yield from _of_lists("logs", _logs(first), _logs(second))


def _logs(document: Mapping[str, Any]) -> list[str]:
    """Log lines of the code and of steps, without those that a replay repeated and without those of the engine."""
    lines = [line for line in document["logs"] if not line.get("isReplay") and line["category"] != "system"]
    return [_log(line) for line in lines]


def _log(line: Mapping[str, Any]) -> str:
    step = f" [{line['stepKey']}]" if line.get("stepKey") else ""
    return f"{line['level']}{step} {line['message']}" + (f" {_text(line['data'])}" if "data" in line else "")


def _of_lists(title: str, before: Sequence[str], after: Sequence[str]) -> Iterator[str]:
    if before == after:
        return
    yield f"@@ {title}"
    for operation, i, j, k, m in SequenceMatcher(None, before, after, autojunk=False).get_opcodes():
        if operation == "equal":
            yield from (f"  {line}" for line in before[i:j])
        else:
            yield from (f"- {line}" for line in before[i:j])
            yield from (f"+ {line}" for line in after[k:m])


def _text(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _MAX_VALUE else text[: _MAX_VALUE - 1] + "…"
