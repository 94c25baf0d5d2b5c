"""Fields of log lines, and the JSON format."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest

from holdfast import Context, Holdfast, JsonFormatter, LogContext
from holdfast.testing import Harness


class Lines(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.lines: list[dict[str, Any]] = []
        self.addFilter(LogContext())
        self.setFormatter(JsonFormatter())

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(json.loads(self.format(record)))


@pytest.fixture
def lines() -> Iterator[Lines]:
    handler, root = Lines(), logging.getLogger()
    root.addHandler(handler)
    yield handler
    root.removeHandler(handler)


@pytest.mark.above_the_store
async def test_lines_of_steps_and_of_the_engine_name_run_and_step(app: Holdfast, h: Harness, lines: Lines) -> None:
    @app.step
    async def charge() -> None:
        logging.getLogger("shop").warning("charging %d", 5, extra={"amount": 5, "odd": {1}})

    @app.step
    def plain() -> None:
        logging.getLogger("shop").warning("in a thread")

    @app.workflow
    async def order(ctx: Context) -> None:
        await charge()
        await plain()
        logging.getLogger("shop").warning("in workflow code")
        raise ValueError("no")

    await h.start(order, id="o-1")
    await h.run_until_idle()
    logging.getLogger("shop").warning("outside")

    run = {"workflow": "order", "instance_id": "o-1", "run_number": 0}
    charged, threaded, code, engine, outside = lines.lines
    assert charged | {"time": ""} == {
        "time": "", "level": "warning", "logger": "shop", "message": "charging 5", **run, "step_key": "charge",
        "attempt": 1, "amount": 5, "odd": "{1}",
    }  # fmt: skip
    assert charged["time"].endswith("Z")
    assert (threaded["step_key"], threaded["attempt"]) == ("plain", 1)
    assert {name: code.get(name) for name in run} == run
    assert "step_key" not in code
    assert engine["logger"] == "holdfast.runs"
    assert {name: engine[name] for name in run} == run
    assert "ValueError" in engine["traceback"]
    assert "workflow" not in outside


def test_fields_that_a_record_has_are_kept() -> None:
    record = logging.makeLogRecord({"workflow": "mine", "instance_id": "x", "step_key": "s"})

    assert LogContext().filter(record)

    assert (record.workflow, record.instance_id, record.step_key) == ("mine", "x", "s")  # type: ignore[attr-defined]
    assert record.attempt is None  # type: ignore[attr-defined]
