"""Checks the effects of steps on the external system and on the table of effects against the recorded facts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from holdfast.core.facts import RESOLVE
from holdfast.store.protocol import FactState
from holdfast.testing.simulation.database import SimulatedDatabase
from simulation.programs.external_system import ANY_RUN, Effect
from simulation.programs.names import BUFFERED_PROGRAM, PROGRAMS
from simulation.programs.program import certain_parts, parts
from simulation.system.world import World


def effect_failures(world: World) -> Iterator[str]:
    yield from _calls(world)
    yield from _transactions(world)
    yield from _sagas(world)


def _calls(world: World) -> Iterator[str]:
    """Check that every call of a step is counted as an attempt.

    These calls are not counted: calls that a worker interrupts when it shuts down; calls whose live transaction was
    rolled back (``_transactions`` checks the rows of such steps instead). Steps of a workflow with ``persist="task"``
    are called again if their worker dies before it writes its buffer, so they are not checked.
    """
    # ``attempts`` in the result of a chain's step is the number of failed attempts before the result.
    rolled_back = step_keys(world, "live")
    counted = Counter(
        effect for effect, process in world.steps.calls if not process.shut_down and effect[2] not in rolled_back
    )
    sql = (
        "SELECT f.attempts + (r.kind = 'chain') FROM holdfast_fact AS f JOIN holdfast_run AS r ON r.id = f.run "
        "WHERE r.instance_id = ? AND r.number = ? AND f.state = ? AND f.key = ? AND r.workflow <> ? "
        f"AND f.event_type IS NOT '{RESOLVE}'"
    )
    for (instance, number, key), called in counted.items():
        if world.database.repairs.is_removed(instance) or instance in world.database.repairs.removed_graphs:
            continue
        if number == ANY_RUN:
            yield from _starts(world.database, instance, key, called)
            continue
        rows = world.database.rows(sql, instance, number, int(FactState.RESULT), key, BUFFERED_PROGRAM)
        for (attempts,) in rows:
            if called > attempts:
                yield f"step {key} of {instance} (run {number}) was called {called} times in {attempts} attempts"


def _transactions(world: World) -> Iterator[str]:
    """Check that a step's transaction wrote one row if the step has a result, and none otherwise."""
    written = {
        (instance, number, key): count
        for instance, number, key, count in world.database.rows(
            "SELECT instance, number, key, count(*) FROM effect GROUP BY instance, number, key ORDER BY 1, 2, 3"
        )
    }
    keys = step_keys(world, "tx", "live")
    repairs = world.database.repairs
    for run, instance, number, key, ok in world.database.rows(
        "SELECT r.id, r.instance_id, r.number, f.key, f.ok FROM holdfast_fact AS f "
        "JOIN holdfast_run AS r ON r.id = f.run WHERE f.state = 0 ORDER BY 2, 3, 4"
    ):
        if key not in keys or key in repairs.copied.get(run, ()):
            continue
        if written.pop((instance, number, key), 0) != ok and not repairs.is_removed(instance):
            yield f"step {key} of {instance} (run {number}) has a result, and its transaction did not write one row"
    for (instance, number, key), count in written.items():
        if not repairs.is_run_removed(instance, number):
            yield f"step {key} of {instance} (run {number}) has no result, and its transaction wrote {count} rows"


def _starts(database: SimulatedDatabase, instance: str, node: str, called: int) -> Iterator[str]:
    """Check that a graph has a START fact for each call of a node.

    The graph is found by its first parameter, because the engine chooses the id of an instance that a node runs.
    """
    [(starts,)] = database.rows(
        "SELECT count(*) FROM holdfast_fact AS f JOIN holdfast_run AS r ON r.id = f.run "
        "WHERE r.kind = 'graph' AND CAST(opened(r.params) AS TEXT) ->> 0 = ? AND f.state = ? AND f.key = ?",
        instance,
        int(FactState.START),
        node,
    )
    if called > starts:
        yield f"node {node} of {instance} was called {called} times, and started {starts} times"


def _sagas(world: World) -> Iterator[str]:
    """Check that sagas undo their steps in reverse order, and all steps unless the run was terminated or failed."""
    undone: dict[Effect, list[int]] = {}
    repairs = world.database.repairs
    for saga, step in dict.fromkeys(world.external.undone):
        undone.setdefault(saga, []).append(step)
    for (name, number, key), steps in undone.items():
        found = world.database.rows(
            "SELECT id, status FROM holdfast_run WHERE instance_id = ? AND number = ?", name, number
        )
        if not found or found[0][0] in repairs.copied or repairs.is_removed(name):
            continue  # a run that continues from the history of another one may have undone a part of the saga there
        status = found[0][1]
        if steps != sorted(steps, reverse=True) or (status in ("complete", "cancelled") and steps[-1] != 0):
            yield f"saga {key} of {name} (run {number}) is {status}, and undid {steps}"
    for instance in world.workload.instances.values():
        if instance.workflow in PROGRAMS and not instance.control_requests and instance.results:
            for number, program in enumerate(instance.params):
                for _, key, n, fails in (part for part in certain_parts(program) if part[0] == "saga"):
                    if fails and len(undone.get((instance.id, number, key), ())) != n:
                        yield f"saga {key} of {instance.id} (run {number}) failed, and was not undone"


def step_keys(world: World, *kinds: str) -> frozenset[str]:
    """Keys of the steps of these kinds in all programs."""
    programs = [program for instance in world.workload.instances.values() for program in instance.programs]
    return frozenset(part[1] for program in programs for part in parts(program) if part[0] in kinds)
