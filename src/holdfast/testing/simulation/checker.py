"""The promises, checked at the end of a simulation against the rows and what the world outside has seen.

Those that must hold at every moment are watched in ``database``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import repeat
from typing import Any

from holdfast.core import codec
from holdfast.core.failure import Failure
from holdfast.core.outbound import outbound_id
from holdfast.store.protocol import FactState
from holdfast.testing.simulation import code, families, leased, models, sieve
from holdfast.testing.simulation.code import BUFFERED, GRAPH, PROGRAMS, Effect
from holdfast.testing.simulation.database import SimulatedDatabase
from holdfast.testing.simulation.families import FAILING_NODE, FAMILY, family_fails, fits_family
from holdfast.testing.simulation.greeting import greeted_twice
from holdfast.testing.simulation.programs import GOSSIP, MISFITS, PARCEL, fits, messages, parcel, parts, sure
from holdfast.testing.simulation.step_infos import step_info_failures
from holdfast.testing.simulation.workload import Instance
from holdfast.testing.simulation.world import World

_ENDS = {"cancelled": "cancel", "terminated": "terminate"}
"""A status that only people bring about, and how."""
_CLOCKS_MS = 30


def broken_promises(world: World) -> Iterator[str]:
    for instance in world.workload.instances.values():
        yield from _instance(world, instance)
    yield from _effects(world)
    yield from _transactions(world.database, world)
    yield from _outbox(world)
    yield from _deadlines(world.database)
    yield from _gossip(world.database)
    yield from _sagas(world)
    yield from greeted_twice(world.database)
    undone = _keys_of(world, "live")
    kept = world.progress_kept and not undone  # beside an open transaction heartbeats are stored later
    yield from step_info_failures(world.told, world.database, undone, progress_kept=kept, uncounted=(BUFFERED,))
    yield from world.outside.overtime
    if world.late_results_kept:
        yield from world.database.results.lost(world.living)
    yield from _misfits(world)
    yield from sieve.lost_items(world.database)
    yield from _tombstones(world.database)
    if world.database.given_up:  # no fault takes that long
        yield "a step's transaction stayed open because who has to end it waited for it"
    for node in world.nodes.values():
        if node.busy:
            yield f"{node.name} has nothing to do, and keeps something in memory"


def _instance(world: World, instance: Instance) -> Iterator[str]:
    database = world.database
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
    elif status == "errored" and b"VersionUnsupportedError" in error and world.deployed:
        pass  # code of the version before got hold of it
    elif status == "errored" and _may_fail(instance, error):
        pass
    else:
        yield f"{instance.id} is {status}, which nobody asked for: {error!r} {note!r}"
    if instance.terminated and status != "terminated" and "restart" not in instance.asked:
        yield f"the end of {instance.id} was acknowledged, and it is {status}"
    yield from _cancellation(instance, status)
    yield from _mail(database, instance)
    if status == "complete" and instance.workflow == models.CHAIN:
        [(told,)] = database.rows(
            "SELECT count(*) FROM holdfast_outbox AS o JOIN holdfast_run AS r ON r.id = o.run "
            "WHERE r.instance_id = ? AND r.current = 1",
            instance.id,
        )
        if told != len(instance.params):
            yield f"the {len(instance.params)} steps of {instance.id} told the world {told} things"


def _may_fail(instance: Instance, error: bytes) -> bool:
    match instance.workflow:
        case families.FAMILY:
            return family_fails(instance.params) and FAILING_NODE.encode() in error
        case sieve.SIEVE:
            return sieve.fits_sieve_error(instance.params, Failure.decode(error).message)
        case _:
            return False


def _cancellation(instance: Instance, status: str) -> Iterator[str]:
    """A graph whose cancellation was acknowledged ends as cancelled. Code of workflows may do something else."""
    if instance.workflow not in (GRAPH, FAMILY, sieve.SIEVE) or not instance.cancelled:
        return
    if status != "cancelled" and not instance.asked & {"restart", "terminate"}:
        yield f"the cancellation of {instance.id} was acknowledged, and it is {status}"


def _result(instance: Instance, result: Any) -> Iterator[str]:
    if not _fits(instance, result):
        yield f"{instance.id} has a result that it cannot have: {instance.params} gave {result}"
    elif instance.workflow in PROGRAMS:
        yield from _messages(instance, messages(instance.params, result))
        yield from _messages(instance, messages(instance.params, result, "parcels"))
    for told in instance.results:
        if told != result and "restart" not in instance.asked:
            yield f"a client was told that {instance.id} returned {told}, and it returned {result}"


def _fits(instance: Instance, result: Any) -> bool:
    match instance.workflow:
        case models.CHAIN:
            return models.fits_chain(instance.params, result, instance.sent)
        case sieve.SIEVE:
            return sieve.fits_sieve(instance.params, result)
        case leased.LEASED:
            return leased.fits_leased(instance.params, result)
        case code.GRAPH:
            return models.fits_graph(instance.params, result)
        case families.FAMILY:
            return fits_family(instance.params, result)
        case _:
            rounds = instance.params
            return len(result) == len(rounds) and all(map(fits, rounds, result, repeat(instance.sent)))


def _messages(instance: Instance, received: list[list[int]]) -> Iterator[str]:
    if "restart" in instance.asked:
        return  # what was not read by then stays with the run that was restarted
    numbers = [number for of_a_round in received for number in of_a_round]
    if numbers != [*range(1, len(numbers) + 1)]:
        yield f"{instance.id} did not receive each message once and in order: {received}"


def _mail(database: SimulatedDatabase, instance: Instance) -> Iterator[str]:
    sql = (
        "SELECT e.dedup FROM holdfast_event AS e JOIN holdfast_run AS r ON r.id = e.run "
        "WHERE r.instance_id = ? AND e.dedup IS NOT NULL"
    )
    there = {dedup for (dedup,) in database.rows(sql, instance.id)}
    for lost in sorted(instance.acknowledged - there):
        yield f"{lost} was sent to {instance.id} and acknowledged, and it is not there"


def _effects(world: World) -> Iterator[str]:
    """Nothing ran that was not counted.

    What a worker that was stopped in order had to cut off counts as no attempt. Nor does what was undone together with
    its transaction because that was cut off; of such steps the rows are counted. Steps of a workflow with
    ``persist="task"`` are called again if their worker dies before it writes what it has buffered.
    """
    # The result of a chain's step tells how many attempts failed before it.
    undone = _keys_of(world, "live")
    counted = Counter(effect for effect, process in world.calls if not process.left and effect[2] not in undone)
    sql = (
        "SELECT f.attempts + (r.kind = 'chain') FROM holdfast_fact AS f JOIN holdfast_run AS r ON r.id = f.run "
        "WHERE r.instance_id = ? AND r.number = ? AND f.state = ? AND f.key = ? AND r.workflow <> ?"
    )
    for (instance, number, key), called in counted.items():
        if number == models.ANY_RUN:
            yield from _starts(world.database, instance, key, called)
            continue
        rows = world.database.rows(sql, instance, number, int(FactState.RESULT), key, BUFFERED)
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
    keys = _keys_of(world, "tx", "live")
    for instance, number, key, ok in database.rows(
        "SELECT r.instance_id, r.number, f.key, f.ok FROM holdfast_fact AS f JOIN holdfast_run AS r ON r.id = f.run "
        "WHERE f.state = 0 ORDER BY 1, 2, 3"
    ):
        if key in keys and written.pop((instance, number, key), 0) != ok:
            yield f"step {key} of {instance} (run {number}) has a result, and not exactly one row of its own"
    for (instance, number, key), count in written.items():
        yield f"step {key} of {instance} (run {number}) has no result, and {count} rows of its own"


def _starts(database: SimulatedDatabase, instance: str, node: str, called: int) -> Iterator[str]:
    """Of a graph: each claim of a node is written down as a start of it.

    Instances are named by the first of their params, because the id of one that a node runs is chosen by the engine.
    """
    [(starts,)] = database.rows(
        "SELECT count(*) FROM holdfast_fact AS f JOIN holdfast_run AS r ON r.id = f.run "
        "WHERE r.kind = 'graph' AND CAST(r.params AS TEXT) ->> 0 = ? AND f.state = ? AND f.key = ?",
        instance,
        int(FactState.START),
        node,
    )
    if called > starts:
        yield f"node {node} of {instance} was called {called} times, and started {starts} times"


def _sagas(world: World) -> Iterator[str]:
    """What is undone is undone from the end on; if the run came to its end by itself, all of it."""
    undone: dict[Effect, list[int]] = {}
    for saga, step in dict.fromkeys(world.outside.undone):
        undone.setdefault(saga, []).append(step)
    for (name, number, key), steps in undone.items():
        [(status,)] = world.database.rows(
            "SELECT status FROM holdfast_run WHERE instance_id = ? AND number = ?", name, number
        )
        if steps != sorted(steps, reverse=True) or (status == "complete" and steps[-1] != 0):
            yield f"saga {key} of {name} (run {number}) is {status}, and undid {steps}"
    for instance in world.workload.instances.values():
        if instance.workflow in PROGRAMS and not instance.asked and instance.results:
            for number, program in enumerate(instance.params):
                for _, key, n, fails in (part for part in sure(program) if part[0] == "saga"):
                    if fails and len(undone.get((instance.id, number, key), ())) != n:
                        yield f"saga {key} of {instance.id} (run {number}) failed, and was not undone"


def _tombstones(database: SimulatedDatabase) -> Iterator[str]:
    """A graph has a tombstone exactly if it was terminated or cancelled."""
    for pid, status, stones in database.rows(
        "SELECT r.workflow || '/' || r.instance_id, r.status, count(f.run) FROM holdfast_run AS r "
        "LEFT JOIN holdfast_fact AS f ON f.run = r.id AND f.state = ? WHERE r.kind = 'graph' GROUP BY r.id "
        "HAVING count(f.run) <> (r.status IN ('terminated', 'cancelled')) ORDER BY r.id",
        int(FactState.TOMBSTONE),
    ):
        yield f"{pid} is {status}, and has {stones} tombstones"


def _gossip(database: SimulatedDatabase) -> Iterator[str]:
    """What a run tells another is told once, whatever became of who tells it."""
    for payload, times in database.rows(
        "SELECT payload, count(*) FROM holdfast_event WHERE type = ? GROUP BY payload HAVING count(*) > 1 ORDER BY 1",
        GOSSIP,
    ):
        yield f"{payload!r} was told {times} times"


def _misfits(world: World) -> Iterator[str]:
    """No event whose payload does not fit its declared type is acknowledged or written."""
    for instance in world.workload.instances.values():
        for payload in instance.misfits:
            yield f"{payload} was sent to {instance.id} and acknowledged, and does not fit"
    for name, payload in world.database.rows(
        "SELECT r.instance_id, e.payload FROM holdfast_event AS e JOIN holdfast_run AS r ON r.id = e.run "
        "WHERE e.type = ? ORDER BY r.id, e.n",
        PARCEL,
    ):
        given = codec.plain(payload)
        if given in MISFITS or given != parcel(given["number"]):
            yield f"{given} reached {name}, and does not fit"


def _deadlines(database: SimulatedDatabase) -> Iterator[str]:
    """No wait runs out while what it waits for is there. Clocks of workers are wrong by little."""
    for instance, key, type_ in database.rows(
        "SELECT DISTINCT r.instance_id, f.key, e.type FROM holdfast_fact AS f JOIN holdfast_run AS r ON r.id = f.run "
        "JOIN holdfast_event AS e ON e.run = f.run AND e.type = f.event_type "
        "WHERE f.state = ? AND f.kind = 'waitForEvent' AND f.event IS NULL AND e.created_at < f.wake_at - ? "
        "AND (e.delivered_at IS NULL OR e.delivered_at > f.at) ORDER BY 1, 2",
        int(FactState.RESULT),
        _CLOCKS_MS,
    ):
        yield f"{key} of {instance} ran out of time although {type_} was there"


def _outbox(world: World) -> Iterator[str]:
    """Each event arrives at least once, none that was not written, those of a run in their order."""
    written: dict[int, list[str]] = {}
    for run, n, workflow, instance, number in world.database.rows(
        "SELECT o.run, o.n, r.workflow, r.instance_id, r.number FROM holdfast_outbox AS o "
        "JOIN holdfast_run AS r ON r.id = o.run ORDER BY o.run, o.n"
    ):
        written.setdefault(run, []).append(outbound_id(workflow, instance, number, n))
    arrived = [*dict.fromkeys(world.outside.delivered)]
    for ids in written.values():
        if [id_ for id_ in arrived if id_ in ids] != ids:
            yield f"of the outbound events {ids} arrived {[id_ for id_ in arrived if id_ in ids]}"
    for unknown in set(arrived).difference(*written.values()):
        yield f"the outbound event {unknown} arrived, and was never written"


def _keys_of(world: World, *kinds: str) -> frozenset[str]:
    """Of the steps of these kinds, in all programs."""
    programs = [program for instance in world.workload.instances.values() for program in instance.programs]
    return frozenset(part[1] for program in programs for part in parts(program) if part[0] in kinds)
