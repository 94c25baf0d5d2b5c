"""The promises, checked at the end of a simulation against the rows and what the world outside has seen.

Those that must hold at every moment are watched in ``database``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import pairwise

from holdfast.core import codec
from holdfast.store.protocol import FactState
from holdfast.testing.simulation.code import WORKFLOW
from holdfast.testing.simulation.database import SimulatedDatabase
from holdfast.testing.simulation.programs import fits, messages, parts
from holdfast.testing.simulation.workload import Instance
from holdfast.testing.simulation.world import World

_ENDS = {"cancelled": "cancel", "terminated": "terminate"}
"""A status that only people bring about, and how."""


def broken_promises(world: World) -> Iterator[str]:
    for instance in world.workload.instances.values():
        yield from _instance(world.database, instance)
    yield from _effects(world)
    yield from _transactions(world.database, world)
    for node in world.nodes.values():
        if node.busy:
            yield f"{node.name} has nothing to do, and keeps something in memory"


def _instance(database: SimulatedDatabase, instance: Instance) -> Iterator[str]:
    rows = database.rows(
        "SELECT status, output, error, note FROM holdfast_run WHERE instance_id = ? AND current = 1", instance.id
    )
    if not rows:
        if instance.started:
            yield f"the start of {instance.id} was acknowledged, and it is not there"
        return
    status, output, error, note = rows[0]
    if status == "complete":
        yield from _result(instance, codec.plain(output))
    elif status in _ENDS and _ENDS[status] in instance.asked:
        pass
    else:
        yield f"{instance.id} is {status}, which nobody asked for: {error!r} {note!r}"
    yield from _mail(database, instance)


def _result(instance: Instance, results: list[object]) -> Iterator[str]:
    if len(results) != len(instance.rounds):
        yield f"{instance.id} did {len(results)} of its {len(instance.rounds)} programs"
        return
    for program, result in zip(instance.rounds, results, strict=True):
        if not fits(program, result, instance.sent):
            yield f"{instance.id} has a result that its program cannot have: {program} gave {result}"
            return
    received = messages(instance.rounds, results)
    # A key is known to one run only: what is sent again after continue-as-new is there again.
    if any(after[0] > before[-1] + 1 for before, after in pairwise(received)):
        yield f"{instance.id} missed messages between two runs: {received}"
    if received and received[0][0] != 1 and "restart" not in instance.asked:
        yield f"{instance.id} missed messages before {received[0]}"
    for told in instance.results:
        if told != results and "restart" not in instance.asked:
            yield f"a client was told that {instance.id} returned {told}, and it returned {results}"


def _mail(database: SimulatedDatabase, instance: Instance) -> Iterator[str]:
    sql = (
        "SELECT e.dedup FROM holdfast_event AS e JOIN holdfast_run AS r ON r.id = e.run "
        "WHERE r.instance_id = ? AND e.dedup IS NOT NULL"
    )
    there = {dedup for (dedup,) in database.rows(sql, instance.id)}
    for lost in sorted(instance.acknowledged - there):
        yield f"{lost} was sent to {instance.id} and acknowledged, and it is not there"


def _effects(world: World) -> Iterator[str]:
    """Nothing ran that was not counted. What a worker that was stopped in order had to cut off counts as no attempt."""
    counted = Counter(effect for effect, process in world.calls if not process.left)
    sql = (
        "SELECT f.attempts FROM holdfast_fact AS f JOIN holdfast_run AS r ON r.id = f.run "
        "WHERE r.workflow = ? AND r.instance_id = ? AND r.number = ? AND f.state = ? AND f.key = ?"
    )
    for (instance, number, key), called in counted.items():
        rows = world.database.rows(sql, WORKFLOW, instance, number, int(FactState.RESULT), key)
        for (attempts,) in rows:
            if called > attempts:
                yield f"step {key} of {instance} (run {number}) was called {called} times in {attempts} attempts"


def _transactions(database: SimulatedDatabase, world: World) -> Iterator[str]:
    """What a step wrote in its transaction is there once if the step has a result, and else not at all."""
    written = {
        (instance, number, key): count
        for instance, number, key, count in database.rows(
            "SELECT instance, number, key, count(*) FROM effect GROUP BY instance, number, key ORDER BY 1, 2, 3"
        )
    }
    keys = _transactional(world)
    for instance, number, key, ok in database.rows(
        "SELECT r.instance_id, r.number, f.key, f.ok FROM holdfast_fact AS f JOIN holdfast_run AS r ON r.id = f.run "
        "WHERE f.state = 0 ORDER BY 1, 2, 3"
    ):
        if key in keys and written.pop((instance, number, key), 0) != ok:
            yield f"step {key} of {instance} (run {number}) has a result, and not exactly one row of its own"
    for (instance, number, key), count in written.items():
        yield f"step {key} of {instance} (run {number}) has no result, and {count} rows of its own"


def _transactional(world: World) -> frozenset[str]:
    programs = [program for instance in world.workload.instances.values() for program in instance.rounds]
    return frozenset(part[1] for program in programs for part in parts(program) if part[0] == "tx")
