"""Every request of docs/routes.md is sent, in order, and the response is that of the page, except for times."""

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
    r'```(?P<kind>json|text)(?: title="(?P<status>\d+)")?\n(?P<response>.*?)^```$',
    re.MULTILINE | re.DOTALL,
)
TIMES = re.compile(r"\d{4}-\d\d-\d\dT[\d:.]+Z|until \d{4}.*\)")
MIN_TIME_MS = 10**12  # larger numbers are times in milliseconds


class Example(NamedTuple):
    method: str
    path: str
    body: str | None
    status: int
    response: Any


def examples() -> list[Example]:
    return [
        Example(*match["line"].split(" "), match["body"], int(match["status"] or 200), expected_response(match))
        for match in EXAMPLE.finditer(PAGE.read_text())
    ]


def expected_response(match: re.Match[str]) -> Any:
    return json.loads(match["response"]) if match["kind"] == "json" else match["response"]


def without_times(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: without_times(member) for key, member in value.items()}
    if isinstance(value, list):
        return [without_times(item) for item in value]
    if isinstance(value, int):
        return "<time>" if value > MIN_TIME_MS else value
    return TIMES.sub("<time>", value) if isinstance(value, str) else value


def test_every_block_of_the_page_is_an_example() -> None:
    text = PAGE.read_text()

    assert len(examples()) == text.count("```http") == text.count("```json") + text.count("```text") > 15


@pytest.mark.kind_settings("the page shows the log of a run that is kept in memory; a replay writes its lines again")
async def test_the_responses_are_those_of_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    module = types.ModuleType("shop")
    monkeypatch.setitem(sys.modules, "shop", module)
    program = PROGRAM.search(PAGE.read_text())
    assert program is not None
    (tmp_path / "shop.py").write_text(program[1])
    exec(compile(program[1], str(tmp_path / "shop.py"), "exec"), vars(module))

    async with module.app, client_of(module.api, "http://test") as http:
        for example in examples():
            expected = [example.status, without_times(example.response)]
            for _ in range(1000):
                response = await http.request(example.method, example.path, content=example.body)
                is_json = response.headers["content-type"] == "application/json"
                got = response.status_code, without_times(response.json() if is_json else response.text)
                got = json.loads(json.dumps(got).replace(str(tmp_path), "/srv/shop"))
                if got == expected or example.method != "GET":
                    break
                await asyncio.sleep(0.01)  # the worker may not have finished
            assert got == expected, f"{example.method} {example.path}"
            while (await module.app.list("fulfil", status="active")).items:
                await asyncio.sleep(0.01)
