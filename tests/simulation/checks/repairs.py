"""Checks retries, forks, resolved steps and deletions at the moment of their transaction, from the rows alone.

The checks do not use the rules by which the engine chooses facts (``workflow/repair.py``, ``chain/repair.py``,
``graph/repair.py``): they state what every choice must satisfy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from holdfast.core.facts import RESOLVE
from holdfast.core.model import StepType
from holdfast.core.origin import Origin
from holdfast.store.protocol import ContinueRun, DeleteInstance, FactState, PruneRuns
from holdfast.testing.simulation.watch import Rows
from simulation.programs.names import root_of

_DEPENDENT_TABLES = {"fact": "run", "event": "run", "log": "run", "outbox": "run", "task": "run", "watch": "watcher"}
"""Tables whose rows belong to a run, each with the column that names the run."""
_ATTEMPTS = (FactState.FAILURE, FactState.HEARTBEAT)
_MAY_BE_DROPPED = ("skipped", StepType.CANCEL)
"""Kinds of results that a retry may drop: of nodes that were not run, and of the cancellations of children."""


class _Fact(NamedTuple):
    kind: str
    ok: int
    value: bytes | None
    seq: int | None
    event_type: str | None
    name: str | None


_Place = tuple[int, str, int]
"""State, key and number of a fact."""
_Facts = Mapping[_Place, _Fact]


class CreatedRun(NamedTuple):
    instance: str
    number: int
    parent: int | None


@dataclass(frozen=True, slots=True)
class _Source:
    """The run from which another one continues, just before the request."""

    row: tuple[Any, ...]
    facts: _Facts
    undelivered: int
    error: bytes | None


class RepairWatch:
    """Checks of repairs. ``rows`` queries the database; triggers fill ``runs`` and ``removed``."""

    def __init__(self, rows: Rows) -> None:
        self._rows = rows
        self.runs: dict[int, CreatedRun] = {}
        """All runs that were ever created, by id."""
        self.removed: set[int] = set()
        """Runs that a prune or a delete request removed."""
        self.removed_instances: set[str] = set()
        """Instances whose current run was removed: their ids are free, and a repeated start begins them again."""
        self.removed_graphs: set[str] = set()
        """The first parameters of the removed runs of graphs."""
        self.removed_outbox: set[tuple[int, int]] = set()
        """Run and number of outbound events that were removed with their runs."""
        self.copied: dict[int, frozenset[str]] = {}
        """For each run that continues from the history of another run: the keys of the copied results."""
        self.key_numbers: dict[tuple[str, int], int] = {}
        """For each retried run, by instance and number: the run number in its idempotency keys."""

    def is_removed(self, instance: str) -> bool:
        """True if the instance, or the one that clients started and that it descends from, was removed."""
        return instance in self.removed_instances or not self._ancestors(instance).isdisjoint(self.removed_instances)

    def _ancestors(self, instance: str) -> set[str]:
        ancestors = {root_of(instance)}
        for created in [created for created in self.runs.values() if created.instance == instance]:
            while created.parent is not None and created.parent in self.runs:
                created = self.runs[created.parent]
                ancestors.add(created.instance)
        return ancestors

    def is_run_removed(self, instance: str, number: int) -> bool:
        places = {self.runs[run][:2] for run in self.removed}
        return (instance, number) in places or self.is_removed(instance)

    # --- the watch of operations

    def before(self, operation: str, args: tuple[Any, ...]) -> Any:
        match operation, args[0] if args else None:
            case "control", ContinueRun() as request:
                return self._source(request.run)
            case "control", DeleteInstance(workflow, instance):
                sql = "SELECT id, completed_at FROM holdfast_run WHERE workflow = ? AND instance_id = ? AND current = 1"
                return self._rows(sql, workflow, instance)
            case _:
                return None

    def after(self, operation: str, args: tuple[Any, ...], answer: Any, before: Any) -> Iterator[str]:
        match operation, args[0] if args else None:
            case "control", ContinueRun() as request if before is not None and not answer.refused:
                self._continued(request, answer.run.run)
                yield from self._check_continued(request, answer.run.run, before)
            case "control", DeleteInstance() as request if before:
                [(run, ended)] = before
                if (ended is None or request.run not in (None, run)) != answer.refused:
                    yield f"the deletion of {request.instance_id} was {'refused' if answer.refused else 'executed'}"
                yield from self._orphans()
            case "maintain", PruneRuns():
                yield from self._orphans()
            case _:
                pass

    def _source(self, run: int) -> _Source | None:
        columns = "status, current, completed_at, output, error, note, number, params"
        found = self._rows(f"SELECT {columns} FROM holdfast_run WHERE id = ?", run)
        if not found:
            return None
        sql = "SELECT count(*) FROM holdfast_event WHERE run = ? AND delivered_at IS NULL AND substr(type, 1, 1) <> '@'"
        [(undelivered,)] = self._rows(sql, run)
        return _Source(found[0], self._facts(run), undelivered, found[0][4])

    def _facts(self, run: int) -> _Facts:
        rows = self._rows(
            "SELECT state, key, n, kind, ok, value, seq, event_type, name FROM holdfast_fact WHERE run = ?", run
        )
        return {row[:3]: _Fact(*row[3:]) for row in rows}

    def _continued(self, request: ContinueRun, new: int) -> None:
        self.copied[new] = frozenset(fact.key for fact in request.facts if fact.state == FactState.RESULT)
        created, origin = self.runs[new], Origin.decode(request.origin)
        if origin.key_number is not None:
            self.key_numbers[created[:2]] = origin.key_number

    # --- retries and forks

    def _check_continued(self, request: ContinueRun, new: int, source: _Source) -> Iterator[str]:
        after, facts = self._source(request.run), self._facts(new)
        what = f"run {new}, {Origin.decode(request.origin).action} of run {request.run},"
        if after is None or after.facts != source.facts:
            yield f"{what} changed the facts of its source"
        elif request.fork_id is not None:
            if after != source:
                yield f"{what} changed its source"
            yield from self._check_fork(what, request, facts, source)
        else:
            yield from self._check_retry(what, request, facts, source, after)
        if not self._rows("SELECT 1 FROM holdfast_task WHERE run = ?", new):
            yield f"{what} has no task"

    def _check_retry(
        self, what: str, request: ContinueRun, facts: _Facts, source: _Source, after: _Source
    ) -> Iterator[str]:
        if source.row[:2] != ("errored", 1):
            yield f"{what} was accepted although that run was {source.row[0]}"
        if after.undelivered:
            yield f"{what} left {after.undelivered} undelivered events with its source"
        if after.row[:1] + after.row[2:] != source.row[:1] + source.row[2:]:
            yield f"{what} changed its source"
        by_link = b"LinkDownError" in (source.error or b"")
        for place, fact in source.facts.items():
            is_result = place[0] == FactState.RESULT and fact.ok and fact.kind not in _MAY_BE_DROPPED
            if is_result and facts.get(place) != fact and not by_link:
                yield f"{what} does not have the recorded result of {place[1]}"
        yield from _fresh_attempts(what, facts)
        resolution = Origin.decode(request.origin).action == "resolve"
        for place in facts.keys() - source.facts.keys():
            waits_again = place[0] == FactState.START and facts[place].kind == StepType.WAIT
            if not waits_again and not resolution:
                yield f"{what} has a fact that its source does not have: {place}"
        if resolution and not any(fact.event_type == RESOLVE for place, fact in facts.items()):
            yield f"{what} has no decided result"

    def _check_fork(self, what: str, request: ContinueRun, facts: _Facts, source: _Source) -> Iterator[str]:
        for place, fact in facts.items():
            if fact.event_type != RESOLVE and source.facts.get(place) != fact:
                yield f"{what} has a fact that its source does not have: {place}"
        results = {place: fact for place, fact in source.facts.items() if place[0] == FactState.RESULT}
        kept = [fact.seq for place, fact in results.items() if place in facts and fact.seq is not None]
        left = [fact.seq for place, fact in results.items() if place not in facts and fact.seq is not None]
        if kept and left and max(kept) > min(left) and not request.units:
            yield f"{what} has the result number {max(kept)}, and not number {min(left)}"
        yield from _fresh_attempts(what, facts)

    # --- deletions

    def _orphans(self) -> Iterator[str]:
        """Rows of runs that do not exist. A large run is deleted in several transactions; its events may be kept."""
        for table, column in _DEPENDENT_TABLES.items():
            kept = "AND (x.dedup IS NULL OR x.line IS NULL)" if table == "event" else ""
            for run, count in self._rows(
                f"SELECT x.{column}, count(*) FROM holdfast_{table} AS x WHERE NOT EXISTS "
                f"(SELECT 1 FROM holdfast_run AS r WHERE r.id = x.{column}) AND NOT EXISTS "
                f"(SELECT 1 FROM holdfast_leftover AS l WHERE l.run = x.{column}) {kept} GROUP BY 1 ORDER BY 1"
            ):
                yield f"run {run} is deleted, and {count} rows of holdfast_{table} are left"


def _fresh_attempts(what: str, facts: _Facts) -> Iterator[str]:
    """Check that a step without a result counts no attempt of the source."""
    done = {key for state, key, _ in facts if state == FactState.RESULT}
    for (state, key, _), fact in facts.items():
        if state in _ATTEMPTS and fact.kind == StepType.DO and key not in done:
            yield f"{what} counts an attempt of step {key} that its source made"


def create_removal_triggers(
    connection: Any, watch: RepairWatch, *, violate: Callable[[str], None], pruning: Callable[[], bool]
) -> None:
    """Let triggers report created and removed runs, and rows that are written for a removed run.

    ``pruning`` returns True while old runs are deleted: a client may delete a child of an open run by name.
    """

    def created(run: int, instance: str, number: int, parent: int | None) -> None:
        watch.runs[run] = CreatedRun(instance, number, parent)

    def removed(run: int, instance: str, current: int, ended: int, open_parent: int, graph: str | None) -> None:
        watch.removed.add(run)
        watch.removed_graphs.add(graph or "")
        if current:
            watch.removed_instances.add(instance)
        if not ended:
            violate(f"run {run} of {instance} was deleted before its end")
        if open_parent:
            violate(f"run {run} of {instance} was pruned while its parent is open")

    def late_row(table: str, run: int) -> None:
        violate(f"a row of holdfast_{table} was written for run {run}, which does not exist")

    def outbound_removed(run: int, n: int) -> None:
        watch.removed_outbox.add((run, n))

    for name, function in (("created", created), ("removed", removed), ("late_row", late_row)):
        connection.create_scalar_function(name, function, deterministic=False)
    connection.create_scalar_function("pruning", pruning, 0)
    connection.create_scalar_function("outbound_removed", outbound_removed, deterministic=False)
    connection.execute(
        "CREATE TEMP TRIGGER created AFTER INSERT ON holdfast_run "
        "BEGIN SELECT created(new.id, new.instance_id, new.number, new.parent_run); END"
    )
    connection.execute(
        "CREATE TEMP TRIGGER removed AFTER DELETE ON holdfast_run BEGIN SELECT removed(old.id, old.instance_id, "
        "old.current, old.completed_at IS NOT NULL, pruning() AND EXISTS (SELECT 1 FROM holdfast_run AS p "
        "WHERE p.id = old.parent_run AND p.completed_at IS NULL), "
        "iif(old.kind = 'graph', CAST(opened(old.params) AS TEXT) ->> 0, NULL)); END"
    )
    connection.execute(
        "CREATE TEMP TRIGGER outbound_removed AFTER DELETE ON holdfast_outbox "
        "BEGIN SELECT outbound_removed(old.run, old.n); END"
    )
    for table, column in _DEPENDENT_TABLES.items():
        connection.execute(
            f"CREATE TEMP TRIGGER late_{table} AFTER INSERT ON holdfast_{table} WHEN NOT EXISTS "
            f"(SELECT 1 FROM holdfast_run AS r WHERE r.id = new.{column}) "
            f"BEGIN SELECT late_row('{table}', new.{column}); END"
        )
