"""Every request of docs/routes.md is made, in order, and answered as the page says (but for times)."""

from __future__ import annotations

import asyncio
import json
import re
import sys
import types
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from http_api import client_of

PAGE = Path(__file__).parents[2] / "docs" / "routes.md"
PROGRAM = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
EXAMPLE = re.compile(
    r"^```http\n(?P<line>[^\n]+)\n(?:\n(?P<body>.*?))?^```\n\n"
    r"```(?P<kind>json|text) ?(?P<status>\d*)\n(?P<answer>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
CHANGING = re.compile(r"\d{4}-\d\d-\d\dT[\d:.]+Z|until \d{4}.*\)$")
A_TIME = 10**12  # in milliseconds; no other number is as large


class Example(NamedTuple):
    method: str
    path: str
    body: str | None
    status: int
    answer: Any


def examples() -> list[Example]:
    return [
        Example(*found["line"].split(" "), found["body"], int(found["status"] or 200), answer_in(found))
        for found in EXAMPLE.finditer(PAGE.read_text())
    ]


def answer_in(found: re.Match[str]) -> Any:
    return json.loads(found["answer"]) if found["kind"] == "json" else found["answer"]


def without_times(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: without_times(one) for key, one in value.items()}
    if isinstance(value, list):
        return [without_times(one) for one in value]
    if isinstance(value, int):
        return "<time>" if value > A_TIME else value
    return CHANGING.sub("<time>", value) if isinstance(value, str) else value


def test_every_block_of_the_page_is_an_example() -> None:
    text = PAGE.read_text()

    assert len(examples()) == text.count("```http") == text.count("```json") + text.count("```text") > 15


@pytest.mark.kind_settings("the page shows the log of a run that is kept in memory; a replay says its lines again")
async def test_the_requests_are_answered_as_the_page_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    module = types.ModuleType("shop")
    monkeypatch.setitem(sys.modules, "shop", module)
    program = PROGRAM.search(PAGE.read_text())
    assert program is not None
    exec(program[1], vars(module))

    async with module.app, client_of(module.api, "http://test") as http:
        for example in examples():
            expected = example.status, without_times(example.answer)
            for _ in range(1000):
                answer = await http.request(example.method, example.path, content=example.body)
                is_json = answer.headers["content-type"] == "application/json"
                got = answer.status_code, without_times(answer.json() if is_json else answer.text)
                if got == expected or example.method != "GET":
                    break
                await asyncio.sleep(0.01)  # the worker is still at it
            assert got == expected, f"{example.method} {example.path}"
            while (await module.app.list("fulfil", status="active")).items:
                await asyncio.sleep(0.01)
