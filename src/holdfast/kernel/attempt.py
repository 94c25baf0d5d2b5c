"""The attempt that user code is running in: where its log lines and its transaction go.

A step function finds its attempt through a context variable, which follows it into tasks and into its thread.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from holdfast.errors import InputError
from holdfast.store.protocol import Log, NewEvent, NewRun, Statement


@dataclass(slots=True)
class Attempt:
    """One running attempt of a step."""

    key: str
    number: int
    instance: str
    values: Mapping[str, Any]
    logs: Sequence[Log] = ()
    flushed: int = 0
    """How many of the lines are stored already."""

    def log(self, line: Log) -> None:
        if isinstance(self.logs, list):
            self.logs.append(line)
        else:
            self.logs = [line]  # most attempts never get here


NO_VALUES: Mapping[str, Any] = MappingProxyType({})

current_attempt: ContextVar[Attempt | None] = ContextVar("holdfast_attempt", default=None)


class StepTx:
    """The transaction of a step: what is added here commits with the step's result, or not at all.

    Statements are buffered while the function runs and executed after it returned, in the order they were added;
    they run once, not on replay, and are dropped when the attempt fails. A step that has to *read* does so in the
    ordinary way, before.

    Example::

        @app.step
        async def reserve(tx: StepTx, item: str) -> str:
            tx.execute("INSERT INTO reservation (item) VALUES (?)", item)
            return item
    """

    def __init__(self, new_run: Callable[..., NewRun], new_event: Callable[..., NewEvent]) -> None:
        self._new_run = new_run
        self._new_event = new_event
        self.statements: list[Statement] = []
        self.starts: list[NewRun] = []
        self.sends: list[NewEvent] = []

    def execute(self, sql: str, *args: Any) -> None:
        """Run a statement with the step, in the database's own placeholder style (``?`` in SQLite)."""
        if not isinstance(sql, str) or not sql.strip():
            raise InputError(f"tx.execute needs a SQL statement, not {sql!r}")
        self.statements.append(Statement(sql, args))

    def send(self, pid: str, topic: str, payload: Any = None) -> None:
        """Send an event to another run (``workflow/instance_id``) with the step."""
        workflow, _, instance_id = pid.partition("/")
        self.sends.append(self._new_event(workflow, instance_id, topic, payload))

    def start(self, workflow: Any, params: Any = None, *, id: str | None = None) -> str:
        """Start a run with the step and return its pid. An id that exists already is left as it is."""
        run = self._new_run(workflow, params, id=id)
        self.starts.append(run)
        return f"{run.workflow}/{run.instance_id}"


def context_values() -> Mapping[str, Any]:
    """The propagated context of the run this step belongs to; empty outside a step."""
    attempt = current_attempt.get()
    return NO_VALUES if attempt is None else attempt.values
