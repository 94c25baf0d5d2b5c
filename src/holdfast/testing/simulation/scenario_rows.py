"""The rows of a simulated database that a seed run reads: the run's end, due work, facts, and the user's tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from holdfast.core.failure import Failure
from holdfast.store.protocol import FactState
from holdfast.testing.simulation.database import SimulatedDatabase
from holdfast.testing.simulation.scenario import Scenario
from holdfast.testing.simulation.step_calls import Step


class ScenarioRows:
    def __init__(self, scenario: Scenario, database: SimulatedDatabase) -> None:
        self._scenario = scenario
        self._database = database
        self._engine_tables: set[str] = set()

    def create_tables(self) -> None:
        """Create the user's tables. All tables that exist before are the engine's."""
        self._engine_tables = self._table_names()
        for statement in self._scenario.tables:
            self._database.rows(statement)

    def user_tables(self) -> dict[str, list[tuple[Any, ...]]]:
        """Return the rows of the user's tables by table."""
        return {name: self._contents(name) for name in sorted(self._table_names() - self._engine_tables)}

    # --- the simulated run

    def ended(self) -> bool:
        return bool(self._run("SELECT completed_at IS NOT NULL", [True])[0])

    def end(self) -> tuple[str, Any, str | None]:
        """Return the status, the output and the error of the run."""
        not_started = "never started", None, None, None
        status, output, error, note = self._run("SELECT status, output, error, note", not_started)
        if error is not None:
            failure = Failure.decode(error)
            return status, output, f"{failure.name}: {failure.message}"
        return status, output, note

    def _run(self, select: str, default: Sequence[Any]) -> Sequence[Any]:
        rows = self._database.rows(
            f"{select} FROM holdfast_run WHERE workflow = ? AND instance_id = ? AND current = 1",
            self._scenario.workflow,
            self._scenario.id,
        )
        return rows[0] if rows else default

    # --- all runs

    def unfinished(self) -> list[tuple[str, str]]:
        """Return workflow and instance id of the runs that have not ended."""
        rows = self._database.rows(
            "SELECT workflow, instance_id FROM holdfast_run WHERE completed_at IS NULL AND current = 1 ORDER BY id"
        )
        return [(workflow, instance) for workflow, instance in rows]

    def next_due(self) -> int | None:
        """Return the next time at which a task or an outbound event is due, without tasks that no worker can run."""
        registry = self._scenario.app.registry
        tasks = self._database.rows("SELECT workflow, owner, run_at, lease_until, expires_at FROM holdfast_task")
        times = [expires_at for *_, expires_at in tasks]
        for workflow, owner, run_at, lease_until, _ in tasks:
            if owner is not None:
                times.append(lease_until)
            elif workflow in registry.runnable():
                times.append(run_at)
        if registry.outbox is not None:
            [(due,)] = self._database.rows("SELECT min(due_at) FROM holdfast_outbox WHERE delivered_at IS NULL")
            times.append(due)
        return earliest(*times)

    # --- facts

    def max_attempts_of(self, step: Step) -> int | None:
        """Return the maximum attempts of a chain step, which the run's plan holds."""
        rows = self._facts(step, FactState.PLAN)
        return rows[0][0] if rows else 1

    def finished(self, step: Step) -> bool:
        return bool(self._facts(step, FactState.RESULT))

    def _facts(self, step: Step, state: FactState) -> list[tuple[Any, ...]]:
        workflow, _, instance = step[0].partition("/")
        return self._database.rows(
            "SELECT f.max_attempts FROM holdfast_fact AS f JOIN holdfast_run AS r ON r.id = f.run "
            "WHERE r.workflow = ? AND r.instance_id = ? AND r.current = 1 AND f.state = ? AND f.key = ?",
            workflow,
            instance,
            int(state),
            step[1],
        )

    def _table_names(self) -> set[str]:
        rows = self._database.rows("SELECT name FROM sqlite_schema WHERE type = 'table'")
        return {name for (name,) in rows}

    def _contents(self, table: str) -> list[tuple[Any, ...]]:
        quoted = table.replace('"', '""')
        return sorted(self._database.rows(f'SELECT * FROM "{quoted}"'), key=repr)  # noqa: S608


def earliest(*times: int | None) -> int | None:
    return min((at for at in times if at is not None), default=None)
