"""Fields of log lines: which run, step and attempt a line belongs to; and a formatter that writes lines as JSON."""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime
from typing import Any

from holdfast.kernel.attempt import current_attempt, current_run

FIELDS = ("workflow", "instance_id", "run_number", "step_key", "attempt")
_OWN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName", *FIELDS}


class LogContext(logging.Filter):
    """A filter for a handler or a logger. It adds the fields of the current run to each record, and refuses none.

    The fields are ``workflow``, ``instance_id``, ``run_number``, ``step_key`` and ``attempt``; None outside a run or
    a step. A field that the record has already is kept.

    Example::

        handler = logging.StreamHandler()
        handler.addFilter(LogContext())
        handler.setFormatter(logging.Formatter("%(levelname)s %(workflow)s/%(instance_id)s %(message)s"))
    """

    def filter(self, record: logging.LogRecord) -> bool:
        values = vars(record)
        attempt = current_attempt.get()
        run = current_run.get() if attempt is None else attempt.run
        if run is not None and values.get("workflow") is None and values.get("instance_id") is None:
            values["workflow"], values["instance_id"], values["run_number"] = run.workflow, run.instance_id, run.number
        if attempt is not None and values.get("step_key") is None:
            values["step_key"], values["attempt"] = attempt.key, attempt.number
        for name in FIELDS:
            values.setdefault(name, None)
        return True


class JsonFormatter(logging.Formatter):
    """One JSON object per line: time, level, logger, message, the fields of the run, ``extra`` fields, traceback."""

    def format(self, record: logging.LogRecord) -> str:
        values = vars(record)
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC)
            .isoformat(timespec="milliseconds")
            .replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        line |= {name: values[name] for name in FIELDS if values.get(name) is not None}
        line |= {name: value for name, value in values.items() if name not in _OWN and not name.startswith("_")}
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)
